//! Pushes. Payloads are serialised straight into the request body, once.
//!
//! Always: an item has a transaction id, generated here unless the caller gives one or opts out. So a push whose
//! answer was lost can be retried without a second message. Start at [`Push`].

use baton_types::limits;
use baton_types::wire::{PushResult, PushStatus};
use bytes::Bytes;
use http::Method;
use http::uri::PathAndQuery;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::connection::{ApiCall, ApiResponse};
use crate::retry::RetryPolicy;
use crate::{Client, Error, Queue};

/// One push of one or more messages, sent by [`send`](Self::send) or [`confirm`](Self::confirm).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// # let server = baton_server::testing().await?;
/// # let baton = baton_client::Client::new(server.url())?;
/// let results = baton
///     .queue("orders")
///     .push(&"the first")
///     .transaction_id("order-1")
///     .and(&"the second")
///     .send()
///     .await?;
/// assert_eq!(results.len(), 2);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "nothing is pushed until it is sent"]
pub struct Push {
    queue: Queue,
    /// The JSON before the payload of every item.
    head: Vec<u8>,
    items: PushBody,
    /// Whether the client generates transaction ids.
    with_ids: bool,
    open: Option<OpenItem>,
    problem: Option<Error>,
}

/// The last item, whose ids can still change.
#[derive(Debug, Default)]
struct OpenItem {
    transaction_id: Option<String>,
    trace_id: Option<String>,
}

impl Queue {
    /// Pushes one message, or the first of several: see [`Push::and`].
    pub fn push<T: Serialize + ?Sized>(&self, payload: &T) -> Push {
        Push::new(self).and(payload)
    }

    /// Pushes messages, in order, in one call.
    pub fn push_all<T: Serialize>(&self, payloads: impl IntoIterator<Item = T>) -> Push {
        let mut push = Push::new(self);
        payloads.into_iter().for_each(|payload| push.add(&payload));
        push
    }
}

impl Push {
    pub(crate) fn new(queue: &Queue) -> Self {
        Self {
            head: encode_item_head(queue),
            queue: queue.clone(),
            items: PushBody::default(),
            with_ids: true,
            open: None,
            problem: None,
        }
    }

    /// Adds another message.
    pub fn and<T: Serialize + ?Sized>(mut self, payload: &T) -> Self {
        self.add(payload);
        self
    }

    pub(crate) fn add<T: Serialize + ?Sized>(&mut self, payload: &T) {
        self.close();
        match self.items.open(&self.head, payload) {
            Ok(()) => self.open = Some(OpenItem::default()),
            Err(problem) => {
                self.problem.get_or_insert(problem);
            }
        }
    }

    /// Sets the transaction id of the last message: a second message of the partition with this id is a duplicate.
    pub fn transaction_id(mut self, id: impl Into<String>) -> Self {
        self.open.get_or_insert_default().transaction_id = Some(id.into());
        self
    }

    /// Sets the trace id of the last message, a UUID for tracing across systems.
    pub fn trace_id(mut self, id: impl Into<String>) -> Self {
        self.open.get_or_insert_default().trace_id = Some(id.into());
        self
    }

    /// Leaves transaction ids to the server. Cheaper, but a push whose answer is lost is then not retried: you get
    /// the error.
    pub fn without_transaction_ids(mut self) -> Self {
        self.with_ids = false;
        self
    }

    /// Pushes. Returns the result of each message, in order.
    pub async fn send(self) -> Result<Vec<PushResult>, Error> {
        let count = self.count();
        if count == 0 && self.problem.is_none() {
            return Ok(Vec::new());
        }
        let answer = self.call().await?;
        let results: Vec<PushResult> = answer.parse()?;
        if results.len() != count {
            return Err(
                answer.protocol_error(format!("{} results for {count} pushed messages", results.len()))
            );
        }
        Ok(results)
    }

    /// Pushes, and only checks that the server stored every message: cheaper than [`send`](Self::send) when the ids
    /// do not matter. A refused message is an error.
    pub async fn confirm(self) -> Result<Confirmation, Error> {
        let count = self.count();
        if count == 0 && self.problem.is_none() {
            return Ok(Confirmation::default());
        }
        parse_confirmation(&self.call().await?, count)
    }

    fn count(&self) -> usize {
        self.items.count
    }

    /// Writes the ids of the last item.
    fn close(&mut self) {
        let Some(open) = self.open.take() else { return };
        let trace_id = open.trace_id.as_deref();
        match &open.transaction_id {
            Some(given) => self.items.close(Some(given), trace_id),
            None if self.with_ids => {
                let mut text = Uuid::encode_buffer();
                let fresh = self.queue.client().transport().transaction_ids.next_id();
                self.items.close(Some(fresh.as_hyphenated().encode_lower(&mut text)), trace_id);
            }
            None => self.items.close(None, trace_id),
        }
    }

    async fn call(mut self) -> Result<ApiResponse, Error> {
        self.close();
        if let Some(problem) = self.problem {
            return Err(problem);
        }
        if self.items.count > limits::BATCH_ITEMS_MAX {
            let max = limits::BATCH_ITEMS_MAX;
            return Err(Error::Invalid(format!(
                "{} messages in one push; the limit is {max}",
                self.items.count
            )));
        }
        let repeat = if self.with_ids { RetryPolicy::Always } else { RetryPolicy::Unsent };
        push(self.queue.client(), self.items.finish(), repeat, self.queue.name()).await
    }
}

/// How many messages of a push are new and how many are duplicates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Confirmation {
    /// Stored, or spooled.
    pub queued: usize,
    /// Those that are spooled: they can be popped once the server's maintenance or the outage of its database is
    /// over.
    pub buffered: usize,
    /// Recognised by their transaction id.
    pub duplicates: usize,
}

/// Sends a push.
pub(crate) async fn push(
    client: &Client,
    body: Bytes,
    repeat: RetryPolicy,
    key: &str,
) -> Result<ApiResponse, Error> {
    let connection = client.transport();
    let path = PathAndQuery::from_static("/api/v1/push");
    connection
        .call(ApiCall {
            method: Method::POST,
            path,
            body,
            timeout: connection.timeout,
            retry_policy: repeat,
            routing_key: key,
            idempotency_key: None,
        })
        .await
}

/// Parses only as much of the response as is needed to see that all messages were stored.
pub(crate) fn parse_confirmation(answer: &ApiResponse, count: usize) -> Result<Confirmation, Error> {
    #[derive(Deserialize)]
    struct Outcome {
        status: PushStatus,
        #[serde(default)]
        error: Option<String>,
    }
    let outcomes: Vec<Outcome> = answer.parse()?;
    if outcomes.len() != count {
        return Err(answer.protocol_error(format!("{} results for {count} pushed messages", outcomes.len())));
    }
    let mut confirmation = Confirmation::default();
    let mut refused = Vec::new();
    for outcome in outcomes {
        match outcome.status {
            PushStatus::Queued => confirmation.queued += 1,
            PushStatus::Buffered => {
                confirmation.queued += 1;
                confirmation.buffered += 1;
            }
            PushStatus::Duplicate => confirmation.duplicates += 1,
            PushStatus::Failed => refused.push(outcome.error.unwrap_or_else(|| "no explanation".into())),
        }
    }
    match refused.first() {
        None => Ok(confirmation),
        Some(why) => Err(Error::Invalid(format!(
            "{} of {count} messages were refused; the first: {why}",
            refused.len()
        ))),
    }
}

/// The body of a push under construction.
#[derive(Debug, Default)]
pub(crate) struct PushBody {
    body: Vec<u8>,
    pub count: usize,
}

/// Closes the list and the object around it.
const BODY_END: &[u8] = b"]}";

impl PushBody {
    /// Writes an item up to its payload. Writes nothing on an error.
    fn open<T: Serialize + ?Sized>(&mut self, head: &[u8], payload: &T) -> Result<(), Error> {
        let before = self.body.len();
        self.separate();
        self.body.extend_from_slice(head);
        if let Err(e) = serde_json::to_writer(&mut self.body, payload) {
            self.body.truncate(before);
            return Err(Error::Payload(e));
        }
        self.count += 1;
        Ok(())
    }

    /// Ends the item that [`open`](Self::open) began.
    fn close(&mut self, transaction_id: Option<&str>, trace_id: Option<&str>) {
        if self.count > 0 {
            encode_item_tail(&mut self.body, transaction_id, trace_id);
        }
    }

    /// Adds an item that was written elsewhere.
    pub fn append(&mut self, item: &[u8]) {
        self.separate();
        self.body.extend_from_slice(item);
        self.count += 1;
    }

    /// The body, ready to send.
    pub fn finish(mut self) -> Bytes {
        self.body.extend_from_slice(BODY_END);
        self.body.into()
    }

    fn separate(&mut self) {
        let separator: &[u8] = if self.body.is_empty() { br#"{"items":["# } else { b"," };
        self.body.extend_from_slice(separator);
    }
}

/// The JSON of an item before its payload.
pub(crate) fn encode_item_head(queue: &Queue) -> Vec<u8> {
    let mut head = Vec::with_capacity(64 + queue.name().len());
    head.extend_from_slice(br#"{"queue":"#);
    write_json_string(&mut head, queue.name());
    if let Some(partition) = queue.partition_name() {
        head.extend_from_slice(br#","partition":"#);
        write_json_string(&mut head, partition);
    }
    head.extend_from_slice(br#","payload":"#);
    head
}

/// The JSON of an item after its payload.
pub(crate) fn encode_item_tail(out: &mut Vec<u8>, transaction_id: Option<&str>, trace_id: Option<&str>) {
    if let Some(id) = transaction_id {
        out.extend_from_slice(br#","transactionId":"#);
        write_json_string(out, id);
    }
    if let Some(id) = trace_id {
        out.extend_from_slice(br#","traceId":"#);
        write_json_string(out, id);
    }
    out.push(b'}');
}

/// A whole item with a fresh transaction id.
pub(crate) fn encode_item<T: Serialize + ?Sized>(
    head: &[u8],
    payload: &T,
    id: Uuid,
) -> Result<Vec<u8>, Error> {
    let mut out = Vec::with_capacity(head.len() + 128);
    out.extend_from_slice(head);
    serde_json::to_writer(&mut out, payload).map_err(Error::Payload)?;
    let mut text = Uuid::encode_buffer();
    encode_item_tail(&mut out, Some(id.as_hyphenated().encode_lower(&mut text)), None);
    Ok(out)
}

fn write_json_string(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect("text can always be written to memory");
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use serde_json::{Value, json};

    use super::*;

    fn body(push: Push) -> Value {
        let mut push = push;
        push.close();
        serde_json::from_slice(&push.items.finish()).unwrap()
    }

    fn queue() -> Queue {
        Client::new("http://127.0.0.1:1").unwrap().queue("or\"ders").partition("p1")
    }

    #[test]
    fn items_are_written_as_the_server_reads_them() {
        let raw = serde_json::value::RawValue::from_string("{\"a\": 1.50}".into()).unwrap();
        let push =
            queue().push(&json!({"n": 1})).transaction_id("t1").and(&*raw).transaction_id("t2").trace_id("x");
        assert_eq!(
            body(push),
            json!({"items": [
                {"queue": "or\"ders", "partition": "p1", "payload": {"n": 1}, "transactionId": "t1"},
                {"queue": "or\"ders", "partition": "p1", "payload": {"a": 1.5}, "transactionId": "t2", "traceId": "x"},
            ]})
        );
    }

    #[test]
    fn every_item_has_its_own_version_7_transaction_id() {
        let body = body(queue().push_all(0..100));
        let ids: HashSet<Uuid> = body["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["transactionId"].as_str().unwrap().parse().unwrap())
            .collect();
        assert_eq!(ids.len(), 100);
        assert!(ids.iter().all(|id| id.get_version_num() == 7));
    }

    #[test]
    fn ids_can_be_left_to_the_server() {
        let body = body(queue().push(&1).without_transaction_ids());
        assert_eq!(body["items"][0].get("transactionId"), None);
    }
}
