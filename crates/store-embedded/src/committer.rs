//! The committing thread: one engine batch and one sync per group.

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use baton_env::Stopwatch;
use baton_store::Error;
use fjall::PersistMode;
use tokio::sync::mpsc::Sender;

use crate::store::Shared;
use crate::writer::{Group, Input};

/// Runs until the deciding thread is gone.
pub fn run(shared: &Arc<Shared>, groups: &Receiver<Group>, done: &Sender<Input>) {
    while let Ok(group) = groups.recv() {
        let (seq, waiting) = (group.seq, group.waiting);
        let watch = Stopwatch::start();
        shared.check_space();
        let mut batch = shared.db.batch().durability(group.sync.then_some(PersistMode::SyncData));
        for write in group.writes {
            match write.value {
                Some(value) => batch.insert(&write.table, write.key, value),
                None => batch.remove(&write.table, write.key),
            }
        }
        let outcome = batch.commit().map_err(|e| Error::Closed(format!("a commit failed: {e}")));
        if let Err(error) = &outcome {
            shared.fail(&error.to_string());
        }
        shared.count_commit(group.operations, group.sync, watch.elapsed());
        let parked = shared.advance(seq, outcome.is_ok());
        shared.set_idle(true);
        // When the intake is full the deciding thread is awake anyway.
        let _ = done.try_send(Input::Committed);
        for operation in waiting.into_iter().chain(parked) {
            operation.finish(outcome.clone());
        }
    }
}
