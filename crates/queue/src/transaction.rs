//! Transactions: acks, pushes, operations on records and timers, and positions that happen together or not at all, along
//! with whatever else a [`Rider`] brings.

use std::sync::Arc;

use baton_store::{Stop, Tx};
use baton_types::{LeaseId, Offset};

use crate::ack::{self, BAD_LEASE, Resolved};
use crate::pop;
use crate::seal::Sealer;
use crate::{AckItem, Acked, Error, PushBatch, Pushed, group, kv, push, timer};

/// One step.
#[derive(Debug)]
pub enum Step {
    /// Finishes a message.
    Ack(AckItem),
    /// Pushes messages.
    Push(PushBatch),
}

/// Something else that is to happen in the same commit, by rules that are not known here.
pub trait Rider: std::fmt::Debug + Send + Sync {
    /// Reads what it needs, without writing; or refuses, which undoes everything. May be run several times.
    fn prepare(&self, tx: &mut dyn Tx) -> Result<Result<Box<dyn Ridden>, Refusal>, Stop>;
}

/// What a rider will write.
pub trait Ridden {
    /// Writes it.
    fn write(self: Box<Self>, tx: &mut dyn Tx) -> Result<(), Stop>;
}

/// Why a rider refused: a word, and the words for people.
pub type Refusal = (&'static str, String);

/// Steps to be taken together.
#[derive(Debug, Default)]
pub struct Transaction {
    /// The steps.
    pub steps: Vec<Step>,
    /// Leases that must be live; `None` for a text that is no lease id.
    pub required_leases: Vec<Option<LeaseId>>,
    /// Operations on records.
    pub kv: Vec<kv::Step>,
    /// Operations on timers.
    pub timers: Vec<timer::Operation>,
    /// Something else.
    pub rider: Option<Arc<dyn Rider>>,
    /// Where groups go on.
    pub positions: Vec<Place>,
}

/// Where a group goes on in a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The queue.
    pub queue: String,
    /// The partition.
    pub partition: String,
    /// The group.
    pub group: String,
    /// The next offset it reads; `None` is where it first began.
    pub next: Option<Offset>,
}

/// What a step came to.
#[derive(Clone, Debug)]
pub enum StepResult {
    /// Of an ack.
    Ack(Acked),
    /// Of a push, one per message.
    Push(Vec<Pushed>),
}

/// What a transaction came to.
#[derive(Clone, Debug, Default)]
pub struct TransactionResult {
    /// Why nothing was done; `None` is success.
    pub error: Option<String>,
    /// The reason in a word.
    pub reason: Option<&'static str>,
    /// One per step; of a transaction that was not done those of its acks that were looked at.
    pub results: Vec<StepResult>,
    /// One per operation on records.
    pub kv: Vec<kv::Outcome>,
    /// One per operation on timers.
    pub timers: Vec<timer::Outcome>,
    /// The required operation on a record that undid everything.
    pub precondition: Option<kv::Precondition>,
}

impl TransactionResult {
    fn refused(reason: &'static str, error: impl Into<String>, results: Vec<StepResult>) -> Self {
        Self { error: Some(error.into()), reason: Some(reason), results, ..Self::default() }
    }

    /// Nothing was done, because of `error`, for which `reason` stands.
    pub fn not_done(reason: &'static str, error: impl Into<String>) -> Self {
        Self::refused(reason, error, Vec::new())
    }
}

/// A transaction whose acked messages have been found.
pub struct Ready {
    pub acks: Vec<Resolved>,
    /// For each step: an ack, or a push of so many messages.
    pub shape: Vec<Option<usize>>,
    pub required_leases: Vec<Option<LeaseId>>,
    pub kv: Vec<kv::Step>,
    pub timers: Vec<timer::Operation>,
    pub rider: Option<Arc<dyn Rider>>,
    pub positions: Vec<Place>,
}

/// Decides a transaction; an error is only ever that messages have to be encrypted first.
pub fn transact(
    tx: &mut dyn Tx,
    ready: &Ready,
    pushes: &PushBatch,
    sealer: &Sealer,
) -> Result<Result<TransactionResult, Error>, Stop> {
    for lease in &ready.required_leases {
        if !is_live(tx, *lease)? {
            return Ok(Ok(TransactionResult::refused("lease", BAD_LEASE, Vec::new())));
        }
    }
    let acks = ack::prepare(tx, &ready.acks)?;
    if let Some(error) = acks.results.iter().find_map(|ack| ack.error) {
        let seen = acks.results.into_iter().map(StepResult::Ack).collect();
        let error = format!("ACK operation failed: {error}");
        return Ok(Ok(TransactionResult::refused("rejected_ack", error, seen)));
    }
    let prepared = match push::prepare(tx, pushes)? {
        Ok(prepared) if prepared.repeats_stored() => {
            let error = "a pushed transactionId exists already";
            return Ok(Ok(TransactionResult::refused("duplicate", error, Vec::new())));
        }
        Ok(prepared) => prepared,
        Err(error @ Error::QueueFull { .. }) => {
            return Ok(Ok(TransactionResult::refused("queue_full", error.to_string(), Vec::new())));
        }
        Err(error @ Error::Unsealed(_)) => return Ok(Err(error)),
        Err(error) => {
            return Ok(Ok(TransactionResult::refused("bad_request", error.to_string(), Vec::new())));
        }
    };
    let mut places = Vec::with_capacity(ready.positions.len());
    for position in &ready.positions {
        let Some(queue) = tx.queue(&position.queue)? else {
            let error = format!("there is no queue {:?}", position.queue);
            return Ok(Ok(TransactionResult::not_done("queue_not_found", error)));
        };
        let Some(partition) = tx.partition(queue.id, &position.partition)? else {
            let error = format!("there is no partition {:?} in {:?}", position.partition, position.queue);
            return Ok(Ok(TransactionResult::not_done("queue_not_found", error)));
        };
        if position.next.is_some_and(|next| next < partition.start || next > partition.tail) {
            let kept = format!("{} to {}", partition.start, partition.tail);
            let error = format!("an offset of {:?} must be from {kept}", position.partition);
            return Ok(Ok(TransactionResult::not_done("bad_request", error)));
        }
        let known = tx.group(queue.id, &position.group)?;
        let next = match (position.next, known) {
            (Some(next), _) => next,
            (None, Some(known)) => pop::beginning(tx, &known, &partition)?,
            (None, None) => partition.start,
        };
        places.push((queue, partition, &position.group, next));
    }
    let records = match kv::prepare(tx, &ready.kv)? {
        Ok(records) => records,
        Err(lost) => {
            let refused =
                TransactionResult::not_done("kv_precondition", "a required record is not as expected");
            return Ok(Ok(TransactionResult { precondition: Some(lost), ..refused }));
        }
    };
    let timers = match timer::prepare(tx, &ready.timers, sealer)? {
        Ok(timers) => timers,
        Err(error) => {
            return Ok(Ok(TransactionResult::not_done("encryption_key_missing", error.to_string())));
        }
    };
    let ridden = match ready.rider.as_ref().map(|rider| rider.prepare(tx)).transpose()? {
        Some(Err((reason, error))) => return Ok(Ok(TransactionResult::not_done(reason, error))),
        Some(Ok(ridden)) => Some(ridden),
        None => None,
    };
    let pushed = push::write(tx, pushes, &prepared)?;
    let acked = ack::write(tx, acks);
    let timers = timer::write(tx, &ready.timers, timers)?;
    let kv = kv::write(tx, &ready.kv, records)?;
    for (queue, partition, name, next) in places {
        group::place(tx, &queue, name, &partition, next)?;
    }
    if let Some(ridden) = ridden {
        ridden.write(tx)?;
    }
    let results = in_order(&ready.shape, acked, pushed);
    Ok(Ok(TransactionResult { results, kv, timers, ..TransactionResult::default() }))
}

fn is_live(tx: &mut dyn Tx, lease: Option<LeaseId>) -> Result<bool, Stop> {
    let Some(lease) = lease else { return Ok(false) };
    let now = tx.now();
    for (group, partition) in tx.leased(lease)? {
        let cursor = tx.cursor(group, partition)?;
        if cursor.and_then(|cursor| cursor.lease).is_some_and(|held| held.id == lease && held.until > now) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn in_order(shape: &[Option<usize>], acked: Vec<Acked>, pushed: Vec<Pushed>) -> Vec<StepResult> {
    let (mut acked, mut pushed) = (acked.into_iter(), pushed.into_iter());
    let step = |messages: &Option<usize>| match messages {
        None => StepResult::Ack(acked.next().unwrap_or_default()),
        Some(messages) => StepResult::Push(pushed.by_ref().take(*messages).collect()),
    };
    shape.iter().map(step).collect()
}
