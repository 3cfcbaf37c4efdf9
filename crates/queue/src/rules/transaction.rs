//! Transactions: acks, pushes, operations on records and timers, and positions that happen together or not at all, along
//! with whatever else a [`Rider`] brings.
//!
//! Always: every ack finishes a message that was unfinished and, where it names a lease, still held under it, so a
//! transaction that acks takes effect once. One without acks takes effect once under an idempotency key
//! ([`Repeatable`]), which also keeps the first answer. Start at [`transact`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use baton_records::kv;
use baton_store::{IdempotencyKey, PriorCall, Tx, TxError, collect_misses};
use baton_types::{LeaseId, Offset, QueueId};
use bytes::Bytes;

use crate::rules::ack::{self, BAD_LEASE, FINISHED, RepeatedAck, Resolved};
use crate::rules::seal::Sealer;
use crate::rules::{cursor, group, push, quota, timer};
use crate::{AckItem, Acked, Error, PushBatch, Pushed};

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
    fn prepare(&self, tx: &mut dyn Tx) -> Result<Result<Box<dyn Ridden>, Refusal>, TxError>;
}

/// What a rider will write.
pub trait Ridden {
    /// Writes it.
    fn write(self: Box<Self>, tx: &mut dyn Tx) -> Result<(), TxError>;
}

/// Why a rider refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The reason in a word.
    pub reason: &'static str,
    /// The reason.
    pub error: String,
    /// The culprit among the things that the rider brings.
    pub culprit: Option<usize>,
}

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
    /// Under which key it may be repeated.
    pub repeatable: Option<Repeatable>,
}

/// Writes the answer to a transaction that was done.
pub type WriteAnswer = dyn Fn(&TransactionResult) -> Vec<u8> + Send + Sync;

/// Lets a transaction be repeated. Its answer is kept in its commit, and a repetition gets it.
#[derive(Clone)]
pub struct Repeatable {
    /// The caller's key, with the request that came with it.
    pub key: IdempotencyKey,
    /// Writes the answer.
    pub write: Arc<WriteAnswer>,
}

impl std::fmt::Debug for Repeatable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Repeatable").field("key", &self.key).finish_non_exhaustive()
    }
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
    /// The culprit among all steps and operations, in the order acks and messages, records, timers, positions, and what a
    /// rider brings; or, for the reason [`LEASE`], among the required leases.
    pub failed_index: Option<usize>,
    /// One per step. After a rejected ack only acks have results; other refusals have none at all.
    pub results: Vec<StepResult>,
    /// One per operation on records.
    pub kv: Vec<kv::Outcome>,
    /// One per operation on timers.
    pub timers: Vec<timer::Outcome>,
    /// The required operation on a record that undid everything.
    pub precondition: Option<kv::Precondition>,
    /// The answer that is kept under the idempotency key.
    pub answer: Option<Bytes>,
    /// Whether that is the answer to an earlier call, so that nothing was done.
    pub repeated: bool,
}

impl TransactionResult {
    /// Nothing was done, because of `error`, for which `reason` stands.
    pub fn not_done(reason: &'static str, error: impl Into<String>) -> Self {
        let error = format!("{ROLLED_BACK}: {}", error.into());
        Self { error: Some(error), reason: Some(reason), ..Self::default() }
    }

    fn at(self, index: usize) -> Self {
        Self { failed_index: Some(index), ..self }
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
    pub repeatable: Option<Repeatable>,
}

impl Ready {
    /// How many acks and messages there are.
    fn steps(&self) -> usize {
        self.shape.iter().map(|messages| messages.unwrap_or(1)).sum()
    }

    /// The place of the ack or message with this number among all acks and messages.
    fn index_of(&self, kind: StepKind, number: usize) -> usize {
        let (mut index, mut left) = (0, number);
        for messages in &self.shape {
            let len = messages.unwrap_or(1);
            if messages.is_none() == (kind == StepKind::Ack) {
                if left < len {
                    return index + left;
                }
                left -= len;
            }
            index += len;
        }
        index
    }
}

#[derive(Clone, Copy, PartialEq)]
enum StepKind {
    Ack,
    Message,
}

/// What the text of every refusal begins with. Queen's clients look for it.
const ROLLED_BACK: &str = "Transaction rolled back";
/// The reason when a required lease is not live.
pub const LEASE: &str = "lease";

/// The names of the records that keep answers begin so.
const ANSWERS: &str = "transaction/";

/// Decides a transaction. An error is that messages have to be encrypted first, or that the idempotency key came with
/// another request.
pub fn transact(
    tx: &mut dyn Tx,
    ready: &Ready,
    pushes: &PushBatch,
    sealer: &Sealer,
) -> Result<Result<TransactionResult, Error>, TxError> {
    if let Some(repeatable) = &ready.repeatable {
        match repeatable.key.find_prior_call(tx, ANSWERS)? {
            PriorCall::None => {}
            PriorCall::Answered(answer) => {
                let answer = Some(answer);
                return Ok(Ok(TransactionResult { answer, repeated: true, ..TransactionResult::default() }));
            }
            PriorCall::Different => return Ok(Err(Error::KeyReused)),
        }
    }
    let mut lost = None;
    collect_misses(ready.required_leases.iter().enumerate(), |(index, lease)| {
        if !is_live(tx, *lease)? {
            lost.get_or_insert(index);
        }
        Ok(())
    })?;
    if let Some(index) = lost {
        return Ok(Ok(TransactionResult::not_done(LEASE, BAD_LEASE).at(index)));
    }
    let acks = ack::prepare(tx, &ready.acks, RepeatedAck::Fails)?;
    if let Some((number, error)) = acks.results.iter().enumerate().find_map(|(i, ack)| Some((i, ack.error?)))
    {
        let reason = if matches!(error, BAD_LEASE | FINISHED) { "ack_conflict" } else { "rejected_ack" };
        let refused = TransactionResult::not_done(reason, format!("ACK operation failed: {error}"));
        let results = in_order(&ready.shape, acks.results, Vec::new());
        let refused = TransactionResult { results, ..refused };
        return Ok(Ok(refused.at(ready.index_of(StepKind::Ack, number))));
    }
    let prepared = match push::prepare(tx, pushes)? {
        Ok(prepared) => prepared,
        Err(ref error @ Error::QueueFull { first_beyond, .. }) => {
            let refused = TransactionResult::not_done("queue_full", error.to_string());
            return Ok(Ok(refused.at(ready.index_of(StepKind::Message, first_beyond))));
        }
        Err(ref error @ Error::NoRoom { first_beyond, .. }) => {
            let refused = TransactionResult::not_done("limit_reached", error.to_string());
            return Ok(Ok(refused.at(ready.index_of(StepKind::Message, first_beyond))));
        }
        Err(error @ Error::Unsealed(_)) => return Ok(Err(error)),
        Err(error) => return Ok(Ok(TransactionResult::not_done("bad_request", error.to_string()))),
    };
    if let Some(number) = prepared.first_repeat_of_stored(pushes) {
        let refused = TransactionResult::not_done("duplicate", "a pushed transactionId exists already");
        return Ok(Ok(refused.at(ready.index_of(StepKind::Message, number))));
    }
    let first_timer = ready.steps() + ready.kv.len();
    let mut places = Vec::with_capacity(ready.positions.len());
    let mut new_groups: BTreeMap<QueueId, BTreeSet<&str>> = BTreeMap::new();
    for (index, position) in (first_timer + ready.timers.len()..).zip(&ready.positions) {
        let Some(queue) = tx.queue(&position.queue)? else {
            let error = format!("there is no queue {:?}", position.queue);
            return Ok(Ok(TransactionResult::not_done("queue_not_found", error).at(index)));
        };
        let Some(partition) = tx.partition(queue.id, &position.partition)? else {
            let error = format!("there is no partition {:?} in {:?}", position.partition, position.queue);
            return Ok(Ok(TransactionResult::not_done("queue_not_found", error).at(index)));
        };
        if position.next.is_some_and(|next| next < partition.start || next > partition.tail) {
            let kept = format!("{} to {}", partition.start, partition.tail);
            let error = format!("an offset of {:?} must be from {kept}", position.partition);
            return Ok(Ok(TransactionResult::not_done("bad_request", error).at(index)));
        }
        let known = tx.group(queue.id, &position.group)?;
        if known.is_none() {
            let fresh = new_groups.entry(queue.id).or_default();
            fresh.insert(&position.group);
            match quota::for_groups(tx, &queue, fresh.len() as u64) {
                Err(TxError::Failed(full @ baton_store::Error::LimitReached(_))) => {
                    return Ok(Ok(TransactionResult::not_done("limit_reached", full.to_string()).at(index)));
                }
                room => room?,
            }
        }
        let next = match (position.next, known) {
            (Some(next), _) => next,
            (None, Some(known)) => cursor::beginning(tx, &known, &partition)?,
            (None, None) => partition.start,
        };
        places.push((queue, partition, &position.group, next));
    }
    let records = match kv::prepare(tx, &ready.kv)? {
        Ok(records) => records,
        Err(lost) => {
            let refused =
                TransactionResult::not_done("kv_precondition", "a required record is not as expected");
            let refused = refused.at(ready.steps() + lost.index);
            return Ok(Ok(TransactionResult { precondition: Some(lost), ..refused }));
        }
    };
    let timers = match timer::prepare(tx, &ready.timers, sealer)? {
        Ok(timers) => timers,
        Err((number, error)) => {
            let refused = TransactionResult::not_done("encryption_key_missing", error.to_string());
            return Ok(Ok(refused.at(first_timer + number)));
        }
    };
    let ridden = match ready.rider.as_ref().map(|rider| rider.prepare(tx)).transpose()? {
        Some(Err(Refusal { reason, error, culprit })) => {
            let refused = TransactionResult::not_done(reason, error);
            let first = first_timer + ready.timers.len() + ready.positions.len();
            return Ok(Ok(TransactionResult {
                failed_index: culprit.map(|number| first + number),
                ..refused
            }));
        }
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
    let mut done = TransactionResult { results, kv, timers, ..TransactionResult::default() };
    if let Some(repeatable) = &ready.repeatable {
        let answer = (repeatable.write)(&done);
        repeatable.key.store_answer(tx, ANSWERS, &answer)?;
        done.answer = Some(answer.into());
    }
    Ok(Ok(done))
}

fn is_live(tx: &mut dyn Tx, lease: Option<LeaseId>) -> Result<bool, TxError> {
    let Some(lease) = lease else { return Ok(false) };
    let now = tx.now();
    for (group, partition) in tx.leased_partitions(lease)? {
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
