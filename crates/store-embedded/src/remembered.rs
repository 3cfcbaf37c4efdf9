//! Transaction ids of the last while, to recognise a push that is sent again.
//!
//! In memory an id is 96 bits of hash, an offset and a time; on disk the ids of one commit are one value. Ids are kept
//! in slices by the time at which they may be forgotten, so that forgetting drops a table and a file as a whole.
//! Always: about `max` ids are held at most; beyond that the slice that would go next goes early, and the log says so.
//! Not here: what a hit means, which is a rule of the queue.

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

use crate::id_files::{IdFile, IdFiles, SliceId, slice_of};
use crate::tables::{corrupt, engine_error};

/// A slice is split so that growing it moves a little at a time.
const SHARDS: usize = 256;
/// What the name of a slice begins with in the log.
pub const LOG_PREFIX: &str = "ids-";
/// What the names of slices begin with that an earlier version wrote, each a keyspace of the engine. It kept 64 bits of
/// hash, and no time.
const LEGACY_PREFIX: &str = "transactions-";
/// A slice holds at most this part of all ids, so that going over the limit costs only the oldest of them.
const SLICES_MIN: usize = 4;

/// What stands before the ids of an append: partition, first offset, how many, and the time.
const RUN_BYTES: usize = 8 + 8 + 4 + 8;
const ID_BYTES: usize = 8 + 4;
/// Bits of an entry for each half of the check.
const CHECK_BITS: u32 = 16;

/// The remembered ids.
pub struct Remembered {
    slices: BTreeMap<SliceId, Slice>,
    len: usize,
    max: usize,
    files: Arc<IdFiles>,
}

struct Slice {
    shards: Vec<HashTable<Entry>>,
    len: usize,
    file: Arc<IdFile>,
    /// What the next commit is to write, append by append.
    unwritten: Vec<u8>,
}

/// An id in memory. A whole 128-bit hash would be eight bytes more, in a table of millions.
#[derive(Clone, Copy)]
struct Entry {
    /// Hash and partition.
    key: u64,
    /// The offset, whose upper bits no message id has either, and the upper half of the check.
    place: u64,
    /// Milliseconds, and the lower half of the check. Zero where an earlier version wrote it.
    time: u64,
}

impl Entry {
    fn new(key: u64, check: u32, offset: Offset, created_at: Option<Timestamp>) -> Self {
        let check = u64::from(check);
        let time = created_at.map_or(0, |at| {
            u64::try_from(at.millis()).unwrap_or(0) << CHECK_BITS | check & ((1 << CHECK_BITS) - 1)
        });
        Self { key, place: offset.0 << CHECK_BITS | check >> CHECK_BITS, time }
    }

    fn check(&self) -> u64 {
        let low = (1 << CHECK_BITS) - 1;
        (self.place & low) << CHECK_BITS | self.time & low
    }

    fn is_legacy(&self) -> bool {
        self.time == 0
    }

    fn is(&self, key: u64, check: u32) -> bool {
        self.key == key && (self.is_legacy() || self.check() == u64::from(check))
    }

    fn offset(&self) -> Offset {
        Offset(self.place >> CHECK_BITS)
    }

    fn found(&self) -> RememberedId {
        let millis = i64::try_from(self.time >> CHECK_BITS).unwrap_or(i64::MAX);
        let created_at = (!self.is_legacy()).then(|| Timestamp::from_micros(millis.saturating_mul(1000)));
        RememberedId { offset: self.offset(), created_at }
    }
}

/// One value for disk: all ids of one commit that go to one slice.
pub struct Packed {
    pub file: Arc<IdFile>,
    pub value: Vec<u8>,
}

impl Packed {
    /// What names the slice in the log.
    pub fn name(&self) -> String {
        let (end, begun) = self.file.id;
        format!("{LOG_PREFIX}{end}-{begun}")
    }
}

/// Appends what commits bring to the files of their slices.
pub fn append_to_files<'a>(commits: impl Iterator<Item = &'a Packed>) -> Result<(), Error> {
    let mut files: Vec<(&Arc<IdFile>, Vec<&[u8]>)> = Vec::new();
    for packed in commits {
        match files.iter_mut().find(|(file, _)| Arc::ptr_eq(file, &packed.file)) {
            Some((_, values)) => values.push(&packed.value),
            None => files.push((&packed.file, vec![&packed.value])),
        }
    }
    files.into_iter().try_for_each(|(file, values)| file.append(values.into_iter()))
}

impl Remembered {
    /// Reads back what is still to be remembered at `now` and drops the rest.
    pub fn load(files: Arc<IdFiles>, now: Timestamp, max: usize) -> Result<Self, Error> {
        let mut this = Self { slices: BTreeMap::new(), len: 0, max, files };
        for file in this.files.all() {
            if file.id.0 <= second_of(now) {
                this.files.remove(file.id)?;
                continue;
            }
            let mut slice = Slice::new(file.clone());
            file.load(|value| slice.read(value))?;
            this.len += slice.len;
            this.slices.insert(file.id, slice);
        }
        Ok(this)
    }

    /// Moves what an earlier version left in the engine to files of our own.
    pub fn adopt_legacy(&mut self, db: &Database, now: Timestamp) -> Result<(), Error> {
        for name in db.list_keyspace_names() {
            if !name.starts_with(LEGACY_PREFIX) {
                continue;
            }
            let keyspace = db.keyspace(&name, KeyspaceCreateOptions::default).map_err(engine_error)?;
            for row in keyspace.iter() {
                self.replay(name.as_bytes(), &row.value().map_err(engine_error)?, now)?;
            }
            self.files.sync()?;
            db.delete_keyspace(keyspace).map_err(engine_error)?;
        }
        Ok(())
    }

    /// Takes a row of the log again; `false` when it is none of these.
    pub fn replay(&mut self, table: &[u8], value: &[u8], now: Timestamp) -> Result<bool, Error> {
        let name = std::str::from_utf8(table).unwrap_or_default();
        let (name, legacy) = match (name.strip_prefix(LOG_PREFIX), name.strip_prefix(LEGACY_PREFIX)) {
            (Some(name), _) => (name, None),
            (None, Some(name)) => (name, Some(from_legacy(value).ok_or_else(|| corrupt("transaction"))?)),
            (None, None) => return Ok(false),
        };
        let id = slice_of(name).ok_or_else(|| corrupt("transaction"))?;
        if id.0 > second_of(now) {
            let value = legacy.as_deref().unwrap_or(value);
            let slice = self.slices.entry(id).or_insert_with(|| Slice::new(self.files.file(id)));
            let before = slice.len;
            slice.read(value)?;
            self.len += slice.len - before;
            slice.file.append([value].into_iter())?;
        }
        Ok(true)
    }

    pub fn files(&self) -> &Arc<IdFiles> {
        &self.files
    }

    /// How many ids are held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The newest append of this id that counts at `now`.
    pub fn get(&self, now: Timestamp, partition: PartitionId, id: IdHash) -> Option<RememberedId> {
        let key = key(partition, id.hash);
        let slices = self.slices.range((second_of(now) + 1, 0)..);
        slices.filter_map(|(_, slice)| slice.get(key, id.check)).max_by_key(|found| found.offset)
    }

    /// The same for many ids: which of them, and what is known. In a loop that does nothing else, so that the waits for
    /// memory overlap: nearly every one is looked for where nobody has looked for long.
    pub fn get_all(
        &self,
        now: Timestamp,
        partition: PartitionId,
        ids: impl Iterator<Item = Option<IdHash>> + Clone,
    ) -> Vec<(usize, RememberedId)> {
        let mut found = Vec::new();
        for slice in self.slices.range((second_of(now) + 1, 0)..).map(|(_, slice)| slice) {
            let ids = ids.clone().enumerate();
            let keys = ids.filter_map(|(index, id)| id.map(|id| (index, key(partition, id.hash), id.check)));
            found.extend(keys.filter_map(|(index, key, check)| Some((index, slice.get(key, check)?))));
        }
        // Of several slices the newest message counts.
        found.sort_unstable_by_key(|(index, found)| (*index, Reverse(found.offset)));
        found.dedup_by_key(|(index, _)| *index);
        found
    }

    /// Remembers ids for `span` from `now` on; they are to be written with this commit.
    pub fn insert(
        &mut self,
        now: Timestamp,
        span: Duration,
        run: IdRun,
        ids: impl ExactSizeIterator<Item = Option<IdHash>> + Clone,
    ) {
        // Two to four slices to a span: ids are kept for up to one and a half times as long as asked. Powers of
        // two, so that queues with other spans share them.
        let width = 1 << (span.as_secs() / 2).max(1).ilog2();
        let until = u64::try_from(now.after(span).micros()).unwrap_or(0).div_ceil(1_000_000);
        let end = until.next_multiple_of(width);
        let id = match self.slices.range((end, 0)..=(end, u64::MAX)).next_back() {
            Some((id, slice)) if slice.len < self.max / SLICES_MIN => *id,
            _ => (end, now.micros().cast_unsigned()),
        };
        let slice = match self.slices.entry(id) {
            btree_map::Entry::Occupied(entry) => entry.into_mut(),
            btree_map::Entry::Vacant(entry) => entry.insert(Slice::new(self.files.file(id))),
        };
        let before = slice.len;
        put_run(&mut slice.unwritten, run, ids.clone());
        slice.insert_all(run, ids);
        self.len += slice.len - before;
    }

    /// Drops what may be forgotten at `now`, and the oldest slice when there are too many ids.
    pub fn forget(&mut self, now: Timestamp) -> Result<(), Error> {
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

    /// Forgets what was inserted since the last [`pack`](Self::pack).
    pub fn undo(&mut self) -> Result<(), Error> {
        for slice in self.slices.values_mut() {
            let before = slice.len;
            slice.undo()?;
            self.len -= before - slice.len;
        }
        Ok(())
    }

    /// What this commit is to write of them: one value per slice.
    pub fn pack(&mut self) -> Vec<Packed> {
        let slices = self.slices.values_mut().filter(|slice| !slice.unwritten.is_empty());
        let packed = slices
            .map(|slice| Packed { file: slice.file.clone(), value: std::mem::take(&mut slice.unwritten) });
        packed.collect()
    }
}

/// Where messages of one append are, and since when.
#[derive(Clone, Copy)]
pub struct IdRun {
    pub partition: PartitionId,
    pub first: Offset,
    /// Not known where an earlier version wrote it.
    pub created_at: Option<Timestamp>,
}

impl Slice {
    /// Forgets what no commit has written.
    fn undo(&mut self) -> Result<(), Error> {
        let unwritten = std::mem::take(&mut self.unwritten);
        let mut rest = &unwritten[..];
        while !rest.is_empty() {
            let (run, ids) = read_run(&mut rest).ok_or_else(|| corrupt("transaction"))?;
            for (index, id) in ids.enumerate() {
                let Some(id) = id else { continue };
                let (key, offset) = (key(run.partition, id.hash), run.first.plus(index as u64));
                let is_it = |entry: &Entry| entry.is(key, id.check) && entry.offset() == offset;
                if let Ok(entry) = self.shards[shard(key)].find_entry(key, is_it) {
                    entry.remove();
                    self.len -= 1;
                }
            }
        }
        Ok(())
    }

    fn new(file: Arc<IdFile>) -> Self {
        let shards = (0..SHARDS).map(|_| HashTable::new()).collect();
        Self { shards, len: 0, file, unwritten: Vec::new() }
    }

    fn get(&self, key: u64, check: u32) -> Option<RememberedId> {
        self.shards[shard(key)].find(key, |entry| entry.is(key, check)).map(Entry::found)
    }

    fn insert_all(&mut self, run: IdRun, ids: impl Iterator<Item = Option<IdHash>>) {
        for (index, id) in ids.enumerate() {
            let Some(id) = id.filter(|id| id.hash != 0) else { continue };
            let key = key(run.partition, id.hash);
            let fresh = Entry::new(key, id.check, run.first.plus(index as u64), run.created_at);
            match self.shards[shard(key)].entry(key, |entry| entry.is(key, id.check), |entry| entry.key) {
                TableEntry::Occupied(mut entry) => {
                    // The log may tell of older ones again.
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

    /// Takes back what [`put_run`] has written of some appends.
    fn read(&mut self, value: &[u8]) -> Result<(), Error> {
        let mut rest = value;
        while !rest.is_empty() {
            let (run, ids) = read_run(&mut rest).ok_or_else(|| corrupt("transaction"))?;
            self.insert_all(run, ids);
        }
        Ok(())
    }
}

/// Writes one append. No hash stands for a message without an id; a real hash of 0 is merely not remembered.
fn put_run(value: &mut Vec<u8>, run: IdRun, ids: impl ExactSizeIterator<Item = Option<IdHash>>) {
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

fn read_run<'a>(rest: &mut &'a [u8]) -> Option<(IdRun, impl Iterator<Item = Option<IdHash>> + use<'a>)> {
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
    Some((IdRun { partition, first, created_at }, ids))
}

/// The value of an earlier version as it is written now.
fn from_legacy(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut value = Vec::with_capacity(2 * rest.len());
    while !rest.is_empty() {
        let partition = PartitionId(rest.try_get_u64_le().ok()?);
        let first = Offset(rest.try_get_u64_le().ok()?);
        let count = usize::try_from(rest.try_get_u32_le().ok()?).ok()?;
        let hashes = rest.split_off(..count.checked_mul(8)?)?;
        let ids = hashes.chunks_exact(8).map(|mut hash| Some(IdHash { hash: hash.get_u64_le(), check: 0 }));
        put_run(&mut value, IdRun { partition, first, created_at: None }, ids);
    }
    Some(value)
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

#[cfg(test)]
mod tests {
    use super::*;

    const P: PartitionId = PartitionId(7);
    const WINDOW: Duration = Duration::from_secs(60);

    #[test]
    fn an_id_is_found_by_all_its_bits() {
        let (at, id) = (Timestamp::from_micros(1_794_767_647_638_000), IdHash::new(b"a"));
        let entry = Entry::new(9, id.check, Offset((1 << 40) + 5), Some(at));
        let known = RememberedId { offset: Offset((1 << 40) + 5), created_at: Some(at) };
        assert_eq!(entry.found(), known);
        for bit in 0..32 {
            assert!(!entry.is(9, id.check ^ (1 << bit)), "bit {bit} of the check counts");
        }
        assert!(entry.is(9, id.check) && !entry.is(8, id.check));
    }

    #[test]
    fn what_an_earlier_version_left_is_moved_to_a_file() {
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
            let files = Arc::new(IdFiles::open(directory.path()).unwrap());
            let mut known = Remembered::load(files, now, 100).unwrap();
            known.adopt_legacy(&db, now).unwrap();
            assert_eq!(db.list_keyspace_names().len(), 0);
            let found = known.get(now, P, IdHash::new(b"a"));
            assert_eq!(found, Some(RememberedId { offset: Offset(4), created_at: None }), "opened {opened}");
            assert_eq!(known.len(), 1, "what may be forgotten is not taken over");
        }
    }

    #[test]
    fn a_window_leaves_no_file_behind() {
        let directory = tempfile::tempdir().unwrap();
        let files = Arc::new(IdFiles::open(directory.path()).unwrap());
        let mut now = Timestamp::from_micros(1_000_000_000);
        let mut known = Remembered::load(files.clone(), now, 100).unwrap();
        for first in 0..500 {
            let run = IdRun { partition: P, first: Offset(first), created_at: Some(now) };
            known.insert(now, WINDOW, run, [Some(IdHash::new(&first.to_le_bytes()))].into_iter());
            append_to_files(known.pack().iter()).unwrap();
            assert!(known.get(now, P, IdHash::new(&first.to_le_bytes())).is_some());
            now = now.after(Duration::from_secs(10));
            known.forget(now).unwrap();
            assert!(files.all().len() <= 4 && known.len() <= 12);
        }
        let there = std::fs::read_dir(directory.path().join("ids")).unwrap().count();
        assert_eq!(there, files.all().len());
    }
}
