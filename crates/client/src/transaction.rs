//! Transactions: acks and pushes that happen together or not at all.

use baton_types::limits;
use http::uri::PathAndQuery;
use http::{HeaderValue, Method};
use serde::Serialize;

use crate::connection::ApiCall;
use crate::push::{encode_item, encode_item_head};
use crate::retry::RetryPolicy;
use crate::{AckStatus, Acknowledgement, Client, Error, Queue, Receipt, TransactionResponse};

/// A transaction under construction, sent by [`commit`](Self::commit).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// # let server = baton_server::testing().await?;
/// # let baton = baton_client::Client::new(server.url())?;
/// # baton.queue("orders").push(&"an order").send().await?;
/// let invoices = baton.queue("invoices");
/// for order in baton.queue("orders").pop().send().await? {
///     baton.transaction().ack(&order).push(&invoices, &"the invoice").commit().await?;
/// }
/// # Ok(())
/// # }
/// ```
///
/// A commit whose answer was lost is retried under the same idempotency key: it happens once and gets the first
/// answer.
#[derive(Debug)]
#[must_use = "nothing happens until it is committed"]
pub struct Transaction {
    client: Client,
    /// The operations as JSON, between commas.
    operations: Vec<u8>,
    count: usize,
    leases: Vec<String>,
    /// The first queue, whose server gets the call.
    key: Option<String>,
    problem: Option<Error>,
}

impl Client {
    /// Acks and pushes that happen together or not at all.
    pub fn transaction(&self) -> Transaction {
        let (operations, leases) = (Vec::new(), Vec::new());
        Transaction { client: self.clone(), operations, count: 0, leases, key: None, problem: None }
    }
}

impl Transaction {
    /// Completes a message.
    pub fn ack(self, message: impl AsRef<Receipt>) -> Self {
        self.acknowledge(Acknowledgement::new(message, AckStatus::Completed))
    }

    /// Acks a message with any status.
    pub fn acknowledge(mut self, ack: Acknowledgement) -> Self {
        #[derive(Serialize)]
        struct Operation<'a> {
            #[serde(rename = "type")]
            kind: &'static str,
            #[serde(flatten)]
            ack: baton_types::wire::AckRef<'a>,
        }
        if let Some(lease) = ack.receipt.lease_id()
            && !self.leases.iter().any(|known| known == lease)
        {
            self.leases.push(lease.to_owned());
        }
        self.key.get_or_insert_with(|| ack.receipt.origin.queue.to_string());
        let operation = serde_json::to_vec(&Operation { kind: "ack", ack: ack.to_wire(true) });
        self.add(operation.map_err(Error::Payload));
        self
    }

    /// Pushes a message to a queue, and to its partition when the handle has one.
    pub fn push<T: Serialize + ?Sized>(mut self, queue: &Queue, payload: &T) -> Self {
        self.key.get_or_insert_with(|| queue.name().to_owned());
        let operation =
            encode_item(&encode_item_head(queue), payload, self.client.transport().transaction_ids.next_id())
                .map(|item| {
                    let mut operation = br#"{"type":"push","items":["#.to_vec();
                    operation.extend_from_slice(&item);
                    operation.extend_from_slice(b"]}");
                    operation
                });
        self.add(operation);
        self
    }

    /// Commits everything, or nothing: then the error is [`Error::Conflict`], with the reason.
    pub async fn commit(self) -> Result<TransactionResponse, Error> {
        if let Some(problem) = self.problem {
            return Err(problem);
        }
        if self.count == 0 {
            return Err(Error::Invalid("a transaction needs at least one ack or push".into()));
        }
        if self.count > limits::BATCH_ITEMS_MAX {
            let max = limits::BATCH_ITEMS_MAX;
            return Err(Error::Invalid(format!(
                "{} operations in one transaction; the limit is {max}",
                self.count
            )));
        }
        let mut body = br#"{"operations":["#.to_vec();
        body.extend_from_slice(&self.operations);
        body.extend_from_slice(br#"],"requiredLeases":"#);
        serde_json::to_writer(&mut body, &self.leases).map_err(Error::Payload)?;
        body.push(b'}');
        let path = PathAndQuery::from_static("/api/v1/transaction");
        let key = self.key.unwrap_or_default();
        let connection = self.client.transport();
        let once = HeaderValue::try_from(connection.transaction_ids.next_id().to_string()).ok();
        let (timeout, repeat, key) = (connection.timeout, RetryPolicy::Always, key.as_str());
        let call = ApiCall {
            method: Method::POST,
            path,
            body: body.into(),
            timeout,
            retry_policy: repeat,
            routing_key: key,
            idempotency_key: once,
        };
        let response: TransactionResponse = connection.call(call).await?.parse()?;
        if response.success {
            return Ok(response);
        }
        Err(Error::Conflict(response.error.unwrap_or_else(|| "the transaction was rolled back".into())))
    }

    fn add(&mut self, operation: Result<Vec<u8>, Error>) {
        match operation {
            Ok(operation) => {
                if self.count > 0 {
                    self.operations.push(b',');
                }
                self.operations.extend_from_slice(&operation);
                self.count += 1;
            }
            Err(problem) if self.problem.is_none() => self.problem = Some(problem),
            Err(_) => {}
        }
    }
}
