//! Several nodes on one PostgreSQL: leadership, ownership, and what happens when a node leaves or dies.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use baton_jobs::{ClusterTimes, ClusterView, Jobs, NewJob, NewWorker, Options, Outcome, Report};
use baton_jobs::{NodeState, SLICES};
use baton_store::Store;

/// Times that a test can wait for, far enough apart that a busy machine does not reorder them.
fn times() -> ClusterTimes {
    let millis = Duration::from_millis;
    ClusterTimes {
        term: millis(3_000),
        renew: millis(300),
        margin: millis(500),
        heartbeat: millis(200),
        dead_after: millis(4_000),
        ack: millis(2_000),
        tries: 3,
        tail: millis(2_000),
        ceiling: millis(20_000),
        orphans_every: millis(500),
        cooldown: millis(200),
    }
}

struct Fleet {
    schema: String,
}

impl Fleet {
    fn new() -> Self {
        Self { schema: format!("jobs {}", baton_env::fresh_uuid()) }
    }

    async fn store(&self) -> Arc<dyn Store> {
        common::postgres(&self.schema, None).await
    }

    async fn node(&self, name: &str) -> Jobs {
        self.node_with(name, times()).await
    }

    async fn node_with(&self, name: &str, times: ClusterTimes) -> Jobs {
        let options = Options {
            name: name.into(),
            node: format!("{name}-{:x}", baton_env::random_u64()).into(),
            look_every: Duration::from_millis(100),
            times,
            ..Options::default()
        };
        Jobs::start(self.store().await, options)
    }
}

/// The cluster as a node sees it, once a condition holds.
async fn until(jobs: &Jobs, what: &str, wanted: impl Fn(&ClusterView) -> bool) -> ClusterView {
    for _ in 0..1_200 {
        let view = jobs.cluster().await.unwrap();
        if wanted(&view) {
            return view;
        }
        baton_env::sleep(Duration::from_millis(50)).await;
    }
    panic!("{what}: {:#?}", jobs.cluster().await.unwrap());
}

fn slices(view: &ClusterView, name: &str) -> usize {
    view.nodes.iter().filter(|one| one.node.name == name).map(|one| one.slices).sum()
}

fn jobs_of(view: &ClusterView, name: &str) -> u64 {
    view.nodes.iter().filter(|one| one.node.name == name).map(|one| one.jobs).sum()
}

async fn enqueue(jobs: &Jobs, count: usize) {
    jobs.enqueue((0..count).map(|_| NewJob::new("q", "t", "{}")).collect(), None).await.unwrap();
}

/// Stops a node without a handoff, as a crash would.
fn crash(jobs: &Jobs) {
    jobs.abandon();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_share_the_jobs_and_one_leads() {
    let fleet = Fleet::new();
    let first = fleet.node("a").await;
    until(&first, "a lone node owns everything", |view| slices(view, "a") == SLICES).await;
    enqueue(&first, 300).await;
    let (second, third) = (fleet.node("b").await, fleet.node("c").await);
    let spread =
        |view: &ClusterView| ["a", "b", "c"].iter().all(|name| (50..=150).contains(&jobs_of(view, name)));
    let view = until(&third, "jobs are spread", spread).await;
    assert_eq!(view.nodes.iter().map(|one| one.jobs).sum::<u64>(), 300);
    assert_eq!(view.nodes.iter().filter(|one| one.is_leader).count(), 1);
    assert_eq!(view.orphans, 0);
    assert_eq!(third.audit().await.unwrap(), Vec::<String>::new());
    for node in [first, second, third] {
        node.drain().await;
        node.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_drains_hands_everything_over_and_leaves_nothing_behind() {
    let fleet = Fleet::new();
    let (leaving, staying) = (fleet.node("a").await, fleet.node("b").await);
    let both = |view: &ClusterView| slices(view, "a") >= 20 && slices(view, "b") >= 20;
    until(&staying, "both own some", both).await;
    enqueue(&leaving, 1_000).await;
    let owned = slices(&leaving.cluster().await.unwrap(), "a") as u64;
    leaving.drain().await;
    let numbers = leaving.numbers();
    assert_eq!(numbers.handoffs.iter().sum::<u64>(), owned, "{:?}", numbers.handoffs);
    assert_eq!(numbers.handoffs[2..], [0, 0], "nothing is left behind");
    leaving.shutdown().await;
    let view = staying.cluster().await.unwrap();
    assert_eq!((slices(&view, "b"), jobs_of(&view, "b"), view.orphans), (SLICES, 1_000, 0));
    assert!(view.nodes.iter().all(|one| one.node.name == "b"), "{view:?}");
    until(&staying, "the other leads", |view| view.nodes.iter().any(|one| one.is_leader)).await;
    staying.drain().await;
    assert_eq!(staying.numbers().handoffs[3], SLICES as u64, "no other node: case D, at once");
    staying.shutdown().await;
    // The next node claims the slices.
    let next = fleet.node("c").await;
    until(&next, "what was left behind is claimed", |view| jobs_of(view, "c") == 1_000).await;
    next.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_jobs_of_a_dead_node_get_a_new_owner_and_do_not_run_again() {
    let fleet = Fleet::new();
    let (dying, staying) = (fleet.node("a").await, fleet.node("b").await);
    let both = |view: &ClusterView| slices(view, "a") >= 20 && slices(view, "b") >= 20;
    until(&staying, "both own some", both).await;
    enqueue(&staying, 200).await;
    let told = NewWorker { name: "w".into(), queues: vec!["q".into()], ..NewWorker::default() };
    let worker = staying.register(told).await.unwrap().worker;
    let leased = staying.lease(worker, 200, Duration::ZERO).await.unwrap().jobs;
    assert_eq!(leased.len(), 200);
    let term = until(&staying, "a node leads", |view| view.leader.is_some()).await.leader.unwrap().0;
    crash(&dying);
    let view = until(&staying, "the other owns all", |view| slices(view, "b") == SLICES).await;
    let dead = view.nodes.iter().find(|one| one.node.name == "a").unwrap();
    assert_eq!((dead.node.state, dead.slices), (NodeState::Dead, 0));
    assert!(
        staying
            .numbers()
            .claims
            .iter()
            .any(|(reason, count)| { *reason == baton_jobs::OwnershipReason::NodeCrash && *count > 0 })
    );
    // Epochs and terms only rise.
    let view = until(&staying, "a node leads again", |view| {
        view.nodes.iter().any(|one| one.is_leader && one.node.name == "b")
    })
    .await;
    assert!(view.leader.unwrap().0 >= term);
    for one in &leased {
        assert!(staying.owner(one.id.position().unwrap()).is_some_and(|owner| owner.epoch >= 1));
    }
    let reports = leased.iter().map(|one| Report::new(one.id, one.execution.fence, Outcome::Succeeded));
    let answers = staying.report(reports.collect()).await.unwrap();
    assert!(answers.iter().all(|one| matches!(one, baton_jobs::Reported::Accepted(_))), "{answers:?}");
    let completed = staying.queue("q").await.unwrap().counts["completed"];
    assert_eq!(completed, 200);
    for one in &leased {
        assert_eq!(staying.get(one.id).await.unwrap().executions, 1, "losing an owner runs nothing again");
    }
    staying.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_can_have_a_node_drain_and_take_it_back() {
    let fleet = Fleet::new();
    let (first, second) = (fleet.node("a").await, fleet.node("b").await);
    until(&second, "both own some", |view| slices(view, "a") > 9 && slices(view, "b") > 9).await;
    let id = second.ask_to_drain("a", true).await.unwrap();
    assert!(id.starts_with("a-"));
    let drained = |view: &ClusterView| {
        let state = view.nodes.iter().find(|one| one.node.name == "a").map(|one| one.node.state);
        state == Some(NodeState::Draining) && slices(view, "b") == SLICES
    };
    let view = until(&second, "it drained", drained).await;
    assert_eq!(view.orphans, 0);
    until(&second, "the other leads", |view| {
        view.nodes.iter().any(|one| one.is_leader && one.node.name == "b")
    })
    .await;
    let refused = second.ask_to_drain("b", true).await.unwrap_err().to_string();
    assert!(refused.contains("no other server could take the jobs"), "{refused}");
    second.ask_to_drain(&id, false).await.unwrap();
    until(&second, "it takes part again", |view| slices(view, "a") > 9).await;
    assert!(second.ask_to_drain("unknown", true).await.is_err());
    let events = second.events(0).await.unwrap();
    let told = |kind: &str, state: &str| {
        events.iter().any(|one| one.kind == kind && (state.is_empty() || one.data["state"] == state))
    };
    for state in ["joined", "asked_to_drain", "draining", "asked_to_stay"] {
        assert!(told("node", state), "{state}: {events:?}");
    }
    assert!(told("leader", "") && told("handoff", ""));
    assert!(events.windows(2).all(|pair| pair[0].offset < pair[1].offset));
    assert_eq!(
        second.events_end().await.unwrap(),
        second.events(0).await.unwrap().last().unwrap().offset + 1
    );
    first.shutdown().await;
    second.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_with_one_user_pays_nothing_for_company() {
    let bench = common::Bench::with(Options { sole: true, ..Options::default() });
    bench.jobs.enqueue(vec![NewJob::new("q", "t", "{}")], None).await.unwrap();
    for _ in 0..200 {
        if bench.jobs.leader().await.unwrap().is_some() {
            break;
        }
        baton_env::sleep(Duration::from_millis(50)).await;
    }
    assert!(bench.store_keys("jobs/node/").await.is_empty());
    assert!(bench.store_keys("jobs/owners").await.is_empty());
    let view = bench.jobs.cluster().await.unwrap();
    assert_eq!((view.nodes.len(), view.nodes[0].jobs, view.nodes[0].slices), (1, 1, SLICES));
    let node = &view.nodes[0].node;
    assert!(node.started_at <= view.now && view.now.since(node.started_at) < Duration::from_secs(600));
    assert_eq!(node.version, env!("CARGO_PKG_VERSION"));
    assert!(bench.jobs.ask_to_drain("baton", true).await.is_err());
    bench.jobs.drain().await;
    bench.jobs.shutdown().await;
}

/// The leader counts a queue that is older than the tally, while its jobs run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_that_were_there_before_the_nodes_are_counted_too() {
    const JOBS: usize = 3_000;
    let fleet = Fleet::new();
    let before =
        Jobs::start(fleet.store().await, Options { sole: true, duties: false, ..Options::default() });
    for _ in 0..JOBS / 1_000 {
        enqueue(&before, 1_000).await;
    }
    before.shutdown().await;
    // Changes before the leader has counted must not distort the tally.
    let early = Jobs::start(
        fleet.store().await,
        Options { duties: false, look_every: Duration::from_millis(100), ..Options::default() },
    );
    let told = NewWorker { name: "w".into(), queues: vec!["q".into()], ..NewWorker::default() };
    let worker = early.register(told).await.unwrap().worker;
    let leased = early.lease(worker, 100, Duration::ZERO).await.unwrap().jobs;
    let reports = leased.iter().map(|one| Report::new(one.id, one.execution.fence, Outcome::Succeeded));
    early.report(reports.collect()).await.unwrap();
    enqueue(&early, 30).await;
    assert_eq!(early.audit().await.unwrap(), Vec::<String>::new());
    let open = (JOBS - leased.len() + 30) as u64;
    let (first, second) = (fleet.node("a").await, fleet.node("b").await);
    let shared = |view: &ClusterView| {
        let (a, b) = (jobs_of(view, "a"), jobs_of(view, "b"));
        let told: u64 = view.nodes.iter().map(|one| one.node.jobs).sum();
        slices(view, "a") >= 20 && slices(view, "b") >= 20 && a + b == open && told == open
    };
    until(&second, "both own their part, and say so", shared).await;
    assert_eq!(second.audit().await.unwrap(), Vec::<String>::new());
    // The tally is complete and stays up to date.
    let rest = early.lease(worker, 500, Duration::ZERO).await.unwrap().jobs;
    let reports = rest.iter().map(|one| Report::new(one.id, one.execution.fence, Outcome::Succeeded));
    early.report(reports.collect()).await.unwrap();
    assert!(!rest.is_empty());
    let left = open - rest.len() as u64;
    until(&second, "it goes down as jobs end", |view| {
        view.nodes.iter().map(|one| one.jobs).sum::<u64>() == left
    })
    .await;
    assert_eq!(second.audit().await.unwrap(), Vec::<String>::new());
    for node in [early, first, second] {
        node.shutdown().await;
    }
}
