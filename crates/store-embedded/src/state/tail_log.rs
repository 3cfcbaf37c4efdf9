//! The tail log: where partitions end, when a commit moves many of them.
//!
//! A partition's row has its tail, but a commit that pushes to a thousand partitions would have to write a thousand rows.
//! Instead it writes one entry of a log with all the tails that it moved. To keep the log short, the tails of all
//! partitions are also written in turn, in chunks: one chunk for every so many tails that are logged. When every chunk
//! has been written once, the entries older than the first of these chunks are removed.
//!
//! Always: a partition's tail is the furthest of those in its row, its chunk and the log. A row is written when anything
//! else about a partition changes, with the tail of that moment, so a start never sees a tail that is too far. Not here:
//! which commits are large enough for the log (`commit::batch_builder`).

use baton_store::Error;
use baton_types::{Offset, PartitionId, QueueId, Timestamp};
use bytes::{Buf, BufMut};

use super::MemoryState;
use super::partition_tail::{PartitionTail, TailChunk};
use crate::rows::{corrupt_row, read_number};

/// Tails that are logged while every chunk is written once, unless there are more partitions than this. A start
/// replays at most twice as many.
const ROUND_MIN: u64 = 8_192;
/// Entries of the log that one commit removes, so that commits stay small.
const REMOVED_AT_ONCE: u64 = 64;
const TAIL_BYTES: usize = 32;

const CHUNK_KEY: u8 = b'c';
const LOG_KEY: u8 = b'l';

const FIRST_CHUNK: TailChunk = (QueueId(0), 0);

/// The position of the log and of the chunks.
#[derive(Debug)]
pub struct TailLog {
    /// The oldest entry on disk, and the oldest that is needed.
    first: u64,
    needed: u64,
    next: u64,
    /// The next entry when the present round of chunks began.
    round_from: u64,
    /// The chunk to write next.
    next_chunk: TailChunk,
    /// Logged tails for which no chunk was written yet.
    credit: u64,
}

impl TailLog {
    /// Restores all stored tails, which come in the order of their keys. Also returns the deleted queues that still have
    /// chunks.
    pub fn load<B: AsRef<[u8]>>(
        stored: impl Iterator<Item = Result<(B, B), Error>>,
        state: &mut MemoryState,
    ) -> Result<(Self, Vec<QueueId>), Error> {
        let (mut log, mut gone): (Option<(u64, u64)>, Vec<QueueId>) = (None, Vec::new());
        for entry in stored {
            let (key, value) = entry?;
            let key = key.as_ref();
            let numbers = key.get(1..).unwrap_or_default();
            match key.first() {
                Some(&LOG_KEY) => {
                    let number = read_number(numbers)?;
                    log = Some((log.map_or(number, |(first, _)| first), number + 1));
                }
                Some(&CHUNK_KEY) => {
                    let queue = QueueId(read_number(numbers.get(..8).unwrap_or_default())?);
                    if state.queue_by_id(queue).is_none() && gone.last() != Some(&queue) {
                        gone.push(queue);
                    }
                }
                _ => return Err(corrupt_row("tail")),
            }
            for tail in decode_tails(value.as_ref())? {
                state.restore_tail(tail);
            }
        }
        let (first, next) = log.unwrap_or_default();
        Ok((Self { first, needed: first, next, round_from: next, next_chunk: FIRST_CHUNK, credit: 0 }, gone))
    }

    /// Logs the tails that a commit moved. Calls `write` with the key of each row to write, and its value or `None` to
    /// remove it.
    pub fn log_tails(
        &mut self,
        state: &MemoryState,
        moved: &[PartitionId],
        mut write: impl FnMut(Vec<u8>, Option<Vec<u8>>),
    ) {
        write(log_key(self.next), Some(encode_tails(state, moved)));
        self.next += 1;
        self.credit += moved.len() as u64;
        let partitions = state.partitions_len() as u64;
        let price = (ROUND_MIN / partitions.max(1)).max(1);
        loop {
            let Some((chunk, members)) = state.tail_chunk(self.next_chunk) else {
                // Every chunk was written since `round_from`.
                (self.needed, self.round_from) = (self.round_from, self.next);
                self.next_chunk = FIRST_CHUNK;
                break;
            };
            let Some(left) = self.credit.checked_sub(price * members.len() as u64) else { break };
            self.credit = left;
            write(chunk_key(chunk), Some(encode_tails(state, members)));
            self.next_chunk = (chunk.0, chunk.1 + 1);
        }
        for _ in 0..REMOVED_AT_ONCE {
            if self.first == self.needed {
                break;
            }
            write(log_key(self.first), None);
            self.first += 1;
        }
    }
}

/// The prefix of the keys of a queue's chunks.
pub fn tail_chunks_prefix(queue: QueueId) -> Vec<u8> {
    let mut key = vec![CHUNK_KEY];
    key.put_u64(queue.0);
    key
}

fn chunk_key((queue, index): TailChunk) -> Vec<u8> {
    let mut key = tail_chunks_prefix(queue);
    key.put_u64(index);
    key
}

fn log_key(number: u64) -> Vec<u8> {
    let mut key = vec![LOG_KEY];
    key.put_u64(number);
    key
}

fn encode_tails(state: &MemoryState, partitions: &[PartitionId]) -> Vec<u8> {
    let mut value = Vec::with_capacity(TAIL_BYTES * partitions.len());
    for tail in partitions.iter().filter_map(|id| state.partition_tail(*id)) {
        value.put_u64_le(tail.partition.0);
        value.put_u64_le(tail.tail.0);
        value.put_i64_le(tail.first_at.micros());
        value.put_i64_le(tail.last_at.micros());
    }
    value
}

fn decode_tails(value: &[u8]) -> Result<impl Iterator<Item = PartitionTail>, Error> {
    if !value.len().is_multiple_of(TAIL_BYTES) {
        return Err(corrupt_row("tail"));
    }
    Ok(value.chunks_exact(TAIL_BYTES).map(|mut tail| PartitionTail {
        partition: PartitionId(tail.get_u64_le()),
        tail: Offset(tail.get_u64_le()),
        first_at: Timestamp::from_micros(tail.get_i64_le()),
        last_at: Timestamp::from_micros(tail.get_i64_le()),
    }))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use baton_store::{Partition, Queue, QueueSpec};
    use baton_types::QueueOptions;

    use super::*;

    /// What is on disk.
    #[derive(Default)]
    struct Disk {
        queues: BTreeMap<QueueId, Arc<Queue>>,
        rows: BTreeMap<PartitionId, Partition>,
        tails: BTreeMap<Vec<u8>, Vec<u8>>,
        removed: usize,
    }

    impl Disk {
        fn load(&self) -> (MemoryState, TailLog, Vec<QueueId>) {
            let mut state = MemoryState::default();
            self.queues.values().for_each(|queue| state.put_queue(queue.clone()));
            self.rows.values().for_each(|row| _ = state.put_partition(row.clone()));
            let stored = self.tails.iter().map(|(key, value)| Ok((key, value)));
            let (tail_log, gone) = TailLog::load(stored, &mut state).unwrap();
            (state, tail_log, gone)
        }

        fn log(&mut self, tail_log: &mut TailLog, state: &MemoryState, moved: &[PartitionId]) {
            tail_log.log_tails(state, moved, |key, value| match value {
                Some(value) => drop(self.tails.insert(key, value)),
                None => {
                    assert!(self.tails.remove(&key).is_some(), "removed a row that does not exist");
                    self.removed += 1;
                }
            });
        }

        fn write_row(&mut self, state: &MemoryState, id: PartitionId) {
            self.rows.insert(id, state.partition(id).unwrap());
        }

        fn logged(&self) -> usize {
            let log = self.tails.iter().filter(|(key, _)| key[0] == LOG_KEY);
            log.map(|(_, value)| value.len() / TAIL_BYTES).sum()
        }
    }

    fn queue(id: u64) -> Arc<Queue> {
        let (name, namespace, task) = (format!("q{id}").into(), "".into(), "".into());
        let spec = QueueSpec { name, namespace, task, options: QueueOptions::default() };
        Arc::new(Queue { id: QueueId(id), created_at: Timestamp::MIN, spec })
    }

    fn partition(id: u64, queue: u64) -> Partition {
        Partition {
            id: PartitionId(id),
            queue: QueueId(queue),
            name: format!("p{id}").into(),
            start: Offset(0),
            tail: Offset(0),
            created_at: Timestamp::MIN,
            first_at: Timestamp::MIN,
            last_at: Timestamp::MIN,
            deleted: Default::default(),
        }
    }

    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % limit
        }
    }

    /// Appends, trims and creates partitions at random, on a few queues. Compares memory with what a start reads from time
    /// to time, and returns how often they differed.
    fn differences(broken: impl Fn(&mut Disk)) -> (usize, Disk) {
        let (mut numbers, mut disk) = (Numbers(7), Disk::default());
        (1..=3).for_each(|id| drop(disk.queues.insert(QueueId(id), queue(id))));
        let (mut state, mut tail_log, _) = disk.load();
        let (mut ids, mut wrong) = (Vec::new(), 0);
        for step in 1..=2_000u64 {
            let now = Timestamp::from_micros(step.cast_signed());
            let id = PartitionId(9 + step);
            state.put_partition(partition(id.0, 1 + numbers.below(3)));
            disk.write_row(&state, id);
            ids.push(id);
            let mut some = |count: u64| {
                let some = (0..=numbers.below(count)).map(|_| numbers.below(ids.len() as u64));
                let mut some: Vec<_> = some.map(|index| ids[usize::try_from(index).unwrap()]).collect();
                some.sort_unstable();
                some.dedup();
                some
            };
            let (moved, trimmed) = (some(100), some(3));
            moved.iter().for_each(|id| _ = state.append(*id, 1 + id.0 % 3, now, now, 1, |_| ()));
            disk.log(&mut tail_log, &state, &moved);
            for id in trimmed {
                let row = state.partition(id).unwrap();
                state.trim(id, Offset(row.start.0 + (row.tail.0 - row.start.0) * 2 / 3), now);
                disk.write_row(&state, id);
            }
            if step % 100 == 0 {
                broken(&mut disk);
                let (read, read_tail_log, gone) = disk.load();
                assert_eq!(gone, []);
                let same = ids.iter().all(|id| read.partition(*id) == state.partition(*id));
                wrong += usize::from(!same || read.message_count_of_all() != state.message_count_of_all());
                if step % 200 == 0 {
                    (state, tail_log) = (read, read_tail_log);
                }
            }
        }
        (wrong, disk)
    }

    #[test]
    fn a_start_reads_the_tails_of_memory_and_the_log_stays_short() {
        let (wrong, disk) = differences(|_| ());
        assert_eq!(wrong, 0);
        assert!(disk.removed > 500, "{} entries of the log went", disk.removed);
        assert!(disk.logged() < 3 * 8_192, "{} tails are logged", disk.logged());
    }

    #[test]
    fn a_log_that_is_cut_too_early_gives_other_tails() {
        let (wrong, _) = differences(|disk| {
            let log = disk.tails.iter_mut().filter(|(key, _)| key[0] == LOG_KEY).map(|(_, value)| value);
            let log: Vec<_> = log.collect();
            let older = log.len() / 2;
            log.into_iter().take(older).for_each(Vec::clear);
        });
        assert!(wrong > 0);
    }

    #[test]
    fn chunks_of_a_deleted_queue_are_reported() {
        let mut disk = Disk::default();
        (1..=2).for_each(|id| drop(disk.queues.insert(QueueId(id), queue(id))));
        (10..30).for_each(|id| drop(disk.rows.insert(PartitionId(id), partition(id, 1 + id % 2))));
        let (mut state, mut tail_log, _) = disk.load();
        let ids: Vec<_> = disk.rows.keys().copied().collect();
        let now = Timestamp::from_micros(1);
        for _ in 0..1_000 {
            ids.iter().for_each(|id| _ = state.append(*id, 1, now, now, 1, |_| ()));
            disk.log(&mut tail_log, &state, &ids);
        }
        disk.queues.remove(&QueueId(2));
        let (state, _, gone) = disk.load();
        assert_eq!(gone, [QueueId(2)]);
        assert_eq!(state.partition(PartitionId(10)).unwrap().tail, Offset(1_000));
        assert!(state.partition(PartitionId(11)).is_none());
        assert!(disk.tails.keys().any(|key| key.starts_with(&tail_chunks_prefix(QueueId(2)))));
    }

    #[test]
    fn damaged_rows_are_reported() {
        for (key, value) in [(vec![], vec![]), (vec![b'x'], vec![]), (log_key(1), vec![0; 33])] {
            let stored = [Ok((key, value))].into_iter();
            assert!(TailLog::load(stored, &mut MemoryState::default()).is_err());
        }
    }
}
