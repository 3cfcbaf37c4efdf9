//! `POST /api/v1/transaction`: acks, pushes, operations on records and timers, positions of groups, and jobs, that happen
//! together or not at all.
//!
//! Always: a rollback is status 200 with `success: false` and the reason, as clients expect; only a request that
//! cannot be read is an error. An ack that names no lease is fenced by the one lease that the rest of the request
//! names. Under an `Idempotency-Key` the first answer is kept in the same commit, and a repetition gets it. Start at
//! [`transaction`], then [`Plan::read`].

use std::sync::Arc;

use baton_http::Reply;
use baton_jobs::{Enqueued, NewJob};
use baton_queue::{
    AckItem, LEASE, LeaseClaim, Place, PushBatch, Repeatable, Rider, Step, StepResult, Transaction,
    TransactionResult, WriteAnswer,
};
use baton_types::limits::BATCH_ITEMS_MAX;
use baton_types::{LeaseId, Offset, PartitionId};
use http::StatusCode;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::ack::{self, RawAck};
use super::jobs::rider::JobRider;
use super::push::{Item, RawItem};
use super::{idempotency, jobs, kv, timers};
use crate::call::{Answer, Call};
use crate::cluster::{Routing, ServedByHeaders};
use crate::error::{Error, Kind};
use crate::json::{self, Kept, List, Text, lenient};
use crate::members::Members;
use crate::names;

/// Positions in one transaction.
const POSITIONS_MAX: usize = 16_384;
/// Bytes of what a position may carry along. It is checked, and nobody asks for it.
const METADATA_BYTES_MAX: usize = 4096;

lenient! {
    struct Body<'a> {
        "operations" => operations: List<&'a RawValue>,
        "requiredLeases" => required_leases: List<Text<'a>>,
        "kv" => kv: List<&'a RawValue>,
        "timers" => timers: List<&'a RawValue>,
        "jobs" => jobs: List<&'a RawValue>,
        "positions" => positions: List<&'a RawValue>,
    }
}

lenient! {
    struct Operation<'a> {
        "type" => kind: Text<'a>,
        "items" => items: List<RawItem<'a>>,
    }
}

/// What a transaction will do, with what its answer needs to know.
#[derive(Debug, Default)]
struct Plan<'a> {
    steps: Vec<Planned<'a>>,
    kv: Vec<kv::Named>,
    timers: Vec<timers::Named>,
    jobs: Vec<NewJob>,
    positions: Vec<Place>,
    /// Leases that must be live, each with its place in the request.
    required: Vec<(usize, Option<LeaseId>)>,
    /// The first operation of a type that we do not know, which rolls everything back: its index and that type.
    unknown: Option<(usize, String)>,
}

#[derive(Debug)]
enum Planned<'a> {
    Ack(AckItem),
    Push(Vec<Item<'a>>),
}

impl<'a> Plan<'a> {
    fn read(body: &'a [u8]) -> Result<Self, Error> {
        let body: Body<'a> = json::parse(body)?;
        let positions = positions(&riders(body.positions, "positions must be a list")?)?;
        let kv = kv::operations(&riders(body.kv, "kv must be a list")?, &kv::RIDER)?;
        let timers = timers::read(&riders(body.timers, "timers must be a list")?)?;
        let jobs = riders(body.jobs, "jobs must be a list")?;
        let job = |(index, raw): (usize, &&RawValue)| {
            jobs::enqueue::read(raw.get().as_bytes(), &format!("jobs[{index}]"))?.checked()
        };
        let jobs = jobs.iter().enumerate().map(job).collect::<Result<Vec<_>, Error>>()?;
        let has_riders = !kv.is_empty() || !timers.is_empty() || !positions.is_empty() || !jobs.is_empty();
        let operations = match body.operations {
            List::Not if has_riders => Vec::new(),
            operations => operations.required("operations array required")?,
        };
        if operations.is_empty() && !has_riders {
            return Err(Error::invalid("operations array cannot be empty"));
        }
        let required = required(body.required_leases)?;
        let mut plan = Self { kv, timers, positions, jobs, required, ..Self::default() };
        for raw in operations {
            plan.add(raw)?;
        }
        if plan.len() > BATCH_ITEMS_MAX {
            let message = format!("a transaction holds at most {BATCH_ITEMS_MAX} acks and messages");
            return Err(Error::new(Kind::BatchTooLarge, message));
        }
        plan.fence();
        Ok(plan)
    }

    fn add(&mut self, raw: &'a RawValue) -> Result<(), Error> {
        let text = raw.get().as_bytes();
        let operation: Operation<'a> = json::parse(text)?;
        match operation.kind.required("each operation needs a type: ack or push")?.as_ref() {
            "ack" => {
                let ack: RawAck<'a> = json::parse(text)?;
                self.steps.push(Planned::Ack(ack.checked(&ack::ONE, None)?));
            }
            "push" => self.steps.push(Planned::Push(items(operation.items, text)?)),
            other => {
                let index = self.len();
                self.unknown.get_or_insert_with(|| (index, other.to_owned()));
            }
        }
        Ok(())
    }

    /// Gives an ack without a lease the one that the rest of the request names, if that is only one.
    fn fence(&mut self) {
        let own = self.steps.iter().filter_map(|step| match step {
            Planned::Ack(item) => match item.lease {
                LeaseClaim::None => None,
                LeaseClaim::Held(lease) => Some(Some(lease)),
                LeaseClaim::Unknown => Some(None),
            },
            Planned::Push(_) => None,
        });
        let mut named: Vec<_> = self.required.iter().map(|(_, lease)| *lease).chain(own).collect();
        named.sort_unstable();
        named.dedup();
        let [only] = named[..] else { return };
        let claim = only.map_or(LeaseClaim::Unknown, LeaseClaim::Held);
        for step in &mut self.steps {
            if let Planned::Ack(item) = step
                && item.lease == LeaseClaim::None
            {
                item.lease = claim;
            }
        }
    }

    fn transaction(&self, producer: Option<&str>) -> Result<Transaction, Error> {
        let step = |planned: &Planned<'_>| {
            Ok(match planned {
                Planned::Ack(item) => Step::Ack(item.clone()),
                Planned::Push(items) => {
                    let mut batch = PushBatch::default();
                    items.iter().try_for_each(|item| item.add_to(&mut batch, producer))?;
                    Step::Push(batch)
                }
            })
        };
        let steps = self.steps.iter().map(step).collect::<Result<_, Error>>()?;
        Ok(Transaction {
            steps,
            required_leases: self.required.iter().map(|(_, lease)| *lease).collect(),
            kv: self.kv.iter().map(|named| named.step.clone()).collect(),
            timers: self.timers.iter().map(|named| named.by(producer)).collect(),
            rider: None,
            positions: self.positions.clone(),
            repeatable: None,
        })
    }

    /// What writes the answer to this transaction, also when the body is gone.
    fn writer(&self, id: Uuid, rider: Option<Arc<JobRider>>) -> Arc<WriteAnswer> {
        let step = |planned: &Planned<'_>| match planned {
            Planned::Ack(item) => Planned::Ack(item.clone()),
            Planned::Push(items) => Planned::Push(items.iter().map(Item::without_payload).collect()),
        };
        let plan = Plan {
            steps: self.steps.iter().map(step).collect(),
            kv: self.kv.clone(),
            timers: self.timers.clone(),
            positions: self.positions.clone(),
            ..Plan::default()
        };
        Arc::new(move |result: &TransactionResult| {
            let enqueued = rider.as_ref().map(|rider| rider.came_to().0).unwrap_or_default();
            write(&plan, id, result, &enqueued)
        })
    }

    /// The first queue that is pushed to, and the first partition of which something is acked.
    fn place(&self) -> (Option<&str>, Option<PartitionId>) {
        let queue = self.steps.iter().find_map(|step| match step {
            Planned::Push(items) => items.first().map(|item| &*item.queue),
            Planned::Ack(_) => None,
        });
        let partition = self.steps.iter().find_map(|step| match step {
            Planned::Ack(item) => item.partition,
            Planned::Push(_) => None,
        });
        (queue, partition)
    }

    /// How many acks and messages there are, which is where the results of riders begin.
    fn len(&self) -> usize {
        self.steps.iter().map(Planned::len).sum()
    }
}

/// Operations that stand beside the steps; none when they are absent.
fn riders<'a>(listed: List<&'a RawValue>, message: &str) -> Result<Vec<&'a RawValue>, Error> {
    match listed {
        List::Not => Ok(Vec::new()),
        listed => listed.required(message),
    }
}

/// Where groups are to go on.
fn positions(listed: &[&RawValue]) -> Result<Vec<Place>, Error> {
    if listed.len() > POSITIONS_MAX {
        let message = format!("a transaction holds at most {POSITIONS_MAX} positions");
        return Err(Error::new(Kind::BatchTooLarge, message));
    }
    let position = |raw: &&RawValue| {
        let members = Members::of(raw.get()).ok_or_else(|| Error::invalid("a position must be an object"))?;
        let need = |name| members.need::<String>(name, "a string").map_err(Error::invalid);
        let text = |name| {
            members.get::<Option<String>>(name, "a string").map_err(Error::invalid).map(Option::flatten)
        };
        let (queue, group) = (need("queue")?, need("consumerGroup")?);
        let partition = text("partition")?.unwrap_or_else(|| "Default".into());
        for (what, name) in [("queue", &queue), ("consumerGroup", &group), ("partition", &partition)] {
            names::check(what, name)?;
        }
        if text("metadata")?.is_some_and(|metadata| metadata.len() > METADATA_BYTES_MAX) {
            return Err(Error::invalid(format!("metadata has at most {METADATA_BYTES_MAX} bytes")));
        }
        let wanted = "a whole number from 0, or null";
        let next: Option<u64> = members.need("offset", wanted).map_err(Error::invalid)?;
        Ok(Place { queue, partition, group, next: next.map(Offset) })
    };
    listed.iter().map(position).collect()
}

impl Planned<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Ack(_) => 1,
            Self::Push(items) => items.len(),
        }
    }
}

/// Each with its place in the list, in which null and an empty text name none.
fn required(leases: List<Text<'_>>) -> Result<Vec<(usize, Option<LeaseId>)>, Error> {
    let List::Is(leases) = leases else { return Ok(Vec::new()) };
    let named = |(place, lease): (usize, Text<'_>)| match lease.or_null("requiredLeases must be strings") {
        Ok(text) => text.filter(|text| !text.is_empty()).map(|text| Ok((place, text.parse().ok()))),
        Err(error) => Some(Err(error)),
    };
    leases.into_iter().enumerate().filter_map(named).collect()
}

/// The messages of a push: a list of them, or one that is the operation itself.
fn items<'a>(listed: List<RawItem<'a>>, operation: &'a [u8]) -> Result<Vec<Item<'a>>, Error> {
    let items = match listed {
        List::Not => vec![json::parse::<RawItem<'a>>(operation)?],
        listed => listed.required("items must be an array")?,
    };
    let checked = |item: RawItem<'a>| {
        let fallback = item.data.map_or("{}", Kept::get);
        item.checked(fallback)
    };
    items.into_iter().map(checked).collect()
}

/// Does everything or nothing.
pub(super) fn transaction(mut call: Call) -> Answer {
    Box::pin(async move {
        let body = call.body()?;
        let key = idempotency::key(&call, "transaction", &body)?;
        let mut plan = Plan::read(&body)?;
        let mut mark = ServedByHeaders::default();
        if let Some(routed) = call.routed() {
            let (queue, partition) = plan.place();
            match Box::pin(routed.transaction(queue, partition, &body, key.is_some())).await? {
                Routing::Answered(reply) => return Ok(reply),
                Routing::Here(here) => mark = here,
            }
        }
        let rider = match std::mem::take(&mut plan.jobs) {
            jobs if jobs.is_empty() => None,
            jobs => Some(Arc::new(JobRider::new(call.jobs(), jobs).await?)),
        };
        let id = baton_env::fresh_uuid();
        let mut result = match &plan.unknown {
            Some((index, kind)) => TransactionResult {
                failed_index: Some(*index),
                ..TransactionResult::not_done("bad_request", format!("Unknown operation type: {kind}"))
            },
            None => {
                let mut transaction = plan.transaction(call.caller())?;
                transaction.rider = rider.clone().map(|rider| rider as Arc<dyn Rider>);
                transaction.repeatable =
                    key.map(|key| Repeatable { key, write: plan.writer(id, rider.clone()) });
                call.broker().transaction(transaction).await?
            }
        };
        if result.reason == Some(LEASE) {
            let place = |index: usize| plan.required.get(index).map(|(place, _)| *place);
            result.failed_index = result.failed_index.and_then(place);
        }
        let mut enqueued = Vec::new();
        if let Some(rider) = rider.filter(|_| result.error.is_none() && !result.repeated) {
            let effects;
            (enqueued, effects) = rider.came_to();
            call.jobs().apply_effects(&effects);
        }
        let answer = match result.answer.take() {
            Some(answer) => answer,
            None => write(&plan, id, &result, &enqueued).into(),
        };
        Ok(mark.on(Reply::json(StatusCode::OK, answer)))
    })
}

fn write(plan: &Plan<'_>, id: Uuid, result: &TransactionResult, enqueued: &[Enqueued]) -> Vec<u8> {
    let mut out = Vec::with_capacity(256 + plan.steps.len() * 256);
    out.extend_from_slice(b"{\"transactionId\":");
    json::uuid(&mut out, id);
    out.extend_from_slice(b",\"success\":");
    json::boolean(&mut out, result.error.is_none());
    if let Some(error) = &result.error {
        out.extend_from_slice(b",\"error\":");
        json::string(&mut out, error);
        out.extend_from_slice(b",\"reason\":");
        json::string_or_null(&mut out, result.reason);
        match (&result.precondition, result.failed_index) {
            (Some(lost), index) => kv::write_precondition(&mut out, lost, index.unwrap_or_default()),
            (None, Some(index)) => {
                out.extend_from_slice(b",\"failedIndex\":");
                json::number(&mut out, index as u64);
            }
            (None, None) => {}
        }
    }
    out.extend_from_slice(b",\"results\":[");
    let mut index = 0;
    for (planned, outcome) in plan.steps.iter().zip(&result.results) {
        write_step(&mut out, &mut index, planned, outcome);
    }
    for (place, (named, outcome)) in plan.kv.iter().zip(&result.kv).enumerate() {
        begin(&mut out, &mut index, "kv");
        out.extend_from_slice(b",\"opIndex\":");
        json::number(&mut out, place as u64);
        kv::write(&mut out, named, outcome);
        out.push(b'}');
    }
    for (place, (named, outcome)) in plan.timers.iter().zip(&result.timers).enumerate() {
        begin(&mut out, &mut index, "timer");
        out.extend_from_slice(b",\"opIndex\":");
        json::number(&mut out, place as u64);
        timers::write(&mut out, named, outcome);
        out.push(b'}');
    }
    for (place, position) in plan.positions.iter().enumerate().filter(|_| result.error.is_none()) {
        begin(&mut out, &mut index, "position");
        out.extend_from_slice(b",\"opIndex\":");
        json::number(&mut out, place as u64);
        out.extend_from_slice(b",\"success\":true,\"queue\":");
        json::string(&mut out, &position.queue);
        out.push(b'}');
    }
    for (place, enqueued) in enqueued.iter().enumerate() {
        begin(&mut out, &mut index, "job");
        out.extend_from_slice(b",\"opIndex\":");
        json::number(&mut out, place as u64);
        out.extend_from_slice(b",\"jobId\":");
        json::uuid(&mut out, enqueued.job_id.as_uuid());
        out.extend_from_slice(b",\"state\":");
        json::string(&mut out, enqueued.state.word());
        out.extend_from_slice(b",\"deduplicated\":");
        json::boolean(&mut out, enqueued.deduplicated);
        out.push(b'}');
    }
    out.extend_from_slice(b"]}");
    out
}

fn write_step(out: &mut Vec<u8>, index: &mut u64, planned: &Planned<'_>, outcome: &StepResult) {
    match (planned, outcome) {
        (Planned::Ack(item), StepResult::Ack(acked)) => {
            begin(out, index, "ack");
            ack::write_outcome(out, &item.transaction_id, acked);
            out.push(b'}');
        }
        (Planned::Push(items), StepResult::Push(pushed)) => {
            let next = *index + items.len() as u64;
            for (item, pushed) in items.iter().zip(pushed) {
                begin(out, index, "push");
                out.extend_from_slice(b",\"success\":true");
                if pushed.buffered {
                    // Behind others for its partition that are spooled: it has no place of its own yet.
                    out.extend_from_slice(b",\"status\":\"buffered\",\"queueName\":");
                    json::string(out, &item.queue);
                    out.push(b'}');
                    continue;
                }
                out.extend_from_slice(b",\"transactionId\":");
                item.write_transaction_id(out, pushed);
                out.extend_from_slice(b",\"messageId\":");
                json::uuid(out, pushed.id.as_uuid());
                out.extend_from_slice(b",\"partitionId\":");
                json::number_text(out, pushed.partition.0);
                out.extend_from_slice(b",\"queueName\":");
                json::string(out, &item.queue);
                out.extend_from_slice(b",\"offset\":");
                json::number(out, pushed.offset.0);
                out.extend_from_slice(b",\"duplicate\":");
                json::boolean(out, pushed.duplicate);
                out.push(b'}');
            }
            *index = next;
        }
        // The broker answers each step in kind.
        _ => tracing::error!(?outcome, "a transaction step was answered as another kind of step"),
    }
}

fn begin(out: &mut Vec<u8>, index: &mut u64, kind: &'static str) {
    if !out.ends_with(b"[") {
        out.push(b',');
    }
    out.extend_from_slice(b"{\"index\":");
    json::number(out, *index);
    out.extend_from_slice(b",\"type\":");
    json::string(out, kind);
    *index += 1;
}

#[cfg(test)]
mod tests {
    use baton_queue::{Acked, Pushed};
    use baton_types::{MessageId, Offset, PartitionId, Timestamp};
    use serde_json::Value;

    use super::*;

    const LEASE: &str = "0198a000-0000-7000-8000-000000000001";
    const OTHER: &str = "0198a000-0000-7000-8000-000000000002";

    fn refusal(body: &str) -> String {
        Plan::read(body.as_bytes()).unwrap_err().to_string()
    }

    /// The leases of the acks of a transaction whose acks say `own` and which requires `required`.
    fn leases(own: &[Option<&str>], required: &[&str]) -> Vec<LeaseClaim> {
        let acks: Vec<_> = own
            .iter()
            .map(|lease| serde_json::json!({"type": "ack", "transactionId": "t", "partitionId": "1", "leaseId": lease}))
            .collect();
        let body = serde_json::json!({"operations": acks, "requiredLeases": required}).to_string();
        let plan = Plan::read(body.as_bytes()).unwrap();
        let lease = |step: &Planned<'_>| match step {
            Planned::Ack(item) => item.lease,
            Planned::Push(_) => panic!("only acks"),
        };
        plan.steps.iter().map(lease).collect()
    }

    #[test]
    fn each_mistake_has_its_own_words() {
        assert_eq!(refusal("{}"), "operations array required");
        assert_eq!(refusal(r#"{"operations":[]}"#), "operations array cannot be empty");
        assert_eq!(refusal(r#"{"operations":[{"type":"ack"}]}"#), "transactionId is required");
        assert_eq!(refusal(r#"{"operations":[{"type":"push","items":[{}]}]}"#), "Queue must be a string");
        assert_eq!(refusal(r#"{"operations":[{"type":"push"}]}"#), "Queue must be a string");
        assert!(refusal(r#"{"operations":[{}]}"#).contains("needs a type"));
        assert!(refusal(r#"{"operations":[1],"kv":[{}]}"#).contains("op is missing"));
        assert!(refusal(r#"{"operations":[],"positions":[{}]}"#).contains("queue"));
        let negative = r#"{"positions":[{"queue":"q","consumerGroup":"g","offset":-1}]}"#;
        assert!(refusal(negative).contains("a whole number from 0, or null"));
        let plan = Plan::read(br#"{"operations":[{"type":"jump"}]}"#).unwrap();
        assert_eq!(plan.unknown, Some((0, "jump".to_owned())));
    }

    #[test]
    fn an_ack_without_a_lease_gets_the_only_one_named() {
        let held = |lease: &str| LeaseClaim::Held(lease.parse().unwrap());
        assert_eq!(leases(&[None, None], &[LEASE]), [held(LEASE), held(LEASE)]);
        assert_eq!(leases(&[None, Some(LEASE)], &[]), [held(LEASE), held(LEASE)]);
        assert_eq!(leases(&[None, Some(LEASE)], &[LEASE]), [held(LEASE), held(LEASE)]);
        assert_eq!(leases(&[None, Some(LEASE)], &[OTHER]), [LeaseClaim::None, held(LEASE)]);
        assert_eq!(leases(&[None], &[LEASE, OTHER]), [LeaseClaim::None]);
        assert_eq!(leases(&[None], &[]), [LeaseClaim::None]);
        assert_eq!(leases(&[None], &["gone"]), [LeaseClaim::Unknown]);
    }

    #[test]
    fn a_push_stands_inline_or_in_a_list_and_its_payload_has_two_names() {
        let body = br#"{"operations":[
            {"type":"push","queue":"a","data":{"x": 1}},
            {"type":"push","items":[{"queue":"b"},{"queue":"c","payload":[2 ],"data":3}]}]}"#;
        let plan = Plan::read(body).unwrap();
        let text = format!("{:?}", plan.steps);
        for part in ["\"{\\\"x\\\": 1}\"", "payload: \"{}\"", "payload: \"[2 ]\""] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn results_are_counted_by_item() {
        let body = br#"{"operations":[{"type":"ack","transactionId":"t","partitionId":"1"},
            {"type":"push","items":[{"queue":"b"},{"queue":"c","transactionId":"x"}]}]}"#;
        let plan = Plan::read(body).unwrap();
        let id = MessageId::new(Timestamp::default(), PartitionId(1), Offset(0));
        let pushed =
            Pushed { duplicate: false, buffered: false, partition: PartitionId(1), offset: Offset(0), id };
        let results = vec![StepResult::Ack(Acked::default()), StepResult::Push(vec![pushed, pushed])];
        let result = TransactionResult { results, ..TransactionResult::default() };
        let answer: Value = serde_json::from_slice(&write(&plan, Uuid::nil(), &result, &[])).unwrap();
        let summary: Vec<_> = answer["results"]
            .as_array()
            .unwrap()
            .iter()
            .map(|r| format!("{}{}{}", r["index"], r["type"], r["transactionId"]))
            .collect();
        assert_eq!(
            summary,
            [r#"0"ack""t""#.to_owned(), format!(r#"1"push""{id}""#), r#"2"push""x""#.to_owned()]
        );
        assert_eq!(answer["success"], true);
    }

    #[test]
    fn a_rollback_says_why() {
        let plan = Plan::read(br#"{"operations":[{"type":"push","queue":"q"}]}"#).unwrap();
        let refused = (Some("no".into()), Some("duplicate"));
        let result =
            TransactionResult { error: refused.0, reason: refused.1, ..TransactionResult::default() };
        let answer: Value = serde_json::from_slice(&write(&plan, Uuid::nil(), &result, &[])).unwrap();
        assert_eq!((&answer["success"], &answer["error"]), (&false.into(), &"no".into()));
        assert_eq!((&answer["reason"], &answer["results"]), (&"duplicate".into(), &Value::Array(vec![])));
    }
}
