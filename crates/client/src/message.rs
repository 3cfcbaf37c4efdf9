//! A delivered message, and the receipt that is enough to ack it.
//!
//! The messages of one batch and partition share their common fields. A payload is copied once, from the response
//! into the message, and parsed on demand.

use std::sync::Arc;

use baton_types::wire::MessageRef;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::Error;

/// The queue, partition and lease of a batch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BatchOrigin {
    pub queue: Box<str>,
    pub partition: Box<str>,
    pub partition_id: Box<str>,
    pub lease_id: Box<str>,
    pub group: Box<str>,
}

/// What an ack needs. Cheap to clone, so that the message itself can be moved away.
#[derive(Clone, Debug)]
pub struct Receipt {
    pub(crate) transaction_id: Arc<str>,
    pub(crate) origin: Arc<BatchOrigin>,
}

/// A delivered message.
#[derive(Clone, Debug)]
pub struct Message {
    receipt: Receipt,
    id: Box<str>,
    created_at: Box<str>,
    data: Box<RawValue>,
    trace_id: Option<Box<str>>,
    producer: Option<Box<str>>,
    offset: u64,
    attempt: u32,
}

impl Message {
    /// The payload, as a value of your type.
    pub fn data<'a, T: Deserialize<'a>>(&'a self) -> Result<T, Error> {
        serde_json::from_str(self.data.get()).map_err(Error::Payload)
    }

    /// The payload, byte for byte as it was pushed.
    pub fn raw(&self) -> &RawValue {
        &self.data
    }

    /// The payload, without a copy.
    pub fn into_raw(self) -> Box<RawValue> {
        self.data
    }

    /// The server's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The producer's id, by which the server recognises a repeated push.
    pub fn transaction_id(&self) -> &str {
        &self.receipt.transaction_id
    }

    /// The queue it was pushed to.
    pub fn queue(&self) -> &str {
        &self.receipt.origin.queue
    }

    /// The name of its partition.
    pub fn partition(&self) -> &str {
        &self.receipt.origin.partition
    }

    /// The id of its partition.
    pub fn partition_id(&self) -> &str {
        &self.receipt.origin.partition_id
    }

    /// Its offset in the partition.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// When it was stored: ISO-8601, UTC.
    pub fn created_at(&self) -> &str {
        &self.created_at
    }

    /// The trace id it was pushed with.
    pub fn trace_id(&self) -> Option<&str> {
        self.trace_id.as_deref()
    }

    /// The subject of the producer's token, when the server authenticates.
    pub fn producer(&self) -> Option<&str> {
        self.producer.as_deref()
    }

    /// How many times it has been delivered to this group, this time included.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The group it was delivered to.
    pub fn group(&self) -> &str {
        &self.receipt.origin.group
    }

    /// The lease it is held under, shared by its batch; `None` after an automatic ack.
    pub fn lease_id(&self) -> Option<&str> {
        self.receipt.lease_id()
    }

    /// What an ack needs.
    pub fn receipt(&self) -> &Receipt {
        &self.receipt
    }
}

impl Receipt {
    /// The lease, unless the server acked at delivery.
    pub fn lease_id(&self) -> Option<&str> {
        Some(&*self.origin.lease_id).filter(|id| !id.is_empty())
    }
}

impl AsRef<Receipt> for Receipt {
    fn as_ref(&self) -> &Receipt {
        self
    }
}

impl AsRef<Receipt> for Message {
    fn as_ref(&self) -> &Receipt {
        &self.receipt
    }
}

/// The messages of a response. `queue` is for servers that do not name it in each message.
pub(crate) fn from_wire(messages: Vec<MessageRef<'_>>, queue: &str) -> Vec<Message> {
    let mut last: Option<Arc<BatchOrigin>> = None;
    messages
        .into_iter()
        .map(|m| {
            let place = match last.take() {
                Some(place) if has_origin(&place, &m) => place,
                _ => Arc::new(batch_origin(&m, queue)),
            };
            last = Some(Arc::clone(&place));
            Message {
                receipt: Receipt { transaction_id: m.transaction_id.into(), origin: place },
                id: m.id.into(),
                created_at: m.created_at.into(),
                data: m.data.to_owned(),
                trace_id: m.trace_id.map(Into::into),
                producer: m.producer_sub.map(Into::into),
                offset: m.offset,
                attempt: m.delivery_attempt,
            }
        })
        .collect()
}

/// Within one response, the partition determines everything but the lease.
fn has_origin(place: &BatchOrigin, m: &MessageRef<'_>) -> bool {
    *place.partition_id == *m.partition_id
        && *place.lease_id == *m.lease_id
        && *place.group == *m.consumer_group
}

fn batch_origin(m: &MessageRef<'_>, queue: &str) -> BatchOrigin {
    BatchOrigin {
        queue: if m.queue.is_empty() { queue.into() } else { (*m.queue).into() },
        partition: (*m.partition).into(),
        partition_id: (*m.partition_id).into(),
        lease_id: (*m.lease_id).into(),
        group: (*m.consumer_group).into(),
    }
}

#[cfg(test)]
mod tests {
    use baton_types::wire::PopResponseRef;

    use super::*;

    const ANSWER: &str = r#"{"success":true,"queue":"q","messages":[
        {"id":"1","transactionId":"a\"b","data":{"n": 1.50},"createdAt":"t","partitionId":"7","partition":"p",
         "leaseId":"l","consumerGroup":"g","offset":4,"deliveryAttempt":2,"traceId":null,"producerSub":null},
        {"id":"2","transactionId":"c","data":[1],"createdAt":"t","partitionId":"7","partition":"p","leaseId":"l","consumerGroup":"g"},
        {"id":"3","transactionId":"d","data":null,"createdAt":"t","partitionId":"8","partition":"r","leaseId":"","consumerGroup":"g"}]}"#;

    fn messages() -> Vec<Message> {
        from_wire(serde_json::from_str::<PopResponseRef<'_>>(ANSWER).unwrap().messages, "q")
    }

    #[test]
    fn a_payload_comes_back_byte_for_byte() {
        let message = &messages()[0];
        assert_eq!(message.raw().get(), r#"{"n": 1.50}"#);
        assert_eq!(message.data::<serde_json::Value>().unwrap()["n"], 1.5);
        assert!(matches!(message.data::<Vec<u8>>(), Err(Error::Payload(_))));
    }

    #[test]
    fn a_batch_of_one_partition_shares_its_place() {
        let all = messages();
        assert!(Arc::ptr_eq(&all[0].receipt.origin, &all[1].receipt.origin));
        assert_eq!((all[2].partition(), all[2].queue(), all[2].lease_id()), ("r", "q", None));
        assert_eq!((all[0].transaction_id(), all[0].offset(), all[0].attempt()), ("a\"b", 4, 2));
    }
}
