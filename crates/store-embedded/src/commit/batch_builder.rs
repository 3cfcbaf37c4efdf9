//! The batch that is filling: rows, segments and operations, until it is sealed and committed.
//!
//! It collects what operations change and turns that into rows when the batch is sealed: a partition that ten operations
//! changed is one row. Always: only changes that the batch's operations made are in it. Not here: when a batch is sealed
//! (`commit::decide_thread`), writing it to the log (`commit::group_commit`).

use baton_store::{Operation, Segment};
use baton_types::{GroupId, PartitionId, Timestamp};
use fjall::{Keyspace, UserKey, UserValue};
use rustc_hash::FxHashSet;

use super::batch::CommitBatch;
use super::log_compactor::SegmentRewrite;
use super::segment_builder::SegmentBuilder;
use crate::dedup::PackedIds;
use crate::index::{RowWrite, TableOverlays, Tables};
use crate::rows::{SEGMENT_KEY_BYTES, number_key, pair_key};
use crate::segment_reader::StoredSegment;
use crate::state::{MemoryState, TailLog};

/// A batch is sealed at this many operations, so that the first of them does not wait too long.
const BATCH_OPERATIONS_MAX: u64 = 4096;
/// A batch is sealed at this many bytes of messages, so that one commit takes a fraction of a second.
const BATCH_BYTES_MAX: usize = 16 << 20;
/// A commit that moves the tails of this many partitions, and changes nothing else of them, writes one entry of the tail
/// log instead of a row for each.
const TAIL_LOG_MIN: usize = 4;

/// The batch that is filling.
pub struct BatchBuilder {
    commit: CommitBatch,
    /// Messages that operations appended.
    pub segments: SegmentBuilder,
    message_bytes: usize,
    /// When the batch began to fill.
    started_at: Timestamp,
    /// Partitions that changed in another way than by appended messages.
    pub changed_partitions: FxHashSet<PartitionId>,
    pub changed_cursors: FxHashSet<(GroupId, PartitionId)>,
    /// Partitions with new segments, in order. A field so that its allocation is used again.
    appended: Vec<PartitionId>,
    /// Segments that compaction writes again, if they are still needed when the batch is sealed.
    rewrites: Vec<SegmentRewrite>,
    /// Removed segments whose places are not known before their commit is applied to the index.
    removed_unapplied: Vec<[u8; SEGMENT_KEY_BYTES]>,
}

impl BatchBuilder {
    pub fn new(now: Timestamp) -> Self {
        Self {
            commit: CommitBatch { seq: 1, ..CommitBatch::default() },
            segments: SegmentBuilder::default(),
            message_bytes: 0,
            started_at: now,
            changed_partitions: FxHashSet::default(),
            changed_cursors: FxHashSet::default(),
            appended: Vec::new(),
            rewrites: Vec::new(),
            removed_unapplied: Vec::new(),
        }
    }

    pub fn seq(&self) -> u64 {
        self.commit.seq
    }

    pub fn message_bytes(&self) -> usize {
        self.message_bytes
    }

    pub fn started_at(&self) -> Timestamp {
        self.started_at
    }

    /// Whether an answer waits for this batch's fsync.
    pub fn needs_sync(&self) -> bool {
        self.commit.sync
    }

    pub fn require_sync(&mut self) {
        self.commit.sync = true;
    }

    pub fn has_writes(&self) -> bool {
        !self.commit.writes.is_empty()
    }

    pub fn waiting_len(&self) -> usize {
        self.commit.waiting.len()
    }

    pub fn is_full(&self) -> bool {
        self.commit.operations >= BATCH_OPERATIONS_MAX || self.message_bytes >= BATCH_BYTES_MAX
    }

    pub fn count_operation(&mut self) {
        self.commit.operations += 1;
    }

    pub fn add_message_bytes(&mut self, bytes: usize) {
        self.message_bytes += bytes;
    }

    /// Adds an operation that is answered after the commit.
    pub fn add_waiting(&mut self, operation: Box<dyn Operation>) {
        self.commit.sync = true;
        self.commit.waiting.push(operation);
    }

    /// Adds a row.
    pub fn put(&mut self, table: &Keyspace, key: impl Into<UserKey>, value: impl Into<UserValue>) {
        let value = Some(value.into());
        self.commit.writes.push(RowWrite { table: table.clone(), key: key.into(), value });
    }

    /// Adds the removal of a row.
    pub fn remove(&mut self, table: &Keyspace, key: impl Into<UserKey>) {
        self.commit.writes.push(RowWrite { table: table.clone(), key: key.into(), value: None });
    }

    /// Adds the removal of a segment. Compaction frees its space later.
    pub fn remove_segment(&mut self, tables: &Tables, (key, place): StoredSegment) {
        self.remove(&tables.segments, key);
        self.commit.freed.push(place);
    }

    /// Adds the removal of segments that are not in the index yet.
    pub fn remove_unapplied(&mut self, keys: Vec<[u8; SEGMENT_KEY_BYTES]>) {
        self.removed_unapplied.extend(keys);
    }

    pub fn take_removed_unapplied(&mut self) -> Vec<[u8; SEGMENT_KEY_BYTES]> {
        std::mem::take(&mut self.removed_unapplied)
    }

    /// Adds segments that compaction writes again.
    pub fn add_rewrites(&mut self, rewrites: Vec<SegmentRewrite>) {
        self.message_bytes += rewrites.iter().map(|rewrite| rewrite.bytes.len()).sum::<usize>();
        self.rewrites.extend(rewrites);
    }

    /// Builds the segments of all messages and adds them to the commit, with the transaction ids to remember. Returns the
    /// segments in the order of partition and offset.
    pub fn seal_segments(&mut self, state: &MemoryState, ids: Vec<PackedIds>) -> Vec<Segment> {
        let (segments, stored) = self.segments.seal();
        self.commit.segments = stored;
        self.appended.extend(segments.iter().map(Segment::partition));
        self.appended.dedup();
        for SegmentRewrite { key, bytes, partition, end, from } in std::mem::take(&mut self.rewrites) {
            // A segment that was deleted meanwhile must not come back.
            if state.start_offset(partition).is_some_and(|start| start < end) {
                self.commit.segments.add(key, bytes);
                self.commit.freed.push(from);
            }
        }
        self.commit.ids = ids;
        segments
    }

    /// Adds the rows of everything that changed.
    pub fn write_rows(
        &mut self,
        state: &MemoryState,
        tail_log: &mut TailLog,
        overlays: &TableOverlays,
        tables: &Tables,
    ) {
        let mut appended = std::mem::take(&mut self.appended);
        appended.retain(|id| !self.changed_partitions.contains(id));
        let mut partitions: Vec<_> = self.changed_partitions.drain().collect();
        if appended.len() < TAIL_LOG_MIN {
            partitions.append(&mut appended);
        } else {
            tail_log.log_tails(state, &appended, |key, value| match value {
                Some(value) => self.put(&tables.tails, key, value),
                None => self.remove(&tables.tails, key),
            });
            appended.clear();
        }
        self.appended = appended;
        partitions.sort_unstable();
        for id in partitions {
            if let Some(row) = state.encode_partition(id) {
                self.put(&tables.partitions, number_key(id.0), row);
            }
        }
        let mut cursors: Vec<_> = self.changed_cursors.drain().collect();
        cursors.sort_unstable();
        for (group, partition) in cursors {
            if let Some(row) = state.encode_cursor(group, partition) {
                self.put(&tables.cursors, pair_key(group.0, partition.0), row);
            }
        }
        let seq = self.commit.seq;
        self.commit.writes.extend(overlays.writes_of(seq, tables));
    }

    /// Whether the sealed batch has nothing to write and no operation waits for it.
    pub fn is_empty(&self) -> bool {
        let CommitBatch { writes, segments, waiting, .. } = &self.commit;
        writes.is_empty() && segments.index.is_empty() && waiting.is_empty()
    }

    /// How many operations the batch has; from now on none.
    pub fn take_operation_count(&mut self) -> u64 {
        std::mem::take(&mut self.commit.operations)
    }

    /// Takes the sealed batch as commit `number`, and begins the next one.
    pub fn take_batch(&mut self, number: u64, now: Timestamp) -> CommitBatch {
        let next = CommitBatch { seq: self.commit.seq + 1, ..CommitBatch::default() };
        let mut batch = std::mem::replace(&mut self.commit, next);
        batch.number = number;
        (self.message_bytes, self.started_at) = (0, now);
        batch
    }

    /// Drops the rows of the batch. Returns its operations, which are to be decided again.
    pub fn take_operations(&mut self) -> Vec<Box<dyn Operation>> {
        let seq = self.commit.seq;
        std::mem::replace(&mut self.commit, CommitBatch { seq, ..CommitBatch::default() }).waiting
    }

    /// Drops everything that operations changed.
    pub fn clear(&mut self) {
        self.segments = SegmentBuilder::default();
        self.removed_unapplied.clear();
        self.changed_partitions.clear();
        self.changed_cursors.clear();
        self.message_bytes = 0;
        // Compaction needs its rewrites whatever is decided.
        self.commit.sync = !self.rewrites.is_empty();
    }
}
