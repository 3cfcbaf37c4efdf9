//! Chooses the idle connections to close, so that they cannot pile up.
//!
//! A handshake costs a stranger nothing and costs the server a connection. Always: a connection that never sends a
//! message is closed after [`SILENT_MAX`]; one that has sent a message is closed when a worker on it would long count as
//! gone. Above the limit, connections that never sent a message go first, and the newest of them before older ones.
//! Closing is harmless, because ZeroMQ reconnects by itself. Not here: sockets and clocks. Start at
//! [`IdleReaper::expired`].

use std::time::Duration;

use rustc_hash::FxHashMap;

/// How long a connection may live without a first message.
pub const SILENT_MAX: Duration = Duration::from_secs(30);

/// The shortest silence after which a connection that has sent a message is closed.
const IDLE_MIN: Duration = Duration::from_secs(60);

/// The last activity of each connection of a socket.
#[derive(Debug)]
pub struct IdleReaper {
    known: FxHashMap<u64, Activity>,
    max: usize,
    idle_max: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Activity {
    /// When the last message arrived; the first look at the connection, if there was none.
    at: Duration,
    /// Whether it ever sent a message.
    spoke: bool,
}

impl IdleReaper {
    /// Allows `max` connections, whose workers count as gone after a silence of `timeout`.
    pub fn new(max: usize, timeout: Duration) -> Self {
        Self { known: FxHashMap::default(), max, idle_max: IDLE_MIN.max(timeout * 2) }
    }

    /// Records the connections that sent a message since the last call.
    pub fn record_activity(&mut self, now: Duration, active: impl IntoIterator<Item = u64>) {
        self.known.extend(active.into_iter().map(|id| (id, Activity { at: now, spoke: true })));
    }

    /// Returns which of the `connected` to close. Ids rise in the order of connecting.
    pub fn expired(&mut self, now: Duration, connected: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let activity =
            |id: u64| (id, self.known.get(&id).copied().unwrap_or(Activity { at: now, spoke: false }));
        let all: Vec<(u64, Activity)> = connected.into_iter().map(activity).collect();
        let (mut closed, mut kept): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|(_, activity)| self.is_idle(activity, now));
        let over = kept.len().saturating_sub(self.max);
        if over > 0 {
            kept.sort_by_key(|(id, activity)| (!activity.spoke, *id));
            closed.extend(kept.drain(self.max..));
        }
        self.known = kept.into_iter().collect();
        closed.into_iter().map(|(id, _)| id).collect()
    }

    fn is_idle(&self, activity: &Activity, now: Duration) -> bool {
        let max = if activity.spoke { self.idle_max } else { SILENT_MAX };
        now.saturating_sub(activity.at) > max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn silent_connections_close_before_idle_ones() {
        let mut reaper = IdleReaper::new(10, SECOND * 15);
        assert!(reaper.expired(Duration::ZERO, [1, 2, 3]).is_empty());
        reaper.record_activity(SECOND, [2]);
        assert_eq!(reaper.expired(SILENT_MAX + SECOND, [1, 2, 3]), [1, 3]);
        assert_eq!(reaper.expired(IDLE_MIN + SECOND * 2, [2]), [2]);
    }

    #[test]
    fn the_idle_time_follows_the_timeout_of_workers() {
        let mut reaper = IdleReaper::new(10, SECOND * 100);
        reaper.expired(Duration::ZERO, [1]);
        reaper.record_activity(Duration::ZERO, [1]);
        assert!(reaper.expired(SECOND * 200, [1]).is_empty());
        assert_eq!(reaper.expired(SECOND * 201, [1]), [1]);
    }

    #[test]
    fn above_the_limit_the_newest_silent_connections_close_first() {
        let mut reaper = IdleReaper::new(3, SECOND * 15);
        reaper.record_activity(Duration::ZERO, [2, 5]);
        assert_eq!(reaper.expired(SECOND, [1, 2, 3, 4, 5]), [3, 4]);
        reaper.record_activity(SECOND, [1, 2, 5, 6]);
        assert_eq!(reaper.expired(SECOND * 2, [1, 2, 5, 6]), [6], "and then the newest");
    }

    #[test]
    fn closed_connections_are_forgotten() {
        let mut reaper = IdleReaper::new(3, SECOND * 15);
        reaper.record_activity(Duration::ZERO, [1, 2]);
        reaper.expired(SECOND, [2]);
        assert_eq!(reaper.known.len(), 1);
    }
}
