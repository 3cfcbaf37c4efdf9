//! The deciding thread: takes operations from the intake, decides them, and submits batches.
//!
//! It decides everything that has arrived before it commits, so batches grow with the load. While the commit thread writes
//! a batch the next one fills.

use std::sync::Mutex;
use std::time::Duration;

use baton_store::{Error, Operation};

use super::log_compactor::RewriteRequest;
use super::writer::{BATCH_BYTES_ENOUGH, Writer};

/// Writes for which no operation waits, such as leases, are committed with the next fsync, or alone after this time.
const LINGER: Duration = Duration::from_millis(100);

/// What the intake brings to the deciding thread.
pub enum Input {
    Operation(Box<dyn Operation>),
    /// Rewrite segments at the end of the log.
    Rewrite(RewriteRequest),
    /// Finish everything and stop.
    Close,
}

/// Works whenever it is unparked, until it is closed.
pub fn run_decisions(writer: &Mutex<Writer>) {
    // A panic may have left half a decision: the lock is poisoned then, and this thread ends.
    while let Ok(mut held) = writer.lock() {
        let goes_on = held.process_intake();
        drop(held);
        if !goes_on {
            return;
        }
        std::thread::park();
    }
}

impl Writer {
    /// Whether there is work for the deciding thread.
    pub fn has_work(&self) -> bool {
        self.closing || !self.intake.is_empty() || self.may_sweep()
    }

    /// Decides everything in the intake. Returns `false` when the store is closed.
    fn process_intake(&mut self) -> bool {
        while !self.closing {
            self.poll_commit_thread();
            match self.intake.try_recv() {
                Ok(input) => self.accept_input(input),
                Err(_) if self.may_sweep() && !self.committing => self.sweep(),
                Err(_) => {
                    if self.batch.needs_sync() || self.has_lingered() {
                        self.observe_and_submit();
                    }
                    return true;
                }
            }
            if self.batch.is_full() {
                self.shared.commit_idle.wait();
                self.poll_commit_thread();
            }
            if self.batch.message_bytes() >= BATCH_BYTES_ENOUGH || self.batch.is_full() {
                self.observe_and_submit();
            }
        }
        self.finish_intake();
        false
    }

    pub fn accept_input(&mut self, input: Input) {
        match input {
            Input::Operation(operation) => {
                self.run_operation(operation);
                self.notify_events();
            }
            Input::Rewrite(RewriteRequest { segments, done }) => {
                self.batch.add_rewrites(segments);
                self.batch.add_waiting(done);
            }
            Input::Close => self.closing = true,
        }
    }

    /// Notifies the listener of what operations have caused.
    pub fn notify_events(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        events.drain(..).for_each(|event| self.shared.context.notify(event));
        self.events = events;
    }

    /// Whether writes for which no operation waits are due.
    fn has_lingered(&self) -> bool {
        self.last_now.since(self.batch.started_at()) > LINGER
    }

    /// Submits a batch that went through this thread, after it has measured the load.
    fn observe_and_submit(&mut self) {
        if self.batch.needs_sync() && !self.committing {
            self.observe_load();
        }
        self.submit_batch();
    }

    /// Notices when the commit thread has finished its batch.
    fn poll_commit_thread(&mut self) {
        if self.committing && self.shared.commit_idle.get() {
            self.committing = false;
            self.after_apply();
        }
    }

    /// Commits the batch that is filling, in one of the three ways, unless a commit is under way or there is nothing to
    /// write.
    pub fn submit_batch(&mut self) {
        if self.committing {
            return;
        }
        let is_small = self.is_batch_small();
        let Some(batch) = self.seal_batch() else { return };
        if self.inline_policy.allows_inline() {
            return self.commit_inline(batch, &mut 0);
        }
        if is_small {
            return self.commit_small_batch(batch);
        }
        self.committing = true;
        self.shared.commit_idle.set(false);
        if let Err(refused) = self.commit_thread.send(batch) {
            let ended = Error::Closed("the committing thread has ended".into());
            self.shared.fail(&ended);
            for operation in refused.0.waiting {
                operation.finish(Err(ended.clone()));
            }
        }
    }

    /// Decides and commits everything in the intake before the store closes.
    fn finish_intake(&mut self) {
        self.intake.close();
        while let Ok(input) = self.intake.try_recv() {
            self.accept_input(input);
        }
        self.shared.commit_idle.wait();
        self.committing = false;
        self.submit_batch();
    }
}
