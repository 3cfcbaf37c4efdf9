//! When which line is looked at.
//!
//! A line has a moment of its own, or it rests: nothing can have changed for it while the store says the same of changes
//! that no event tells of. All that rest share one moment and are passed over together, so that ten thousand idle lines
//! cost as much as one. Always: a line has at most one place here. Start at [`Agenda::due`].

use std::collections::BTreeSet;
use std::time::Duration;

use rustc_hash::FxHashSet;

/// Names a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LineId(pub u64);

/// The moment of a line that rests: no event comes later.
pub const RESTING: Duration = Duration::MAX;
/// The shortest pause of a line of which nothing can have changed, whatever was set.
const PAUSE_MIN: Duration = Duration::from_millis(1);

/// What is to be looked at, and when.
#[derive(Default)]
pub struct Agenda {
    planned: BTreeSet<(Duration, LineId)>,
    resting: FxHashSet<LineId>,
    /// What the store said when they came to rest, and when it is asked again.
    unheard: u64,
    rest_ends: Duration,
}

impl Agenda {
    /// Plans a look at a line.
    pub fn plan(&mut self, id: LineId, at: Duration) {
        self.planned.insert((at, id));
    }

    /// Lets a line rest that is worth a look when the store no longer says `unheard`, of which it is asked within `pause`;
    /// tells its moment.
    pub fn rest(&mut self, id: LineId, now: Duration, pause: Duration, unheard: u64) -> Duration {
        let ends = now + pause.max(PAUSE_MIN);
        if self.resting.is_empty() {
            (self.unheard, self.rest_ends) = (unheard, ends);
        }
        if self.unheard == unheard {
            self.resting.insert(id);
            return RESTING;
        }
        // The others came to rest before something changed.
        self.rest_ends = now;
        self.plan(id, ends);
        ends
    }

    /// Takes a line out that was planned for `at`.
    pub fn remove(&mut self, id: LineId, at: Duration) {
        if !self.planned.remove(&(at, id)) {
            self.resting.remove(&id);
        }
    }

    /// Asks what the store says, if it is time to, and ends the rest of all lines if it is not the same any more; tells
    /// which they are.
    pub fn rouse(&mut self, now: Duration, pause: Duration, unheard: Option<u64>) -> FxHashSet<LineId> {
        if now < self.rest_ends {
            return FxHashSet::default();
        }
        self.rest_ends = now + pause.max(PAUSE_MIN);
        if unheard == Some(self.unheard) { FxHashSet::default() } else { std::mem::take(&mut self.resting) }
    }

    /// Takes out the next line whose moment has come.
    pub fn due(&mut self, now: Duration) -> Option<LineId> {
        self.planned.first().filter(|(at, _)| *at <= now)?;
        self.planned.pop_first().map(|(_, id)| id)
    }

    /// When there is next something to do.
    pub fn next(&self) -> Option<Duration> {
        let rest_ends = (!self.resting.is_empty()).then_some(self.rest_ends);
        self.planned.first().map(|(at, _)| *at).into_iter().chain(rest_ends).min()
    }
}

/// When to look again at a line of which nothing can have changed: after its pause or up to a tenth of it earlier, together
/// with others, so that the recheck timer fires a few times a second and not once for each of thousands.
pub fn together(now: Duration, pause: Duration) -> Duration {
    let step = (pause / 10).max(PAUSE_MIN).as_nanos();
    let at = (now + pause.max(PAUSE_MIN)).as_nanos();
    Duration::from_nanos(u64::try_from(at - at % step).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn lines_at_rest_share_a_moment_until_the_store_says_something_else() {
        let mut agenda = Agenda::default();
        for (id, now) in [(1, at(0)), (2, at(0))] {
            assert_eq!(agenda.rest(LineId(id), now, PAUSE, 7), RESTING);
        }
        for second in 1..5 {
            assert_eq!(agenda.next(), Some(at(second)));
            assert!(agenda.rouse(at(second), PAUSE, Some(7)).is_empty());
            assert_eq!(agenda.due(at(second)), None);
        }
        assert!(agenda.rouse(at(4), PAUSE, Some(8)).is_empty(), "it is not asked before its time");
        agenda.remove(LineId(2), RESTING);
        let roused = agenda.rouse(at(5), PAUSE, Some(8));
        assert_eq!(roused.into_iter().collect::<Vec<_>>(), [LineId(1)]);
        assert_eq!(agenda.next(), None);
    }

    #[test]
    fn who_comes_to_rest_after_a_change_ends_the_rest_of_those_before_it() {
        let mut agenda = Agenda::default();
        agenda.rest(LineId(1), at(0), PAUSE, 7);
        assert_eq!(agenda.rest(LineId(2), at(0), PAUSE, 8), at(1));
        assert_eq!(agenda.next(), Some(at(0)));
        assert_eq!(agenda.rouse(at(0), PAUSE, Some(8)).len(), 1);
        assert_eq!((agenda.due(at(0)), agenda.due(at(1))), (None, Some(LineId(2))));
    }

    #[test]
    fn lines_that_pause_are_looked_at_together_and_not_late() {
        let ms = Duration::from_millis;
        for (now, pause) in [(1234, 1000), (1, 100), (77_777, 350), (5, 3), (9, 0)] {
            let (now, pause) = (ms(now), ms(pause));
            let at = together(now, pause);
            assert!(at > now && at <= now + pause.max(ms(1)) && at + pause / 10 >= now + pause);
        }
        assert_eq!(together(ms(1010), ms(1000)), together(ms(1090), ms(1000)));
    }
}
