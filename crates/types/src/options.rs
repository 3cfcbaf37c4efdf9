//! Queue options: defaults, and how changes are merged into existing options.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::limits;

/// The options of a queue. Numbers have the unit of the wire format; methods of the same name return a [`Duration`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct QueueOptions {
    /// Seconds of a pop's lease.
    pub lease_time: u32,
    /// Failed acks that a batch survives before its head becomes a dead letter.
    pub retry_limit: u32,
    /// Milliseconds before a failed message is delivered again. The default is at once, which clients rely on.
    pub retry_delay: u32,
    /// Pushes are refused beyond this many unfinished messages; 0 is no limit.
    pub max_size: u64,
    /// Seconds after which a message is no longer delivered; 0 is never.
    pub ttl: u32,
    /// A pop over a namespace or task serves queues of a higher priority first.
    pub priority: i32,
    /// Whether a message without retries left becomes a dead letter.
    pub dead_letter_queue: bool,
    /// The same switch under another name: a message is dropped only when both are off.
    pub dlq_after_max_retries: bool,
    /// Seconds before a message can be delivered.
    pub delayed_processing: u32,
    /// Seconds that a partition must be without pushes before it is delivered.
    pub window_buffer: u32,
    /// Seconds after which a message is deleted, finished or not; 0 is never. Needs `retention_enabled`.
    pub retention_seconds: u32,
    /// Seconds after which a message that every group finished is deleted; 0 is never. Needs `retention_enabled`.
    pub completed_retention_seconds: u32,
    /// Enables the two retentions.
    pub retention_enabled: bool,
    /// Whether payloads are encrypted at rest.
    pub encryption_enabled: bool,
    /// Seconds after which an unfinished message is deleted; 0 is never.
    pub max_wait_time_seconds: u32,
    /// Seconds for which a transaction id is remembered; 0 is not at all.
    pub dedup_window_seconds: u32,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self {
            lease_time: 300,
            retry_limit: 3,
            retry_delay: 0,
            max_size: 0,
            ttl: 0,
            priority: 0,
            dead_letter_queue: true,
            dlq_after_max_retries: true,
            delayed_processing: 0,
            window_buffer: 0,
            retention_seconds: 0,
            completed_retention_seconds: 0,
            retention_enabled: false,
            encryption_enabled: false,
            max_wait_time_seconds: 0,
            dedup_window_seconds: 3600,
        }
    }
}

/// An invalid option; the text says which and what would be valid.
#[derive(Debug, thiserror::Error)]
#[error("option {name:?} {problem}")]
pub struct OptionsError {
    name: String,
    problem: String,
}

impl QueueOptions {
    /// These options with `changes` merged in: an absent key keeps its value, `null` restores the default, an unknown
    /// key is ignored as every server of this API does.
    pub fn with_changes(&self, changes: &Map<String, Value>) -> Result<Self, OptionsError> {
        let mut merged = to_map(self);
        let defaults = to_map(&Self::default());
        for (name, value) in changes {
            let Some(default) = defaults.get(name) else { continue };
            let value = if value.is_null() { default.clone() } else { value.clone() };
            let one = Map::from_iter([(name.clone(), value.clone())]);
            serde_json::from_value::<Self>(Value::Object(one))
                .map_err(|e| OptionsError { name: name.clone(), problem: format!("does not fit: {e}") })?;
            merged.insert(name.clone(), value);
        }
        let merged: Self = serde_json::from_value(Value::Object(merged))
            .map_err(|e| OptionsError { name: "options".into(), problem: e.to_string() })?;
        if u64::from(merged.lease_time) > limits::LEASE_MAX.as_secs() {
            let problem = format!("is at most {} seconds", limits::LEASE_MAX.as_secs());
            return Err(OptionsError { name: "leaseTime".into(), problem });
        }
        Ok(merged)
    }

    /// The length of a pop's lease.
    pub fn lease(&self) -> Duration {
        Duration::from_secs(if self.lease_time == 0 { 60 } else { self.lease_time.into() })
    }

    /// Whether a message without retries left becomes a dead letter.
    pub fn keeps_dead_letters(&self) -> bool {
        self.dead_letter_queue || self.dlq_after_max_retries
    }

    /// The age from which a message is no longer delivered.
    pub fn deliverable_for(&self) -> Option<Duration> {
        let retention = if self.retention_enabled { self.retention_seconds } else { 0 };
        [self.ttl, self.max_wait_time_seconds, retention]
            .into_iter()
            .filter(|seconds| *seconds > 0)
            .min()
            .map(|seconds| Duration::from_secs(seconds.into()))
    }

    /// The retention of messages that every group has finished.
    pub fn completed_retention(&self) -> Option<Duration> {
        (self.retention_enabled && self.completed_retention_seconds > 0)
            .then(|| Duration::from_secs(self.completed_retention_seconds.into()))
    }
}

fn to_map(options: &QueueOptions) -> Map<String, Value> {
    match serde_json::to_value(options) {
        Ok(Value::Object(map)) => map,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn merge(options: &QueueOptions, changes: Value) -> Result<QueueOptions, OptionsError> {
        options.with_changes(changes.as_object().unwrap())
    }

    #[test]
    fn an_absent_option_keeps_its_value_and_null_restores_the_default() {
        let first = merge(&QueueOptions::default(), json!({"leaseTime": 30, "retryLimit": 1})).unwrap();
        let second = merge(&first, json!({"leaseTime": null, "priority": 4, "unheardOf": 1})).unwrap();
        let expected = QueueOptions { retry_limit: 1, priority: 4, ..QueueOptions::default() };
        assert_eq!(second, expected);
    }

    #[test]
    fn a_value_of_the_wrong_type_is_named() {
        let error = merge(&QueueOptions::default(), json!({"leaseTime": "long"})).unwrap_err();
        assert!(error.to_string().contains("leaseTime"), "{error}");
        assert!(merge(&QueueOptions::default(), json!({"leaseTime": -1})).is_err());
    }

    #[test]
    fn the_shortest_life_decides_what_is_visible() {
        let options = merge(
            &QueueOptions::default(),
            json!({"ttl": 60, "maxWaitTimeSeconds": 20, "retentionSeconds": 5}),
        );
        assert_eq!(options.unwrap().deliverable_for(), Some(Duration::from_secs(20)));
    }
}
