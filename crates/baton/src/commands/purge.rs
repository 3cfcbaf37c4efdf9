//! `baton purge`: deletes all messages of a queue.

use anyhow::bail;
use serde_json::json;

use super::target::Target;
use crate::output::Output;

/// Delete all messages of a queue; its options, groups and dead letters stay.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  baton purge orders                                    show what would be deleted
  baton purge orders --confirm orders                   delete all messages
  baton purge orders --partition ann --confirm orders   only those of one partition")]
pub struct Args {
    /// The queue
    queue: String,

    /// Only the messages of this partition
    #[arg(long, value_name = "NAME")]
    partition: Option<String>,

    /// The name of the queue again, to confirm: purged messages cannot be restored
    #[arg(long, value_name = "QUEUE")]
    confirm: Option<String>,

    #[command(flatten)]
    target: Target,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let client = args.target.client()?;
    let mut queue = client.queue(args.queue.as_str());
    if let Some(partition) = &args.partition {
        queue = queue.partition(partition.as_str());
    }
    match &args.confirm {
        Some(name) if *name == args.queue => {}
        Some(name) => bail!("--confirm {name} is not the queue {}; nothing was deleted", args.queue),
        None => {
            let detail = queue.detail().await?;
            let of_partition =
                |name: &String| detail.partitions.iter().find(|partition| partition.name == *name);
            let total = match &args.partition {
                Some(name) => of_partition(name).map_or(0, |partition| partition.stats.total),
                None => detail.totals.total,
            };
            bail!("this deletes {total} messages for good; repeat it with --confirm {}", args.queue)
        }
    }
    let partitions = queue.purge().await?;
    let mut output = Output::new(args.target.json);
    if output.is_json() {
        output.json(&json!({"queue": args.queue, "partitionsCleared": partitions}))?;
    } else {
        output.text(format_args!("purged {}: {partitions} partitions are empty", args.queue))?;
    }
    Ok(output.flush()?)
}
