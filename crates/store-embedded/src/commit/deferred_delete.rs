//! Deferred deletes: deleted data is invisible at once, and its rows are removed later.
//!
//! No operation must wait while a queue of a million messages is deleted. Always: one batch removes a bounded number of
//! rows, when no operation waits. The rows that name the rest are removed last, so that a restart finds them. Start at
//! [`Writer::sweep`].

use std::time::Duration;

use baton_store::Error;
use baton_types::{Offset, PartitionId};
use fjall::{Keyspace, UserValue};

use super::writer::Writer;
use crate::index::engine_error;
use crate::rows::{number_key, trim_key};
use crate::state::tail_chunks_prefix;

/// Rows of deleted queues and groups that one batch removes.
const SWEEP_ROWS: usize = 5_000;

/// The pause after a sweep that could not read what it needs.
const SWEEP_AGAIN_AFTER: Duration = Duration::from_secs(10);

impl Writer {
    /// Whether there are deferred deletes, and the last sweep did not just fail.
    pub fn may_sweep(&self) -> bool {
        !self.deletes.is_empty() && (self.sweep_after.is_zero() || self.clock.elapsed() >= self.sweep_after)
    }

    /// Defers the removal of a partition's segments before its start, also over a restart.
    pub fn defer_trim(&mut self, partition: PartitionId) {
        let shared = self.shared.clone();
        self.deletes.trimmed.push(partition);
        self.batch.put(&shared.tables.meta, trim_key(partition), UserValue::new(&[]));
    }

    /// Removes some rows of deleted data. No operation waits for it.
    pub fn sweep(&mut self) {
        if let Err(error) = self.sweep_some() {
            tracing::error!(%error, "rows of deleted data cannot be removed now; tried again later");
            self.sweep_after = self.clock.elapsed() + SWEEP_AGAIN_AFTER;
        }
        // Sync, although no operation waits: a crash must not resurrect rows without the rows that name them.
        if self.batch.has_writes() {
            self.batch.require_sync();
        }
        self.submit_batch();
    }

    fn sweep_some(&mut self) -> Result<(), Error> {
        let shared = self.shared.clone();
        shared.apply_to_index();
        let tables = &shared.tables;
        let mut room = SWEEP_ROWS;
        while room > 0
            && let Some(partition) = self.deletes.partitions.last().copied()
        {
            let segments = shared.segments.list_segments(partition, room)?;
            if segments.len() < room {
                self.deletes.partitions.pop();
                self.batch.remove(&tables.partitions, number_key(partition.0).to_vec());
            }
            room -= segments.len().min(room - 1) + 1;
            segments.into_iter().for_each(|segment| self.batch.remove_segment(tables, segment));
        }
        while room > 0
            && let Some(partition) = self.deletes.trimmed.last().copied()
        {
            let (start, tail) =
                self.state.partition(partition).map_or_else(Default::default, |row| (row.start, row.tail));
            let end = self.indexed_end(partition, tail);
            let found = shared.segments.find_trimmed(partition, Offset(0), start, end, room)?;
            if !found.more {
                self.deletes.trimmed.pop();
                self.batch.remove(&tables.meta, trim_key(partition));
            }
            room -= found.segments.len().min(room - 1) + 1;
            found.segments.into_iter().for_each(|segment| self.batch.remove_segment(tables, segment));
        }
        while room > 0
            && let Some(group) = self.deletes.groups.last().copied()
        {
            if self.sweep_prefix(&tables.cursors, &number_key(group.0), &mut room)? {
                self.deletes.groups.pop();
            }
        }
        while room > 0
            && let Some(queue) = self.deletes.queues.last().copied()
        {
            let prefix = number_key(queue.0);
            // Times last, because a restart finds the queue by them.
            if self.sweep_prefix(&tables.tails, &tail_chunks_prefix(queue), &mut room)?
                && self.sweep_prefix(&tables.letters, &prefix, &mut room)?
                && self.sweep_prefix(&tables.letter_times, &prefix, &mut room)?
            {
                self.deletes.queues.pop();
            }
        }
        Ok(())
    }

    /// Removes up to `room` rows whose keys begin with `prefix`. Returns whether those were all.
    fn sweep_prefix(&mut self, table: &Keyspace, prefix: &[u8], room: &mut usize) -> Result<bool, Error> {
        let keys: Result<Vec<_>, _> = table.prefix(prefix).take(*room).map(fjall::Guard::key).collect();
        let keys = keys.map_err(engine_error)?;
        let all = keys.len() < *room;
        *room -= keys.len().min(room.saturating_sub(1)) + 1;
        keys.into_iter().for_each(|key| self.batch.remove(table, key));
        Ok(all)
    }

    /// Removes segments that were deleted before they were in the index.
    pub fn remove_unapplied_segments(&mut self) {
        let removed = self.batch.take_removed_unapplied();
        if removed.is_empty() {
            return;
        }
        let shared = self.shared.clone();
        shared.apply_to_index();
        for key in removed {
            match shared.segments.find_place(&key) {
                Ok(Some(place)) => self.batch.remove_segment(&shared.tables, (key.into(), place)),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(%error, "a segment cannot be removed now and is left for the sweep");
                    self.defer_trim(PartitionId(u64::from_be_bytes(*key.first_chunk().unwrap_or(&[0; 8]))));
                }
            }
        }
    }

    /// Where the part of a partition ends that is certainly in the index.
    fn indexed_end(&self, partition: PartitionId, tail: Offset) -> Offset {
        let unapplied = self.unapplied.segments_of(partition).map(|segment| segment.header.base);
        let open = self.batch.segments.segments_of(partition).map(|segment| segment.header.base);
        unapplied.chain(open).fold(tail, Offset::min)
    }
}
