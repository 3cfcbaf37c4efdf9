//! Checks that every benchmark runs besides its measurement: each message came once, none is missing, and each
//! partition's messages came in push order.
//!
//! A producer numbers its messages. Per partition and producer the numbers must rise, so no message comes twice or
//! out of order; as many must come as were sent, so none is lost. Consumers record a message before they ack it, and
//! a partition has one consumer at a time, so the records of many consumers have one order.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use anyhow::{Result, ensure};

use super::payload::Stamp;

/// The messages that one consumer group has received.
pub struct DeliveryCheck {
    producers: usize,
    partitions: usize,
    /// Per partition and producer, one more than the last number received.
    next: Vec<AtomicU32>,
    count: AtomicU64,
}

impl DeliveryCheck {
    /// With at least as many partitions as producers, each partition has one producer and needs only one slot.
    pub fn new(producers: usize, partitions: usize) -> Self {
        let slots = if partitions >= producers { partitions } else { partitions * producers };
        let next = (0..slots).map(|_| AtomicU32::new(0)).collect();
        Self { producers, partitions, next, count: AtomicU64::new(0) }
    }

    /// Records one delivered message.
    pub fn record(&self, stamp: Stamp) -> Result<()> {
        let (partition, producer) = (stamp.partition as usize, stamp.producer as usize);
        ensure!(partition < self.partitions && producer < self.producers, "no producer pushed {stamp:?}");
        let slot =
            if self.partitions >= self.producers { partition } else { partition * self.producers + producer };
        let next = self.next[slot].swap(stamp.sequence + 1, Ordering::Relaxed);
        ensure!(
            next <= stamp.sequence,
            "partition {partition} gave message {} of producer {producer} after {}",
            stamp.sequence,
            next - 1
        );
        self.count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// How many were recorded.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Fails unless exactly `sent` messages came.
    pub fn verify(&self, sent: u64) -> Result<()> {
        let count = self.count();
        ensure!(count == sent, "{sent} messages were pushed and {count} delivered");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(seen: &DeliveryCheck, producer: u32, partition: u32, sequence: u32) -> Result<()> {
        seen.record(Stamp { producer, partition, sequence, at: 0 })
    }

    #[test]
    fn a_complete_run_in_order_passes() {
        let seen = DeliveryCheck::new(1, 2);
        for (partition, sequence) in [(0, 0), (1, 1), (0, 2), (1, 3)] {
            note(&seen, 0, partition, sequence).unwrap();
        }
        seen.verify(4).unwrap();
    }

    #[test]
    fn producers_that_share_a_partition_are_told_apart() {
        let seen = DeliveryCheck::new(2, 1);
        for (producer, sequence) in [(0, 0), (1, 0), (1, 1), (0, 1)] {
            note(&seen, producer, 0, sequence).unwrap();
        }
        assert!(note(&seen, 1, 0, 1).is_err());
    }

    #[test]
    fn a_duplicate_is_caught() {
        let seen = DeliveryCheck::new(1, 1);
        note(&seen, 0, 0, 0).unwrap();
        assert!(note(&seen, 0, 0, 0).is_err());
    }

    #[test]
    fn disorder_is_caught() {
        let seen = DeliveryCheck::new(1, 1);
        note(&seen, 0, 0, 1).unwrap();
        assert!(note(&seen, 0, 0, 0).is_err());
    }

    #[test]
    fn loss_and_inventions_are_caught() {
        let seen = DeliveryCheck::new(1, 1);
        note(&seen, 0, 0, 0).unwrap();
        assert!(seen.verify(2).is_err());
        assert!(note(&seen, 0, 5, 0).is_err());
    }
}
