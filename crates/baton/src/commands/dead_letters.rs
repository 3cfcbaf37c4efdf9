//! `baton dead-letters`: shows the errors of dead letters, replays or removes them.

use anyhow::bail;
use baton_client::Client;
use comfy_table::presets::UTF8_BORDERS_ONLY;
use comfy_table::{CellAlignment, Table};
use serde_json::{Map, Value, json};

use super::target::Target;
use crate::output::Output;

/// Show the errors of dead letters, replay or remove them.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  baton dead-letters errors                            errors of all queues, the most frequent first
  baton dead-letters errors --queue orders --json
  baton dead-letters replay --queue orders --dry-run   count only
  baton dead-letters replay --queue orders --error 'connection refused' --rate 50
  baton dead-letters purge --queue orders --to 2026-01-01T00:00:00Z
  baton dead-letters purge --all                       every dead letter of every queue")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Group dead letters by their error, the most frequent first.
    Errors(ErrorsArgs),
    /// Replay dead letters: push them again, the oldest of each partition first.
    Replay(ReplayArgs),
    /// Remove dead letters for good.
    Purge(PurgeArgs),
}

#[derive(Debug, clap::Args)]
struct FilterArgs {
    /// Only of this queue
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,

    /// Only of this partition
    #[arg(long, value_name = "NAME")]
    partition: Option<String>,

    /// Only dead letters of this consumer group
    #[arg(long, value_name = "NAME")]
    group: Option<String>,

    /// Only dead letters from this time on
    #[arg(long, value_name = "TIME")]
    from: Option<String>,

    /// Only dead letters up to this time
    #[arg(long, value_name = "TIME")]
    to: Option<String>,

    /// Only with exactly this error
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,

    /// Only with an error that contains this text
    #[arg(long, value_name = "TEXT")]
    error_contains: Option<String>,
}

impl FilterArgs {
    fn members(&self) -> Map<String, Value> {
        let members = [
            ("queue", &self.queue),
            ("partition", &self.partition),
            ("consumerGroup", &self.group),
            ("from", &self.from),
            ("to", &self.to),
            ("error", &self.error),
            ("errorContains", &self.error_contains),
        ];
        let given =
            |(name, value): (&str, &Option<String>)| Some((name.to_owned(), value.as_deref()?.into()));
        members.into_iter().filter_map(given).collect()
    }
}

#[derive(Debug, clap::Args)]
struct ErrorsArgs {
    #[command(flatten)]
    filter: FilterArgs,

    #[command(flatten)]
    target: Target,
}

#[derive(Debug, clap::Args)]
struct ReplayArgs {
    #[command(flatten)]
    chosen: ChosenArgs,

    /// Replay so many a second
    #[arg(long, value_name = "COUNT")]
    rate: Option<f64>,
}

#[derive(Debug, clap::Args)]
struct PurgeArgs {
    #[command(flatten)]
    chosen: ChosenArgs,
}

#[derive(Debug, clap::Args)]
struct ChosenArgs {
    #[command(flatten)]
    filter: FilterArgs,

    /// Select all dead letters of all queues
    #[arg(long)]
    all: bool,

    /// Only count them
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    target: Target,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::Errors(args) => errors(&args).await,
        Command::Replay(args) => change(&args.chosen, "replay", args.rate).await,
        Command::Purge(args) => change(&args.chosen, "purge", None).await,
    }
}

async fn errors(args: &ErrorsArgs) -> anyhow::Result<()> {
    let client = args.target.client()?;
    let mut output = Output::new(args.target.json);
    let (filter, mut rows, mut cursor): (_, Vec<Value>, Option<String>) =
        (args.filter.members(), Vec::new(), None);
    loop {
        let mut page = client.dead_letter_errors(&filter, cursor.as_deref()).await?;
        for row in page["errors"].as_array_mut().map(std::mem::take).unwrap_or_default() {
            add(&mut rows, row);
        }
        cursor = page["nextCursor"].as_str().map(str::to_owned);
        if cursor.is_none() {
            break;
        }
    }
    rows.sort_by_key(|row| std::cmp::Reverse(row["count"].as_u64()));
    if output.is_json() {
        rows.iter().try_for_each(|row| output.json(row))?;
    } else if rows.is_empty() {
        output.text("No dead letters.")?;
    } else {
        output.text(table(&rows))?;
    }
    Ok(output.flush()?)
}

/// Adds a row to the row with the same error, if there is one.
fn add(rows: &mut Vec<Value>, row: Value) {
    let Some(known) = rows.iter_mut().find(|known| known["error"] == row["error"]) else {
        rows.push(row);
        return;
    };
    known["count"] = (known["count"].as_u64().unwrap_or(0) + row["count"].as_u64().unwrap_or(0)).into();
    if row["firstFailedAt"].as_str() < known["firstFailedAt"].as_str() {
        known["firstFailedAt"] = row["firstFailedAt"].clone();
    }
    if row["lastFailedAt"].as_str() > known["lastFailedAt"].as_str() {
        known["lastFailedAt"] = row["lastFailedAt"].clone();
        known["sample"] = row["sample"].clone();
    }
}

fn table(rows: &[Value]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_BORDERS_ONLY).set_header(["count", "error", "first", "last", "for example"]);
    if let Some(column) = table.column_mut(0) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for row in rows {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let sample = &row["sample"];
        table.add_row([
            row["count"].to_string(),
            text(&row["error"]),
            text(&row["firstFailedAt"]),
            text(&row["lastFailedAt"]),
            format!(
                "{}/{} {}",
                text(&sample["queue"]),
                text(&sample["partition"]),
                text(&sample["transactionId"])
            ),
        ]);
    }
    table
}

async fn change(args: &ChosenArgs, action: &str, rate: Option<f64>) -> anyhow::Result<()> {
    let filter = args.filter.members();
    if filter.is_empty() && !args.all {
        bail!("say which dead letters: --queue, --group, --error …, or --all for every one");
    }
    let client = args.target.client()?;
    let mut output = Output::new(args.target.json);
    let mut body = json!({"filter": filter, "all": args.all, "dryRun": args.dry_run});
    if let Some(rate) = rate {
        body["ratePerSec"] = rate.into();
    }
    let total = run_to_the_end(&client, action, body, args.target.json).await?;
    if output.is_json() {
        output.json(&total)?;
    } else {
        output.text(summary(action, args.dry_run, &total))?;
    }
    output.flush()?;
    match total["stopped"].as_str() {
        Some(reason) => bail!("stopped before the end: {reason}"),
        None => Ok(()),
    }
}

/// Repeats the call until nothing is left, and adds up the results.
async fn run_to_the_end(
    client: &Client,
    action: &str,
    mut body: Value,
    quiet: bool,
) -> anyhow::Result<Value> {
    let mut total = Map::new();
    loop {
        let answer = client.change_dead_letters(action, &body).await?;
        for (name, value) in answer.as_object().into_iter().flatten() {
            let sum = value.as_u64().map(|more| total.get(name).and_then(Value::as_u64).unwrap_or(0) + more);
            total.insert(name.clone(), sum.map_or_else(|| value.clone(), Value::from));
        }
        if answer["nextCursor"].is_null() || answer["stopped"].is_string() {
            total.remove("nextCursor");
            return Ok(total.into());
        }
        body["cursor"] = answer["nextCursor"].clone();
        if !quiet {
            eprintln!("{} dead letters so far", total.get("matched").unwrap_or(&Value::Null));
        }
    }
}

fn summary(action: &str, dry_run: bool, total: &Value) -> String {
    let number = |name: &str| total[name].as_u64().unwrap_or(0);
    match (dry_run, action) {
        (true, "replay") => format!("{} dead letters would be replayed", number("matched")),
        (true, _) => format!("{} dead letters would be purged", number("matched")),
        (false, "replay") if number("duplicates") > 0 => format!(
            "replayed {} dead letters; {} stay, their messages were pushed again before",
            number("replayed"),
            number("duplicates")
        ),
        (false, "replay") => format!("replayed {} dead letters", number("replayed")),
        (false, _) => format!("purged {} dead letters", number("purged")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_one_error_are_added_up() {
        let row = |count: u64, first: &str, last: &str| json!({"error": "e", "count": count, "firstFailedAt": first, "lastFailedAt": last, "sample": {"transactionId": last}});
        let mut rows = vec![row(2, "b", "c")];
        add(&mut rows, row(3, "a", "d"));
        add(&mut rows, json!({"error": null, "count": 1}));
        assert_eq!((rows.len(), &rows[0]), (2, &row(5, "a", "d")));
    }

    #[test]
    fn what_was_done_is_told() {
        let total = json!({"matched": 5, "replayed": 3, "duplicates": 2, "purged": 4});
        assert_eq!(summary("replay", true, &total), "5 dead letters would be replayed");
        assert!(summary("replay", false, &total).starts_with("replayed 3 dead letters; 2 stay"));
        assert_eq!(summary("purge", false, &total), "purged 4 dead letters");
    }
}
