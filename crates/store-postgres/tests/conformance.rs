//! The PostgreSQL store keeps every promise of the traits.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;

use baton_env::ManualClock;
use baton_store::Store;
use baton_store::conformance::Backend;
use baton_store_postgres::{Options, PostgresStore};
use baton_testing_postgres::Postgres;

/// A schema of its own in a database that all tests of this process share.
struct Schema(String);

impl Backend for Schema {
    async fn empty() -> Self {
        Self(format!("conformance {}", baton_env::fresh_uuid()))
    }

    async fn open(&self, clock: Arc<ManualClock>) -> Arc<dyn Store> {
        let url = tokio::task::spawn_blocking(|| Postgres::shared().url()).await.unwrap();
        let options = Options { schema: self.0.clone(), clock: Some(clock), ..Options::new(url) };
        Arc::new(PostgresStore::open(options).await.unwrap())
    }

    /// Its connections break off; what was under way in them is taken back by the database.
    async fn crash(self, store: Arc<dyn Store>) -> Self {
        drop(store);
        self
    }
}

baton_store::conformance!(Schema);
