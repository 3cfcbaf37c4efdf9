//! `baton migrate`: checks the schema of a PostgreSQL store, or migrates it.

use anyhow::bail;
use baton_store_postgres::{SchemaStatus, check, migrate};

use super::serve;

/// Migrate the schema of a PostgreSQL store, or check whether it is up to date.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only check; exits with a code other than 0 when a migration is needed.
    #[arg(long, conflicts_with = "up")]
    check: bool,
    /// Migrate. Servers also migrate when they start.
    #[arg(long)]
    up: bool,
    /// The store.
    #[command(flatten)]
    pub serve: serve::Args,
}

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
