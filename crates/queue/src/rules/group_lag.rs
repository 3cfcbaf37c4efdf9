//! How far groups are behind in partitions where they have no place of their own.
//!
//! There a group stands where it begins, so the ends of the partition say what it has not read. The ends of a queue's
//! partitions are sorted once; after that a group costs as many steps as it has places. A look at each partition for each
//! group would be 300 million steps for 3,000 groups on 100,000 partitions. Always: the numbers are those that
//! [`describe`](super::group::describe) would give partition by partition, but for a group that begins in the middle of more
//! than [`MIDDLES_MAX`] partitions: it counts as behind since its beginning, by all messages of these; and a partition
//! counts with its oldest message also if an operator deleted that. Not here: partitions where a group has a place.
//! Start at [`PartitionEnds::unread`].

use baton_store::{Group, GroupStart, Partition};
use baton_types::{PartitionId, Timestamp};

/// Partitions that a group begins in the middle of and that are read for its exact lag: each costs a read of the log.
const MIDDLES_MAX: usize = 100;

/// When the oldest and the newest message of a partition were stored, and how many it has.
#[derive(Clone, Copy, Debug)]
struct Ends {
    first_at: Timestamp,
    last_at: Timestamp,
    messages: u64,
    partition: PartitionId,
}

/// The ends of all partitions of a queue that have messages.
#[derive(Debug, Default)]
pub struct PartitionEnds {
    /// By number.
    by_partition: Vec<Ends>,
    /// By the time of the oldest message.
    by_first: Vec<Ends>,
    /// For each place in `by_first`, the messages of all partitions before it; one more for those of all.
    messages_before: Vec<u64>,
    /// The times of the newest messages, sorted.
    lasts: Vec<Timestamp>,
}

/// What a group has not read in partitions where it has no place.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Unread {
    /// How many partitions have messages for it, those in `middles` left out.
    pub partitions: u64,
    /// How many messages they have, deleted ones left out.
    pub messages: u64,
    /// When the oldest of these messages was stored.
    pub oldest: Option<Timestamp>,
    /// Partitions with older messages before the group's first one: only the log knows when that was stored.
    pub middles: Vec<PartitionId>,
}

/// The moment from which on messages are for a group.
fn beginning(group: &Group) -> Timestamp {
    match group.start {
        GroupStart::Oldest => Timestamp::MIN,
        GroupStart::At(at) => at,
    }
}

impl PartitionEnds {
    /// Adds partitions, which come in the order of their numbers.
    pub fn add(&mut self, partitions: &[Partition]) {
        let ends = partitions.iter().map(|partition| Ends {
            first_at: partition.first_at,
            last_at: partition.last_at,
            messages: partition.tail.since(partition.start).saturating_sub(partition.deleted.len()),
            partition: partition.id,
        });
        self.by_partition.extend(ends.filter(|ends| ends.messages > 0));
    }

    /// Sorts what was added.
    pub fn sorted(mut self) -> Self {
        self.by_first = self.by_partition.clone();
        self.by_first.sort_unstable_by_key(|ends| (ends.first_at, ends.partition));
        let mut before = 0;
        self.messages_before = vec![before];
        self.messages_before.extend(self.by_first.iter().map(|ends| {
            before += ends.messages;
            before
        }));
        self.lasts = self.by_partition.iter().map(|ends| ends.last_at).collect();
        self.lasts.sort_unstable();
        self
    }

    fn of(&self, partition: PartitionId) -> Option<&Ends> {
        let index = self.by_partition.binary_search_by_key(&partition, |ends| ends.partition).ok()?;
        self.by_partition.get(index)
    }

    /// What a group has not read outside of `placed`, the sorted partitions where it has a place.
    pub fn unread(&self, group: &Group, placed: &[PartitionId]) -> Unread {
        let begins = beginning(group);
        let is_unplaced = |ends: &&Ends| placed.binary_search(&ends.partition).is_err();
        let (older, newer) = self.by_first.split_at(self.by_first.partition_point(|e| e.first_at < begins));
        let behind = self.lasts.len() - self.lasts.partition_point(|at| *at < begins);
        let (mut whole, mut middle) = (newer.len(), behind - newer.len());
        let before = |place: usize| self.messages_before.get(place).copied().unwrap_or_default();
        let mut messages = before(self.by_first.len()) - before(older.len());
        for ends in placed.iter().filter_map(|id| self.of(*id)).filter(|ends| ends.last_at >= begins) {
            if ends.first_at < begins {
                middle -= 1;
            } else {
                whole -= 1;
                messages -= ends.messages;
            }
        }
        let oldest = if whole == 0 { None } else { newer.iter().find(is_unplaced).map(|ends| ends.first_at) };
        let with_news = older.iter().filter(|ends| ends.last_at >= begins).filter(is_unplaced);
        if middle > MIDDLES_MAX {
            messages += with_news.map(|ends| ends.messages).sum::<u64>();
            let partitions = (whole + middle) as u64;
            return Unread { partitions, messages, oldest: Some(begins), middles: Vec::new() };
        }
        let middles = with_news.take(middle).map(|ends| ends.partition).collect();
        Unread { partitions: whole as u64, messages, oldest, middles }
    }

    /// Partitions outside of `placed` that may have messages for a group that were stored by `until`.
    pub fn unread_by(&self, group: &Group, placed: &[PartitionId], until: Timestamp) -> Vec<PartitionId> {
        let begins = beginning(group);
        if begins > until || self.lasts.last().is_none_or(|newest| *newest < begins) {
            return Vec::new();
        }
        let end = self.by_first.partition_point(|ends| ends.first_at <= until);
        let with_news = self.by_first[..end].iter().filter(|ends| ends.last_at >= begins);
        let unplaced = with_news.filter(|ends| placed.binary_search(&ends.partition).is_err());
        unplaced.map(|ends| ends.partition).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use baton_store::OffsetRanges;
    use baton_types::{GroupId, Offset, QueueId};

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    /// Partitions with numbers from 1 on, each with messages from one moment to another; deleted ones if that is before 0.
    fn ends(of: &[(i64, i64)]) -> PartitionEnds {
        let deleted = |first: i64| {
            let mut deleted = OffsetRanges::default();
            if first < 0 {
                deleted.insert_range(Offset(3), Offset(5));
            }
            deleted
        };
        let partition = |(number, (first, last)): (u64, &(i64, i64))| Partition {
            id: PartitionId(number),
            queue: QueueId(1),
            name: "p".into(),
            start: Offset(3),
            tail: Offset(if last < first { 3 } else { 5 }),
            created_at: at(0),
            first_at: at(*first),
            last_at: at(*last),
            deleted: deleted(*first),
        };
        let mut ends = PartitionEnds::default();
        ends.add(&(1..).zip(of).map(partition).collect::<Vec<_>>());
        ends.sorted()
    }

    fn group(start: GroupStart) -> Group {
        let (id, queue, subscribed_at) = (GroupId(1), QueueId(1), at(0));
        Group { id, queue, name: Arc::from("g"), start, subscribed_at, conflation: false }
    }

    fn ids(numbers: &[u64]) -> Vec<PartitionId> {
        numbers.iter().copied().map(PartitionId).collect()
    }

    #[test]
    fn what_a_group_has_not_read_follows_from_the_ends_of_partitions() {
        // One that ended before, one in the middle, one from then on, a newer one, and two without messages.
        let ends = ends(&[(1, 4), (2, 9), (5, 5), (6, 7), (1, 0), (-1, 9)]);
        let check = |start: GroupStart, placed: &[u64], expected: (u64, Option<i64>, &[u64])| {
            let unread = ends.unread(&group(start), &ids(placed));
            let (partitions, oldest, middles) = expected;
            let (messages, oldest) = (2 * partitions, oldest.map(at));
            let expected = Unread { partitions, messages, oldest, middles: ids(middles) };
            assert_eq!(unread, expected, "{start:?} {placed:?}");
        };
        check(GroupStart::Oldest, &[], (4, Some(1), &[]));
        check(GroupStart::Oldest, &[1, 3], (2, Some(2), &[]));
        check(GroupStart::Oldest, &[1, 2, 3, 4, 5], (0, None, &[]));
        check(GroupStart::At(at(5)), &[], (2, Some(5), &[2]));
        check(GroupStart::At(at(5)), &[1, 2], (2, Some(5), &[]));
        check(GroupStart::At(at(5)), &[2, 3], (1, Some(6), &[]));
        check(GroupStart::At(at(9)), &[4], (0, None, &[2]));
        check(GroupStart::At(at(10)), &[1], (0, None, &[]));
    }

    #[test]
    fn beyond_some_middles_a_group_is_behind_since_its_beginning() {
        let many = ends(&[(1, 9); MIDDLES_MAX + 1]);
        let unread = many.unread(&group(GroupStart::At(at(5))), &[]);
        let partitions = MIDDLES_MAX as u64 + 1;
        assert_eq!(
            (unread.partitions, unread.messages, unread.oldest),
            (partitions, 2 * partitions, Some(at(5)))
        );
        assert!(unread.middles.is_empty());
        assert_eq!(many.unread(&group(GroupStart::At(at(5))), &ids(&[7])).middles.len(), MIDDLES_MAX);
    }

    #[test]
    fn partitions_with_messages_of_some_age_are_found() {
        let ends = ends(&[(1, 4), (2, 9), (5, 5), (6, 7), (1, 0)]);
        let found = |start, placed: &[u64], until| {
            let mut found = ends.unread_by(&group(start), &ids(placed), at(until));
            found.sort_unstable();
            found
        };
        assert_eq!(found(GroupStart::Oldest, &[], 5), ids(&[1, 2, 3]));
        assert_eq!(found(GroupStart::Oldest, &[2], 9), ids(&[1, 3, 4]));
        assert_eq!(found(GroupStart::At(at(5)), &[], 5), ids(&[2, 3]));
        assert_eq!(found(GroupStart::At(at(6)), &[], 5), ids(&[]));
        assert_eq!(found(GroupStart::At(at(10)), &[], 20), ids(&[]));
    }
}
