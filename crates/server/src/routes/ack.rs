//! `POST /api/v1/ack` and `/ack/batch`: what became of messages.
//!
//! Always: the answer is a list, one entry per ack in the order given, with status 200 whatever became of each;
//! only a request that cannot be read is an error. Start at [`RawAck::checked`].

use baton_http::Reply;
use baton_queue::{AckItem, Acked, LeaseClaim};
use baton_types::QUEUE_MODE;
use baton_types::wire::AckStatus;
use http::StatusCode;
use serde_json::value::RawValue;

use crate::call::{Answer, Call};
use crate::cluster::{Routing, ServedByHeaders};
use crate::error::Error;
use crate::ignored::Ignored;
use crate::json::{self, List, Text, lenient};
use crate::names;

lenient! {
    /// An ack as it was sent.
    pub(super) struct RawAck<'a> {
        "transactionId" => transaction_id: Text<'a>,
        "partitionId" => partition_id: Text<'a>,
        "leaseId" => lease_id: Text<'a>,
        "status" => status: Text<'a>,
        "consumerGroup" => consumer_group: Text<'a>,
        "error" => error: Option<&'a RawValue>,
    }
}

lenient! {
    struct Batch<'a> {
        "acknowledgments" => acknowledgments: List<RawAck<'a>>,
        "consumerGroup" => consumer_group: Text<'a>,
    }
}

/// The words for what is missing, which differ between the routes.
pub(super) struct Words {
    transaction: &'static str,
    partition: &'static str,
}

/// The words of the route for one ack, and of a transaction.
pub(super) const ONE: Words = Words {
    transaction: "transactionId is required",
    partition: "partitionId is required to ensure message uniqueness",
};

const EACH: Words = Words {
    transaction: "Each acknowledgment must have a valid transactionId string",
    partition: "Each acknowledgment must have a valid partitionId string to ensure message uniqueness",
};

const GROUP: &str = "consumerGroup must be a string";

impl RawAck<'_> {
    /// The ack, for `group` unless that is `None`.
    pub(super) fn checked(self, words: &Words, group: Option<&str>) -> Result<AckItem, Error> {
        let transaction_id = self.transaction_id.required(words.transaction)?;
        let partition_id = self.partition_id.required(words.partition)?;
        let own_group = self.consumer_group.or_null(GROUP)?.filter(|group| !group.is_empty());
        let group = group.or(own_group.as_deref()).unwrap_or(QUEUE_MODE);
        names::check("consumerGroup", group)?;
        names::check_transaction_id(&transaction_id)?;
        Ok(AckItem {
            partition: partition_id.parse().ok(),
            transaction_id: transaction_id.into_owned(),
            group: group.to_owned(),
            lease: lease(self.lease_id)?,
            status: status(&self.status),
            error: self.error.map(error_text),
        })
    }
}

fn lease(text: Text<'_>) -> Result<LeaseClaim, Error> {
    Ok(match text.or_null("leaseId must be a string")?.as_deref() {
        None | Some("") => LeaseClaim::None,
        Some(id) => id.parse().map_or(LeaseClaim::Unknown, LeaseClaim::Held),
    })
}

fn status(text: &Text<'_>) -> AckStatus {
    match text {
        Text::Absent | Text::Null => AckStatus::Completed,
        Text::Other => AckStatus::Failed,
        Text::Is(word) => match word.as_ref() {
            "completed" | "success" | "acked" | "ok" => AckStatus::Completed,
            "retry" => AckStatus::Retry,
            "dlq" => AckStatus::Dlq,
            _ => AckStatus::Failed,
        },
    }
}

/// A string as its text, anything else as its JSON.
fn error_text(error: &RawValue) -> String {
    serde_json::from_str(error.get()).unwrap_or_else(|_| error.get().to_owned())
}

/// Acks one message.
pub(super) fn one(mut call: Call) -> Answer {
    Box::pin(async move {
        let body = call.body()?;
        let (ack, ignored) = json::parse_noting::<RawAck<'_>>(&body)?;
        let item = ack.checked(&ONE, None)?;
        answer(&mut call, vec![item], &body).await.map(|reply| ignored.list_in(reply))
    })
}

/// Acks several messages.
pub(super) fn batch(mut call: Call) -> Answer {
    Box::pin(async move {
        let body = call.body()?;
        let (items, ignored) = parse_batch(&body)?;
        if items.is_empty() {
            return Ok(ignored.list_in(Reply::json(StatusCode::OK, "[]")));
        }
        answer(&mut call, items, &body).await.map(|reply| ignored.list_in(reply))
    })
}

/// The acks of a call, and the names of members that it ignores.
fn parse_batch(body: &[u8]) -> Result<(Vec<AckItem>, Ignored), Error> {
    let (batch, ignored) = json::parse_noting::<Batch<'_>>(body)?;
    let acks = batch.acknowledgments.required("acknowledgments array is required")?;
    let group = batch.consumer_group.or_null(GROUP)?.filter(|group| !group.is_empty());
    let items = acks.into_iter().map(|ack| ack.checked(&EACH, group.as_deref()));
    Ok((items.collect::<Result<_, _>>()?, ignored))
}

async fn answer(call: &mut Call, items: Vec<AckItem>, body: &[u8]) -> Result<Reply, Error> {
    let mut mark = ServedByHeaders::default();
    if let Some(routed) = call.routed() {
        match Box::pin(routed.ack(&items, body)).await? {
            Routing::Answered(reply) => return Ok(reply),
            Routing::Here(here) => mark = here,
        }
    }
    let ids: Vec<String> = items.iter().map(|item| item.transaction_id.clone()).collect();
    let acked = call.broker().ack(items).await?;
    Ok(mark.on(Reply::json(StatusCode::OK, write(&ids, &acked))))
}

fn write(ids: &[String], acked: &[Acked]) -> Vec<u8> {
    let mut out = Vec::with_capacity(2 + ids.len() * 240);
    out.push(b'[');
    for (index, (id, acked)) in ids.iter().zip(acked).enumerate() {
        if index > 0 {
            out.push(b',');
        }
        out.extend_from_slice(b"{\"index\":");
        json::number(&mut out, index as u64);
        write_outcome(&mut out, id, acked);
        out.extend_from_slice(b",\"queueName\":");
        json::string_or_null(&mut out, acked.queue.as_deref());
        out.extend_from_slice(b",\"partitionName\":");
        json::string_or_null(&mut out, acked.partition_name.as_deref());
        out.extend_from_slice(b",\"leaseReleased\":");
        json::boolean(&mut out, acked.lease_released);
        out.extend_from_slice(b",\"noop\":");
        json::boolean(&mut out, acked.noop);
        if acked.conflated > 0 {
            out.extend_from_slice(b",\"conflated\":");
            json::number(&mut out, acked.conflated);
        }
        out.push(b'}');
    }
    out.push(b']');
    out
}

/// Writes the members that an ack and an ack inside a transaction share, each with a comma before it.
pub(super) fn write_outcome(out: &mut Vec<u8>, transaction_id: &str, acked: &Acked) {
    out.extend_from_slice(b",\"transactionId\":");
    json::string(out, transaction_id);
    out.extend_from_slice(b",\"success\":");
    json::boolean(out, acked.error.is_none());
    out.extend_from_slice(b",\"error\":");
    json::string_or_null(out, acked.error);
    out.extend_from_slice(b",\"dlq\":");
    json::boolean(out, acked.dead_lettered);
}

#[cfg(test)]
mod tests {
    use baton_types::PartitionId;
    use serde_json::{Value, json};

    use super::*;

    fn one(body: &str) -> Result<AckItem, Error> {
        json::parse::<RawAck<'_>>(body.as_bytes())?.checked(&ONE, None)
    }

    #[test]
    fn null_counts_as_absent() {
        let body = r#"{"transactionId":"t","partitionId":"12","leaseId":null,"status":null,"consumerGroup":null,"error":null}"#;
        let item = one(body).unwrap();
        assert_eq!((item.partition, item.group.as_str()), (Some(PartitionId(12)), QUEUE_MODE));
        assert_eq!((item.lease, item.status, item.error), (LeaseClaim::None, AckStatus::Completed, None));
    }

    #[test]
    fn each_mistake_has_its_own_words() {
        let refusal = |body: &str| one(body).unwrap_err().to_string();
        assert_eq!(refusal(r#"{"partitionId":"1"}"#), "transactionId is required");
        assert_eq!(refusal("[]"), "transactionId is required");
        assert_eq!(refusal(r#"{"transactionId":"t"}"#), ONE.partition);
        assert_eq!(refusal(r#"{"transactionId":"t","partitionId":5}"#), ONE.partition);
        assert_eq!(parse_batch(b"{}").unwrap_err().to_string(), "acknowledgments array is required");
        let batch = parse_batch(br#"{"acknowledgments":[{"transactionId":null}]}"#);
        assert_eq!(batch.unwrap_err().to_string(), EACH.transaction);
        assert!(parse_batch(br#"{"acknowledgments":[]}"#).unwrap().0.is_empty());
    }

    #[test]
    fn an_unknown_word_is_a_failure() {
        let of = |status: &str| {
            one(&format!(r#"{{"transactionId":"t","partitionId":"1","status":{status}}}"#)).unwrap().status
        };
        for word in ["\"completed\"", "\"success\"", "\"acked\"", "\"ok\"", "null"] {
            assert_eq!(of(word), AckStatus::Completed, "{word}");
        }
        assert_eq!(of("\"retry\""), AckStatus::Retry);
        assert_eq!(of("\"dlq\""), AckStatus::Dlq);
        for word in ["\"failed\"", "\"Completed\"", "7", "{}"] {
            assert_eq!(of(word), AckStatus::Failed, "{word}");
        }
    }

    #[test]
    fn a_text_that_is_no_id_is_no_live_lease_and_no_partition() {
        let item =
            one(r#"{"transactionId":"t","partitionId":"8d32-x","leaseId":"nonsense","error":{"a": 1}}"#)
                .unwrap();
        assert_eq!((item.partition, item.lease), (None, LeaseClaim::Unknown));
        assert_eq!(item.error.as_deref(), Some("{\"a\": 1}"));
    }

    #[test]
    fn the_group_of_the_batch_goes_before_that_of_an_item() {
        let group = |body: &str| parse_batch(body.as_bytes()).unwrap().0.remove(0).group;
        let item = r#"{"transactionId":"t","partitionId":"1","consumerGroup":"own"}"#;
        assert_eq!(group(&format!(r#"{{"acknowledgments":[{item}],"consumerGroup":"all"}}"#)), "all");
        assert_eq!(group(&format!(r#"{{"acknowledgments":[{item}],"consumerGroup":null}}"#)), "own");
    }

    #[test]
    fn an_answer_tells_what_became_of_each() {
        let acked = [
            Acked {
                queue: Some("q".into()),
                partition_name: Some("a".into()),
                lease_released: true,
                ..Acked::default()
            },
            Acked { error: Some("Message not found"), ..Acked::default() },
        ];
        let answer: Value = serde_json::from_slice(&write(&["t1".into(), "t2".into()], &acked)).unwrap();
        let expected = json!([
            {"index": 0, "transactionId": "t1", "success": true, "error": null, "queueName": "q",
             "partitionName": "a", "leaseReleased": true, "dlq": false, "noop": false},
            {"index": 1, "transactionId": "t2", "success": false, "error": "Message not found",
             "queueName": null, "partitionName": null, "leaseReleased": false, "dlq": false, "noop": false},
        ]);
        assert_eq!(answer, expected);
    }
}
