//! Dead letters: messages that are delivered again only after a replay.

use baton_types::Timestamp;
use bytes::Bytes;
use http::Method;
use serde_json::{Map, Value};

use crate::path::PathBuilder;
use crate::{Client, DeadLetter, DeadLetterPage, Error, Queue, Replay};

/// A query for the dead letters of a queue, sent by [`get`](Self::get). Restricted to the handle's partition and
/// group when it has them.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// # let server = baton_server::testing().await?;
/// # let baton = baton_client::Client::new(server.url())?;
/// use baton_client::AckStatus;
///
/// let orders = baton.queue("orders");
/// orders.push(&"odd").send().await?;
/// for message in orders.pop().send().await? {
///     baton.ack(&message, AckStatus::Dlq).await?;
/// }
/// let letters = orders.dlq().limit(10).get().await?;
/// assert_eq!(letters.total, 1);
///
/// // Once the cause is fixed:
/// baton.replay(&letters.messages[0]).await?;
/// assert_eq!(orders.pop().send().await?.len(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is read until you get it"]
pub struct DeadLetters {
    queue: Queue,
    limit: Option<u32>,
    offset: Option<u32>,
    from: Option<Timestamp>,
    to: Option<Timestamp>,
}

impl Queue {
    /// A query for the dead letters of this queue.
    pub fn dlq(&self) -> DeadLetters {
        DeadLetters::new(self)
    }
}

impl DeadLetters {
    pub(crate) fn new(queue: &Queue) -> Self {
        Self { queue: queue.clone(), limit: None, offset: None, from: None, to: None }
    }

    /// At most this many; 100 by default.
    pub fn limit(mut self, rows: u32) -> Self {
        self.limit = Some(rows);
        self
    }

    /// Skips this many.
    pub fn offset(mut self, rows: u32) -> Self {
        self.offset = Some(rows);
        self
    }

    /// Only those that became dead letters at this time or later.
    pub fn from(mut self, moment: Timestamp) -> Self {
        self.from = Some(moment);
        self
    }

    /// Only those that became dead letters at this time or earlier.
    pub fn to(mut self, moment: Timestamp) -> Self {
        self.to = Some(moment);
        self
    }

    /// Sends the query. The newest come first.
    pub async fn get(&self) -> Result<DeadLetterPage, Error> {
        let mut path = PathBuilder::new("/api/v1/dlq")
            .query("queue", self.queue.name())
            .optional_query("partition", self.queue.partition_name())
            .optional_query("consumerGroup", self.queue.group_name())
            .optional_query("from", self.from.map(Timestamp::to_iso_micros).as_deref())
            .optional_query("to", self.to.map(Timestamp::to_iso_micros).as_deref());
        if let Some(limit) = self.limit {
            path = path.number_query("limit", limit.into());
        }
        if let Some(offset) = self.offset {
            path = path.number_query("offset", offset.into());
        }
        let client = self.queue.client();
        client.call(Method::GET, path.build()?, Bytes::new(), self.queue.name()).await?.parse()
    }
}

impl Client {
    /// Groups dead letters by their error, as the server answers; `nextCursor` is the cursor of the next call.
    pub async fn dead_letter_errors(
        &self,
        filter: &Map<String, Value>,
        cursor: Option<&str>,
    ) -> Result<Value, Error> {
        let mut path = PathBuilder::new("/api/v1/dlq/errors").optional_query("cursor", cursor);
        for (name, value) in filter {
            path = path.optional_query(name, value.as_str());
        }
        self.call(Method::GET, path.build()?, Bytes::new(), "").await?.parse()
    }

    /// Replays (`replay`) or removes (`purge`) many dead letters, as `body` says.
    pub async fn change_dead_letters(&self, action: &str, body: &Value) -> Result<Value, Error> {
        let path = PathBuilder::new("/api/v1/dlq:").literal(action).build()?;
        self.post(path, body, "").await?.parse()
    }

    /// Puts a dead letter back at the end of its partition.
    pub async fn replay(&self, letter: &DeadLetter) -> Result<Replay, Error> {
        let path = PathBuilder::new("/api/v1/messages")
            .segment(&letter.partition_id)
            .segment(&letter.transaction_id)
            .literal("/retry")
            .build()?;
        let answer = self.call(Method::POST, path, Bytes::from_static(b"{}"), &letter.queue).await?;
        answer.parse()
    }
}
