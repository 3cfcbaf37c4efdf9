//! `baton tail`: watches a queue.
//!
//! It reads as a consumer group of its own, created for this run and deleted at its end, and acks at delivery. So it
//! takes nothing from other consumers and holds no lease.

use std::time::Duration;

use baton_client::{Error, Queue, Subscription, limits};
use tokio::signal::unix::{SignalKind, signal};

use super::target::Target;
use super::{retry_until_answered, start};
use crate::output::{self, Output};

/// How long one poll waits. Short enough to notice a silently broken connection soon.
const WAIT: Duration = Duration::from_secs(20);

/// Messages of one poll.
const BATCH: u32 = 500;

/// How long the deletion of the group may take: a left-over group is harmless, a hanging terminal is not.
const DELETE_TIMEOUT: Duration = Duration::from_secs(5);

/// Watch the messages of a queue without taking them from consumers.
///
/// Reads as a consumer group of its own, which is deleted at the end. Ends with Ctrl-C.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  baton tail orders                             from now on
  baton tail orders --from all                  from the oldest message on
  baton tail orders --from 2026-11-15T18:00:00Z from this time on
  baton tail orders --json | jq .data           payloads alone")]
pub struct Args {
    /// The queue
    queue: String,

    /// Watch this partition only
    #[arg(long, short, value_name = "NAME")]
    partition: Option<String>,

    /// Where to start: `new`, `all` or a time
    #[arg(long, value_name = "WHEN", default_value = "new", value_parser = start::subscription)]
    from: Subscription,

    /// End after this many messages
    #[arg(long, short = 'n', value_name = "COUNT")]
    limit: Option<u64>,

    #[command(flatten)]
    target: Target,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let group = format!("tail-{}", baton_env::fresh_uuid());
    let mut queue = args.target.client()?.queue(args.queue.as_str()).group(group);
    if let Some(partition) = &args.partition {
        queue = queue.partition(partition.as_str());
    }
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let outcome = tokio::select! {
        outcome = follow(&args, &queue) => outcome,
        () = output::reader_gone() => Ok(()),
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
    };
    // Without a first response there is no group to delete.
    let reached =
        !outcome.as_ref().is_err_and(|e| e.downcast_ref().is_some_and(Error::is_connection_refused));
    if reached {
        delete_group(&queue).await;
    }
    outcome
}

async fn follow(args: &Args, queue: &Queue) -> anyhow::Result<()> {
    let mut output = Output::new(args.target.json);
    let pop = queue
        .pop()
        .auto_ack(true)
        .subscription(args.from)
        .batch(BATCH)
        .partitions(limits::POP_PARTITIONS_MAX);
    let mut left = args.limit.unwrap_or(u64::MAX);
    // Does not wait, so that a missing server is an error at once and the group starts now.
    let mut messages = pop.send().await?;
    if !output.is_json() {
        eprintln!("watching {}; Ctrl-C ends it", args.queue);
    }
    let pop = pop.wait(WAIT);
    loop {
        for message in messages.iter().take(usize::try_from(left).unwrap_or(usize::MAX)) {
            output.message(message)?;
        }
        output.flush()?;
        left = left.saturating_sub(messages.len() as u64);
        if left == 0 {
            return Ok(());
        }
        messages = retry_until_answered(|| pop.send()).await?;
    }
}

/// Deletes the group.
async fn delete_group(queue: &Queue) {
    let farewell = tokio::time::timeout(DELETE_TIMEOUT, queue.delete_group()).await;
    if !matches!(farewell, Ok(Ok(()))) {
        eprintln!("the group of this watch could not be deleted; it stays behind in {}", queue.name());
    }
}
