//! Groups: their start, and what their removal includes.

use std::sync::Arc;
use std::time::Duration;

use baton_types::{GroupId, LeaseId, Offset, PartitionId};
use uuid::Uuid;

use super::cursor::{leased_cursor, offered};
use super::{Backend, Restart, START_TIME, TestStore, block, cursor_at, put_group, seconds};
use crate::{GroupSpec, GroupStart};

async fn backlog<B: Backend>(bench: &TestStore<B>, group: GroupId) -> u64 {
    bench.run(move |tx| tx.backlog(group)).await
}

pub async fn a_group_is_found_by_name_and_number<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (queue, other) = (bench.queue("q").await, bench.queue("other").await);
    let (start, subscribed_at) =
        (GroupStart::At(START_TIME.before(seconds(3))), START_TIME.before(seconds(5)));
    let group = bench
        .run(move |tx| {
            Ok(tx.put_group(queue, &GroupSpec { name: "mailer", start, subscribed_at, conflation: true }))
        })
        .await;
    assert_eq!(
        (group.queue, &*group.name, group.start, group.subscribed_at, group.conflation),
        (queue, "mailer", start, subscribed_at, true)
    );
    for restart in Restart::ALL {
        bench.restart(restart).await;
        let id = group.id;
        let found = bench.run(move |tx| Ok([tx.group(queue, "mailer")?, tx.group_by_id(id)?])).await;
        assert_eq!(found, [Some(group.clone()), Some(group.clone())]);
        let absent = bench.run(move |tx| Ok([tx.group(other, "mailer")?, tx.group(queue, "x")?])).await;
        assert_eq!(absent, [None, None]);
    }
}

pub async fn groups_are_told_by_name<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let queue = bench.queue("q").await;
    for name in ["m", "z", "a"] {
        bench.group(queue, name, GroupStart::Oldest).await;
    }
    for restart in Restart::ALL {
        bench.restart(restart).await;
        let groups = bench.run(move |tx| tx.groups(queue)).await;
        assert_eq!(groups.iter().map(|g| &*g.name).collect::<Vec<_>>(), ["a", "m", "z"]);
    }
}

pub async fn a_group_of_the_same_name_replaces_and_voids_the_old_one<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (queue, partition) = bench.queue_with_partition().await;
    bench.push(partition, &["a", "b"]).await;
    let (old, lease) = (bench.group(queue, "g", GroupStart::Oldest).await, LeaseId(Uuid::from_u128(1)));
    bench.put_cursor(old, partition, leased_cursor(lease, 1, 2)).await;
    let new = bench.group(queue, "g", GroupStart::Oldest).await;
    assert_ne!(new, old);
    bench.put_cursor(old, partition, cursor_at(2)).await;
    for restart in Restart::ALL {
        bench.restart(restart).await;
        bench
            .run(move |tx| {
                assert_eq!(tx.group(queue, "g")?.map(|g| g.id), Some(new));
                assert_eq!(tx.groups(queue)?.len(), 1);
                assert_eq!(tx.group_by_id(old)?, None);
                assert_eq!((tx.cursor(old, partition)?, tx.cursor(new, partition)?), (None, None));
                assert!(tx.leased_partitions(lease)?.is_empty());
                assert_eq!((tx.backlog(old)?, tx.backlog(new)?), (0, 2));
                assert!(tx.ready_partitions(old, 9)?.is_empty());
                assert_eq!(tx.next_ready_at(old)?, None);
                Ok(())
            })
            .await;
    }
    assert_eq!(offered(&bench, new, 9).await, [partition]);
}

pub async fn a_removed_group_takes_its_cursors_and_leases_with_it<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (queue, partition) = bench.queue_with_partition().await;
    bench.push(partition, &["a", "b"]).await;
    let (group, lease) = (bench.group(queue, "g", GroupStart::Oldest).await, LeaseId(Uuid::from_u128(1)));
    let stays = bench.group(queue, "stays", GroupStart::Oldest).await;
    bench.put_cursor(group, partition, leased_cursor(lease, 1, 2)).await;
    bench.put_cursor(stays, partition, leased_cursor(lease, 1, 2)).await;
    bench.run(move |tx| Ok(tx.remove_group(group))).await;
    for restart in Restart::ALL {
        bench.restart(restart).await;
        bench
            .run(move |tx| {
                assert_eq!((tx.group(queue, "g")?, tx.group_by_id(group)?), (None, None));
                assert_eq!(tx.cursor(group, partition)?, None);
                assert_eq!(tx.leased_partitions(lease)?, [(stays, partition)]);
                assert_eq!((tx.backlog(group)?, tx.backlog(stays)?), (0, 1));
                Ok(())
            })
            .await;
    }
    let again = bench.group(queue, "g", GroupStart::Oldest).await;
    assert_eq!(bench.run(move |tx| tx.cursor(again, partition)).await, None);
    assert_eq!(backlog(&bench, again).await, 2);
}

pub async fn a_group_from_the_oldest_sees_everything_kept<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (queue, partition) = bench.queue_with_partition().await;
    bench.push(partition, &["a", "b", "c"]).await;
    bench.trim(partition, 1).await;
    let group = bench.group(queue, "g", GroupStart::Oldest).await;
    for restart in Restart::ALL {
        bench.restart(restart).await;
        assert_eq!(backlog(&bench, group).await, 2);
    }
    assert_eq!(offered(&bench, group, 9).await, [partition]);
}

/// Three partitions: one entirely older than the moment, one partly, one entirely newer.
async fn three_ages<B: Backend>(bench: &TestStore<B>) -> (baton_types::QueueId, [PartitionId; 3]) {
    let queue = bench.queue("q").await;
    let [older, mixed, newer] = [
        bench.partition(queue, "older").await,
        bench.partition(queue, "mixed").await,
        bench.partition(queue, "newer").await,
    ];
    bench.push(older, &["o"]).await;
    bench.push(mixed, &["o"]).await;
    bench.clock.advance_to(START_TIME.after(seconds(100)));
    bench.push(mixed, &["n", "n"]).await;
    bench.push(newer, &["n"]).await;
    (queue, [older, mixed, newer])
}

/// A place is a cursor, or a beginning behind older messages.
pub async fn a_store_that_lists_the_places_of_a_group_lists_each<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (queue, [older, mixed, newer]) = three_ages(&bench).await;
    let all = bench.group(queue, "all", GroupStart::Oldest).await;
    let start = GroupStart::At(START_TIME.after(seconds(200)));
    let later = bench.group(queue, "later", start).await;
    bench.put_cursor(all, mixed, cursor_at(1)).await;
    bench.clock.advance_to(START_TIME.after(seconds(300)));
    bench.push(newer, &["x"]).await;
    bench.push(older, &["x"]).await;
    for restart in Restart::ALL {
        bench.restart(restart).await;
        let listed =
            bench.run(move |tx| Ok([tx.placed_partitions(all)?, tx.placed_partitions(later)?])).await;
        for (listed, expected) in listed.into_iter().zip([vec![mixed], vec![older, newer]]) {
            assert_eq!(listed.unwrap_or_else(|| expected.clone()), expected);
        }
    }
}

pub async fn a_group_from_a_moment_sees_what_came_since<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (queue, [older, mixed, newer]) = three_ages(&bench).await;
    let moment = START_TIME.after(seconds(50));
    let group = bench.group(queue, "g", GroupStart::At(moment)).await;
    for restart in Restart::ALL {
        bench.restart(restart).await;
        let place = bench.run(move |tx| tx.offset_at(mixed, moment)).await;
        assert_eq!(place, Offset(1));
        // Exact with a cursor, or where a partition is entirely older or newer; else at most everything.
        assert!((3..=4).contains(&backlog(&bench, group).await));
        assert_eq!(bench.run(move |tx| tx.cursor(group, older)).await, None);
    }
    let mut found = offered(&bench, group, 9).await;
    found.sort();
    assert_eq!(found, [mixed, newer]);
    bench.put_cursor(group, mixed, cursor_at(1)).await;
    bench.push(older, &["n"]).await;
    assert_eq!(backlog(&bench, group).await, 4);
    assert_eq!(offered(&bench, group, 9).await.len(), 3);
    assert_eq!(bench.run(move |tx| tx.offset_at(older, moment)).await, Offset(1));
}

pub async fn a_group_from_now_sees_what_is_pushed_in_the_same_commit_after_it<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (queue, partition) = bench.queue_with_partition().await;
    let before = bench.submit(move |tx| Ok(tx.append(partition, &block(&["before"]), Duration::ZERO).first));
    let subscribe = bench.submit(move |tx| {
        let now = tx.now();
        Ok((put_group(tx, queue, "g", GroupStart::At(now)), now))
    });
    let after = bench.submit(move |tx| Ok(tx.append(partition, &block(&["after"]), Duration::ZERO).first));
    before.await.unwrap();
    let (group, now) = subscribe.await.unwrap();
    assert_eq!(after.await.unwrap(), Offset(1));
    for restart in Restart::ALL {
        bench.restart(restart).await;
        assert_eq!(bench.run(move |tx| tx.offset_at(partition, now)).await, Offset(1));
    }
    assert_eq!(offered(&bench, group, 9).await, [partition]);
    bench.put_cursor(group, partition, cursor_at(1)).await;
    assert_eq!(backlog(&bench, group).await, 1);
}

pub async fn a_group_from_a_later_moment_does_not_see_what_comes_before_it<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (queue, partition) = bench.queue_with_partition().await;
    let moment = START_TIME.after(seconds(100));
    let group = bench.group(queue, "g", GroupStart::At(moment)).await;
    bench.push(partition, &["early"]).await;
    for restart in Restart::ALL {
        bench.restart(restart).await;
        assert_eq!(backlog(&bench, group).await, 0);
        assert!(offered(&bench, group, 9).await.is_empty());
    }
    bench.clock.advance_to(moment);
    bench.push(partition, &["in time"]).await;
    for restart in Restart::ALL {
        assert_eq!(backlog(&bench, group).await, 1, "before {restart:?}");
        bench.restart(restart).await;
        assert_eq!(backlog(&bench, group).await, 1, "after {restart:?}");
    }
    // As a seek to the end does.
    let later = moment.after(seconds(100));
    bench.run(move |tx| Ok(tx.set_group_start(group, GroupStart::At(later)))).await;
    for restart in Restart::ALL {
        bench.restart(restart).await;
        assert_eq!(backlog(&bench, group).await, 0, "{restart:?}");
    }
    bench.clock.advance_to(later);
    bench.push(partition, &["after the seek"]).await;
    for restart in Restart::ALL {
        bench.restart(restart).await;
        assert_eq!(backlog(&bench, group).await, 1, "{restart:?}");
    }
    assert_eq!(offered(&bench, group, 9).await, [partition]);
}

pub async fn a_group_sees_partitions_that_come_later<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let queue = bench.queue("q").await;
    let groups = [
        bench.group(queue, "oldest", GroupStart::Oldest).await,
        bench.group(queue, "now", GroupStart::At(START_TIME)).await,
    ];
    for (restart, name) in Restart::ALL.into_iter().zip(["a", "b", "c"]) {
        bench.restart(restart).await;
        let partition = bench.partition(queue, name).await;
        for group in groups {
            assert!(!offered(&bench, group, 9).await.contains(&partition), "nothing in it yet");
        }
        bench.push(partition, &["m"]).await;
        for group in groups {
            assert!(offered(&bench, group, 9).await.contains(&partition));
        }
    }
    for group in groups {
        assert_eq!(backlog(&bench, group).await, 3);
    }
    let _: Arc<crate::Group> = bench.run(move |tx| tx.group_by_id(groups[0])).await.unwrap();
}
