//! `baton job`: enqueues, shows, cancels and retries jobs.

mod enqueue;
mod list;
mod logs;
mod show;

use baton_client::Client;

use super::target::Target;
use crate::output::Output;

/// Enqueue, show, cancel and retry jobs.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  baton job enqueue email.send '{\"to\": \"a@example.com\"}'
  baton job enqueue report --delay 60 --wait 300   wait until it has ended
  baton job list --state failed
  baton job show 0199…                             with its attempts
  baton job logs -f 0199…                          follow the log
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
    /// Cancel a job.
    Cancel(CancelArgs),
    /// Retry a job that has ended.
    Retry(RetryArgs),
}

#[derive(Debug, clap::Args)]
struct CancelArgs {
    /// The job's id
    id: String,

    /// The reason, which the job's history keeps
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

pub async fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::Enqueue(args) => enqueue::run(args).await,
        Command::List(args) => list::run(args).await,
        Command::Show(args) => show::run(args).await,
        Command::Logs(args) => logs::run(args).await,
        Command::Cancel(args) => {
            let client = args.target.client()?;
            let answer = client.jobs().cancel(&args.id, args.reason.as_deref(), args.force).await?;
            print_state(&args.target, &answer)
        }
        Command::Retry(args) => {
            let client: Client = args.target.client()?;
            let answer = client.jobs().retry(&args.id).await?;
            print_state(&args.target, &answer)
        }
    }
}

/// Prints the state of a job.
fn print_state(target: &Target, answer: &serde_json::Value) -> anyhow::Result<()> {
    let mut output = Output::new(target.json);
    if output.is_json() {
        output.json(answer)?;
    } else {
        output.text(super::table::text(&answer["state"]))?;
    }
    output.flush()?;
    Ok(())
}
