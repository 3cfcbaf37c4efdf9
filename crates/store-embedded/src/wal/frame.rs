//! The layout of a commit in the log.
//!
//! Little endian: magic `BL`, format 1, 0; bytes of rows u64; bytes of segments u64; number of the commit u64; number of
//! the last commit that was synced before it u64; sum of the xxh3-64 of all segments' keys u64; xxh3-64 of all that and of
//! the rows u64. Then the rows, table by table: name (u8 length and bytes), count u32, and for each row: length of the key
//! u32, length of the value u32 or all ones for a removal, key, value. Then the segments, each with its key before it.
//! A segment has a checksum of its own.

use baton_store::Segment;
use baton_types::PartitionId;
use bytes::{Buf, BufMut, Bytes};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::SegmentPlace;
use crate::rows::{SEGMENT_KEY_BYTES, read_pair};

const MAGIC: [u8; 4] = [b'B', b'L', 1, 0];
const SUM_AT: usize = 44;
const HEAD_BYTES: usize = SUM_AT + 8;
/// The length of the value of a row that is removed.
const REMOVED: u32 = u32::MAX;

/// A row of a commit, to be written to the log.
#[derive(Clone, Copy)]
pub struct RowRef<'a> {
    pub table: &'a str,
    pub key: &'a [u8],
    /// `None` removes the row.
    pub value: Option<&'a [u8]>,
}

/// The segments that a commit adds, each with its key before it.
#[derive(Default)]
pub struct BatchSegments {
    /// Their bytes.
    pub pieces: Vec<Bytes>,
    /// Where each begins in these bytes.
    pub index: Vec<IndexedSegment>,
    pub bytes: u64,
}

/// A segment's key, and its place in the bytes of a commit's segments.
pub struct IndexedSegment {
    pub key: [u8; SEGMENT_KEY_BYTES],
    pub at: u64,
    pub length: u32,
}

impl BatchSegments {
    /// Adds a segment with its key before it.
    pub fn add(&mut self, key: [u8; SEGMENT_KEY_BYTES], segment: Bytes) {
        let length = u32::try_from(segment.len()).unwrap_or(u32::MAX);
        self.index.push(IndexedSegment { key, at: self.bytes, length });
        self.bytes += u64::from(length);
        self.pieces.push(segment);
    }
}

/// The frame of a commit without its segments. `synced` is the last commit that was synced before.
pub fn encode_frame(number: u64, synced: u64, rows: &[RowRef<'_>], segments: &BatchSegments) -> Vec<u8> {
    let row_bytes = |row: &RowRef<'_>| 24 + row.key.len() + row.value.map_or(0, <[u8]>::len);
    let mut bytes = Vec::with_capacity(HEAD_BYTES + 64 + rows.iter().map(row_bytes).sum::<usize>());
    bytes.resize(HEAD_BYTES, 0);
    for table in rows.chunk_by(|one, next| one.table == next.table) {
        put_table(&mut bytes, table[0].table, table.len());
        for row in table {
            put_row(&mut bytes, row.key, row.value);
        }
    }
    let (head, rows) = bytes.split_at_mut(HEAD_BYTES);
    let mut fields = &mut head[..];
    fields.put_slice(&MAGIC);
    fields.put_u64_le(rows.len() as u64);
    fields.put_u64_le(segments.bytes);
    fields.put_u64_le(number);
    fields.put_u64_le(synced);
    fields.put_u64_le(sum_key_hashes(segments.index.iter().map(|segment| &segment.key[..])));
    let sum = checksum(&head[..SUM_AT], rows);
    head[SUM_AT..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn put_table(bytes: &mut Vec<u8>, name: &str, rows: usize) {
    bytes.put_u8(u8::try_from(name.len()).unwrap_or(u8::MAX));
    bytes.put_slice(name.as_bytes());
    bytes.put_u32_le(length_u32(rows));
}

fn put_row(bytes: &mut Vec<u8>, key: &[u8], value: Option<&[u8]>) {
    bytes.put_u32_le(length_u32(key.len()));
    bytes.put_u32_le(value.map_or(REMOVED, |value| length_u32(value.len())));
    bytes.put_slice(key);
    bytes.put_slice(value.unwrap_or_default());
}

fn length_u32(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// Detects a changed key. Does not depend on the order of the keys.
fn sum_key_hashes<'a>(keys: impl Iterator<Item = &'a [u8]>) -> u64 {
    keys.map(xxh3_64).fold(0, u64::wrapping_add)
}

fn checksum(head: &[u8], rows: &[u8]) -> u64 {
    let mut hasher = Xxh3::new();
    hasher.update(head);
    hasher.update(rows);
    hasher.digest()
}

/// A decoded frame.
pub struct Frame {
    /// The number of the commit.
    pub number: u64,
    /// The last commit that was synced before it was written.
    pub synced: u64,
    /// Its segments. Their keys are verified.
    pub segments: Vec<FrameSegment>,
    rows: Bytes,
    segments_bytes: u64,
}

/// One row of a commit.
pub struct FrameRow {
    pub table: Bytes,
    pub key: Bytes,
    /// `None` removes the row.
    pub value: Option<Bytes>,
}

/// One segment of a commit.
pub struct FrameSegment {
    /// Its distance from the beginning of the frame.
    pub at: u64,
    /// Its key and the segment.
    pub bytes: Bytes,
}

impl FrameSegment {
    pub fn key(&self) -> &[u8] {
        &self.bytes[..SEGMENT_KEY_BYTES]
    }

    /// Its place in a file in which its frame begins at `frame_at`.
    pub fn place(&self, file: u64, frame_at: u64) -> SegmentPlace {
        SegmentPlace { file, at: frame_at + self.at, length: length_u32(self.bytes.len()) }
    }

    /// The segment; `None` if it is damaged.
    pub fn decode(&self) -> Option<Segment> {
        let (partition, _) = read_pair(&self.bytes[..16]).ok()?;
        Segment::decode(PartitionId(partition), self.bytes.slice(SEGMENT_KEY_BYTES..)).ok()
    }
}

impl Frame {
    /// The frame at the beginning of `bytes`; `None` if it is torn or damaged. Verifies only the keys of segments.
    pub fn decode(bytes: &Bytes) -> Option<Self> {
        let mut rest = bytes.clone();
        let head = split_bytes(&mut rest, HEAD_BYTES)?;
        let mut fields = head.slice(MAGIC.len()..);
        let mut field = || fields.get_u64_le();
        let (rows, segments_bytes, number, synced) = (field(), field(), field(), field());
        let (keys, sum) = (field(), field());
        let rows = split_bytes(&mut rest, usize::try_from(rows).ok()?)?;
        if head[..MAGIC.len()] != MAGIC || checksum(&head[..SUM_AT], &rows) != sum {
            return None;
        }
        let first_at = HEAD_BYTES + rows.len();
        let segments = split_bytes(&mut rest, usize::try_from(segments_bytes).ok()?)?;
        let segments = split_segments(segments, first_at as u64)?;
        let frame = Self { number, synced, segments, rows, segments_bytes };
        (sum_key_hashes(frame.segments.iter().map(FrameSegment::key)) == keys).then_some(frame)
    }

    /// All frames anywhere in `bytes`.
    pub fn find_all(bytes: &Bytes) -> impl Iterator<Item = Self> {
        let begins = bytes.windows(MAGIC.len()).enumerate().filter(|(_, some)| **some == MAGIC);
        begins.filter_map(|(at, _)| Self::decode(&bytes.slice(at..)))
    }

    /// Its bytes in the log.
    pub fn len(&self) -> u64 {
        HEAD_BYTES as u64 + self.rows_bytes() + self.segments_bytes
    }

    pub fn rows_bytes(&self) -> u64 {
        self.rows.len() as u64
    }

    pub fn segments_bytes(&self) -> u64 {
        self.segments_bytes
    }

    /// The rows; `None` if they cannot be decoded.
    pub fn rows(&self) -> Option<Vec<FrameRow>> {
        let (mut rest, mut rows) = (self.rows.clone(), Vec::new());
        while !rest.is_empty() {
            let name = usize::from(*split_bytes(&mut rest, 1)?.first()?);
            let table = split_bytes(&mut rest, name)?;
            for _ in 0..read_u32(&mut rest)? {
                let (key, value) = (read_u32(&mut rest)?, read_u32(&mut rest)?);
                let key = split_bytes(&mut rest, usize::try_from(key).ok()?)?;
                let value = match value {
                    REMOVED => None,
                    length => Some(split_bytes(&mut rest, usize::try_from(length).ok()?)?),
                };
                rows.push(FrameRow { table: table.clone(), key, value });
            }
        }
        Some(rows)
    }
}

fn split_segments(mut rest: Bytes, mut at: u64) -> Option<Vec<FrameSegment>> {
    let mut segments = Vec::new();
    while !rest.is_empty() {
        let length = Segment::encoded_len(rest.get(SEGMENT_KEY_BYTES..)?)?;
        let bytes = split_bytes(&mut rest, SEGMENT_KEY_BYTES.checked_add(length)?)?;
        segments.push(FrameSegment { at, bytes });
        at += segments.last()?.bytes.len() as u64;
    }
    Some(segments)
}

fn split_bytes(rest: &mut Bytes, bytes: usize) -> Option<Bytes> {
    (bytes <= rest.len()).then(|| rest.split_to(bytes))
}

fn read_u32(rest: &mut Bytes) -> Option<u32> {
    Some(u32::from_le_bytes(split_bytes(rest, 4)?[..].try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use baton_store::{MessageBlock, NewMessage, SegmentHeader};
    use baton_types::{Offset, Timestamp};

    use super::*;
    use crate::rows::segment_key;

    /// A frame with rows of two tables and two segments.
    fn frame() -> Vec<u8> {
        let rows =
            [("one", "a", Some("1")), ("one", "b", None), ("other", "", Some("")), ("one", "c", Some("2"))];
        let rows = rows.map(|(table, key, value)| RowRef {
            table,
            key: key.as_bytes(),
            value: value.map(str::as_bytes),
        });
        let mut segments = BatchSegments::default();
        for (partition, base, payload) in [(1, 0, "x"), (2, 9, "yz")] {
            let (base, created_at) = (Offset(base), Timestamp::from_micros(7));
            let key = segment_key(PartitionId(partition), base, created_at);
            let mut block = MessageBlock::default();
            block.push(&NewMessage { payload: payload.as_bytes(), ..NewMessage::default() });
            let segment = Segment::encode(&SegmentHeader { base, count: 1, created_at }, block.bytes());
            segments.add(key, [&key[..], &segment].concat().into());
        }
        [encode_frame(5, 3, &rows, &segments), segments.pieces.concat()].concat()
    }

    #[test]
    fn a_commit_is_read_back_as_it_was_written() {
        let bytes = frame();
        let read = Frame::decode(&[&bytes[..], b"what follows"].concat().into()).unwrap();
        assert_eq!((read.number, read.synced, read.len()), (5, 3, bytes.len() as u64));
        let somewhere = [b"BL\x01\0BL\x01", &bytes[..], b"BL", &bytes].concat().into();
        assert_eq!(Frame::find_all(&somewhere).map(|frame| frame.number).collect::<Vec<_>>(), [5, 5]);
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let rows = read.rows().unwrap().into_iter();
        let rows: Vec<_> =
            rows.map(|row| (text(&row.table), text(&row.key), row.value.map(|v| text(&v)))).collect();
        let rows: Vec<_> =
            rows.iter().map(|(table, key, value)| (&table[..], &key[..], value.as_deref())).collect();
        assert_eq!(
            rows,
            [("one", "a", Some("1")), ("one", "b", None), ("other", "", Some("")), ("one", "c", Some("2"))]
        );
        let places = read.segments.iter().map(|stored| {
            let at = usize::try_from(stored.at).unwrap();
            assert_eq!(bytes[at..][..stored.bytes.len()], stored.bytes);
            let segment = stored.decode().unwrap();
            (segment.partition(), segment.header.base)
        });
        assert_eq!(places.collect::<Vec<_>>(), [(PartitionId(1), Offset(0)), (PartitionId(2), Offset(9))]);
    }

    #[test]
    fn a_frame_that_is_cut_short_or_changed_is_not_decoded() {
        let whole = frame();
        let is_whole = |bytes: Vec<u8>| {
            let read = Frame::decode(&bytes.into());
            read.is_some_and(|read| read.segments.iter().all(|stored| stored.decode().is_some()))
        };
        assert!(is_whole(whole.clone()));
        for at in 0..whole.len() {
            assert!(!is_whole(whole[..at].to_vec()), "cut at {at}");
            let mut torn = whole.clone();
            torn[at..].fill(0);
            assert!(torn == whole || !is_whole(torn), "zeros from {at}");
            let mut changed = whole.clone();
            changed[at] ^= 0x55;
            assert!(!is_whole(changed), "changed at {at}");
        }
    }
}
