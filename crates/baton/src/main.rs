//! The `baton` program: the server, and commands that talk to one.
//!
//! Every command is a file in `commands` with its arguments and a `run`. Always: results go to stdout and everything
//! else to stderr; a failure ends with a code other than 0 and says what to do next; a closed pipe is no failure.
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

/// Baton decides who does what, right now: queues for a fleet of services, in one server.
///
/// Without a command it serves, with everything in ./baton-data.
#[derive(Debug, Parser)]
#[command(name = "baton", version, propagate_version = true, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

const EXAMPLES: &str = "\
Examples:
  baton                                   serve on http://127.0.0.1:6632
  baton push orders '{\"number\": 1}'       put a message into the queue orders
  baton pop orders --wait 10              take one, wait up to 10 seconds for it
  baton tail orders                       watch what is pushed, without taking it from anybody
  baton queues                            list queues and how much waits in them
  baton job enqueue backup                enqueue a job
  baton worker --exec ./backup.sh         run a command for each job
  baton elect clean-up -- ./clean-up.sh   run a command on one machine at a time
  baton shards orders                     see which worker has which shard";

/// What to do.
#[derive(Debug, Subcommand)]
enum Command {
    /// Run the server.
    Serve(serve::Args),
    /// Put messages into a queue.
    Push(push::Args),
    /// Take messages from a queue.
    Pop(pop::Args),
    /// Watch the messages of a queue without taking them from anybody.
    Tail(tail::Args),
    /// List queues, or show one.
    Queues(queues::Args),
    /// Show what messages died of, push dead letters again, remove them.
    DeadLetters(dead_letters::Args),
    /// Delete all messages of a queue.
    Purge(purge::Args),
    /// Enqueue jobs, look at them, call them off, try them again.
    Job(job::Args),
    /// Make jobs come by themselves.
    Schedule(schedule::Args),
    /// Run a shell command for each job.
    Worker(worker::Args),
    /// List workers.
    Workers(workers::Args),
    /// Show the servers that share jobs, or have one hand over what it owns.
    Nodes(nodes::Args),
    /// Run a command only while this process coordinates a group.
    Elect(elect::Args),
    /// List election groups and who coordinates them.
    Elections(elections::Args),
    /// List services and how their shards are spread, or show one.
    Shards(shards::Args),
    /// Show the servers of a cluster, how busy they are, and who serves what.
    Cluster(cluster::Args),
    /// Bring the schema of a PostgreSQL up to date, or see whether it is.
    Migrate(migrate::Args),
    /// Mend a data directory while no server uses it.
    Data(data::Args),
    /// Make a token that the server accepts.
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
