//! Acks: tell the server the outcome of messages.

use baton_types::limits;
use baton_types::wire::{AckBatchRef, AckRef, AckResult, AckStatus};
use http::uri::PathAndQuery;

use crate::connection::ApiResponse;
use crate::{Client, Error, Receipt};

/// The outcome of one message.
#[derive(Clone, Debug)]
pub struct Acknowledgement {
    pub(crate) receipt: Receipt,
    pub(crate) status: AckStatus,
    pub(crate) error: Option<String>,
}

impl Acknowledgement {
    /// Acks a message with `status`.
    pub fn new(message: impl AsRef<Receipt>, status: AckStatus) -> Self {
        Self { receipt: message.as_ref().clone(), status, error: None }
    }

    /// Adds a reason; the server keeps it with the dead letter.
    pub fn because(mut self, error: impl Into<String>) -> Self {
        self.error = Some(error.into());
        self
    }

    pub(crate) fn to_wire(&self, with_group: bool) -> AckRef<'_> {
        let place = &self.receipt.origin;
        AckRef {
            transaction_id: &self.receipt.transaction_id,
            partition_id: &place.partition_id,
            lease_id: self.receipt.lease_id(),
            status: self.status,
            consumer_group: Some(&*place.group).filter(|group| with_group && !group.is_empty()),
            error: self.error.as_deref(),
        }
    }
}

impl Client {
    /// Acks a message. [`Error::LeaseLost`] when its lease is over; also when the answer to a first successful try
    /// was lost, so it never means that work needs undoing.
    pub async fn ack(&self, message: impl AsRef<Receipt>, status: AckStatus) -> Result<AckResult, Error> {
        self.send_ack(Acknowledgement::new(message, status)).await
    }

    /// Fails a message with a reason. It is delivered again until its retries are used up.
    pub async fn fail(
        &self,
        message: impl AsRef<Receipt>,
        error: impl Into<String>,
    ) -> Result<AckResult, Error> {
        self.send_ack(Acknowledgement::new(message, AckStatus::Failed).because(error)).await
    }

    /// Acks several messages with the same status, of one group or several, in one call. The results are in order; a
    /// refusal is a result, not an error.
    pub async fn ack_batch<M: AsRef<Receipt>>(
        &self,
        messages: impl IntoIterator<Item = M>,
        status: AckStatus,
    ) -> Result<Vec<AckResult>, Error> {
        let acks: Vec<_> = messages.into_iter().map(|m| Acknowledgement::new(m, status)).collect();
        self.ack_all(&acks).await
    }

    /// Acks several messages, each with its own status, in one call. The results are in order; a refusal is a result,
    /// not an error.
    pub async fn ack_all(&self, acks: &[Acknowledgement]) -> Result<Vec<AckResult>, Error> {
        if acks.is_empty() {
            return Ok(Vec::new());
        }
        let answer = self.send_acks(acks).await?;
        let results: Vec<AckResult> = answer.parse()?;
        if results.len() != acks.len() {
            return Err(answer.protocol_error(format!("{} results for {} acks", results.len(), acks.len())));
        }
        Ok(results)
    }

    pub(crate) async fn send_acks(&self, acks: &[Acknowledgement]) -> Result<ApiResponse, Error> {
        if acks.len() > limits::BATCH_ITEMS_MAX {
            let max = limits::BATCH_ITEMS_MAX;
            return Err(Error::Invalid(format!("{} acks in one call; the limit is {max}", acks.len())));
        }
        let Some(first) = acks.first() else { return Err(Error::Invalid("an ack of no messages".into())) };
        let group = &first.receipt.origin.group;
        let one_group = acks.iter().all(|ack| ack.receipt.origin.group == *group);
        let batch = AckBatchRef {
            acknowledgments: acks.iter().map(|ack| ack.to_wire(!one_group)).collect(),
            consumer_group: Some(&**group).filter(|group| one_group && !group.is_empty()),
        };
        let path = PathAndQuery::from_static("/api/v1/ack/batch");
        self.post(path, &batch, &first.receipt.origin.queue).await
    }

    async fn send_ack(&self, ack: Acknowledgement) -> Result<AckResult, Error> {
        let path = PathAndQuery::from_static("/api/v1/ack");
        let answer = self.post(path, &ack.to_wire(true), &ack.receipt.origin.queue).await?;
        let results: Vec<AckResult> = answer.parse()?;
        let result =
            results.into_iter().next().ok_or_else(|| answer.protocol_error("an ack without a result"))?;
        if result.success { Ok(result) } else { Err(ack_error(result)) }
    }
}

/// The error of a refused ack.
fn ack_error(result: AckResult) -> Error {
    let error = result.error.unwrap_or_else(|| "the ack was refused without explanation".into());
    let lower = error.to_ascii_lowercase();
    if lower.contains("lease") {
        Error::LeaseLost { transaction_id: result.transaction_id }
    } else if lower.contains("not found") {
        Error::NotFound(error)
    } else {
        Error::Conflict(error)
    }
}
