//! Committing: one engine batch and one sync per group, on a thread of its own when there is much to do.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread::Thread;

use baton_env::Stopwatch;
use baton_store::{Error, Operation};
use fjall::PersistMode;

use crate::store::Shared;
use crate::writer::Group;

/// Runs until the writer is gone.
pub fn run(shared: &Arc<Shared>, groups: &Receiver<Group>, decider: &Thread) {
    while let Ok(group) = groups.recv() {
        let committed = commit(shared, group);
        shared.set_idle(true);
        decider.unpark();
        committed.answer();
    }
}

/// Operations that a commit lets go, and how it went.
pub struct Committed {
    operations: Vec<Box<dyn Operation>>,
    outcome: Result<(), Error>,
}

impl Committed {
    /// Tells everyone who waited, the last decided first: a pop comes after the push that woke it, and what it
    /// got is somebody's next piece of work, while the push's answer is only good news.
    pub fn answer(self) {
        for operation in self.operations.into_iter().rev() {
            operation.finish(self.outcome.clone());
        }
    }
}

/// Writes one group.
pub fn commit(shared: &Shared, group: Group) -> Committed {
    let (seq, mut operations) = (group.seq, group.waiting);
    shared.check_space();
    let watch = Stopwatch::start();
    let mut batch = shared.db.batch().durability(group.sync.then_some(PersistMode::SyncData));
    for write in group.writes {
        match write.value {
            Some(value) => batch.insert(&write.table, write.key, value),
            None => batch.remove(&write.table, write.key),
        }
    }
    // After a failed commit nothing that was decided on top of it may be kept.
    let mut outcome = match shared.failure() {
        Some(reason) => Err(Error::Closed(reason)),
        None => batch.commit().map_err(|e| Error::Closed(format!("a commit failed: {e}"))),
    };
    if outcome.is_ok() && group.sync {
        let noted = shared.high_water.note(group.number);
        outcome = noted.map_err(|e| Error::Closed(format!("a commit could not be noted: {e}")));
    }
    if let Err(error) = &outcome {
        shared.fail(&error.to_string());
    }
    shared.count_commit(group.operations, group.sync.then(|| watch.elapsed()));
    operations.extend(shared.advance(seq, outcome.is_ok()));
    Committed { operations, outcome }
}
