//! The `baton` program: the server, and commands that talk to one.
//!
//! Every command is a file in `commands` with its arguments and a `run`. Always: results go to stdout and everything
//! else to stderr; a failure exits with a code other than 0 and says what to do next; a closed pipe is no failure.
//! Start at [`Command`].

mod bench;
mod commands;
mod failure;
mod log;
mod output;
mod secrets;
mod token;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use commands::{
    cluster, completions, data, dead_letters, elect, elections, job, migrate, nodes, pop, purge, push,
    queues, schedule, serve, shards, tail, token as token_command, worker, workers,
};

#[global_allocator]
static MEMORY: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Baton decides who does what, right now: queues, jobs, schedules, shards and elections in one server.
///
/// Without a command it runs the server, with its data in ./baton-data.
#[derive(Debug, Parser)]
#[command(name = "baton", version, propagate_version = true, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

const EXAMPLES: &str = "\
Examples:
  baton                                   serve on http://127.0.0.1:6632
  baton push orders '{\"number\": 1}'       push a message to the queue orders
  baton pop orders --wait 10              pop one, wait up to 10 seconds for it
  baton tail orders                       watch new messages without taking them from consumers
  baton queues                            list queues and how much waits in them
  baton job enqueue backup                enqueue a job
  baton worker --exec ./backup.sh         run a command for each job
  baton elect clean-up -- ./clean-up.sh   run a command on one machine at a time
  baton shards orders                     see which worker has which shard";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the server.
    Serve(serve::Args),
    /// Push messages to a queue.
    Push(push::Args),
    /// Pop messages from a queue.
    Pop(pop::Args),
    /// Watch the messages of a queue without taking them from consumers.
    Tail(tail::Args),
    /// List queues, or show one.
    Queues(queues::Args),
    /// Show the errors of dead letters, replay or remove them.
    DeadLetters(dead_letters::Args),
    /// Delete all messages of a queue.
    Purge(purge::Args),
    /// Enqueue, show, cancel and retry jobs.
    Job(job::Args),
    /// Manage schedules: enqueue jobs by a cron expression, at an interval, or once.
    Schedule(schedule::Args),
    /// Run a shell command for each job.
    Worker(worker::Args),
    /// List workers.
    Workers(workers::Args),
    /// Show the servers that share jobs, or drain one of them.
    Nodes(nodes::Args),
    /// Run a command only while this process coordinates a group.
    Elect(elect::Args),
    /// List election groups and their coordinators.
    Elections(elections::Args),
    /// List services and how their shards are spread, or show one.
    Shards(shards::Args),
    /// Show the servers of a cluster, their load and their affinities.
    Cluster(cluster::Args),
    /// Migrate the schema of a PostgreSQL store, or check whether it is up to date.
    Migrate(migrate::Args),
    /// Repair a data directory while no server uses it.
    Data(data::Args),
    /// Create a token that the server accepts.
    Token(token_command::Args),
    /// Measure a server.
    Bench(bench::Args),
    /// Print the completions for a shell.
    Completions(completions::Args),
}

fn main() -> ExitCode {
    let command = match Cli::parse().command {
        Some(command) => command,
        // Parsed, not defaulted: settings of the server may come from the environment.
        None => match Cli::parse_from(["baton", "serve"]).command {
            Some(command) => command,
            None => return ExitCode::FAILURE,
        },
    };
    match &command {
        Command::Serve(args) => secrets::hide_from_process_list(args),
        Command::Migrate(args) => secrets::hide_from_process_list(&args.serve),
        Command::Token(args) => secrets::hide_from_process_list(&args.serve),
        _ => {}
    }
    match run(command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure::report(&error),
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        match command {
            Command::Serve(args) => serve::run(args).await,
            Command::Push(args) => push::run(args).await,
            Command::Pop(args) => pop::run(args).await,
            Command::Tail(args) => tail::run(args).await,
            Command::Queues(args) => queues::run(args).await,
            Command::DeadLetters(args) => dead_letters::run(args).await,
            Command::Purge(args) => purge::run(args).await,
            Command::Job(args) => job::run(args).await,
            Command::Schedule(args) => schedule::run(args).await,
            Command::Worker(args) => worker::run(args).await,
            Command::Workers(args) => workers::run(args).await,
            Command::Nodes(args) => nodes::run(args).await,
            Command::Elect(args) => elect::run(args).await,
            Command::Elections(args) => elections::run(args).await,
            Command::Shards(args) => shards::run(args).await,
            Command::Cluster(args) => cluster::run(args).await,
            Command::Migrate(args) => migrate::run(args).await,
            Command::Data(args) => data::run(args).await,
            Command::Token(args) => token_command::run(&args),
            Command::Bench(args) => bench::run(args).await,
            Command::Completions(args) => completions::run(&args),
        }
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_commands_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn no_command_means_serve() {
        assert!(Cli::try_parse_from(["baton"]).unwrap().command.is_none());
        let served = Cli::try_parse_from(["baton", "serve"]).unwrap();
        assert!(matches!(served.command, Some(Command::Serve(_))));
    }
}
