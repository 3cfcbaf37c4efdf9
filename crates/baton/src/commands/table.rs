//! Tables of a server's JSON.

use comfy_table::Table;
use comfy_table::presets::UTF8_BORDERS_ONLY;
use serde_json::Value;

/// A table with these columns.
pub fn new(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_BORDERS_ONLY).set_header(header.iter().copied());
    table
}

/// A value as text: strings without quotes, empty when absent.
pub fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
