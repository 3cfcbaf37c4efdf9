//! Time and tokens only rise.

use baton_types::Timestamp;

use super::{BEGIN, Backend, Bench, Restart, seconds};

async fn now<B: Backend>(bench: &Bench<B>) -> Timestamp {
    bench.run(|tx| Ok(tx.now())).await
}

pub async fn now_rises_strictly_though_the_clock_stands_still<B: Backend>() {
    let bench = Bench::<B>::new().await;
    let answers: Vec<_> = (0..100).map(|_| bench.begin(|tx| Ok(tx.now()))).collect();
    let mut last = Timestamp::MIN;
    for answer in answers {
        let now = answer.await.unwrap();
        assert!(now > last && now >= BEGIN, "{now} after {last}");
        last = now;
    }
}

pub async fn now_rises_though_the_clock_goes_back<B: Backend>() {
    let bench = Bench::<B>::new().await;
    let first = now(&bench).await;
    bench.clock.set(BEGIN.before(seconds(3600)));
    assert!(now(&bench).await > first);
    bench.clock.set(BEGIN.after(seconds(10)));
    assert!(now(&bench).await >= BEGIN.after(seconds(10)));
}

/// Whatever a decision wrote, its moment is not forgotten.
pub async fn now_rises_over_a_restart_though_the_clock_goes_back<B: Backend>() {
    let mut bench = Bench::<B>::new().await;
    let (queue, partition) = bench.lane().await;
    for restart in Restart::ALL {
        for work in 0..5 {
            bench.clock.advance(seconds(100));
            let last = bench.run(move |tx| {
                match work {
                    0 => drop(tx.put_record("r", "v".into(), None)?),
                    1 => drop(tx.append(partition, &super::block(&["m"]), seconds(1))),
                    2 => drop(tx.put_queue(super::spec("other"))?),
                    3 => drop(super::put_group(tx, queue, "g", crate::Start::Oldest)),
                    _ => tx.delete_message(partition, baton_types::Offset(0)),
                }
                Ok(tx.now())
            });
            let last = last.await;
            bench.clock.set(BEGIN.before(seconds(3600)));
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
    let bench = Bench::<B>::new().await;
    let decided = now(&bench).await;
    assert!(bench.store().now() >= decided);
    bench.clock.advance(seconds(5));
    assert!(bench.store().now() >= BEGIN.after(seconds(5)));
}

pub async fn no_token_is_given_twice_and_each_is_higher_than_the_last<B: Backend>() {
    let mut bench = Bench::<B>::new().await;
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
