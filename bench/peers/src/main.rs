//! Measures the peers the way `baton bench` measures Baton: the same payloads, batches, connections, window and
//! checks, each system through a native client of its own. One JSON line per run; `bench/run` starts the
//! servers and puts the lines together.

mod check;
mod cpu;
mod histogram;
mod limit;
mod message;
mod nats;
mod pipeline;
mod postgres;
mod redis;
mod system;
mod wakeup;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{Parser, Subcommand, ValueEnum};

#[derive(Parser)]
#[command(about)]
struct Args {
    /// The name under which the line is reported.
    #[arg(long, global = true, default_value = "limit")]
    system: String,
    #[command(subcommand)]
    what: What,
}

#[derive(Clone, Copy, ValueEnum)]
enum Peer {
    Nats,
    Redis,
    Postgres,
    PostgresJobs,
}

#[derive(Subcommand)]
enum What {
    /// Push, deliver, acknowledge.
    Pipeline {
        peer: Peer,
        #[arg(long)]
        url: String,
        #[arg(long, default_value_t = 8)]
        connections: usize,
        #[arg(long, default_value_t = 1)]
        batch: usize,
        #[arg(long, default_value_t = 5.0)]
        duration: f64,
        #[arg(long, default_value_t = 300)]
        payload_bytes: usize,
        /// NATS: send a batch as one atomic batch.
        #[arg(long)]
        atomic: bool,
        /// NATS: a subject and a consumer with cumulative acks for each pair of connections.
        #[arg(long)]
        lanes: bool,
        #[arg(long)]
        server_pid: Option<u32>,
    },
    /// One message at a time to an idle consumer.
    WakeUp {
        peer: Peer,
        #[arg(long)]
        url: String,
        #[arg(long, default_value_t = 200)]
        samples: u32,
        #[arg(long, default_value_t = 20)]
        pause_ms: u64,
        #[arg(long, default_value_t = 300)]
        payload_bytes: usize,
    },
    /// PostgreSQL: insert and nothing else.
    Insert {
        #[arg(long)]
        url: String,
        #[arg(long, default_value_t = 8)]
        connections: usize,
        #[arg(long, default_value_t = 1)]
        batch: usize,
        #[arg(long, default_value_t = 5.0)]
        duration: f64,
        #[arg(long, default_value_t = 300)]
        payload_bytes: usize,
    },
    /// Append and fdatasync.
    Limit {
        #[arg(long)]
        directory: PathBuf,
        #[arg(long, default_value_t = 1)]
        group: usize,
        #[arg(long, default_value_t = 5.0)]
        duration: f64,
        #[arg(long, default_value_t = 300)]
        payload_bytes: usize,
    },
}

#[tokio::main]
async fn main() -> Result<()> {
    // As a task: on the main thread, every answer would wake two threads instead of one.
    tokio::spawn(run(Args::parse())).await?
}

async fn run(args: Args) -> Result<()> {
    let mut line = match args.what {
        What::Pipeline {
            peer,
            url,
            connections,
            batch,
            duration,
            payload_bytes,
            atomic,
            lanes,
            server_pid,
        } => {
            let duration = Duration::from_secs_f64(duration);
            let lanes = if lanes { pipeline::producers(connections) } else { 0 };
            let options = pipeline::Options { connections, batch, duration, payload_bytes, server_pid };
            match peer {
                Peer::Nats => pipeline::run(nats::Nats { url, batch, atomic, lanes }, &options).await?,
                Peer::Redis => pipeline::run(redis::Redis::new(&url)?, &options).await?,
                Peer::Postgres => pipeline::run(postgres::Postgres { url, of_jobs: false }, &options).await?,
                Peer::PostgresJobs => {
                    pipeline::run(postgres::Postgres { url, of_jobs: true }, &options).await?
                }
            }
        }
        What::WakeUp { peer, url, samples, pause_ms, payload_bytes } => {
            let options = wakeup::Options { samples, pause: Duration::from_millis(pause_ms), payload_bytes };
            match peer {
                Peer::Nats => {
                    wakeup::run(nats::Nats { url, batch: 1, atomic: false, lanes: 0 }, &options).await?
                }
                Peer::Redis => wakeup::run(redis::Redis::new(&url)?, &options).await?,
                Peer::Postgres => wakeup::run(postgres::Postgres { url, of_jobs: false }, &options).await?,
                Peer::PostgresJobs => {
                    wakeup::run(postgres::Postgres { url, of_jobs: true }, &options).await?
                }
            }
        }
        What::Insert { url, connections, batch, duration, payload_bytes } => {
            let duration = Duration::from_secs_f64(duration);
            postgres::insert(&url, connections, batch, duration, payload_bytes).await?
        }
        What::Limit { directory, group, duration, payload_bytes } => {
            limit::run(&directory, group, Duration::from_secs_f64(duration), payload_bytes)?
        }
    };
    line["system"] = args.system.into();
    println!("{line}");
    Ok(())
}
