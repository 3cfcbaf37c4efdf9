//! PostgreSQL: one small table, made when it is missing.
//!
//! Always: ask the primary, never a read replica. A promotion of a standby that had not received the last write can
//! forget a term; synchronous replication keeps the promise over it.

use std::sync::Arc;

use tokio::sync::Mutex;
use tokio_postgres::{Client, Config, NoTls, Row};

use super::{BoxFuture, Entry, Error, Store, Swap, Version};

const TABLE: &str = "
    create sequence if not exists baton_election_version;
    create table if not exists baton_election (
        key text primary key,
        value bytea not null,
        version bigint not null default nextval('baton_election_version')
    );";

/// Serialises the creation of the table among those who start at the same time.
const CREATION_LOCK: i64 = 0x0062_6174_6f6e_656c;

/// Records in a table called `baton_election`.
pub struct PostgresStore {
    config: Config,
    /// Made anew when it broke.
    client: Mutex<Option<Arc<Client>>>,
}

impl PostgresStore {
    /// Connects to the database that `url` names, and makes the table if it is missing.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        let config = url.parse().map_err(|e: tokio_postgres::Error| Error::of(&e))?;
        let store = Self { config, client: Mutex::new(None) };
        let client = store.client().await?;
        let create = format!(
            "select pg_advisory_lock({CREATION_LOCK}); {TABLE} select pg_advisory_unlock({CREATION_LOCK});"
        );
        client.batch_execute(&create).await.map_err(|e| Error::of(&e))?;
        Ok(store)
    }

    async fn client(&self) -> Result<Arc<Client>, Error> {
        let mut kept = self.client.lock().await;
        if let Some(client) = kept.as_ref().filter(|client| !client.is_closed()) {
            return Ok(Arc::clone(client));
        }
        let (client, connection) = self.config.connect(NoTls).await.map_err(|e| Error::of(&e))?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to PostgreSQL ended");
            }
        });
        let client = Arc::new(client);
        *kept = Some(Arc::clone(&client));
        Ok(client)
    }
}

fn version(row: &Row) -> Version {
    Version(row.get::<_, i64>("version").to_string())
}

impl Store for PostgresStore {
    fn read<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Entry>, Error>> {
        Box::pin(async move {
            let text = "select version, value from baton_election where key = $1";
            let row = self.client().await?.query_opt(text, &[&key]).await.map_err(|e| Error::of(&e))?;
            Ok(row.map(|row| (version(&row), row.get("value"))))
        })
    }

    fn swap<'a>(
        &'a self,
        key: &'a str,
        expected: Option<&'a Version>,
        value: Vec<u8>,
    ) -> BoxFuture<'a, Result<Swap, Error>> {
        Box::pin(async move {
            let client = self.client().await?;
            let row = match expected {
                None => {
                    let text = "insert into baton_election (key, value) values ($1, $2)
                        on conflict (key) do nothing returning version";
                    client.query_opt(text, &[&key, &value]).await
                }
                Some(expected) => {
                    let expected: i64 = expected.0.parse().unwrap_or(-1);
                    let text =
                        "update baton_election set value = $2, version = nextval('baton_election_version')
                        where key = $1 and version = $3 returning version";
                    client.query_opt(text, &[&key, &value, &expected]).await
                }
            };
            Ok(row.map_err(|e| Error::of(&e))?.map_or(Swap::Conflict, |row| Swap::Done(version(&row))))
        })
    }

    fn put<'a>(&'a self, key: &'a str, value: Vec<u8>) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let text = "insert into baton_election (key, value) values ($1, $2) on conflict (key)
                do update set value = excluded.value, version = nextval('baton_election_version')";
            self.client().await?.execute(text, &[&key, &value]).await.map_err(|e| Error::of(&e))?;
            Ok(())
        })
    }

    fn list<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<Vec<(String, String)>, Error>> {
        Box::pin(async move {
            let text = "select key, version from baton_election where starts_with(key, $1) order by key";
            let rows = self.client().await?.query(text, &[&prefix]).await.map_err(|e| Error::of(&e))?;
            Ok(rows.iter().map(|row| (row.get("key"), version(row).0)).collect())
        })
    }

    fn remove<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let text = "delete from baton_election where key = $1";
            self.client().await?.execute(text, &[&key]).await.map_err(|e| Error::of(&e))?;
            Ok(())
        })
    }
}

impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresStore").finish_non_exhaustive()
    }
}
