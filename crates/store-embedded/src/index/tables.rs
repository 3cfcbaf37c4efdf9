//! The tables of the embedded key-value engine.
//!
//! Only the log is synced. The engine gets the rows of a commit afterwards, without a sync; what a crash takes from
//! it is replayed from the log. Not here: what is in a row (`rows`).

use std::sync::Arc;

use baton_store::Error;
use fjall::compaction::Leveled;
use fjall::config::{CompressionPolicy, FilterPolicy};
use fjall::{
    CompressionType, Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, UserKey, UserValue,
};

/// Sorted files of a table that may overlap before the engine merges them. With many partitions each file has rows
/// of all partitions and a merge rewrites everything, so merges are rare.
const SORTED_FILES_UNMERGED: u8 = 12;
/// Dead letters from this size on are stored in blob files, so that compaction moves pointers and no payloads.
const BLOB_FROM_BYTES: u32 = 1 << 7;
/// The size of a blob file. A blob file is removed or rewritten as a whole.
const BLOB_FILE_BYTES: u64 = 32 << 20;
/// A blob file is rewritten when this fraction of it is garbage.
const BLOB_GARBAGE: f32 = 0.3;

/// The open tables.
pub struct Tables {
    /// Numbers that must not repeat.
    pub meta: Keyspace,
    /// Queues by id, as JSON.
    pub queues: Keyspace,
    /// Groups by id, as JSON.
    pub groups: Keyspace,
    /// Partitions by id.
    pub partitions: Keyspace,
    /// Tails of partitions that are newer than their rows (`state::tail_log`).
    pub tails: Keyspace,
    /// Cursors by group and partition.
    pub cursors: Keyspace,
    /// Where segments are in the log, by partition, first offset and time.
    pub segments: Keyspace,
    /// Records by key.
    pub records: Keyspace,
    /// Dead letters by queue and time.
    pub letters: Keyspace,
    /// The time of a dead letter by queue, message and group.
    pub letter_times: Keyspace,
}

impl Tables {
    /// Opens all tables, and creates those that are missing.
    pub fn open(db: &Database, write_buffer_bytes: u64) -> fjall::Result<Self> {
        let small = || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(write_buffer_bytes / 2)
                .data_block_compression_policy(CompressionPolicy::disabled())
                .compaction_strategy(Arc::new(Leveled::default().with_l0_threshold(SORTED_FILES_UNMERGED)))
        };
        let blobs = || {
            small().max_memtable_size(write_buffer_bytes).with_kv_separation(Some(
                KvSeparationOptions::default()
                    .compression(CompressionType::None)
                    .separation_threshold(BLOB_FROM_BYTES)
                    .file_target_size(BLOB_FILE_BYTES)
                    .staleness_threshold(BLOB_GARBAGE),
            ))
        };
        // A filter answers whether a key exists; these tables are only scanned.
        let in_order = |options: KeyspaceCreateOptions| options.filter_policy(FilterPolicy::disabled());
        Ok(Self {
            meta: db.keyspace("meta", small)?,
            queues: db.keyspace("queues", || in_order(small()))?,
            groups: db.keyspace("groups", || in_order(small()))?,
            partitions: db.keyspace("partitions", || in_order(small()))?,
            tails: db.keyspace("tails", || in_order(small()))?,
            cursors: db.keyspace("cursors", || in_order(small()))?,
            segments: db.keyspace("segments", || in_order(small()).max_memtable_size(write_buffer_bytes))?,
            records: db.keyspace("records", small)?,
            letters: db.keyspace("letters", blobs)?,
            letter_times: db.keyspace("letter_times", small)?,
        })
    }

    pub fn all(&self) -> [&Keyspace; 10] {
        let Self { meta, queues, groups, partitions, tails, cursors, segments, .. } = self;
        let Self { records, letters, letter_times, .. } = self;
        [meta, queues, groups, partitions, tails, cursors, segments, records, letters, letter_times]
    }
}

/// The engine's error as an error of the store.
pub fn engine_error(error: fjall::Error) -> Error {
    Error::Closed(format!("the storage engine failed: {error:?}"))
}

/// A row to write to a table, or to remove from it.
pub struct RowWrite {
    pub table: Keyspace,
    pub key: UserKey,
    /// `None` removes the row.
    pub value: Option<UserValue>,
}

impl RowWrite {
    pub fn bytes_len(&self) -> u64 {
        (self.key.len() + self.value.as_ref().map_or(0, |value| value.len())) as u64
    }
}
