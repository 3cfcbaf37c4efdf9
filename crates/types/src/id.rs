//! Ids: each kind has its own type, so that one cannot be confused with another.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::Timestamp;

macro_rules! id_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = std::num::ParseIntError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                text.parse().map(Self)
            }
        }
    };
}

id_type! {
    /// A queue, from its creation to its deletion. A queue created again under the same name has a new one.
    QueueId
}
id_type! {
    /// A partition of a queue; on the wire its decimal text is `partitionId`.
    PartitionId
}
id_type! {
    /// The subscription of a consumer group to a queue. Deleting or seeking a group gives it a new id, so that all
    /// state of the old one is void at once.
    GroupId
}
id_type! {
    /// The position of a message in its partition, counted from 0 without gaps.
    Offset
}

impl Offset {
    /// The offset `count` messages later.
    pub const fn plus(self, count: u64) -> Self {
        Self(self.0 + count)
    }

    /// The distance from `earlier` to this offset; zero when it is not earlier.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// The id of a lease: one for all partitions that a pop claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LeaseId(pub Uuid);

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for LeaseId {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

/// A message's id: a version 7 UUID that holds the message's time (to the millisecond), partition and offset.
///
/// It is computed, never stored or drawn: two messages differ because their positions differ, and a message can be
/// found from its id alone. It is never used for ordering.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MessageId(Uuid);

/// Free bits of a version 7 UUID: 12 in `rand_a`, 62 in `rand_b`.
const PARTITION_BITS: u32 = 34;
const OFFSET_BITS: u32 = 40;
const _: () = assert!(PARTITION_BITS + OFFSET_BITS == 12 + 62);

impl MessageId {
    /// The id of the message at `offset` of `partition`, stored at `created_at`.
    pub fn new(created_at: Timestamp, partition: PartitionId, offset: Offset) -> Self {
        let millis = u128::from(created_at.millis().max(0).cast_unsigned() & ((1 << 48) - 1));
        let place =
            (u128::from(partition.0) << OFFSET_BITS) | u128::from(offset.0 & ((1 << OFFSET_BITS) - 1));
        let place = place & ((1 << (PARTITION_BITS + OFFSET_BITS)) - 1);
        let (high, low) = (place >> 62, place & ((1 << 62) - 1));
        Self(Uuid::from_u128((millis << 80) | (0x7 << 76) | (high << 64) | (0b10 << 62) | low))
    }

    /// A UUID as a message id. No such message need exist.
    pub const fn from_uuid(id: Uuid) -> Self {
        Self(id)
    }

    /// The UUID, to write it without the formatting machinery.
    pub const fn as_uuid(self) -> Uuid {
        self.0
    }

    /// The hash of its text, which stands in for the hash of a missing transaction id.
    pub fn as_transaction_hash(self) -> u64 {
        transaction_hash(self.0.hyphenated().encode_lower(&mut Uuid::encode_buffer()).as_bytes())
    }

    /// The position of the message, or `None` when no message can have such an id.
    pub fn position(self) -> Option<(PartitionId, Offset)> {
        let bits = self.0.as_u128();
        if (bits >> 76) & 0xf != 0x7 || (bits >> 62) & 0b11 != 0b10 {
            return None;
        }
        let place = (((bits >> 64) & 0xfff) << 62) | (bits & ((1 << 62) - 1));
        let partition = u64::try_from(place >> OFFSET_BITS).ok()?;
        let offset = u64::try_from(place & ((1 << OFFSET_BITS) - 1)).ok()?;
        Some((PartitionId(partition), Offset(offset)))
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for MessageId {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

/// A 96-bit hash of a transaction id, stored in the dedup index after the message may be gone.
///
/// Two ids collide only by chance: with 20 million ids remembered and 100,000 pushes a second, once in a billion
/// years.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct IdHash {
    /// Its [`transaction_hash`].
    pub hash: u64,
    /// More bits, from a hash with another seed.
    pub check: u32,
}

impl IdHash {
    /// The hash of a transaction id.
    pub fn new(transaction_id: &[u8]) -> Self {
        let [a, b, c, d, ..] = xxhash_rust::xxh3::xxh3_64_with_seed(transaction_id, CHECK_SEED).to_le_bytes();
        Self { hash: transaction_hash(transaction_id), check: u32::from_le_bytes([a, b, c, d]) }
    }
}

/// Stored hashes depend on this seed.
const CHECK_SEED: u64 = 0x6261_746F_6E5F_6964;

/// A 64-bit hash of a transaction id. A match is always checked against the stored id.
pub fn transaction_hash(transaction_id: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(transaction_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_found_from_its_id() {
        let time = Timestamp::from_micros(1_794_767_647_638_487);
        for (p, o) in [(0, 0), (1, 7), (5_000_000_000, 999_999_999_999), ((1 << 34) - 1, (1 << 40) - 1)] {
            let id = MessageId::new(time, PartitionId(p), Offset(o));
            let again: MessageId = id.to_string().parse().unwrap();
            assert_eq!(again.position(), Some((PartitionId(p), Offset(o))));
            assert_eq!(id.as_transaction_hash(), transaction_hash(id.to_string().as_bytes()));
        }
    }

    #[test]
    fn an_id_says_its_time_like_any_version_7_uuid() {
        let id = MessageId::new(Timestamp::from_micros(1_794_767_647_638_487), PartitionId(9), Offset(4));
        let uuid = Uuid::parse_str(&id.to_string()).unwrap();
        assert_eq!(uuid.get_version_num(), 7);
        let (seconds, nanos) = uuid.get_timestamp().unwrap().to_unix();
        assert_eq!((seconds, nanos / 1_000_000), (1_794_767_647, 638));
    }

    #[test]
    fn a_random_uuid_names_no_place() {
        let id: MessageId = "5a860a5c-7d2e-4c43-9f7c-27bb74a0a2f6".parse().unwrap();
        assert_eq!(id.position(), None);
    }
}
