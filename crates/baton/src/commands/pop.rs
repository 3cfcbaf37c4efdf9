//! `baton pop`: pops messages, prints them, and then acks them.

use std::time::Duration;

use anyhow::bail;
use baton_client::{AckStatus, Client, Message, Subscription};

use super::start;
use super::target::Target;
use crate::output::Output;

/// Pop messages from a queue.
///
/// Messages are printed before they are acked, so that none is lost on the way to the screen.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  baton pop orders                              pop one message, if there is one
  baton pop orders --batch 10 --wait 30         pop up to ten, wait for the first
  baton pop orders --group billing --no-ack     peek: they are delivered again when their lease ends
  baton pop orders --json | jq .data            payloads alone")]
pub struct Args {
    /// The queue
    queue: String,

    /// Pop from this partition only
    #[arg(long, short, value_name = "NAME")]
    partition: Option<String>,

    /// Pop for this consumer group; without it all consumers share the messages as one group
    #[arg(long, short, value_name = "NAME")]
    group: Option<String>,

    /// Pop up to this many messages
    #[arg(long, short, value_name = "COUNT", default_value_t = 1)]
    batch: u32,

    /// Pop from up to this many partitions
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    partitions: u32,

    /// Wait this long for a message when there is none
    #[arg(long, short, value_name = "SECONDS", default_value = "0", value_parser = start::seconds)]
    wait: Duration,

    /// Ack the printed messages (the default)
    #[arg(long, overrides_with = "no_ack")]
    ack: bool,

    /// Do not ack: the messages are delivered again when their lease ends
    #[arg(long, overrides_with = "ack")]
    no_ack: bool,

    /// Where a group that is new to the queue starts: `new`, `all` or a time
    #[arg(long, value_name = "WHEN", default_value = "all", value_parser = start::subscription)]
    subscription: Subscription,

    #[command(flatten)]
    target: Target,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let client = args.target.client()?;
    let mut queue = client.queue(args.queue.as_str());
    if let Some(partition) = &args.partition {
        queue = queue.partition(partition.as_str());
    }
    if let Some(group) = &args.group {
        queue = queue.group(group.as_str());
    }
    let pop = queue
        .pop()
        .batch(args.batch)
        .partitions(args.partitions)
        .wait(args.wait)
        .subscription(args.subscription);
    let messages = pop.send().await?;
    let mut output = Output::new(args.target.json);
    for message in &messages {
        output.message(message)?;
    }
    output.flush()?;
    if messages.is_empty() && !output.is_json() {
        eprintln!("no message in {}", args.queue);
    }
    if args.no_ack {
        return Ok(());
    }
    ack(&client, &messages).await
}

async fn ack(client: &Client, messages: &[Message]) -> anyhow::Result<()> {
    let results = client.ack_batch(messages, AckStatus::Completed).await?;
    let refused: Vec<_> = results.iter().filter(|result| !result.success).collect();
    if let Some(first) = refused.first() {
        let why = first.error.as_deref().unwrap_or("no explanation");
        bail!(
            "{} of {} acks were refused ({why}): those messages will come again",
            refused.len(),
            results.len()
        );
    }
    Ok(())
}
