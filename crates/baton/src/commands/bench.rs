//! `baton bench`: measures a server.

/// What to measure.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Measures and prints.
pub async fn run(_args: Args) -> anyhow::Result<()> {
    anyhow::bail!("this build has no bench yet")
}
