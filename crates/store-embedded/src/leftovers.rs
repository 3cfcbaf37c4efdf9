//! What is no longer needed but still on disk, and clearing it away.
//!
//! Deleting a queue of a million messages must not keep anybody waiting, so it only becomes invisible at once. Always:
//! a little is cleared away at a time, when nobody waits; what names the rest goes last, so that a restart finds it.
//! Start at [`Writer::sweep`].

use std::time::Duration;

use baton_store::Error;
use baton_types::{GroupId, Offset, PartitionId, QueueId};
use fjall::{Keyspace, UserValue};

use crate::tables::{engine_error, number_key, trim_note_key};
use crate::tails::chunks_prefix;
use crate::writer::Writer;

/// Rows of deleted queues and groups that are cleared away between two groups.
const SWEEP_ROWS: usize = 5_000;

/// The pause after a sweep that could not read what it needs.
const SWEEP_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// What is no longer needed but still on disk; cleared away a little at a time, when nobody waits.
#[derive(Default)]
pub struct Leftovers {
    /// Deleted partitions.
    pub partitions: Vec<PartitionId>,
    /// Partitions with segments before their start.
    pub trimmed: Vec<PartitionId>,
    /// Deleted or replaced groups, with cursors.
    pub groups: Vec<GroupId>,
    /// Deleted queues, with dead letters.
    pub queues: Vec<QueueId>,
}

impl Leftovers {
    pub fn is_empty(&self) -> bool {
        self.partitions.is_empty()
            && self.trimmed.is_empty()
            && self.groups.is_empty()
            && self.queues.is_empty()
    }
}

impl Writer {
    /// Whether there is something to clear away, and the last attempt did not just fail.
    pub fn may_sweep(&self) -> bool {
        !self.leftovers.is_empty() && (self.sweep_after.is_zero() || self.clock.elapsed() >= self.sweep_after)
    }

    /// Notes that a partition has segments before its start, also for the next start of the store.
    pub fn leave_to_sweep(&mut self, partition: PartitionId) {
        let shared = self.shared.clone();
        self.leftovers.trimmed.push(partition);
        self.put(&shared.tables.meta, trim_note_key(partition), UserValue::new(&[]));
    }

    /// Clears away some leftovers. Nobody waits for it.
    pub fn sweep(&mut self) {
        if let Err(error) = self.sweep_some() {
            tracing::error!(%error, "what was deleted cannot be cleared away now; tried again later");
            self.sweep_after = self.clock.elapsed() + SWEEP_AGAIN_AFTER;
        }
        // Nobody waits, but what goes must not come back without what names it.
        self.group.sync |= !self.group.writes.is_empty();
        self.hand_over();
    }

    fn sweep_some(&mut self) -> Result<(), Error> {
        let shared = self.shared.clone();
        shared.tell_engine();
        let tables = &shared.tables;
        let mut room = SWEEP_ROWS;
        while room > 0
            && let Some(partition) = self.leftovers.partitions.last().copied()
        {
            let segments = shared.messages.some(partition, room)?;
            if segments.len() < room {
                self.leftovers.partitions.pop();
                self.remove(&tables.partitions, number_key(partition.0).to_vec());
            }
            room -= segments.len().min(room - 1) + 1;
            segments.into_iter().for_each(|segment| self.remove_segment(segment));
        }
        while room > 0
            && let Some(partition) = self.leftovers.trimmed.last().copied()
        {
            let (start, tail) =
                self.hot.partition(partition).map_or_else(Default::default, |row| (row.start, row.tail));
            let end = self.on_disk_end(partition, tail);
            let found = shared.messages.droppable(partition, Offset(0), start, end, room)?;
            if !found.more {
                self.leftovers.trimmed.pop();
                self.remove(&tables.meta, trim_note_key(partition));
            }
            room -= found.segments.len().min(room - 1) + 1;
            found.segments.into_iter().for_each(|segment| self.remove_segment(segment));
        }
        while room > 0
            && let Some(group) = self.leftovers.groups.last().copied()
        {
            if self.sweep_prefix(&tables.cursors, &number_key(group.0), &mut room)? {
                self.leftovers.groups.pop();
            }
        }
        while room > 0
            && let Some(queue) = self.leftovers.queues.last().copied()
        {
            let prefix = number_key(queue.0);
            // Times last: by them the queue is found again after a restart.
            if self.sweep_prefix(&tables.tails, &chunks_prefix(queue), &mut room)?
                && self.sweep_prefix(&tables.letters, &prefix, &mut room)?
                && self.sweep_prefix(&tables.letter_times, &prefix, &mut room)?
            {
                self.leftovers.queues.pop();
            }
        }
        Ok(())
    }

    /// Removes up to `room` rows whose keys begin with `prefix`; tells whether those were all.
    fn sweep_prefix(&mut self, table: &Keyspace, prefix: &[u8], room: &mut usize) -> Result<bool, Error> {
        let keys: Result<Vec<_>, _> = table.prefix(prefix).take(*room).map(fjall::Guard::key).collect();
        let keys = keys.map_err(engine_error)?;
        let all = keys.len() < *room;
        *room -= keys.len().min(room.saturating_sub(1)) + 1;
        keys.into_iter().for_each(|key| self.remove(table, key));
        Ok(all)
    }
}
