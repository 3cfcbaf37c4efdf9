//! The codec of segments (packed runs of messages), shared by every backend.
//!
//! A push of a hundred messages is one value on disk, not a hundred. A producer's task encodes its messages into a
//! [`MessageBlock`] before the store runs; the store only joins blocks and adds a header and a checksum. Payloads
//! stay the bytes that came from the socket. Always: a decoded segment is complete and unchanged, or
//! [`Segment::decode`] returns [`CorruptSegment`]. Deliberately absent: compression (payloads are opaque, and a
//! segment is often one small message) and per-message ids (see `MessageId`).
//!
//! Layout, little endian: magic `BS`, format 1, flags 0, `count` u32, `base` u64, `created_at` i64 (µs), body length
//! u32, xxh3-64 of everything else u64; then `count` messages, each: flags u8, \[transaction id: u16 length and
//! bytes\], \[trace id: 16 bytes\], \[producer: u16 length and bytes\], payload: u32 length and bytes.

use baton_types::{IdHash, MessageId, Offset, PartitionId, Timestamp};
use bytes::{BufMut, Bytes};
use uuid::Uuid;
use xxhash_rust::xxh3::Xxh3;

const MAGIC: [u8; 4] = [b'B', b'S', 1, 0];
const HEADER_BYTES: usize = 36;

const _: () = assert!(HEADER_BYTES == MAGIC.len() + 4 + 8 + 8 + 4 + 8);
const HAS_TRANSACTION: u8 = 1;
const HAS_TRACE: u8 = 2;
const HAS_PRODUCER: u8 = 4;

/// A message without an offset yet.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewMessage<'a> {
    /// The producer's transaction id; without one the message's own id stands in.
    pub transaction_id: Option<&'a str>,
    /// The trace id.
    pub trace_id: Option<Uuid>,
    /// The subject of the producer's token.
    pub producer: Option<&'a str>,
    /// The payload.
    pub payload: &'a [u8],
}

/// Encoded messages for one partition, without offsets yet.
#[derive(Clone, Debug, Default)]
pub struct MessageBlock {
    bytes: Vec<u8>,
    entries: Vec<BlockEntry>,
}

#[derive(Clone, Copy, Debug)]
struct BlockEntry {
    end: usize,
    hash: Option<IdHash>,
}

impl MessageBlock {
    /// Encodes one more message.
    pub fn push(&mut self, message: &NewMessage<'_>) {
        let flags = message.transaction_id.map_or(0, |_| HAS_TRANSACTION)
            | message.trace_id.map_or(0, |_| HAS_TRACE)
            | message.producer.map_or(0, |_| HAS_PRODUCER);
        self.make_room(message);
        self.bytes.put_u8(flags);
        if let Some(id) = message.transaction_id {
            put_short_bytes(&mut self.bytes, id.as_bytes());
        }
        if let Some(trace) = message.trace_id {
            self.bytes.put_slice(trace.as_bytes());
        }
        if let Some(producer) = message.producer {
            put_short_bytes(&mut self.bytes, producer.as_bytes());
        }
        self.bytes.put_u32_le(u32::try_from(message.payload.len()).unwrap_or(u32::MAX));
        self.bytes.put_slice(message.payload);
        let hash = message.transaction_id.map(|id| IdHash::new(id.as_bytes()));
        self.entries.push(BlockEntry { end: self.bytes.len(), hash });
    }

    /// Reserves room for a message; exactly enough for the first one, which often stays the only one.
    fn make_room(&mut self, message: &NewMessage<'_>) {
        let short = |text: Option<&str>| text.map_or(0, |text| 2 + text.len());
        let trace = message.trace_id.map_or(0, |_| 16);
        let bytes =
            1 + short(message.transaction_id) + trace + short(message.producer) + 4 + message.payload.len();
        if self.entries.is_empty() {
            self.bytes.reserve_exact(bytes);
            self.entries.reserve_exact(1);
        } else {
            self.bytes.reserve(bytes);
        }
    }

    /// Adds message `index` of another block.
    pub fn copy_message(&mut self, other: &Self, index: usize) {
        let entry = other.entries[index];
        self.bytes.extend_from_slice(&other.bytes[other.start_of(index)..entry.end]);
        self.entries.push(BlockEntry { end: self.bytes.len(), hash: entry.hash });
    }

    /// The number of messages.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the block is empty.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The encoded messages.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The hash of each message's transaction id, if the producer gave one.
    pub fn hashes(&self) -> impl ExactSizeIterator<Item = Option<IdHash>> + Clone + '_ {
        self.entries.iter().map(|e| e.hash)
    }

    /// The transaction id of message `index`, if the producer gave one.
    pub fn transaction_id(&self, index: usize) -> Option<&[u8]> {
        let bytes = &self.bytes[self.start_of(index)..];
        if bytes.first()? & HAS_TRANSACTION == 0 {
            return None;
        }
        let length = usize::from(u16::from_le_bytes([*bytes.get(1)?, *bytes.get(2)?]));
        bytes.get(3..3 + length)
    }

    /// The messages in order.
    pub fn messages(&self) -> impl Iterator<Item = NewMessage<'_>> {
        (0..self.len()).filter_map(|index| self.message(index))
    }

    fn message(&self, index: usize) -> Option<NewMessage<'_>> {
        let mut rest = self.bytes.get(self.start_of(index)..self.entries.get(index)?.end)?;
        let (flags, after) = rest.split_first()?;
        rest = after;
        let transaction_id =
            if flags & HAS_TRANSACTION != 0 { Some(split_short_text(&mut rest)?) } else { None };
        let trace_id =
            if flags & HAS_TRACE != 0 { Uuid::from_slice(rest.split_off(..16)?).ok() } else { None };
        let producer = if flags & HAS_PRODUCER != 0 { Some(split_short_text(&mut rest)?) } else { None };
        Some(NewMessage { transaction_id, trace_id, producer, payload: rest.get(4..)? })
    }

    /// The block with only the messages that `keep` accepts.
    pub fn filtered(&self, mut keep: impl FnMut(usize) -> bool) -> Self {
        let mut kept = Self::default();
        (0..self.len()).filter(|index| keep(*index)).for_each(|index| kept.copy_message(self, index));
        kept
    }

    fn start_of(&self, index: usize) -> usize {
        index.checked_sub(1).map_or(0, |before| self.entries[before].end)
    }
}

/// Splits off a text that [`put_short_bytes`] wrote.
fn split_short_text<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
    let length = rest.split_off(..2)?;
    let text = rest.split_off(..usize::from(u16::from_le_bytes([length[0], length[1]])))?;
    std::str::from_utf8(text).ok()
}

fn put_short_bytes(bytes: &mut Vec<u8>, value: &[u8]) {
    let length = value.len().min(usize::from(u16::MAX));
    bytes.put_u16_le(u16::try_from(length).unwrap_or(u16::MAX));
    bytes.put_slice(&value[..length]);
}

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The offset of the first message.
    pub base: Offset,
    /// The number of messages.
    pub count: u32,
    /// When the messages were stored.
    pub created_at: Timestamp,
}

/// A stored run of messages.
#[derive(Clone, Debug)]
pub struct Segment {
    /// The header.
    pub header: SegmentHeader,
    partition: PartitionId,
    body: Bytes,
}

/// The bytes are not an intact segment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a segment of partition {partition} is damaged: {problem}")]
pub struct CorruptSegment {
    partition: PartitionId,
    problem: &'static str,
}

impl From<CorruptSegment> for crate::Error {
    fn from(corrupt: CorruptSegment) -> Self {
        Self::Corrupt(corrupt.to_string())
    }
}

impl Segment {
    /// A new segment, from its header and encoded messages.
    pub fn new(partition: PartitionId, header: SegmentHeader, body: Bytes) -> Self {
        Self { header, partition, body }
    }

    /// The message at `offset`.
    pub fn message(&self, offset: Offset) -> Result<Option<StoredMessage>, CorruptSegment> {
        let Some(index) = offset.0.checked_sub(self.header.base.0) else { return Ok(None) };
        self.messages().nth(usize::try_from(index).unwrap_or(usize::MAX)).transpose()
    }

    /// Where the encoded messages begin in a segment.
    pub const BODY_OFFSET: usize = HEADER_BYTES;

    /// The bytes of a segment with the encoded messages `body`.
    pub fn encode(header: &SegmentHeader, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
        bytes.resize(HEADER_BYTES, 0);
        bytes.put_slice(body);
        Self::seal(header, &mut bytes);
        bytes
    }

    /// Writes the header of a segment whose encoded messages start at [`BODY_OFFSET`](Self::BODY_OFFSET).
    ///
    /// # Panics
    ///
    /// If there is no room for the header.
    pub fn seal(header: &SegmentHeader, bytes: &mut [u8]) {
        let (head, body) = bytes.split_at_mut(HEADER_BYTES);
        let mut fields = &mut head[..];
        fields.put_slice(&MAGIC);
        fields.put_u32_le(header.count);
        fields.put_u64_le(header.base.0);
        fields.put_i64_le(header.created_at.micros());
        fields.put_u32_le(u32::try_from(body.len()).unwrap_or(u32::MAX));
        let sum = checksum(&head[..HEADER_BYTES - 8], body);
        head[HEADER_BYTES - 8..].copy_from_slice(&sum.to_le_bytes());
    }

    /// Decodes a segment.
    pub fn decode(partition: PartitionId, bytes: Bytes) -> Result<Self, CorruptSegment> {
        let corrupt = |problem| CorruptSegment { partition, problem };
        if bytes.len() < HEADER_BYTES {
            return Err(corrupt("it is shorter than its header"));
        }
        let (head, body) = (&bytes[..HEADER_BYTES], bytes.slice(HEADER_BYTES..));
        let at = |from: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&head[from..from + 8]);
            u64::from_le_bytes(number)
        };
        if head[..4] != MAGIC {
            return Err(corrupt("it does not begin like a segment"));
        }
        if at(HEADER_BYTES - 8) != checksum(&head[..HEADER_BYTES - 8], &body) {
            return Err(corrupt("its checksum does not match"));
        }
        let header = SegmentHeader {
            count: u32::from_le_bytes([head[4], head[5], head[6], head[7]]),
            base: Offset(at(8)),
            created_at: Timestamp::from_micros(at(16).cast_signed()),
        };
        Ok(Self { header, partition, body })
    }

    /// The length of the segment at the start of `bytes` according to its header; `None` if no segment starts there.
    pub fn encoded_len(bytes: &[u8]) -> Option<usize> {
        let body = bytes.get(..HEADER_BYTES).filter(|head| head[..4] == MAGIC)?[24..28].try_into().ok()?;
        HEADER_BYTES.checked_add(usize::try_from(u32::from_le_bytes(body)).ok()?)
    }

    /// The partition it belongs to.
    pub fn partition(&self) -> PartitionId {
        self.partition
    }

    /// The first offset after it.
    pub fn end(&self) -> Offset {
        self.header.base.plus(self.header.count.into())
    }

    /// Its size in memory.
    pub fn bytes_len(&self) -> usize {
        HEADER_BYTES + self.body.len()
    }

    /// Its messages, in order.
    pub fn messages(&self) -> impl Iterator<Item = Result<StoredMessage, CorruptSegment>> + '_ {
        let mut rest = self.body.clone();
        (0..u64::from(self.header.count)).map(move |index| {
            let fields = split_message(&mut rest)
                .ok_or(CorruptSegment { partition: self.partition, problem: "a message is cut short" })?;
            let (transaction_id, trace_id, producer, payload) = fields;
            let offset = self.header.base.plus(index);
            let created_at = self.header.created_at;
            Ok(StoredMessage {
                partition: self.partition,
                offset,
                created_at,
                transaction_id,
                trace_id,
                producer,
                payload,
            })
        })
    }
}

type MessageFields = (Option<Bytes>, Option<Uuid>, Option<Bytes>, Bytes);

fn split_message(rest: &mut Bytes) -> Option<MessageFields> {
    let flags = split_bytes(rest, 1)?[0];
    let transaction_id = if flags & HAS_TRANSACTION != 0 { Some(split_short_bytes(rest)?) } else { None };
    let trace_id = if flags & HAS_TRACE != 0 { Uuid::from_slice(&split_bytes(rest, 16)?).ok() } else { None };
    let producer = if flags & HAS_PRODUCER != 0 { Some(split_short_bytes(rest)?) } else { None };
    let length = split_bytes(rest, 4)?;
    let length = u32::from_le_bytes([length[0], length[1], length[2], length[3]]);
    let payload = split_bytes(rest, usize::try_from(length).ok()?)?;
    Some((transaction_id, trace_id, producer, payload))
}

fn split_short_bytes(rest: &mut Bytes) -> Option<Bytes> {
    let length = split_bytes(rest, 2)?;
    split_bytes(rest, usize::from(u16::from_le_bytes([length[0], length[1]])))
}

fn split_bytes(rest: &mut Bytes, length: usize) -> Option<Bytes> {
    (length <= rest.len()).then(|| rest.split_to(length))
}

fn checksum(head: &[u8], body: &[u8]) -> u64 {
    let mut hasher = Xxh3::new();
    hasher.update(head);
    hasher.update(body);
    hasher.digest()
}

/// A stored message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredMessage {
    /// Its partition.
    pub partition: PartitionId,
    /// Its offset.
    pub offset: Offset,
    /// When it was stored.
    pub created_at: Timestamp,
    /// The producer's transaction id.
    pub transaction_id: Option<Bytes>,
    /// Its trace id.
    pub trace_id: Option<Uuid>,
    /// The subject of the producer's token.
    pub producer: Option<Bytes>,
    /// The payload.
    pub payload: Bytes,
}

impl StoredMessage {
    /// The server's id of the message.
    pub fn id(&self) -> MessageId {
        MessageId::new(self.created_at, self.partition, self.offset)
    }

    /// Bytes that the producer gave: the payload and the texts beside it.
    pub fn kept_bytes(&self) -> usize {
        let length = |text: &Option<Bytes>| text.as_ref().map_or(0, Bytes::len);
        self.payload.len() + length(&self.transaction_id) + length(&self.producer)
    }

    /// Whether `transaction_id` is the producer's id of the message or, where it gave none, the server's.
    pub fn has_transaction_id(&self, transaction_id: &str) -> bool {
        match &self.transaction_id {
            Some(id) => id == transaction_id.as_bytes(),
            None => self.id().to_string() == transaction_id,
        }
    }

    /// The producer's id of the message or, where it gave none, the server's.
    pub fn transaction_text(&self) -> String {
        match &self.transaction_id {
            Some(id) => String::from_utf8_lossy(id).into_owned(),
            None => self.id().to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PARTITION: PartitionId = PartitionId(7);

    type Parts = (Option<String>, Option<u128>, Option<String>, Vec<u8>);

    fn message() -> impl Strategy<Value = Parts> {
        (
            prop::option::of(".{0,40}"),
            prop::option::of(any::<u128>()),
            prop::option::of("[a-z]{0,8}"),
            prop::collection::vec(any::<u8>(), 0..200),
        )
    }

    fn block(messages: &[Parts]) -> MessageBlock {
        let mut block = MessageBlock::default();
        for (transaction_id, trace_id, producer, payload) in messages {
            block.push(&NewMessage {
                transaction_id: transaction_id.as_deref(),
                trace_id: trace_id.map(Uuid::from_u128),
                producer: producer.as_deref(),
                payload,
            });
        }
        block
    }

    fn encoded(block: &MessageBlock) -> Vec<u8> {
        let count = u32::try_from(block.len()).unwrap();
        let header = SegmentHeader { base: Offset(90), count, created_at: Timestamp::from_micros(5) };
        Segment::encode(&header, block.bytes())
    }

    proptest! {
        #[test]
        fn messages_are_read_back_as_they_were_added(messages in prop::collection::vec(message(), 0..20)) {
            let block = block(&messages);
            let segment = Segment::decode(PARTITION, encoded(&block).into()).unwrap();
            let read: Vec<_> = segment.messages().map(Result::unwrap).collect();
            prop_assert_eq!(read.len(), messages.len());
            for (index, (view, message)) in read.iter().zip(&messages).enumerate() {
                prop_assert_eq!(view.offset, Offset(90 + index as u64));
                prop_assert_eq!(view.transaction_id.as_deref(), message.0.as_deref().map(str::as_bytes));
                prop_assert_eq!(block.transaction_id(index), message.0.as_deref().map(str::as_bytes));
                let added = block.messages().nth(index).unwrap();
                prop_assert_eq!((added.transaction_id, added.producer), (message.0.as_deref(), message.2.as_deref()));
                prop_assert_eq!((added.trace_id, added.payload), (message.1.map(Uuid::from_u128), &message.3[..]));
                prop_assert_eq!(view.trace_id, message.1.map(Uuid::from_u128));
                prop_assert_eq!(view.producer.as_deref(), message.2.as_deref().map(str::as_bytes));
                prop_assert_eq!(&view.payload[..], &message.3[..]);
            }
        }

        #[test]
        fn a_changed_byte_or_a_torn_end_is_noticed(
            messages in prop::collection::vec(message(), 1..6),
            place in any::<prop::sample::Index>(),
            flip in 1u8..,
            cut in any::<bool>(),
        ) {
            let mut bytes = encoded(&block(&messages));
            let place = place.index(bytes.len());
            if cut { bytes.truncate(place) } else { bytes[place] ^= flip }
            prop_assert!(Segment::decode(PARTITION, bytes.into()).is_err());
        }

        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(segment) = Segment::decode(PARTITION, bytes.into()) {
                segment.messages().for_each(drop);
            }
        }

        #[test]
        fn a_filtered_block_holds_exactly_what_was_kept(
            messages in prop::collection::vec(message(), 0..12),
            mask in any::<u16>(),
        ) {
            let keep = |i: usize| mask & (1 << i) != 0;
            let kept: Vec<_> =
                messages.iter().enumerate().filter(|(i, _)| keep(*i)).map(|(_, m)| m.clone()).collect();
            let (filtered, expected) = (block(&messages).filtered(keep), block(&kept));
            prop_assert_eq!(filtered.bytes(), expected.bytes());
        }
    }
}
