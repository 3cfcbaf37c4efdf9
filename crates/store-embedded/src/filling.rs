//! The messages of the filling group, which will become segments.
//!
//! Messages are gathered as they come, one after the other in one buffer, and put together by partition when the
//! group is handed over: with a million partitions a segment is often one small message, and memory of its own
//! for each, for its key and for every time it changes hands would cost more than the message. Always: a
//! partition's runs are in the order of their offsets, and all but the last of them are closed.

use std::ops::Range;

use baton_store::{Block, Segment, SegmentHeader};
use baton_types::{Offset, PartitionId, Timestamp};
use bytes::Bytes;
use rustc_hash::FxHashMap;

use crate::tables::segment_key;

/// Segments share a buffer of about this size, which is freed when none of them is needed any more.
const BUFFER_BYTES: usize = 256 << 10;
/// More room than this is given back after a group; few groups need it.
const ROOM_KEPT: usize = 4 << 20;

/// The runs of messages that have come.
#[derive(Default)]
pub struct Filling {
    open: FxHashMap<PartitionId, Run>,
    closed: Vec<(PartitionId, Run)>,
    /// Encoded messages in the order they came.
    bytes: Vec<u8>,
}

/// Messages of one partition that will become one segment.
pub struct Run {
    pub header: SegmentHeader,
    /// Where its messages stand: nearly always they came at once.
    first: Range<usize>,
    rest: Vec<Range<usize>>,
}

impl Run {
    /// The first offset after it.
    pub fn end(&self) -> Offset {
        self.header.base.plus(self.header.count.into())
    }

    fn places(&self) -> impl Iterator<Item = &Range<usize>> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    fn stored_bytes(&self) -> usize {
        KEY_BYTES + Segment::BODY_AT + self.places().map(ExactSizeIterator::len).sum::<usize>()
    }
}

const KEY_BYTES: usize = 24;

/// A segment that is complete.
pub struct Sealed {
    pub key: Bytes,
    pub value: Bytes,
    pub segment: Segment,
}

impl Filling {
    /// The time of the segment that further messages of a partition go to, if there is one.
    pub fn created_at(&self, partition: PartitionId) -> Option<Timestamp> {
        self.open.get(&partition).map(|run| run.header.created_at)
    }

    /// Adds messages; `first` and `created_at` count where they begin a segment.
    pub fn add(&mut self, partition: PartitionId, first: Offset, created_at: Timestamp, block: &Block) {
        let from = self.bytes.len();
        self.bytes.extend_from_slice(block.bytes());
        let place = from..self.bytes.len();
        let count = u32::try_from(block.len()).unwrap_or(u32::MAX);
        self.open
            .entry(partition)
            .and_modify(|run| {
                run.header.count += count;
                run.rest.push(place.clone());
            })
            .or_insert_with(|| Run {
                header: SegmentHeader { base: first, count, created_at },
                first: place,
                rest: Vec::new(),
            });
    }

    /// From now on messages begin new segments.
    pub fn close(&mut self) {
        self.closed.extend(self.open.drain());
    }

    /// The runs of a partition, oldest first.
    pub fn runs(&self, partition: PartitionId) -> impl Iterator<Item = &Run> {
        let closed = self.closed.iter().filter(move |(id, _)| *id == partition).map(|(_, run)| run);
        closed.chain(self.open.get(&partition))
    }

    /// A run as a segment.
    pub fn segment(&self, partition: PartitionId, run: &Run) -> Segment {
        let body: Vec<u8> = run.places().flat_map(|place| &self.bytes[place.clone()]).copied().collect();
        Segment::new(partition, run.header, body.into())
    }

    /// Drops the runs of a partition that hold nothing from `start` on: what is not written yet need not be.
    pub fn trim(&mut self, partition: PartitionId, start: Offset) {
        self.closed.retain(|(id, run)| *id != partition || run.end() > start);
        if self.open.get(&partition).is_some_and(|run| run.end() <= start) {
            self.open.remove(&partition);
        }
    }

    /// Drops the runs of all partitions that are not to be kept.
    pub fn retain(&mut self, keep: impl Fn(PartitionId) -> bool) {
        self.closed.retain(|(partition, _)| keep(*partition));
        self.open.retain(|partition, _| keep(*partition));
    }

    /// Makes segments of everything and is empty then. They are in order, because neighbours are found faster in
    /// the engine's buffers.
    pub fn seal(&mut self) -> Vec<Sealed> {
        let mut runs = std::mem::take(&mut self.closed);
        runs.extend(self.open.drain());
        runs.sort_unstable_by_key(|(partition, run)| (*partition, run.header.base));
        let (mut sealed, mut rest) = (Vec::with_capacity(runs.len()), &runs[..]);
        while !rest.is_empty() {
            let mut bytes = 0;
            let of_buffer = rest.iter().take_while(|(_, run)| {
                let room = bytes < BUFFER_BYTES;
                bytes += if room { run.stored_bytes() } else { 0 };
                room
            });
            let (some, others) = rest.split_at(of_buffer.count());
            self.seal_some(some, bytes, &mut sealed);
            rest = others;
        }
        self.bytes.clear();
        self.bytes.shrink_to(ROOM_KEPT);
        sealed
    }

    /// Makes segments of some runs, in one buffer of so many bytes.
    fn seal_some(&self, runs: &[(PartitionId, Run)], bytes: usize, sealed: &mut Vec<Sealed>) {
        let mut buffer = Vec::with_capacity(bytes);
        for (partition, run) in runs {
            buffer.extend_from_slice(&segment_key(*partition, run.header.base, run.header.created_at));
            let value_at = buffer.len();
            buffer.resize(value_at + Segment::BODY_AT, 0);
            run.places().for_each(|place| buffer.extend_from_slice(&self.bytes[place.clone()]));
            Segment::seal(&run.header, &mut buffer[value_at..]);
        }
        let mut buffer = Bytes::from(buffer);
        for (partition, run) in runs {
            let key = buffer.split_to(KEY_BYTES);
            let value = buffer.split_to(run.stored_bytes() - KEY_BYTES);
            let segment = Segment::new(*partition, run.header, value.slice(Segment::BODY_AT..));
            sealed.push(Sealed { key, value, segment });
        }
    }
}

#[cfg(test)]
mod tests {
    use baton_store::NewMessage;

    use super::*;

    fn block(payloads: &[&str]) -> Block {
        let mut block = Block::default();
        for payload in payloads {
            block.push(&NewMessage { payload: payload.as_bytes(), ..NewMessage::default() });
        }
        block
    }

    fn payloads(segment: &Segment) -> Vec<Bytes> {
        segment.messages().map(|message| message.unwrap().payload).collect()
    }

    fn add(filling: &mut Filling, partition: u64, first: u64, at: i64, with: &[&str]) {
        filling.add(PartitionId(partition), Offset(first), Timestamp::from_micros(at), &block(with));
    }

    #[test]
    fn messages_that_came_apart_become_one_segment_unless_it_was_closed() {
        let mut filling = Filling::default();
        add(&mut filling, 2, 5, 1, &["a", "b"]);
        add(&mut filling, 1, 0, 2, &["x"]);
        add(&mut filling, 2, 7, 3, &["c"]);
        filling.close();
        add(&mut filling, 2, 8, 4, &["d"]);
        let young: Vec<_> =
            filling.runs(PartitionId(2)).map(|run| filling.segment(PartitionId(2), run)).collect();
        let sealed = filling.seal();
        let found: Vec<_> = sealed
            .iter()
            .map(|sealed| {
                let read = Segment::decode(sealed.segment.partition(), sealed.value.clone()).unwrap();
                assert_eq!(read.header, sealed.segment.header);
                assert_eq!(payloads(&read), payloads(&sealed.segment));
                let (header, partition) = (read.header, read.partition());
                assert_eq!(sealed.key, segment_key(partition, header.base, header.created_at)[..]);
                (partition.0, header.base.0, header.created_at.micros(), payloads(&read).concat())
            })
            .collect();
        assert_eq!(found, [(1, 0, 2, b"x".to_vec()), (2, 5, 1, b"abc".to_vec()), (2, 8, 4, b"d".to_vec())]);
        assert_eq!(young.iter().map(payloads).collect::<Vec<_>>(), [["a", "b", "c"].to_vec(), vec!["d"]]);
        assert!(filling.seal().is_empty());
    }

    #[test]
    fn what_was_given_up_is_not_written() {
        let mut filling = Filling::default();
        add(&mut filling, 1, 0, 1, &["a", "b"]);
        filling.close();
        add(&mut filling, 1, 2, 2, &["c"]);
        add(&mut filling, 2, 0, 2, &["d"]);
        filling.trim(PartitionId(1), Offset(1));
        assert_eq!(filling.runs(PartitionId(1)).count(), 2);
        filling.trim(PartitionId(1), Offset(2));
        assert_eq!(filling.runs(PartitionId(1)).count(), 1);
        filling.retain(|partition| partition == PartitionId(1));
        let kept: Vec<_> = filling.seal().into_iter().map(|sealed| sealed.segment.header.base).collect();
        assert_eq!(kept, [Offset(2)]);
    }

    #[test]
    fn large_groups_have_several_buffers() {
        let (mut filling, large) = (Filling::default(), "y".repeat(BUFFER_BYTES / 3));
        for partition in 0..10 {
            add(&mut filling, partition, 0, 1, &[&large, &partition.to_string()]);
        }
        let sealed = filling.seal();
        assert_eq!(sealed.len(), 10);
        for (partition, sealed) in sealed.iter().enumerate() {
            let segment = Segment::decode(PartitionId(partition as u64), sealed.value.clone()).unwrap();
            assert_eq!(payloads(&segment), [large.clone(), partition.to_string()]);
        }
    }
}
