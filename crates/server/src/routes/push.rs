//! `POST /api/v1/push`: messages in, each answered in the order given.
//!
//! Always: a payload is the bytes that were sent, never parsed; one item that is wrong refuses the whole request
//! before anything is stored. Start at [`push`], then [`Item::message`].

use std::borrow::Cow;

use baton_http::Reply;
use baton_queue::{PushBatch, Pushed};
use baton_store::NewMessage;
use baton_types::DEFAULT_PARTITION;
use http::StatusCode;
use uuid::Uuid;

use crate::call::{Answer, Call};
use crate::cluster::{Routing, ServedByHeaders};
use crate::error::Error;
use crate::ignored::Ignored;
use crate::json::{self, Kept, List, Text, lenient};
use crate::names;

lenient! {
    struct Body<'a> {
        "items" => items: List<RawItem<'a>>,
    }
}

lenient! {
    /// A message to push, as it was sent.
    pub(super) struct RawItem<'a> {
        "queue" => queue: Text<'a>,
        "partition" => partition: Text<'a>,
        "payload" => payload: Option<Kept<'a>>,
        /// The other name of the payload, which only a transaction reads.
        "data" => data: Option<Kept<'a>>,
        "transactionId" => transaction_id: Text<'a>,
        "traceId" => trace_id: Text<'a>,
    }
}

/// A message to push, checked.
#[derive(Debug)]
pub(super) struct Item<'a> {
    pub(super) queue: Cow<'a, str>,
    partition: Cow<'a, str>,
    transaction_id: Option<Cow<'a, str>>,
    trace_id: Option<Uuid>,
    payload: &'a str,
}

impl<'a> RawItem<'a> {
    /// Checks all but the payload, for which `payload` stands in when there is none.
    pub(super) fn checked(self, payload: &'a str) -> Result<Item<'a>, Error> {
        let queue = self.queue.required("Queue must be a string")?;
        let partition = self
            .partition
            .or_absent("Partition must be a string")?
            .unwrap_or(Cow::Borrowed(DEFAULT_PARTITION));
        let transaction_id =
            self.transaction_id.or_absent("TransactionId must be a string")?.filter(|id| !id.is_empty());
        let trace_id = match self.trace_id.or_absent("TraceId must be a string")? {
            Some(text) => Some(Uuid::try_parse(&text).map_err(|_| Error::invalid("TraceId must be a UUID"))?),
            None => None,
        };
        names::check("queue", &queue)?;
        names::check("partition", &partition)?;
        if let Some(id) = &transaction_id {
            names::check_transaction_id(id)?;
        }
        let payload = self.payload.map_or(payload, Kept::get);
        Ok(Item { queue, partition, transaction_id, trace_id, payload })
    }
}

impl Item<'_> {
    /// What an answer needs to know.
    pub(super) fn without_payload(&self) -> Item<'static> {
        Item {
            queue: self.queue.clone().into_owned().into(),
            partition: Cow::Borrowed(""),
            transaction_id: self.transaction_id.clone().map(|id| id.into_owned().into()),
            trace_id: self.trace_id,
            payload: "",
        }
    }

    /// Adds the message to a batch, pushed by `producer`.
    pub(super) fn add_to(&self, batch: &mut PushBatch, producer: Option<&str>) -> Result<(), Error> {
        let message = NewMessage {
            transaction_id: self.transaction_id.as_deref(),
            trace_id: self.trace_id,
            producer,
            payload: self.payload.as_bytes(),
        };
        Ok(batch.add(&self.queue, &self.partition, &message)?)
    }

    /// Writes the id by which the message is known: the producer's, or else the message's own.
    pub(super) fn write_transaction_id(&self, out: &mut Vec<u8>, pushed: &Pushed) {
        match &self.transaction_id {
            Some(id) => json::string(out, id),
            None => json::uuid(out, pushed.id.as_uuid()),
        }
    }
}

/// Pushes messages.
pub(super) fn push(mut call: Call) -> Answer {
    Box::pin(async move {
        let body = call.body()?;
        let (mut items, ignored) = parse(&body)?;
        let Some(first) = items.first() else {
            return Ok(ignored.list_in(Reply::json(StatusCode::CREATED, "[]")));
        };
        let mut mark = ServedByHeaders::default();
        if let Some(routed) = call.routed() {
            let queue = first.queue.clone();
            match Box::pin(routed.push(&queue, || write_identified(&mut items))).await? {
                Routing::Answered(reply) => return Ok(ignored.list_in(reply)),
                Routing::Here(here) => mark = here,
            }
        }
        let mut batch = PushBatch::default();
        for item in &items {
            item.add_to(&mut batch, call.caller())?;
        }
        let pushed = call.broker().push(batch).await?;
        Ok(ignored.list_in(mark.on(Reply::json(StatusCode::CREATED, write(&items, &pushed)))))
    })
}

/// The messages of a push, and the names of members that it ignores.
fn parse(body: &[u8]) -> Result<(Vec<Item<'_>>, Ignored), Error> {
    let (body, mut ignored) = json::parse_noting::<Body<'_>>(body)?;
    let items = body.items.required("items array is required")?;
    if items.iter().any(|item| item.data.is_some()) {
        ignored.add("data");
    }
    let items = items.into_iter().map(|item| item.checked("null")).collect::<Result<_, _>>()?;
    Ok((items, ignored))
}

/// A body that pushes these messages, each with a transaction id, so that pushing them twice does no harm.
fn write_identified(items: &mut [Item<'_>]) -> Vec<u8> {
    let payloads: usize = items.iter().map(|item| item.payload.len()).sum();
    let mut out = Vec::with_capacity(16 + items.len() * 160 + payloads);
    out.extend_from_slice(b"{\"items\":[");
    for (index, item) in items.iter_mut().enumerate() {
        let id = item.transaction_id.get_or_insert_with(|| baton_env::fresh_uuid().to_string().into());
        out.extend_from_slice(if index > 0 { b",{\"queue\":" } else { b"{\"queue\":" });
        json::string(&mut out, &item.queue);
        out.extend_from_slice(b",\"partition\":");
        json::string(&mut out, &item.partition);
        out.extend_from_slice(b",\"transactionId\":");
        json::string(&mut out, id);
        if let Some(trace) = item.trace_id {
            out.extend_from_slice(b",\"traceId\":");
            json::uuid(&mut out, trace);
        }
        out.extend_from_slice(b",\"payload\":");
        out.extend_from_slice(item.payload.as_bytes());
        out.push(b'}');
    }
    out.extend_from_slice(b"]}");
    out
}

/// One entry per message, in order.
pub(super) fn write(items: &[Item<'_>], pushed: &[Pushed]) -> Vec<u8> {
    let mut out = Vec::with_capacity(2 + items.len() * 400);
    out.push(b'[');
    for (index, (item, pushed)) in items.iter().zip(pushed).enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write_one(&mut out, index, item, pushed);
    }
    out.push(b']');
    out
}

fn write_one(out: &mut Vec<u8>, index: usize, item: &Item<'_>, pushed: &Pushed) {
    out.extend_from_slice(b"{\"index\":");
    json::number(out, index as u64);
    if pushed.buffered {
        return write_buffered(out, item);
    }
    for key in [&b",\"transaction_id\":"[..], b",\"transactionId\":"] {
        out.extend_from_slice(key);
        item.write_transaction_id(out, pushed);
    }
    out.extend_from_slice(if pushed.duplicate {
        &b",\"status\":\"duplicate\""[..]
    } else {
        &b",\"status\":\"queued\""[..]
    });
    for key in [&b",\"message_id\":"[..], b",\"messageId\":"] {
        out.extend_from_slice(key);
        json::uuid(out, pushed.id.as_uuid());
    }
    for key in [&b",\"partition_id\":"[..], b",\"partitionId\":"] {
        out.extend_from_slice(key);
        json::number_text(out, pushed.partition.0);
    }
    out.extend_from_slice(b",\"trace_id\":");
    json::uuid_or_null(out, item.trace_id);
    out.extend_from_slice(b",\"queueName\":");
    json::string(out, &item.queue);
    out.extend_from_slice(b",\"offset\":");
    json::number(out, pushed.offset.0);
    out.push(b'}');
}

/// The rest of an entry for a message that waits in the spool: its place is not known yet.
fn write_buffered(out: &mut Vec<u8>, item: &Item<'_>) {
    out.extend_from_slice(b",\"status\":\"buffered\"");
    if let Some(id) = &item.transaction_id {
        for key in [&b",\"transaction_id\":"[..], b",\"transactionId\":"] {
            out.extend_from_slice(key);
            json::string(out, id);
        }
    }
    for (key, name) in [(&b",\"queue\":"[..], &item.queue), (b",\"queueName\":", &item.queue)] {
        out.extend_from_slice(key);
        json::string(out, name);
    }
    out.extend_from_slice(b",\"partition\":");
    json::string(out, &item.partition);
    out.push(b'}');
}

#[cfg(test)]
mod tests {
    use baton_types::limits::JSON_LEVELS_MAX;
    use baton_types::{MessageId, Offset, PartitionId, Timestamp};
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn refusal(body: &str) -> String {
        parse(body.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn each_mistake_has_its_own_words() {
        for body in [r"{}", r#"{"items":7}"#, r#"{"items":null}"#, r#"{"items":{}}"#, "[]", "3"] {
            assert_eq!(refusal(body), "items array is required", "{body}");
        }
        for item in [r"{}", r#"{"queue":null}"#, r#"{"queue":1}"#, "1", "null", r#"["q"]"#] {
            assert_eq!(refusal(&format!(r#"{{"items":[{item}]}}"#)), "Queue must be a string", "{item}");
        }
        let with = |member: &str| refusal(&format!(r#"{{"items":[{{"queue":"q",{member}}}]}}"#));
        assert_eq!(with(r#""partition":null"#), "Partition must be a string");
        assert_eq!(with(r#""partition":[]"#), "Partition must be a string");
        assert_eq!(with(r#""transactionId":null"#), "TransactionId must be a string");
        assert_eq!(with(r#""transactionId":4"#), "TransactionId must be a string");
        assert_eq!(with(r#""traceId":null"#), "TraceId must be a string");
        assert_eq!(with(r#""traceId":"not-a-uuid""#), "TraceId must be a UUID");
        assert_eq!(with(r#""partition":"a\u0000b""#), "partition must not contain a NUL character");
        assert_eq!(refusal(""), "Empty request body");
        assert!(refusal(r#"{"items":[{"queue":"q","payload":{]}]}"#).starts_with("Invalid JSON: "));
        assert!(with(&format!(r#""partition":"{}""#, "x".repeat(256))).contains("256 bytes"));
    }

    #[test]
    fn what_is_left_out_has_a_default() {
        let body = br#"{"items":[{"queue":"q","transactionId":"","data":1}],"bufferMs":5}"#;
        let (items, ignored) = parse(body).unwrap();
        assert_eq!(ignored.to_string(), "bufferMs, data");
        let item = &items[0];
        assert_eq!((&*item.partition, &item.transaction_id, item.payload), ("Default", &None, "null"));
    }

    #[test]
    fn a_payload_keeps_its_every_byte() {
        let payload = "{ \"b\" : 1.0e+2,\n\t\"a\":[ 12345678901234567890123 ] , \"a\":\"\\u0041\u{e9}\" }";
        let body = format!(
            r#"{{"items":[{{"queue":"q","payload": {payload} , "traceId":"0198A000-0000-7000-8000-000000000000"}}]}}"#
        );
        let (items, _) = parse(body.as_bytes()).unwrap();
        assert_eq!(items[0].payload, payload);
        assert!(items[0].trace_id.is_some());
    }

    #[test]
    fn a_payload_may_be_nested_as_deeply_as_everybody_can_read() {
        let body = |levels| {
            let payload = format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
            format!(r#"{{"items":[{{"queue":"q","payload":{payload}}}]}}"#)
        };
        assert!(parse(body(JSON_LEVELS_MAX).as_bytes()).is_ok());
        for levels in [JSON_LEVELS_MAX + 1, 10_000, 1_000_000] {
            let refused = refusal(&body(levels));
            assert!(
                refused.starts_with("Invalid JSON: lists and objects may be nested 100 levels deep"),
                "{refused}"
            );
        }
    }

    #[test]
    fn an_answer_tells_of_each_item_in_both_spellings() {
        let (items, _) =
            parse(br#"{"items":[{"queue":"a\"b","transactionId":"t1"},{"queue":"q"}]}"#).unwrap();
        let id = MessageId::new(Timestamp::from_micros(5_000_000), PartitionId(7), Offset(3));
        let pushed = |duplicate| Pushed {
            duplicate,
            buffered: false,
            partition: PartitionId(7),
            offset: Offset(3),
            id,
        };
        let answer: Value = serde_json::from_slice(&write(&items, &[pushed(true), pushed(false)])).unwrap();
        let id = id.to_string();
        let expected = json!([
            {"index": 0, "transaction_id": "t1", "transactionId": "t1", "status": "duplicate", "message_id": id,
             "messageId": id, "partition_id": "7", "partitionId": "7", "trace_id": null, "queueName": "a\"b",
             "offset": 3},
            {"index": 1, "transaction_id": id, "transactionId": id, "status": "queued", "message_id": id,
             "messageId": id, "partition_id": "7", "partitionId": "7", "trace_id": null, "queueName": "q",
             "offset": 3},
        ]);
        assert_eq!(answer, expected);
    }

    #[test]
    fn a_push_that_is_passed_on_has_an_id_for_each_message_and_the_same_bytes() {
        let body = r#"{"items":[{"queue":"q\"","payload": { "a" : 1.0 }},
            {"queue":"r","partition":"p","transactionId":"t","traceId":"0198a000-0000-7000-8000-000000000000"}]}"#;
        let (mut items, _) = parse(body.as_bytes()).unwrap();
        let written = write_identified(&mut items);
        let (again, _) = parse(&written).unwrap();
        for (before, after) in items.iter().zip(&again) {
            assert_eq!((&before.queue, &before.partition), (&after.queue, &after.partition));
            assert_eq!((&before.transaction_id, before.trace_id), (&after.transaction_id, after.trace_id));
            assert_eq!(before.payload, after.payload);
        }
        assert!(again[0].transaction_id.is_some() && again[1].transaction_id.as_deref() == Some("t"));
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec((any::<String>(), inner), 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_was_sent_is_what_is_kept(
            queue in "[^\0]{0,40}", partition in prop::option::of("[^\0]{0,40}"),
            id in prop::option::of(".{1,40}"), payload in any_json(), pretty in any::<bool>(),
        ) {
            let mut item = json!({"queue": queue, "payload": payload, "extra": {"queue": 1}});
            partition.iter().for_each(|partition| item["partition"] = json!(partition));
            id.iter().for_each(|id| item["transactionId"] = json!(id));
            let body = json!({"items": [item]});
            let body = if pretty { serde_json::to_vec_pretty(&body) } else { serde_json::to_vec(&body) }.unwrap();
            let (items, _) = parse(&body).unwrap();
            prop_assert_eq!(&*items[0].queue, queue.as_str());
            prop_assert_eq!(&*items[0].partition, partition.as_deref().unwrap_or("Default"));
            prop_assert_eq!(items[0].transaction_id.as_deref(), id.as_deref());
            prop_assert_eq!(serde_json::from_str::<Value>(items[0].payload).unwrap(), payload);
        }

        #[test]
        fn no_body_makes_the_parser_panic(body in prop::collection::vec(any::<u8>(), 0..200), json in any_json()) {
            let _ = parse(&body);
            let _ = parse(json.to_string().as_bytes());
            let _ = parse(json!({"items": json}).to_string().as_bytes());
            let _ = parse(json!({"items": [json]}).to_string().as_bytes());
        }
    }
}
