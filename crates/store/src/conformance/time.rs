//! Store time and tokens only rise.

use baton_env::Clock;
use baton_types::Timestamp;

use super::{Backend, Restart, START_TIME, TestStore, seconds};

async fn now<B: Backend>(bench: &TestStore<B>) -> Timestamp {
    bench.run(|tx| Ok(tx.now())).await
}

pub async fn now_rises_strictly_though_the_clock_stands_still<B: Backend>() {
    let bench = TestStore::<B>::new().await;
    let answers: Vec<_> = (0..100).map(|_| bench.submit(|tx| Ok(tx.now()))).collect();
    let mut last = Timestamp::MIN;
    for answer in answers {
        let now = answer.await.unwrap();
        assert!(now > last && now >= START_TIME, "{now} after {last}");
        last = now;
    }
}

/// Leases, delays and timers last as long as given, or up to a tenth longer.
pub async fn a_step_of_the_clock_neither_stops_time_nor_skips_any<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let ten_years = 10 * 365 * 24 * 3600;
    for step in [-3600, 3600, ten_years, -ten_years] {
        let before = now(&bench).await;
        let wall = bench.clock.now().micros() + step * 1_000_000;
        bench.clock.set(Timestamp::from_micros(wall));
        let stepped = now(&bench).await;
        assert!(stepped.since(before) < seconds(1), "{step}: {before} became {stepped}");
        bench.clock.advance(seconds(100));
        let passed = now(&bench).await.since(before);
        assert!((seconds(89)..seconds(101)).contains(&passed), "{step}: 100 s became {passed:?}");
        assert!(bench.store().now().since(before) < seconds(102), "{step}");
    }
    // A restart keeps the offset.
    bench.clock.set(bench.clock.now().before(seconds(3600)));
    bench.restart(Restart::Crash).await;
    let before = now(&bench).await;
    bench.clock.advance(seconds(100));
    let passed = now(&bench).await.since(before);
    assert!((seconds(89)..seconds(101)).contains(&passed), "100 s became {passed:?}");
}

pub async fn the_store_follows_a_clock_that_was_stepped<B: Backend>() {
    let bench = TestStore::<B>::new().await;
    for step in [-60, 120] {
        now(&bench).await;
        bench.clock.set(Timestamp::from_micros(bench.clock.now().micros() + step * 1_000_000));
        for _ in 0..45 {
            bench.clock.advance(seconds(600));
            now(&bench).await;
        }
        let (told, wall) = (now(&bench).await, bench.clock.now());
        let off = told.since(wall).max(wall.since(told));
        assert!(off < seconds(1), "{step}: {told} and {wall}");
    }
}

/// The time of a decision survives, whatever it wrote.
pub async fn now_rises_over_a_restart_though_the_clock_goes_back<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let (queue, partition) = bench.queue_with_partition().await;
    for restart in Restart::ALL {
        for work in 0..5 {
            bench.clock.advance(seconds(100));
            let last = bench.run(move |tx| {
                match work {
                    0 => drop(tx.put_record("r", "v".into(), None)?),
                    1 => drop(tx.append(partition, &super::block(&["m"]), seconds(1))),
                    2 => drop(tx.put_queue(super::queue_spec("other"))?),
                    3 => drop(super::put_group(tx, queue, "g", crate::GroupStart::Oldest)),
                    _ => tx.delete_message(partition, baton_types::Offset(0)),
                }
                Ok(tx.now())
            });
            let last = last.await;
            bench.clock.set(START_TIME.before(seconds(3600)));
            bench.restart(restart).await;
            let told = bench.store().now();
            assert!(told >= last, "{restart:?} {work}: the store tells {told} after {last}");
            let now = now(&bench).await;
            assert!(now > last, "{restart:?} {work}: {now} after {last}");
            bench.clock.set(last);
        }
    }
}

pub async fn the_store_tells_the_time_of_the_last_decision_or_later<B: Backend>() {
    let bench = TestStore::<B>::new().await;
    let decided = now(&bench).await;
    assert!(bench.store().now() >= decided);
    bench.clock.advance(seconds(5));
    assert!(bench.store().now() >= START_TIME.after(seconds(5)));
}

pub async fn no_token_is_given_twice_and_each_is_higher_than_the_last<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let mut last = 0;
    for restart in [Restart::Not, Restart::Close, Restart::Crash, Restart::Crash, Restart::Close] {
        bench.restart(restart).await;
        for _ in 0..10 {
            for token in bench.run(|tx| Ok([tx.fresh_token(), tx.fresh_token()])).await {
                assert!(token > last, "{restart:?}: {token} after {last}");
                last = token;
            }
        }
    }
}

/// JavaScript clients read every number as a double and send it back.
pub async fn tokens_and_versions_are_exact_as_doubles<B: Backend>() {
    let bench = TestStore::<B>::new().await;
    for _ in 0..20 {
        let numbers = bench.run(|tx| Ok([tx.fresh_token(), tx.put_record("r", "v".into(), None)?])).await;
        for number in numbers {
            let read: f64 = number.to_string().parse().unwrap();
            assert_eq!(format!("{read}"), number.to_string());
            assert!(number < 1 << 53);
        }
    }
}
