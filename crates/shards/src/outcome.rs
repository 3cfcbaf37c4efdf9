//! The outcome of a request about shards, and the callback that receives it.

use std::sync::Arc;

use crate::request::Refusal;
use crate::service::Worker;
use crate::view::{Snapshot, WorkerView};

/// The outcome of a request.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The service after the request.
    pub snapshot: Arc<Snapshot>,
    /// The number of its worker; zero when it left.
    pub number: u32,
}

impl Outcome {
    /// The worker, unless it has left.
    pub fn worker(&self) -> Option<&Worker> {
        self.snapshot.service.worker(self.number)
    }

    /// The assignment of the worker.
    pub fn view(&self) -> &WorkerView {
        self.snapshot.view(self.number)
    }
}

/// Receives the outcome once. Must not block.
pub type ReplyCallback = Box<dyn FnOnce(Result<Outcome, Refusal>) + Send>;
