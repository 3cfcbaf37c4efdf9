//! `baton serve`: the server.

/// Settings of the server.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Serves until told to stop.
pub async fn run(_args: Args) -> anyhow::Result<()> {
    anyhow::bail!("this build has no server yet")
}
