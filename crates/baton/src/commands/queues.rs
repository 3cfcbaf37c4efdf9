//! `baton queues`: lists queues and their backlog, and deletes a queue.

use anyhow::{Context, bail};
use baton_client::{Client, MessageCounts, QueueDetail};
use comfy_table::presets::UTF8_BORDERS_ONLY;
use comfy_table::{CellAlignment, Table};
use serde_json::json;

use super::target::Target;
use crate::output::Output;

/// List queues, show one with its partitions and options, or delete one.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  baton queues                    all queues, with how much waits in them
  baton queues orders             one queue: partitions and options
  baton queues --json | jq .      for programs
  baton queues orders --delete --confirm orders     delete the queue with all that it holds")]
pub struct Args {
    /// Show this queue only
    name: Option<String>,

    /// Delete the queue with its messages, groups and dead letters; needs --confirm
    #[arg(long, requires = "name")]
    delete: bool,

    /// The name of the queue once more, as nothing brings it back
    #[arg(long, value_name = "QUEUE", requires = "delete")]
    confirm: Option<String>,

    #[command(flatten)]
    target: Target,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let client = args.target.client()?;
    let mut output = Output::new(args.target.json);
    match &args.name {
        Some(name) if args.delete => delete(&client, name, args.confirm.as_deref(), &mut output).await?,
        Some(name) => show(&client, name, &mut output).await?,
        None => list(&client, &mut output).await?,
    }
    output.flush()?;
    Ok(())
}

async fn delete(
    client: &Client,
    name: &str,
    confirm: Option<&str>,
    output: &mut Output,
) -> anyhow::Result<()> {
    let queue = client.queue(name);
    let detail = queue.detail().await.with_context(|| format!("cannot delete {name}"))?;
    match confirm {
        Some(confirmed) if confirmed == name => {}
        Some(other) => bail!("--confirm {other} is not the queue {name}; nothing was deleted"),
        None => bail!(
            "this deletes the queue and its {} messages for good; repeat it with --confirm {name}",
            detail.totals.total
        ),
    }
    let existed = queue.delete().await?;
    if output.is_json() {
        output.json(&json!({"queue": name, "deleted": existed}))?;
    } else {
        output.text(format_args!("deleted {name}"))?;
    }
    Ok(())
}

async fn list(client: &Client, output: &mut Output) -> anyhow::Result<()> {
    let mut queues = client.queues().await?;
    queues.sort_by(|a, b| a.name.cmp(&b.name));
    if output.is_json() {
        queues.iter().try_for_each(|queue| output.json(queue))?;
        return Ok(());
    }
    if queues.is_empty() {
        output.text("No queues yet: `baton push QUEUE '{\"any\": \"json\"}'` makes one.")?;
        return Ok(());
    }
    let mut table = table(&["queue", "partitions", "pending", "processing", "total"]);
    for queue in &queues {
        let m = &queue.messages;
        let numbers = [queue.partitions, m.pending, m.processing, m.total].map(|n| n.to_string());
        table.add_row([queue.name.clone()].into_iter().chain(numbers));
    }
    output.text(table)?;
    Ok(())
}

async fn show(client: &Client, name: &str, output: &mut Output) -> anyhow::Result<()> {
    let queue = client.queue(name).detail().await.with_context(|| format!("cannot show {name}"))?;
    if output.is_json() {
        output.json(&queue)?;
        return Ok(());
    }
    output.text(title(&queue))?;
    let mut partitions =
        table(&["partition", "pending", "processing", "completed", "dead", "total", "newest message"]);
    for partition in &queue.partitions {
        let newest = partition.newest_message.clone().unwrap_or_default();
        partitions
            .add_row([partition.name.clone()].into_iter().chain(counts(&partition.stats)).chain([newest]));
    }
    if queue.partitions.len() > 1 {
        partitions
            .add_row(["all".to_owned()].into_iter().chain(counts(&queue.totals)).chain([String::new()]));
    }
    output.text(partitions)?;
    if !queue.options.is_empty() {
        let mut options = table(&["option", "value"]);
        for (name, value) in &queue.options {
            options.add_row([name.clone(), value.to_string()]);
        }
        output.text(options)?;
    }
    Ok(())
}

fn title(queue: &QueueDetail) -> String {
    let label =
        |name: &str, value: &str| if value.is_empty() { String::new() } else { format!("  {name} {value}") };
    let (namespace, task) = (label("namespace", &queue.namespace), label("task", &queue.task));
    format!("{}{namespace}{task}  since {}", queue.name, queue.created_at)
}

fn counts(m: &MessageCounts) -> [String; 5] {
    [m.pending, m.processing, m.completed, m.dead_letter, m.total].map(|n| n.to_string())
}

/// A table whose first column is text and whose others are numbers.
fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_BORDERS_ONLY).set_header(header.iter().copied());
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
