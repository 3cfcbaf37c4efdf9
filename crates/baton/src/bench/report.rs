//! The results, as a table for people and as JSON lines for programs.

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::histogram::Latency;

/// One line of the report: one scenario with one set of parameters. Fields that do not apply are absent.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ReportRow {
    /// Always `baton`, so that reports of several systems can be merged.
    pub system: &'static str,
    /// The scenario.
    pub scenario: &'static str,
    /// Connections of the load generator.
    pub connections: usize,
    /// Messages of one push.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<usize>,
    /// Partitions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partitions: Option<usize>,
    /// Whether the messages of one push went to different partitions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scatter: Option<bool>,
    /// Groups that each got every message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub groups: Option<usize>,
    /// The size of each payload.
    pub payload_bytes: usize,
    /// Messages that were measured.
    pub messages: u64,
    /// The measured time.
    pub seconds: f64,
    /// Messages in each second; for several groups, deliveries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub messages_per_second: Option<f64>,
    /// Percentiles in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<Latency>,
    /// Processor time of the server per message, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_cpu_us_per_message: Option<f64>,
    /// Processor time of the idle server as a share of one core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_cpu_idle: Option<f64>,
    /// Resident memory of the server at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_memory_bytes: Option<u64>,
    /// Resident memory of the server per partition or per waiting pop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_memory_bytes_each: Option<f64>,
    /// Bytes in the server's directory per message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_bytes_per_message: Option<f64>,
    /// Bytes that the server wrote to disk, per message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub written_bytes_per_message: Option<f64>,
    /// Whether every message came once and in order. A run that fails the check is an error and has no row.
    pub verified: bool,
}

impl ReportRow {
    /// The parameters in short, for axes.
    pub fn label(&self) -> String {
        let mut label = self.scenario.to_owned();
        let parts = [("b", self.batch), ("p", self.partitions), ("g", self.groups)];
        for (name, value) in parts {
            if let Some(value) = value {
                label.push_str(&format!(" {name}{}", short(value)));
            }
        }
        label.push_str(&format!(" c{}", short(self.connections)));
        label
    }
}

/// The table for people.
pub fn table(rows: &[ReportRow]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header([
        "scenario",
        "conns",
        "batch",
        "partitions",
        "groups",
        "messages",
        "msg/s",
        "p50 ms",
        "p95 ms",
        "p99 ms",
        "cpu µs/msg",
        "memory MB",
        "bytes each",
    ]);
    for row in rows {
        table.add_row([
            row.scenario.to_owned(),
            row.connections.to_string(),
            show(row.batch),
            show(row.partitions),
            show(row.groups),
            row.messages.to_string(),
            row.messages_per_second.map(|n| format!("{n:.0}")).unwrap_or_default(),
            millis(row.latency_us.map(|l| l.p50)),
            millis(row.latency_us.map(|l| l.p95)),
            millis(row.latency_us.map(|l| l.p99)),
            row.server_cpu_us_per_message.map(|n| format!("{n:.1}")).unwrap_or_default(),
            row.server_memory_bytes.map(|n| format!("{:.0}", n as f64 / 1e6)).unwrap_or_default(),
            row.server_memory_bytes_each.map(|n| format!("{n:.0}")).unwrap_or_default(),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn show(value: Option<usize>) -> String {
    value.map(|n| n.to_string()).unwrap_or_default()
}

fn millis(micros: Option<f64>) -> String {
    micros.map(|n| format!("{:.2}", n / 1e3)).unwrap_or_default()
}

fn short(value: usize) -> String {
    match value {
        1_000_000.. => format!("{}M", value / 1_000_000),
        1_000.. => format!("{}k", value / 1_000),
        _ => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_names_the_parameters_that_there_are() {
        let row = ReportRow { scenario: "push", connections: 8, batch: Some(1_000), ..ReportRow::default() };
        assert_eq!(row.label(), "push b1k c8");
    }

    #[test]
    fn absent_figures_are_absent_in_json_and_blank_in_the_table() {
        let row = ReportRow { scenario: "push", ..ReportRow::default() };
        let json = serde_json::to_value(&row).unwrap();
        assert!(json.get("groups").is_none(), "{json}");
        assert!(table(&[row]).to_string().contains("push"));
    }
}
