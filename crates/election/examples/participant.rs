//! Takes part in an election and prints one JSON line for everything that happens, so that tests in any language can
//! drive real processes.
//!
//! ```text
//! participant STORE GROUP [--fast] [--worker-id ID] [--no-probe] [--set NAME=VALUE]...
//! ```
//!
//! STORE is `s3://bucket/prefix`, `az://container/prefix`, `gs://bucket/prefix` (credentials and endpoint from the
//! environment), `file:///directory`, `memory:`, `postgres://…` or `http://host:port`, as far as compiled in. NAME is
//! a setting, such as `heartbeatInterval`, VALUE its milliseconds. Lines on stdin are orders: `stop`, `force`,
//! `force WORKER`, `status`. SIGTERM and the end of stdin stop it in good order. Every line has `at` (milliseconds
//! of the wall clock), `self`, `isCoordinator`, and while it coordinates `token` and `remainingMs`: for how long it
//! would go on if no renewal succeeded any more. The first line tells the bounds that the settings promise.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use baton_election::broadcast::error::RecvError;
use baton_election::{Candidate, Elector, Leadership, Options, Reason, Settings, store};
use baton_env::{Clock, SystemClock};
use serde_json::{Map, Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::signal::unix::{SignalKind, signal};

/// Prints what each hook is called with.
struct Printing {
    worker_id: String,
}

impl Candidate for Printing {
    async fn became(&self, leadership: Leadership) {
        self.print("became", &leadership);
    }

    async fn stopped(&self, reason: Reason) {
        print(&self.worker_id, None, json!({"event": "stopped", "reason": reason.as_str()}));
    }

    async fn work(&self, leadership: &Leadership) {
        self.print("work", leadership);
    }
}

impl Printing {
    fn print(&self, event: &str, leadership: &Leadership) {
        print(&self.worker_id, Some(leadership), json!({"event": event}));
    }
}

fn print(worker_id: &str, leadership: Option<&Leadership>, mut line: Value) {
    if let Some(members) = line.as_object_mut() {
        members.entry("workerId").or_insert_with(|| worker_id.into());
        members.insert("self".into(), worker_id.into());
        // The time comes first: whatever happens between here and there, `at + remainingMs` is never too late.
        members.insert("at".into(), (SystemClock::default().now().micros() / 1000).into());
        let remaining = leadership.map_or(Duration::ZERO, Leadership::remaining);
        members.insert("isCoordinator".into(), (!remaining.is_zero()).into());
        if let Some(leadership) = leadership {
            members.insert("token".into(), leadership.token().into());
            members.insert("remainingMs".into(), millis(remaining).into());
        }
    }
    let mut stdout = std::io::stdout().lock();
    // The parent process has closed the pipe.
    if writeln!(stdout, "{line}").and_then(|()| stdout.flush()).is_err() {
        std::process::exit(1);
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

struct Args {
    store: String,
    group: String,
    options: Options,
}

fn args() -> anyhow::Result<Args> {
    let mut places = Vec::new();
    let mut settings = serde_json::to_value(Settings::default())?;
    let mut options = Options::default();
    let mut given = std::env::args().skip(1);
    while let Some(arg) = given.next() {
        let mut value = || given.next().with_context(|| format!("{arg} wants a value"));
        match arg.as_str() {
            "--fast" => settings = serde_json::to_value(Settings::fast())?,
            "--no-probe" => options.probe = false,
            "--worker-id" => options.worker_id = Some(value()?),
            "--set" => {
                let pair = value()?;
                let (name, value) = pair.split_once('=').context("--set wants NAME=VALUE")?;
                let members: &mut Map<_, _> = settings.as_object_mut().context("settings")?;
                members.insert(name.to_owned(), serde_json::from_str(value)?);
            }
            _ if arg.starts_with("--") => bail!("{arg} is not known"),
            _ => places.push(arg),
        }
    }
    options.settings = serde_json::from_value(settings)?;
    let [store, group] = <[String; 2]>::try_from(places).ok().context("give STORE and GROUP")?;
    Ok(Args { store, group, options })
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let Args { store, group, mut options } = args()?;
    let (failover, handover) = (options.settings.failover_bound(0), options.settings.handover_bound(0));
    let store = store::open(&store).await?;
    let wall_ms = u64::try_from(SystemClock::default().now().micros() / 1000)?;
    let worker_id =
        options.worker_id.get_or_insert_with(|| baton_election::record::fresh_worker_id(wall_ms)).clone();
    let hooks = Printing { worker_id: worker_id.clone() };
    let elector = Arc::new(Elector::start(store, &group, options, hooks).await?);
    let mut events = elector.events();
    let bounds = json!({"failoverMs": millis(failover), "handoverMs": millis(handover)});
    print(&worker_id, None, json!({"event": "started", "group": group, "bounds": bounds}));

    let printer = {
        let (elector, worker_id) = (Arc::downgrade(&elector), worker_id.clone());
        tokio::spawn(async move {
            loop {
                let line = match events.recv().await {
                    Ok(event) => serde_json::to_value(event).unwrap_or_default(),
                    Err(RecvError::Lagged(missed)) => json!({"event": "missed", "events": missed}),
                    Err(RecvError::Closed) => return,
                };
                let leadership = elector.upgrade().and_then(|elector| elector.leadership());
                print(&worker_id, leadership.as_ref(), line);
            }
        })
    };

    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    loop {
        let line = tokio::select! {
            line = lines.next_line() => line?,
            _ = terminate.recv() => None,
            _ = interrupt.recv() => None,
        };
        let Some(line) = line else { break };
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some("stop"), _) => break,
            (Some("force"), desired) => {
                let outcome = elector.ensure_coordinator(true, desired).await;
                let error = outcome.err().map(|e| e.to_string());
                print(&worker_id, elector.leadership().as_ref(), json!({"event": "forced", "error": error}));
            }
            (Some("status"), _) => {
                let status = elector.status();
                let line = json!({"event": "status", "coordinator": status.coordinator});
                print(&worker_id, elector.leadership().as_ref(), line);
            }
            _ => print(&worker_id, None, json!({"event": "unknown-order", "order": line})),
        }
    }
    if let Some(elector) = Arc::into_inner(elector) {
        elector.stop().await;
    }
    printer.await?;
    print(&worker_id, None, json!({"event": "ended"}));
    // Reading stdin blocks a thread that nothing can wake.
    std::process::exit(0);
}
