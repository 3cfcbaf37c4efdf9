//! `baton shards`: shows which worker owns which shard, as a table and as a map.

use std::io::IsTerminal;

use comfy_table::presets::UTF8_BORDERS_ONLY;
use comfy_table::{CellAlignment, Table};
use serde_json::{Value, json};

use super::target::Target;
use crate::output::Output;

/// Characters of the map in one line.
const LINE: u64 = 100;
/// Lines of the map; a character stands for more than one shard where there are more.
const LINES: u64 = 20;
/// The colours of workers, in the terminal's 256.
const COLOURS: [u8; 12] = [39, 208, 118, 201, 226, 51, 196, 99, 154, 214, 45, 219];
/// The letters of workers in the map, with and without colour.
const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// List services and how their shards are spread, or show one: its workers, and a map of its shards.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  baton shards                          all services of the server
  baton shards orders                   one service: its workers and a map of its shards
  baton shards orders --drain orders-3  drain a worker: release its shards
  baton shards orders --delete          delete a service without live workers
  baton shards --json | jq .            for programs")]
pub struct Args {
    /// Show this service only
    service: Option<String>,

    /// Drain this worker: release its shards
    #[arg(long, value_name = "WORKER", requires = "service", conflicts_with = "undrain")]
    drain: Option<String>,

    /// Let this worker have shards again
    #[arg(long, value_name = "WORKER", requires = "service")]
    undrain: Option<String>,

    /// Delete the service, which must have no live workers
    #[arg(long, requires = "service", conflicts_with_all = ["drain", "undrain"])]
    delete: bool,

    #[command(flatten)]
    target: Target,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let client = args.target.client()?;
    let mut output = Output::new(args.target.json);
    match &args.service {
        Some(service) if args.delete => {
            client.shards(service.as_str()).delete().await?;
            if output.is_json() {
                output.json(&json!({"service": service, "deleted": true}))?;
            } else {
                output.text(format_args!("Deleted service {service}."))?;
            }
        }
        Some(service) => {
            let shards = client.shards(service.as_str());
            if let Some(worker) = args.drain.as_ref().or(args.undrain.as_ref()) {
                shards.drain::<Value>(worker, args.drain.is_some()).await?;
            }
            let shown: Value = shards.get().await?;
            if output.is_json() {
                output.json(&shown)?;
            } else {
                show(&shown, &mut output)?;
            }
        }
        None => {
            let answer: Value = client.shard_services().await?;
            list(answer["services"].as_array().map_or(&[], Vec::as_slice), &mut output)?;
        }
    }
    output.flush()?;
    Ok(())
}

fn list(services: &[Value], output: &mut Output) -> anyhow::Result<()> {
    if output.is_json() {
        services.iter().try_for_each(|service| output.json(service))?;
        return Ok(());
    }
    if services.is_empty() {
        output.text("No services yet: the first worker that registers makes one.")?;
        return Ok(());
    }
    let columns = ["maxShardCount", "workers", "unassigned", "revoking", "generation", "moves"];
    let mut table = table(&["service", "shards", "workers", "unassigned", "revoking", "generation", "moves"]);
    for service in services {
        let numbers = columns.map(|column| service[column].to_string());
        table.add_row([text(&service["service"]).to_owned()].into_iter().chain(numbers));
    }
    output.text(table)?;
    Ok(())
}

fn show(service: &Value, output: &mut Output) -> anyhow::Result<()> {
    output.text(format_args!(
        "{}  {} shards, {} unassigned, generation {}, {} moves",
        text(&service["service"]),
        service["maxShardCount"],
        service["unassigned"],
        service["generation"],
        service["moves"],
    ))?;
    let workers = service["assignments"].as_array().map_or(&[][..], Vec::as_slice);
    let colours = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let mut table = table(&["", "worker", "status", "shards", "which", "giving up"]);
    for (place, worker) in workers.iter().enumerate() {
        let status = match (text(&worker["status"]), worker["draining"] == true) {
            ("active", true) => "draining",
            (status, _) => status,
        };
        table.add_row([
            String::from(letter(place)),
            text(&worker["workerId"]).to_owned(),
            status.to_owned(),
            worker["shardCount"].to_string(),
            shortened(&worker["shards"]),
            shortened(&worker["revoking"]),
        ]);
    }
    for (_, column) in table.column_iter_mut().enumerate().filter(|(at, _)| *at != 3) {
        column.set_cell_alignment(CellAlignment::Left);
    }
    output.text(table)?;
    let count = service["maxShardCount"].as_u64().unwrap_or(0);
    output.text(map(count, workers, colours))?;
    Ok(())
}

/// A character for every shard, or for every few; a dot for shards without an owner.
fn map(count: u64, workers: &[Value], colours: bool) -> String {
    let each = count.div_ceil(LINE * LINES).max(1);
    let cells = usize::try_from(count.div_ceil(each)).unwrap_or(0);
    let mut owners: Vec<Option<usize>> = vec![None; cells];
    for (place, worker) in workers.iter().enumerate() {
        for range in worker["shards"].as_array().into_iter().chain(worker["revoking"].as_array()).flatten() {
            let (from, to) = (range[0].as_u64().unwrap_or(0), range[1].as_u64().unwrap_or(0));
            // A cell shows the owner of its first shard.
            for cell in from.div_ceil(each)..=to / each {
                if let Some(owner) = usize::try_from(cell).ok().and_then(|cell| owners.get_mut(cell)) {
                    *owner = Some(place);
                }
            }
        }
    }
    let mut text = if each > 1 { format!("each character is {each} shards\n") } else { String::new() };
    for line in owners.chunks(usize::try_from(LINE).unwrap_or(usize::MAX)) {
        for run in line.chunk_by(|a, b| a == b) {
            let letters: String = run.iter().map(|owner| owner.map_or('.', letter)).collect();
            match run[0].filter(|_| colours) {
                Some(place) => {
                    text.push_str(&format!("\x1b[38;5;{}m{letters}\x1b[0m", COLOURS[place % COLOURS.len()]))
                }
                None => text.push_str(&letters),
            }
        }
        text.push('\n');
    }
    text.trim_end_matches('\n').to_owned()
}

fn letter(place: usize) -> char {
    LETTERS[place % LETTERS.len()].into()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The first few ranges as text.
fn shortened(ranges: &Value) -> String {
    let all = ranges.as_array().map_or(&[][..], Vec::as_slice);
    let mut words: Vec<String> =
        all.iter()
            .take(6)
            .map(|range| {
                if range[0] == range[1] { range[0].to_string() } else { format!("{}-{}", range[0], range[1]) }
            })
            .collect();
    if all.len() > words.len() {
        words.push(format!("… ({} runs)", all.len()));
    }
    words.join(" ")
}

/// A table whose columns are numbers, except for the first.
fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_BORDERS_ONLY).set_header(header.iter().copied());
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_has_a_letter_for_each_shard_and_a_dot_for_nobody() {
        let workers =
            [json!({"shards": [[0, 2]], "revoking": [[5, 5]]}), json!({"shards": [[3, 3]], "revoking": []})];
        assert_eq!(map(7, &workers, false), "AAAB.A.");
        assert!(map(7, &workers, true).contains("\x1b[38;5;39mAAA\x1b[0m"));
        assert_eq!(map(0, &workers, false), "");
    }

    #[test]
    fn a_large_map_is_drawn_smaller() {
        let drawn = map(1_000_000, &[json!({"shards": [[0, 499_999]], "revoking": []})], false);
        assert!(drawn.starts_with("each character is 500 shards\nAAAA") && drawn.ends_with('.'), "{drawn}");
        assert_eq!(drawn.lines().count(), 21);
    }
}
