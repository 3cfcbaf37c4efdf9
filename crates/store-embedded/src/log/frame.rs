//! One commit as it stands in the log.
//!
//! Layout, little endian: magic `BL`, format 1, 0; bytes of rows u64; bytes of entries u64; number of the commit u64;
//! number of the last commit that was synced before it u64; sum of the xxh3-64 of all entries' keys u64; xxh3-64 of all
//! that and of the rows u64. Then the rows, table by table: name (u8 length and bytes), how many u32, and each: length of
//! the key u32, length of the value u32 or all ones where the row goes, key, value. Then the entries, each a segment's key
//! and the segment, which has a checksum of its own.

use baton_store::Segment;
use baton_types::PartitionId;
use bytes::{Buf, BufMut, Bytes};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::{Place, Segments};
use crate::remembered::Packed;
use crate::tables::{SEGMENT_KEY_BYTES, read_pair};
use crate::writer::Write;

const MAGIC: [u8; 4] = [b'B', b'L', 1, 0];
const SUM_AT: usize = 44;
const HEAD_BYTES: usize = SUM_AT + 8;
/// Stands for the length of a value where a row is removed.
const REMOVED: u32 = u32::MAX;

/// The frame of a commit, up to its entries, written when the commits up to `synced` were.
pub fn encode(number: u64, synced: u64, writes: &[Write], ids: &[Packed], segments: &Segments) -> Vec<u8> {
    let payload = |write: &Write| 8 + write.key.len() + write.value.as_ref().map_or(0, |value| value.len());
    let ids_bytes = ids.iter().map(|packed| 64 + packed.value.len()).sum::<usize>();
    let mut bytes =
        Vec::with_capacity(HEAD_BYTES + 64 + writes.iter().map(payload).sum::<usize>() + ids_bytes);
    bytes.resize(HEAD_BYTES, 0);
    for table in writes.chunk_by(|one, next| one.table.name() == next.table.name()) {
        put_table(&mut bytes, table[0].table.name(), table.len());
        for Write { key, value, .. } in table {
            put_row(&mut bytes, key, value.as_deref());
        }
    }
    for packed in ids {
        put_table(&mut bytes, &packed.name(), 1);
        put_row(&mut bytes, &[], Some(&packed.value));
    }
    let (head, rows) = bytes.split_at_mut(HEAD_BYTES);
    let mut fields = &mut head[..];
    fields.put_slice(&MAGIC);
    fields.put_u64_le(rows.len() as u64);
    fields.put_u64_le(segments.bytes);
    fields.put_u64_le(number);
    fields.put_u64_le(synced);
    fields.put_u64_le(sum_of_keys(segments.index.iter().map(|segment| &segment.key[..])));
    let sum = checksum(&head[..SUM_AT], rows);
    head[SUM_AT..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn put_table(bytes: &mut Vec<u8>, name: &str, rows: usize) {
    bytes.put_u8(u8::try_from(name.len()).unwrap_or(u8::MAX));
    bytes.put_slice(name.as_bytes());
    bytes.put_u32_le(length(rows));
}

fn put_row(bytes: &mut Vec<u8>, key: &[u8], value: Option<&[u8]>) {
    bytes.put_u32_le(length(key.len()));
    bytes.put_u32_le(value.map_or(REMOVED, |value| length(value.len())));
    bytes.put_slice(key);
    bytes.put_slice(value.unwrap_or_default());
}

fn length(of: usize) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}

/// Also shows when a key is not the one that was written, in whatever order they come.
fn sum_of_keys<'a>(keys: impl Iterator<Item = &'a [u8]>) -> u64 {
    keys.map(xxh3_64).fold(0, u64::wrapping_add)
}

fn checksum(head: &[u8], rows: &[u8]) -> u64 {
    let mut hasher = Xxh3::new();
    hasher.update(head);
    hasher.update(rows);
    hasher.digest()
}

/// A frame that was read back.
pub struct Frame {
    /// Which commit it is.
    pub number: u64,
    /// The last commit that was synced before it was written.
    pub synced: u64,
    /// Its segments, whose keys are what was written.
    pub entries: Vec<Entry>,
    rows: Bytes,
    entries_bytes: u64,
}

/// One row of a commit.
pub struct Row {
    pub table: Bytes,
    pub key: Bytes,
    /// Nothing where the row goes.
    pub value: Option<Bytes>,
}

/// One segment of a commit.
pub struct Entry {
    /// Where it begins in the frame.
    pub at: u64,
    /// Its key and itself.
    pub bytes: Bytes,
}

impl Entry {
    pub fn key(&self) -> &[u8] {
        &self.bytes[..SEGMENT_KEY_BYTES]
    }

    /// Its place, in a file where its frame begins at `frame_at`.
    pub fn place(&self, file: u64, frame_at: u64) -> Place {
        Place { file, at: frame_at + self.at, length: length(self.bytes.len()) }
    }

    /// The segment, unless it is damaged.
    pub fn segment(&self) -> Option<Segment> {
        let (partition, _) = read_pair(&self.bytes[..16]).ok()?;
        Segment::decode(PartitionId(partition), self.bytes.slice(SEGMENT_KEY_BYTES..)).ok()
    }
}

impl Frame {
    /// The frame at the beginning of `bytes`; nothing if there is no whole one. Of segments only the keys are looked at.
    pub fn read(bytes: &Bytes) -> Option<Self> {
        let mut rest = bytes.clone();
        let head = take(&mut rest, HEAD_BYTES)?;
        let mut fields = head.slice(MAGIC.len()..);
        let mut field = || fields.get_u64_le();
        let (rows, entries_bytes, number, synced) = (field(), field(), field(), field());
        let (keys, sum) = (field(), field());
        let rows = take(&mut rest, usize::try_from(rows).ok()?)?;
        if head[..MAGIC.len()] != MAGIC || checksum(&head[..SUM_AT], &rows) != sum {
            return None;
        }
        let first_at = HEAD_BYTES + rows.len();
        let entries = read_entries(take(&mut rest, usize::try_from(entries_bytes).ok()?)?, first_at as u64)?;
        let frame = Self { number, synced, entries, rows, entries_bytes };
        (sum_of_keys(frame.entries.iter().map(Entry::key)) == keys).then_some(frame)
    }

    /// All frames that stand anywhere in `bytes`.
    pub fn all_in(bytes: &Bytes) -> impl Iterator<Item = Self> {
        let begins = bytes.windows(MAGIC.len()).enumerate().filter(|(_, some)| **some == MAGIC);
        begins.filter_map(|(at, _)| Self::read(&bytes.slice(at..)))
    }

    /// Its bytes in the log.
    pub fn len(&self) -> u64 {
        HEAD_BYTES as u64 + self.rows_bytes() + self.entries_bytes
    }

    pub fn rows_bytes(&self) -> u64 {
        self.rows.len() as u64
    }

    pub fn entries_bytes(&self) -> u64 {
        self.entries_bytes
    }

    /// The rows; nothing if they cannot be made sense of.
    pub fn rows(&self) -> Option<Vec<Row>> {
        let (mut rest, mut rows) = (self.rows.clone(), Vec::new());
        while !rest.is_empty() {
            let name = usize::from(*take(&mut rest, 1)?.first()?);
            let table = take(&mut rest, name)?;
            for _ in 0..take_u32(&mut rest)? {
                let (key, value) = (take_u32(&mut rest)?, take_u32(&mut rest)?);
                let key = take(&mut rest, usize::try_from(key).ok()?)?;
                let value = match value {
                    REMOVED => None,
                    length => Some(take(&mut rest, usize::try_from(length).ok()?)?),
                };
                rows.push(Row { table: table.clone(), key, value });
            }
        }
        Some(rows)
    }
}

fn read_entries(mut rest: Bytes, mut at: u64) -> Option<Vec<Entry>> {
    let mut entries = Vec::new();
    while !rest.is_empty() {
        let length = Segment::encoded_len(rest.get(SEGMENT_KEY_BYTES..)?)?;
        let bytes = take(&mut rest, SEGMENT_KEY_BYTES.checked_add(length)?)?;
        entries.push(Entry { at, bytes });
        at += entries.last()?.bytes.len() as u64;
    }
    Some(entries)
}

fn take(rest: &mut Bytes, bytes: usize) -> Option<Bytes> {
    (bytes <= rest.len()).then(|| rest.split_to(bytes))
}

fn take_u32(rest: &mut Bytes) -> Option<u32> {
    Some(u32::from_le_bytes(take(rest, 4)?[..].try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use baton_store::{MessageBlock, NewMessage, SegmentHeader};
    use baton_types::{Offset, Timestamp};

    use super::*;
    use crate::tables::segment_key;

    /// A frame with rows of two tables and two segments.
    fn frame() -> Vec<u8> {
        let directory = tempfile::tempdir().unwrap();
        let db = fjall::Database::builder(directory.path()).open().unwrap();
        let [one, other] = ["one", "other"].map(|name| db.keyspace(name, Default::default).unwrap());
        let rows =
            [(&one, "a", Some("1")), (&one, "b", None), (&other, "", Some("")), (&one, "c", Some("2"))];
        let write = |(table, key, value): (&fjall::Keyspace, &str, Option<&str>)| Write {
            table: table.clone(),
            key: key.into(),
            value: value.map(Into::into),
        };
        let mut segments = Segments::default();
        for (partition, base, payload) in [(1, 0, "x"), (2, 9, "yz")] {
            let (base, created_at) = (Offset(base), Timestamp::from_micros(7));
            let key = segment_key(PartitionId(partition), base, created_at);
            let mut block = MessageBlock::default();
            block.push(&NewMessage { payload: payload.as_bytes(), ..NewMessage::default() });
            let segment = Segment::encode(&SegmentHeader { base, count: 1, created_at }, block.bytes());
            segments.add(key, [&key[..], &segment].concat().into());
        }
        [encode(5, 3, &rows.map(write), &[], &segments), segments.pieces.concat()].concat()
    }

    #[test]
    fn a_commit_is_read_back_as_it_was_written() {
        let bytes = frame();
        let read = Frame::read(&[&bytes[..], b"what follows"].concat().into()).unwrap();
        assert_eq!((read.number, read.synced, read.len()), (5, 3, bytes.len() as u64));
        let somewhere = [b"BL\x01\0BL\x01", &bytes[..], b"BL", &bytes].concat().into();
        assert_eq!(Frame::all_in(&somewhere).map(|frame| frame.number).collect::<Vec<_>>(), [5, 5]);
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
        let places = read.entries.iter().map(|entry| {
            let at = usize::try_from(entry.at).unwrap();
            assert_eq!(bytes[at..][..entry.bytes.len()], entry.bytes);
            let segment = entry.segment().unwrap();
            (segment.partition(), segment.header.base)
        });
        assert_eq!(places.collect::<Vec<_>>(), [(PartitionId(1), Offset(0)), (PartitionId(2), Offset(9))]);
    }

    #[test]
    fn a_commit_that_is_cut_short_or_changed_is_none() {
        let whole = frame();
        let is_whole = |bytes: Vec<u8>| {
            let read = Frame::read(&bytes.into());
            read.is_some_and(|read| read.entries.iter().all(|entry| entry.segment().is_some()))
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
