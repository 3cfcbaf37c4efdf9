//! What the engine has not been told of yet, and telling it.
//!
//! Always: it is told in the order of the commits, one at a time, and nobody who only adds a commit waits for that.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use baton_store::Error;
use fjall::Database;

use crate::committer::Untold;
use crate::index::Index;
use crate::log::Position;

/// Commits that the engine is told of at once when little happens; telling one alone takes most of the time of many.
const MANY: usize = 16;
/// Or fewer, if they have so many bytes of messages, which stay in memory until then.
const MANY_BYTES: u64 = 1 << 20;
/// Or all that have come, once they have so many, even if the engine is busy.
const TOO_MANY_BYTES: u64 = 32 << 20;

pub struct Telling {
    untold: Mutex<Vec<Untold>>,
    /// Held by whoever tells.
    turn: Mutex<()>,
    /// The last group that the engine knows of, and where it ends in the log.
    seq: AtomicU64,
    end: Mutex<Position>,
}

impl Telling {
    /// For an engine that knows the log up to there.
    pub fn new(end: Position) -> Self {
        let (untold, turn, seq) = Default::default();
        Self { untold, turn, seq, end: Mutex::new(end) }
    }

    /// Notes a commit that is in the log.
    pub fn keep(&self, commit: Untold) {
        self.untold().push(commit);
    }

    pub fn is_much(&self) -> bool {
        let untold = self.untold();
        untold.len() >= MANY || bytes_of(&untold) >= MANY_BYTES
    }

    pub fn is_too_much(&self) -> bool {
        bytes_of(&self.untold()) >= TOO_MANY_BYTES
    }

    /// Tells the engine of everything that was kept.
    pub fn tell(&self, db: &Database, index: &Index) -> Result<(), Error> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let untold = std::mem::take(&mut *self.untold());
        for commit in untold {
            let (seq, end) = (commit.seq, commit.end);
            commit.tell(db, index)?;
            self.seq.store(seq, Ordering::Release);
            *self.end.lock().unwrap_or_else(PoisonError::into_inner) = end;
        }
        Ok(())
    }

    pub fn seq(&self) -> u64 {
        self.seq.load(Ordering::Acquire)
    }

    pub fn end(&self) -> Position {
        *self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn untold(&self) -> MutexGuard<'_, Vec<Untold>> {
        self.untold.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn bytes_of(commits: &[Untold]) -> u64 {
    commits.iter().map(|commit| commit.bytes).sum()
}
