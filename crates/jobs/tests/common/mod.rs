//! A store in a temporary directory with a test clock.

use std::sync::Arc;
use std::time::Duration;

use baton_env::ManualClock;
use baton_jobs::{
    Enqueued, Heartbeat, HeldJob, JobId, Jobs, Leased, NewJob, NewWorker, Options, Outcome, Report, Reported,
    WorkerId,
};
use baton_store::Store;
use baton_store_embedded::EmbeddedStore;
use baton_types::Timestamp;

/// Jobs on a store of their own.
pub struct Bench {
    pub jobs: Jobs,
    pub clock: Arc<ManualClock>,
    pub store: Arc<dyn Store>,
    pub options: Options,
    _directory: Option<tempfile::TempDir>,
}

/// A PostgreSQL schema, opened as a server would.
#[allow(dead_code, reason = "each test file uses some of it")]
pub async fn postgres(schema: &str, clock: Option<Arc<ManualClock>>) -> Arc<dyn Store> {
    let url = tokio::task::spawn_blocking(|| baton_testing_postgres::Postgres::shared().url()).await.unwrap();
    let clock = clock.map(|clock| clock as Arc<dyn baton_env::Clock>);
    let options = baton_store_postgres::Options {
        schema: schema.into(),
        clock,
        ..baton_store_postgres::Options::new(url)
    };
    Arc::new(baton_store_postgres::PostgresStore::open(options).await.unwrap())
}

pub const START: Timestamp = Timestamp::from_micros(1_794_767_647_638_487);

#[allow(dead_code, reason = "each test file uses some of it")]
impl Bench {
    pub fn new() -> Self {
        Self::with(Options { sole: true, duties: false, ..Options::default() })
    }

    pub fn with(options: Options) -> Self {
        // In memory if possible: these tests do not test the disk.
        let memory = std::path::Path::new("/dev/shm");
        let directory = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        let directory = directory.unwrap();
        let clock = Arc::new(ManualClock::new(START));
        let store: Arc<dyn Store> = Arc::new(
            EmbeddedStore::open(baton_store_embedded::Options {
                clock: clock.clone(),
                min_free_disk: 0,
                ..baton_store_embedded::Options::new(directory.path())
            })
            .unwrap(),
        );
        let jobs = Jobs::start(Arc::clone(&store), options.clone());
        Self { jobs, clock, store, options, _directory: Some(directory) }
    }

    /// Jobs on a schema of their own in a PostgreSQL that all tests share.
    pub async fn on_postgres(options: Options) -> Self {
        let clock = Arc::new(ManualClock::new(START));
        let store = postgres(&format!("jobs {}", baton_env::fresh_uuid()), Some(clock.clone())).await;
        let jobs = Jobs::start(Arc::clone(&store), options.clone());
        Self { jobs, clock, store, options, _directory: None }
    }

    /// Another server on the same store, without any state in memory.
    pub fn another_server(&self) -> Jobs {
        let node = format!("{:x}", baton_env::random_u64()).into();
        Jobs::start(Arc::clone(&self.store), Options { node, ..self.options.clone() })
    }

    pub fn advance(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
    }

    pub async fn enqueue(&self, job: NewJob) -> Enqueued {
        self.jobs.enqueue(vec![job], None).await.unwrap()[0]
    }

    pub async fn worker(&self, queues: &[&str]) -> WorkerId {
        let told = NewWorker {
            name: "w".into(),
            queues: queues.iter().map(|queue| (*queue).to_owned()).collect(),
            max_concurrency: 10,
            ..NewWorker::default()
        };
        self.jobs.register(told).await.unwrap().worker
    }

    pub async fn lease(&self, worker: WorkerId, max: usize) -> Vec<Leased> {
        self.jobs.lease(worker, max, Duration::ZERO).await.unwrap().jobs
    }

    pub async fn report(&self, leased: &Leased, outcome: Outcome) -> Reported {
        let report = Report::new(leased.id, leased.execution.fence, outcome);
        self.jobs.report(vec![report]).await.unwrap()[0]
    }

    pub async fn beat(&self, worker: WorkerId, leased: &[Leased]) -> baton_jobs::HeartbeatReply {
        let running =
            leased.iter().map(|one| HeldJob { job: one.id, fence: one.execution.fence, progress: None });
        self.jobs.heartbeat(Heartbeat { worker, running: running.collect() }, Duration::ZERO).await.unwrap()
    }

    /// Advances the clock while the maintenance runs.
    pub async fn pass(&self, seconds: u64) {
        self.settle().await;
        for passed in (0..seconds).step_by(5) {
            self.advance(5.min(seconds - passed));
            self.settle().await;
        }
    }

    /// Runs the timeouts that are due now.
    pub async fn settle(&self) {
        self.jobs.sweep().await.unwrap();
    }

    /// The keys of records that begin with `prefix`.
    pub async fn store_keys(&self, prefix: &str) -> Vec<String> {
        let prefix = prefix.to_owned();
        let rows =
            baton_store::run(&*self.store, move |tx| tx.records(&prefix, None, 100_000)).await.unwrap();
        rows.into_iter().map(|(key, _)| key).collect()
    }

    /// Messages stored for jobs.
    pub async fn kept(&self) -> u64 {
        let kept = |tx: &mut dyn baton_store::Tx| match tx.queue(baton_jobs::HIDDEN)? {
            Some(queue) => tx.message_count(queue.id),
            None => Ok(0),
        };
        baton_store::run(&*self.store, kept).await.unwrap()
    }

    pub async fn state(&self, id: JobId) -> String {
        self.jobs.get(id).await.unwrap().state.word().to_owned()
    }
}
