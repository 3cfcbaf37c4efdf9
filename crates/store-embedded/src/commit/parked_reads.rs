//! Operations that wrote nothing and wait until what they have read is on disk.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use baton_store::{Error, Operation};

/// The last durable batch, and the operations that wait for a later one.
#[derive(Default)]
pub struct ParkedReads {
    durable: AtomicU64,
    parked: Mutex<Vec<(u64, Box<dyn Operation>)>>,
}

impl ParkedReads {
    /// Answers an operation that wrote nothing, once batch `depends_on` is on disk. `refusal` says why there will be no
    /// further commit.
    pub fn finish_when_durable(
        &self,
        depends_on: u64,
        operation: Box<dyn Operation>,
        refusal: impl FnOnce() -> Option<Error>,
    ) {
        let outcome = {
            let mut parked = self.parked();
            match refusal() {
                _ if depends_on <= self.durable.load(Ordering::Acquire) => Ok(()),
                // An operation parked now would wait for ever, as the failed commit has released the others already.
                Some(refusal) => Err(refusal),
                None => return parked.push((depends_on, operation)),
            }
        };
        operation.finish(outcome);
    }

    /// Ends the commit of a batch. Returns the operations that waited for it.
    pub fn release(&self, batch: u64, durable: bool) -> Vec<Box<dyn Operation>> {
        let mut parked = self.parked();
        if durable {
            self.durable.store(batch, Ordering::Release);
        }
        let (released, still) =
            std::mem::take(&mut *parked).into_iter().partition(|(after, _)| *after <= batch);
        *parked = still;
        released.into_iter().map(|(_, operation): (u64, _)| operation).collect()
    }

    fn parked(&self) -> MutexGuard<'_, Vec<(u64, Box<dyn Operation>)>> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
