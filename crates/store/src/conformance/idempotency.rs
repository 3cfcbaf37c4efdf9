//! Idempotency keys: the first answer is stored with the effects.

use bytes::Bytes;

use super::{Backend, Restart, START_TIME, TestStore, seconds};
use crate::{ANSWER_RETENTION, IdempotencyKey, PriorCall};

const SCOPE: &str = "test/";

fn key(body: &str) -> IdempotencyKey {
    IdempotencyKey::new("key", "call", body.as_bytes())
}

async fn earlier<B: Backend>(bench: &TestStore<B>, scope: &'static str, body: &str) -> PriorCall {
    let key = key(body);
    bench.run(move |tx| key.find_prior_call(tx, scope)).await
}

pub async fn the_first_answer_is_kept_for_the_same_request<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    // Longer than one record.
    let answer: Bytes = (0..5_000_000u32).map(|i| u8::try_from(i % 251).unwrap_or(0)).collect();
    for (scope, answer) in [("long/", answer), ("short/", Bytes::from_static(b"{}"))] {
        assert_eq!(earlier(&bench, scope, "a").await, PriorCall::None);
        let given = answer.clone();
        bench.run(move |tx| key("a").store_answer(tx, scope, &given)).await;
        for restart in Restart::ALL {
            bench.restart(restart).await;
            assert_eq!(earlier(&bench, scope, "a").await, PriorCall::Answered(answer.clone()));
        }
        assert_eq!(earlier(&bench, scope, "b").await, PriorCall::Different);
    }
}

pub async fn an_answer_expires_with_its_key<B: Backend>() {
    let bench = TestStore::<B>::new().await;
    bench.run(|tx| key("a").store_answer(tx, SCOPE, b"1")).await;
    bench.clock.advance_to(START_TIME.after(ANSWER_RETENTION).before(seconds(1)));
    assert_eq!(earlier(&bench, SCOPE, "a").await, PriorCall::Answered("1".into()));
    bench.clock.advance_to(START_TIME.after(ANSWER_RETENTION).after(seconds(1)));
    assert_eq!(earlier(&bench, SCOPE, "b").await, PriorCall::None);
    bench.run(|tx| key("b").store_answer(tx, SCOPE, b"2")).await;
    assert_eq!(earlier(&bench, SCOPE, "b").await, PriorCall::Answered("2".into()));
}
