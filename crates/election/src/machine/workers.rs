//! Who seems to be alive: worker records seen to change, timed on the local clock.

use std::collections::BTreeMap;
use std::time::Duration;

/// Worker records of one group that are remembered. More are not looked at; they only delay a claim.
pub const WORKERS_MAX: usize = 10_000;

#[derive(Debug)]
struct Sign {
    mark: String,
    /// When it last changed.
    since: Duration,
    /// When it was first seen.
    known_since: Duration,
}

/// The worker records that were listed.
#[derive(Debug, Default)]
pub struct Workers {
    signs: BTreeMap<String, Sign>,
    /// When the last list came.
    pub listed_at: Option<Duration>,
    /// Whether one is on its way.
    pub listing: bool,
}

impl Workers {
    /// Takes a list in.
    pub fn learn(&mut self, now: Duration, list: Vec<(String, String)>) {
        let mut signs = BTreeMap::new();
        for (id, mark) in list.into_iter().take(WORKERS_MAX) {
            let (since, known_since) = match self.signs.get(&id) {
                Some(sign) if sign.mark == mark => (sign.since, sign.known_since),
                Some(sign) => (now, sign.known_since),
                None => (now, now),
            };
            signs.insert(id, Sign { mark, since, known_since });
        }
        self.signs = signs;
        self.listed_at = Some(now);
    }

    /// Ids whose records changed, or came to be known, within `timeout`, in order; `own` is always alive.
    pub fn alive(&self, now: Duration, timeout: Duration, own: &str) -> Vec<String> {
        let mut alive: Vec<_> = self
            .signs
            .iter()
            .filter(|(id, sign)| id.as_str() != own && now.saturating_sub(sign.since) < timeout)
            .map(|(id, _)| id.clone())
            .collect();
        let place = alive.partition_point(|id| id.as_str() < own);
        alive.insert(place, own.to_owned());
        alive
    }

    /// Ids whose records have not changed for `age`.
    pub fn silent(&self, now: Duration, age: Duration, own: &str) -> Vec<String> {
        self.signs
            .iter()
            .filter(|(id, sign)| id.as_str() != own && now.saturating_sub(sign.since) >= age)
            .map(|(id, _)| id.clone())
            .collect()
    }

    /// The first id before `own` that has been known, and has changed, for `timeout`.
    pub fn steady_before(&self, now: Duration, timeout: Duration, own: &str) -> Option<&str> {
        let steady = |sign: &Sign| {
            now.saturating_sub(sign.since) < timeout
                && sign.since > sign.known_since
                && now.saturating_sub(sign.known_since) >= timeout
        };
        self.signs.iter().find(|(id, sign)| id.as_str() < own && steady(sign)).map(|(id, _)| id.as_str())
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
        let mut workers = Workers::default();
        workers.learn(second(0), list(&[("a", "1"), ("b", "1"), ("m", "1")]));
        assert_eq!(workers.alive(second(9), second(10), "m"), ["a", "b", "m"]);
        workers.learn(second(9), list(&[("a", "2"), ("b", "1")]));
        assert_eq!(workers.alive(second(12), second(10), "m"), ["a", "m"]);
        assert_eq!(workers.silent(second(12), second(10), "m"), ["b"]);
        assert_eq!(workers.alive(second(100), second(10), "m"), ["m"]);
        assert_eq!(workers.steady_before(second(12), second(10), "m"), Some("a"));
        assert_eq!(workers.steady_before(second(12), second(13), "m"), None);
    }
}
