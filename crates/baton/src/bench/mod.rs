//! `baton bench`: measures a server, and checks that it keeps its guarantees under load.
//!
//! One file per scenario, over shared producers and consumers (`traffic`, `flow`) that check every message (`check`).
//! Always: a figure is printed only when every message of its run came once and in order. Not here: other systems;
//! `bench/run` measures those with the same payloads and rules. Start at [`run`].

mod check;
mod drain;
mod fan_out;
mod flow;
mod histogram;
mod jobs;
mod many_waiters;
mod payload;
mod pipeline;
mod plot;
mod push;
mod report;
mod restart;
mod server;
mod traffic;
mod wake_up;
mod wire;

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use baton_env::Stopwatch;
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::task::AbortOnDropHandle;

use self::check::DeliveryCheck;
use self::flow::{Group, StopAfter};
use self::report::ReportRow;
use self::server::{Server, Usage};
use self::traffic::{Consumer, Load, Producer};
use crate::commands::start;
use crate::token::Token;

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Scenario {
    /// Everything below.
    All,
    /// Push only, over few and many partitions.
    Push,
    /// Push, pop and ack, with the latency of each message.
    Pipeline,
    /// Several groups that each get every message.
    FanOut,
    /// One message at a time to a pop that waits.
    WakeUp,
    /// Thousands of pops that wait, then one message for each.
    ManyWaiters,
    /// Pop and ack a stored backlog.
    Drain,
    /// Kill the server and restart it on its data.
    Restart,
    /// Enqueue, lease and report empty jobs.
    Jobs,
    /// Only the steady state of these.
    JobsSteady,
    /// The steady state beside many jobs scheduled for tomorrow.
    JobsTomorrow,
}

/// Measures a server, and checks that every message comes once and in order.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// What to measure.
    #[arg(value_enum, default_value = "all")]
    pub scenario: Scenario,
    /// A running server; without it, each measurement starts its own.
    #[arg(long)]
    pub url: Option<String>,
    /// Token that the server asks for
    #[arg(long, env = "BATON_TOKEN", hide_env_values = true)]
    pub token: Option<Token>,
    /// The process of that server, to report its memory and processor time.
    #[arg(long, requires = "url")]
    pub server_pid: Option<u32>,
    /// The data directory of started servers; should be on the disk that matters.
    #[arg(long, default_value = ".")]
    pub data: PathBuf,
    /// Stop each measurement after this many messages.
    #[arg(long)]
    pub messages: Option<u64>,
    /// Stop each measurement after this many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = start::seconds)]
    pub duration: Option<Duration>,
    /// Connections; half of them push where there is also something to pop.
    #[arg(long, value_delimiter = ',')]
    pub connections: Vec<usize>,
    /// Messages of one push and the most of one pop.
    #[arg(long, value_delimiter = ',')]
    pub batch: Vec<usize>,
    /// Partitions.
    #[arg(long, value_delimiter = ',')]
    pub partitions: Vec<usize>,
    /// Groups of the fan-out.
    #[arg(long, value_delimiter = ',')]
    pub groups: Vec<usize>,
    /// Pops that wait at once.
    #[arg(long)]
    pub waiters: Option<usize>,
    /// Samples of the wake-up.
    #[arg(long)]
    pub samples: Option<u32>,
    /// In the pipeline, spread each push over several partitions instead of sending it to one.
    #[arg(long)]
    pub scatter: bool,
    /// In push-only scenarios, send each push to one partition instead of spreading it.
    #[arg(long)]
    pub together: bool,
    /// Give each message a transaction id, so that the server checks for duplicates.
    #[arg(long)]
    pub ids: bool,
    /// The size of each payload.
    #[arg(long, default_value_t = 300)]
    pub payload_bytes: usize,
    /// Measure briefly, with fewer parameters.
    #[arg(long)]
    pub quick: bool,
    /// Print JSON lines instead of a table.
    #[arg(long)]
    pub json: bool,
    /// Write throughput and latency to an SVG file.
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
}

impl Args {
    /// The values of the command line, or else the defaults of the scenario.
    fn or<T: Copy>(given: &[T], usual: &[T], quick: &[T], is_quick: bool) -> Vec<T> {
        match given {
            [] if is_quick => quick.to_vec(),
            [] => usual.to_vec(),
            given => given.to_vec(),
        }
    }

    fn connections_or(&self, usual: &[usize], quick: &[usize]) -> Vec<usize> {
        Self::or(&self.connections, usual, quick, self.quick)
    }

    fn batch_or(&self, usual: &[usize], quick: &[usize]) -> Vec<usize> {
        Self::or(&self.batch, usual, quick, self.quick)
    }

    fn partitions_or(&self, usual: &[usize], quick: &[usize]) -> Vec<usize> {
        Self::or(&self.partitions, usual, quick, self.quick)
    }

    /// A number of messages, for scenarios that store before they measure.
    fn messages_or(&self, usual: u64, quick: u64) -> u64 {
        self.messages.unwrap_or(if self.quick { quick } else { usual })
    }

    /// When producers stop. A run that is bounded by messages alone has no time limit.
    fn until(&self) -> StopAfter {
        let usual = match (self.messages, self.quick) {
            (Some(_), _) => 86_400,
            (None, true) => 1,
            (None, false) => 5,
        };
        let duration = self.duration.unwrap_or(Duration::from_secs(usual));
        StopAfter { duration, messages: self.messages.unwrap_or(u64::MAX) }
    }

    fn server(&self) -> Result<Server> {
        match &self.url {
            Some(url) => Server::at(url, self.server_pid),
            None => Server::start(&self.data),
        }
    }
}

/// Measures until done or interrupted; then stops its own server and deletes its files.
pub async fn run(args: Args) -> Result<()> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    // As a task: on the main thread, every answer would wake two threads instead of one.
    let mut measuring = AbortOnDropHandle::new(tokio::spawn(measure(args)));
    let stopped = tokio::select! {
        done = &mut measuring => return done?,
        _ = interrupt.recv() => "interrupted",
        _ = terminate.recv() => "terminated",
    };
    measuring.abort();
    // It has ended when it was interrupted, or just before.
    let _ = measuring.await;
    bail!("{stopped} before all was measured");
}

/// Runs the scenarios and prints their results.
async fn measure(args: Args) -> Result<()> {
    ensure!(args.payload_bytes <= 1 << 19, "payloads of at most 512 KiB are measured");
    let numbers = [&args.connections, &args.batch, &args.partitions, &args.groups];
    ensure!(
        numbers.iter().all(|list| !list.contains(&0)),
        "connections, batches, partitions and groups start at 1"
    );
    if let Some(path) = &args.plot {
        // Fails now rather than after an hour of measuring.
        File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let scenarios = match args.scenario {
        Scenario::All => {
            Scenario::value_variants().iter().copied().filter(|one| *one != Scenario::All).collect()
        }
        one => vec![one],
    };
    let mut rows = Vec::new();
    for scenario in scenarios {
        if scenario == Scenario::Restart && args.url.is_some() && args.scenario == Scenario::All {
            continue;
        }
        let found = match scenario {
            Scenario::All => Vec::new(),
            Scenario::Push => push::run(&args).await?,
            Scenario::Pipeline => pipeline::run(&args).await?,
            Scenario::FanOut => fan_out::run(&args).await?,
            Scenario::WakeUp => wake_up::run(&args).await?,
            Scenario::ManyWaiters => many_waiters::run(&args).await?,
            Scenario::Drain => drain::run(&args).await?,
            Scenario::Restart => restart::run(&args).await?,
            Scenario::Jobs => jobs::run(&args).await?,
            Scenario::JobsSteady => jobs::steady_alone(&args).await?,
            Scenario::JobsTomorrow => jobs::tomorrow(&args).await?,
        };
        if args.json {
            for row in &found {
                println!("{}", serde_json::to_string(row)?);
            }
        }
        rows.extend(found);
    }
    if !args.json {
        println!("{}", report::table(&rows));
    }
    if let Some(path) = &args.plot {
        plot::write(path, &rows)?;
    }
    Ok(())
}

/// A running measurement: its server, its load and the server's usage at its start.
struct Measurement {
    server: Server,
    load: Arc<Load>,
    watch: Stopwatch,
    before: Option<Usage>,
    row: ReportRow,
}

/// The parameters of one measurement.
#[derive(Clone, Copy)]
struct Shape {
    scenario: &'static str,
    connections: usize,
    producers: usize,
    batch: usize,
    partitions: usize,
    scatter: bool,
}

impl Measurement {
    /// Gets a server and a fresh queue.
    fn prepare(args: &Args, shape: Shape) -> Result<Self> {
        let server = args.server()?;
        let load = Load {
            host: server.host().to_owned(),
            token: args.token.clone(),
            queue: Load::fresh_queue(),
            producers: shape.producers,
            partitions: shape.partitions,
            batch: shape.batch,
            payload_bytes: args.payload_bytes,
            scatter: shape.scatter,
            ids: args.ids,
            clock: Stopwatch::start(),
        };
        let row = ReportRow {
            system: "baton",
            scenario: shape.scenario,
            connections: shape.connections,
            batch: Some(shape.batch),
            partitions: Some(shape.partitions),
            scatter: Some(shape.scatter),
            payload_bytes: args.payload_bytes,
            ..ReportRow::default()
        };
        let before = server.usage();
        Ok(Self { server, load: Arc::new(load), watch: Stopwatch::start(), before, row })
    }

    async fn producers(&self) -> Result<Vec<Producer>> {
        let mut producers = Vec::new();
        for number in 0..self.load.producers {
            producers.push(Producer::open(self.load.clone(), number).await?);
        }
        Ok(producers)
    }

    /// A group of `count` consumers that has received nothing yet.
    async fn group(&self, count: usize, name: &str) -> Result<Group> {
        self.group_with(&self.load, count, name).await
    }

    /// A group with a load of its own.
    async fn group_with(&self, load: &Arc<Load>, count: usize, name: &str) -> Result<Group> {
        let mut consumers = Vec::new();
        for _ in 0..count {
            consumers.push(Consumer::open(load.clone(), name).await?);
        }
        Ok(Group { consumers, seen: Arc::new(DeliveryCheck::new(self.load.producers, self.load.partitions)) })
    }

    /// Checks that a group received everything that was sent, and that nothing comes again.
    async fn verify(&self, seen: &DeliveryCheck, group: &str, sent: u64) -> Result<()> {
        seen.verify(sent)?;
        traffic::expect_nothing(&self.load, group).await
    }

    /// Starts the measurement.
    fn start(&mut self) {
        self.before = self.server.usage();
        self.watch = Stopwatch::start();
    }

    /// Ends the measurement: `messages` is the base of the rate.
    fn stop(&mut self, messages: u64) {
        let seconds = self.watch.elapsed().as_secs_f64();
        self.row.messages = messages;
        self.row.seconds = seconds;
        self.row.messages_per_second = Some(messages as f64 / seconds);
        if let Some((before, after)) = self.before.zip(self.server.usage()) {
            self.row.server_cpu_us_per_message =
                Some((after.cpu - before.cpu) * 1e6 / messages.max(1) as f64);
            self.row.server_memory_bytes = Some(after.memory_bytes);
        }
    }

    /// The row, after all checks.
    fn verified(mut self) -> Result<ReportRow> {
        self.server.ensure_alive()?;
        self.row.verified = true;
        Ok(self.row)
    }
}

/// A progress bar; hidden when the output is not a terminal.
fn progress(what: String, length: Option<u64>) -> ProgressBar {
    let bar = match length {
        Some(length) => ProgressBar::new(length),
        None => ProgressBar::no_length(),
    };
    let style = ProgressStyle::with_template("{msg} {wide_bar} {human_pos} {per_sec} {elapsed}");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())).with_message(what)
}
