//! The commit thread: commits one batch while the deciding thread fills the next.

use std::sync::mpsc::Receiver;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::Thread;

use super::batch::CommitBatch;
use super::group_commit::commit_batch;
use super::shared::Shared;

/// Commits batches until the writer is dropped.
pub fn run_commits(shared: &Arc<Shared>, batches: &Receiver<CommitBatch>, decide_thread: &Thread) {
    while let Ok(batch) = batches.recv() {
        let frees = !batch.freed.is_empty();
        let ended = commit_batch(shared, batch);
        shared.commit_idle.set(true);
        decide_thread.unpark();
        ended.answer();
        shared.apply_if_due(frees && shared.may_apply());
    }
}

/// Whether the commit thread has no batch.
pub struct IdleFlag {
    idle: Mutex<bool>,
    became_idle: Condvar,
}

impl Default for IdleFlag {
    fn default() -> Self {
        Self { idle: Mutex::new(true), became_idle: Condvar::new() }
    }
}

impl IdleFlag {
    pub fn set(&self, idle: bool) {
        *self.idle.lock().unwrap_or_else(PoisonError::into_inner) = idle;
        if idle {
            self.became_idle.notify_all();
        }
    }

    pub fn get(&self) -> bool {
        *self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn wait(&self) {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.became_idle.wait_while(idle, |idle| !*idle));
    }
}
