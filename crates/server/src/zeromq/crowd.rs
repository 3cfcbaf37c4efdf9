//! Who is connected and says nothing: which connections to cut, so that silent ones cannot pile up.
//!
//! Greeting costs a stranger nothing and the server a connection. Always: one that never says anything goes after
//! [`SILENT_MAX`], one that has spoken goes when a worker on it would long count as gone; of more than there may be,
//! those go first that never said anything, and of these the newest. Being cut off is harmless: ZeroMQ connects again by
//! itself. Not here: sockets and clocks. Start at [`Crowd::look`].

use std::time::Duration;

use rustc_hash::FxHashMap;

/// How long a connection may be there and say nothing.
pub const SILENT_MAX: Duration = Duration::from_secs(30);

/// The least silence after which one that has spoken is cut off.
const PAUSE_MIN: Duration = Duration::from_secs(60);

/// The connections of a socket.
#[derive(Debug)]
pub struct Crowd {
    known: FxHashMap<u64, Sign>,
    max: usize,
    pause_max: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Sign {
    /// When it was last heard, or first seen.
    at: Duration,
    spoke: bool,
}

impl Crowd {
    /// At most `max` connections, on which workers may be silent for `timeout` before they count as gone.
    pub fn new(max: usize, timeout: Duration) -> Self {
        Self { known: FxHashMap::default(), max, pause_max: PAUSE_MIN.max(timeout * 2) }
    }

    /// Takes in who has spoken since the last time.
    pub fn hear(&mut self, now: Duration, heard: impl IntoIterator<Item = u64>) {
        self.known.extend(heard.into_iter().map(|id| (id, Sign { at: now, spoke: true })));
    }

    /// Takes in who is connected, by rising ids as they came, and says whom to cut off.
    pub fn look(&mut self, now: Duration, connected: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let of = |id: u64| (id, self.known.get(&id).copied().unwrap_or(Sign { at: now, spoke: false }));
        let all: Vec<(u64, Sign)> = connected.into_iter().map(of).collect();
        let (mut cut, mut stay): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|(_, sign)| self.is_silent(sign, now));
        let over = stay.len().saturating_sub(self.max);
        if over > 0 {
            stay.sort_by_key(|(id, sign)| (!sign.spoke, *id));
            cut.extend(stay.drain(self.max..));
        }
        self.known = stay.into_iter().collect();
        cut.into_iter().map(|(id, _)| id).collect()
    }

    fn is_silent(&self, sign: &Sign, now: Duration) -> bool {
        let max = if sign.spoke { self.pause_max } else { SILENT_MAX };
        now.saturating_sub(sign.at) > max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn who_says_nothing_goes_before_who_has_paused() {
        let mut crowd = Crowd::new(10, SECOND * 15);
        assert!(crowd.look(Duration::ZERO, [1, 2, 3]).is_empty());
        crowd.hear(SECOND, [2]);
        assert_eq!(crowd.look(SILENT_MAX + SECOND, [1, 2, 3]), [1, 3]);
        assert_eq!(crowd.look(PAUSE_MIN + SECOND * 2, [2]), [2]);
    }

    #[test]
    fn a_pause_is_as_long_as_workers_may_be_silent() {
        let mut crowd = Crowd::new(10, SECOND * 100);
        crowd.look(Duration::ZERO, [1]);
        crowd.hear(Duration::ZERO, [1]);
        assert!(crowd.look(SECOND * 200, [1]).is_empty());
        assert_eq!(crowd.look(SECOND * 201, [1]), [1]);
    }

    #[test]
    fn of_too_many_the_newest_go_that_never_spoke() {
        let mut crowd = Crowd::new(3, SECOND * 15);
        crowd.hear(Duration::ZERO, [2, 5]);
        assert_eq!(crowd.look(SECOND, [1, 2, 3, 4, 5]), [3, 4]);
        crowd.hear(SECOND, [1, 2, 5, 6]);
        assert_eq!(crowd.look(SECOND * 2, [1, 2, 5, 6]), [6], "and then the newest");
    }

    #[test]
    fn who_has_gone_is_forgotten() {
        let mut crowd = Crowd::new(3, SECOND * 15);
        crowd.hear(Duration::ZERO, [1, 2]);
        crowd.look(SECOND, [2]);
        assert_eq!(crowd.known.len(), 1);
    }
}
