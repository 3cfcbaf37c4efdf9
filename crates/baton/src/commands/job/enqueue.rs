//! `baton job enqueue`.

use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Value, json};

use super::super::table::text;
use super::super::target::Target;
use crate::output::Output;

/// The longest wait of one request.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// Enqueue a job.
///
/// Prints its id. With --wait it prints the final job, and the exit code is 0 only when it completed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  baton job enqueue email.send '{\"to\": \"a@example.com\"}' --queue mail --priority high
  baton job enqueue clean-up --unique clean-up     no second one until the first has ended
  baton job enqueue report --wait 300")]
pub struct Args {
    /// The job's type
    job_type: String,

    /// Its arguments, a JSON value
    #[arg(value_name = "JSON", default_value = "null", hide_default_value = true)]
    args: String,

    /// Its queue
    #[arg(long, short, value_name = "NAME", default_value = "default")]
    queue: String,

    /// low, normal, high or critical
    #[arg(long, value_name = "PRIORITY")]
    priority: Option<String>,

    /// Seconds to delay its start
    #[arg(long, value_name = "SECONDS", conflicts_with = "at")]
    delay: Option<f64>,

    /// The earliest time of its start, such as 2026-11-15T18:00:00Z
    #[arg(long, value_name = "TIME")]
    at: Option<String>,

    /// Its timeout in seconds
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<f64>,

    /// How often it is retried after a failure
    #[arg(long, value_name = "COUNT")]
    retries: Option<u32>,

    /// A key that only one active job may have; a second one is not enqueued
    #[arg(long, value_name = "KEY")]
    unique: Option<String>,

    /// A tag to find it by; may be given several times
    #[arg(long, value_name = "TAG")]
    tag: Vec<String>,

    /// Wait this many seconds for it to end
    #[arg(long, value_name = "SECONDS")]
    wait: Option<f64>,

    #[command(flatten)]
    target: Target,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let client = args.target.client()?;
    let mut job = client.job(args.job_type.as_str()).queue(args.queue.as_str());
    job = job.args(&serde_json::from_str::<Value>(&args.args).context("the arguments are no JSON value")?);
    let texts = [("priority", &args.priority), ("runAt", &args.at), ("uniqueKey", &args.unique)];
    for (name, value) in texts.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?))) {
        job = job.field(name, json!(value));
    }
    if let Some(seconds) = args.delay {
        job = job.delay(super::super::seconds("--delay", seconds)?);
    }
    if let Some(seconds) = args.timeout {
        job = job.timeout(super::super::seconds("--timeout", seconds)?);
    }
    if let Some(retries) = args.retries {
        job = job.retries(retries);
    }
    job = args.tag.iter().fold(job, |job, tag| job.tag(tag.as_str()));
    let enqueued = job.enqueue().await?;
    let mut output = Output::new(args.target.json);
    let Some(wait) = args.wait else {
        if output.is_json() {
            output.json(&json!({
                "jobId": enqueued.job_id, "state": enqueued.state, "deduplicated": enqueued.deduplicated,
            }))?;
        } else {
            output.text(&enqueued.job_id)?;
        }
        output.flush()?;
        return Ok(());
    };
    eprintln!("{}", enqueued.job_id);
    let longest = super::super::seconds("--wait", wait)?;
    let job = wait_for_end(&client, &enqueued.job_id, longest).await?;
    if output.is_json() {
        output.json(&job)?;
    } else {
        output.text(text(&job["state"]))?;
    }
    output.flush()?;
    match job["state"].as_str() {
        Some("completed") => Ok(()),
        Some(state) => bail!("the job is {state}"),
        None => bail!("the response has no state"),
    }
}

/// The job once it has ended, or its present state after `longest`.
async fn wait_for_end(client: &baton_client::Client, id: &str, longest: Duration) -> anyhow::Result<Value> {
    let watch = baton_env::Stopwatch::start();
    loop {
        let left = longest.saturating_sub(watch.elapsed());
        let job = client.jobs().wait(id, left.min(WAIT_MAX)).await?;
        let is_at_end =
            matches!(job["state"].as_str(), Some("completed" | "failed" | "timed_out" | "cancelled"));
        if is_at_end || left <= WAIT_MAX {
            return Ok(job);
        }
    }
}
