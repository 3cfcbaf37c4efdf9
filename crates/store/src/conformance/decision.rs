//! Decisions: serializable, atomic, and durable when answered.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use baton_types::{LeaseId, Offset};
use bytes::Bytes;
use tokio::sync::mpsc;
use uuid::Uuid;

use super::cursor::leased_cursor;
use super::{Backend, Restart, TestStore, WINDOW, block, cursor_at, named_block, queue_spec};
use crate::{Error, Event, GroupStart, Tx, TxError, run, submit};

fn increment(tx: &mut dyn Tx, key: &str) -> Result<u64, TxError> {
    let number = tx.record(key)?.map_or(0, |record| number(&record.value)) + 1;
    tx.put_record(key, Bytes::from(number.to_string()), None)?;
    Ok(number)
}

fn number(bytes: &Bytes) -> u64 {
    std::str::from_utf8(bytes).unwrap().parse().unwrap()
}

pub async fn decisions_run_as_if_one_after_the_other<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let store = bench.shared_store();
            tokio::spawn(async move {
                let mut last = 0;
                for _ in 0..1000 {
                    let number = run(&*store, |tx| increment(tx, "n")).await.unwrap();
                    assert!(number > last);
                    last = number;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    for restart in Restart::ALL {
        bench.restart(restart).await;
        let found = bench.run(|tx| tx.record("n")).await.unwrap();
        assert_eq!(number(&found.value), 8000);
    }
}

pub async fn a_decision_that_fails_before_it_writes_leaves_nothing<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (queue, partition) = bench.queue_with_partition().await;
    bench.run(|tx| increment(tx, "n")).await;
    let before = bench.submit(|tx| increment(tx, "n"));
    let failed = bench.submit(move |tx| -> Result<(), TxError> {
        tx.record("n")?;
        tx.partition_by_id(partition)?;
        tx.offset_at(partition, baton_types::Timestamp::MIN)?;
        Err(TxError::Failed(Error::Busy(Duration::from_millis(9))))
    });
    let after = bench.submit(|tx| increment(tx, "n"));
    before.await.unwrap();
    assert!(matches!(failed.await, Err(Error::Busy(wait)) if wait.as_millis() == 9));
    assert_eq!(after.await.unwrap(), 3);
    for restart in Restart::ALL {
        bench.restart(restart).await;
        assert_eq!(bench.store().failure(), None);
        assert_eq!(bench.run(move |tx| Ok((tx.message_count(queue)?, tx.queues()?.len()))).await, (0, 1));
        let found = bench.run(|tx| tx.record("n")).await.unwrap();
        assert_eq!(number(&found.value), 3);
    }
}

pub async fn a_decision_that_fails_after_it_wrote_is_undone<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (queue, partition) = bench.queue_with_partition().await;
    let group = bench.group(queue, "g", GroupStart::Oldest).await;
    bench.run(move |tx| Ok(tx.append(partition, &named_block(&["kept"]), WINDOW))).await;
    bench.put_cursor(group, partition, leased_cursor(LeaseId(Uuid::from_u128(1)), 0, 1)).await;
    let letter = super::dead_letter::letter(queue, partition, 0, "g", 1);
    let (first, second) = (letter.clone(), letter.clone());
    bench.run(move |tx| Ok(tx.put_dead_letter(first.clone()))).await;
    let state = move |tx: &mut dyn Tx| {
        let hashes: Vec<_> = named_block(&["kept", "half"]).hashes().map(Option::unwrap).collect();
        Ok((
            (tx.record("n")?.map(|record| record.value), tx.queues()?, tx.partitions(queue, None, 9)?),
            (tx.groups(queue)?, tx.cursor(group, partition)?, tx.dead_letters(queue, None, 9)?),
            (
                tx.message_count(queue)?,
                tx.backlog(group)?,
                tx.leased_partitions(LeaseId(Uuid::from_u128(1)))?,
            ),
            (tx.find_remembered(partition, hashes[0])?, tx.find_remembered(partition, hashes[1])?),
        ))
    };
    for number in 1..=3 {
        // All of them may share one commit.
        let before = bench.submit(|tx| increment(tx, "n"));
        let expected = bench.submit(state);
        let second = second.clone();
        let failed = bench.submit(move |tx| -> Result<(), TxError> {
            increment(tx, "n")?;
            tx.append(partition, &named_block(&["half"]), WINDOW);
            tx.delete_message(partition, Offset(0));
            tx.put_cursor(group, partition, cursor_at(2), crate::Durability::Now);
            tx.remove_dead_letter(&second.key);
            let other = tx.put_queue(queue_spec("half"))?.id;
            tx.create_partition(other, "p");
            tx.trim(partition, Offset(1))?;
            super::put_group(tx, queue, "g", GroupStart::Oldest);
            tx.remove_queue(queue);
            Err(TxError::Failed(Error::Busy(Duration::from_millis(9))))
        });
        let found = bench.submit(state);
        let after = bench.submit(|tx| increment(tx, "n"));
        assert_eq!(before.await.unwrap(), 2 * number - 1);
        let expected = expected.await.unwrap();
        assert!(matches!(failed.await, Err(Error::Busy(wait)) if wait.as_millis() == 9));
        assert_eq!(found.await.unwrap(), expected);
        assert_eq!(after.await.unwrap(), 2 * number);
        assert!(bench.store().statistics().undone >= number);
        assert_eq!(bench.store().failure(), None);
    }
    let expected = bench.run(state).await;
    for restart in Restart::ALL {
        bench.restart(restart).await;
        assert_eq!(bench.run(state).await, expected);
    }
    assert_eq!(bench.push(partition, &["next"]).await, Offset(1));
    assert_eq!(bench.payloads(partition, 0, 9).await, ["kept", "next"]);
}

pub async fn a_decision_that_panics_is_undone<B: Backend>() {
    let bench = TestStore::<B>::new().await;
    let before = bench.submit(|tx| increment(tx, "n"));
    let failed = bench.submit(|tx| -> Result<(), TxError> {
        increment(tx, "n")?;
        panic!("a rule with a mistake");
    });
    let after = bench.submit(|tx| increment(tx, "n"));
    assert_eq!(before.await.unwrap(), 1);
    assert!(matches!(failed.await, Err(Error::Closed(_))));
    assert_eq!(after.await.unwrap(), 2);
    assert_eq!(bench.store().failure(), None);
}

pub async fn a_decision_sees_its_own_writes<B: Backend>() {
    let bench = TestStore::<B>::new().await;
    bench
        .run(|tx| {
            let queue = tx.put_queue(queue_spec("q"))?;
            let partition = tx.create_partition(queue.id, "p");
            let group = super::put_group(tx, queue.id, "g", GroupStart::Oldest);
            let version = tx.put_record("k", "v".into(), None)?;
            tx.append(partition, &block(&["a", "b"]), Duration::ZERO);
            tx.put_cursor(group, partition, cursor_at(1), crate::Durability::Now);
            assert_eq!(tx.queue("q")?, Some(queue.clone()));
            assert_eq!(tx.partition(queue.id, "p")?.unwrap().tail, Offset(2));
            assert_eq!(tx.group(queue.id, "g")?.unwrap().id, group);
            assert_eq!(tx.record("k")?.unwrap().version, version);
            assert_eq!(tx.records("", None, 9)?.len(), 1);
            assert_eq!(tx.cursor(group, partition)?, Some(cursor_at(1)));
            assert_eq!((tx.message_count(queue.id)?, tx.backlog(group)?), (2, 1));
            assert_eq!(tx.ready_partitions(group, 9)?, [partition]);
            tx.remove_record("k");
            assert_eq!(tx.record("k")?, None);
            tx.remove_group(group);
            assert_eq!(tx.group(queue.id, "g")?, None);
            Ok(())
        })
        .await;
}

pub async fn decisions_begun_in_order_are_run_in_order<B: Backend>() {
    let bench = TestStore::<B>::new().await;
    let answers: Vec<_> = (0..500).map(|_| bench.submit(|tx| increment(tx, "n"))).collect();
    for (answer, expected) in answers.into_iter().zip(1..) {
        assert_eq!(answer.await.unwrap(), expected);
    }
}

pub async fn an_answered_decision_outlives_a_crash<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (queue, partition) = bench.queue_with_partition().await;
    for round in 1..6u64 {
        bench.run(|tx| increment(tx, "n")).await;
        bench.push(partition, &["m"]).await;
        let name = ["a", "b", "c", "d", "e"][usize::try_from(round).unwrap() - 1];
        let group = bench.group(queue, name, GroupStart::Oldest).await;
        bench.put_cursor(group, partition, cursor_at(round)).await;
        bench.restart(Restart::Crash).await;
        assert_eq!(number(&bench.run(|tx| tx.record("n")).await.unwrap().value), round);
        assert_eq!(bench.messages(partition, 0, 99).await.len() as u64, round);
        assert_eq!(bench.run(move |tx| tx.cursor(group, partition)).await, Some(cursor_at(round)));
    }
}

/// A decision that read a write is answered only when that write is durable.
pub async fn a_write_that_was_read_outlives_a_crash<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    for round in 1..6u64 {
        let name = ["a", "b", "c", "d", "e"][usize::try_from(round).unwrap() - 1];
        let write = bench.submit(move |tx| {
            increment(tx, "n")?;
            let queue = tx.put_queue(queue_spec(name))?.id;
            let partition = tx.create_partition(queue, "p");
            tx.append(partition, &block(&["m"]), Duration::ZERO);
            super::put_group(tx, queue, "g", GroupStart::Oldest);
            Ok(())
        });
        type ReadOperation = Box<dyn FnMut(&mut dyn Tx) -> Result<u64, TxError> + Send>;
        let looks: [ReadOperation; 8] = [
            Box::new(|tx| Ok(tx.record("n")?.map_or(0, |record| number(&record.value)))),
            Box::new(move |tx| Ok(u64::from(tx.queue(name)?.is_some()))),
            Box::new(|tx| Ok(tx.queues()?.len() as u64)),
            Box::new(move |tx| match tx.queue(name)? {
                Some(queue) => tx.partition_count(queue.id),
                None => Ok(0),
            }),
            Box::new(move |tx| match tx.queue(name)? {
                Some(queue) => Ok(tx.partitions(queue.id, None, 9)?.iter().map(|row| row.tail.0).sum()),
                None => Ok(0),
            }),
            Box::new(move |tx| match tx.queue(name)? {
                Some(queue) => Ok(tx.groups(queue.id)?.len() as u64),
                None => Ok(0),
            }),
            Box::new(move |tx| match tx.queue(name)? {
                Some(queue) => tx.message_count(queue.id),
                None => Ok(0),
            }),
            Box::new(|tx| Ok(tx.records("", None, 9)?.len() as u64)),
        ];
        let number_of_looks = looks.len();
        let answers: Vec<_> = looks.into_iter().map(|look| bench.submit(look)).collect();
        let which = usize::try_from(round).unwrap() % number_of_looks;
        let mut told = 0;
        for (index, answer) in answers.into_iter().enumerate() {
            // Only one is awaited, so that no other delays the crash.
            if index == which {
                told = answer.await.unwrap();
            }
        }
        assert!(told > 0, "look {which} saw the write");
        bench.restart(Restart::Crash).await;
        drop(write);
        assert!(
            bench.run(move |tx| tx.queue(name)).await.is_some(),
            "look {which} told of a write that was lost"
        );
        assert_eq!(number(&bench.run(|tx| tx.record("n")).await.unwrap().value), round);
    }
}

fn record_events<B: Backend>(bench: &TestStore<B>) -> Arc<Mutex<Vec<Event>>> {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let noted = heard.clone();
    bench.store().set_listener(Arc::new(move |event| noted.lock().unwrap().push(event)));
    heard
}

/// Waits, with a limit, for an event: it may come a little after the answer.
async fn wait_for_event(heard: &Mutex<Vec<Event>>, wanted: Event) {
    for _ in 0..500 {
        if heard.lock().unwrap().contains(&wanted) {
            return;
        }
        baton_env::sleep(Duration::from_millis(10)).await;
    }
    panic!("{wanted:?} never came; heard {:?}", heard.lock().unwrap());
}

pub async fn a_listener_hears_of_new_messages<B: Backend>() {
    let bench = TestStore::<B>::new().await;
    let (queue, partition) = bench.queue_with_partition().await;
    let heard = record_events(&bench);
    bench.push(partition, &["a"]).await;
    wait_for_event(&heard, Event::Appended { queue, partition }).await;
}

pub async fn a_listener_hears_of_a_partition_that_is_free_again<B: Backend>() {
    let bench = TestStore::<B>::new().await;
    let (queue, partition) = bench.queue_with_partition().await;
    let group = bench.group(queue, "g", GroupStart::Oldest).await;
    bench.push(partition, &["a", "b", "c", "d"]).await;
    let heard = record_events(&bench);
    // With and without a query for ready partitions while it was leased.
    for (next, asked) in [(1, false), (2, true), (3, false)] {
        assert_eq!(bench.run(move |tx| tx.ready_partitions(group, 1)).await, [partition]);
        bench.put_cursor(group, partition, leased_cursor(LeaseId(Uuid::from_u128(1)), next - 1, next)).await;
        if asked {
            assert!(bench.run(move |tx| tx.ready_partitions(group, 1)).await.is_empty());
        }
        heard.lock().unwrap().clear();
        bench.put_cursor(group, partition, cursor_at(next)).await;
        wait_for_event(&heard, Event::Freed { queue, group, partition }).await;
    }
}

pub async fn a_decision_of_a_listener_sees_the_change_of_its_event<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (_, partition) = bench.queue_with_partition().await;
    let mut pushed = 0;
    for pushes in [1, 7, 20] {
        let (asked, mut answers) = mpsc::channel(1);
        let weak = Arc::downgrade(&bench.shared_store());
        bench.store().set_listener(Arc::new(move |event| {
            let (Event::Appended { partition, .. }, Some(store)) = (event, weak.upgrade()) else { return };
            let looked = submit(&*store, move |tx| Ok(tx.partition_by_id(partition)?.unwrap().tail));
            asked.try_send(looked).ok().unwrap();
        }));
        let mut push = None;
        for _ in 0..pushes {
            pushed += 1;
            push =
                Some(bench.submit(move |tx| Ok(tx.append(partition, &block(&["x"]), Duration::ZERO).first)));
            assert_eq!(answers.recv().await.unwrap().await.unwrap(), Offset(pushed));
        }
        // Only the read was awaited, so that nothing else delays the crash.
        bench.restart(Restart::Crash).await;
        drop(push);
        let kept = bench.payloads(partition, 0, pushed + 1).await;
        assert_eq!(kept.len() as u64, pushed, "a look told of a push that was lost");
    }
}

pub async fn closing_finishes_submitted_decisions<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let answers: Vec<_> = (0..300).map(|_| bench.submit(|tx| increment(tx, "n"))).collect();
    bench.store().close().await.unwrap();
    for (answer, expected) in answers.into_iter().zip(1..) {
        assert_eq!(answer.await.unwrap(), expected);
    }
    bench.restart(Restart::Close).await;
    assert_eq!(number(&bench.run(|tx| tx.record("n")).await.unwrap().value), 300);
}

pub async fn a_closed_store_says_so<B: Backend>() {
    let bench = TestStore::<B>::new().await;
    bench.store().close().await.unwrap();
    let refused = bench.submit(|tx| increment(tx, "n")).await;
    assert!(matches!(refused, Err(Error::Closed(_))), "{refused:?}");
    bench.store().close().await.unwrap();
}

pub async fn statistics_count_the_work<B: Backend>() {
    let bench = TestStore::<B>::new().await;
    let before = bench.store().statistics();
    for _ in 0..5 {
        bench.run(|tx| increment(tx, "n")).await;
    }
    let after = bench.store().statistics();
    let (commits, operations) = (after.commits - before.commits, after.operations - before.operations);
    assert!((1..=5).contains(&commits) && operations == 5, "{commits} commits, {operations} operations");
    assert!(after.syncs <= after.commits);
}
