//! `baton token`: creates a token with the secret of a server.

use std::time::Duration;

use anyhow::anyhow;
use baton_env::{Clock, SystemClock};

use super::serve;

/// Create a token that the server accepts, signed with its secret (HS256).
///
/// Takes the server's settings. The token goes to stdout.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  baton token --jwt-secret @jwt.secret --role read-write --sub billing
  export BATON_TOKEN=$(baton token --jwt-secret @jwt.secret --role admin --hours 8)")]
pub struct Args {
    /// The role: read-only, write-only, read-write or admin
    #[arg(long, value_name = "ROLE")]
    role: String,
    /// The subject: the name of the caller. Messages carry it as `producerSub`
    #[arg(long, value_name = "NAME")]
    sub: Option<String>,
    /// Hours until the token expires; 0 means never
    #[arg(long, value_name = "HOURS", default_value_t = 24)]
    hours: u32,
    /// The settings of the server.
    #[command(flatten)]
    pub serve: serve::Args,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let settings = args.serve.settings()?;
    let lifetime = (args.hours > 0).then(|| Duration::from_secs(u64::from(args.hours) * 3600));
    let now = SystemClock::default().now();
    let token = settings.security.jwt.issue(args.sub.as_deref(), &args.role, now, lifetime);
    println!("{}", token.map_err(|problem| anyhow!("cannot make a token: {problem}"))?);
    Ok(())
}
