//! Cursors, leases, and ready partitions.

use std::collections::BTreeMap;

use baton_types::{GroupId, LeaseId, Offset, PartitionId, Timestamp};
use uuid::Uuid;

use super::{Backend, Restart, START_TIME, TestStore, cursor_at, seconds};
use crate::{Cursor, Durability, GroupStart, Lease, OffsetRanges, Retries, Tx};

/// A cursor at `next` with everything before `end` leased for a minute.
pub(super) fn leased_cursor(id: LeaseId, next: u64, end: u64) -> Cursor {
    let until = START_TIME.after(seconds(60));
    let lease = Lease { id, token: 7, until, end: Offset(end) };
    Cursor { lease: Some(Box::new(lease)), available_at: until, ..cursor_at(next) }
}

/// Asks for ready partitions and writes each cursor back unchanged, as a pop that takes nothing would.
pub(super) async fn offered<B: Backend>(
    bench: &TestStore<B>,
    group: GroupId,
    limit: usize,
) -> Vec<PartitionId> {
    bench.run(move |tx| offer(tx, group, limit)).await
}

fn offer(tx: &mut dyn Tx, group: GroupId, limit: usize) -> Result<Vec<PartitionId>, crate::TxError> {
    let found = tx.ready_partitions(group, limit)?;
    let mut cursors = Vec::new();
    for partition in &found {
        cursors.push((*partition, current_cursor(tx, group, *partition)?));
    }
    for (partition, cursor) in cursors {
        tx.put_cursor(group, partition, cursor, Durability::Soon);
    }
    Ok(found)
}

/// The cursor, or the start of a group without one.
pub(super) fn current_cursor(
    tx: &mut dyn Tx,
    group: GroupId,
    partition: PartitionId,
) -> Result<Cursor, crate::TxError> {
    if let Some(cursor) = tx.cursor(group, partition)? {
        return Ok(cursor);
    }
    let next = match tx.group_by_id(group)?.map(|group| group.start) {
        Some(GroupStart::At(moment)) => tx.offset_at(partition, moment)?,
        _ => tx.partition_by_id(partition)?.map_or(Offset(0), |row| row.start),
    };
    Ok(cursor_at(next.0))
}

async fn many<B: Backend>(bench: &TestStore<B>, count: usize) -> (GroupId, Vec<PartitionId>) {
    let queue = bench.queue("q").await;
    let group = bench.group(queue, "g", GroupStart::Oldest).await;
    let partitions = bench.run(move |tx| {
        let mut partitions = Vec::new();
        for index in 0..count {
            let partition = tx.create_partition(queue, &format!("p{index}"));
            tx.append(partition, &super::block(&["a", "b"]), seconds(0));
            partitions.push(partition);
        }
        Ok(partitions)
    });
    (group, partitions.await)
}

pub async fn there_is_no_cursor_before_the_first_is_written<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (queue, partition) = bench.queue_with_partition().await;
    let oldest = bench.group(queue, "oldest", GroupStart::Oldest).await;
    let now = bench.group(queue, "now", GroupStart::At(START_TIME)).await;
    bench.push(partition, &["a"]).await;
    for restart in Restart::ALL {
        bench.restart(restart).await;
        for group in [oldest, now] {
            assert_eq!(bench.run(move |tx| tx.cursor(group, partition)).await, None);
        }
    }
}

pub async fn a_cursor_is_read_as_it_was_written<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (queue, partition) = bench.queue_with_partition().await;
    bench.push(partition, &["x"; 9]).await;
    let group = bench.group(queue, "g", GroupStart::Oldest).await;
    let cursor = Cursor {
        finished: Some(Box::new(OffsetRanges::from_ranges([(4, 5), (6, 8)]))),
        retries: Some(Box::new(Retries::from_entries([(4, 1), (8, 2)]))),
        attempts: 2,
        consumed: 3,
        last_pop_at: START_TIME.before(seconds(1)),
        ..leased_cursor(LeaseId(Uuid::from_u128(u128::MAX - 5)), 3, 9)
    };
    bench.put_cursor(group, partition, cursor.clone()).await;
    for restart in Restart::ALL {
        bench.restart(restart).await;
        assert_eq!(bench.run(move |tx| tx.cursor(group, partition)).await, Some(cursor.clone()));
    }
}

pub async fn a_cursor_of_an_unknown_group_or_partition_is_not_kept<B: Backend>() {
    let bench = TestStore::<B>::new().await;
    let (queue, partition) = bench.queue_with_partition().await;
    let group = bench.group(queue, "g", GroupStart::Oldest).await;
    let lease = LeaseId(Uuid::from_u128(3));
    for (group, partition) in [(GroupId(999), partition), (group, PartitionId(999))] {
        bench.put_cursor(group, partition, leased_cursor(lease, 0, 1)).await;
        assert_eq!(bench.run(move |tx| tx.cursor(group, partition)).await, None);
    }
    assert!(bench.run(move |tx| tx.leased_partitions(lease)).await.is_empty());
}

pub async fn a_lease_is_found_by_its_id_until_it_is_given_back<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (queue, partition) = bench.queue_with_partition().await;
    bench.push(partition, &["a", "b"]).await;
    let group = bench.group(queue, "g", GroupStart::Oldest).await;
    let [first, second] = [1, 2].map(|id| LeaseId(Uuid::from_u128(id)));
    let held = |lease| bench.submit(move |tx| tx.leased_partitions(lease));
    assert!(held(first).await.unwrap().is_empty());
    bench.put_cursor(group, partition, leased_cursor(first, 0, 1)).await;
    bench.put_cursor(group, partition, leased_cursor(first, 0, 2)).await;
    assert_eq!(held(first).await.unwrap(), [(group, partition)]);
    bench.put_cursor(group, partition, leased_cursor(second, 0, 2)).await;
    for restart in Restart::ALL {
        bench.restart(restart).await;
        assert!(bench.run(move |tx| tx.leased_partitions(first)).await.is_empty());
        assert_eq!(bench.run(move |tx| tx.leased_partitions(second)).await, [(group, partition)]);
    }
    bench.put_cursor(group, partition, cursor_at(2)).await;
    for restart in Restart::ALL {
        bench.restart(restart).await;
        assert!(bench.run(move |tx| tx.leased_partitions(second)).await.is_empty());
    }
}

pub async fn a_lease_may_hold_several_partitions<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (group, partitions) = many(&bench, 3).await;
    let lease = LeaseId(Uuid::from_u128(1));
    for partition in &partitions {
        bench.put_cursor(group, *partition, leased_cursor(lease, 0, 2)).await;
    }
    bench.put_cursor(group, partitions[1], cursor_at(2)).await;
    for restart in Restart::ALL {
        bench.restart(restart).await;
        let mut held = bench.run(move |tx| tx.leased_partitions(lease)).await;
        held.sort();
        assert_eq!(held, [(group, partitions[0]), (group, partitions[2])]);
    }
}

pub async fn only_partitions_with_work_are_offered<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (group, partitions) = many(&bench, 6).await;
    bench.put_cursor(group, partitions[0], cursor_at(2)).await;
    bench.put_cursor(group, partitions[1], cursor_at(1)).await;
    bench.put_cursor(group, partitions[2], leased_cursor(LeaseId(Uuid::from_u128(1)), 0, 2)).await;
    let all_finished = Some(Box::new(OffsetRanges::from_ranges([(0, 2)])));
    bench.put_cursor(group, partitions[3], Cursor { finished: all_finished, ..cursor_at(0) }).await;
    bench.trim(partitions[4], 2).await;
    for restart in Restart::ALL {
        bench.restart(restart).await;
        let mut found = offered(&bench, group, 99).await;
        found.sort();
        assert_eq!(found, [partitions[1], partitions[5]]);
        assert!(offered(&bench, group, 0).await.is_empty());
        assert_eq!(offered(&bench, group, 1).await.len(), 1);
        assert!(offered(&bench, GroupId(999), 9).await.is_empty());
    }
    bench.push(partitions[0], &["c"]).await;
    bench.push(partitions[4], &["c"]).await;
    assert_eq!(offered(&bench, group, 99).await.len(), 4);
}

pub async fn a_partition_is_offered_when_its_time_has_come<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (group, partitions) = many(&bench, 1).await;
    let until = START_TIME.after(seconds(30));
    bench.put_cursor(group, partitions[0], Cursor { available_at: until, ..cursor_at(0) }).await;
    bench.push(partitions[0], &["c"]).await;
    bench.clock.advance_to(START_TIME.after(seconds(29)));
    for restart in Restart::ALL {
        bench.restart(restart).await;
        assert!(offered(&bench, group, 9).await.is_empty());
    }
    bench.clock.advance_to(until);
    for restart in Restart::ALL {
        assert_eq!(offered(&bench, group, 9).await, partitions, "before {restart:?}");
        bench.restart(restart).await;
        assert_eq!(offered(&bench, group, 9).await, partitions, "after {restart:?}");
    }
}

async fn next_available<B: Backend>(bench: &TestStore<B>, group: GroupId) -> Option<Timestamp> {
    bench.run(move |tx| tx.next_ready_at(group)).await
}

pub async fn the_next_moment_is_that_of_the_first_partition_with_work<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (group, partitions) = many(&bench, 4).await;
    assert_eq!(next_available(&bench, group).await, None);
    let after = |wait| START_TIME.after(seconds(wait));
    for (partition, wait, next) in [(0, 50, 0), (1, 20, 1), (2, 5, 2), (3, 90, 1)] {
        let cursor = Cursor { available_at: after(wait), ..cursor_at(next) };
        bench.put_cursor(group, partitions[partition], cursor).await;
    }
    for restart in Restart::ALL {
        bench.restart(restart).await;
        assert_eq!(next_available(&bench, group).await, Some(after(20)), "the one at 5 s has nothing left");
    }
    bench.put_cursor(group, partitions[1], cursor_at(2)).await;
    assert_eq!(next_available(&bench, group).await, Some(after(50)));
    bench.push(partitions[2], &["c"]).await;
    assert_eq!(next_available(&bench, group).await, Some(after(5)), "now it has");
    bench.clock.advance_to(after(6));
    assert_eq!(offered(&bench, group, 9).await, [partitions[2]]);
    for restart in Restart::ALL {
        bench.restart(restart).await;
        assert_eq!(next_available(&bench, group).await, Some(after(50)));
    }
}

pub async fn the_next_moment_forgets_what_was_trimmed<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (group, partitions) = many(&bench, 1).await;
    let cursor = Cursor { available_at: START_TIME.after(seconds(50)), ..cursor_at(0) };
    bench.put_cursor(group, partitions[0], cursor).await;
    bench.trim(partitions[0], 2).await;
    for restart in Restart::ALL {
        bench.restart(restart).await;
        assert_eq!(next_available(&bench, group).await, None);
    }
}

pub async fn the_partition_offered_longest_ago_comes_first<B: Backend>() {
    let bench = TestStore::<B>::new().await;
    let (group, partitions) = many(&bench, 5).await;
    let mut first_round = Vec::new();
    for limit in [2, 1, 2] {
        first_round.extend(offered(&bench, group, limit).await);
    }
    let mut all = first_round.clone();
    all.sort();
    assert_eq!(all, partitions, "each once before any comes again");
    let mut second_round = Vec::new();
    for limit in [1, 3, 1] {
        second_round.extend(offered(&bench, group, limit).await);
    }
    assert_eq!(second_round, first_round);
}

pub async fn none_starves_among_many<B: Backend>() {
    let bench = TestStore::<B>::new().await;
    let (group, partitions) = many(&bench, 40).await;
    let mut turns = BTreeMap::<_, u64>::new();
    for round in 0..200usize {
        for partition in offered(&bench, group, 1 + round % 3).await {
            *turns.entry(partition).or_default() += 1;
        }
        // Some partitions always get new messages, which must not move them to the front.
        let busy = partitions[round % 3];
        bench.push(busy, &["more"]).await;
    }
    let (least, most) = (turns.values().min().unwrap(), turns.values().max().unwrap());
    assert!(turns.len() == 40 && most - least <= 1, "{turns:?}");
}

pub async fn a_leased_partition_keeps_its_turn<B: Backend>() {
    let bench = TestStore::<B>::new().await;
    let (group, partitions) = many(&bench, 3).await;
    let busy = offered(&bench, group, 1).await[0];
    bench.put_cursor(group, busy, leased_cursor(LeaseId(Uuid::from_u128(1)), 0, 1)).await;
    for _ in 0..4 {
        assert!(!offered(&bench, group, 9).await.contains(&busy));
    }
    bench.put_cursor(group, busy, cursor_at(1)).await;
    let found = offered(&bench, group, 9).await;
    assert_eq!(found.len(), partitions.len());
    assert!(found.contains(&busy));
}

pub async fn a_cursor_that_goes_back_is_offered_again<B: Backend>() {
    let bench = TestStore::<B>::new().await;
    let (group, partitions) = many(&bench, 1).await;
    bench.put_cursor(group, partitions[0], cursor_at(2)).await;
    assert!(offered(&bench, group, 9).await.is_empty());
    bench.put_cursor(group, partitions[0], cursor_at(1)).await;
    assert_eq!(offered(&bench, group, 9).await, partitions);
    assert_eq!(bench.run(move |tx| tx.backlog(group)).await, 1);
}

pub async fn backlog_counts_what_is_neither_finished_nor_deleted_nor_trimmed<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (queue, partition) = bench.queue_with_partition().await;
    bench.push(partition, &["x"; 10]).await;
    let group = bench.group(queue, "g", GroupStart::Oldest).await;
    let finished = Some(Box::new(OffsetRanges::from_ranges([(3, 5), (8, 9)])));
    let steps: [(Box<dyn FnMut(&mut dyn Tx) -> Result<(), crate::TxError> + Send>, u64); 6] = [
        (Box::new(|_| Ok(())), 10),
        (Box::new(move |tx| Ok(tx.put_cursor(group, partition, cursor_at(2), Durability::Now))), 8),
        (
            Box::new(move |tx| {
                let cursor = Cursor { finished: finished.clone(), ..cursor_at(2) };
                Ok(tx.put_cursor(group, partition, cursor, Durability::Now))
            }),
            5,
        ),
        // 4 is finished and deleted; 6 is only deleted.
        (
            Box::new(move |tx| {
                tx.delete_message(partition, Offset(4));
                Ok(tx.delete_message(partition, Offset(6)))
            }),
            4,
        ),
        (Box::new(move |tx| tx.trim(partition, Offset(4))), 3),
        (
            Box::new(move |tx| {
                tx.append(partition, &super::block(&["y", "z"]), seconds(0));
                Ok(())
            }),
            5,
        ),
    ];
    for (step, expected) in steps {
        bench.run(step).await;
        for restart in Restart::ALL {
            bench.restart(restart).await;
            assert_eq!(bench.run(move |tx| tx.backlog(group)).await, expected, "{restart:?}");
        }
    }
    bench.trim(partition, 12).await;
    assert_eq!(bench.run(move |tx| tx.backlog(group)).await, 0);
}
