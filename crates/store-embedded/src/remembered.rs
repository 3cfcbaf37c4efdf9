//! Transaction ids of the last while, to recognise a push that is sent again.
//!
//! In memory an id is a 64-bit hash and an offset; on disk the hashes of one commit are one value. Ids are kept
//! in slices by the time at which they may be forgotten, so that forgetting drops a table and a keyspace as a
//! whole. Always: about `max` ids are held at most; beyond that the slice that would go next goes early, and the
//! log says so.
//! Not here: comparing the ids themselves (a hash may lie, so the caller looks at the message).

use std::cmp::Reverse;
use std::collections::{BTreeMap, btree_map};
use std::time::Duration;

use baton_store::Error;
use baton_types::{Offset, PartitionId, Timestamp};
use bytes::{Buf, BufMut};
use fjall::config::CompressionPolicy;
use fjall::{Database, Keyspace, KeyspaceCreateOptions};
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use crate::tables::{corrupt, engine_error};

/// A slice is split so that growing it moves a little at a time.
const SHARDS: usize = 256;
const KEYSPACE_PREFIX: &str = "transactions-";
/// A slice holds at most this part of all ids, so that going over the limit costs only the oldest of them.
const SLICES_MIN: usize = 4;

/// What stands before the hashes of an append.
const RUN_BYTES: usize = 8 + 8 + 4;

/// Names a slice: the second at which all its ids may be forgotten, and which of several for that second.
type SliceId = (u64, u32);

/// The remembered ids.
pub struct Remembered {
    slices: BTreeMap<SliceId, Slice>,
    len: usize,
    max: usize,
}

struct Slice {
    shards: Vec<HashTable<(u64, Offset)>>,
    len: usize,
    keyspace: Keyspace,
    /// What the next commit is to write: for each append its partition, its first offset, how many messages it has, and
    /// a hash for each.
    unwritten: Vec<u8>,
}

/// One value for disk: all hashes of one commit that go to one slice.
pub struct Packed {
    pub keyspace: Keyspace,
    pub value: Vec<u8>,
}

impl Remembered {
    /// Reads back what is still to be remembered at `now` and drops the rest.
    pub fn load(db: &Database, now: Timestamp, max: usize) -> Result<Self, Error> {
        let mut this = Self { slices: BTreeMap::new(), len: 0, max };
        for name in db.list_keyspace_names() {
            if let Some(id) = slice_of(&name)? {
                this.slices.insert(id, Slice::new(open_slice(db, id)?));
            }
        }
        this.forget(db, now)?;
        for slice in this.slices.values_mut() {
            slice.load()?;
            this.len += slice.len;
        }
        Ok(this)
    }

    /// The tables that they are in.
    pub fn tables(&self) -> Vec<Keyspace> {
        self.slices.values().map(|slice| slice.keyspace.clone()).collect()
    }

    /// How many ids are held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The offset under which the newest id with this hash that counts at `now` was appended.
    pub fn get(&self, now: Timestamp, partition: PartitionId, hash: u64) -> Option<Offset> {
        let key = key(partition, hash);
        self.slices.range((second_of(now) + 1, 0)..).filter_map(|(_, slice)| slice.get(key)).max()
    }

    /// The same for many hashes: which of them, and the offset. In a loop that does nothing else, so that the waits for
    /// memory overlap: nearly every one is looked for where nobody has looked for long.
    pub fn get_all(
        &self,
        now: Timestamp,
        partition: PartitionId,
        hashes: impl Iterator<Item = Option<u64>> + Clone,
    ) -> Vec<(usize, Offset)> {
        let mut found = Vec::new();
        for slice in self.slices.range((second_of(now) + 1, 0)..).map(|(_, slice)| slice) {
            let hashes = hashes.clone().enumerate();
            let keys = hashes.filter_map(|(index, hash)| Some((index, key(partition, hash?))));
            found.extend(keys.filter_map(|(index, key)| Some((index, slice.get(key)?))));
        }
        // Of several slices the newest message counts.
        found.sort_unstable_by_key(|(index, offset)| (*index, Reverse(*offset)));
        found.dedup_by_key(|(index, _)| *index);
        found
    }

    /// Remembers ids for `span` from `now` on; they are to be written with this commit.
    pub fn insert(
        &mut self,
        db: &Database,
        now: Timestamp,
        span: Duration,
        (partition, first): (PartitionId, Offset),
        hashes: impl ExactSizeIterator<Item = Option<u64>> + Clone,
    ) -> Result<(), Error> {
        // Two to four slices to a span: ids are kept for up to one and a half times as long as asked. Powers of
        // two, so that queues with other spans share them.
        let width = 1 << (span.as_secs() / 2).max(1).ilog2();
        let until = u64::try_from(now.after(span).micros()).unwrap_or(0).div_ceil(1_000_000);
        let end = until.next_multiple_of(width);
        let id = match self.slices.range((end, 0)..=(end, u32::MAX)).next_back() {
            Some((id, slice)) if slice.len < self.max / SLICES_MIN => *id,
            Some(((_, part), _)) => (end, part + 1),
            None => (end, 0),
        };
        let slice = match self.slices.entry(id) {
            btree_map::Entry::Occupied(entry) => entry.into_mut(),
            btree_map::Entry::Vacant(entry) => entry.insert(Slice::new(open_slice(db, id)?)),
        };
        let before = slice.len;
        slice.note(partition, first, hashes.clone());
        slice.insert_all(partition, first, hashes);
        self.len += slice.len - before;
        Ok(())
    }

    /// Drops what may be forgotten at `now`, and the oldest slice when there are too many ids.
    pub fn forget(&mut self, db: &Database, now: Timestamp) -> Result<(), Error> {
        let second = second_of(now);
        while let Some(first) = self.slices.first_entry() {
            let early = first.key().0 > second;
            if early && (self.len <= self.max || first.get().len == self.len) {
                break;
            }
            let slice = first.remove();
            self.len -= slice.len;
            if early {
                tracing::warn!(
                    ids = slice.len,
                    max = self.max,
                    "too many transaction ids to remember: the oldest are forgotten before their window ends"
                );
            }
            db.delete_keyspace(slice.keyspace).map_err(engine_error)?;
        }
        Ok(())
    }

    /// What this commit is to write of them: one value per slice.
    pub fn pack(&mut self) -> Vec<Packed> {
        let slices = self.slices.values_mut().filter(|slice| !slice.unwritten.is_empty());
        let packed = slices.map(|slice| Packed {
            keyspace: slice.keyspace.clone(),
            value: std::mem::take(&mut slice.unwritten),
        });
        packed.collect()
    }
}

impl Slice {
    fn new(keyspace: Keyspace) -> Self {
        let shards = (0..SHARDS).map(|_| HashTable::new()).collect();
        Self { shards, len: 0, keyspace, unwritten: Vec::new() }
    }

    fn get(&self, key: u64) -> Option<Offset> {
        self.shards[shard(key)].find(key, |(other, _)| *other == key).map(|(_, offset)| *offset)
    }

    /// Notes an append for the next commit.
    fn note(
        &mut self,
        partition: PartitionId,
        first: Offset,
        hashes: impl ExactSizeIterator<Item = Option<u64>>,
    ) {
        let value = &mut self.unwritten;
        value.reserve(RUN_BYTES + 8 * hashes.len());
        value.put_u64_le(partition.0);
        value.put_u64_le(first.0);
        value.put_u32_le(u32::try_from(hashes.len()).unwrap_or(u32::MAX));
        // 0 stands for a message without an id; a real hash of 0 is merely not remembered.
        hashes.for_each(|hash| value.put_u64_le(hash.unwrap_or(0)));
    }

    fn insert_all(
        &mut self,
        partition: PartitionId,
        first: Offset,
        hashes: impl Iterator<Item = Option<u64>>,
    ) {
        for (index, hash) in hashes.enumerate() {
            let Some(hash) = hash.filter(|hash| *hash != 0) else { continue };
            let (key, offset) = (key(partition, hash), first.plus(index as u64));
            match self.shards[shard(key)].entry(key, |(other, _)| *other == key, |(key, _)| *key) {
                Entry::Occupied(mut entry) => entry.get_mut().1 = offset,
                Entry::Vacant(entry) => {
                    entry.insert((key, offset));
                    self.len += 1;
                }
            }
        }
    }

    fn load(&mut self) -> Result<(), Error> {
        for entry in self.keyspace.clone().iter() {
            let value = entry.value().map_err(engine_error)?;
            let mut rest = &value[..];
            while !rest.is_empty() {
                let (partition, first, hashes) = read_run(&mut rest).ok_or_else(|| corrupt("transaction"))?;
                self.insert_all(partition, first, hashes);
            }
        }
        Ok(())
    }
}

/// Reads back what [`Slice::note`] has written of one append.
fn read_run<'a>(
    rest: &mut &'a [u8],
) -> Option<(PartitionId, Offset, impl Iterator<Item = Option<u64>> + use<'a>)> {
    let partition = PartitionId(rest.try_get_u64_le().ok()?);
    let first = Offset(rest.try_get_u64_le().ok()?);
    let count = usize::try_from(rest.try_get_u32_le().ok()?).ok()?;
    let hashes = rest.split_off(..count.checked_mul(8)?)?;
    let hashes = hashes.chunks_exact(8).map(|mut hash| Some(hash.get_u64_le()).filter(|hash| *hash != 0));
    Some((partition, first, hashes))
}

/// Mixes the partition into the hash, so that one table serves all partitions.
fn key(partition: PartitionId, hash: u64) -> u64 {
    (hash ^ partition.0.wrapping_mul(0x9E37_79B9_7F4A_7C15)).wrapping_mul(0xD6E8_FEB8_6659_FD93)
}

fn shard(key: u64) -> usize {
    usize::try_from(key >> 32).unwrap_or(0) % SHARDS
}

fn second_of(now: Timestamp) -> u64 {
    u64::try_from(now.micros() / 1_000_000).unwrap_or(0)
}

/// The table of that name, which must be one of these, unless all its ids may be forgotten at `now`.
pub fn named(db: &Database, name: &str, now: Timestamp) -> Result<Option<Keyspace>, Error> {
    let id = slice_of(name)?.ok_or_else(|| corrupt("transaction"))?;
    (id.0 > second_of(now)).then(|| open_slice(db, id)).transpose()
}

/// All of these tables that there are.
pub fn all_tables(db: &Database) -> Result<Vec<Keyspace>, Error> {
    let slices = db.list_keyspace_names().into_iter().filter_map(|name| slice_of(&name).transpose());
    slices.map(|id| open_slice(db, id?)).collect()
}

/// The slice whose table has this name, if it is one of these.
fn slice_of(name: &str) -> Result<Option<SliceId>, Error> {
    let Some(id) = name.strip_prefix(KEYSPACE_PREFIX) else { return Ok(None) };
    let (end, part) = id.split_once('-').ok_or_else(|| corrupt("transaction"))?;
    let number = |_| corrupt("transaction");
    Ok(Some((end.parse().map_err(number)?, part.parse().map_err(number)?)))
}

fn open_slice(db: &Database, (end, part): SliceId) -> Result<Keyspace, Error> {
    let options = || {
        KeyspaceCreateOptions::default()
            .max_memtable_size(16 << 20)
            .data_block_compression_policy(CompressionPolicy::disabled())
    };
    db.keyspace(&format!("{KEYSPACE_PREFIX}{end}-{part}"), options).map_err(engine_error)
}
