use crate::{AckItem, Acked, PushBatch, Pushed};
use baton_types::LeaseId;

#[derive(Debug)]
pub enum Step {
    Ack(AckItem),
    /// As many results as it has messages.
    Push(PushBatch),
}

#[derive(Debug, Default)]
pub struct Transaction {
    pub steps: Vec<Step>,
    /// `None` for a text that is no lease id.
    pub required_leases: Vec<Option<LeaseId>>,
}

#[derive(Clone, Debug)]
pub enum StepResult {
    Ack(Acked),
    Push(Vec<Pushed>),
}

#[derive(Clone, Debug)]
pub struct TransactionResult {
    /// Why everything was rolled back; `None` is success.
    pub error: Option<String>,
    /// A short word for the reason: `rejected_ack`, `duplicate`, `lease`, `queue_full`.
    pub reason: Option<&'static str>,
    /// One per step evaluated; after a rollback those before and including the one that failed.
    pub results: Vec<StepResult>,
}
