//! `baton workers`: lists workers.

use serde_json::Value;

use super::table::{self, text};
use super::target::Target;
use crate::output::Output;

/// List workers: their queues, their running jobs, and their last heartbeat.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  baton workers                   all workers of the server
  baton workers --json | jq .     for programs")]
pub struct Args {
    #[command(flatten)]
    target: Target,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let workers = args.target.client()?.workers().await?;
    let mut output = Output::new(args.target.json);
    if output.is_json() {
        workers.iter().try_for_each(|worker| output.json(worker))?;
    } else if workers.is_empty() {
        output.text("No workers: `baton worker --exec COMMAND` starts one.")?;
    } else {
        let mut table = table::new(&["worker", "name", "queues", "types", "running", "state", "last seen"]);
        for worker in &workers {
            table.add_row([
                text(&worker["workerId"]),
                text(&worker["name"]),
                words(&worker["queues"]),
                words(&worker["jobTypes"]),
                format!("{} of {}", text(&worker["running"]), text(&worker["maxConcurrency"])),
                text(&worker["state"]),
                text(&worker["seenAt"]),
            ]);
        }
        output.text(table)?;
    }
    output.flush()?;
    Ok(())
}

fn words(list: &Value) -> String {
    let words: Vec<_> = list.as_array().into_iter().flatten().map(text).collect();
    if words.is_empty() { "any".into() } else { words.join(", ") }
}
