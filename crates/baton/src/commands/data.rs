//! `baton data`: repairs the data directory of the embedded store while no server uses it.

use anyhow::bail;
use baton_store::Store;
use baton_store_embedded::{EmbeddedStore, Options};

use super::serve;

/// Repair a data directory while no server uses it.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Reset the stored time to this machine's clock.
    ///
    /// Leases and delays of messages that end later than the clock says end now. Messages, timers, locks and records
    /// keep their times.
    ResetClock(serve::Args),
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let Command::ResetClock(args) = args.command;
    let settings = args.settings()?;
    if !settings.is_embedded() {
        bail!("only the embedded store keeps a time of its own; PostgreSQL's is the database's");
    }
    let options = Options { resets_clock: true, ..Options::new(&settings.data) };
    let store = EmbeddedStore::open(options)?;
    let now = store.now();
    store.close().await?;
    println!("the store's time is {now}");
    Ok(())
}
