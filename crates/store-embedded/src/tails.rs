//! Where partitions end, when a commit moves many of them.
//!
//! A partition's row tells where it ends, but a commit that pushes to a thousand partitions had better not write a
//! thousand rows. It writes one entry of a log instead, with all the tails that it moved. So that the log stays
//! short, the tails of all partitions are written down in turn, a chunk of them with every so many that are logged;
//! once all had their turn, what the log told before the first of them is told by the chunks, and goes.
//!
//! Always: a partition ends at the furthest of the places that its row, its chunk and the log tell. Rows are written when
//! anything else about a partition changes, and with the tail of that moment, so a start is never ahead of it.
//! Not here: which commits are large enough for it (`writer`).

use baton_store::Error;
use baton_types::{Offset, PartitionId, QueueId, Timestamp};
use bytes::{Buf, BufMut};

use crate::hot::Hot;
use crate::tables::{corrupt, read_number};

/// Partitions of one queue whose tails are one value; they stay together for ever.
pub const CHUNK: usize = 512;
/// Tails that are logged in the time in which every chunk is written once, if there are not more partitions than
/// this. With the number of partitions it decides how much is replayed at start: at most twice as many.
const ROUND_MIN: u64 = 8_192;
/// Entries of the log that go with one commit, so that a commit stays small.
const REMOVED_AT_ONCE: u64 = 64;
const TAIL_BYTES: usize = 32;

const CHUNK_KEY: u8 = b'c';
const LOG_KEY: u8 = b'l';

/// Where a partition ends, and the times of its first and last message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    pub partition: PartitionId,
    pub tail: Offset,
    pub first_at: Timestamp,
    pub last_at: Timestamp,
}

/// Which chunk of a queue.
pub type Chunk = (QueueId, u64);

const FIRST_CHUNK: Chunk = (QueueId(0), 0);

/// How far the log and the chunks are.
#[derive(Debug)]
pub struct Tails {
    /// The entries of the log: those from `first` on are on disk, those from `needed` on must be.
    first: u64,
    needed: u64,
    next: u64,
    /// The entry before which the chunks of the running round were begun.
    round_from: u64,
    /// The chunk whose turn it is.
    turn: Chunk,
    /// Logged tails that no chunk was written for yet.
    credit: u64,
}

impl Tails {
    /// Tells `hot` all tails that are stored, in the order of their keys; also says which queues have chunks but are gone.
    pub fn load<B: AsRef<[u8]>>(
        stored: impl Iterator<Item = Result<(B, B), Error>>,
        hot: &mut Hot,
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
                    if hot.queue_by_id(queue).is_none() && gone.last() != Some(&queue) {
                        gone.push(queue);
                    }
                }
                _ => return Err(corrupt("tail")),
            }
            for tail in read_tails(value.as_ref())? {
                hot.restore_tail(tail);
            }
        }
        let (first, next) = log.unwrap_or_default();
        Ok((Self { first, needed: first, next, round_from: next, turn: FIRST_CHUNK, credit: 0 }, gone))
    }

    /// Logs the tails that a commit has moved, with what else is to be written along: keys, and their values or
    /// that they go.
    pub fn log(&mut self, hot: &Hot, moved: &[PartitionId], mut write: impl FnMut(Vec<u8>, Option<Vec<u8>>)) {
        write(log_key(self.next), Some(value(hot, moved)));
        self.next += 1;
        self.credit += moved.len() as u64;
        let partitions = hot.partitions_len() as u64;
        let price = (ROUND_MIN / partitions.max(1)).max(1);
        loop {
            let Some((chunk, members)) = hot.chunk(self.turn) else {
                // All had their turn since `round_from`.
                (self.needed, self.round_from) = (self.round_from, self.next);
                self.turn = FIRST_CHUNK;
                break;
            };
            let Some(left) = self.credit.checked_sub(price * members.len() as u64) else { break };
            self.credit = left;
            write(chunk_key(chunk), Some(value(hot, members)));
            self.turn = (chunk.0, chunk.1 + 1);
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

/// What the keys of a queue's chunks begin with.
pub fn chunks_prefix(queue: QueueId) -> Vec<u8> {
    let mut key = vec![CHUNK_KEY];
    key.put_u64(queue.0);
    key
}

fn chunk_key((queue, index): Chunk) -> Vec<u8> {
    let mut key = chunks_prefix(queue);
    key.put_u64(index);
    key
}

fn log_key(number: u64) -> Vec<u8> {
    let mut key = vec![LOG_KEY];
    key.put_u64(number);
    key
}

fn value(hot: &Hot, partitions: &[PartitionId]) -> Vec<u8> {
    let mut value = Vec::with_capacity(TAIL_BYTES * partitions.len());
    for tail in partitions.iter().filter_map(|id| hot.tail(*id)) {
        value.put_u64_le(tail.partition.0);
        value.put_u64_le(tail.tail.0);
        value.put_i64_le(tail.first_at.micros());
        value.put_i64_le(tail.last_at.micros());
    }
    value
}

fn read_tails(value: &[u8]) -> Result<impl Iterator<Item = Tail>, Error> {
    if !value.len().is_multiple_of(TAIL_BYTES) {
        return Err(corrupt("tail"));
    }
    Ok(value.chunks_exact(TAIL_BYTES).map(|mut tail| Tail {
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

    /// What would be on disk.
    #[derive(Default)]
    struct Disk {
        queues: BTreeMap<QueueId, Arc<Queue>>,
        rows: BTreeMap<PartitionId, Partition>,
        tails: BTreeMap<Vec<u8>, Vec<u8>>,
        removed: usize,
    }

    impl Disk {
        fn load(&self) -> (Hot, Tails, Vec<QueueId>) {
            let mut hot = Hot::default();
            self.queues.values().for_each(|queue| hot.put_queue(queue.clone()));
            self.rows.values().for_each(|row| _ = hot.put_partition(row.clone()));
            let stored = self.tails.iter().map(|(key, value)| Ok((key, value)));
            let (tails, gone) = Tails::load(stored, &mut hot).unwrap();
            (hot, tails, gone)
        }

        fn log(&mut self, tails: &mut Tails, hot: &Hot, moved: &[PartitionId]) {
            tails.log(hot, moved, |key, value| match value {
                Some(value) => drop(self.tails.insert(key, value)),
                None => {
                    assert!(self.tails.remove(&key).is_some(), "removed what is not there");
                    self.removed += 1;
                }
            });
        }

        fn write_row(&mut self, hot: &Hot, id: PartitionId) {
            self.rows.insert(id, hot.partition(id).unwrap());
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

    /// Appends, trims and creations at random, on a few queues; every so often what is read back is compared with what
    /// is in memory. Tells how many times these differed.
    fn differences(broken: impl Fn(&mut Disk)) -> (usize, Disk) {
        let (mut numbers, mut disk) = (Numbers(7), Disk::default());
        (1..=3).for_each(|id| drop(disk.queues.insert(QueueId(id), queue(id))));
        let (mut hot, mut tails, _) = disk.load();
        let (mut ids, mut wrong) = (Vec::new(), 0);
        for step in 1..=2_000u64 {
            let now = Timestamp::from_micros(step.cast_signed());
            let id = PartitionId(9 + step);
            hot.put_partition(partition(id.0, 1 + numbers.below(3)));
            disk.write_row(&hot, id);
            ids.push(id);
            let mut some = |count: u64| {
                let some = (0..=numbers.below(count)).map(|_| numbers.below(ids.len() as u64));
                let mut some: Vec<_> = some.map(|index| ids[usize::try_from(index).unwrap()]).collect();
                some.sort_unstable();
                some.dedup();
                some
            };
            let (moved, trimmed) = (some(100), some(3));
            moved.iter().for_each(|id| _ = hot.append(*id, 1 + id.0 % 3, now, now, 1, |_| ()));
            disk.log(&mut tails, &hot, &moved);
            for id in trimmed {
                let row = hot.partition(id).unwrap();
                hot.trim(id, Offset(row.start.0 + (row.tail.0 - row.start.0) * 2 / 3), now);
                disk.write_row(&hot, id);
            }
            if step % 100 == 0 {
                broken(&mut disk);
                let (read, read_tails, gone) = disk.load();
                assert_eq!(gone, []);
                let same = ids.iter().all(|id| read.partition(*id) == hot.partition(*id));
                wrong += usize::from(!same || read.kept_in_all() != hot.kept_in_all());
                if step % 200 == 0 {
                    (hot, tails) = (read, read_tails);
                }
            }
        }
        (wrong, disk)
    }

    #[test]
    fn what_is_read_back_is_what_was_and_the_log_stays_short() {
        let (wrong, disk) = differences(|_| ());
        assert_eq!(wrong, 0);
        assert!(disk.removed > 500, "{} entries of the log went", disk.removed);
        assert!(disk.logged() < 3 * 8_192, "{} tails are logged", disk.logged());
    }

    #[test]
    fn a_log_that_is_cut_too_early_is_noticed() {
        let (wrong, _) = differences(|disk| {
            let log = disk.tails.iter_mut().filter(|(key, _)| key[0] == LOG_KEY).map(|(_, value)| value);
            let log: Vec<_> = log.collect();
            let older = log.len() / 2;
            log.into_iter().take(older).for_each(Vec::clear);
        });
        assert!(wrong > 0);
    }

    #[test]
    fn chunks_of_a_queue_that_is_gone_are_told() {
        let mut disk = Disk::default();
        (1..=2).for_each(|id| drop(disk.queues.insert(QueueId(id), queue(id))));
        (10..30).for_each(|id| drop(disk.rows.insert(PartitionId(id), partition(id, 1 + id % 2))));
        let (mut hot, mut tails, _) = disk.load();
        let ids: Vec<_> = disk.rows.keys().copied().collect();
        let now = Timestamp::from_micros(1);
        for _ in 0..1_000 {
            ids.iter().for_each(|id| _ = hot.append(*id, 1, now, now, 1, |_| ()));
            disk.log(&mut tails, &hot, &ids);
        }
        disk.queues.remove(&QueueId(2));
        let (hot, _, gone) = disk.load();
        assert_eq!(gone, [QueueId(2)]);
        assert_eq!(hot.partition(PartitionId(10)).unwrap().tail, Offset(1_000));
        assert!(hot.partition(PartitionId(11)).is_none());
        assert!(disk.tails.keys().any(|key| key.starts_with(&chunks_prefix(QueueId(2)))));
    }

    #[test]
    fn damaged_rows_are_told() {
        for (key, value) in [(vec![], vec![]), (vec![b'x'], vec![]), (log_key(1), vec![0; 33])] {
            let stored = [Ok((key, value))].into_iter();
            assert!(Tails::load(stored, &mut Hot::default()).is_err());
        }
    }
}
