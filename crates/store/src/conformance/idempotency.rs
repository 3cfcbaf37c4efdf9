//! Idempotency keys: the first answer, kept with the effects.

use bytes::Bytes;

use super::{BEGIN, Backend, Bench, Restart, seconds};
use crate::idempotency::{Earlier, KEPT_FOR, Request};

fn request(content: &str) -> Request {
    Request::new("test/", "key", content.as_bytes())
}

async fn earlier<B: Backend>(bench: &Bench<B>, content: &str) -> Earlier {
    let request = request(content);
    bench.run(move |tx| request.earlier(tx)).await
}

pub async fn the_first_answer_is_kept_for_the_same_request<B: Backend>() {
    let mut bench = Bench::<B>::new().await;
    // Longer than one record.
    let answer: Bytes = (0..5_000_000u32).map(|i| u8::try_from(i % 251).unwrap_or(0)).collect();
    for (scope, answer) in [("long", answer), ("short", Bytes::from_static(b"{}"))] {
        let request = Request::new(scope, "key", b"a");
        let (kept, given) = (request.clone(), answer.clone());
        assert_eq!(bench.run(move |tx| kept.earlier(tx)).await, Earlier::None);
        let kept = request.clone();
        bench.run(move |tx| kept.keep(tx, &given)).await;
        for restart in Restart::ALL {
            bench.restart(restart).await;
            let kept = request.clone();
            assert_eq!(bench.run(move |tx| kept.earlier(tx)).await, Earlier::Answered(answer.clone()));
        }
        let other = Request::new(scope, "key", b"b");
        assert_eq!(bench.run(move |tx| other.earlier(tx)).await, Earlier::Different);
    }
}

pub async fn an_answer_expires_with_its_key<B: Backend>() {
    let bench = Bench::<B>::new().await;
    bench.run(|tx| request("a").keep(tx, b"1")).await;
    bench.clock.set(BEGIN.after(KEPT_FOR).before(seconds(1)));
    assert_eq!(earlier(&bench, "a").await, Earlier::Answered("1".into()));
    bench.clock.set(BEGIN.after(KEPT_FOR).after(seconds(1)));
    assert_eq!(earlier(&bench, "b").await, Earlier::None);
    bench.run(|tx| request("b").keep(tx, b"2")).await;
    assert_eq!(earlier(&bench, "b").await, Earlier::Answered("2".into()));
}

pub async fn an_answer_of_an_older_server_is_read<B: Backend>() {
    let bench = Bench::<B>::new().await;
    bench.run(|tx| tx.put_record(request("a").record(), "[1]".into(), None)).await;
    assert_eq!(earlier(&bench, "a").await, Earlier::Answered("[1]".into()));
}
