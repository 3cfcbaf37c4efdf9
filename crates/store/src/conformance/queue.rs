//! Queues and their partitions.

use std::collections::BTreeSet;
use std::time::Duration;

use baton_types::{LeaseId, Offset, PartitionId};
use uuid::Uuid;

use super::{
    Backend, Restart, TestStore, WINDOW, block, cursor_at, dead_letter, named_block, put_group, queue_spec,
};
use crate::{Cursor, Durability, GroupStart, Lease, Tx};

pub async fn a_queue_is_found_by_name_and_number<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let mut wanted = queue_spec("bestellungen");
    (wanted.namespace, wanted.task, wanted.options.lease_time) = ("shop".into(), "ship".into(), 7);
    let given = wanted.clone();
    let queue = bench.run(move |tx| tx.put_queue(given.clone())).await;
    assert_eq!(queue.spec, wanted);
    for restart in Restart::ALL {
        bench.restart(restart).await;
        let (id, expected) = (queue.id, queue.clone());
        let found = bench.run(move |tx| Ok((tx.queue("bestellungen")?, tx.queue_by_id(id)?))).await;
        assert_eq!(found, (Some(expected.clone()), Some(expected)));
        assert_eq!(bench.run(|tx| tx.queue("other")).await, None);
    }
}

pub async fn a_queue_is_changed_in_place<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (queue, partition) = bench.queue_with_partition().await;
    bench.push(partition, &["a"]).await;
    let created_at = bench.run(|tx| tx.queue("q")).await.unwrap().created_at;
    let mut changed = queue_spec("q");
    changed.options.retry_limit = 9;
    let given = changed.clone();
    bench.run(move |tx| tx.put_queue(given.clone())).await;
    for restart in Restart::ALL {
        bench.restart(restart).await;
        let found = bench.run(|tx| tx.queue("q")).await.unwrap();
        assert_eq!((found.id, found.created_at, &found.spec), (queue, created_at, &changed));
        assert_eq!(bench.run(move |tx| tx.message_count(queue)).await, 1);
    }
}

pub async fn queues_are_told_in_the_order_of_their_creation<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    for name in ["m", "z", "a", "k"] {
        bench.queue(name).await;
    }
    let removed = bench.queue("k").await;
    bench.run(move |tx| Ok(tx.remove_queue(removed))).await;
    bench.queue("m").await;
    for restart in Restart::ALL {
        bench.restart(restart).await;
        let queues = bench.run(|tx| tx.queues()).await;
        assert_eq!(queues.iter().map(|q| &*q.spec.name).collect::<Vec<_>>(), ["m", "z", "a"]);
    }
}

pub async fn partitions_are_found_and_paged_by_number<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (queue, other) = (bench.queue("q").await, bench.queue("other").await);
    let mut ids = Vec::new();
    for name in ["z", "a", "ü", ""] {
        ids.push(bench.partition(queue, name).await);
        bench.partition(other, name).await;
    }
    for restart in Restart::ALL {
        bench.restart(restart).await;
        let row = bench.run(move |tx| tx.partition(queue, "ü")).await.unwrap();
        assert_eq!((row.id, row.queue, &*row.name), (ids[2], queue, "ü"));
        assert_eq!((row.start, row.tail, row.deleted.is_empty()), (Offset(0), Offset(0), true));
        let id = ids[2];
        assert_eq!(bench.run(move |tx| tx.partition_by_id(id)).await, Some(row));
        assert_eq!(bench.run(move |tx| tx.partition(queue, "unknown")).await, None);
        assert_eq!(bench.run(|tx| tx.partition_by_id(PartitionId(u64::MAX / 2))).await, None);
        assert_eq!(bench.run(move |tx| tx.partition_count(queue)).await, 4);
        let page = |after, limit| bench.submit(move |tx| tx.partitions(queue, after, limit));
        let told = |rows: Vec<crate::Partition>| rows.iter().map(|row| row.id).collect::<Vec<_>>();
        assert_eq!(told(page(None, 10).await.unwrap()), ids);
        assert_eq!(told(page(Some(ids[0]), 2).await.unwrap()), ids[1..3]);
        assert!(page(Some(ids[3]), 2).await.unwrap().is_empty());
    }
}

pub async fn hundreds_of_partitions_are_found_and_filled_in_one_decision<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let queue = bench.queue("q").await;
    let fill = move |tx: &mut dyn Tx| {
        let names: Vec<String> = (0..300).map(|number| format!("p{number}")).collect();
        let found = tx.partition_ids(queue, &names.iter().map(String::as_str).collect::<Vec<_>>())?;
        let mut ids = Vec::new();
        for (name, found) in names.iter().zip(found) {
            ids.push(found.unwrap_or_else(|| tx.create_partition(queue, name)));
        }
        for id in &ids {
            tx.append(*id, &block(&["x"]), Duration::ZERO);
        }
        Ok(ids)
    };
    let ids = bench.run(fill).await;
    for restart in Restart::ALL {
        bench.restart(restart).await;
        assert_eq!(bench.run(fill).await, ids);
    }
    assert_eq!(bench.run(move |tx| tx.message_count(queue)).await, 4 * 300);
}

pub async fn numbers_are_never_used_again<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let mut seen = BTreeSet::new();
    for restart in [Restart::Not, Restart::Close, Restart::Crash, Restart::Not] {
        bench.restart(restart).await;
        let (queue, partition) = bench.queue_with_partition().await;
        let group = bench.group(queue, "g", GroupStart::Oldest).await;
        for fresh in [("queue", queue.0), ("partition", partition.0), ("group", group.0)] {
            assert!(seen.insert(fresh), "{fresh:?} came twice");
        }
        bench.run(move |tx| Ok(tx.remove_queue(queue))).await;
    }
}

pub async fn a_removed_queue_takes_everything_with_it<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (queue, partition) = bench.queue_with_partition().await;
    let lease = LeaseId(Uuid::from_u128(5));
    let (group, token) = bench
        .run(move |tx| {
            tx.append(partition, &named_block(&["a", "b"]), WINDOW);
            let group = put_group(tx, queue, "g", GroupStart::Oldest);
            tx.put_dead_letter(dead_letter::letter(queue, partition, 0, "g", 5));
            let until = tx.now().after(WINDOW);
            let held = Lease { id: lease, token: tx.fresh_token(), until, end: Offset(2) };
            let cursor = Cursor { lease: Some(Box::new(held)), ..cursor_at(0) };
            tx.put_cursor(group, partition, cursor, Durability::Now);
            Ok((group, tx.fresh_token()))
        })
        .await;
    bench.run(move |tx| Ok(tx.remove_queue(queue))).await;
    for restart in Restart::ALL {
        bench.restart(restart).await;
        bench
            .run(move |tx| {
                assert_eq!(tx.queue("q")?, None);
                assert_eq!(tx.queue_by_id(queue)?, None);
                assert!(tx.queues()?.is_empty());
                assert_eq!(tx.partition(queue, "p")?, None);
                assert_eq!(tx.partition_by_id(partition)?, None);
                assert!(tx.partitions(queue, None, 9)?.is_empty());
                assert_eq!(tx.partition_count(queue)?, 0);
                assert_eq!(tx.group(queue, "g")?, None);
                assert_eq!(tx.group_by_id(group)?, None);
                assert!(tx.groups(queue)?.is_empty());
                assert_eq!(tx.cursor(group, partition)?, None);
                assert!(tx.leased_partitions(lease)?.is_empty());
                assert!(tx.ready_partitions(group, 9)?.is_empty());
                assert_eq!(tx.next_ready_at(group)?, None);
                assert_eq!((tx.backlog(group)?, tx.message_count(queue)?), (0, 0));
                assert_eq!(tx.message(partition, Offset(0))?, None);
                assert!(tx.dead_letters(queue, None, 9)?.is_empty());
                assert_eq!(tx.dead_letter(&dead_letter::key(queue, partition, 0, "g"))?, None);
                assert!(tx.fresh_token() > token);
                Ok(())
            })
            .await;
    }
}

pub async fn a_queue_of_the_same_name_begins_empty<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (old, partition) = bench.queue_with_partition().await;
    bench.push(partition, &["a", "b"]).await;
    bench.group(old, "g", GroupStart::Oldest).await;
    let queue = bench
        .run(move |tx| {
            tx.remove_queue(old);
            Ok(tx.put_queue(queue_spec("q"))?.id)
        })
        .await;
    assert_ne!(queue, old);
    for restart in Restart::ALL {
        bench.restart(restart).await;
        assert_eq!(bench.run(|tx| tx.queue("q")).await.unwrap().id, queue);
        let counts = bench
            .run(move |tx| Ok((tx.message_count(queue)?, tx.partition_count(queue)?, tx.group(queue, "g")?)));
        assert_eq!(counts.await, (0, 0, None));
    }
    let fresh = bench.partition(queue, "p").await;
    assert_ne!(fresh, partition);
    assert_eq!(bench.push(fresh, &["c"]).await, Offset(0));
    assert_eq!(bench.payloads(fresh, 0, 9).await, ["c"]);
}

pub async fn a_queue_made_and_removed_in_one_decision_leaves_nothing<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (queue, partition) = bench
        .run(|tx| {
            let queue = tx.put_queue(queue_spec("q"))?.id;
            let partition = tx.create_partition(queue, "p");
            tx.append(partition, &block(&["a"]), Duration::ZERO);
            put_group(tx, queue, "g", GroupStart::Oldest);
            tx.append(partition, &block(&["b"]), Duration::ZERO);
            tx.remove_queue(queue);
            Ok((queue, partition))
        })
        .await;
    for restart in Restart::ALL {
        bench.restart(restart).await;
        assert_eq!(bench.run(move |tx| tx.queue_by_id(queue)).await, None);
        assert_eq!(bench.run(move |tx| tx.partition_by_id(partition)).await, None);
        assert!(bench.payloads(partition, 0, 9).await.is_empty());
    }
}
