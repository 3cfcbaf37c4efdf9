//! `baton cluster`: shows the servers, their load, and their affinities.

use comfy_table::presets::UTF8_BORDERS_ONLY;
use comfy_table::{CellAlignment, Table};
use serde_json::Value;

use super::target::Target;
use crate::output::Output;

/// Affinities that are shown.
const AFFINITIES_SHOWN: usize = 20;

/// Show the servers of a cluster as one of them sees it, or drain a server from routing.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  baton cluster                   servers, their load, unreachable peers, and the busiest affinities
  baton cluster --drain host-2    drain a server: it gets no forwarded requests, and forwards its own
  baton cluster --resume host-2   send it requests again
  baton cluster --json | jq .     for programs")]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// Drain this server from routing, by its node_id, until --resume; it stays drained over restarts
    #[arg(long, value_name = "SERVER", conflicts_with = "resume")]
    drain: Option<String>,
    /// Send requests to this server again
    #[arg(long, value_name = "SERVER")]
    resume: Option<String>,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let client = args.target.client()?;
    let mut output = Output::new(args.target.json);
    if let Some(server) = args.drain.as_ref().or(args.resume.as_ref()) {
        let told = client.drain_server(server, args.drain.is_some()).await?;
        if output.is_json() {
            output.json(&told)?;
        } else if told["draining"] == true {
            output.text(format!("{server} is drained: it gets no more requests. See `baton cluster`."))?;
        } else {
            output.text(format!("{server} takes requests again."))?;
        }
        output.flush()?;
        return Ok(());
    }
    let cluster: Value = client.cluster().await?;
    if output.is_json() {
        output.json(&cluster)?;
    } else {
        output.text(title(&cluster))?;
        for warning in warnings(&cluster) {
            output.text(warning)?;
        }
        output.text(servers(&cluster))?;
        let affinities = list(&cluster["affinities"]["busiest"]);
        if !affinities.is_empty() {
            output.text(affinity_table(affinities))?;
        }
    }
    output.flush()?;
    Ok(())
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn title(cluster: &Value) -> String {
    let seen_by = text(&cluster["server_id"]);
    if cluster["gossip"] != true {
        return format!("{seen_by} is alone: give `baton serve` the addresses of others with --peers.");
    }
    let peers =
        format!("{} of {} configured peers heard", cluster["peers_heard"], cluster["peers_configured"]);
    let balance = if cluster["balanced"] == true { "balanced" } else { "not balanced" };
    let routing = if cluster["coordinator"] == true { "" } else { ", requests are not routed" };
    let score = cluster["imbalance_score"].as_f64().unwrap_or(0.0);
    format!("as {seen_by} sees it: {peers}, {balance} (loads differ by {:.0}%){routing}", score * 100.0)
}

/// Warnings for the operator: unreachable peers with the reasons, and duplicate names.
fn warnings(cluster: &Value) -> Vec<String> {
    let is_silent = |peer: &&Value| peer["heard"] != true;
    let silent = list(&cluster["peers"]).iter().filter(is_silent).map(|peer| {
        let server = peer["server_id"].as_str().map(|server| format!(" ({server})")).unwrap_or_default();
        format!("peer {}{server}: {}", text(&peer["peer"]), text(&peer["reason"]))
    });
    let double = cluster["duplicate_node_id"].as_str();
    let double =
        double.map(|id| format!("another server has the node_id {id}, as this one: give each its own"));
    silent.chain(double).collect()
}

fn servers(cluster: &Value) -> Table {
    let header =
        ["server", "state", "load", "outstanding", "waiting", "cpu", "affinities", "forwarded to", "url"];
    let mut table = Table::new();
    table.load_preset(UTF8_BORDERS_ONLY).set_header(header);
    for column in table.column_iter_mut().skip(2).take(6) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for server in list(&cluster["servers"]) {
        let number = |value: &Value| format!("{:.1}", value.as_f64().unwrap_or(0.0));
        let whole = |value: &Value| value.as_u64().unwrap_or(0).to_string();
        let load = &server["load"];
        table.add_row([
            text(&server["server_id"]),
            state(server),
            format!("{:.0}%", server["load_score"].as_f64().unwrap_or(0.0) * 100.0),
            number(&load["outstanding"]),
            number(&load["poll_intentions"]),
            format!("{:.0}%", load["cpu"].as_f64().unwrap_or(0.0)),
            whole(&server["affinities"]),
            whole(&server["forwarded"]),
            text(&server["url"]),
        ]);
    }
    table
}

fn state(server: &Value) -> String {
    let circuit = server["circuit"]["state"].as_str().unwrap_or("closed");
    match (server["own"] == true, server["alive"] == false, circuit) {
        (true, ..) if server["draining"] == true => "this one, draining".into(),
        (true, ..) => "this one".into(),
        (_, true, _) => format!("dead for {} s", server["silent_ms"].as_u64().unwrap_or(0) / 1000),
        _ if server["draining"] == true => "draining".into(),
        (_, _, "closed") => "there".into(),
        (_, _, state) => format!("circuit {}", state.replace('_', " ")),
    }
}

fn affinity_table(affinities: &[Value]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_BORDERS_ONLY).set_header(["affinity", "server", "requests"]);
    for affinity in affinities.iter().take(AFFINITIES_SHOWN) {
        let requests = affinity["requests"].as_u64().unwrap_or(0).to_string();
        table.add_row([text(&affinity["key"]), text(&affinity["server_id"]), requests]);
    }
    table
}
