//! Records, counters and locks on the embedded store, with a clock that moves when the test says so.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use baton_env::ManualClock;
use baton_records::counter::Addition;
use baton_records::kv::{self, Life, Lost, Operation, Outcome, Place, Precondition, Step};
use baton_records::lock::{self, Action};
use baton_store::run;
use baton_store_embedded::{EmbeddedStore, Options};
use baton_types::Timestamp;
use serde_json::Number;

const SECOND: Duration = Duration::from_secs(1);

/// A store on a directory.
struct Bench {
    clock: Arc<ManualClock>,
    store: EmbeddedStore,
}

impl Bench {
    fn open(directory: &Path) -> Self {
        let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1_800_000_000_000_000)));
        let options = Options { clock: clock.clone(), min_free_disk: 0, ..Options::new(directory) };
        Self { clock, store: EmbeddedStore::open(options).unwrap() }
    }

    async fn call(&self, steps: Vec<Step>) -> Result<Vec<Outcome>, Precondition> {
        run(&self.store, move |tx| kv::run(tx, &steps)).await.unwrap()
    }

    async fn kv(&self, operation: Operation) -> Outcome {
        self.call(vec![Step { operation, required: false }]).await.unwrap().pop().unwrap()
    }

    async fn get(&self, key: &str) -> Option<String> {
        match self.kv(Operation::Get(place(key))).await {
            Outcome::Found(row) => row.map(|row| String::from_utf8(row.value.to_vec()).unwrap()),
            other => panic!("{other:?}"),
        }
    }

    async fn lock(&self, name: &str, action: Action) -> lock::Outcome {
        let operations = vec![lock::Operation { name: name.into(), action }];
        run(&self.store, move |tx| lock::run(tx, &operations)).await.unwrap().pop().unwrap()
    }

    async fn acquire(&self, name: &str, owner: &str, permits: u32) -> lock::Outcome {
        self.lock(name, Action::Acquire { owner: owner.into(), life: 10 * SECOND, permits }).await
    }
}

fn place(key: &str) -> Place {
    Place { namespace: "test".into(), key: key.into() }
}

fn put(key: &str, value: &str, life: Life, expect: Option<u64>) -> Operation {
    Operation::Put { place: place(key), value: value.to_owned().into(), life, expect }
}

fn add(key: &str, delta: i64, max: Option<i64>) -> Operation {
    let addition = Addition { delta: Number::from(delta), min: None, max: max.map(Number::from) };
    Operation::Add { place: place(key), addition, life: Life::For(10 * SECOND) }
}

fn applied(outcome: &Outcome) -> u64 {
    match outcome {
        Outcome::Judged { lost: None, version, .. } => *version,
        other => panic!("not applied: {other:?}"),
    }
}

fn lost(outcome: &Outcome) -> Lost {
    match outcome {
        Outcome::Judged { lost: Some(lost), .. } => *lost,
        other => panic!("not lost: {other:?}"),
    }
}

fn permit(outcome: &lock::Outcome) -> &lock::Permit {
    match outcome {
        lock::Outcome::Acquired { permit, .. } | lock::Outcome::Renewed(permit) => permit,
        other => panic!("no permit: {other:?}"),
    }
}

#[tokio::test]
async fn a_version_rises_over_writes_deletion_and_expiry() {
    let directory = tempfile::tempdir().unwrap();
    let bench = Bench::open(directory.path());
    let mut versions = Vec::new();
    versions.push(applied(&bench.kv(put("k", "1", Life::Forever, None)).await));
    versions.push(applied(&bench.kv(put("k", "2", Life::For(SECOND), None)).await));
    bench.clock.advance(2 * SECOND);
    assert_eq!(bench.get("k").await, None);
    versions.push(applied(&bench.kv(put("k", "3", Life::Forever, Some(0))).await));
    bench.kv(Operation::Delete { place: place("k"), expect: None }).await;
    versions.push(applied(&bench.kv(put("k", "4", Life::Forever, Some(0))).await));
    assert!(versions.is_sorted_by(|a, b| a < b), "{versions:?}");
    assert_eq!(bench.get("k").await.as_deref(), Some("4"));
}

#[tokio::test]
async fn a_write_that_expects_another_version_changes_nothing_and_tells_what_is_there() {
    let directory = tempfile::tempdir().unwrap();
    let bench = Bench::open(directory.path());
    let version = applied(&bench.kv(put("k", "1", Life::Forever, Some(0))).await);
    assert_eq!(lost(&bench.kv(put("k", "2", Life::Forever, Some(0))).await), Lost::Exists);
    assert_eq!(lost(&bench.kv(put("x", "2", Life::Forever, Some(7))).await), Lost::Absent);
    let outcome = bench.kv(put("k", "2", Life::Forever, Some(version + 1))).await;
    assert_eq!(outcome, Outcome::Judged { lost: Some(Lost::Version), value: Some("1".into()), version });
    let delete = |expect| Operation::Delete { place: place("k"), expect };
    assert_eq!(lost(&bench.kv(delete(Some(version + 1))).await), Lost::Version);
    applied(&bench.kv(delete(Some(version))).await);
    assert_eq!(lost(&bench.kv(delete(None)).await), Lost::Absent);
}

#[tokio::test]
async fn a_counter_keeps_its_window_and_never_passes_its_bound() {
    let directory = tempfile::tempdir().unwrap();
    let bench = Bench::open(directory.path());
    for _ in 0..3 {
        applied(&bench.kv(add("c", 1, Some(3))).await);
        bench.clock.advance(3 * SECOND);
    }
    assert_eq!(lost(&bench.kv(add("c", 1, Some(3))).await), Lost::Limit);
    assert_eq!(bench.get("c").await.as_deref(), Some("3"));
    // A little more than the tenth second: each decision has a moment of its own, some microseconds after the clock's.
    bench.clock.advance(SECOND + SECOND / 100);
    applied(&bench.kv(add("c", 1, Some(3))).await);
    assert_eq!(
        bench.get("c").await.as_deref(),
        Some("1"),
        "the first window ended ten seconds after it began"
    );
    applied(&bench.kv(put("t", "\"text\"", Life::Forever, None)).await);
    assert_eq!(lost(&bench.kv(add("t", 1, None)).await), Lost::Type);
}

#[tokio::test]
async fn reads_of_a_call_see_its_writes_and_a_required_step_undoes_all() {
    let directory = tempfile::tempdir().unwrap();
    let bench = Bench::open(directory.path());
    let step = |operation, required| Step { operation, required };
    let outcomes = bench
        .call(vec![
            step(Operation::Get(place("a")), false),
            step(put("a", "1", Life::Forever, None), false),
            step(put("b", "2", Life::Forever, Some(9)), false),
            step(Operation::GetMany { namespace: "test".into(), keys: vec!["b".into(), "a".into()] }, false),
        ])
        .await
        .unwrap();
    assert!(matches!(&outcomes[0], Outcome::Found(Some(row)) if row.value == "1"));
    assert_eq!(lost(&outcomes[2]), Lost::Absent);
    assert!(matches!(&outcomes[3], Outcome::Rows { rows, missing, truncated: false }
        if rows.len() == 1 && *missing == ["b"]));
    let undone = bench
        .call(vec![
            step(put("c", "3", Life::Forever, None), false),
            step(Operation::Check { place: place("a"), expect: 0 }, true),
        ])
        .await
        .unwrap_err();
    assert_eq!((undone.index, undone.lost, undone.value), (1, Lost::Exists, Some("1".into())));
    assert_eq!(bench.get("c").await, None);
}

#[tokio::test]
async fn a_prefix_is_read_page_by_page() {
    let directory = tempfile::tempdir().unwrap();
    let bench = Bench::open(directory.path());
    for i in 0..250 {
        bench.kv(put(&format!("p/{i:03}"), "0", Life::Forever, None)).await;
    }
    bench.kv(put("q", "0", Life::Forever, None)).await;
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let operation = Operation::GetPrefix {
            namespace: "test".into(),
            prefix: "p/".into(),
            after: after.clone(),
            limit: 120,
            keys_only: true,
        };
        let Outcome::Rows { rows, truncated, .. } = bench.kv(operation).await else { panic!("rows") };
        seen.extend(rows.into_iter().map(|row| row.key));
        after = seen.last().cloned();
        if !truncated {
            break;
        }
        assert_eq!(seen.len() % 120, 0);
    }
    assert_eq!(seen, (0..250).map(|i| format!("p/{i:03}")).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_lock_has_one_holder_until_it_expires_and_a_stale_token_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let bench = Bench::open(directory.path());
    let first = bench.acquire("l", "a", 1).await;
    let token = permit(&first).holder.token;
    assert!(
        matches!(bench.acquire("l", "b", 1).await, lock::Outcome::Held(held) if held[0].holder.owner == "a")
    );
    bench.clock.advance(11 * SECOND);
    let second = bench.acquire("l", "b", 1).await;
    assert!(permit(&second).holder.token > token);
    let renew = Action::Renew { token, slot: None, owner: Some("a".into()), life: SECOND };
    assert!(matches!(bench.lock("l", renew).await, lock::Outcome::Lost(_)));
    let release = Action::Release { token, slot: Some(0) };
    assert!(matches!(bench.lock("l", release).await, lock::Outcome::Lost(_)));
    assert!(matches!(bench.lock("l", Action::Get).await, lock::Outcome::Holders(held)
        if held == [permit(&second).clone()]));
    let release = Action::Release { token: permit(&second).holder.token, slot: None };
    assert_eq!(bench.lock("l", release).await, lock::Outcome::Released);
    assert!(matches!(bench.acquire("l", "c", 1).await, lock::Outcome::Acquired { already: false, .. }));
}

#[tokio::test]
async fn a_holder_that_asks_again_keeps_its_permit_and_a_renewal_is_never_shorter() {
    let directory = tempfile::tempdir().unwrap();
    let bench = Bench::open(directory.path());
    let first = bench.acquire("l", "a", 1).await;
    let again = bench.acquire("l", "a", 1).await;
    assert!(matches!(&again, lock::Outcome::Acquired { already: true, .. }));
    assert_eq!(permit(&again).holder.token, permit(&first).holder.token);
    let token = permit(&first).holder.token;
    let renew = |owner: &str, life| Action::Renew { token, slot: Some(0), owner: Some(owner.into()), life };
    let renewed = bench.lock("l", renew("a", SECOND)).await;
    assert!(permit(&renewed).holder.until >= permit(&again).holder.until);
    assert!(permit(&renewed).holder.token > token);
    // The answer with the newer token was lost, so the holder shows the older one.
    assert!(matches!(bench.lock("l", renew("b", SECOND)).await, lock::Outcome::Lost(_)));
    let later = bench.lock("l", renew("a", SECOND)).await;
    assert!(permit(&later).holder.token > permit(&renewed).holder.token);
}

#[tokio::test]
async fn a_semaphore_gives_out_as_many_permits_as_it_has() {
    let directory = tempfile::tempdir().unwrap();
    let bench = Bench::open(directory.path());
    let mut slots = Vec::new();
    for owner in ["a", "b", "c"] {
        slots.push(permit(&bench.acquire("s", owner, 3).await).slot);
    }
    assert_eq!(slots, [0, 1, 2]);
    assert!(matches!(bench.acquire("s", "d", 3).await, lock::Outcome::Held(held) if held.len() == 3));
    let lock::Outcome::Holders(held) = bench.lock("s", Action::Get).await else { panic!("holders") };
    let release = Action::Release { token: held[1].holder.token, slot: None };
    assert_eq!(bench.lock("s", release).await, lock::Outcome::Released);
    assert_eq!(permit(&bench.acquire("s", "d", 3).await).slot, 1);
}
