//! Random interleavings of producers, workers, operators, the leader and the clock; checks every invariant after each
//! step.
//!
//! A seed determines a run; a failure prints it. Besides the audit of the store, the model remembers every answer
//! that each client got: no accepted job is lost, a fence never falls, an ended job stays as it is, an outcome is
//! accepted once, attempts and losses are bounded, and log lines have no gap.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use baton_jobs::{
    Cancelled, Dependency, ExecutionId, Filter, Heartbeat, HeldJob, JobId, Leased, LogAppended, LogQuery,
    NewJob, NewLogLine, NewLogLines, OnConflict, Options, Outcome, Policy, QueueSettings, Rate, Report,
    Reported, State, Unique, UniqueScope, When, WorkerId,
};
use common::Bench;

const QUEUES: [&str; 2] = ["a", "b"];
const MAX_RETRIES: u32 = 2;

/// Choices that a seed repeats.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % bound.max(1)
    }

    fn one_in(&mut self, bound: usize) -> bool {
        self.below(bound) == 0
    }
}

/// What the model knows of a job.
#[derive(Clone, Copy)]
struct PartialView {
    state: State,
    fence: u64,
    executions: u32,
}

struct Run {
    bench: Bench,
    chance: Chance,
    workers: Vec<WorkerId>,
    /// The jobs that each worker believes to have, including those it lost long ago.
    believed: Vec<(WorkerId, Leased)>,
    jobs: Vec<JobId>,
    seen: HashMap<JobId, PartialView>,
    /// Jobs that were retried since they were last read.
    revived: HashSet<JobId>,
    accepted: HashSet<(JobId, u64)>,
    /// The number of the next line, and lines stored, by execution.
    lines: BTreeMap<(String, u64), u64>,
    log: Vec<String>,
    done: HashMap<&'static str, u32>,
}

impl Run {
    async fn new(seed: u64, on_postgres: bool) -> Self {
        let policy = Policy {
            completed_for: Duration::from_secs(100_000_000),
            cancelled_for: Duration::from_secs(100_000_000),
            failed_for: Duration::from_secs(100_000_000),
            ..Policy::default()
        };
        let options = Options { sole: true, duties: false, policy, ..Options::default() };
        let bench = if on_postgres { Bench::on_postgres(options).await } else { Bench::with(options) };
        let mut workers = Vec::new();
        for _ in 0..3 {
            workers.push(bench.worker(&QUEUES).await);
        }
        Self {
            bench,
            chance: Chance(seed),
            workers,
            believed: Vec::new(),
            jobs: Vec::new(),
            seen: HashMap::new(),
            revived: HashSet::new(),
            accepted: HashSet::new(),
            lines: BTreeMap::new(),
            log: Vec::new(),
            done: HashMap::new(),
        }
    }

    fn note(&mut self, what: &'static str) {
        *self.done.entry(what).or_default() += 1;
    }

    fn some_job(&mut self) -> Option<JobId> {
        let at = self.chance.below(self.jobs.len());
        self.jobs.get(at).copied()
    }

    async fn step(&mut self) {
        match self.chance.below(20) {
            0..=4 => self.enqueue().await,
            5..=8 => self.lease().await,
            9..=12 => self.report().await,
            13 => self.beat().await,
            14 => self.cancel().await,
            15 => self.retry().await,
            16 => self.say().await,
            17 => self.settings().await,
            _ => self.clock().await,
        }
        self.check().await;
    }

    fn job(&mut self) -> NewJob {
        let queue = QUEUES[self.chance.below(QUEUES.len())];
        let mut job = NewJob::new(queue, ["x", "y"][self.chance.below(2)], "{}");
        job.spec.retry.max_retries = MAX_RETRIES;
        job.spec.retry.jitter = 0.0;
        job.priority = u8::try_from(self.chance.below(4)).unwrap();
        if self.chance.one_in(3) {
            job.when = When::After(Duration::from_secs(self.chance.below(60) as u64));
        }
        if self.chance.one_in(3) {
            job.spec.concurrency_key = Some(format!("key{}", self.chance.below(2)));
            job.spec.concurrency_limit = Some(2);
        }
        if self.chance.one_in(4) {
            job.unique = Some(Unique {
                key: format!("u{}", self.chance.below(3)),
                scope: UniqueScope::Active,
                window: Duration::ZERO,
                on_conflict: [OnConflict::Return, OnConflict::Reject, OnConflict::Replace]
                    [self.chance.below(3)],
            });
        }
        if self.chance.one_in(4)
            && let Some(parent) = self.some_job()
        {
            job.depends_on.push(Dependency::Job(parent));
        }
        if self.chance.one_in(5) {
            job.spec.timeout_ms = 20_000;
        }
        job
    }

    async fn enqueue(&mut self) {
        let count = 1 + self.chance.below(4);
        let jobs: Vec<_> = (0..count).map(|_| self.job()).collect();
        self.log.push(format!("enqueue {count}"));
        match self.bench.jobs.enqueue(jobs, None).await {
            Ok(enqueued) => {
                self.note("enqueued");
                for one in enqueued.iter().filter(|one| !one.deduplicated) {
                    self.jobs.push(one.job_id);
                }
            }
            Err(baton_jobs::Error::Conflict { .. }) => self.note("refused"),
            Err(other) => panic!("{other}"),
        }
    }

    async fn lease(&mut self) {
        let (worker, max) = (self.workers[self.chance.below(3)], 1 + self.chance.below(5));
        let leased = self.bench.lease(worker, max).await;
        self.log.push(format!(
            "lease {worker} {:?}",
            leased.iter().map(|one| one.execution.to_string()).collect::<Vec<_>>()
        ));
        for one in leased {
            self.note("leased");
            // No other execution ever got the same fence, and older fences are stale.
            assert!(
                !self.believed.iter().any(|(_, held)| held.execution == one.execution),
                "{}",
                one.execution
            );
            self.believed.push((worker, one));
        }
    }

    async fn report(&mut self) {
        if self.believed.is_empty() {
            return;
        }
        let at = self.chance.below(self.believed.len());
        let keep = self.chance.one_in(3);
        let (_, leased) = if keep { self.believed[at].clone() } else { self.believed.swap_remove(at) };
        let outcomes = [
            Outcome::Succeeded,
            Outcome::Succeeded,
            Outcome::Failed,
            Outcome::Failed,
            Outcome::Released,
            Outcome::Cancelled,
            Outcome::TimedOut,
        ];
        let mut report =
            Report::new(leased.id, leased.execution.fence, outcomes[self.chance.below(outcomes.len())]);
        report.retryable = !self.chance.one_in(4);
        if self.chance.one_in(2) {
            report.result = "1".into();
        }
        let was = self.bench.jobs.get(leased.id).await.unwrap();
        let answer = self.bench.jobs.report(vec![report.clone()]).await.unwrap()[0];
        self.log.push(format!("report {} {:?} {answer:?}", leased.execution, report.outcome));
        let counts = was.state.is_held() && was.fence == leased.execution.fence;
        match answer {
            Reported::Accepted(_) => {
                assert!(counts, "an old fence was accepted");
                assert!(self.accepted.insert((leased.id, leased.execution.fence)), "accepted twice");
                self.note("accepted");
            }
            Reported::Repeated => assert!(self.accepted.contains(&(leased.id, leased.execution.fence))),
            Reported::StaleFence { current } => {
                assert!(!counts && current == was.fence);
                assert_eq!(
                    self.bench.jobs.get(leased.id).await.unwrap(),
                    was,
                    "an old fence changed something"
                );
                self.note("stale");
            }
            Reported::NotFound => panic!("a job is lost"),
        }
    }

    async fn beat(&mut self) {
        let worker = self.workers[self.chance.below(3)];
        let held: Vec<HeldJob> = self
            .believed
            .iter()
            .filter(|(by, _)| *by == worker)
            .map(|(_, one)| HeldJob { job: one.id, fence: one.execution.fence, progress: None })
            .collect();
        let heard =
            self.bench.jobs.heartbeat(Heartbeat { worker, running: held }, Duration::ZERO).await.unwrap();
        self.log.push(format!("beat {worker} lost {:?} cancel {:?}", heard.lost, heard.cancel));
        if self.chance.one_in(2) {
            // A correct worker drops lost jobs; a faulty one continues.
            self.believed.retain(|(by, one)| *by != worker || !heard.lost.contains(&one.id));
        }
    }

    async fn cancel(&mut self) {
        let (force, Some(id)) = (self.chance.one_in(3), self.some_job()) else { return };
        let was = self.bench.jobs.get(id).await.unwrap().state;
        let answer = self.bench.jobs.cancel(id, force, None).await.unwrap();
        self.log.push(format!("cancel {id} {force} {answer:?}"));
        assert_eq!(answer == Cancelled::TooLate, was.is_terminal());
        self.note("cancelled");
    }

    async fn retry(&mut self) {
        let Some(id) = self.some_job() else { return };
        let was = self.bench.jobs.get(id).await.unwrap().state;
        let args = self.chance.one_in(3).then(|| "[2]".into());
        let answer = self.bench.jobs.retry(id, true, args).await;
        self.log.push(format!("retry {id} {answer:?}"));
        match answer {
            Ok(_) => {
                assert!(was.is_terminal());
                self.revived.insert(id);
                self.note("retried");
            }
            Err(baton_jobs::Error::Conflict { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }

    async fn say(&mut self) {
        if self.believed.is_empty() {
            return;
        }
        let at = self.chance.below(self.believed.len());
        let execution: ExecutionId = self.believed[at].1.execution;
        let key = (execution.job.to_string(), execution.fence);
        let next = self.lines.get(&key).copied().unwrap_or(1);
        let (again, count) = (self.chance.below(3) as u64, 1 + self.chance.below(3) as u64);
        let first = next.saturating_sub(again).max(1);
        let line =
            |number: u64| NewLogLine { level: Default::default(), message: number.to_string(), at: None };
        let lines = (first..next + count).map(line).collect();
        match self.bench.jobs.log(NewLogLines { execution, first, lines }).await.unwrap() {
            LogAppended::UpTo(up_to) => {
                assert_eq!(up_to, next + count);
                self.lines.insert(key, up_to);
                self.note("said");
            }
            LogAppended::StaleFence { .. } => {}
        }
    }

    async fn settings(&mut self) {
        let queue = QUEUES[self.chance.below(2)];
        let settings = QueueSettings {
            paused: self.chance.one_in(4),
            concurrency: self.chance.one_in(3).then_some(3),
            rate_limit: self.chance.one_in(3).then_some(Rate { count: 5, per_ms: 1_000 }),
            // With a weight, random draws that the seed does not repeat decide.
            weight: None,
            dlq: !self.chance.one_in(4),
        };
        self.bench.jobs.set_queue(queue, settings).await.unwrap();
    }

    async fn clock(&mut self) {
        let seconds = [0, 1, 5, 12, 31][self.chance.below(5)];
        self.log.push(format!("clock +{seconds}"));
        // Sometimes the servers are away meanwhile.
        if self.chance.one_in(4) {
            self.bench.advance(seconds);
            self.bench.settle().await;
        } else {
            self.bench.pass(seconds).await;
        }
    }

    async fn check(&mut self) {
        let wrong = self.bench.jobs.audit().await.unwrap();
        assert!(wrong.is_empty(), "{wrong:#?}\n{:#?}", self.log);
        let mut found = HashSet::new();
        let mut cursor = None;
        loop {
            let page = self.bench.jobs.search(Filter::default(), cursor, 500).await.unwrap();
            for job in &page.jobs {
                found.insert(job.id);
                assert!(job.attempts <= MAX_RETRIES + 1, "{} was tried {} times", job.id, job.attempts);
                let now = PartialView { state: job.state, fence: job.fence, executions: job.executions };
                if let Some(was) = self.seen.insert(job.id, now) {
                    assert!(
                        was.fence <= now.fence && was.executions <= now.executions,
                        "{}: a number fell",
                        job.id
                    );
                    let stays = was.state.is_terminal() && !self.revived.contains(&job.id);
                    assert!(
                        !stays || was.state == now.state,
                        "{}: {:?} became {:?}",
                        job.id,
                        was.state,
                        now.state
                    );
                }
            }
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        assert!(self.jobs.iter().all(|job| found.contains(job)), "an accepted job is lost\n{:#?}", self.log);
        self.revived.clear();
    }

    /// At the end: workers run, time passes, and nothing is left over.
    async fn drain(&mut self) {
        for queue in QUEUES {
            self.bench.jobs.set_queue(queue, QueueSettings::default()).await.unwrap();
        }
        for round in 0.. {
            assert!(round < 200, "jobs do not end: {:#?}", self.log);
            self.bench.pass(40).await;
            let leased = self.bench.lease(self.workers[0], 1_000).await;
            for one in &leased {
                self.bench.report(one, Outcome::Succeeded).await;
            }
            self.check().await;
            if self.seen.values().all(|seen| seen.state.is_terminal()) {
                break;
            }
        }
        for (job, _) in self.lines.keys() {
            self.check_log(job.parse().unwrap()).await;
        }
    }

    async fn check_log(&self, job: JobId) {
        let query = LogQuery { limit: 10_000, ..LogQuery::default() };
        let page = self.bench.jobs.logs(job, query).await.unwrap();
        let mut next = BTreeMap::<u64, u64>::new();
        for line in page.lines {
            let expected = next.entry(line.execution_id.fence).or_insert(1);
            assert_eq!((line.seq, line.message), (*expected, expected.to_string()));
            *expected += 1;
        }
        for ((_, fence), up_to) in self.lines.iter().filter(|((of, _), _)| *of == job.to_string()) {
            assert_eq!(next.get(fence), Some(up_to), "a line is missing");
        }
    }
}

async fn run(seed: u64, steps: usize, on_postgres: bool) -> HashMap<&'static str, u32> {
    let mut run = Run::new(seed, on_postgres).await;
    for _ in 0..steps {
        run.step().await;
    }
    run.drain().await;
    run.done
}

#[tokio::test]
async fn whatever_happens_in_whatever_order_the_invariants_hold() {
    // `7` or `1..100` in the environment; by default a few seeds.
    let asked = std::env::var("BATON_TEST_SEEDS").unwrap_or_else(|_| "1..9".into());
    let seeds: Vec<u64> = match asked.split_once("..") {
        Some((first, end)) => (first.parse().unwrap()..end.parse().unwrap()).collect(),
        None => vec![asked.parse().unwrap()],
    };
    let mut done = HashMap::<&str, u32>::new();
    for seed in seeds {
        println!("seed {seed}");
        for (what, times) in run(seed, 150, false).await {
            *done.entry(what).or_default() += times;
        }
    }
    // A run without any events would prove nothing.
    for what in ["enqueued", "leased", "accepted", "stale", "cancelled", "retried", "said"] {
        assert!(done.get(what).copied().unwrap_or(0) > 10, "{what}: {done:?}");
    }
}

#[tokio::test]
async fn the_same_holds_on_postgres() {
    let done = run(1, 100, true).await;
    assert!(done.get("accepted").copied().unwrap_or(0) > 5, "{done:?}");
}
