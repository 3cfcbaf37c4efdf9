//! Whether so little happens that a caller had better decide and commit on its own thread.
//!
//! Waking the deciding thread, and being woken by it, takes longer than deciding; and while nobody else is there,
//! no group gains from waiting for more. But a caller that commits cannot see who else has come meanwhile. So
//! calm is a guess that is tested again and again: every so many commits, one goes through the deciding thread,
//! and if that finds company there, callers stay away until it has been alone for a while.

/// Groups in a row that had the deciding thread to themselves, before callers may commit.
const ALONE_BEFORE: u32 = 4;
/// Commits that callers may make before the next one shows whether it is still calm,
const COMMITS_BETWEEN: u32 = 16;
/// and how many times they double for as long as it is: going through the deciding thread takes two wake-ups more.
const DOUBLED_MAX: u32 = 4;

/// What the last groups told.
#[derive(Default)]
pub struct Calm {
    alone: u32,
    commits_left: u32,
}

impl Calm {
    /// A group went through the deciding thread, alone or with others.
    pub fn tested(&mut self, alone: bool) {
        self.alone = if alone { self.alone.saturating_add(1) } else { 0 };
        let doubled = self.alone.checked_sub(ALONE_BEFORE);
        self.commits_left = doubled.map_or(0, |times| COMMITS_BETWEEN << times.min(DOUBLED_MAX));
    }

    /// A caller has committed.
    pub fn used(&mut self) {
        self.commits_left = self.commits_left.saturating_sub(1);
    }

    /// Whether a caller may decide and commit.
    pub fn holds(&self) -> bool {
        self.commits_left > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_takes_a_while_to_come_and_is_gone_at_once() {
        let mut calm = Calm::default();
        for _ in 1..ALONE_BEFORE {
            calm.tested(true);
            assert!(!calm.holds());
        }
        calm.tested(true);
        assert!(calm.holds());
        calm.tested(false);
        assert!(!calm.holds());
    }

    #[test]
    fn it_is_tested_every_so_often_and_less_often_while_it_lasts() {
        let mut calm = Calm::default();
        (0..ALONE_BEFORE).for_each(|_| calm.tested(true));
        for doubled in [0, 1, 2, 3, 4, 4] {
            for _ in 0..COMMITS_BETWEEN << doubled {
                assert!(calm.holds());
                calm.used();
            }
            assert!(!calm.holds());
            calm.tested(true);
        }
        calm.tested(false);
        (0..ALONE_BEFORE).for_each(|_| calm.tested(true));
        (0..COMMITS_BETWEEN).for_each(|_| calm.used());
        assert!(!calm.holds());
    }
}
