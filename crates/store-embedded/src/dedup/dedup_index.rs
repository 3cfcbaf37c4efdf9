//! The dedup index: transaction ids of the last while, to recognise a push that is sent again.
//!
//! In memory an id is 96 bits of hash, an offset and a time. On disk the ids of one commit are one value. Ids are grouped
//! into slices by the time at which they expire, so that a table and a file are dropped as a whole. Always: there are at
//! most about `max` ids; beyond that the oldest slice is dropped early, with a warning. Not here: what a hit means, which
//! is a rule of the queue.

use std::cmp::Reverse;
use std::collections::{BTreeMap, btree_map};
use std::sync::Arc;
use std::time::Duration;

use baton_store::{Error, RememberedId};
use baton_types::{IdHash, Offset, PartitionId, Timestamp};
use bytes::{Buf, BufMut};
use fjall::{Database, KeyspaceCreateOptions};
use hashbrown::HashTable;
use hashbrown::hash_table::Entry as TableEntry;

use super::slice_files::{SliceFile, SliceFiles, SliceId, parse_slice_name};
use crate::index::engine_error;
use crate::rows::corrupt_row;

/// Hash tables of a slice. Many small ones, so that a rehash is short.
const SHARDS: usize = 256;
/// The prefix of a slice's table name in the log.
const LOG_PREFIX: &str = "ids-";
/// The prefix of the engine's tables in which an earlier version stored slices, with 64 bits of hash and no time.
const LEGACY_PREFIX: &str = "transactions-";
/// A slice has at most this fraction of all ids, so that too many ids cost only the oldest of them.
const SLICES_MIN: usize = 4;

/// The head of an append: partition, first offset, count and time.
const RUN_BYTES: usize = 8 + 8 + 4 + 8;
const ID_BYTES: usize = 8 + 4;
/// Bits of each half of the check in an entry.
const CHECK_BITS: u32 = 16;

/// The remembered transaction ids.
pub struct DedupIndex {
    slices: BTreeMap<SliceId, DedupSlice>,
    len: usize,
    max: usize,
    files: Arc<SliceFiles>,
}

struct DedupSlice {
    shards: Vec<HashTable<IdEntry>>,
    len: usize,
    file: Arc<SliceFile>,
    /// The ids that the next commit writes, append by append.
    unwritten: Vec<u8>,
}

/// An id in memory. A full 128-bit hash would need eight bytes more for each of millions of ids.
#[derive(Clone, Copy)]
struct IdEntry {
    /// Hash and partition.
    key: u64,
    /// The offset, without upper bits that message ids lack too, and the upper half of the check.
    offset_and_check: u64,
    /// Milliseconds, and the lower half of the check. Zero if an earlier version wrote it.
    time_and_check: u64,
}

impl IdEntry {
    fn new(key: u64, check: u32, offset: Offset, created_at: Option<Timestamp>) -> Self {
        let check = u64::from(check);
        let time = created_at.map_or(0, |at| {
            u64::try_from(at.millis()).unwrap_or(0) << CHECK_BITS | check & ((1 << CHECK_BITS) - 1)
        });
        Self { key, offset_and_check: offset.0 << CHECK_BITS | check >> CHECK_BITS, time_and_check: time }
    }

    fn check(&self) -> u64 {
        let low = (1 << CHECK_BITS) - 1;
        (self.offset_and_check & low) << CHECK_BITS | self.time_and_check & low
    }

    fn is_legacy(&self) -> bool {
        self.time_and_check == 0
    }

    fn matches(&self, key: u64, check: u32) -> bool {
        self.key == key && (self.is_legacy() || self.check() == u64::from(check))
    }

    fn offset(&self) -> Offset {
        Offset(self.offset_and_check >> CHECK_BITS)
    }

    fn remembered_id(&self) -> RememberedId {
        let millis = i64::try_from(self.time_and_check >> CHECK_BITS).unwrap_or(i64::MAX);
        let created_at = (!self.is_legacy()).then(|| Timestamp::from_micros(millis.saturating_mul(1000)));
        RememberedId { offset: self.offset(), created_at }
    }
}

/// The ids of one commit that belong to one slice.
pub struct PackedIds {
    pub file: Arc<SliceFile>,
    pub value: Vec<u8>,
}

impl PackedIds {
    /// The slice's table name in the log.
    pub fn table_name(&self) -> String {
        let (end, begun) = self.file.id;
        format!("{LOG_PREFIX}{end}-{begun}")
    }
}

/// Appends the ids of commits to the files of their slices.
pub fn append_to_files<'a>(commits: impl Iterator<Item = &'a PackedIds>) -> Result<(), Error> {
    let mut files: Vec<(&Arc<SliceFile>, Vec<&[u8]>)> = Vec::new();
    for packed in commits {
        match files.iter_mut().find(|(file, _)| Arc::ptr_eq(file, &packed.file)) {
            Some((_, values)) => values.push(&packed.value),
            None => files.push((&packed.file, vec![&packed.value])),
        }
    }
    files.into_iter().try_for_each(|(file, values)| file.append(values.into_iter()))
}

impl DedupIndex {
    /// Reads the ids that have not expired at `now`, and removes the files of the others.
    pub fn load(files: Arc<SliceFiles>, now: Timestamp, max: usize) -> Result<Self, Error> {
        let mut this = Self { slices: BTreeMap::new(), len: 0, max, files };
        for file in this.files.all() {
            if file.id.0 <= second_of(now) {
                this.files.remove(file.id)?;
                continue;
            }
            let mut slice = DedupSlice::new(file.clone());
            file.load(|value| slice.insert_value(value))?;
            this.len += slice.len;
            this.slices.insert(file.id, slice);
        }
        Ok(this)
    }

    /// Moves the ids that an earlier version stored in the engine to files.
    pub fn migrate_legacy(&mut self, db: &Database, now: Timestamp) -> Result<(), Error> {
        for name in db.list_keyspace_names() {
            if !name.starts_with(LEGACY_PREFIX) {
                continue;
            }
            let keyspace = db.keyspace(&name, KeyspaceCreateOptions::default).map_err(engine_error)?;
            for row in keyspace.iter() {
                self.replay_row(name.as_bytes(), &row.value().map_err(engine_error)?, now)?;
            }
            self.files.sync()?;
            db.delete_keyspace(keyspace).map_err(engine_error)?;
        }
        Ok(())
    }

    /// Applies a row of the log; `false` if it does not have transaction ids.
    pub fn replay_row(&mut self, table: &[u8], value: &[u8], now: Timestamp) -> Result<bool, Error> {
        let name = std::str::from_utf8(table).unwrap_or_default();
        let (name, legacy) = match (name.strip_prefix(LOG_PREFIX), name.strip_prefix(LEGACY_PREFIX)) {
            (Some(name), _) => (name, None),
            (None, Some(name)) => {
                (name, Some(convert_legacy(value).ok_or_else(|| corrupt_row("transaction"))?))
            }
            (None, None) => return Ok(false),
        };
        let id = parse_slice_name(name).ok_or_else(|| corrupt_row("transaction"))?;
        if id.0 > second_of(now) {
            let value = legacy.as_deref().unwrap_or(value);
            let slice = self.slices.entry(id).or_insert_with(|| DedupSlice::new(self.files.file(id)));
            let before = slice.len;
            slice.insert_value(value)?;
            self.len += slice.len - before;
            slice.file.append([value].into_iter())?;
        }
        Ok(true)
    }

    pub fn files(&self) -> &Arc<SliceFiles> {
        &self.files
    }

    /// How many ids are remembered.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The newest message with this id, unless it has expired at `now`.
    pub fn find(&self, now: Timestamp, partition: PartitionId, id: IdHash) -> Option<RememberedId> {
        let key = hash_key(partition, id.hash);
        let slices = self.slices.range((second_of(now) + 1, 0)..);
        slices.filter_map(|(_, slice)| slice.find(key, id.check)).max_by_key(|found| found.offset)
    }

    /// Looks up many ids. Returns the index of each id that was found, and its message. The loop does nothing else, so
    /// that its cache misses overlap: nearly every look-up is one.
    pub fn find_all(
        &self,
        now: Timestamp,
        partition: PartitionId,
        ids: impl Iterator<Item = Option<IdHash>> + Clone,
    ) -> Vec<(usize, RememberedId)> {
        let mut found = Vec::new();
        for slice in self.slices.range((second_of(now) + 1, 0)..).map(|(_, slice)| slice) {
            let ids = ids.clone().enumerate();
            let keys =
                ids.filter_map(|(index, id)| id.map(|id| (index, hash_key(partition, id.hash), id.check)));
            found.extend(keys.filter_map(|(index, key, check)| Some((index, slice.find(key, check)?))));
        }
        // The newest message counts if several slices have the id.
        found.sort_unstable_by_key(|(index, found)| (*index, Reverse(found.offset)));
        found.dedup_by_key(|(index, _)| *index);
        found
    }

    /// Remembers ids for `span` from `now` on. The next commit writes them.
    pub fn insert(
        &mut self,
        now: Timestamp,
        span: Duration,
        run: DedupRun,
        ids: impl ExactSizeIterator<Item = Option<IdHash>> + Clone,
    ) {
        // Two to four slices for a span, so ids are remembered for up to one and a half times the span. Powers of two,
        // so that queues with other spans share slices.
        let width = 1 << (span.as_secs() / 2).max(1).ilog2();
        let until = u64::try_from(now.after(span).micros()).unwrap_or(0).div_ceil(1_000_000);
        let end = until.next_multiple_of(width);
        let id = match self.slices.range((end, 0)..=(end, u64::MAX)).next_back() {
            Some((id, slice)) if slice.len < self.max / SLICES_MIN => *id,
            _ => (end, now.micros().cast_unsigned()),
        };
        let slice = match self.slices.entry(id) {
            btree_map::Entry::Occupied(entry) => entry.into_mut(),
            btree_map::Entry::Vacant(entry) => entry.insert(DedupSlice::new(self.files.file(id))),
        };
        let before = slice.len;
        put_run(&mut slice.unwritten, run, ids.clone());
        slice.insert_all(run, ids);
        self.len += slice.len - before;
    }

    /// Drops the ids that have expired at `now`, and the oldest slice if there are too many ids.
    pub fn drop_expired(&mut self, now: Timestamp) -> Result<(), Error> {
        let second = second_of(now);
        while let Some(first) = self.slices.first_entry() {
            let early = first.key().0 > second;
            if early && (self.len <= self.max || first.get().len == self.len) {
                break;
            }
            let (id, slice) = first.remove_entry();
            self.len -= slice.len;
            if early {
                tracing::warn!(
                    ids = slice.len,
                    max = self.max,
                    "too many transaction ids to remember: the oldest are forgotten before their window ends"
                );
            }
            self.files.remove(id)?;
        }
        Ok(())
    }

    /// Removes the ids that were inserted since the last [`pack_ids`](Self::pack_ids).
    /// Their commit was dropped.
    pub fn undo(&mut self) -> Result<(), Error> {
        for slice in self.slices.values_mut() {
            let before = slice.len;
            slice.undo()?;
            self.len -= before - slice.len;
        }
        Ok(())
    }

    /// The ids that this commit must write: one value for each slice.
    pub fn pack_ids(&mut self) -> Vec<PackedIds> {
        let slices = self.slices.values_mut().filter(|slice| !slice.unwritten.is_empty());
        let packed = slices
            .map(|slice| PackedIds { file: slice.file.clone(), value: std::mem::take(&mut slice.unwritten) });
        packed.collect()
    }
}

/// The messages of one append.
#[derive(Clone, Copy)]
pub struct DedupRun {
    pub partition: PartitionId,
    pub first: Offset,
    /// `None` if an earlier version wrote it.
    pub created_at: Option<Timestamp>,
}

impl DedupSlice {
    /// Removes the ids that no commit has written.
    fn undo(&mut self) -> Result<(), Error> {
        let unwritten = std::mem::take(&mut self.unwritten);
        let mut rest = &unwritten[..];
        while !rest.is_empty() {
            let (run, ids) = read_run(&mut rest).ok_or_else(|| corrupt_row("transaction"))?;
            for (index, id) in ids.enumerate() {
                let Some(id) = id else { continue };
                let (key, offset) = (hash_key(run.partition, id.hash), run.first.plus(index as u64));
                let is_same = |entry: &IdEntry| entry.matches(key, id.check) && entry.offset() == offset;
                if let Ok(entry) = self.shards[shard(key)].find_entry(key, is_same) {
                    entry.remove();
                    self.len -= 1;
                }
            }
        }
        Ok(())
    }

    fn new(file: Arc<SliceFile>) -> Self {
        let shards = (0..SHARDS).map(|_| HashTable::new()).collect();
        Self { shards, len: 0, file, unwritten: Vec::new() }
    }

    fn find(&self, key: u64, check: u32) -> Option<RememberedId> {
        self.shards[shard(key)].find(key, |entry| entry.matches(key, check)).map(IdEntry::remembered_id)
    }

    fn insert_all(&mut self, run: DedupRun, ids: impl Iterator<Item = Option<IdHash>>) {
        for (index, id) in ids.enumerate() {
            let Some(id) = id.filter(|id| id.hash != 0) else { continue };
            let key = hash_key(run.partition, id.hash);
            let fresh = IdEntry::new(key, id.check, run.first.plus(index as u64), run.created_at);
            match self.shards[shard(key)].entry(key, |entry| entry.matches(key, id.check), |entry| entry.key)
            {
                TableEntry::Occupied(mut entry) => {
                    // A replay of the log may bring older messages again.
                    if entry.get().offset() <= fresh.offset() {
                        *entry.get_mut() = fresh;
                    }
                }
                TableEntry::Vacant(entry) => {
                    entry.insert(fresh);
                    self.len += 1;
                }
            }
        }
    }

    /// Inserts the ids of appends that [`put_run`] has written.
    fn insert_value(&mut self, value: &[u8]) -> Result<(), Error> {
        let mut rest = value;
        while !rest.is_empty() {
            let (run, ids) = read_run(&mut rest).ok_or_else(|| corrupt_row("transaction"))?;
            self.insert_all(run, ids);
        }
        Ok(())
    }
}

/// Writes the ids of one append. A hash of 0 means that the message has no id; an id whose hash is 0 is not remembered.
fn put_run(value: &mut Vec<u8>, run: DedupRun, ids: impl ExactSizeIterator<Item = Option<IdHash>>) {
    value.reserve(RUN_BYTES + ID_BYTES * ids.len());
    value.put_u64_le(run.partition.0);
    value.put_u64_le(run.first.0);
    value.put_u32_le(u32::try_from(ids.len()).unwrap_or(u32::MAX));
    value.put_i64_le(run.created_at.unwrap_or(Timestamp::MIN).micros());
    for id in ids {
        let IdHash { hash, check } = id.unwrap_or_default();
        value.put_u64_le(hash);
        value.put_u32_le(check);
    }
}

fn read_run<'a>(rest: &mut &'a [u8]) -> Option<(DedupRun, impl Iterator<Item = Option<IdHash>> + use<'a>)> {
    let partition = PartitionId(rest.try_get_u64_le().ok()?);
    let first = Offset(rest.try_get_u64_le().ok()?);
    let count = usize::try_from(rest.try_get_u32_le().ok()?).ok()?;
    let created_at = Timestamp::from_micros(rest.try_get_i64_le().ok()?);
    let created_at = Some(created_at).filter(|at| *at != Timestamp::MIN);
    let ids = rest.split_off(..count.checked_mul(ID_BYTES)?)?;
    let ids = ids.chunks_exact(ID_BYTES).map(|mut id| {
        let id = IdHash { hash: id.get_u64_le(), check: id.get_u32_le() };
        Some(id).filter(|id| id.hash != 0)
    });
    Some((DedupRun { partition, first, created_at }, ids))
}

/// Converts a value of an earlier version.
fn convert_legacy(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut value = Vec::with_capacity(2 * rest.len());
    while !rest.is_empty() {
        let partition = PartitionId(rest.try_get_u64_le().ok()?);
        let first = Offset(rest.try_get_u64_le().ok()?);
        let count = usize::try_from(rest.try_get_u32_le().ok()?).ok()?;
        let hashes = rest.split_off(..count.checked_mul(8)?)?;
        let ids = hashes.chunks_exact(8).map(|mut hash| Some(IdHash { hash: hash.get_u64_le(), check: 0 }));
        put_run(&mut value, DedupRun { partition, first, created_at: None }, ids);
    }
    Some(value)
}

/// Mixes the partition into the hash, so that one table serves all partitions.
fn hash_key(partition: PartitionId, hash: u64) -> u64 {
    (hash ^ partition.0.wrapping_mul(0x9E37_79B9_7F4A_7C15)).wrapping_mul(0xD6E8_FEB8_6659_FD93)
}

fn shard(key: u64) -> usize {
    usize::try_from(key >> 32).unwrap_or(0) % SHARDS
}

fn second_of(now: Timestamp) -> u64 {
    u64::try_from(now.micros() / 1_000_000).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: PartitionId = PartitionId(7);
    const WINDOW: Duration = Duration::from_secs(60);

    #[test]
    fn all_bits_of_an_id_are_compared() {
        let (at, id) = (Timestamp::from_micros(1_794_767_647_638_000), IdHash::new(b"a"));
        let entry = IdEntry::new(9, id.check, Offset((1 << 40) + 5), Some(at));
        let known = RememberedId { offset: Offset((1 << 40) + 5), created_at: Some(at) };
        assert_eq!(entry.remembered_id(), known);
        for bit in 0..32 {
            assert!(!entry.matches(9, id.check ^ (1 << bit)), "bit {bit} of the check counts");
        }
        assert!(entry.matches(9, id.check) && !entry.matches(8, id.check));
    }

    #[test]
    fn ids_of_an_earlier_version_are_moved_to_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let now = Timestamp::from_micros(1_000_000_000);
        {
            let db = Database::builder(directory.path().join("engine")).open().unwrap();
            for (end, hash) in [(1_060, IdHash::new(b"a").hash), (900, IdHash::new(b"old").hash)] {
                let slice = db.keyspace(&format!("transactions-{end}-0"), Default::default).unwrap();
                let value = [&7u64.to_le_bytes()[..], &3u64.to_le_bytes(), &2u32.to_le_bytes()].concat();
                let value = [&value[..], &0u64.to_le_bytes(), &hash.to_le_bytes()].concat();
                slice.insert([1], value).unwrap();
            }
        }
        for opened in 0..2 {
            let db = Database::builder(directory.path().join("engine")).open().unwrap();
            let files = Arc::new(SliceFiles::open(directory.path()).unwrap());
            let mut known = DedupIndex::load(files, now, 100).unwrap();
            known.migrate_legacy(&db, now).unwrap();
            assert_eq!(db.list_keyspace_names().len(), 0);
            let found = known.find(now, P, IdHash::new(b"a"));
            assert_eq!(found, Some(RememberedId { offset: Offset(4), created_at: None }), "opened {opened}");
            assert_eq!(known.len(), 1, "expired ids are not moved");
        }
    }

    #[test]
    fn expired_ids_leave_no_file_behind() {
        let directory = tempfile::tempdir().unwrap();
        let files = Arc::new(SliceFiles::open(directory.path()).unwrap());
        let mut now = Timestamp::from_micros(1_000_000_000);
        let mut known = DedupIndex::load(files.clone(), now, 100).unwrap();
        for first in 0..500 {
            let run = DedupRun { partition: P, first: Offset(first), created_at: Some(now) };
            known.insert(now, WINDOW, run, [Some(IdHash::new(&first.to_le_bytes()))].into_iter());
            append_to_files(known.pack_ids().iter()).unwrap();
            assert!(known.find(now, P, IdHash::new(&first.to_le_bytes())).is_some());
            now = now.after(Duration::from_secs(10));
            known.drop_expired(now).unwrap();
            assert!(files.all().len() <= 4 && known.len() <= 12);
        }
        let there = std::fs::read_dir(directory.path().join("ids")).unwrap().count();
        assert_eq!(there, files.all().len());
    }
}
