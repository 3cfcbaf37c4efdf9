//! `baton job list`.

use baton_client::JobFilter;
use serde_json::Value;

use super::super::table::{self, text};
use super::super::target::Target;
use crate::output::Output;

/// List jobs, the newest first.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  baton job list
  baton job list --state failed --queue mail
  baton job list --schedule nightly -n 5
  baton job list --json -n 10000 | jq .jobId")]
pub struct Args {
    /// Only jobs in this state: scheduled, pending, dispatched, running, cancelling, completed, failed, timed_out
    /// or cancelled
    #[arg(long, value_name = "STATE")]
    state: Option<String>,

    /// Only jobs of this queue
    #[arg(long, short, value_name = "NAME")]
    queue: Option<String>,

    /// Only jobs of this type
    #[arg(long = "type", value_name = "TYPE")]
    job_type: Option<String>,

    /// Only jobs with this tag
    #[arg(long, value_name = "TAG")]
    tag: Option<String>,

    /// Only jobs of this schedule
    #[arg(long, value_name = "ID")]
    schedule: Option<String>,

    /// At most this many
    #[arg(long, short = 'n', value_name = "COUNT", default_value_t = 50)]
    limit: usize,

    #[command(flatten)]
    target: Target,
}

/// Jobs of one page.
const PAGE: usize = 500;

pub async fn run(args: Args) -> anyhow::Result<()> {
    let client = args.target.client()?;
    let terms = [
        ("state", &args.state),
        ("queue", &args.queue),
        ("jobType", &args.job_type),
        ("tag", &args.tag),
        ("scheduleId", &args.schedule),
    ];
    let terms = terms.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))).collect();
    let mut filter = JobFilter { terms, ..JobFilter::default() };
    let mut output = Output::new(args.target.json);
    let (mut left, mut shown) =
        (args.limit, table::new(&["job", "type", "queue", "state", "attempts", "created", "error"]));
    while left > 0 {
        filter.limit = Some(left.min(PAGE) as u64);
        let mut page = client.jobs().list(&filter).await?;
        let jobs = page["jobs"].as_array_mut().map(std::mem::take).unwrap_or_default();
        left = left.saturating_sub(jobs.len());
        for job in &jobs {
            if output.is_json() {
                output.json(job)?;
            } else {
                shown.add_row(row(job));
            }
        }
        match page["nextCursor"].as_str() {
            Some(cursor) => filter.cursor = Some(cursor.to_owned()),
            None => break,
        }
    }
    if !output.is_json() {
        if shown.is_empty() {
            output.text("No such jobs: `baton job enqueue TYPE` makes one.")?;
        } else {
            output.text(shown)?;
        }
    }
    output.flush()?;
    Ok(())
}

fn row(job: &Value) -> [String; 7] {
    let [id, kind, queue, state, attempts, created] =
        ["jobId", "jobType", "queue", "state", "attempts", "createdAt"].map(|name| text(&job[name]));
    [id, kind, queue, state, attempts, created, text(&job["error"]["message"])]
}
