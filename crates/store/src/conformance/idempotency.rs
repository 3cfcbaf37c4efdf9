//! Idempotency keys: the first answer, kept with the effects.

use bytes::Bytes;

use super::{BEGIN, Backend, Bench, Restart, seconds};
use crate::{ANSWER_KEPT_FOR, Earlier, IdempotencyKey};

const SCOPE: &str = "test/";

fn key(body: &str) -> IdempotencyKey {
    IdempotencyKey::new("key", "call", body.as_bytes())
}

async fn earlier<B: Backend>(bench: &Bench<B>, scope: &'static str, body: &str) -> Earlier {
    let key = key(body);
    bench.run(move |tx| key.earlier(tx, scope)).await
}

pub async fn the_first_answer_is_kept_for_the_same_request<B: Backend>() {
    let mut bench = Bench::<B>::new().await;
    // Longer than one record.
    let answer: Bytes = (0..5_000_000u32).map(|i| u8::try_from(i % 251).unwrap_or(0)).collect();
    for (scope, answer) in [("long/", answer), ("short/", Bytes::from_static(b"{}"))] {
        assert_eq!(earlier(&bench, scope, "a").await, Earlier::None);
        let given = answer.clone();
        bench.run(move |tx| key("a").keep(tx, scope, &given)).await;
        for restart in Restart::ALL {
            bench.restart(restart).await;
            assert_eq!(earlier(&bench, scope, "a").await, Earlier::Answered(answer.clone()));
        }
        assert_eq!(earlier(&bench, scope, "b").await, Earlier::Different);
    }
}

pub async fn an_answer_expires_with_its_key<B: Backend>() {
    let bench = Bench::<B>::new().await;
    bench.run(|tx| key("a").keep(tx, SCOPE, b"1")).await;
    bench.clock.advance_to(BEGIN.after(ANSWER_KEPT_FOR).before(seconds(1)));
    assert_eq!(earlier(&bench, SCOPE, "a").await, Earlier::Answered("1".into()));
    bench.clock.advance_to(BEGIN.after(ANSWER_KEPT_FOR).after(seconds(1)));
    assert_eq!(earlier(&bench, SCOPE, "b").await, Earlier::None);
    bench.run(|tx| key("b").keep(tx, SCOPE, b"2")).await;
    assert_eq!(earlier(&bench, SCOPE, "b").await, Earlier::Answered("2".into()));
}
