//! The dedup index of transaction ids.

use std::time::Duration;

use baton_types::{IdHash, Offset, PartitionId};

use super::{Backend, Restart, TestStore, WINDOW, named_block, seconds};

async fn push<B: Backend>(
    bench: &TestStore<B>,
    partition: PartitionId,
    ids: &[&str],
    remember: Duration,
) -> Offset {
    let block = named_block(ids);
    bench.run(move |tx| Ok(tx.append(partition, &block, remember).first)).await
}

async fn find<B: Backend>(bench: &TestStore<B>, partition: PartitionId, id: &'static str) -> Option<u64> {
    let hash = IdHash::new(id.as_bytes());
    let other = IdHash { check: hash.check ^ 1, ..hash };
    let found = bench.run(move |tx| {
        let among = tx.find_all_remembered(partition, &named_block(&["unknown", id]))?;
        assert_eq!(tx.find_remembered(partition, other)?, None, "all bits of a hash count");
        Ok((tx.find_remembered(partition, hash)?, among))
    });
    let (found, among) = found.await;
    assert_eq!(among, found.map(|known| (1, known)).into_iter().collect::<Vec<_>>());
    found.map(|known| known.offset.0)
}

pub async fn a_transaction_id_is_remembered_for_its_window<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (_, partition) = bench.queue_with_partition().await;
    push(&bench, partition, &["a", "b", "c"], WINDOW).await;
    assert_eq!(find(&bench, partition, "b").await, Some(1));
    assert_eq!(find(&bench, partition, "d").await, None);
    bench.clock.advance(WINDOW - seconds(1));
    for restart in Restart::ALL {
        bench.restart(restart).await;
        push(&bench, partition, &["other"], WINDOW).await;
        assert_eq!(find(&bench, partition, "c").await, Some(2));
        let id = IdHash::new(b"e");
        let seen = bench.run(move |tx| {
            let first = tx.append(partition, &named_block(&["d", "e"]), WINDOW).first;
            Ok(tx.find_remembered(partition, id)?.map(|known| known.offset) == Some(first.plus(1)))
        });
        assert!(seen.await, "a decision sees what it remembered itself");
    }
}

pub async fn a_transaction_id_is_forgotten_some_time_after_its_window<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (_, partition) = bench.queue_with_partition().await;
    push(&bench, partition, &["a"], WINDOW).await;
    bench.clock.advance(WINDOW * 2);
    for restart in Restart::ALL {
        assert_eq!(find(&bench, partition, "a").await, None, "before {restart:?}");
        bench.restart(restart).await;
        assert_eq!(find(&bench, partition, "a").await, None, "after {restart:?}");
    }
    push(&bench, partition, &["b"], WINDOW).await;
    push(&bench, partition, &["c"], WINDOW).await;
    assert!(bench.store().statistics().remembered <= 2);
}

pub async fn the_newest_of_two_messages_with_one_id_is_told<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (_, partition) = bench.queue_with_partition().await;
    push(&bench, partition, &["a", "b"], WINDOW).await;
    push(&bench, partition, &["a"], WINDOW).await;
    bench.clock.advance(WINDOW / 2 + seconds(1));
    for restart in Restart::ALL {
        bench.restart(restart).await;
        assert_eq!(find(&bench, partition, "a").await, Some(2));
    }
    push(&bench, partition, &["x", "a"], WINDOW).await;
    for restart in Restart::ALL {
        bench.restart(restart).await;
        assert_eq!(find(&bench, partition, "a").await, Some(4));
        assert_eq!(find(&bench, partition, "b").await, Some(1));
    }
}

pub async fn the_newest_is_told_also_when_its_window_is_shorter<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (_, partition) = bench.queue_with_partition().await;
    push(&bench, partition, &["a"], WINDOW * 10).await;
    push(&bench, partition, &["a"], WINDOW).await;
    for restart in Restart::ALL {
        bench.restart(restart).await;
        assert_eq!(find(&bench, partition, "a").await, Some(1));
    }
    bench.clock.advance(WINDOW * 3);
    assert_eq!(find(&bench, partition, "a").await, Some(0), "the older one is remembered for longer");
}

pub async fn a_transaction_id_belongs_to_its_partition<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (queue, first) = bench.queue_with_partition().await;
    let second = bench.partition(queue, "p2").await;
    push(&bench, first, &["a", "b"], WINDOW).await;
    push(&bench, second, &["b"], WINDOW).await;
    for restart in Restart::ALL {
        bench.restart(restart).await;
        assert_eq!(find(&bench, first, "b").await, Some(1));
        assert_eq!(find(&bench, second, "b").await, Some(0));
        assert_eq!(find(&bench, second, "a").await, None);
    }
}

pub async fn without_a_window_nothing_is_remembered<B: Backend>() {
    let bench = TestStore::<B>::new().await;
    let (_, partition) = bench.queue_with_partition().await;
    push(&bench, partition, &["a"], Duration::ZERO).await;
    assert_eq!(find(&bench, partition, "a").await, None);
    assert_eq!(bench.store().statistics().remembered, 0);
}

pub async fn an_id_is_remembered_also_when_its_message_is_gone<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (_, partition) = bench.queue_with_partition().await;
    let block = named_block(&["a", "b"]);
    let appended = bench.run(move |tx| Ok(tx.append(partition, &block, WINDOW))).await;
    bench.run(move |tx| tx.trim(partition, Offset(2))).await;
    bench.clock.advance(WINDOW - seconds(1));
    for restart in Restart::ALL {
        let known = bench.run(move |tx| {
            assert_eq!(tx.message(partition, Offset(1))?, None);
            tx.find_remembered(partition, IdHash::new(b"b"))
        });
        let known = known.await.unwrap();
        assert_eq!(known.offset, Offset(1), "before {restart:?}");
        let millis = known.created_at.map(|at| at.millis());
        assert_eq!(millis, Some(appended.created_at.millis()), "its message's id can be told");
        bench.restart(restart).await;
    }
}

pub async fn remembered_ids_outlive_a_restart<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (_, partition) = bench.queue_with_partition().await;
    let ids: Vec<String> = (0..500).map(|i| format!("id {i}")).collect();
    let appends: Vec<_> = ids
        .chunks(7)
        .map(|ids| {
            let block = named_block(&ids.iter().map(String::as_str).collect::<Vec<_>>());
            bench.submit(move |tx| Ok(tx.append(partition, &block, WINDOW)))
        })
        .collect();
    for append in appends {
        append.await.unwrap();
    }
    for restart in Restart::ALL {
        bench.restart(restart).await;
        let ids = ids.clone();
        let found = bench.run(move |tx| {
            let mut found = Vec::new();
            for id in &ids {
                found.push(
                    tx.find_remembered(partition, IdHash::new(id.as_bytes()))?.map(|known| known.offset),
                );
            }
            Ok(found)
        });
        assert!(found.await.into_iter().eq((0..500).map(|offset| Some(Offset(offset)))), "{restart:?}");
    }
}
