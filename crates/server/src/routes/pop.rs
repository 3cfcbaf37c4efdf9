//! `GET /api/v1/pop/…`: messages out, under a lease.
//!
//! Always: nothing to give is 204 without a body; the answer is written around the stored payload bytes; a parked
//! pop holds its request and nothing else, and ends when its caller goes away. Start at [`answer`].

use std::time::Duration;

use baton_http::{Query, Reply, moment};
use baton_queue::{Claim, PopRequest, Popped, Subscription, Target};
use baton_store::StoredMessage;
use baton_types::limits::{LEASE_MAX, POP_BATCH_MAX, POP_PARTITIONS_MAX, POP_WAIT_MAX};
use baton_types::{LeaseId, QUEUE_MODE, Timestamp};
use http::StatusCode;

use crate::call::{Answer, Call};
use crate::cluster::{Routing, ServedByHeaders};
use crate::error::Error;
use crate::json;
use crate::names;
use crate::options::Options;

/// Messages of a pop that leaves the choice to the server.
const AUTOPILOT_BATCH: u32 = 200;
/// Partitions of a pop that leaves their number to the server.
const CHOSEN_PARTITIONS_MAX: u32 = 64;
/// The pause that is advised to those who ask again and again without waiting.
const AUTOPILOT_PAUSE_MS: u64 = 100;

/// Where a new group may begin, by the names of Queen.
const SUBSCRIPTION_MODES: [&str; 4] = ["all", "new", "new-only", "from_beginning"];

/// Pops from any partition of a queue.
pub(super) fn queue(mut call: Call) -> Answer {
    let target = Target::Queue(call.take_parameter(0));
    answer(call, Ok(target))
}

/// Pops from one partition.
pub(super) fn partition(mut call: Call) -> Answer {
    let target = Target::Partition { queue: call.take_parameter(0), partition: call.take_parameter(1) };
    answer(call, Ok(target))
}

/// Pops from any queue with the labels given.
pub(super) fn labels(call: Call) -> Answer {
    let target = call.query().and_then(|query| {
        let (namespace, task) = (query.owned("namespace"), query.owned("task"));
        if namespace.is_none() && task.is_none() {
            return Err(Error::invalid("namespace or task is required"));
        }
        Ok(Target::Labels { namespace, task })
    });
    answer(call, target)
}

fn answer(mut call: Call, target: Result<Target, Error>) -> Answer {
    let waiters = call.broker().wait_statistics().waiters;
    let request = target.and_then(|target| {
        let query = call.query()?;
        let mut request = parse(target, &query, &call.app().options)?;
        let chosen = is_on_autopilot(&request, &query)?.then(|| Chosen::by(&mut request, &query, waiters));
        Ok((request, chosen))
    });
    let (broker, routed) = (call.broker().clone(), call.routed());
    Box::pin(async move {
        let (mut request, chosen) = request.map_err(Error::of_pop)?;
        let mut mark = ServedByHeaders::default();
        if let Some(routed) = routed {
            // Boxed, so that a parked pop does not hold it.
            match Box::pin(routed.pop(&mut request)).await {
                Routing::Answered(reply) => return Ok(reply),
                Routing::Here(here) => mark = here,
            }
        }
        let (group, asked) = (request.group.clone(), request.conflation);
        let queue = request.target.queue().filter(|_| asked).map(str::to_owned);
        let popped = broker.pop(request).await.map_err(|e| Error::from(e).of_pop())?;
        let reply = match (popped, queue) {
            (Some(popped), _) => {
                mark.note(&popped);
                Reply::json(StatusCode::OK, write(&popped, &group, asked, chosen))
            }
            // Whoever asks for the newest only is told, also when there is nothing, that this is understood.
            (None, Some(queue)) => {
                let conflation = broker.conflation(&queue, &group).await?.unwrap_or(asked);
                Reply::json(StatusCode::OK, write_empty(&queue, &group, asked, conflation))
            }
            (None, None) => Reply::nothing(),
        };
        Ok(mark.on(reply))
    })
}

/// What the server chose for a pop that left the choice to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Chosen {
    partitions: u32,
    batch: u32,
}

fn is_on_autopilot(request: &PopRequest, query: &Query<'_>) -> Result<bool, Error> {
    let has_choice = request.group != QUEUE_MODE && matches!(request.target, Target::Queue(_));
    Ok(query.flag("autopilot")? && has_choice)
}

impl Chosen {
    /// Chooses what was not given: partitions are shared out among those who wait.
    fn by(request: &mut PopRequest, query: &Query<'_>, waiters: usize) -> Self {
        if query.text("partitions").is_none() && !request.conflation {
            let share = CHOSEN_PARTITIONS_MAX / u32::try_from(waiters + 1).unwrap_or(u32::MAX);
            request.partitions = share.max(1);
        }
        Self { partitions: request.partitions, batch: request.batch }
    }
}

fn parse(target: Target, query: &Query<'_>, options: &Options) -> Result<PopRequest, Error> {
    check_names(&target)?;
    // `group` is what the design of the cluster calls it.
    let group = query.text("consumerGroup").or_else(|| query.text("group")).unwrap_or(QUEUE_MODE);
    names::check("consumerGroup", group)?;
    let auto_ack = query.flag("autoAck")? || query.flag("commitOnDelivery")?;
    let conflation = query.flag("conflation")?;
    if conflation {
        check_conflation(&target, group, auto_ack)?;
    }
    let batch = query.number("batch", 1, POP_BATCH_MAX.into())?;
    let default_batch = if query.flag("autopilot")? { AUTOPILOT_BATCH } else { options.default_batch_size };
    let batch = batch.and_then(|n| u32::try_from(n).ok()).unwrap_or(default_batch);
    let partitions = query.number("partitions", 1, POP_PARTITIONS_MAX.into())?;
    let waits = query.flag("wait")?;
    let default_partitions = if conflation { batch.min(CHOSEN_PARTITIONS_MAX) } else { 1 };
    Ok(PopRequest {
        target,
        group: group.to_owned(),
        batch,
        partitions: partitions.and_then(|n| u32::try_from(n).ok()).unwrap_or(default_partitions),
        auto_ack,
        conflation,
        wait: Some(wait(query, options)?).filter(|wait| waits && !wait.is_zero()),
        lease: query
            .number("leaseSeconds", 0, LEASE_MAX.as_secs())?
            .filter(|seconds| *seconds > 0)
            .map(Duration::from_secs),
        subscription: subscription(group, query, options)?,
        attempt: None,
    })
}

fn check_conflation(target: &Target, group: &str, auto_ack: bool) -> Result<(), Error> {
    if group == QUEUE_MODE {
        return Err(Error::invalid("conflation needs a consumerGroup"));
    }
    if auto_ack {
        return Err(Error::invalid("conflation and autoAck exclude each other"));
    }
    if target.queue().is_none() {
        return Err(Error::invalid("conflation needs a queue"));
    }
    Ok(())
}

fn check_names(target: &Target) -> Result<(), Error> {
    match target {
        Target::Queue(queue) => names::check("queue", queue),
        Target::Partition { queue, partition } => {
            names::check("queue", queue)?;
            names::check("partition", partition)
        }
        Target::Labels { namespace, task } => {
            names::check("namespace", namespace.as_deref().unwrap_or_default())?;
            names::check("task", task.as_deref().unwrap_or_default())
        }
    }
}

fn wait(query: &Query<'_>, options: &Options) -> Result<Duration, Error> {
    let max = u64::try_from(POP_WAIT_MAX.as_millis()).unwrap_or(u64::MAX);
    let timeout = query.number("timeout", 0, max)?.map(Duration::from_millis);
    Ok(timeout.unwrap_or(options.default_timeout.min(POP_WAIT_MAX)))
}

/// Where the group begins if it is new. Consumers without a group never skip anything.
fn subscription(group: &str, query: &Query<'_>, options: &Options) -> Result<Subscription, Error> {
    let from = match query.text("subscriptionFrom") {
        None => None,
        Some("now") => Some(Subscription::New),
        Some(text) => Some(Subscription::From(moment("subscriptionFrom", text)?)),
    };
    let mode = query.one_of("subscriptionMode", &SUBSCRIPTION_MODES)?;
    if group == QUEUE_MODE {
        return Ok(Subscription::All);
    }
    Ok(from.unwrap_or(match mode {
        None => options.default_subscription,
        Some("new" | "new-only") => Subscription::New,
        Some(_) => Subscription::All,
    }))
}

/// Writes the answer to a pop that found something.
fn write(popped: &Popped, group: &str, asked: bool, chosen: Option<Chosen>) -> Vec<u8> {
    let (messages, payload) = popped
        .claims
        .iter()
        .flat_map(|claim| &claim.messages)
        .fold((0, 0), |(messages, bytes), message| (messages + 1, bytes + message.payload.len()));
    let mut out = Vec::with_capacity(512 + messages * 480 + payload);
    let mut place = Vec::with_capacity(256);
    if let Some(first) = popped.claims.first() {
        write_place(&mut place, first, popped.lease, group);
    }
    out.extend_from_slice(b"{\"success\":true");
    out.extend_from_slice(&place);
    out.extend_from_slice(b",\"partitionsClaimed\":");
    json::number(&mut out, popped.claims.len() as u64);
    write_conflation(&mut out, asked, popped.conflation);
    if let Some(chosen) = chosen {
        out.extend_from_slice(b",\"autopilot\":{\"partitions\":");
        json::number(&mut out, chosen.partitions.into());
        out.extend_from_slice(b",\"batch\":");
        json::number(&mut out, chosen.batch.into());
        out.extend_from_slice(b",\"waitMs\":");
        json::number(&mut out, AUTOPILOT_PAUSE_MS);
        out.push(b'}');
    }
    out.extend_from_slice(b",\"messages\":[");
    let mut writer = MessageWriter::default();
    for (index, claim) in popped.claims.iter().enumerate() {
        if index > 0 {
            place.clear();
            write_place(&mut place, claim, popped.lease, group);
        }
        for message in &claim.messages {
            writer.write(&mut out, message, claim.attempt, &place);
        }
    }
    out.extend_from_slice(b"]}");
    out
}

/// Writes the answer to a pop that asked for the newest only and found nothing.
fn write_empty(queue: &str, group: &str, asked: bool, conflation: bool) -> Vec<u8> {
    let mut out = b"{\"success\":true,\"queue\":".to_vec();
    json::string(&mut out, queue);
    out.extend_from_slice(b",\"consumerGroup\":");
    json::string(&mut out, group);
    out.extend_from_slice(b",\"partitionsClaimed\":0");
    write_conflation(&mut out, asked, conflation);
    out.extend_from_slice(b",\"messages\":[]}");
    out
}

/// Tells whether only the newest is given, or that the group was set up otherwise than is asked for now.
fn write_conflation(out: &mut Vec<u8>, asked: bool, conflation: bool) {
    out.extend_from_slice(match (asked, conflation) {
        (true, true) => b",\"conflation\":true",
        (false, false) => b"",
        _ => b",\"conflationConflict\":true",
    });
}

/// Writes the members that all messages of a claim share, each with a comma before it.
fn write_place(out: &mut Vec<u8>, claim: &Claim, lease: Option<LeaseId>, group: &str) {
    out.extend_from_slice(b",\"queue\":");
    json::string(out, &claim.queue);
    out.extend_from_slice(b",\"partition\":");
    json::string(out, &claim.partition_name);
    out.extend_from_slice(b",\"partitionId\":");
    json::number_text(out, claim.partition.0);
    out.extend_from_slice(b",\"leaseId\":");
    match lease {
        Some(lease) => json::uuid(out, lease.0),
        None => out.extend_from_slice(b"\"\""),
    }
    out.extend_from_slice(b",\"consumerGroup\":");
    json::string(out, group);
}

/// Writes messages.
#[derive(Default)]
struct MessageWriter {
    /// The last moment written, and its text.
    moment: Option<(Timestamp, String)>,
    begun: bool,
}

impl MessageWriter {
    /// Writes a message that was given `attempt` times, and the members that it shares with others of its `place`.
    fn write(&mut self, out: &mut Vec<u8>, message: &StoredMessage, attempt: u32, place: &[u8]) {
        if self.begun {
            out.push(b',');
        }
        self.begun = true;
        let id = message.id().as_uuid();
        out.extend_from_slice(b"{\"id\":");
        json::uuid(out, id);
        out.extend_from_slice(b",\"transactionId\":");
        match &message.transaction_id {
            Some(text) => json::string_bytes(out, text),
            None => json::uuid(out, id),
        }
        out.extend_from_slice(b",\"traceId\":");
        json::uuid_or_null(out, message.trace_id);
        out.extend_from_slice(b",\"data\":");
        out.extend_from_slice(if message.payload.is_empty() { b"null" } else { &message.payload });
        out.extend_from_slice(b",\"producerSub\":");
        match &message.producer {
            Some(producer) => json::string_bytes(out, producer),
            None => out.extend_from_slice(b"null"),
        }
        out.extend_from_slice(b",\"createdAt\":\"");
        out.extend_from_slice(self.moment_text(message.created_at).as_bytes());
        out.extend_from_slice(b"\",\"offset\":");
        json::number(out, message.offset.0);
        out.extend_from_slice(place);
        out.extend_from_slice(b",\"deliveryAttempt\":");
        json::number(out, attempt.into());
        out.push(b'}');
    }

    fn moment_text(&mut self, moment: Timestamp) -> &str {
        if !matches!(&self.moment, Some((last, _)) if *last == moment) {
            self.moment = None;
        }
        &self.moment.get_or_insert_with(|| (moment, moment.to_iso_micros())).1
    }
}

#[cfg(test)]
mod tests {
    use baton_types::{Offset, PartitionId};
    use bytes::Bytes;
    use serde_json::{Value, json};

    use super::*;

    fn request(query: &str) -> Result<PopRequest, Error> {
        let options = Options { default_subscription: Subscription::New, ..Options::default() };
        parse(Target::Queue("q".into()), &Query::parse(query)?, &options)
    }

    #[test]
    fn a_pop_that_says_nothing_takes_one_message_at_once() {
        let pop = request("").unwrap();
        assert_eq!((pop.batch, pop.partitions, pop.wait, pop.lease), (1, 1, None, None));
        assert_eq!(
            (pop.group.as_str(), pop.auto_ack, pop.subscription),
            (QUEUE_MODE, false, Subscription::All)
        );
    }

    #[test]
    fn numbers_stay_within_their_limits() {
        let pop =
            request("batch=999999999999&partitions=-3&wait=1&timeout=99999999999&leaseSeconds=5").unwrap();
        assert_eq!((pop.batch, pop.partitions, pop.wait), (POP_BATCH_MAX, 1, Some(POP_WAIT_MAX)));
        assert_eq!(pop.lease, Some(Duration::from_secs(5)));
        assert!(request("wait=true&timeout=soon").is_err());
        assert_eq!(request("wait=true&timeout=").unwrap().wait, Some(Duration::from_secs(30)));
        assert_eq!(request("wait=false&timeout=5").unwrap().wait, None);
        assert_eq!(request("autopilot=true").unwrap().batch, 200);
        assert_eq!(request("autopilot=true&batch=7").unwrap().batch, 7);
    }

    #[test]
    fn a_new_group_begins_where_it_says() {
        let start = |query: &str| request(&format!("consumerGroup=g&{query}")).unwrap().subscription;
        assert_eq!(start(""), Subscription::New);
        assert_eq!(start("subscriptionMode=all"), Subscription::All);
        assert!(request("consumerGroup=g&subscriptionMode=whatever").is_err());
        assert_eq!(start("subscriptionMode=new-only"), Subscription::New);
        assert_eq!(start("subscriptionMode=all&subscriptionFrom=now"), Subscription::New);
        let from = start("subscriptionFrom=2026-11-15T18:34:07Z");
        assert!(matches!(from, Subscription::From(t) if t.to_iso_millis() == "2026-11-15T18:34:07.000Z"));
        assert!(request("consumerGroup=g&subscriptionFrom=tomorrow").is_err());
        assert_eq!(request("group=g").unwrap().group, "g");
        assert_eq!(request("group=other&consumerGroup=g").unwrap().group, "g");
        assert_eq!(request("subscriptionMode=new").unwrap().subscription, Subscription::All);
    }

    #[test]
    fn what_excludes_each_other_is_refused() {
        let refusal = |query: &str| request(query).unwrap_err().to_string();
        assert_eq!(refusal("conflation=true"), "conflation needs a consumerGroup");
        assert!(refusal("conflation=true&consumerGroup=g&autoAck=true").contains("exclude each other"));
        let pop = request("conflation=true&consumerGroup=g&batch=90").unwrap();
        assert_eq!((pop.conflation, pop.batch, pop.partitions), (true, 90, CHOSEN_PARTITIONS_MAX));
        assert!(request("frames=true").is_ok());
        assert!(request(&format!("consumerGroup={}", "g".repeat(256))).is_err());
    }

    fn claim(partition: u64, messages: Vec<StoredMessage>) -> Claim {
        Claim {
            queue: "q".into(),
            partition: PartitionId(partition),
            partition_name: format!("p{partition}").into(),
            attempt: 2,
            messages,
        }
    }

    fn message(partition: u64, offset: u64, payload: &'static str) -> StoredMessage {
        StoredMessage {
            partition: PartitionId(partition),
            offset: Offset(offset),
            created_at: Timestamp::from_micros(1_794_767_647_638_487),
            transaction_id: (offset == 1).then(|| Bytes::from_static(b"t\"1")),
            trace_id: None,
            producer: None,
            payload: Bytes::from_static(payload.as_bytes()),
        }
    }

    #[test]
    fn an_answer_is_written_around_the_payloads() {
        let claims = vec![
            claim(1, vec![message(1, 0, "{ \"n\" : 1 }"), message(1, 1, "")]),
            claim(2, vec![message(2, 9, "[1.0]")]),
        ];
        let lease: LeaseId = "0198a000-0000-7000-8000-000000000000".parse().unwrap();
        let chosen = Some(Chosen { partitions: 3, batch: 200 });
        let body = write(&Popped { lease: Some(lease), claims, conflation: false }, "g", false, chosen);
        let text = String::from_utf8(body).unwrap();
        assert!(text.contains("\"data\":{ \"n\" : 1 },"), "{text}");
        let answer: Value = serde_json::from_str(&text).unwrap();
        let head = json!({"success": true, "queue": "q", "partition": "p1", "partitionId": "1",
            "leaseId": lease.to_string(), "consumerGroup": "g", "partitionsClaimed": 2,
            "autopilot": {"partitions": 3, "batch": 200, "waitMs": 100}});
        for (key, value) in head.as_object().unwrap() {
            assert_eq!(&answer[key], value, "{key}");
        }
        assert_eq!(answer["messages"].as_array().unwrap().len(), 3);
        assert_eq!(answer["messages"][1]["transactionId"], "t\"1");
        assert_eq!(answer["messages"][1]["data"], Value::Null);
        let last = &answer["messages"][2];
        let expected = json!({"id": message(2, 9, "").id().to_string(),
            "transactionId": message(2, 9, "").id().to_string(), "traceId": null, "data": [1.0],
            "producerSub": null, "createdAt": "2026-11-15T18:34:07.638487Z", "offset": 9, "queue": "q",
            "partition": "p2", "partitionId": "2", "leaseId": lease.to_string(), "consumerGroup": "g",
            "deliveryAttempt": 2});
        assert_eq!(last, &expected);
    }

    #[test]
    fn after_an_automatic_ack_there_is_no_lease() {
        let claims = vec![claim(1, vec![message(1, 0, "1")])];
        let popped = Popped { lease: None, claims, conflation: false };
        let answer: Value = serde_json::from_slice(&write(&popped, "g", false, None)).unwrap();
        assert_eq!((&answer["leaseId"], &answer["messages"][0]["leaseId"]), (&json!(""), &json!("")));
    }
}
