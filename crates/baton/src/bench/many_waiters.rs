//! Many waiters: thousands of pops wait at once, each on its own connection. Measures their cost in memory and, while
//! idle, in processor time; then pushes one message for each, which every one must get.
//!
//! Half of them wait for any partition of a queue, half for one partition each of another queue, since a server may
//! implement the two differently.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use baton_env::Stopwatch;
use serde::Deserialize;
use tokio::task::JoinSet;

use super::histogram::Histogram;
use super::report::ReportRow;
use super::traffic::{self, Load};
use super::wire::Connection;
use super::{Args, Measurement, Shape, progress};

/// Connections that are opened at once.
const OPENING: usize = 100;
/// Messages of one push.
const PUSH: usize = 100;
/// How long a pop waits; none may time out.
const WAIT: Duration = Duration::from_secs(280);
/// Time for the server to park the last pop.
const SETTLE: Duration = Duration::from_secs(2);

/// Measures one number of waiters.
pub async fn run(args: &Args) -> Result<Vec<ReportRow>> {
    let waiters = args.waiters.unwrap_or(if args.quick { 1_000 } else { 10_000 });
    let idle = Duration::from_secs(if args.quick { 2 } else { 10 });
    let shape = Shape {
        scenario: "many-waiters",
        connections: waiters,
        producers: 1,
        batch: 1,
        partitions: waiters,
        scatter: true,
    };
    let mut run = Measurement::prepare(args, shape)?;
    let (any, each) = (run.load.queue.clone(), Load::fresh_queue());
    let empty = run.server.usage();
    let bar = progress("many-waiters: wait".into(), Some(waiters as u64));
    let clock = run.load.clock;
    let mut waiting = JoinSet::new();
    let mut opened = Vec::new();
    for first in (0..waiters).step_by(OPENING) {
        for number in first..(first + OPENING).min(waiters) {
            let connection = Connection::open(run.server.host(), run.load.token.as_ref()).await;
            opened.push((number, connection.context(OPEN_HINT)?));
        }
        for (number, connection) in opened.drain(..) {
            let path = path(number, &any, &each);
            waiting.spawn(wait(connection, path, clock));
        }
        bar.inc(OPENING as u64);
    }
    baton_env::sleep(SETTLE).await;
    let settled = run.server.usage();
    baton_env::sleep(idle).await;
    let rested = run.server.usage();
    ensure!(waiting.try_join_next().is_none(), "a pop came back although nothing was pushed");
    bar.finish_and_clear();

    run.start();
    let sent_at = push_to_all(&run, waiters, &any, &each).await?;
    let latency = collect(waiting, &sent_at).await?;
    run.stop(waiters as u64);
    run.row.latency_us = latency.latency();
    run.row.batch = None;
    run.row.scatter = None;
    if let Some((settled, rested)) = settled.zip(rested) {
        run.row.server_cpu_idle = Some((rested.cpu - settled.cpu) / idle.as_secs_f64());
    }
    let grown = empty.zip(rested).map(|(a, b)| b.memory_bytes.saturating_sub(a.memory_bytes));
    run.row.server_memory_bytes_each = grown.map(|bytes| bytes as f64 / waiters as f64);
    Ok(vec![run.verified()?])
}

const OPEN_HINT: &str = "every waiter needs an open file here and in the server: see `ulimit -n`";

fn path(number: usize, any: &str, each: &str) -> String {
    let wait = WAIT.as_millis();
    match number % 2 {
        0 => format!("/api/v1/pop/queue/{any}?batch=1&wait=true&timeout={wait}"),
        _ => format!("/api/v1/pop/queue/{each}/partition/p{number}?batch=1&wait=true&timeout={wait}"),
    }
}

#[derive(Deserialize)]
struct PopResponse<'a> {
    #[serde(borrow)]
    messages: Vec<Message<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Message<'a> {
    transaction_id: &'a str,
    partition_id: &'a str,
    lease_id: &'a str,
    data: usize,
}

/// Waits for one message and acks it. Returns its number and when it came.
async fn wait(mut connection: Connection, path: String, clock: Stopwatch) -> Result<(usize, Duration)> {
    let (status, answer) = connection.get(&path).await?;
    let received = clock.elapsed();
    ensure!(status == 200, "a waiting pop was answered {status}");
    let popped: PopResponse<'_> = serde_json::from_slice(answer)?;
    let [Message { transaction_id, partition_id, lease_id, data }] = &popped.messages[..] else {
        anyhow::bail!("a waiting pop got {} messages", popped.messages.len());
    };
    let number = *data;
    let body = format!(
        r#"{{"transactionId":"{transaction_id}","partitionId":"{partition_id}","leaseId":"{lease_id}"}}"#
    );
    let (status, answer) = connection.post("/api/v1/ack", body.as_bytes()).await?;
    let done = status == 200 && String::from_utf8_lossy(answer).contains(r#""success":true"#);
    ensure!(done, "an ack was answered {status}");
    Ok((number, received))
}

/// Pushes one message for each waiter. Returns when each was sent.
async fn push_to_all(run: &Measurement, waiters: usize, any: &str, each: &str) -> Result<Vec<Duration>> {
    let mut connection = Connection::open(run.server.host(), run.load.token.as_ref()).await?;
    let mut sent_at = Vec::with_capacity(waiters);
    let mut body = Vec::new();
    for first in (0..waiters).step_by(PUSH) {
        let last = (first + PUSH).min(waiters);
        body.clear();
        body.extend_from_slice(br#"{"items":["#);
        for number in first..last {
            let queue = if number % 2 == 0 { any } else { each };
            write!(body, r#"{{"queue":"{queue}","partition":"p{number}","payload":{number}}},"#)?;
        }
        body.pop();
        body.extend_from_slice(b"]}");
        let now = run.load.clock.elapsed();
        sent_at.resize(last, now);
        traffic::push(&mut connection, &body, last - first).await?;
    }
    Ok(sent_at)
}

/// Waits for every waiter: each must have got a message, and none the same as another.
async fn collect(mut waiting: JoinSet<Result<(usize, Duration)>>, sent_at: &[Duration]) -> Result<Histogram> {
    let (mut latency, mut seen) = (Histogram::default(), vec![false; sent_at.len()]);
    while let Some(ended) = tokio::time::timeout(Duration::from_secs(60), waiting.join_next())
        .await
        .context("some waiters never got a message")?
    {
        let (number, received) = ended??;
        let slot = seen.get_mut(number).context("a message that no producer pushed")?;
        ensure!(!std::mem::replace(slot, true), "message {number} was delivered twice");
        latency.record(received.saturating_sub(sent_at[number]));
    }
    ensure!(seen.iter().all(|one| *one), "messages were lost");
    Ok(latency)
}
