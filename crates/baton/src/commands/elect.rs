//! `baton elect`: runs a command only while this process coordinates a group.
//!
//! Always: the command gets TERM early enough that it can be killed before the lease expires, so the next
//! coordinator's command never overlaps with it. The process resigns only after all processes of the command have
//! ended. A supervisor cannot end a command while the supervisor itself is frozen or killed: the command should pass
//! its token, BATON_ELECTION_TOKEN, to the resource that it changes. Start at [`run`].

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use baton_election::broadcast::error::RecvError;
use baton_election::record::Phase;
use baton_election::store::{self, HttpStore, Store};
use baton_election::{Candidate, Elector, Event, Leadership, Options, Reason, Settings};
use rustix::process::Signal;
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Mutex, mpsc};

use super::process_group::ProcessGroup;
use super::target::Target;

/// The default time that a command gets to end.
const GRACE: Duration = Duration::from_secs(10);

/// The exit code when the command could not be started, as in a shell.
const NOT_STARTED: i32 = 127;

/// Run a command only while this process coordinates a group.
///
/// Start the same command on several machines: one of them runs it, and when that one ends, stops or loses its lease,
/// the next one does. The command finds its fencing token in BATON_ELECTION_TOKEN. When the command ends by itself,
/// baton elect exits with its exit code.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  baton elect clean-up -- ./clean-up.sh                       on the server at BATON_URL
  baton elect clean-up --store file:///srv/elections -- ./clean-up.sh
  baton elect clean-up --store postgres://db/app --set heartbeatInterval=5000 --set workerTimeout=20000 -- ./run")]
pub struct Args {
    /// The group
    group: String,

    /// Elect on this store instead of a server: file:///directory, postgres://…, s3://bucket/prefix, …
    #[arg(long, value_name = "URL", env = "BATON_ELECTION_STORE")]
    store: Option<String>,

    /// This candidate's id; random by default
    #[arg(long, value_name = "ID")]
    worker_id: Option<String>,

    /// Seconds that the command gets to end before it is killed; at most a quarter of the lease, 10 by default unless
    /// that is more
    #[arg(long, value_name = "SECONDS")]
    grace: Option<f64>,

    /// Change a setting, for instance heartbeatInterval=5000 (milliseconds)
    #[arg(long = "set", value_name = "NAME=VALUE")]
    set: Vec<String>,

    /// Settings for failover within seconds, for a store that is near
    #[arg(long)]
    fast: bool,

    #[command(flatten)]
    target: Target,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Takes part until the command ends or a signal comes.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let settings = settings(&args)?;
    let grace = grace(args.grace, &settings)?;
    // Checked now rather than after the election.
    if let Err(problem) = check_command(&args.command[0]) {
        eprintln!("error: cannot start {:?}: {problem}", args.command[0]);
        std::process::exit(NOT_STARTED);
    }
    let client = args.target.client()?;
    let store: Arc<dyn Store> = match &args.store {
        Some(url) => store::open(url).await?,
        None => {
            // A server that is missing at the start is an error; one that goes away later is waited for.
            client.health().await?;
            Arc::new(HttpStore::new(client))
        }
    };
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (ended, mut end) = mpsc::channel(1);
    let supervisor = Supervisor {
        group: args.group.clone(),
        command: args.command,
        grace,
        ended,
        running: Mutex::default(),
    };
    let mut progress = Progress { settings: settings.clone(), worker_id: String::new(), ready: false };
    let options = Options { settings, worker_id: args.worker_id, ..Options::default() };
    let elector = Elector::start(store, &args.group, options, supervisor).await?;
    let mut events = elector.events();
    progress.worker_id = elector.worker_id().to_owned();
    eprintln!("taking part in {} as {}: {}", args.group, elector.worker_id(), progress.first());
    let watching = async {
        loop {
            match events.recv().await {
                Ok(event) => {
                    if let Some(line) = progress.line(event) {
                        eprintln!("{line}");
                    }
                }
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => std::future::pending().await,
            }
        }
    };
    let code = tokio::select! {
        () = watching => 1,
        code = end.recv() => code.unwrap_or(1),
        _ = terminate.recv() => 0,
        _ = interrupt.recv() => 0,
    };
    elector.stop().await;
    if code != 0 {
        std::process::exit(code);
    }
    Ok(())
}

fn settings(args: &Args) -> anyhow::Result<Settings> {
    let mut settings = serde_json::to_value(if args.fast { Settings::fast() } else { Settings::default() })?;
    for pair in &args.set {
        let Some((name, value)) = pair.split_once('=') else { bail!("--set {pair}: give NAME=VALUE") };
        let value = serde_json::from_str(value)
            .with_context(|| format!("--set {pair}: the value is not a number"))?;
        if settings.get(name).is_none() {
            bail!("--set {pair}: there is no setting of this name");
        }
        settings[name] = value;
    }
    Ok(serde_json::from_value(settings)?)
}

/// How long the command gets to end, which must be over before another coordinator starts.
fn grace(given: Option<f64>, settings: &Settings) -> anyhow::Result<Duration> {
    let most = settings.trusted_lease() / 4;
    let Some(seconds) = given else { return Ok(GRACE.min(most)) };
    let grace = Duration::try_from_secs_f64(seconds).context("--grace")?;
    if grace > most {
        let timeout =
            settings.worker_timeout.mul_f64(grace.as_secs_f64() / most.as_secs_f64()).as_millis() + 1;
        bail!(
            "--grace {seconds} is more than a quarter of the lease, so the command could outlive it: give at most \
             {:.2}, or a longer lease with --set workerTimeout={timeout}",
            most.as_secs_f64()
        );
    }
    Ok(grace)
}

/// Finds the program as a shell would. Returns what is wrong with it.
fn check_command(program: &str) -> Result<(), String> {
    let is_executable = |path: &Path| {
        path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    let path = Path::new(program);
    if program.contains('/') {
        return match path.metadata() {
            Err(error) => Err(error.to_string()),
            Ok(_) if is_executable(path) => Ok(()),
            Ok(_) => Err("it is not an executable file".into()),
        };
    }
    let paths = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&paths).any(|directory| is_executable(&directory.join(program))) {
        return Ok(());
    }
    Err("there is no such program on PATH".into())
}

/// Prints what the process waits for.
struct Progress {
    settings: Settings,
    worker_id: String,
    /// Whether the cold start is over.
    ready: bool,
}

impl Progress {
    fn first(&self) -> String {
        let settings = &self.settings;
        if !settings.enable_coordinator || settings.skip_cold_start {
            return "electing at once".into();
        }
        format!("watching for a coordinator for {:?}", settings.cold_start_observation_window)
    }

    fn line(&mut self, event: Event) -> Option<String> {
        match event {
            Event::StoreFailing { error, .. } => Some(format!("the store fails, trying again: {error}")),
            Event::ColdStartPhaseChanged { phase, .. } => {
                self.ready |= phase == Phase::Ready;
                (phase == Phase::Election).then(|| "no coordinator: electing".into())
            }
            Event::CoordinatorElected { worker_id, epoch_number, .. } if worker_id == self.worker_id => {
                let delay = self.settings.cold_start_preparation_delay;
                (!self.ready)
                    .then(|| format!("elected under token {epoch_number}: the command begins in {delay:?}"))
            }
            Event::CoordinatorElected { worker_id, epoch_number, .. } => Some(format!(
                "{worker_id} coordinates under token {epoch_number}: waiting until it stops, or is silent for {:?}",
                self.settings.worker_timeout
            )),
            _ => None,
        }
    }
}

/// Runs the command while this process coordinates.
struct Supervisor {
    group: String,
    command: Vec<String>,
    grace: Duration,
    /// The exit code of a command that ended by itself.
    ended: mpsc::Sender<i32>,
    running: Mutex<Option<(Child, ProcessGroup)>>,
}

impl Candidate for Supervisor {
    async fn became(&self, leadership: Leadership) {
        let mut running = self.running.lock().await;
        let (child, group) = match self.spawn(&leadership) {
            Ok(child) => {
                let group = ProcessGroup::from_leader(&child);
                running.insert((child, group))
            }
            Err(error) => {
                eprintln!("error: cannot start {:?}: {error}", self.command[0]);
                let _ = self.ended.send(NOT_STARTED).await;
                return std::future::pending().await;
            }
        };
        eprintln!("coordinating {} under token {}", self.group, leadership.token());
        loop {
            // Early enough that killing it at the deadline is no surprise.
            let left = leadership.remaining();
            if left <= self.grace {
                group.signal(Signal::TERM);
                break;
            }
            tokio::select! {
                status = child.wait() => {
                    // Its remaining processes must not run without the lease: dropping the group kills them.
                    *running = None;
                    let _ = self.ended.send(status.map_or(1, code)).await;
                    return std::future::pending().await;
                }
                () = baton_env::sleep((left - self.grace).min(Duration::from_secs(60))) => {}
            }
        }
        std::future::pending().await
    }

    async fn stopped(&self, reason: Reason) {
        eprintln!("no longer coordinating {}: {}", self.group, reason.as_str());
        let Some((mut child, mut group)) = self.running.lock().await.take() else { return };
        // After a lost lease the command gets no time to end.
        let grace = match reason {
            Reason::Stopped | Reason::Requested | Reason::HandedOver => self.grace,
            _ => Duration::ZERO,
        };
        let _ = group.stop(&mut child, grace).await;
    }
}

impl Supervisor {
    fn spawn(&self, leadership: &Leadership) -> std::io::Result<Child> {
        let (program, arguments) = self.command.split_first().map_or(("", &[][..]), |(p, a)| (p.as_str(), a));
        Command::new(program)
            .args(arguments)
            .env("BATON_ELECTION_TOKEN", leadership.token().to_string())
            .env("BATON_ELECTION_GROUP", &self.group)
            .stdin(Stdio::null())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
    }
}

/// The exit code, as a shell reports it.
fn code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn parsed(words: &[&str]) -> anyhow::Result<Settings> {
        settings(&Cli::try_parse_from(words)?.args)
    }

    #[test]
    fn settings_are_given_by_name_and_checked() {
        let given = parsed(&["elect", "g", "--set", "heartbeatInterval=5000", "--", "true"]).unwrap();
        assert_eq!(given.heartbeat_interval, Duration::from_secs(5));
        assert!(parsed(&["elect", "g", "--set", "heartbeat=5000", "--", "true"]).is_err());
        assert!(parsed(&["elect", "g", "--set", "heartbeatInterval=soon", "--", "true"]).is_err());
        assert!(parsed(&["elect", "g"]).is_err());
    }

    #[test]
    fn a_grace_that_the_lease_does_not_leave_is_refused_with_advice() {
        assert_eq!(grace(None, &Settings::default()).unwrap(), GRACE);
        assert_eq!(grace(Some(20.0), &Settings::default()).unwrap(), Duration::from_secs(20));
        // The default gives way to settings; what was asked for does not, in silence.
        assert_eq!(grace(None, &Settings::fast()).unwrap(), Settings::fast().trusted_lease() / 4);
        let refused = grace(Some(30.0), &Settings::default()).unwrap_err().to_string();
        assert!(refused.contains("at most 22.05"), "{refused}");
        let advised = refused.rsplit_once("workerTimeout=").unwrap().1;
        let longer = Duration::from_millis(advised.parse().unwrap());
        let settings = Settings { worker_timeout: longer, ..Settings::default() };
        assert_eq!(grace(Some(30.0), &settings).unwrap(), Duration::from_secs(30));
    }
}
