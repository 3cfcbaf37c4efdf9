//! `baton nodes`: shows the servers that share the jobs of a store, the leader, and the share of each.

use super::table::{self, text};
use super::target::Target;
use crate::output::Output;

/// Show the servers that share the jobs of a store, or drain one of them.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  baton nodes                     all servers, the leader, and the jobs of each
  baton nodes --drain node-2      drain a server: hand over its jobs
  baton nodes --undrain node-2    let it take part again
  baton nodes --json | jq .       for programs")]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// Drain this server: hand over its jobs; by id, or by a unique name
    #[arg(long, value_name = "NODE", conflicts_with = "undrain")]
    drain: Option<String>,
    /// Let this server own jobs again
    #[arg(long, value_name = "NODE")]
    undrain: Option<String>,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let client = args.target.client()?;
    let mut output = Output::new(args.target.json);
    if let Some(node) = args.drain.as_ref().or(args.undrain.as_ref()) {
        let told = client.drain_node(node, args.drain.is_some()).await?;
        if output.is_json() {
            output.json(&told)?;
        } else {
            output.text(format!(
                "{} was asked to be {}.",
                text(&told["nodeId"]),
                text(&told["desiredState"])
            ))?;
        }
        output.flush()?;
        return Ok(());
    }
    let told = client.nodes().await?;
    if output.is_json() {
        output.json(&told)?;
    } else {
        let header = ["node", "state", "leads", "jobs", "slices", "silent for"];
        let mut table = table::new(&header);
        for node in told["nodes"].as_array().into_iter().flatten() {
            let leads = if node["isLeader"] == true {
                format!("term {}", told["leader"]["term"])
            } else {
                String::new()
            };
            let silent = node["silentMs"].as_u64().unwrap_or(0) / 1000;
            table.add_row([
                text(&node["nodeId"]),
                text(&node["state"]),
                leads,
                text(&node["ownedJobs"]),
                text(&node["slices"]),
                format!("{silent} s"),
            ]);
        }
        output.text(table)?;
        let orphans = told["orphanedSlices"].as_u64().unwrap_or(0);
        if orphans > 0 {
            output.text(format!("{orphans} of 64 slices of the jobs wait for an owner."))?;
        }
    }
    output.flush()?;
    Ok(())
}
