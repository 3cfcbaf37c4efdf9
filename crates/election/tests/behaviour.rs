//! One behaviour on every store: memory, a directory, PostgreSQL, a Baton store and a Baton server over HTTP. What
//! speaks S3 or Azure is tried with real servers in `tests/` of the repository.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;
use std::time::Duration;

use baton_election::record::{self, EpochRecord};
use baton_election::store::{self, FileStore, MemoryStore, Store, SwapOutcome};
use baton_election::{Elector, Event, Options, Process, Reason, Settings, store_calls};
use baton_env::Stopwatch;

/// Long enough for anything on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn settings() -> Settings {
    Settings {
        call_timeout: Duration::from_secs(2),
        worker_timeout: Duration::from_secs(8),
        ..Settings::fast()
    }
}

async fn join(store: &Arc<dyn Store>, group: &str, worker: &str) -> Elector {
    let options = Options { settings: settings(), worker_id: Some(worker.into()), ..Options::default() };
    Elector::start(Arc::clone(store), group, options, ()).await.unwrap()
}

/// Waits until `elector` coordinates and returns its token.
async fn coordinates(elector: &Elector) -> u64 {
    let mut events = elector.events();
    let promoted = async {
        loop {
            if let Some(leadership) = elector.leadership() {
                return leadership.token();
            }
            let _ = events.recv().await;
        }
    };
    tokio::time::timeout(PATIENCE, promoted).await.expect("a coordinator in time")
}

async fn demoted(elector: &Elector) -> Reason {
    let mut events = elector.events();
    let demoted = async {
        loop {
            if let Ok(Event::CoordinatorDemoted { reason, .. }) = events.recv().await {
                return reason;
            }
        }
    };
    tokio::time::timeout(PATIENCE, demoted).await.expect("a demotion in time")
}

/// Two workers that join a group whose coordinator is known, and have seen it.
async fn follow(store: &Arc<dyn Store>, group: &str, [one, other]: [&str; 2]) -> (Elector, Elector) {
    let (one, other) = tokio::join!(join(store, group, one), join(store, group, other));
    let seen = async {
        while [&one, &other].iter().any(|elector| elector.status().coordinator.is_none()) {
            baton_env::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, seen).await.expect("a known coordinator in time");
    (one, other)
}

async fn behaves(store: Arc<dyn Store>) {
    if !store.is_trusted() {
        store::probe(&store).await.unwrap();
    }
    the_first_wins_and_the_next_follows(&store).await;
    a_forced_change_ends_with_the_one_desired(&store).await;
    a_silent_coordinator_is_waited_for_and_replaced(&store).await;
    a_condition_that_does_not_hold_is_a_conflict(&store).await;
}

/// Which of several that are fit comes first, and how soon, depends on the load of the machine: the simulation shows that.
async fn the_first_wins_and_the_next_follows(store: &Arc<dyn Store>) {
    let a = join(store, "first", "a").await;
    let token = coordinates(&a).await;
    assert!(token >= 1);
    let (b, c) = follow(store, "first", ["b", "c"]).await;
    assert!(!b.is_coordinator() && !c.is_coordinator());
    a.stop().await;
    let (next, other) = tokio::select! {
        next = coordinates(&b) => (next, &c),
        next = coordinates(&c) => (next, &b),
    };
    assert!(next > token && !other.is_coordinator());
    tokio::join!(b.stop(), c.stop());
}

async fn a_forced_change_ends_with_the_one_desired(store: &Arc<dyn Store>) {
    let a = join(store, "forced", "a").await;
    let token = coordinates(&a).await;
    let (b, c) = follow(store, "forced", ["b", "c"]).await;
    let error = b.ensure_coordinator(true, Some("nobody")).await.unwrap_err().to_string();
    assert!(error.contains("not known to be alive"), "{error}");
    let (reason, asked) = tokio::join!(demoted(&a), b.ensure_coordinator(true, Some("c")));
    asked.unwrap();
    assert_eq!(reason, Reason::Requested);
    assert!(coordinates(&c).await > token);
    assert!(!a.is_coordinator() && !b.is_coordinator());
    tokio::join!(a.stop(), b.stop(), c.stop());
}

fn foreign(lease: Duration) -> EpochRecord {
    let lease_ms = u64::try_from(lease.as_millis()).unwrap();
    EpochRecord {
        epoch_number: 41,
        coordinator_id: "ghost".into(),
        incarnation: "another-life".into(),
        nonce: "0123".into(),
        lease_seq: 0,
        epoch: 0,
        epoch_start: 0,
        released: false,
        step_down: false,
        handover_to: None,
        elected_by: "ghost".into(),
        duration_ms: lease_ms,
        lease_ms,
        process: None,
    }
}

async fn a_silent_coordinator_is_waited_for_and_replaced(store: &Arc<dyn Store>) {
    let lease = Duration::from_secs(3);
    let record = serde_json::to_vec(&foreign(lease)).unwrap();
    let written = store.swap(&record::epoch_key("silent"), None, record).await.unwrap();
    assert!(matches!(written, SwapOutcome::Done(_)));
    let watch = Stopwatch::start();
    let a = join(store, "silent", "a").await;
    assert_eq!(coordinates(&a).await, 42);
    assert!(watch.elapsed() >= lease, "{:?}", watch.elapsed());
    a.stop().await;
}

async fn a_condition_that_does_not_hold_is_a_conflict(store: &Arc<dyn Store>) {
    let key = record::epoch_key("condition");
    let bytes = |epoch: &EpochRecord| serde_json::to_vec(epoch).unwrap();
    let first = foreign(Duration::from_secs(1));
    let second = EpochRecord { lease_seq: 1, ..first.clone() };
    let third = EpochRecord { lease_seq: 2, ..first.clone() };
    assert!(store.read(&key).await.unwrap().is_none());
    let SwapOutcome::Done(old) = store.swap(&key, None, bytes(&first)).await.unwrap() else {
        panic!("a conflict")
    };
    assert_eq!(store.swap(&key, None, bytes(&second)).await.unwrap(), SwapOutcome::Conflict);
    let SwapOutcome::Done(new) = store.swap(&key, Some(&old), bytes(&second)).await.unwrap() else {
        panic!("a conflict")
    };
    assert_eq!(store.swap(&key, Some(&old), bytes(&third)).await.unwrap(), SwapOutcome::Conflict);
    let (version, value) = store.read(&key).await.unwrap().unwrap();
    let found: EpochRecord = serde_json::from_slice(&value).unwrap();
    assert_eq!((version, found), (new, second));
}

async fn a_process_holds_many_groups_by_one_lease(store: &Arc<dyn Store>) {
    let start = |id: &'static str| {
        let options = Options { settings: settings(), worker_id: Some(id.into()), ..Options::default() };
        Process::start(Arc::clone(store), options)
    };
    let (first, second) = (start("p1").await.unwrap(), start("p2").await.unwrap());
    let groups: Vec<_> = (0..5).map(|group| format!("many-{group}")).collect();
    let (mut held, mut waiting) = (Vec::new(), Vec::new());
    for group in &groups {
        held.push(first.join(group, ()).await.unwrap());
    }
    let twice = first.join(&groups[0], ()).await.err().unwrap().to_string();
    assert!(twice.contains("already"), "{twice}");
    for elector in &held {
        coordinates(elector).await;
    }
    // One that is not in a process waits for it as well, and so does one that comes later.
    let single = join(store, &groups[0], "z").await;
    for group in &groups {
        waiting.push(second.join(group, ()).await.unwrap());
    }
    let record = |group: usize| {
        let key = record::epoch_key(&groups[group]);
        async move { store.read(&key).await.unwrap().unwrap() }
    };
    let (before, renewals) = (record(1).await, held[1].status().counters.renewals);
    let renewed = async {
        while held[1].status().counters.renewals < renewals + 8 {
            baton_env::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(PATIENCE, renewed).await.expect("renewals in time");
    assert_eq!(record(1).await, before, "the record of a group is not written to renew it");
    assert!(held.iter().all(Elector::is_coordinator) && !single.is_coordinator());
    assert!(!waiting.iter().any(Elector::is_coordinator));
    single.stop().await;
    // The test fences the process as if it had been silent: all its terms end, and other workers get them.
    let value: EpochRecord = serde_json::from_slice(&before.1).unwrap();
    let id = value.process.expect("held by a process");
    loop {
        let (version, _) = store_calls::read_process(&**store, &id).await.unwrap().unwrap();
        let fenced = store_calls::swap_process(
            &**store,
            &id,
            Some(&version),
            &record::ProcessRecord::fenced_record(&id),
        )
        .await
        .unwrap();
        if matches!(fenced, SwapOutcome::Done(_)) {
            break;
        }
    }
    for elector in held.drain(..) {
        elector.stop().await;
    }
    for elector in &waiting {
        assert!(coordinates(elector).await >= 2);
    }
    for elector in waiting.drain(..) {
        elector.stop().await;
    }
    tokio::join!(first.stop(), second.stop());
    let left = store.list(record::PROCESSES_PREFIX).await.unwrap();
    assert!(left.iter().all(|(key, _)| *key == record::process_key(&id)), "{left:?}");
}

/// Not possible over HTTP, where no epoch record can be removed.
async fn a_deleted_record_is_made_anew_above_the_old_number(store: &Arc<dyn Store>) {
    let a = join(store, "deleted", "a").await;
    let token = coordinates(&a).await;
    let (reason, removed) =
        tokio::join!(demoted(&a), async { store.remove(&record::epoch_key("deleted")).await });
    removed.unwrap();
    assert_eq!(reason, Reason::RecordDeleted);
    assert!(coordinates(&a).await > token);
    a.stop().await;
}

#[tokio::test]
async fn memory() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    tokio::join!(
        behaves(Arc::clone(&store)),
        a_deleted_record_is_made_anew_above_the_old_number(&store),
        a_process_holds_many_groups_by_one_lease(&store)
    );
}

#[tokio::test]
async fn a_directory() {
    let directory = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = Arc::new(FileStore::new(directory.path()).unwrap());
    tokio::join!(
        behaves(Arc::clone(&store)),
        a_deleted_record_is_made_anew_above_the_old_number(&store),
        a_process_holds_many_groups_by_one_lease(&store)
    );
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn postgres() {
    let database = baton_testing_postgres::Postgres::start();
    let store = store::open(&database.url()).await.unwrap();
    tokio::join!(
        behaves(Arc::clone(&store)),
        a_deleted_record_is_made_anew_above_the_old_number(&store),
        a_process_holds_many_groups_by_one_lease(&store)
    );
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn processes_that_start_together_on_a_fresh_database_make_the_table_once() {
    for _ in 0..5 {
        let database = baton_testing_postgres::Postgres::shared().database();
        let mut starting = tokio::task::JoinSet::new();
        for _ in 0..16 {
            let database = database.clone();
            starting.spawn(async move { store::open(&database).await.map(drop) });
        }
        for opened in starting.join_all().await {
            opened.unwrap();
        }
    }
}

#[cfg(feature = "store")]
#[tokio::test]
async fn a_baton_store() {
    let directory = tempfile::tempdir().unwrap();
    let options = baton_store_embedded::Options::new(directory.path());
    let records = Arc::new(baton_store_embedded::EmbeddedStore::open(options).unwrap());
    let store: Arc<dyn Store> = Arc::new(store::RecordStore::new(records));
    tokio::join!(
        behaves(Arc::clone(&store)),
        a_deleted_record_is_made_anew_above_the_old_number(&store),
        a_process_holds_many_groups_by_one_lease(&store)
    );
}

#[cfg(feature = "http")]
#[tokio::test]
async fn a_baton_server() {
    let server = baton_server::testing().await.unwrap();
    let store = store::open(server.url()).await.unwrap();
    tokio::join!(behaves(Arc::clone(&store)), a_process_holds_many_groups_by_one_lease(&store));
}

/// A term under the lease of a process is respected on either side of a server.
#[cfg(all(feature = "http", feature = "store"))]
#[tokio::test]
async fn what_a_process_holds_is_respected_over_http_and_beside_it() {
    let server = baton_server::testing().await.unwrap();
    let inside: Arc<dyn Store> = Arc::new(store::RecordStore::new(server.store()));
    let outside = store::open(server.url()).await.unwrap();
    for (group, one, other) in [("from-within", &inside, &outside), ("from-without", &outside, &inside)] {
        let options = Options { settings: settings(), worker_id: Some("p".into()), ..Options::default() };
        let process = Process::start(Arc::clone(one), options).await.unwrap();
        let held = process.join(group, ()).await.unwrap();
        let token = coordinates(&held).await;
        let other = join(other, group, "a").await;
        let renewals = held.status().counters.renewals;
        while held.status().counters.renewals < renewals + 8 {
            assert!(!other.is_coordinator());
            baton_env::sleep(Duration::from_millis(100)).await;
        }
        assert!(held.is_coordinator());
        held.stop().await;
        assert!(coordinates(&other).await > token);
        other.stop().await;
        process.stop().await;
    }
}

#[tokio::test]
async fn a_single_instance_needs_no_store_and_no_election() {
    let settings = Settings { enable_coordinator: false, ..Settings::default() };
    let options = Options { settings, ..Options::default() };
    let elector = Elector::start(Arc::new(Failing), "alone", options, ()).await.unwrap();
    assert_eq!(coordinates(&elector).await, 0);
    elector.stop().await;
}

/// A store that ignores the condition.
#[derive(Default)]
struct Careless(MemoryStore);

/// A store that fails.
struct Failing;

macro_rules! forward {
    ($store:ty, $self:ident => $inner:expr, $swap:expr) => {
        impl Store for $store {
            fn read<'a>(&'a $self, key: &'a str) -> store::BoxFuture<'a, Result<Option<store::VersionedValue>, store::Error>> {
                Box::pin(async move { $inner?.read(key).await })
            }
            fn swap<'a>(
                &'a $self,
                key: &'a str,
                expected: Option<&'a store::Version>,
                value: Vec<u8>,
            ) -> store::BoxFuture<'a, Result<SwapOutcome, store::Error>> {
                let swap: for<'b> fn(&'b MemoryStore, &'b str, Option<&'b store::Version>, Vec<u8>) -> store::BoxFuture<'b, Result<SwapOutcome, store::Error>> = $swap;
                Box::pin(async move { swap($inner?, key, expected, value).await })
            }
            fn put<'a>(&'a $self, key: &'a str, value: Vec<u8>) -> store::BoxFuture<'a, Result<(), store::Error>> {
                Box::pin(async move { $inner?.put(key, value).await })
            }
            fn list<'a>(&'a $self, prefix: &'a str) -> store::BoxFuture<'a, Result<Vec<(String, String)>, store::Error>> {
                Box::pin(async move { $inner?.list(prefix).await })
            }
            fn remove<'a>(&'a $self, key: &'a str) -> store::BoxFuture<'a, Result<(), store::Error>> {
                Box::pin(async move { $inner?.remove(key).await })
            }
        }
    };
}

forward!(Careless, self => Ok::<_, store::Error>(&self.0), |memory, key, _, value| Box::pin(async move {
    memory.put(key, value).await?;
    let (version, _) = memory.read(key).await?.unwrap();
    Ok(SwapOutcome::Done(version))
}));
forward!(Failing, self => Err::<&MemoryStore, _>(store::Error("out of order".into())), |_, _, _, _| unreachable!());

#[tokio::test]
async fn a_store_without_conditions_is_refused_before_anything_rests_on_it() {
    let start = |store: Arc<dyn Store>| async move {
        Elector::start(store, "refused", Options::default(), ()).await.err().unwrap().to_string()
    };
    let error = start(Arc::new(Careless::default())).await;
    assert!(error.contains("does not enforce conditional writes"), "{error}");
    assert!(start(Arc::new(Failing)).await.contains("could not be probed: out of order"));
}
