//! `GET /api/v1/pop/…`: messages out, under a lease.
//!
//! Always: nothing to give is 204 without a body; the answer is written around the stored payload bytes; a parked
//! pop holds its request and nothing else, and ends when its caller goes away. Start at [`answer`].

use std::time::Duration;

use baton_queue::{Claim, PopRequest, Popped, Subscription, Target};
use baton_store::MessageView;
use baton_types::limits::{LEASE_MAX, POP_BATCH_MAX, POP_PARTITIONS_MAX, POP_WAIT_MAX};
use baton_types::{LeaseId, QUEUE_MODE, Timestamp};
use http::StatusCode;

use crate::call::{Answer, Call};
use crate::cluster::{Mark, Way};
use crate::error::Error;
use crate::json;
use crate::names;
use crate::query::{self, Query};
use crate::reply::Reply;
use crate::server::Options;

/// Messages of a pop that leaves the choice to the server.
const AUTOPILOT_BATCH: u32 = 200;

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
    let request = target.and_then(|target| parse(target, &call.query()?, &call.app().options));
    let (broker, routed) = (call.broker().clone(), call.routed());
    Box::pin(async move {
        let mut request = request.map_err(Error::of_pop)?;
        let mut mark = Mark::default();
        if let Some(routed) = routed {
            // Boxed, so that a parked pop does not hold it.
            match Box::pin(routed.pop(&mut request)).await {
                Way::Answered(reply) => return Ok(reply),
                Way::Here(here) => mark = here,
            }
        }
        let group = request.group.clone();
        let popped = broker.pop(request).await.map_err(|e| Error::from(e).of_pop())?;
        let reply = match popped {
            Some(popped) if popped.claims.iter().any(|claim| !claim.messages.is_empty()) => {
                mark.note(&popped);
                Reply::json(StatusCode::OK, write(&popped, &group))
            }
            _ => Reply::nothing(),
        };
        Ok(mark.on(reply))
    })
}

fn parse(target: Target, query: &Query<'_>, options: &Options) -> Result<PopRequest, Error> {
    if query.flag("conflation") {
        return Err(Error::invalid("conflation is not supported"));
    }
    check_names(&target)?;
    let group = query.text("consumerGroup").unwrap_or(QUEUE_MODE);
    names::check("consumerGroup", group)?;
    let batch = query.number("batch", 1, POP_BATCH_MAX.into());
    let default_batch = if query.flag("autopilot") { AUTOPILOT_BATCH } else { options.default_batch_size };
    let partitions = query.number("partitions", 1, POP_PARTITIONS_MAX.into());
    Ok(PopRequest {
        target,
        group: group.to_owned(),
        batch: batch.and_then(|n| u32::try_from(n).ok()).unwrap_or(default_batch),
        partitions: partitions.and_then(|n| u32::try_from(n).ok()).unwrap_or(1),
        auto_ack: query.flag("autoAck") || query.flag("commitOnDelivery"),
        wait: query.flag("wait").then(|| wait(query, options)).filter(|wait| !wait.is_zero()),
        lease: query
            .number("leaseSeconds", 0, LEASE_MAX.as_secs())
            .filter(|seconds| *seconds > 0)
            .map(Duration::from_secs),
        subscription: subscription(group, query, options)?,
        attempt: None,
    })
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

fn wait(query: &Query<'_>, options: &Options) -> Duration {
    let max = u64::try_from(POP_WAIT_MAX.as_millis()).unwrap_or(u64::MAX);
    query.number("timeout", 0, max).map_or(options.default_timeout.min(POP_WAIT_MAX), Duration::from_millis)
}

/// Where the group begins if it is new. Consumers without a group never skip anything.
fn subscription(group: &str, query: &Query<'_>, options: &Options) -> Result<Subscription, Error> {
    let from = match query.text("subscriptionFrom") {
        None => None,
        Some("now") => Some(Subscription::New),
        Some(text) => Some(Subscription::From(query::moment("subscriptionFrom", text)?)),
    };
    if group == QUEUE_MODE {
        return Ok(Subscription::All);
    }
    Ok(from.unwrap_or_else(|| match query.text("subscriptionMode") {
        None => options.default_subscription,
        Some("new" | "new-only") => Subscription::New,
        Some(_) => Subscription::All,
    }))
}

/// Writes the answer to a pop that found something.
fn write(popped: &Popped, group: &str) -> Vec<u8> {
    let (messages, payload) = popped
        .claims
        .iter()
        .flat_map(|claim| &claim.messages)
        .fold((0, 0), |(messages, bytes), message| (messages + 1, bytes + message.payload.len()));
    let mut out = Vec::with_capacity(512 + messages * 480 + payload);
    out.extend_from_slice(b"{\"success\":true");
    if let Some(first) = popped.claims.first() {
        write_place(&mut out, first, popped.lease, group);
    }
    out.extend_from_slice(b",\"partitionsClaimed\":");
    json::number(&mut out, popped.claims.len() as u64);
    out.extend_from_slice(b",\"messages\":[");
    let mut writer = MessageWriter::default();
    for claim in &popped.claims {
        writer.enter(claim, popped.lease, group);
        for message in &claim.messages {
            writer.write(&mut out, message);
        }
    }
    out.extend_from_slice(b"]}");
    out
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

/// Writes messages; what many of them share is prepared once.
#[derive(Default)]
struct MessageWriter {
    /// The end of every message of the claim.
    shared: Vec<u8>,
    /// The last moment written, and its text.
    moment: Option<(Timestamp, String)>,
    begun: bool,
}

impl MessageWriter {
    fn enter(&mut self, claim: &Claim, lease: Option<LeaseId>, group: &str) {
        self.shared.clear();
        write_place(&mut self.shared, claim, lease, group);
        self.shared.extend_from_slice(b",\"deliveryAttempt\":");
        json::number(&mut self.shared, claim.attempt.into());
        self.shared.push(b'}');
    }

    fn write(&mut self, out: &mut Vec<u8>, message: &MessageView) {
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
        out.extend_from_slice(&self.shared);
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
        assert_eq!(request("wait=true&timeout=soon").unwrap().wait, Some(Duration::from_secs(30)));
        assert_eq!(request("wait=false&timeout=5").unwrap().wait, None);
        assert_eq!(request("autopilot=true").unwrap().batch, 200);
        assert_eq!(request("autopilot=true&batch=7").unwrap().batch, 7);
    }

    #[test]
    fn a_new_group_begins_where_it_says() {
        let start = |query: &str| request(&format!("consumerGroup=g&{query}")).unwrap().subscription;
        assert_eq!(start(""), Subscription::New);
        assert_eq!(start("subscriptionMode=all"), Subscription::All);
        assert_eq!(start("subscriptionMode=whatever"), Subscription::All);
        assert_eq!(start("subscriptionMode=new-only"), Subscription::New);
        assert_eq!(start("subscriptionMode=all&subscriptionFrom=now"), Subscription::New);
        let from = start("subscriptionFrom=2026-11-15T18:34:07Z");
        assert!(matches!(from, Subscription::From(t) if t.to_iso_millis() == "2026-11-15T18:34:07.000Z"));
        assert!(request("consumerGroup=g&subscriptionFrom=tomorrow").is_err());
        assert_eq!(request("subscriptionMode=new").unwrap().subscription, Subscription::All);
    }

    #[test]
    fn what_is_not_supported_is_refused() {
        assert_eq!(request("conflation=true").unwrap_err().to_string(), "conflation is not supported");
        assert!(request("frames=true").is_ok());
        assert!(request(&format!("consumerGroup={}", "g".repeat(256))).is_err());
    }

    fn claim(partition: u64, messages: Vec<MessageView>) -> Claim {
        Claim {
            queue: "q".into(),
            partition: PartitionId(partition),
            partition_name: format!("p{partition}").into(),
            attempt: 2,
            messages,
        }
    }

    fn message(partition: u64, offset: u64, payload: &'static str) -> MessageView {
        MessageView {
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
        let body = write(&Popped { lease: Some(lease), claims }, "g");
        let text = String::from_utf8(body).unwrap();
        assert!(text.contains("\"data\":{ \"n\" : 1 },"), "{text}");
        let answer: Value = serde_json::from_str(&text).unwrap();
        let head = json!({"success": true, "queue": "q", "partition": "p1", "partitionId": "1",
            "leaseId": lease.to_string(), "consumerGroup": "g", "partitionsClaimed": 2});
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
        let popped = Popped { lease: None, claims: vec![claim(1, vec![message(1, 0, "1")])] };
        let answer: Value = serde_json::from_slice(&write(&popped, "g")).unwrap();
        assert_eq!((&answer["leaseId"], &answer["messages"][0]["leaseId"]), (&json!(""), &json!("")));
    }
}
