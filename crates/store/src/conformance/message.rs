//! Messages: append, read, find, trim.

use std::time::Duration;

use baton_types::{Offset, PartitionId, Timestamp};
use uuid::Uuid;

use super::{Backend, Restart, START_TIME, TestStore, block, seconds};
use crate::{MessageBlock, NewMessage, Partition};

async fn row<B: Backend>(bench: &TestStore<B>, partition: PartitionId) -> Partition {
    bench.run(move |tx| tx.partition_by_id(partition)).await.unwrap()
}

async fn offset_at<B: Backend>(bench: &TestStore<B>, partition: PartitionId, at: Timestamp) -> u64 {
    bench.run(move |tx| tx.offset_at(partition, at)).await.0
}

pub async fn messages_come_back_as_they_were_pushed<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (_, partition) = bench.queue_with_partition().await;
    let large = vec![0xA5; 300_000];
    let mut pushed = MessageBlock::default();
    pushed.push(&NewMessage {
        transaction_id: Some("t-1"),
        trace_id: Some(Uuid::from_u128(9)),
        producer: Some("me"),
        payload: b"{}",
    });
    pushed.push(&NewMessage::default());
    pushed.push(&NewMessage { payload: &large, ..NewMessage::default() });
    let now = bench
        .run(move |tx| {
            tx.append(partition, &pushed, Duration::ZERO);
            Ok(tx.now())
        })
        .await;
    for restart in Restart::ALL {
        bench.restart(restart).await;
        let read = bench.messages(partition, 0, 3).await;
        assert_eq!(read.len(), 3);
        assert_eq!(read[0].transaction_id.as_deref(), Some(&b"t-1"[..]));
        assert_eq!(read[0].trace_id, Some(Uuid::from_u128(9)));
        assert_eq!(read[0].producer.as_deref(), Some(&b"me"[..]));
        assert_eq!(read[0].payload, "{}");
        assert_eq!((&read[1].transaction_id, &read[1].trace_id, read[1].payload.len()), (&None, &None, 0));
        assert_eq!(read[2].payload, large);
        for (message, offset) in read.into_iter().zip(0..) {
            assert_eq!(
                (message.partition, message.offset, message.created_at),
                (partition, Offset(offset), now)
            );
            assert_eq!(bench.run(move |tx| tx.message(partition, Offset(offset))).await, Some(message));
        }
        assert_eq!(bench.run(move |tx| tx.message(partition, Offset(3))).await, None);
    }
}

pub async fn offsets_are_dense<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (queue, partition) = bench.queue_with_partition().await;
    let mut tail = 0;
    for restart in Restart::ALL {
        bench.restart(restart).await;
        let appends: Vec<_> = (1..8u64)
            .map(|count| {
                let block = block(&vec!["x"; usize::try_from(count).unwrap()]);
                (count, bench.submit(move |tx| Ok(tx.append(partition, &block, Duration::ZERO).first)))
            })
            .collect();
        for (count, append) in appends {
            assert_eq!(append.await.unwrap(), Offset(tail));
            tail += count;
        }
        assert_eq!(row(&bench, partition).await.tail, Offset(tail));
        assert_eq!(bench.run(move |tx| tx.message_count(queue)).await, tail);
        let read = bench.messages(partition, 0, tail).await;
        assert!(read.iter().map(|m| m.offset.0).eq(0..tail));
    }
}

pub async fn appends_of_one_commit_are_read_in_order<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (queue, first) = bench.queue_with_partition().await;
    let second = bench.partition(queue, "p2").await;
    let texts: Vec<String> = (0..200).map(|i| format!("message {i}")).collect();
    let appends: Vec<_> = texts
        .iter()
        .map(|text| {
            let block = block(&[text]);
            bench.submit(move |tx| {
                tx.append(first, &block, Duration::ZERO);
                Ok(tx.append(second, &block, Duration::ZERO))
            })
        })
        .collect();
    for append in appends {
        append.await.unwrap();
    }
    for restart in Restart::ALL {
        bench.restart(restart).await;
        for partition in [first, second] {
            assert_eq!(bench.payloads(partition, 0, 200).await, texts);
        }
    }
}

pub async fn a_message_is_seen_by_the_decision_that_appended_it<B: Backend>() {
    let bench = TestStore::<B>::new().await;
    let (_, partition) = bench.queue_with_partition().await;
    bench.push(partition, &["before"]).await;
    bench
        .run(move |tx| {
            let first = tx.append(partition, &block(&["a"]), Duration::ZERO).first;
            let second = tx.append(partition, &block(&["b", "c"]), Duration::ZERO).first;
            assert_eq!((first, second), (Offset(1), Offset(2)));
            for (offset, payload) in ["before", "a", "b", "c"].into_iter().enumerate() {
                assert_eq!(tx.message(partition, Offset(offset as u64))?.unwrap().payload, payload);
            }
            assert_eq!(tx.message(partition, Offset(4))?, None);
            assert_eq!(tx.partition_by_id(partition)?.unwrap().tail, Offset(4));
            Ok(())
        })
        .await;
}

pub async fn a_read_tells_the_segments_that_touch_the_range<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (_, partition) = bench.queue_with_partition().await;
    for push in [&["0", "1", "2"][..], &["3"], &["4", "5"], &["6"]] {
        bench.push(partition, push).await;
    }
    for restart in Restart::ALL {
        bench.restart(restart).await;
        for from in 0..8u64 {
            for to in 0..9u64 {
                let expected: Vec<_> = (from..to.min(7)).map(|o| o.to_string()).collect();
                assert_eq!(bench.payloads(partition, from, to).await, expected, "{from}..{to}");
            }
        }
        let segments = bench.store().read(partition, Offset(4), Offset(6), usize::MAX).await.unwrap();
        assert_eq!(segments.len(), 1, "a segment outside the range is not told");
    }
}

pub async fn a_read_stops_after_the_segment_that_passes_the_bound<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (_, partition) = bench.queue_with_partition().await;
    let payload = "x".repeat(1000);
    for _ in 0..6 {
        bench.push(partition, &[&payload]).await;
    }
    for restart in Restart::ALL {
        bench.restart(restart).await;
        for (bytes_max, expected) in [(0, 1), (1, 1), (1500, 2), (2500, 3), (usize::MAX, 6)] {
            let segments = bench.store().read(partition, Offset(0), Offset(6), bytes_max).await.unwrap();
            assert_eq!(segments.len(), expected, "{bytes_max} bytes");
        }
    }
}

pub async fn a_read_of_nothing_is_empty<B: Backend>() {
    let bench = TestStore::<B>::new().await;
    let (_, partition) = bench.queue_with_partition().await;
    assert!(bench.messages(partition, 0, 10).await.is_empty());
    bench.push(partition, &["a"]).await;
    assert!(bench.messages(partition, 0, 0).await.is_empty());
    assert!(bench.messages(partition, 1, 5).await.is_empty());
    assert!(bench.messages(PartitionId(partition.0 + 1), 0, 5).await.is_empty());
}

pub async fn partitions_do_not_see_each_others_messages<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let queue = bench.queue("q").await;
    let mut partitions = Vec::new();
    for name in ["a", "b", "c"] {
        let partition = bench.partition(queue, name).await;
        partitions.push((name, partition));
    }
    for (name, partition) in &partitions {
        bench.push(*partition, &[name, name]).await;
    }
    bench.trim(partitions[1].1, 2).await;
    for restart in Restart::ALL {
        bench.restart(restart).await;
        assert_eq!(bench.payloads(partitions[0].1, 0, 9).await, ["a", "a"]);
        assert_eq!(bench.payloads(partitions[2].1, 0, 9).await, ["c", "c"]);
        assert_eq!(bench.run(move |tx| tx.message_count(queue)).await, 4);
    }
}

pub async fn the_row_tells_when_the_oldest_and_newest_message_came<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (_, partition) = bench.queue_with_partition().await;
    let mut times = Vec::new();
    for _ in 0..3 {
        bench.clock.advance(seconds(10));
        bench.push(partition, &["x"]).await;
        times.push(bench.run(move |tx| Ok(tx.partition_by_id(partition)?.unwrap().last_at)).await);
    }
    assert!(times.is_sorted_by(|a, b| b.since(*a) >= seconds(10)), "{times:?}");
    for restart in Restart::ALL {
        bench.restart(restart).await;
        let row = row(&bench, partition).await;
        assert!(row.created_at <= times[0] && row.first_at <= times[0] && row.last_at == times[2], "{row:?}");
    }
    bench.trim(partition, 2).await;
    for restart in Restart::ALL {
        bench.restart(restart).await;
        let row = row(&bench, partition).await;
        assert!(row.first_at <= times[2] && row.last_at == times[2], "{row:?}");
    }
}

pub async fn a_moment_is_found_among_stored_and_uncommitted_messages<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (_, partition) = bench.queue_with_partition().await;
    for _ in 0..5 {
        bench.clock.advance(seconds(10));
        bench.push(partition, &["a", "b"]).await;
    }
    for restart in Restart::ALL {
        bench.restart(restart).await;
        bench.clock.advance(seconds(10));
        let pushes: Vec<_> = (0..3)
            .map(|_| {
                let push = bench.submit(move |tx| Ok(tx.append(partition, &block(&["c"]), Duration::ZERO)));
                // Each answer is compared within one decision, independent of what is on disk.
                let check = bench.submit(move |tx| {
                    let row = tx.partition_by_id(partition)?.unwrap();
                    let mut times = Vec::new();
                    for offset in row.start.0..row.tail.0 {
                        times.push(tx.message(partition, Offset(offset))?.unwrap().created_at);
                    }
                    for at in
                        times.iter().flat_map(|t| [-1, 0, 1].map(|d| Timestamp::from_micros(t.micros() + d)))
                    {
                        let expected = times.iter().position(|t| *t >= at).unwrap_or(times.len()) as u64;
                        assert_eq!(
                            tx.offset_at(partition, at)?,
                            row.start.plus(expected),
                            "{at} in {times:?}"
                        );
                    }
                    Ok(())
                });
                (push, check)
            })
            .collect();
        for (push, check) in pushes {
            push.await.unwrap();
            check.await.unwrap();
        }
    }
    assert_eq!(offset_at(&bench, partition, Timestamp::MIN).await, 0);
    assert_eq!(offset_at(&bench, partition, Timestamp::MAX).await, 19);
    bench.trim(partition, 3).await;
    assert_eq!(offset_at(&bench, partition, Timestamp::MIN).await, 3, "the first kept one");
    assert_eq!(offset_at(&bench, partition, START_TIME).await, 3);
    bench.trim(partition, 19).await;
    assert_eq!(offset_at(&bench, partition, START_TIME).await, 19, "the tail, when nothing is kept");
}

pub async fn a_trim_moves_the_start_exactly<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (queue, partition) = bench.queue_with_partition().await;
    for push in [&["0", "1", "2"][..], &["3", "4"], &["5"]] {
        bench.push(partition, push).await;
    }
    for (start, expected) in [(1, &["1", "2", "3", "4", "5"][..]), (3, &["3", "4", "5"]), (4, &["4", "5"])] {
        bench.trim(partition, start).await;
        for restart in Restart::ALL {
            bench.restart(restart).await;
            let row = row(&bench, partition).await;
            assert_eq!((row.start, row.tail), (Offset(start), Offset(6)));
            assert_eq!(bench.run(move |tx| tx.message_count(queue)).await, 6 - start);
            assert_eq!(bench.payloads(partition, start, 6).await, expected);
        }
    }
}

pub async fn a_trim_beyond_the_tail_stops_at_the_tail<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (queue, partition) = bench.queue_with_partition().await;
    bench.push(partition, &["a", "b"]).await;
    bench.trim(partition, 100).await;
    for restart in Restart::ALL {
        bench.restart(restart).await;
        let row = row(&bench, partition).await;
        assert_eq!((row.start, row.tail), (Offset(2), Offset(2)));
        assert_eq!(bench.run(move |tx| tx.message_count(queue)).await, 0);
    }
}

pub async fn a_trim_backwards_changes_nothing<B: Backend>() {
    let bench = TestStore::<B>::new().await;
    let (queue, partition) = bench.queue_with_partition().await;
    bench.push(partition, &["a", "b"]).await;
    for start in [1, 0, 1] {
        bench.trim(partition, start).await;
    }
    assert_eq!(row(&bench, partition).await.start, Offset(1));
    assert_eq!(bench.run(move |tx| tx.message_count(queue)).await, 1);
    bench.trim(PartitionId(u64::MAX / 2), 4).await;
}

pub async fn trimmed_messages_are_not_read_once_their_segment_is_gone<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (_, partition) = bench.queue_with_partition().await;
    for push in [&["0", "1"][..], &["2", "3"], &["4"]] {
        bench.push(partition, push).await;
    }
    bench.trim(partition, 4).await;
    for restart in Restart::ALL {
        bench.restart(restart).await;
        assert_eq!(bench.payloads(partition, 0, 9).await, ["4"]);
        assert_eq!(bench.run(move |tx| tx.message(partition, Offset(1))).await, None);
    }
    bench.trim(partition, 5).await;
    for restart in Restart::ALL {
        bench.restart(restart).await;
        assert!(bench.payloads(partition, 0, 9).await.is_empty());
    }
}

pub async fn messages_trimmed_before_they_were_committed_are_gone<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (queue, partition) = bench.queue_with_partition().await;
    let mut steps = Vec::new();
    for (payload, start) in [("0", 0), ("1", 1), ("2", 3), ("3", 3), ("4", 4)] {
        let append = bench.submit(move |tx| Ok(tx.append(partition, &block(&[payload]), Duration::ZERO)));
        let trim = bench.submit(move |tx| tx.trim(partition, Offset(start)));
        steps.push((append, trim));
    }
    for (append, trim) in steps {
        append.await.unwrap();
        trim.await.unwrap();
    }
    for restart in Restart::ALL {
        bench.restart(restart).await;
        assert_eq!(bench.run(move |tx| tx.message_count(queue)).await, 1);
        assert_eq!(bench.payloads(partition, 4, 5).await, ["4"]);
        assert_eq!(bench.run(move |tx| tx.offset_at(partition, Timestamp::MIN)).await, Offset(4));
    }
}

pub async fn offsets_go_on_after_everything_was_trimmed<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (_, partition) = bench.queue_with_partition().await;
    let mut tail = 0;
    for restart in Restart::ALL {
        assert_eq!(bench.push(partition, &["a", "b"]).await, Offset(tail));
        tail += 2;
        bench.trim(partition, tail).await;
        bench.restart(restart).await;
        bench.clock.advance(seconds(1));
        let before = bench.clock.clone();
        assert_eq!(bench.push(partition, &["c"]).await, Offset(tail));
        assert_eq!(bench.payloads(partition, tail, tail + 1).await, ["c"]);
        let at = baton_env::Clock::now(&*before);
        assert_eq!(offset_at(&bench, partition, at).await, tail);
        tail += 1;
    }
}

pub async fn a_deleted_message_is_marked_until_it_is_trimmed<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (queue, partition) = bench.queue_with_partition().await;
    bench.push(partition, &["a", "b", "c", "d"]).await;
    for offset in [1, 2, 1] {
        bench.run(move |tx| Ok(tx.delete_message(partition, Offset(offset)))).await;
    }
    for restart in Restart::ALL {
        bench.restart(restart).await;
        let row = row(&bench, partition).await;
        assert_eq!((row.deleted.ranges(), row.start, row.tail), (&[(1, 3)][..], Offset(0), Offset(4)));
        assert_eq!(bench.run(move |tx| tx.message_count(queue)).await, 2);
    }
    bench.trim(partition, 2).await;
    for restart in Restart::ALL {
        bench.restart(restart).await;
        assert_eq!(row(&bench, partition).await.deleted.ranges(), [(2, 3)]);
        assert_eq!(bench.run(move |tx| tx.message_count(queue)).await, 1);
    }
    // Outside the kept range there is nothing to delete.
    for offset in [0, 1, 4, 99] {
        bench.run(move |tx| Ok(tx.delete_message(partition, Offset(offset)))).await;
    }
    assert_eq!(row(&bench, partition).await.deleted.ranges(), [(2, 3)]);
}
