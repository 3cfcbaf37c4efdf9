//! `baton elections`: shows election groups, or deletes one.

use comfy_table::Table;
use comfy_table::presets::UTF8_BORDERS_ONLY;
use serde_json::Value;

use super::target::Target;
use crate::output::Output;

/// List election groups with their coordinators, show one with its candidates, or delete one.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  baton elections                   all groups of the server
  baton elections clean-up          one group: its workers and its record
  baton elections clean-up --delete delete a group without a coordinator; its tokens start at 1 again
  baton elections --json | jq .     for programs")]
pub struct Args {
    /// Show this group only
    group: Option<String>,

    /// Delete this group, which must have no coordinator
    #[arg(long, requires = "group")]
    delete: bool,

    #[command(flatten)]
    target: Target,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let client = args.target.client()?;
    let mut output = Output::new(args.target.json);
    if let Some(group) = args.group.as_ref().filter(|_| args.delete) {
        client.election(group.as_str()).delete().await?;
        if output.is_json() {
            output.json(&serde_json::json!({"group": group, "deleted": true}))?;
        } else {
            output.text(format_args!("deleted {group}"))?;
        }
        return Ok(output.flush()?);
    }
    let groups = match &args.group {
        Some(group) => vec![client.election(group.as_str()).get::<Value>().await?],
        None => {
            let mut answer: Value = client.elections().await?;
            answer["elections"].as_array_mut().map(std::mem::take).unwrap_or_default()
        }
    };
    if output.is_json() {
        groups.iter().try_for_each(|group| output.json(group))?;
    } else if groups.is_empty() {
        output.text("No elections yet: `baton elect GROUP -- COMMAND` begins one.")?;
    } else {
        output.text(table(&groups))?;
        for worker in groups.iter().filter_map(|group| group["workers"].as_array()).flatten() {
            let role = if worker["isCoordinator"] == true { "coordinates" } else { "follows" };
            output.text(format_args!("  {} {role}", worker["workerId"].as_str().unwrap_or_default()))?;
        }
    }
    output.flush()?;
    Ok(())
}

fn table(groups: &[Value]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_BORDERS_ONLY).set_header(["group", "coordinator", "token", "lease left"]);
    for group in groups {
        let left = group["leaseMs"].as_u64().unwrap_or(0) / 1000;
        table.add_row([
            group["group"].as_str().unwrap_or_default().to_owned(),
            group["coordinator"].as_str().unwrap_or("none").to_owned(),
            group["epochNumber"].to_string(),
            format!("{left} s"),
        ]);
    }
    table
}
