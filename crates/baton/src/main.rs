//! Baton.

mod bench;

use clap::Parser;

#[derive(Parser)]
enum Command {
    /// Measures a server.
    Bench(bench::Args),
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let Command::Bench(args) = Command::parse();
    bench::run(args).await
}
