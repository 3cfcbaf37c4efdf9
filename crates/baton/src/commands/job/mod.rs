//! `baton job`: enqueue jobs, look at them, call them off, try them again.

mod enqueue;
mod list;
mod logs;
mod show;

use baton_client::Client;

use super::target::Target;
use crate::output::Output;

/// Enqueue jobs, look at them, call them off, try them again.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  baton job enqueue email.send '{\"to\": \"a@example.com\"}'
  baton job enqueue report --delay 60 --wait 300   and wait for its end
  baton job list --state failed
  baton job show 0199…                             with its attempts
  baton job logs -f 0199…                          as they come
  baton job cancel 0199… --reason 'not needed'
  baton job retry 0199…")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Enqueue a job.
    Enqueue(enqueue::Args),
    /// List jobs, the newest first.
    List(list::Args),
    /// Show a job with its attempts.
    Show(show::Args),
    /// Print the log of a job.
    Logs(logs::Args),
    /// Call a job off.
    Cancel(CancelArgs),
    /// Try a job again that is at its end.
    Retry(RetryArgs),
}

#[derive(Debug, clap::Args)]
struct CancelArgs {
    /// The job's id
    id: String,

    /// Why, for whoever looks at it later
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    /// Do not wait for the worker to stop
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    target: Target,
}

#[derive(Debug, clap::Args)]
struct RetryArgs {
    /// The job's id
    id: String,

    #[command(flatten)]
    target: Target,
}

/// Does it.
pub async fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::Enqueue(args) => enqueue::run(args).await,
        Command::List(args) => list::run(args).await,
        Command::Show(args) => show::run(args).await,
        Command::Logs(args) => logs::run(args).await,
        Command::Cancel(args) => {
            let client = args.target.client()?;
            let answer = client.jobs().cancel(&args.id, args.reason.as_deref(), args.force).await?;
            tell(&args.target, &answer)
        }
        Command::Retry(args) => {
            let client: Client = args.target.client()?;
            let answer = client.jobs().retry(&args.id).await?;
            tell(&args.target, &answer)
        }
    }
}

/// Prints where a job stands now.
fn tell(target: &Target, answer: &serde_json::Value) -> anyhow::Result<()> {
    let mut output = Output::new(target.json);
    if output.is_json() {
        output.json(answer)?;
    } else {
        output.text(super::table::text(&answer["state"]))?;
    }
    output.flush()?;
    Ok(())
}
