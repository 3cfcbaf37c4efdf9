//! What every run must show besides its speed: each message came once, none is missing, and what one producer
//! sent reached each consumer in the order it was sent.

use std::collections::HashMap;

use anyhow::{Result, ensure};

use crate::message::Stamp;

/// What one consumer saw.
#[derive(Default)]
pub struct Seen {
    /// Per producer, the sequence numbers in the order they came.
    by_producer: HashMap<u32, Vec<u32>>,
}

impl Seen {
    pub fn note(&mut self, stamp: Stamp) {
        self.by_producer.entry(stamp.producer).or_default().push(stamp.sequence);
    }
}

/// Compares what all consumers saw with what each producer sent (`sent[producer]` messages, numbered from 0).
pub fn verify(sent: &[u32], seen: &[Seen]) -> Result<()> {
    for one in seen {
        for (producer, sequence) in &one.by_producer {
            let risen = sequence.windows(2).all(|pair| pair[0] < pair[1]);
            ensure!(risen, "a consumer got messages of producer {producer} out of order or twice");
        }
    }
    for (producer, sent) in sent.iter().enumerate() {
        let mut times = vec![0u32; *sent as usize];
        let all = seen.iter().filter_map(|one| one.by_producer.get(&(producer as u32))).flatten();
        for sequence in all {
            let slot = times.get_mut(*sequence as usize);
            ensure!(slot.is_some(), "message {sequence} of producer {producer} was never sent");
            *slot.unwrap_or(&mut 0) += 1;
        }
        let lost = times.iter().filter(|n| **n == 0).count();
        let doubled = times.iter().filter(|n| **n > 1).count();
        ensure!(
            lost == 0 && doubled == 0,
            "producer {producer}: {lost} messages lost, {doubled} delivered twice"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(sequence: &[u32]) -> Seen {
        let mut seen = Seen::default();
        sequence.iter().for_each(|s| seen.note(Stamp { producer: 0, sequence: *s, at: 0 }));
        seen
    }

    #[test]
    fn a_complete_run_in_order_passes() {
        verify(&[4], &[seen(&[0, 3]), seen(&[1, 2])]).unwrap();
    }

    #[test]
    fn loss_duplicates_disorder_and_inventions_are_caught() {
        assert!(verify(&[3], &[seen(&[0, 2])]).is_err());
        assert!(verify(&[2], &[seen(&[0, 1]), seen(&[1])]).is_err());
        assert!(verify(&[2], &[seen(&[1, 0])]).is_err());
        assert!(verify(&[1], &[seen(&[0, 1])]).is_err());
    }
}
