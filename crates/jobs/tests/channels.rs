//! Channels: clients watch jobs in queues, to which the owner of each job publishes in order and once.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use baton_jobs::{ClusterTimes, Jobs, NewJob, NewWorker, Options, Outcome, Report};
use baton_store::{QueueSpec, Store, run};
use baton_types::{Offset, QueueOptions};
use serde_json::Value;

/// Watches a channel: its queue exists.
async fn watch(store: &Arc<dyn Store>, name: &str) {
    let name: Arc<str> = name.into();
    let spec = QueueSpec { name, namespace: "".into(), task: "".into(), options: QueueOptions::default() };
    run(&**store, move |tx| tx.put_queue(spec.clone()).map(drop)).await.unwrap();
}

/// The messages of a partition of a channel.
async fn heard(store: &Arc<dyn Store>, queue: &str, partition: &str) -> Vec<Value> {
    let (queue, partition) = (queue.to_owned(), partition.to_owned());
    let found = run(&**store, move |tx| {
        let Some(queue) = tx.queue(&queue)? else { return Ok(None) };
        tx.partition(queue.id, &partition)
    });
    let Some(found) = found.await.unwrap() else { return Vec::new() };
    let segments = store.read(found.id, Offset(0), found.tail, 1 << 20).await.unwrap();
    let messages = segments.iter().flat_map(baton_store::Segment::messages);
    messages.map(|message| serde_json::from_slice(&message.unwrap().payload).unwrap()).collect()
}

/// The messages once there are so many; more than those are an error.
async fn hear(store: &Arc<dyn Store>, queue: &str, partition: &str, count: usize) -> Vec<Value> {
    for _ in 0..600 {
        let messages = heard(store, queue, partition).await;
        if messages.len() >= count {
            assert_eq!(messages.len(), count, "{messages:?}");
            return messages;
        }
        baton_env::sleep(Duration::from_millis(50)).await;
    }
    panic!("{queue}/{partition}: {:?}", heard(store, queue, partition).await);
}

fn words(messages: &[Value], member: &str) -> Vec<String> {
    messages.iter().map(|message| message[member].as_str().unwrap_or_default().to_owned()).collect()
}

/// Waits for a condition that sends no signal.
async fn until(is_so: impl Fn() -> bool, otherwise: &str) {
    for _ in 0..1_500 {
        if is_so() {
            return;
        }
        baton_env::sleep(Duration::from_millis(20)).await;
    }
    panic!("{otherwise}");
}

/// Waits until commits write the journal, once a client watches.
async fn until_watched(jobs: &Jobs) {
    until(|| jobs.is_watched(), "no client watches").await;
}

async fn run_one(jobs: &Jobs) -> String {
    let job = jobs.enqueue(vec![NewJob::new("mail", "send", "{}")], None).await.unwrap()[0].job_id;
    let told = NewWorker { name: "w".into(), queues: vec!["mail".into()], ..NewWorker::default() };
    let worker = jobs.register(told).await.unwrap().worker;
    let leased = jobs.lease(worker, 1, Duration::ZERO).await.unwrap().jobs;
    let fence = leased[0].execution.fence;
    jobs.report(vec![Report::new(job, fence, Outcome::Succeeded)]).await.unwrap();
    job.to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_write_the_journal_only_while_a_client_watches() {
    let times = ClusterTimes { heartbeat: Duration::from_millis(100), ..ClusterTimes::default() };
    let bench = common::Bench::with(Options { sole: true, times, ..Options::default() });
    run_one(&bench.jobs).await;
    assert!(bench.store_keys("jobs/journal").await.is_empty());
    for name in ["job.status", "job.assigned", "job.dispatch.mail", "worker.heartbeat"] {
        watch(&bench.store, &format!("orchestrix.{name}")).await;
    }
    until_watched(&bench.jobs).await;
    let job = run_one(&bench.jobs).await;
    let statuses = hear(&bench.store, "orchestrix.job.status", &job, 3).await;
    assert_eq!(words(&statuses, "status"), ["dispatched", "running", "completed"]);
    assert_eq!(words(&statuses, "jobType"), ["send", "send", "send"]);
    assert_eq!(hear(&bench.store, "orchestrix.job.dispatch.mail", &job, 1).await[0]["queue"], "mail");
    let assigned = hear(&bench.store, "orchestrix.job.assigned", &job, 1).await;
    assert!(assigned[0]["epoch"].as_u64() >= Some(1) && assigned[0]["owner"].is_string());
    assert!(heard(&bench.store, "orchestrix.job.logs", &job).await.is_empty(), "no client watches that one");
    bench.jobs.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_events_of_a_job_go_on_in_order_when_its_owner_dies() {
    let millis = Duration::from_millis;
    let times = ClusterTimes {
        term: millis(3_000),
        renew: millis(300),
        margin: millis(500),
        heartbeat: millis(200),
        dead_after: millis(3_000),
        orphans_every: millis(500),
        ..ClusterTimes::default()
    };
    let schema = format!("jobs {}", baton_env::fresh_uuid());
    let node = async |name: &str| {
        let options =
            Options { name: name.into(), node: format!("{name}-1").into(), times, ..Options::default() };
        let store = common::postgres(&schema, None).await;
        (Jobs::start(Arc::clone(&store), options), store)
    };
    let ((dying, _), (staying, store)) = (node("a").await, node("b").await);
    watch(&store, "orchestrix.job.status").await;
    watch(&store, "orchestrix.job.handoff").await;
    until_watched(&dying).await;
    until_watched(&staying).await;
    let told = NewWorker { name: "w".into(), queues: vec!["mail".into()], ..NewWorker::default() };
    let worker = staying.register(told).await.unwrap().worker;
    let new = (0..128).map(|_| NewJob::new("mail", "send", "{}")).collect();
    let enqueued = staying.enqueue(new, None).await.unwrap();
    for job in &enqueued {
        hear(&store, "orchestrix.job.status", &job.job_id.to_string(), 1).await;
    }
    // The remaining journal entries of a node that stops are left to the next owner.
    until(|| dying.slices() > 0, "it owns nothing").await;
    dying.abandon();
    dying.shutdown().await;
    let leased = staying.lease(worker, 128, Duration::ZERO).await.unwrap().jobs;
    assert_eq!(leased.len(), enqueued.len());
    let reports = leased.iter().map(|one| Report::new(one.id, one.execution.fence, Outcome::Succeeded));
    staying.report(reports.collect()).await.unwrap();
    for job in &enqueued {
        let statuses = hear(&store, "orchestrix.job.status", &job.job_id.to_string(), 3).await;
        assert_eq!(words(&statuses, "status"), ["dispatched", "running", "completed"]);
    }
    let slices = 0..baton_jobs::SLICES;
    let mut crashed = 0;
    for slice in slices {
        let handoffs = heard(&store, "orchestrix.job.handoff", &slice.to_string()).await;
        crashed += usize::from(words(&handoffs, "reason").contains(&"NodeCrash".to_owned()));
    }
    assert!(crashed > 0, "the handoff was told of");
    staying.shutdown().await;
}

/// A server that starts while a client watches publishes its first change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_has_just_come_tells_of_what_it_does() {
    let schema = format!("jobs {}", baton_env::fresh_uuid());
    let store = common::postgres(&schema, None).await;
    watch(&store, "orchestrix.job.status").await;
    // The periodic check comes long after this.
    let times = ClusterTimes { heartbeat: Duration::from_secs(600), ..ClusterTimes::default() };
    let node = |name: &str, duties: bool| {
        let options = Options {
            name: name.into(),
            node: format!("{name}-1").into(),
            times,
            duties,
            ..Options::default()
        };
        Jobs::start(Arc::clone(&store), options)
    };
    let coming = node("a", false);
    let job = run_one(&coming).await;
    let owner = node("b", true);
    let statuses = hear(&store, "orchestrix.job.status", &job, 3).await;
    assert_eq!(words(&statuses, "status"), ["dispatched", "running", "completed"]);
    coming.shutdown().await;
    owner.shutdown().await;
}
