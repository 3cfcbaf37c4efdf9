//! `baton job logs`: prints a job's log.

use std::time::Duration;

use serde_json::Value;

use super::super::retry_until_answered;
use super::super::table::text;
use super::super::target::Target;
use crate::output::{self, Output};

/// The pause between two reads while it is followed.
const REST: Duration = Duration::from_millis(500);

/// Print the log of a job.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  baton job logs 0199…
  baton job logs -f 0199…       follow the log until the job has ended")]
pub struct Args {
    /// The job's id
    id: String,

    /// Follow the log until the job has ended
    #[arg(long, short)]
    follow: bool,

    #[command(flatten)]
    target: Target,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    tokio::select! {
        outcome = print(&args) => outcome,
        () = output::reader_gone() => Ok(()),
    }
}

async fn print(args: &Args) -> anyhow::Result<()> {
    let jobs = args.target.client()?.jobs();
    let mut output = Output::new(args.target.json);
    let (mut after, mut has_begun) = (0, false);
    loop {
        let read = || jobs.logs(&args.id, after);
        // The first response shows whether the server exists at all.
        let page = if args.follow && has_begun { retry_until_answered(read).await? } else { read().await? };
        has_begun = true;
        for line in &page.lines {
            show(&mut output, line)?;
        }
        output.flush()?;
        after = page.after;
        let is_at_end = matches!(page.state.as_str(), "completed" | "failed" | "timed_out" | "cancelled");
        if !page.more && (!args.follow || is_at_end) {
            return Ok(());
        }
        if !page.more {
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
