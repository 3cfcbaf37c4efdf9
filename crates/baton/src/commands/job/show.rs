//! `baton job show`.

use serde_json::Value;

use super::super::table::{self, text};
use super::super::target::Target;
use crate::output::Output;

/// Show a job with its attempts.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The job's id
    id: String,

    #[command(flatten)]
    target: Target,
}

/// The fields of a job in the order of printing.
const FIELDS: [(&str, &str); 14] = [
    ("jobType", "type"),
    ("queue", "queue"),
    ("state", "state"),
    ("waitReason", "waits for"),
    ("priority", "priority"),
    ("scheduleId", "schedule"),
    ("scheduledFor", "scheduled for"),
    ("createdAt", "created"),
    ("runAt", "runs at"),
    ("endedAt", "ended"),
    ("uniqueKey", "unique key"),
    ("concurrencyKey", "concurrency key"),
    ("correlationId", "correlation id"),
    ("args", "arguments"),
];

pub async fn run(args: Args) -> anyhow::Result<()> {
    let jobs = args.target.client()?.jobs();
    let mut job = jobs.get(&args.id).await?;
    if job["hasResult"] == true {
        job["result"] = jobs.result(&args.id).await?;
    }
    let mut output = Output::new(args.target.json);
    if output.is_json() {
        output.json(&job)?;
    } else {
        show(&job, &mut output)?;
    }
    output.flush()?;
    Ok(())
}

fn show(job: &Value, output: &mut Output) -> anyhow::Result<()> {
    let mut fields = table::new(&["job", &text(&job["jobId"])]);
    for (name, label) in FIELDS {
        if !job[name].is_null() {
            fields.add_row([label.to_owned(), text(&job[name])]);
        }
    }
    if !job["result"].is_null() {
        fields.add_row(["result".to_owned(), text(&job["result"])]);
    }
    if !job["progress"].is_null() {
        let progress = &job["progress"];
        fields.add_row([
            "progress".into(),
            format!("{} % {}", progress["percent"], text(&progress["message"])),
        ]);
    }
    output.text(fields)?;
    let attempts = job["history"].as_array().map(Vec::as_slice).unwrap_or_default();
    if !attempts.is_empty() {
        let mut rows = table::new(&["attempt", "worker", "started", "ended", "outcome", "error"]);
        for attempt in attempts {
            let [number, worker, started, ended, outcome] =
                ["number", "workerId", "startedAt", "endedAt", "outcome"].map(|name| text(&attempt[name]));
            let error = match &attempt["error"] {
                Value::Object(error) => error.get("message").map(text).unwrap_or_default(),
                other => text(other),
            };
            rows.add_row([number, worker, started, ended, outcome, error]);
        }
        output.text(rows)?;
    }
    Ok(())
}
