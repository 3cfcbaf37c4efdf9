//! Dead letters: by key, newest first.

use baton_types::{Offset, PartitionId, QueueId, Timestamp};
use uuid::Uuid;

use super::{Backend, Restart, START_TIME, TestStore, seconds};
use crate::{DeadLetter, DeadLetterKey};

pub(super) fn key(queue: QueueId, partition: PartitionId, offset: u64, group: &str) -> DeadLetterKey {
    DeadLetterKey { queue, partition, offset: Offset(offset), group: group.into() }
}

pub(super) fn letter(
    queue: QueueId,
    partition: PartitionId,
    offset: u64,
    group: &str,
    failed_after: u64,
) -> DeadLetter {
    DeadLetter {
        key: key(queue, partition, offset, group),
        transaction_id: format!("t-{offset}"),
        trace_id: Some(Uuid::from_u128(4)),
        producer: None,
        created_at: START_TIME,
        failed_at: START_TIME.after(seconds(failed_after)),
        retries: 3,
        error: Some("no \"luck\"".into()),
        payload: vec![0, 159, 146, 150].into(),
    }
}

async fn put<B: Backend>(bench: &TestStore<B>, letter: &DeadLetter) {
    let letter = letter.clone();
    bench.run(move |tx| Ok(tx.put_dead_letter(letter.clone()))).await;
}

async fn page<B: Backend>(
    bench: &TestStore<B>,
    queue: QueueId,
    after: Option<DeadLetter>,
    limit: usize,
) -> Vec<DeadLetter> {
    bench.run(move |tx| tx.dead_letters(queue, after.as_ref(), limit)).await
}

fn offsets(letters: &[DeadLetter]) -> Vec<u64> {
    letters.iter().map(|letter| letter.key.offset.0).collect()
}

pub async fn a_letter_is_read_as_it_was_written<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (queue, partition) = bench.queue_with_partition().await;
    let mut large = letter(queue, partition, 8, "g/ü", 2);
    large.payload = vec![7; 200_000].into();
    let plain = letter(queue, partition, 9, "g", 1);
    put(&bench, &large).await;
    put(&bench, &plain).await;
    for restart in Restart::ALL {
        bench.restart(restart).await;
        for expected in [&large, &plain] {
            let key = expected.key.clone();
            assert_eq!(bench.run(move |tx| tx.dead_letter(&key)).await.as_ref(), Some(expected));
        }
        assert_eq!(page(&bench, queue, None, 9).await, [large.clone(), plain.clone()]);
        let unknown = key(queue, partition, 9, "other");
        assert_eq!(bench.run(move |tx| tx.dead_letter(&unknown)).await, None);
    }
}

pub async fn a_letter_of_the_same_key_replaces_the_old_one<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (queue, partition) = bench.queue_with_partition().await;
    put(&bench, &letter(queue, partition, 1, "g", 1)).await;
    put(&bench, &letter(queue, partition, 2, "g", 2)).await;
    for (restart, failed_after) in Restart::ALL.into_iter().zip([3, 3, 0]) {
        let mut again = letter(queue, partition, 1, "g", failed_after);
        again.error = Some(format!("{restart:?}"));
        put(&bench, &again).await;
        bench.restart(restart).await;
        let key = again.key.clone();
        assert_eq!(bench.run(move |tx| tx.dead_letter(&key)).await, Some(again));
        let expected = if failed_after == 3 { [1, 2] } else { [2, 1] };
        assert_eq!(offsets(&page(&bench, queue, None, 9).await), expected);
    }
}

pub async fn letters_are_told_newest_first_and_paged<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (queue, partition) = bench.queue_with_partition().await;
    for (offset, failed_after) in [(0, 5), (1, 9), (2, 1), (3, 7)] {
        put(&bench, &letter(queue, partition, offset, "g", failed_after)).await;
    }
    for restart in Restart::ALL {
        bench.restart(restart).await;
        let first = page(&bench, queue, None, 3).await;
        assert_eq!(offsets(&first), [1, 3, 0]);
        let rest = page(&bench, queue, first.last().cloned(), 3).await;
        assert_eq!(offsets(&rest), [2]);
        assert!(page(&bench, queue, rest.last().cloned(), 3).await.is_empty());
        let gone = letter(queue, partition, 77, "g", 6);
        assert_eq!(offsets(&page(&bench, queue, Some(gone), 9).await), [0, 2], "after a letter that is gone");
    }
}

pub async fn letters_of_one_moment_are_paged_without_loss<B: Backend>() {
    let bench = TestStore::<B>::new().await;
    let (queue, partition) = bench.queue_with_partition().await;
    for offset in 0..7 {
        for group in ["g", "h"] {
            put(&bench, &letter(queue, partition, offset, group, 1)).await;
        }
    }
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let letters = page(&bench, queue, after.take(), 3).await;
        let Some(last) = letters.last() else { break };
        after = Some(last.clone());
        seen.extend(letters.into_iter().map(|letter| letter.key));
    }
    seen.sort();
    let mut expected: Vec<_> =
        (0..7).flat_map(|offset| ["g", "h"].map(|group| key(queue, partition, offset, group))).collect();
    expected.sort();
    assert_eq!(seen, expected);
}

pub async fn keys_of_letters_are_paged_by_partition_without_loss<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (queue, first) = bench.queue_with_partition().await;
    let second = bench.run(move |tx| Ok(tx.create_partition(queue, "second"))).await;
    let other = bench.queue("other").await;
    let mut expected = Vec::new();
    for partition in [first, second] {
        for offset in 0..4 {
            for group in ["g", "h"] {
                let letter = letter(queue, partition, offset, group, 9 - offset);
                put(&bench, &letter).await;
                expected.push((letter.key, letter.failed_at));
            }
        }
    }
    put(&bench, &letter(other, first, 1, "g", 1)).await;
    expected.sort();
    for restart in Restart::ALL {
        bench.restart(restart).await;
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let from: Option<DeadLetterKey> = after.take();
            let keys = bench.run(move |tx| tx.dead_letter_keys(queue, from.as_ref(), 3)).await;
            let Some((last, _)) = keys.last() else { break };
            after = Some(last.clone());
            seen.extend(keys);
        }
        let by_partition: Vec<&[(DeadLetterKey, Timestamp)]> =
            seen.chunk_by(|(one, _), (other, _)| one.partition == other.partition).collect();
        assert_eq!(by_partition.len(), 2, "{seen:?}");
        for letters in by_partition {
            assert!(letters.is_sorted_by_key(|(key, _)| key.offset), "{letters:?}");
        }
        seen.sort();
        assert_eq!(seen, expected);
    }
    bench
        .run(move |tx| {
            tx.remove_dead_letter(&key(queue, first, 1, "g"));
            tx.put_dead_letter(letter(queue, first, 2, "g", 50));
            let keys = tx.dead_letter_keys(queue, None, 99)?;
            assert_eq!(keys.len(), 15);
            assert!(keys.contains(&(key(queue, first, 2, "g"), START_TIME.after(seconds(50)))));
            Ok(())
        })
        .await;
}

pub async fn a_removed_letter_is_gone<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (queue, partition) = bench.queue_with_partition().await;
    let (gone, stays) = (letter(queue, partition, 1, "g", 1), letter(queue, partition, 1, "h", 1));
    put(&bench, &gone).await;
    put(&bench, &stays).await;
    let key = gone.key.clone();
    bench.run(move |tx| Ok(tx.remove_dead_letter(&key))).await;
    for restart in Restart::ALL {
        bench.restart(restart).await;
        let key = gone.key.clone();
        assert_eq!(bench.run(move |tx| tx.dead_letter(&key)).await, None);
        assert_eq!(page(&bench, queue, None, 9).await, [stays.clone()]);
    }
}

pub async fn letters_belong_to_their_queue<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (queue, partition) = bench.queue_with_partition().await;
    let other = bench.queue("other").await;
    put(&bench, &letter(queue, partition, 1, "g", 1)).await;
    put(&bench, &letter(other, partition, 2, "g", 1)).await;
    for restart in Restart::ALL {
        bench.restart(restart).await;
        assert_eq!(offsets(&page(&bench, queue, None, 9).await), [1]);
        assert_eq!(offsets(&page(&bench, other, None, 9).await), [2]);
    }
}

pub async fn letters_are_seen_before_they_are_committed<B: Backend>() {
    let bench = TestStore::<B>::new().await;
    let (queue, partition) = bench.queue_with_partition().await;
    put(&bench, &letter(queue, partition, 0, "g", 1)).await;
    put(&bench, &letter(queue, partition, 5, "g", 5)).await;
    bench
        .run(move |tx| {
            tx.put_dead_letter(letter(queue, partition, 3, "g", 3));
            tx.put_dead_letter(letter(queue, partition, 0, "g", 9));
            tx.remove_dead_letter(&key(queue, partition, 5, "g"));
            assert_eq!(offsets(&tx.dead_letters(queue, None, 9)?), [0, 3]);
            assert_eq!(tx.dead_letter(&key(queue, partition, 5, "g"))?, None);
            let failed_at: Option<Timestamp> =
                tx.dead_letter(&key(queue, partition, 0, "g"))?.map(|l| l.failed_at);
            assert_eq!(failed_at, Some(START_TIME.after(seconds(9))));
            Ok(())
        })
        .await;
    assert_eq!(offsets(&page(&bench, queue, None, 9).await), [0, 3]);
}
