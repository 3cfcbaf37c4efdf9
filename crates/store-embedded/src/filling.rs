//! The messages of the filling group, which will become segments.
//!
//! Messages are copied once, as they come, one run after the other into buffers that many runs share, each with room
//! before it for the key and the header of its segment. Where nothing of another partition came between, that is the
//! segment as it goes to the log, together with its neighbours; only runs that came in pieces are put together when the
//! group is handed over. With a million partitions a segment is often one small message, and memory of its own for each,
//! for its key and for every time it changes hands would cost more than the message; with large batches copying is what
//! costs. Always: a partition's runs are in the order of their offsets, and all but the last of them are closed.

use std::collections::hash_map::Entry;
use std::ops::Range;

use baton_store::{MessageBlock, Segment, SegmentHeader};
use baton_types::{Offset, PartitionId, Timestamp};
use bytes::Bytes;
use rustc_hash::FxHashMap;

use crate::log::{Indexed, Segments};
use crate::tables::{SEGMENT_KEY_BYTES, segment_key};

/// Segments share a buffer of about this size, which is freed when none of them is needed any more.
const BUFFER_BYTES: usize = 256 << 10;
/// What stands before the messages of a run.
const ROOM: usize = SEGMENT_KEY_BYTES + Segment::BODY_OFFSET;

/// The runs of messages that have come.
#[derive(Default)]
pub struct Filling {
    /// In the order they began.
    runs: Vec<Run>,
    /// So many of the first of them are closed.
    closed: usize,
    /// Which of the others belongs to a partition.
    open: FxHashMap<PartitionId, usize>,
    buffers: Buffers,
}

/// Messages of one partition that will become one segment.
pub struct Run {
    partition: PartitionId,
    pub header: SegmentHeader,
    /// Whether nobody needs it any more.
    given_up: bool,
    /// Where its messages stand: nearly always they came at once.
    first: Place,
    rest: Vec<Place>,
}

/// Encoded messages in a buffer.
struct Place {
    buffer: usize,
    bytes: Range<usize>,
}

impl Run {
    /// The first offset after it.
    pub fn end(&self) -> Offset {
        self.header.base.plus(self.header.count.into())
    }

    fn places(&self) -> impl Iterator<Item = &Place> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    /// Where it stands as a segment, with its key before it, if it came at once.
    fn stored(&self) -> Range<usize> {
        self.first.bytes.start - ROOM..self.first.bytes.end
    }

    fn key(&self) -> [u8; SEGMENT_KEY_BYTES] {
        segment_key(self.partition, self.header.base, self.header.created_at)
    }

    fn give_up(&mut self) {
        self.given_up = true;
    }
}

/// Encoded messages in the order they came.
#[derive(Default)]
struct Buffers {
    all: Vec<Vec<u8>>,
    /// What the first of them should have room for.
    expected: usize,
}

impl Buffers {
    /// Adds messages after an empty `room`.
    fn add(&mut self, room: usize, messages: &[&[u8]]) -> Place {
        let needed = room + messages.iter().map(|some| some.len()).sum::<usize>();
        if !self.fits(needed) {
            let usual = if self.all.is_empty() { self.expected } else { BUFFER_BYTES };
            self.all.push(Vec::with_capacity(needed.max(usual)));
        }
        let index = self.all.len() - 1;
        let buffer = &mut self.all[index];
        let from = buffer.len() + room;
        buffer.resize(from, 0);
        messages.iter().for_each(|some| buffer.extend_from_slice(some));
        Place { buffer: index, bytes: from..buffer.len() }
    }

    /// Adds messages right after those of a place, if nothing else has come since.
    fn extend(&mut self, place: &mut Place, messages: &[u8]) -> bool {
        let is_last = place.buffer + 1 == self.all.len() && self.all[place.buffer].len() == place.bytes.end;
        if !is_last || !self.fits(messages.len()) {
            return false;
        }
        let buffer = &mut self.all[place.buffer];
        buffer.extend_from_slice(messages);
        place.bytes.end = buffer.len();
        true
    }

    /// Whether the last buffer takes so many more bytes.
    fn fits(&self, bytes: usize) -> bool {
        let takes = |last: &Vec<u8>| last.len() + bytes <= last.capacity().max(BUFFER_BYTES);
        self.all.last().is_some_and(takes)
    }

    fn get(&self, place: &Place) -> &[u8] {
        &self.all[place.buffer][place.bytes.clone()]
    }

    /// Everything that was added; the next time as much is expected.
    fn take(&mut self) -> Vec<Vec<u8>> {
        self.expected = self.all.iter().map(Vec::len).sum::<usize>().min(BUFFER_BYTES);
        std::mem::take(&mut self.all)
    }
}

impl Filling {
    /// The time of the segment that further messages of a partition go to, if there is one.
    pub fn created_at(&self, partition: PartitionId) -> Option<Timestamp> {
        self.open.get(&partition).map(|at| self.runs[*at].header.created_at)
    }

    /// Adds messages; `first` and `created_at` count where they begin a segment.
    pub fn add(
        &mut self,
        partition: PartitionId,
        first: Offset,
        created_at: Timestamp,
        block: &MessageBlock,
    ) {
        let count = u32::try_from(block.len()).unwrap_or(u32::MAX);
        match self.open.entry(partition) {
            Entry::Occupied(entry) => {
                let run = &mut self.runs[*entry.get()];
                run.header.count += count;
                let last = run.rest.last_mut().unwrap_or(&mut run.first);
                if !self.buffers.extend(last, block.bytes()) {
                    run.rest.push(self.buffers.add(0, &[block.bytes()]));
                }
            }
            Entry::Vacant(entry) => {
                entry.insert(self.runs.len());
                self.runs.push(Run {
                    partition,
                    header: SegmentHeader { base: first, count, created_at },
                    given_up: false,
                    first: self.buffers.add(ROOM, &[block.bytes()]),
                    rest: Vec::new(),
                });
            }
        }
    }

    /// From now on messages begin new segments.
    pub fn close(&mut self) {
        self.open.clear();
        self.closed = self.runs.len();
    }

    /// The runs of a partition, oldest first.
    pub fn runs(&self, partition: PartitionId) -> impl Iterator<Item = &Run> {
        let closed = self.runs[..self.closed].iter();
        let closed = closed.filter(move |run| run.partition == partition && !run.given_up);
        closed.chain(self.open.get(&partition).map(|at| &self.runs[*at]))
    }

    /// A run as a segment.
    pub fn segment(&self, run: &Run) -> Segment {
        let body: Vec<u8> = run.places().flat_map(|place| self.buffers.get(place)).copied().collect();
        Segment::new(run.partition, run.header, body.into())
    }

    /// Gives up the runs of a partition that hold nothing from `start` on: what is not written yet need not be.
    pub fn trim(&mut self, partition: PartitionId, start: Offset) {
        let closed = self.runs[..self.closed].iter_mut();
        closed.filter(|run| run.partition == partition && run.end() <= start).for_each(Run::give_up);
        if let Entry::Occupied(entry) = self.open.entry(partition)
            && self.runs[*entry.get()].end() <= start
        {
            self.runs[entry.remove()].give_up();
        }
    }

    /// Gives up the runs of all partitions that are not to be kept.
    pub fn retain(&mut self, keep: impl Fn(PartitionId) -> bool) {
        self.runs.iter_mut().filter(|run| !keep(run.partition)).for_each(Run::give_up);
        self.open.retain(|partition, _| keep(*partition));
    }

    /// Makes segments of everything and is empty then. They are in order, because neighbours are found faster in
    /// the engine's buffers; their bytes go to the log as they came.
    pub fn seal(&mut self) -> (Vec<Segment>, Segments) {
        let mut runs = std::mem::take(&mut self.runs);
        self.close();
        runs.retain(|run| !run.given_up);
        let mut joined = self.join(&mut runs);
        let mut buffers = self.buffers.take();
        let came = buffers.len();
        buffers.append(&mut joined);
        for run in &runs {
            let stored = &mut buffers[run.first.buffer][run.stored()];
            let (room, value) = stored.split_at_mut(SEGMENT_KEY_BYTES);
            room.copy_from_slice(&run.key());
            Segment::seal(&run.header, value);
        }
        let buffers: Vec<_> = buffers.into_iter().map(share).collect();
        // Those that were put together stand behind the others.
        let stands = |joined| {
            let runs = runs.iter().enumerate();
            runs.filter(move |(_, run)| (run.first.buffer >= came) == joined)
        };
        let (places, mut segments) = place(runs.len(), stands(false).chain(stands(true)), &buffers);
        let mut order: Vec<_> =
            (0..).zip(&runs).map(|(at, run)| (run.partition, run.header.base, at)).collect();
        order.sort_unstable();
        let mut sealed = Vec::with_capacity(runs.len());
        segments.index.reserve_exact(runs.len());
        for (_, _, at) in order {
            let Run { partition, header, first, .. } = &runs[at];
            let length = u32::try_from(runs[at].stored().len()).unwrap_or(u32::MAX);
            segments.index.push(Indexed { key: runs[at].key(), at: places[at], length });
            sealed.push(Segment::new(*partition, *header, buffers[first.buffer].slice(first.bytes.clone())));
        }
        (sealed, segments)
    }

    /// Puts together the runs that came in pieces, in further buffers, which count as those after the present ones.
    fn join(&self, runs: &mut [Run]) -> Vec<Vec<u8>> {
        let mut joined = Buffers { expected: BUFFER_BYTES, ..Buffers::default() };
        for run in runs.iter_mut().filter(|run| !run.rest.is_empty()) {
            let pieces: Vec<_> = run.places().map(|place| self.buffers.get(place)).collect();
            let mut place = joined.add(ROOM, &pieces);
            place.buffer += self.buffers.all.len();
            (run.first, run.rest) = (place, Vec::new());
        }
        joined.take()
    }
}

/// Where each run begins among the segments of a commit, which go to the log as they `stand`, neighbours as one piece.
fn place<'a>(
    runs: usize,
    stand: impl Iterator<Item = (usize, &'a Run)>,
    buffers: &[Bytes],
) -> (Vec<u64>, Segments) {
    let (mut pieces, mut bytes): (Vec<(usize, Range<usize>)>, _) = (Vec::new(), 0);
    let mut places = vec![0; runs];
    for (at, run) in stand {
        let stored = run.stored();
        places[at] = bytes;
        bytes += stored.len() as u64;
        match pieces.last_mut() {
            Some((last, piece)) if *last == run.first.buffer && piece.end == stored.start => {
                piece.end = stored.end;
            }
            _ => pieces.push((run.first.buffer, stored)),
        }
    }
    let pieces = pieces.into_iter().map(|(buffer, piece)| buffers[buffer].slice(piece)).collect();
    (places, Segments { pieces, bytes, ..Segments::default() })
}

/// A full buffer for many to share. Much unused room at its end is given back.
fn share(mut buffer: Vec<u8>) -> Bytes {
    if buffer.capacity() - buffer.len() > buffer.len() / 8 {
        buffer.shrink_to_fit();
    }
    buffer.into()
}

#[cfg(test)]
mod tests {
    use baton_store::NewMessage;

    use super::*;

    fn block(payloads: &[&str]) -> MessageBlock {
        let mut block = MessageBlock::default();
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
        let young: Vec<_> = filling.runs(PartitionId(2)).map(|run| filling.segment(run)).collect();
        let (segments, stored) = filling.seal();
        let written = stored.pieces.concat();
        assert_eq!(written.len() as u64, stored.bytes);
        let found: Vec<_> = std::iter::zip(&segments, &stored.index)
            .map(|(segment, indexed)| {
                let at = usize::try_from(indexed.at).unwrap();
                let entry =
                    Bytes::copy_from_slice(&written[at..][..usize::try_from(indexed.length).unwrap()]);
                assert_eq!(entry[..SEGMENT_KEY_BYTES], indexed.key);
                let read = Segment::decode(segment.partition(), entry.slice(SEGMENT_KEY_BYTES..)).unwrap();
                assert_eq!((read.header, payloads(&read)), (segment.header, payloads(segment)));
                let (header, partition) = (read.header, read.partition());
                assert_eq!(indexed.key, segment_key(partition, header.base, header.created_at));
                (partition.0, header.base.0, header.created_at.micros(), payloads(&read).concat())
            })
            .collect();
        assert_eq!(found, [(1, 0, 2, b"x".to_vec()), (2, 5, 1, b"abc".to_vec()), (2, 8, 4, b"d".to_vec())]);
        assert_eq!(young.iter().map(payloads).collect::<Vec<_>>(), [["a", "b", "c"].to_vec(), vec!["d"]]);
        assert!(filling.seal().0.is_empty());
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
        let kept: Vec<_> = filling.seal().0.iter().map(|segment| segment.header.base).collect();
        assert_eq!(kept, [Offset(2)]);
    }

    #[test]
    fn large_groups_have_several_buffers() {
        let (mut filling, large) = (Filling::default(), "y".repeat(BUFFER_BYTES / 3));
        for partition in 0..10 {
            add(&mut filling, partition, 0, 1, &[&large, &partition.to_string()]);
        }
        let (segments, stored) = filling.seal();
        assert_eq!((segments.len(), stored.index.len()), (10, 10));
        for (partition, segment) in segments.iter().enumerate() {
            assert_eq!(payloads(segment), [large.clone(), partition.to_string()]);
        }
        assert!(stored.pieces.len() > 1 && stored.pieces.len() < 10);
    }
}
