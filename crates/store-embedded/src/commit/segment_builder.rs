//! The messages of the batch that is filling, which become segments.
//!
//! Messages are copied once, as they are appended, into buffers that many segments share. Before the first messages of
//! a segment the buffer has room for its key and header. So if no other partition's messages came between, the segment
//! goes to the log as it is, together with its neighbours. Only segments that were appended in pieces are joined when the
//! batch is sealed. With a million partitions a segment is often one small message, and an allocation for each segment,
//! key and hand-over would cost more than the message. With large batches copying is what costs. Always: a partition's
//! segments are in the order of their offsets, and all but the last are closed.

use std::collections::hash_map::Entry;
use std::ops::Range;

use baton_store::{MessageBlock, Segment, SegmentHeader};
use baton_types::{Offset, PartitionId, Timestamp};
use bytes::Bytes;
use rustc_hash::FxHashMap;

use crate::rows::{SEGMENT_KEY_BYTES, segment_key};
use crate::wal::{BatchSegments, IndexedSegment};

/// Segments share a buffer of about this size. It is freed with the last of them.
const BUFFER_BYTES: usize = 256 << 10;
/// The bytes before the messages of a segment: its key and its header.
const HEAD_BYTES: usize = SEGMENT_KEY_BYTES + Segment::BODY_OFFSET;

/// The segments that are being built.
#[derive(Default)]
pub struct SegmentBuilder {
    /// In the order in which they began.
    segments: Vec<OpenSegment>,
    /// How many of the first ones are closed.
    closed: usize,
    /// The index of each partition's open segment.
    open: FxHashMap<PartitionId, usize>,
    buffers: Buffers,
}

/// Messages of one partition that become one segment.
pub struct OpenSegment {
    partition: PartitionId,
    pub header: SegmentHeader,
    /// Whether it was deleted before it was written.
    dropped: bool,
    /// The places of its messages; nearly always they were appended at once.
    first: BufferRange,
    rest: Vec<BufferRange>,
}

/// Encoded messages in a buffer.
struct BufferRange {
    buffer: usize,
    bytes: Range<usize>,
}

impl OpenSegment {
    /// The first offset after it.
    pub fn end(&self) -> Offset {
        self.header.base.plus(self.header.count.into())
    }

    fn pieces(&self) -> impl Iterator<Item = &BufferRange> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    /// The bytes of the whole segment with its key before it, if it is in one piece.
    fn stored_range(&self) -> Range<usize> {
        self.first.bytes.start - HEAD_BYTES..self.first.bytes.end
    }

    fn key(&self) -> [u8; SEGMENT_KEY_BYTES] {
        segment_key(self.partition, self.header.base, self.header.created_at)
    }

    fn drop_unwritten(&mut self) {
        self.dropped = true;
    }
}

/// Encoded messages in the order in which they were appended.
#[derive(Default)]
struct Buffers {
    all: Vec<Vec<u8>>,
    /// The size of the first buffer.
    expected: usize,
}

impl Buffers {
    /// Adds messages after `room` empty bytes.
    fn add_messages(&mut self, room: usize, messages: &[&[u8]]) -> BufferRange {
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
        BufferRange { buffer: index, bytes: from..buffer.len() }
    }

    /// Adds messages right after a piece, if it is the last one and there is room.
    fn extend_piece(&mut self, piece: &mut BufferRange, messages: &[u8]) -> bool {
        let is_last = piece.buffer + 1 == self.all.len() && self.all[piece.buffer].len() == piece.bytes.end;
        if !is_last || !self.fits(messages.len()) {
            return false;
        }
        let buffer = &mut self.all[piece.buffer];
        buffer.extend_from_slice(messages);
        piece.bytes.end = buffer.len();
        true
    }

    /// Whether the last buffer has room for so many more bytes.
    fn fits(&self, bytes: usize) -> bool {
        let takes = |last: &Vec<u8>| last.len() + bytes <= last.capacity().max(BUFFER_BYTES);
        self.all.last().is_some_and(takes)
    }

    fn bytes_of(&self, piece: &BufferRange) -> &[u8] {
        &self.all[piece.buffer][piece.bytes.clone()]
    }

    /// Takes all buffers. The next first buffer has the size that these needed.
    fn take_all(&mut self) -> Vec<Vec<u8>> {
        self.expected = self.all.iter().map(Vec::len).sum::<usize>().min(BUFFER_BYTES);
        std::mem::take(&mut self.all)
    }
}

impl SegmentBuilder {
    /// The time of a partition's open segment, to which further messages go.
    pub fn open_segment_time(&self, partition: PartitionId) -> Option<Timestamp> {
        self.open.get(&partition).map(|at| self.segments[*at].header.created_at)
    }

    /// Adds messages to the partition's open segment. `first` and `created_at` are for a new segment.
    pub fn add_messages(
        &mut self,
        partition: PartitionId,
        first: Offset,
        created_at: Timestamp,
        block: &MessageBlock,
    ) {
        let count = u32::try_from(block.len()).unwrap_or(u32::MAX);
        match self.open.entry(partition) {
            Entry::Occupied(entry) => {
                let segment = &mut self.segments[*entry.get()];
                segment.header.count += count;
                let last = segment.rest.last_mut().unwrap_or(&mut segment.first);
                if !self.buffers.extend_piece(last, block.bytes()) {
                    segment.rest.push(self.buffers.add_messages(0, &[block.bytes()]));
                }
            }
            Entry::Vacant(entry) => {
                entry.insert(self.segments.len());
                self.segments.push(OpenSegment {
                    partition,
                    header: SegmentHeader { base: first, count, created_at },
                    dropped: false,
                    first: self.buffers.add_messages(HEAD_BYTES, &[block.bytes()]),
                    rest: Vec::new(),
                });
            }
        }
    }

    /// Closes all open segments: further messages begin new ones.
    pub fn close_segments(&mut self) {
        self.open.clear();
        self.closed = self.segments.len();
    }

    /// The segments of a partition, oldest first.
    pub fn segments_of(&self, partition: PartitionId) -> impl Iterator<Item = &OpenSegment> {
        let closed = self.segments[..self.closed].iter();
        let closed = closed.filter(move |segment| segment.partition == partition && !segment.dropped);
        closed.chain(self.open.get(&partition).map(|at| &self.segments[*at]))
    }

    /// Copies the messages so far into a segment.
    pub fn copy_segment(&self, segment: &OpenSegment) -> Segment {
        let body: Vec<u8> =
            segment.pieces().flat_map(|piece| self.buffers.bytes_of(piece)).copied().collect();
        Segment::new(segment.partition, segment.header, body.into())
    }

    /// Drops the segments of a partition with messages before `start` only. They need not be written any more.
    pub fn trim(&mut self, partition: PartitionId, start: Offset) {
        let closed = self.segments[..self.closed].iter_mut();
        let before = closed.filter(|segment| segment.partition == partition && segment.end() <= start);
        before.for_each(OpenSegment::drop_unwritten);
        if let Entry::Occupied(entry) = self.open.entry(partition)
            && self.segments[*entry.get()].end() <= start
        {
            self.segments[entry.remove()].drop_unwritten();
        }
    }

    /// Drops the segments of all partitions that do not exist any more.
    pub fn retain_partitions(&mut self, exists: impl Fn(PartitionId) -> bool) {
        let gone = self.segments.iter_mut().filter(|segment| !exists(segment.partition));
        gone.for_each(OpenSegment::drop_unwritten);
        self.open.retain(|partition, _| exists(*partition));
    }

    /// Builds all segments and empties the builder. The segments are in the order of their keys, which makes inserts into the
    /// engine faster. Their bytes go to the log in the order in which they were appended.
    pub fn seal(&mut self) -> (Vec<Segment>, BatchSegments) {
        let mut open = std::mem::take(&mut self.segments);
        self.close_segments();
        open.retain(|segment| !segment.dropped);
        let mut joined = self.join_pieces(&mut open);
        let mut buffers = self.buffers.take_all();
        let joined_from = buffers.len();
        buffers.append(&mut joined);
        for segment in &open {
            let stored = &mut buffers[segment.first.buffer][segment.stored_range()];
            let (key, value) = stored.split_at_mut(SEGMENT_KEY_BYTES);
            key.copy_from_slice(&segment.key());
            Segment::seal(&segment.header, value);
        }
        let buffers: Vec<_> = buffers.into_iter().map(freeze_buffer).collect();
        // Joined segments are behind the others.
        let select = |joined| {
            let open = open.iter().enumerate();
            open.filter(move |(_, segment)| (segment.first.buffer >= joined_from) == joined)
        };
        let (offsets, mut stored) = lay_out(open.len(), select(false).chain(select(true)), &buffers);
        let mut order: Vec<_> =
            (0..).zip(&open).map(|(at, segment)| (segment.partition, segment.header.base, at)).collect();
        order.sort_unstable();
        let mut sealed = Vec::with_capacity(open.len());
        stored.index.reserve_exact(open.len());
        for (_, _, at) in order {
            let OpenSegment { partition, header, first, .. } = &open[at];
            let length = u32::try_from(open[at].stored_range().len()).unwrap_or(u32::MAX);
            stored.index.push(IndexedSegment { key: open[at].key(), at: offsets[at], length });
            sealed.push(Segment::new(*partition, *header, buffers[first.buffer].slice(first.bytes.clone())));
        }
        (sealed, stored)
    }

    /// Joins the segments that are in several pieces, in additional buffers that follow the present ones.
    fn join_pieces(&self, open: &mut [OpenSegment]) -> Vec<Vec<u8>> {
        let mut joined = Buffers { expected: BUFFER_BYTES, ..Buffers::default() };
        for segment in open.iter_mut().filter(|segment| !segment.rest.is_empty()) {
            let pieces: Vec<_> = segment.pieces().map(|piece| self.buffers.bytes_of(piece)).collect();
            let mut whole = joined.add_messages(HEAD_BYTES, &pieces);
            whole.buffer += self.buffers.all.len();
            (segment.first, segment.rest) = (whole, Vec::new());
        }
        joined.take_all()
    }
}

/// Lays the segments out in the given order, neighbours in a buffer as one piece. Returns where each begins.
fn lay_out<'a>(
    count: usize,
    order: impl Iterator<Item = (usize, &'a OpenSegment)>,
    buffers: &[Bytes],
) -> (Vec<u64>, BatchSegments) {
    let (mut pieces, mut bytes): (Vec<(usize, Range<usize>)>, _) = (Vec::new(), 0);
    let mut offsets = vec![0; count];
    for (at, segment) in order {
        let stored = segment.stored_range();
        offsets[at] = bytes;
        bytes += stored.len() as u64;
        match pieces.last_mut() {
            Some((last, piece)) if *last == segment.first.buffer && piece.end == stored.start => {
                piece.end = stored.end;
            }
            _ => pieces.push((segment.first.buffer, stored)),
        }
    }
    let pieces = pieces.into_iter().map(|(buffer, piece)| buffers[buffer].slice(piece)).collect();
    (offsets, BatchSegments { pieces, bytes, ..BatchSegments::default() })
}

/// Makes a full buffer shareable. Frees the unused room at its end if it is large.
fn freeze_buffer(mut buffer: Vec<u8>) -> Bytes {
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

    fn add(builder: &mut SegmentBuilder, partition: u64, first: u64, at: i64, with: &[&str]) {
        builder.add_messages(PartitionId(partition), Offset(first), Timestamp::from_micros(at), &block(with));
    }

    #[test]
    fn messages_in_pieces_become_one_segment_unless_it_was_closed() {
        let mut builder = SegmentBuilder::default();
        add(&mut builder, 2, 5, 1, &["a", "b"]);
        add(&mut builder, 1, 0, 2, &["x"]);
        add(&mut builder, 2, 7, 3, &["c"]);
        builder.close_segments();
        add(&mut builder, 2, 8, 4, &["d"]);
        let young: Vec<_> =
            builder.segments_of(PartitionId(2)).map(|segment| builder.copy_segment(segment)).collect();
        let (segments, stored) = builder.seal();
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
        assert!(builder.seal().0.is_empty());
    }

    #[test]
    fn dropped_segments_are_not_written() {
        let mut builder = SegmentBuilder::default();
        add(&mut builder, 1, 0, 1, &["a", "b"]);
        builder.close_segments();
        add(&mut builder, 1, 2, 2, &["c"]);
        add(&mut builder, 2, 0, 2, &["d"]);
        builder.trim(PartitionId(1), Offset(1));
        assert_eq!(builder.segments_of(PartitionId(1)).count(), 2);
        builder.trim(PartitionId(1), Offset(2));
        assert_eq!(builder.segments_of(PartitionId(1)).count(), 1);
        builder.retain_partitions(|partition| partition == PartitionId(1));
        let kept: Vec<_> = builder.seal().0.iter().map(|segment| segment.header.base).collect();
        assert_eq!(kept, [Offset(2)]);
    }

    #[test]
    fn large_batches_have_several_buffers() {
        let (mut builder, large) = (SegmentBuilder::default(), "y".repeat(BUFFER_BYTES / 3));
        for partition in 0..10 {
            add(&mut builder, partition, 0, 1, &[&large, &partition.to_string()]);
        }
        let (segments, stored) = builder.seal();
        assert_eq!((segments.len(), stored.index.len()), (10, 10));
        for (partition, segment) in segments.iter().enumerate() {
            assert_eq!(payloads(segment), [large.clone(), partition.to_string()]);
        }
        assert!(stored.pieces.len() > 1 && stored.pieces.len() < 10);
    }
}
