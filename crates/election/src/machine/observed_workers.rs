//! Failure detection: a worker is alive while its record changes, timed on the local clock.

use std::collections::BTreeMap;
use std::time::Duration;

/// Worker records kept per group. Ignoring more can only delay a claim.
pub const WORKERS_MAX: usize = 10_000;

#[derive(Debug)]
struct ObservedWorker {
    tag: String,
    /// When it last changed.
    changed_at: Duration,
    /// When it was first seen.
    first_seen_at: Duration,
}

/// The worker records of the last list.
#[derive(Debug, Default)]
pub struct ObservedWorkers {
    by_id: BTreeMap<String, ObservedWorker>,
    /// When the last list came.
    pub listed_at: Option<Duration>,
    /// Whether a list call is in flight.
    pub list_in_flight: bool,
}

impl ObservedWorkers {
    /// Applies a list.
    pub fn update(&mut self, now: Duration, list: Vec<(String, String)>) {
        let mut signs = BTreeMap::new();
        for (id, mark) in list.into_iter().take(WORKERS_MAX) {
            let (since, known_since) = match self.by_id.get(&id) {
                Some(sign) if sign.tag == mark => (sign.changed_at, sign.first_seen_at),
                Some(sign) => (now, sign.first_seen_at),
                None => (now, now),
            };
            signs.insert(id, ObservedWorker { tag: mark, changed_at: since, first_seen_at: known_since });
        }
        self.by_id = signs;
        self.listed_at = Some(now);
    }

    /// Ids whose records changed or appeared within `timeout`, in order. `own` is always alive.
    pub fn alive(&self, now: Duration, timeout: Duration, own: &str) -> Vec<String> {
        let mut alive: Vec<_> = self
            .by_id
            .iter()
            .filter(|(id, sign)| id.as_str() != own && now.saturating_sub(sign.changed_at) < timeout)
            .map(|(id, _)| id.clone())
            .collect();
        let place = alive.partition_point(|id| id.as_str() < own);
        alive.insert(place, own.to_owned());
        alive
    }

    /// Ids whose records have not changed for `age`.
    pub fn silent(&self, now: Duration, age: Duration, own: &str) -> Vec<String> {
        self.by_id
            .iter()
            .filter(|(id, sign)| id.as_str() != own && now.saturating_sub(sign.changed_at) >= age)
            .map(|(id, _)| id.clone())
            .collect()
    }

    /// The first id before `own` whose record has been known for `timeout` and keeps changing.
    pub fn stable_worker_before(&self, now: Duration, timeout: Duration, own: &str) -> Option<&str> {
        let steady = |sign: &ObservedWorker| {
            now.saturating_sub(sign.changed_at) < timeout
                && sign.changed_at > sign.first_seen_at
                && now.saturating_sub(sign.first_seen_at) >= timeout
        };
        self.by_id.iter().find(|(id, sign)| id.as_str() < own && steady(sign)).map(|(id, _)| id.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(marks: &[(&str, &str)]) -> Vec<(String, String)> {
        marks.iter().map(|(id, mark)| ((*id).to_owned(), (*mark).to_owned())).collect()
    }

    #[test]
    fn a_worker_is_alive_while_its_record_changes() {
        let second = Duration::from_secs;
        let mut workers = ObservedWorkers::default();
        workers.update(second(0), list(&[("a", "1"), ("b", "1"), ("m", "1")]));
        assert_eq!(workers.alive(second(9), second(10), "m"), ["a", "b", "m"]);
        workers.update(second(9), list(&[("a", "2"), ("b", "1")]));
        assert_eq!(workers.alive(second(12), second(10), "m"), ["a", "m"]);
        assert_eq!(workers.silent(second(12), second(10), "m"), ["b"]);
        assert_eq!(workers.alive(second(100), second(10), "m"), ["m"]);
        assert_eq!(workers.stable_worker_before(second(12), second(10), "m"), Some("a"));
        assert_eq!(workers.stable_worker_before(second(12), second(13), "m"), None);
    }
}
