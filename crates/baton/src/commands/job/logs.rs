//! `baton job logs`: what a job said, and what it goes on to say.

use std::time::Duration;

use serde_json::Value;

use super::super::table::text;
use super::super::target::Target;
use crate::output::Output;

/// The pause between two looks while it is followed.
const REST: Duration = Duration::from_millis(500);

/// Print the log of a job.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  baton job logs 0199…
  baton job logs -f 0199…       go on until the job is at its end")]
pub struct Args {
    /// The job's id
    id: String,

    /// Go on until the job is at its end
    #[arg(long, short)]
    follow: bool,

    #[command(flatten)]
    target: Target,
}

/// Reads page after page.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let jobs = args.target.client()?.jobs();
    let mut output = Output::new(args.target.json);
    let mut after: Option<String> = None;
    let mut is_at_end = !args.follow;
    loop {
        let page = jobs.logs(&args.id, after.as_deref()).await?;
        for line in &page.lines {
            show(&mut output, line)?;
        }
        output.flush()?;
        if let Some(next) = page.next.as_ref().filter(|next| !next.is_null()) {
            after = Some(text(next));
        }
        if !page.lines.is_empty() {
            continue;
        }
        if is_at_end {
            return Ok(());
        }
        // Looked at before the lines, so that none that came before the end is missed.
        let state = jobs.get(&args.id).await?["state"].clone();
        is_at_end = matches!(state.as_str(), Some("completed" | "failed" | "timed_out" | "cancelled"));
        if !is_at_end {
            baton_env::sleep(REST).await;
        }
    }
}

fn show(output: &mut Output, line: &Value) -> anyhow::Result<()> {
    if output.is_json() {
        output.json(line)?;
    } else {
        output.text(format_args!(
            "{}  {:5}  {}",
            text(&line["at"]),
            text(&line["level"]),
            text(&line["message"])
        ))?;
    }
    Ok(())
}
