//! Inline commit: at low load a caller decides and commits on its own thread.
//!
//! Waking the deciding thread, and being woken by it, takes longer than deciding. Without other callers no batch gains
//! from waiting for more operations. But a caller that commits cannot see who else has arrived meanwhile. So low load is
//! an estimate that is tested again and again: from time to time a commit goes through the deciding thread. If that finds
//! more than one caller, inline commits stop until it has found one caller several times in a row.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{self, AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::Thread;

use baton_store::Operation;

use super::batch::CommitBatch;
use super::group_commit::begin_commit;
use super::shared::Shared;
use super::writer::{BATCH_BYTES_ENOUGH, Writer};

/// Batches in a row with one caller only, before inline commits begin.
const SINGLE_BEFORE: u32 = 4;
/// Inline commits before the next batch goes through the deciding thread.
const COMMITS_BETWEEN: u32 = 16;
/// How many times that number doubles while the load stays low: the deciding thread costs two more wake-ups.
const DOUBLED_MAX: u32 = 4;
/// A batch with at most this many operations has one caller: a push, and the pop that it wakes.
const SINGLE_OPERATIONS_MAX: usize = 2;
/// An inline commit also decides operations that its own have caused (a push wakes a pop of each group that waits), up to
/// this many, so that callers that wake each other do not hold the thread for ever.
const FOLLOWERS_MAX: usize = 64;

/// When callers may commit inline.
#[derive(Default)]
pub struct InlineCommitPolicy {
    /// Batches in a row with one caller only.
    single_batches: u32,
    commits_left: u32,
}

impl InlineCommitPolicy {
    /// A batch went through the deciding thread, with one caller or with several.
    pub fn observe_batch(&mut self, single: bool) {
        self.single_batches = if single { self.single_batches.saturating_add(1) } else { 0 };
        let doubled = self.single_batches.checked_sub(SINGLE_BEFORE);
        self.commits_left = doubled.map_or(0, |times| COMMITS_BETWEEN << times.min(DOUBLED_MAX));
    }

    /// Counts an inline commit.
    pub fn count_commit(&mut self) {
        self.commits_left = self.commits_left.saturating_sub(1);
    }

    /// Whether a caller may commit inline.
    pub fn allows_inline(&self) -> bool {
        self.commits_left > 0
    }
}

/// What callers see of the policy without the writer.
#[derive(Default)]
pub struct InlineFlags {
    /// Whether callers may try to commit inline.
    allowed: AtomicBool,
    /// Whether a caller commits inline at the moment. It checks the intake itself when it has finished.
    active: AtomicBool,
}

impl InlineFlags {
    /// Whether a caller commits inline at the moment. Called after something was put into the intake: either this call
    /// sees the caller, or the caller sees the intake.
    pub fn is_active(&self) -> bool {
        atomic::fence(Ordering::SeqCst);
        self.active.load(Ordering::Relaxed)
    }
}

/// Runs operations on the threads of their callers.
pub struct InlineCommitter {
    /// The deciding thread owns the writer.
    writer: Weak<Mutex<Writer>>,
    decide_thread: Thread,
    shared: Arc<Shared>,
}

impl InlineCommitter {
    pub fn new(writer: Weak<Mutex<Writer>>, decide_thread: Thread, shared: Arc<Shared>) -> Self {
        Self { writer, decide_thread, shared }
    }

    /// Decides and commits an operation on this thread. Gives it back if the deciding thread should do that.
    pub fn try_run(&self, operation: Box<dyn Operation>) -> Result<(), Box<dyn Operation>> {
        let flags = &self.shared.inline_flags;
        if !flags.allowed.load(Ordering::Relaxed) {
            return Err(operation);
        }
        let Some(writer) = self.writer.upgrade() else { return Err(operation) };
        let Ok(mut held) = writer.try_lock() else { return Err(operation) };
        flags.active.store(true, Ordering::Relaxed);
        // Also wake the deciding thread after a panic, so that it finds the poisoned lock.
        let decided = catch_unwind(AssertUnwindSafe(|| held.decide_inline(operation)));
        flags.active.store(false, Ordering::Relaxed);
        atomic::fence(Ordering::SeqCst);
        if decided.is_err() || held.has_work() {
            self.decide_thread.unpark();
        }
        decided.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

impl Writer {
    /// Decides and commits an operation on its caller's thread, and operations that it causes at once: a push wakes pops.
    /// Gives it back if the deciding thread is in the middle of something or has other operations.
    fn decide_inline(&mut self, operation: Box<dyn Operation>) -> Result<(), Box<dyn Operation>> {
        // Operations in the intake arrived earlier and are decided earlier.
        if !self.inline_policy.allows_inline() || self.committing || !self.intake.is_empty() {
            return Err(operation);
        }
        self.run_operation(operation);
        let mut followers = FOLLOWERS_MAX;
        loop {
            if !self.batch.needs_sync() {
                self.decide_followers(&mut followers);
            }
            if !self.batch.needs_sync() {
                break;
            }
            self.inline_policy.count_commit();
            if let Some(batch) = self.seal_batch() {
                self.commit_inline(batch, &mut followers);
            }
        }
        self.publish_policy();
        Ok(())
    }

    /// Commits a batch on this thread. During the fsync it decides up to `followers` operations that the batch has caused,
    /// and applies earlier commits to the index.
    pub fn commit_inline(&mut self, batch: CommitBatch, followers: &mut usize) {
        let (shared, frees) = (self.shared.clone(), !batch.freed.is_empty());
        let begun = begin_commit(&shared, batch);
        if begun.start_sync(&shared) {
            self.decide_followers(followers);
        }
        self.apply_if_due(false);
        begun.complete(&shared).answer();
        if frees {
            self.apply_if_due(true);
        }
    }

    /// Notifies the listener of events, and decides up to `most` operations that have arrived.
    fn decide_followers(&mut self, most: &mut usize) {
        self.notify_events();
        while *most > 0
            && self.batch.message_bytes() < BATCH_BYTES_ENOUGH
            && let Ok(input) = self.intake.try_recv()
        {
            *most -= 1;
            self.accept_input(input);
        }
    }

    /// Updates the policy with a batch that went through the deciding thread.
    pub fn observe_load(&mut self) {
        self.inline_policy.observe_batch(self.batch.waiting_len() <= SINGLE_OPERATIONS_MAX);
        self.publish_policy();
    }

    fn publish_policy(&self) {
        self.shared.inline_flags.allowed.store(self.inline_policy.allows_inline(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inline_commits_begin_after_several_single_batches_and_end_at_once() {
        let mut policy = InlineCommitPolicy::default();
        for _ in 1..SINGLE_BEFORE {
            policy.observe_batch(true);
            assert!(!policy.allows_inline());
        }
        policy.observe_batch(true);
        assert!(policy.allows_inline());
        policy.observe_batch(false);
        assert!(!policy.allows_inline());
    }

    #[test]
    fn the_load_is_tested_less_often_while_it_stays_low() {
        let mut policy = InlineCommitPolicy::default();
        (0..SINGLE_BEFORE).for_each(|_| policy.observe_batch(true));
        for doubled in [0, 1, 2, 3, 4, 4] {
            for _ in 0..COMMITS_BETWEEN << doubled {
                assert!(policy.allows_inline());
                policy.count_commit();
            }
            assert!(!policy.allows_inline());
            policy.observe_batch(true);
        }
        policy.observe_batch(false);
        (0..SINGLE_BEFORE).for_each(|_| policy.observe_batch(true));
        (0..COMMITS_BETWEEN).for_each(|_| policy.count_commit());
        assert!(!policy.allows_inline());
    }
}
