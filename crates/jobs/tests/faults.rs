//! Jobs on a store that is slow, refuses, does not answer, commits but reports a failure, loses power, or is full.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use baton_env::{Clock, ManualClock};
use baton_jobs::schedule::ScheduleSpec;
use baton_jobs::{Error, Jobs, NewJob, NewWorker, Options, Outcome, Report, Reported, State};
use baton_store::{
    BoxFuture, Error as StoreError, IdempotencyKey, Listener, Operation, Segment, Statistics, Store, Tx,
    TxError,
};
use baton_store_embedded::EmbeddedStore;
use baton_types::{Offset, PartitionId, Timestamp};
use common::{Bench, START};

/// What the faulty store does with a decision.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Fine,
    Slow,
    Refused,
    /// It commits, and reports a failure.
    Denied,
    /// It commits, and never answers.
    Swallowed,
}

/// A store with faults in a seeded order.
struct Faulty {
    inner: Arc<dyn Store>,
    is_ill: Arc<AtomicBool>,
    /// Reads that will fail.
    unread: AtomicUsize,
    /// Percentages of decisions that are slow, refused, denied and swallowed.
    shares: [u64; 4],
    chance: AtomicU64,
    suffered: [AtomicUsize; 5],
    swallowed: Mutex<Vec<Box<dyn Operation>>>,
}

impl Faulty {
    fn new(inner: Arc<dyn Store>, shares: [u64; 4]) -> Arc<Self> {
        Arc::new(Self {
            inner,
            is_ill: Arc::new(AtomicBool::new(true)),
            unread: AtomicUsize::new(0),
            shares,
            chance: AtomicU64::new(23),
            suffered: Default::default(),
            swallowed: Mutex::default(),
        })
    }

    fn fate(&self) -> Fate {
        if !self.is_ill.load(Ordering::SeqCst) {
            return Fate::Fine;
        }
        let step =
            |seed: u64| seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let before = self.chance.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |seed| Some(step(seed)));
        let mut left = (step(before.unwrap()) >> 33) % 100;
        let fates = [Fate::Slow, Fate::Refused, Fate::Denied, Fate::Swallowed];
        for (fate, share) in fates.into_iter().zip(self.shares) {
            if left < share {
                return fate;
            }
            left -= share;
        }
        Fate::Fine
    }

    fn suffered(&self, fate: Fate) -> usize {
        self.suffered[fate as usize].load(Ordering::SeqCst)
    }

    fn heal(&self) {
        self.is_ill.store(false, Ordering::SeqCst);
    }
}

/// A decision that is reported as failed.
struct Denied(Box<dyn Operation>);

impl Operation for Denied {
    fn apply(&mut self, tx: &mut dyn Tx) -> Result<(), TxError> {
        self.0.apply(tx)
    }

    fn finish(self: Box<Self>, outcome: Result<(), StoreError>) {
        let denied = outcome.and(Err(StoreError::Busy(Duration::from_millis(1))));
        self.0.finish(denied);
    }
}

impl Store for Faulty {
    fn submit(&self, operation: Box<dyn Operation>) {
        let fate = self.fate();
        self.suffered[fate as usize].fetch_add(1, Ordering::SeqCst);
        match fate {
            Fate::Fine => self.inner.submit(operation),
            Fate::Denied => self.inner.submit(Box::new(Denied(operation))),
            Fate::Refused => operation.finish(Err(StoreError::Busy(Duration::from_millis(1)))),
            Fate::Swallowed => self.swallowed.lock().unwrap().push(operation),
            Fate::Slow => {
                let inner = Arc::clone(&self.inner);
                tokio::spawn(async move {
                    baton_env::sleep(Duration::from_millis(50)).await;
                    inner.submit(operation);
                });
            }
        }
    }

    fn read(
        &self,
        partition: PartitionId,
        from: Offset,
        to: Offset,
        bytes_max: usize,
    ) -> BoxFuture<'_, Result<Vec<Segment>, StoreError>> {
        let fails = |left: usize| left.checked_sub(1);
        if self.unread.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fails).is_ok() {
            return Box::pin(async { Err(StoreError::Busy(Duration::from_millis(1))) });
        }
        self.inner.read(partition, from, to, bytes_max)
    }

    fn set_listener(&self, listener: Listener) {
        self.inner.set_listener(listener);
    }

    fn now(&self) -> Timestamp {
        self.inner.now()
    }

    fn statistics(&self) -> Statistics {
        self.inner.statistics()
    }

    fn failure(&self) -> Option<String> {
        self.inner.failure()
    }

    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner.close()
    }
}

fn spec(text: &str) -> ScheduleSpec {
    ScheduleSpec::parse(text).unwrap()
}

/// Retries until it succeeds, as a careful client does.
async fn surely<T, F: Future<Output = Result<T, Error>>>(mut call: impl FnMut() -> F) -> T {
    for _ in 0..10_000 {
        match call().await {
            Ok(done) => return done,
            Err(Error::Store(_)) => baton_env::sleep(Duration::from_millis(1)).await,
            Err(other) => panic!("{other}"),
        }
    }
    panic!("it never worked");
}

/// F21, and pain 14: an outage of the database makes two workers run one job.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_and_lying_store_loses_no_job_and_accepts_none_twice() {
    const JOBS: usize = 200;
    let bench = Bench::new();
    let store = Faulty::new(Arc::clone(&bench.store), [10, 10, 5, 0]);
    let jobs = Jobs::start(store.clone(), Options { sole: true, duties: false, ..Options::default() });
    for number in 0..JOBS {
        let (jobs, key) = (jobs.clone(), format!("k{number}"));
        let new = || vec![NewJob::new("q", "t", number.to_string())];
        surely(|| jobs.enqueue(new(), Some(IdempotencyKey::new(key.clone(), "jobs", b"")))).await;
    }
    assert_eq!(jobs_in(&bench, &["dispatched"]).await, JOBS as u64, "each was accepted once");
    let accepted = Arc::new(Mutex::new(HashMap::<String, usize>::new()));
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let (jobs, accepted) = (jobs.clone(), Arc::clone(&accepted));
            tokio::spawn(async move {
                let told =
                    || NewWorker { name: "w".into(), queues: vec!["q".into()], ..NewWorker::default() };
                let worker = surely(|| jobs.register(told())).await.worker;
                loop {
                    let leases = surely(|| jobs.lease(worker, 5, Duration::ZERO)).await;
                    if leases.jobs.is_empty() {
                        return;
                    }
                    for leased in leases.jobs {
                        let report =
                            || vec![Report::new(leased.id, leased.execution.fence, Outcome::Succeeded)];
                        match surely(|| jobs.report(report())).await[0] {
                            // Repeated after a lost answer.
                            Reported::Accepted(State::Completed) | Reported::Repeated => {
                                let name = String::from_utf8(leased.args.to_vec()).unwrap();
                                *accepted.lock().unwrap().entry(name).or_default() += 1;
                            }
                            Reported::StaleFence { .. } => {}
                            other => panic!("{other:?}"),
                        }
                    }
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.unwrap();
    }
    store.heal();
    // A lease whose commit was reported as failed expires, and the job goes to another worker.
    bench.pass(31).await;
    let worker = bench.worker(&["q"]).await;
    for leased in bench.lease(worker, JOBS).await {
        assert_eq!(bench.report(&leased, Outcome::Succeeded).await, Reported::Accepted(State::Completed));
        let name = String::from_utf8(leased.args.to_vec()).unwrap();
        *accepted.lock().unwrap().entry(name).or_default() += 1;
    }
    let accepted = accepted.lock().unwrap().clone();
    assert_eq!(accepted.len(), JOBS, "none is lost");
    assert!(accepted.values().all(|times| *times == 1), "none is accepted twice: {accepted:?}");
    assert_eq!(jobs_in(&bench, &["completed"]).await, JOBS as u64);
    assert_eq!(jobs.audit().await.unwrap(), Vec::<String>::new());
    for fate in [Fate::Slow, Fate::Refused, Fate::Denied] {
        assert!(store.suffered(fate) > 0, "the test shows nothing");
    }
}

/// A lease whose jobs could not be read answered 503 and kept them for half a minute, and that counted as a loss.
#[tokio::test]
async fn a_lease_that_cannot_read_its_jobs_gives_them_back() {
    let bench = Bench::new();
    // Four of ten decisions fail as well, so releases have to be retried.
    let store = Faulty::new(Arc::clone(&bench.store), [0, 40, 0, 0]);
    let jobs = Jobs::start(store.clone(), Options { sole: true, duties: false, ..Options::default() });
    let new = || (0..10).map(|number| NewJob::new("q", "t", number.to_string())).collect();
    bench.jobs.enqueue(new(), None).await.unwrap();
    let told = NewWorker { name: "w".into(), queues: vec!["q".into()], ..NewWorker::default() };
    let worker = surely(|| jobs.register(told.clone())).await.worker;
    for _ in 0..20 {
        store.unread.store(1, Ordering::SeqCst);
        while store.unread.load(Ordering::SeqCst) > 0 {
            assert!(jobs.lease(worker, 10, Duration::ZERO).await.is_err());
        }
        all_wait(&bench, 10).await;
    }
    assert!(store.suffered(Fate::Refused) > 20, "the test shows nothing");
    store.heal();
    let leased = jobs.lease(worker, 10, Duration::ZERO).await.unwrap().jobs;
    assert_eq!(leased.iter().map(|one| one.attempt).collect::<Vec<_>>(), [1; 10], "it cost them nothing");
    // Another fault after the lease: the caller disconnects.
    for one in &leased {
        bench.report(one, Outcome::Released).await;
    }
    store.is_ill.store(true, Ordering::SeqCst);
    for _ in 0..20 {
        let mut call = Box::pin(jobs.lease(worker, 10, Duration::ZERO));
        let _ = begin(&mut call).await;
        drop(call);
        all_wait(&bench, 10).await;
    }
}

/// Returns when so many jobs wait for a worker.
async fn all_wait(bench: &Bench, jobs: u64) {
    for _ in 0..3_000 {
        if jobs_in(bench, &["dispatched"]).await == jobs {
            return;
        }
        baton_env::sleep(Duration::from_millis(10)).await;
    }
    panic!("jobs were not given back");
}

/// Polls a call once, to start it.
async fn begin<T>(call: &mut std::pin::Pin<Box<impl Future<Output = T>>>) -> bool {
    std::future::poll_fn(|cx| std::task::Poll::Ready(call.as_mut().poll(cx).is_ready())).await
}

async fn jobs_in(bench: &Bench, states: &[&str]) -> u64 {
    let counts = bench.jobs.queue("q").await.unwrap().counts;
    states.iter().map(|state| counts[state]).sum()
}

/// Pain 11: a trigger is stuck half acquired after an error of the database. Pain 7: a leader without its schedules.
#[tokio::test]
async fn a_fire_that_fails_leaves_nothing_behind_and_happens_with_the_next_try() {
    let bench = Bench::new();
    let store = Faulty::new(Arc::clone(&bench.store), [0, 10, 10, 0]);
    let jobs = Jobs::start(store.clone(), Options { sole: true, duties: false, ..Options::default() });
    let every = r#"{"kind": "interval", "everyMs": 10000, "job": {"jobType": "t", "queue": "q"}}"#;
    bench.jobs.put_schedule("s".into(), spec(every), None).await.unwrap();
    for _ in 0..20 {
        bench.advance(10);
        // Retries, as the duty does.
        while !matches!(jobs.sweep().await, Ok(true)) {}
    }
    assert!(store.suffered(Fate::Refused) > 0 && store.suffered(Fate::Denied) > 0);
    assert_eq!(jobs_in(&bench, &["dispatched"]).await, 20, "one job for each nominal time");
    assert_eq!(bench.jobs.schedule("s".into()).await.unwrap().problem, None);
}

/// Pain 23: a call to the database that never returns hangs a background loop for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_never_answered_does_not_hang_the_duties() {
    let bench = Bench::new();
    let store = Faulty::new(Arc::clone(&bench.store), [0, 0, 0, 100]);
    let limit = Duration::from_millis(50);
    let options = Options { sole: true, duty_limit: limit, ..Options::default() };
    let mut late = NewJob::new("q", "t", "{}");
    late.when = baton_jobs::When::After(Duration::from_secs(10));
    bench.enqueue(late).await;
    bench.advance(11);
    let jobs = Jobs::start(store.clone(), options);
    eventually(|| async { store.suffered(Fate::Swallowed) >= 3 }).await;
    store.heal();
    eventually(|| async { jobs_in(&bench, &["dispatched"]).await == 1 }).await;
    // Late answers change nothing.
    for operation in std::mem::take(&mut *store.swallowed.lock().unwrap()) {
        bench.store.submit(operation);
    }
    assert_eq!(jobs_in(&bench, &["dispatched"]).await, 1);
    jobs.shutdown().await;
    assert_eq!(bench.jobs.audit().await.unwrap(), Vec::<String>::new());
}

async fn eventually<F: Future<Output = bool>>(mut is_so: impl FnMut() -> F) {
    for _ in 0..12_000 {
        if is_so().await {
            return;
        }
        baton_env::sleep(Duration::from_millis(5)).await;
    }
    panic!("it never was so");
}

// The disk.

/// A store in `directory` with a test clock.
fn open(directory: &Path, min_free_disk: u64) -> (Jobs, Arc<dyn Store>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(START));
    let options = baton_store_embedded::Options {
        clock: Arc::clone(&clock) as Arc<dyn Clock>,
        min_free_disk,
        ..baton_store_embedded::Options::new(directory)
    };
    let store: Arc<dyn Store> = Arc::new(EmbeddedStore::open(options).unwrap());
    let options = Options { sole: true, duties: false, ..Options::default() };
    (Jobs::start(Arc::clone(&store), options), store, clock)
}

fn files(directory: &Path) -> HashMap<PathBuf, Vec<u8>> {
    let mut found = HashMap::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            let mut bytes = std::fs::read(&path).unwrap();
            if path.extension().is_some_and(|extension| extension == "jnl") {
                // The engine preallocates zeros that need not be there.
                bytes.truncate(bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
            }
            found.insert(path, bytes);
        }
    }
    found
}

/// Copies after only the log was synced; the log replays what the engine has not yet written to other files.
fn is_log(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "log")
}

/// Copies the files to another directory.
fn lay(files: &HashMap<PathBuf, Vec<u8>>, from: &Path, to: &Path) {
    for (path, bytes) in files {
        let target = to.join(path.strip_prefix(from).unwrap());
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        std::fs::write(target, bytes).unwrap();
    }
}

/// The range in which two contents differ.
fn changed(before: &[u8], after: &[u8]) -> Option<(usize, usize)> {
    let at = |index: usize| before.get(index).copied().unwrap_or(0);
    let first = (0..after.len()).find(|index| at(*index) != after[*index])?;
    let last = (first..after.len()).rfind(|index| at(*index) != after[*index])?;
    Some((first, last + 1))
}

/// The files after each step, and what was acknowledged by then.
struct Snapshot {
    files: HashMap<PathBuf, Vec<u8>>,
    accepted: usize,
    completed: usize,
}

/// What a disk may hold of a write that begins at `first` when power fails at `cut`: the file ends there; or it has
/// its full length and the unwritten part is zeros, after the cut or, in `part` 1, before it.
fn torn(bytes: &[u8], first: usize, cut: usize, part: usize) -> [Vec<u8>; 2] {
    let mut with_zeros = bytes.to_vec();
    if part == 1 {
        with_zeros[first..cut].fill(0);
    } else {
        with_zeros[cut..].fill(0);
        with_zeros.resize(bytes.len() + 4096, 0);
    }
    [bytes[..cut].to_vec(), with_zeros]
}

/// F23: after a power failure anywhere in a write, acknowledged commits are there, and each commit is there as a
/// whole or not at all.
#[tokio::test]
async fn a_power_cut_in_any_write_keeps_every_acknowledged_job() {
    let home = tempfile::tempdir().unwrap();
    let (jobs, store, _clock) = open(home.path(), 0);
    let (mut accepted, mut completed, mut snapshots) = (0, 0, Vec::new());
    let worker = {
        let told = NewWorker { name: "w".into(), queues: vec!["q".into()], ..NewWorker::default() };
        jobs.register(told).await.unwrap().worker
    };
    let mut keep = |accepted, completed| {
        snapshots.push(Snapshot { files: files(home.path()), accepted, completed });
    };
    keep(0, 0);
    for round in 0..3 {
        let mut new: Vec<_> = (0..5).map(|_| NewJob::new("q", "t", "{}")).collect();
        new[0].spec.concurrency_key = Some("k".into());
        new[1].spec.tags = vec!["x".into()];
        jobs.enqueue(new, None).await.unwrap();
        accepted += 5;
        keep(accepted, completed);
        let leases = jobs.lease(worker, 4, Duration::ZERO).await.unwrap().jobs;
        keep(accepted, completed);
        let outcome = if round == 1 { Outcome::Failed } else { Outcome::Succeeded };
        let reports: Vec<_> =
            leases.iter().map(|leased| Report::new(leased.id, leased.execution.fence, outcome)).collect();
        jobs.report(reports).await.unwrap();
        completed += if round == 1 { 0 } else { leases.len() };
        keep(accepted, completed);
    }
    jobs.shutdown().await;
    store.close().await.unwrap();
    let mut cuts = 0;
    for pair in snapshots.windows(2) {
        let (before, after) = (&pair[0], &pair[1]);
        for (path, bytes) in after.files.iter().filter(|(path, _)| is_log(path)) {
            let old = before.files.get(path).map_or(&[][..], Vec::as_slice);
            let Some((first, end)) = changed(old, bytes) else { continue };
            for part in 0..3 {
                let cut = first + (end - first) * part / 3;
                for left in torn(bytes, first, cut, part) {
                    let mut files = before.files.clone();
                    files.insert(path.clone(), left);
                    check(&files, home.path(), before, after).await;
                    cuts += 1;
                }
            }
        }
        check(&after.files, home.path(), after, after).await;
    }
    assert!(cuts >= 24, "{cuts} cuts show little");
}

async fn check(files: &HashMap<PathBuf, Vec<u8>>, from: &Path, least: &Snapshot, most: &Snapshot) {
    let home = tempfile::tempdir().unwrap();
    lay(files, from, home.path());
    let (jobs, store, _clock) = open(home.path(), 0);
    let counts = match jobs.queue("q").await {
        Ok(queue) => queue.counts,
        Err(error) => {
            assert!(matches!(error, Error::NotFound(_)) && least.accepted == 0, "{error}");
            return;
        }
    };
    let (all, completed) = (counts.values().sum::<u64>(), counts["completed"]);
    for (count, least, most) in
        [(all, least.accepted, most.accepted), (completed, least.completed, most.completed)]
    {
        let count = usize::try_from(count).unwrap();
        assert!(count == least || count == most, "{count} are there, {least} or {most} should be");
    }
    assert_eq!(jobs.audit().await.unwrap(), Vec::<String>::new());
    jobs.shutdown().await;
    store.close().await.unwrap();
}

/// F23: a full disk refuses new jobs with a clear error, and existing jobs can finish.
#[tokio::test]
async fn a_full_disk_refuses_new_jobs_and_lets_the_others_end() {
    let home = tempfile::tempdir().unwrap();
    let (jobs, store, _clock) = open(home.path(), 0);
    let told = || NewWorker { name: "w".into(), queues: vec!["q".into()], ..NewWorker::default() };
    let worker = jobs.register(told()).await.unwrap().worker;
    jobs.enqueue(vec![NewJob::new("q", "t", "{}")], None).await.unwrap();
    jobs.shutdown().await;
    store.close().await.unwrap();
    drop((jobs, store));
    let (jobs, store, _clock) = open(home.path(), u64::MAX);
    let refused = jobs.enqueue(vec![NewJob::new("q", "t", "{}")], None).await;
    assert!(matches!(refused, Err(Error::Store(StoreError::DiskFull { .. }))), "{refused:?}");
    let leases = jobs.lease(worker, 10, Duration::ZERO).await.unwrap().jobs;
    assert_eq!(leases.len(), 1);
    let report = Report::new(leases[0].id, leases[0].execution.fence, Outcome::Succeeded);
    assert_eq!(jobs.report(vec![report]).await.unwrap(), [Reported::Accepted(State::Completed)]);
    assert_eq!(jobs.audit().await.unwrap(), Vec::<String>::new());
    jobs.shutdown().await;
    store.close().await.unwrap();
}
