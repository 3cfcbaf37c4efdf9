//! `baton migrate`: the schema of a PostgreSQL store, looked at or brought up to date.

use anyhow::bail;
use baton_store_postgres::{SchemaStatus, check, migrate};

use super::serve;

/// Bring the schema of a PostgreSQL up to date, or see whether it is.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only look; ends with a code other than 0 when something is to be done.
    #[arg(long, conflicts_with = "up")]
    check: bool,
    /// Do what is to be done. Servers do it too when they start.
    #[arg(long)]
    up: bool,
    /// Where the store is.
    #[command(flatten)]
    pub serve: serve::Args,
}

/// Looks, or does it.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let settings = args.serve.settings()?;
    if settings.is_embedded() {
        bail!("the embedded store has no schema: give --store postgres://user@host/database");
    }
    let options = serve::postgres_options(&settings);
    if args.up {
        migrate(&options).await?;
    }
    match check(&options).await? {
        SchemaStatus::Current => println!("the schema {:?} is up to date", options.schema),
        SchemaStatus::Ahead => {
            println!("the schema {:?} is of a newer Baton, which this one can use", options.schema)
        }
        SchemaStatus::Missing => {
            bail!("there is no schema {:?} yet: run `baton migrate --up`", options.schema)
        }
        SchemaStatus::Behind => {
            bail!("the schema {:?} is of an older Baton: run `baton migrate --up`", options.schema)
        }
    }
    Ok(())
}
