//! `baton data`: the data directory of the embedded store, mended while no server uses it.

use anyhow::bail;
use baton_store::Store;
use baton_store_embedded::{EmbeddedStore, Options};

use super::serve;

/// Mend a data directory while no server uses it.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Take this machine's clock for right, however far it is from the time that is stored.
    ///
    /// Leases and delays of messages that end later than the clock says end now. Messages, timers, locks and records keep
    /// the times that they were given.
    ResetClock(serve::Args),
}

/// Does it.
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
