use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use baton_client::worker::{Context, Failure, HandlerResult, Level, StopReason, Worker};
use baton_client::{CancellationToken, Client, RawValue};
use serde_json::value::to_raw_value;
use serde_json::{Value, json};

use crate::support::{Reply, Seen, TestServer};

/// The server's answer to a heartbeat, by its number.
type Beats = fn(usize) -> Value;

fn quiet(_: usize) -> Value {
    json!({"desiredState": "active", "lost": [], "cancel": []})
}

/// Leases `jobs` once and accepts everything.
async fn server(jobs: Value, lease_ms: u64, beats: Beats) -> TestServer {
    let (leased, beaten) = (AtomicUsize::new(0), AtomicUsize::new(0));
    TestServer::start(move |seen: &Seen| match seen {
        _ if seen.is("/lease") => {
            let mut jobs = if leased.fetch_add(1, Ordering::SeqCst) == 0 { jobs.clone() } else { json!([]) };
            for (number, job) in jobs.as_array_mut().unwrap().iter_mut().enumerate() {
                job["jobId"] = json!(format!("job-{number}"));
                job["executionId"] = json!(format!("job-{number}.7"));
                (job["fence"], job["leaseMs"], job["attempt"]) = (json!(7), json!(lease_ms), json!(1));
            }
            Reply::Json(200, json!({"leases": jobs}))
        }
        _ if seen.is("/heartbeat") => Reply::Json(200, beats(beaten.fetch_add(1, Ordering::SeqCst))),
        _ if seen.is(":report") => {
            let items = seen.body["items"].as_array().unwrap().iter().map(|_| json!({"ok": true}));
            Reply::Json(200, json!({"items": items.collect::<Vec<_>>()}))
        }
        _ if seen.is("/logs") || seen.is("/drain") => Reply::Json(200, json!({})),
        _ => Reply::Json(
            201,
            json!({"workerId": "w-1", "incarnation": 5, "heartbeatMs": 100, "leaseMs": lease_ms}),
        ),
    })
    .await
}

fn worker(server: &TestServer, stop: &CancellationToken) -> Worker {
    Client::new(&server.url).unwrap().worker().queue("q").stop_on(stop.clone())
}

/// All reported outcomes, by job.
fn reports(server: &TestServer) -> Vec<Value> {
    let seen = server.seen_at(":report");
    let mut all: Vec<_> = seen.iter().flat_map(|s| s.body["items"].as_array().unwrap()).cloned().collect();
    all.sort_by_key(|report| report["jobId"].to_string());
    all
}

/// Cancels `stop` when the server has received so many reports.
fn stop_after(server: Arc<TestServer>, count: usize, stop: CancellationToken) {
    tokio::spawn(async move {
        while reports(&server).len() < count {
            baton_env::sleep(Duration::from_millis(10)).await;
        }
        stop.cancel();
    });
}

fn null() -> Box<RawValue> {
    to_raw_value(&Value::Null).unwrap()
}

#[tokio::test]
async fn handlers_are_found_by_type_and_their_outcomes_reported() {
    let jobs = json!([
        {"jobType": "double", "args": 21},
        {"jobType": "double", "args": "no number"},
        {"jobType": "fail", "args": null},
        {"jobType": "give up", "args": null},
        {"jobType": "panic", "args": null},
        {"jobType": "unknown", "args": null},
    ]);
    let server = Arc::new(server(jobs, 30_000, quiet).await);
    let stop = CancellationToken::new();
    stop_after(Arc::clone(&server), 6, stop.clone());
    let worked = worker(&server, &stop)
        .handle("double", |number: u64, _| async move { Ok(number * 2) })
        .handle("fail", |(): (), _| async move {
            "x".parse::<u32>()?;
            Ok(())
        })
        .handle("give up", |(): (), _| async move {
            Err::<(), _>(Failure::permanent("never").kind("fatal").retry_after(Duration::from_secs(2)))
        })
        .handle("panic", |(): (), _| async move {
            assert_eq!(1, 2, "surprise");
            Ok(())
        })
        .run()
        .await
        .unwrap();
    assert_eq!((worked.succeeded, worked.failed, worked.lost), (1, 5, 0));
    let reports = reports(&server);
    assert_eq!(
        reports[0],
        json!({"jobId": "job-0", "executionId": "job-0.7", "fence": 7, "outcome": "succeeded", "result": 42})
    );
    let error = |number: usize| {
        (reports[number]["error"]["type"].clone(), reports[number]["error"]["retryable"].clone())
    };
    assert_eq!(error(1), (json!("arguments"), json!(false)));
    assert_eq!(error(2), (json!("error"), json!(true)));
    assert_eq!(
        reports[3]["error"],
        json!({"type": "fatal", "message": "never", "retryable": false, "retryAfterMs": 2000})
    );
    assert_eq!(error(4), (json!("panic"), json!(true)));
    assert!(reports[4]["error"]["message"].as_str().unwrap().contains("surprise"));
    assert_eq!(error(5), (json!("no_handler"), json!(true)));
    let registration = &server.seen()[0].body;
    assert_eq!(registration["jobTypes"], json!(["double", "fail", "give up", "panic"]));
    assert_eq!((&registration["queues"], &registration["maxConcurrency"]), (&json!(["q"]), &json!(10)));
}

#[tokio::test]
async fn logs_are_numbered_and_there_before_the_outcome_and_progress_goes_with_a_beat() {
    let server = Arc::new(server(json!([{"jobType": "t", "args": null}]), 30_000, quiet).await);
    let stop = CancellationToken::new();
    stop_after(Arc::clone(&server), 1, stop.clone());
    let told = Arc::clone(&server);
    worker(&server, &stop)
        .handle("t", move |(): (), context: Context| {
            let server = Arc::clone(&told);
            async move {
                context.progress(150.0, "more than all");
                for number in 0..1200 {
                    context.log(Level::Debug, format!("line {number}")).await;
                }
                while !server
                    .seen_at("/heartbeat")
                    .iter()
                    .any(|beat| beat.body["running"][0]["progress"].is_object())
                {
                    baton_env::sleep(Duration::from_millis(10)).await;
                }
                Ok(())
            }
        })
        .run()
        .await
        .unwrap();
    let seen = server.seen();
    let mut next = 1;
    for call in seen.iter().filter(|call| call.is("/executions/job-0.7/logs")) {
        assert_eq!(call.body["firstSeq"], next);
        next += call.body["lines"].as_array().unwrap().len();
    }
    assert_eq!(next, 1201);
    let last_log = seen.iter().rposition(|call| call.is("/logs")).unwrap();
    let report = seen.iter().position(|call| call.is(":report")).unwrap();
    assert!(last_log < report);
    let beat = seen.iter().find(|call| call.body["running"][0]["progress"].is_object()).unwrap();
    assert_eq!(beat.body["running"][0]["progress"], json!({"percent": 100.0, "message": "more than all"}));
    assert_eq!(beat.body["incarnation"], 5);
}

/// Runs until it is asked to stop, and then returns.
async fn obedient(context: Context) -> HandlerResult {
    context.cancellation().cancelled().await;
    Err(Failure::new(format!("{:?}", context.ended())))
}

#[tokio::test]
async fn a_cancelled_job_is_told_to_stop_and_reported_so() {
    let cancel = |_| json!({"desiredState": "active", "lost": [], "cancel": ["job-0"]});
    let server = Arc::new(server(json!([{"jobType": "t"}]), 30_000, cancel).await);
    let stop = CancellationToken::new();
    stop_after(Arc::clone(&server), 1, stop.clone());
    worker(&server, &stop).handle_any(obedient).run().await.unwrap();
    assert_eq!(reports(&server)[0]["outcome"], "cancelled");
}

#[tokio::test]
async fn a_job_that_takes_too_long_is_stopped() {
    let server = Arc::new(server(json!([{"jobType": "t", "deadlineMs": 50}]), 30_000, quiet).await);
    let stop = CancellationToken::new();
    stop_after(Arc::clone(&server), 1, stop.clone());
    worker(&server, &stop).handle_any(obedient).run().await.unwrap();
    assert_eq!(reports(&server)[0]["outcome"], "timed_out");
}

#[tokio::test]
async fn a_lost_job_is_stopped_and_not_reported() {
    let lost = |_| json!({"desiredState": "active", "lost": ["job-0"], "cancel": []});
    let server = server(json!([{"jobType": "t"}]), 30_000, lost).await;
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let worked = worker(&server, &stop)
        .handle_any(move |context| {
            let stop = stopped.clone();
            async move {
                context.cancellation().cancelled().await;
                assert_eq!(context.ended(), Some(StopReason::Lost));
                stop.cancel();
                Ok(null())
            }
        })
        .run()
        .await
        .unwrap();
    assert_eq!((worked.lost, reports(&server).len()), (1, 0));
}

/// Heartbeat answers that violate the protocol, so no lease is renewed.
fn nonsense(_: usize) -> Value {
    json!("nonsense")
}

#[tokio::test]
async fn an_exclusive_job_whose_lease_cannot_be_renewed_is_stopped_before_it_ends_and_given_back() {
    let server = Arc::new(server(json!([{"jobType": "t"}]), 500, nonsense).await);
    let stop = CancellationToken::new();
    stop_after(Arc::clone(&server), 1, stop.clone());
    let began = baton_env::Stopwatch::start();
    let worked = worker(&server, &stop)
        .exclusive()
        .handle_any(|context| async move {
            context.cancellation().cancelled().await;
            assert_eq!(context.ended(), Some(StopReason::Unrenewed));
            Err(Failure::new("stopped"))
        })
        .run()
        .await
        .unwrap();
    assert!(began.elapsed() < Duration::from_secs(10));
    assert_eq!((worked.released, worked.lost), (1, 0));
    assert_eq!(reports(&server)[0]["outcome"], "released");
}

#[tokio::test]
async fn a_job_goes_on_while_no_server_answers_and_its_outcome_is_told_when_one_does() {
    // No heartbeat or report is answered for several leases.
    let (beaten, reported) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let leased = AtomicUsize::new(0);
    let server = Arc::new(
        TestServer::start(move |seen: &Seen| match seen {
            _ if seen.is("/lease") && leased.fetch_add(1, Ordering::SeqCst) == 0 => {
                let lease = json!({"jobId": "job-0", "executionId": "job-0.7", "fence": 7, "leaseMs": 300,
                    "attempt": 1, "jobType": "t"});
                Reply::Json(200, json!({"leases": [lease]}))
            }
            _ if seen.is("/lease") => Reply::Json(200, json!({"leases": []})),
            _ if seen.is("/heartbeat") && beaten.fetch_add(1, Ordering::SeqCst) < 20 => Reply::HangUp,
            _ if seen.is("/heartbeat") => Reply::Json(200, quiet(0)),
            _ if seen.is(":report") && reported.fetch_add(1, Ordering::SeqCst) < 3 => Reply::HangUp,
            _ if seen.is(":report") => Reply::Json(200, json!({"items": [{"ok": true}]})),
            _ => Reply::Json(201, json!({"workerId": "w-1", "heartbeatMs": 100, "leaseMs": 300})),
        })
        .await,
    );
    let stop = CancellationToken::new();
    let beats = Arc::clone(&server);
    let stopped = stop.clone();
    let worked = Client::builder()
        .url(&server.url)
        .retries(0)
        .build()
        .unwrap()
        .worker()
        .stop_on(stop)
        .handle_any(move |context| {
            let (server, stop) = (Arc::clone(&beats), stopped.clone());
            async move {
                while server.seen_at("/heartbeat").len() < 12 {
                    assert_eq!(context.ended(), None, "no server said so");
                    baton_env::sleep(Duration::from_millis(10)).await;
                }
                stop.cancel();
                Ok(null())
            }
        })
        .run()
        .await
        .unwrap();
    assert_eq!((worked.succeeded, worked.lost), (1, 0));
    let outcomes: Vec<_> = reports(&server).iter().map(|report| report["outcome"].clone()).collect();
    assert_eq!(outcomes, ["succeeded"; 4]);
}

#[tokio::test]
async fn a_drain_lets_jobs_finish_and_gives_back_the_rest() {
    let jobs = json!([{"jobType": "quick"}, {"jobType": "slow"}]);
    let server = Arc::new(server(jobs, 30_000, quiet).await);
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let worked = worker(&server, &stop)
        .drain(Duration::from_millis(500))
        .handle_any(move |context| {
            let stop = stopped.clone();
            async move {
                stop.cancel();
                if context.job_type() == "slow" {
                    return obedient(context).await;
                }
                baton_env::sleep(Duration::from_millis(50)).await;
                Ok(null())
            }
        })
        .run()
        .await
        .unwrap();
    assert_eq!((worked.succeeded, worked.released), (1, 1));
    let outcomes: Vec<_> = reports(&server).iter().map(|report| report["outcome"].clone()).collect();
    assert_eq!(outcomes, ["succeeded", "released"]);
}

#[tokio::test]
async fn the_server_can_ask_for_a_drain() {
    let drain = |_| json!({"desiredState": "draining", "lost": [], "cancel": []});
    let server = server(json!([]), 30_000, drain).await;
    let worked = worker(&server, &CancellationToken::new()).handle_any(obedient).run().await.unwrap();
    assert_eq!(worked.succeeded, 0);
}

#[tokio::test]
async fn middleware_stands_around_every_handler() {
    let server = Arc::new(server(json!([{"jobType": "t", "args": 1}]), 30_000, quiet).await);
    let stop = CancellationToken::new();
    stop_after(Arc::clone(&server), 1, stop.clone());
    let around = |name: &'static str| {
        move |context: Context, next: baton_client::worker::Next| async move {
            let inner = next.run(context).await?;
            Ok(to_raw_value(&json!({name: inner}))?)
        }
    };
    worker(&server, &stop)
        .handle("t", |number: u64, _| async move { Ok(number) })
        .wrap(around("outer"))
        .wrap(around("inner"))
        .run()
        .await
        .unwrap();
    assert_eq!(reports(&server)[0]["result"], json!({"outer": {"inner": 1}}));
}

#[tokio::test]
async fn a_worker_that_is_forgotten_registers_again() {
    let registered = Arc::new(AtomicUsize::new(0));
    let (count, stop) = (Arc::clone(&registered), CancellationToken::new());
    let stopped = stop.clone();
    let server = TestServer::start(move |seen: &Seen| match seen {
        _ if seen.is("/lease") || seen.is("/heartbeat") => {
            Reply::Json(404, json!({"error": "no such worker"}))
        }
        _ if seen.path == "/api/v1/workers" => {
            if count.fetch_add(1, Ordering::SeqCst) == 2 {
                stopped.cancel();
            }
            Reply::Json(201, json!({"workerId": "w-1", "heartbeatMs": 100, "leaseMs": 30_000}))
        }
        _ => Reply::Json(200, json!({})),
    })
    .await;
    worker(&server, &stop).handle_any(obedient).run().await.unwrap();
    assert!(registered.load(Ordering::SeqCst) >= 3);
}

#[tokio::test]
async fn a_worker_without_a_handler_or_a_server_says_so() {
    let client = Client::builder().url("http://127.0.0.1:1").retries(0).build().unwrap();
    assert!(client.worker().run().await.is_err());
    assert!(client.worker().handle_any(obedient).concurrency(0).run().await.is_err());
    assert!(client.worker().handle_any(obedient).run().await.unwrap_err().is_connection_refused());
}
