//! PostgreSQL: one small table, created when it is missing.
//!
//! Always: use the primary, never a read replica. Promoting a standby that missed the last write can lose a term;
//! synchronous replication prevents that. A cancelled call closes its connection, so that the next call does not wait
//! behind it.

mod proof;
mod tls;

use std::sync::{Arc, Mutex, PoisonError};

use baton_tls::TlsClient;
use baton_tls::database::{self, AddressParts};
use tokio::task::AbortHandle;
use tokio_postgres::config::{Host, SslMode, SslNegotiation};
use tokio_postgres::{Client, Config, NoTls, Row};

use self::proof::{Allowed, Clear};
use self::tls::TlsConnector;
use super::{BoxFuture, Error, Store, SwapOutcome, Version, VersionedValue};

const TABLE: &str = "
    create sequence if not exists baton_election_version;
    create table if not exists baton_election (
        key text primary key,
        value bytea not null,
        version bigint not null default nextval('baton_election_version')
    );";

/// Serialises the creation of the table among processes that start at the same time.
const CREATION_LOCK: i64 = 0x0062_6174_6f6e_656c;

/// Records in a table called `baton_election`.
pub struct PostgresStore {
    config: Config,
    /// The authorities to trust under TLS; `None` means no TLS.
    trust: Option<TlsClient>,
    /// The proofs of a password that the database may ask for.
    allowed: Allowed,
    /// Replaced when it breaks or when a call on it is cancelled.
    connection: Mutex<Option<Connection>>,
}

/// A connection.
#[derive(Clone)]
struct Connection {
    client: Arc<Client>,
    /// Ends it.
    task: AbortHandle,
}

/// A call in flight. Dropping it before its answer came closes the connection.
struct CancelGuard<'a> {
    store: &'a PostgresStore,
    connection: Connection,
    answered: bool,
}

impl CancelGuard<'_> {
    async fn finish<T>(
        mut self,
        answer: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Error> {
        let answer = answer.await;
        self.answered = true;
        answer.map_err(|e| Error::from_error(&e))
    }
}

impl Drop for CancelGuard<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.connection.task.abort();
            let mut kept = self.store.lock_connection();
            if kept.as_ref().is_some_and(|kept| Arc::ptr_eq(&kept.client, &self.connection.client)) {
                *kept = None;
            }
        }
    }
}

impl PostgresStore {
    /// Connects to the database that `url` names, and makes the table if it is missing.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        let AddressParts { rest, tls: trust, require_auth } =
            database::split_tls_options(url).map_err(|e| Error::from_error(&e))?;
        let mut config: Config = rest.parse().map_err(|e: tokio_postgres::Error| Error::from_error(&e))?;
        let is_local = has_only_sockets(&config);
        let allowed = Allowed::new(require_auth.as_deref(), trust.is_some() || is_local);
        config.ssl_mode(if is_local && trust.is_none() { SslMode::Disable } else { SslMode::Require });
        if trust.is_none() {
            // What stands in for TLS then begins without a word on the wire.
            config.ssl_negotiation(SslNegotiation::Direct);
            name_hosts(&mut config);
        }
        let store = Self { config, trust, allowed, connection: Mutex::new(None) };
        // Held until the commit: a lock given back before it lets the next process miss the table and create it again.
        let create = format!("begin; select pg_advisory_xact_lock({CREATION_LOCK}); {TABLE} commit;");
        let call = store.begin_call().await?;
        let client = Arc::clone(&call.connection.client);
        call.finish(client.batch_execute(&create)).await?;
        Ok(store)
    }

    fn lock_connection(&self) -> std::sync::MutexGuard<'_, Option<Connection>> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn begin_call(&self) -> Result<CancelGuard<'_>, Error> {
        let kept = self.lock_connection().clone().filter(|link| !link.client.is_closed());
        let link = match kept {
            Some(link) => link,
            None => self.open_connection().await?,
        };
        Ok(CancelGuard { store: self, connection: link, answered: false })
    }

    /// Opens a connection. If two are opened at a time, the later one is kept.
    async fn open_connection(&self) -> Result<Connection, Error> {
        let link = match &self.trust {
            Some(trust) => {
                spawn_connection(self.config.connect(TlsConnector(trust.clone(), self.allowed.clone())).await)
            }
            None if has_only_sockets(&self.config) => spawn_connection(self.config.connect(NoTls).await),
            None => spawn_connection(self.config.connect(Clear(self.allowed.clone())).await),
        }
        .map_err(|e| Error::from_error(&e))?;
        *self.lock_connection() = Some(link.clone());
        Ok(link)
    }

    async fn query_rows(
        &self,
        text: &str,
        parameters: &[&(dyn tokio_postgres::types::ToSql + Sync)],
    ) -> Result<Vec<Row>, Error> {
        let call = self.begin_call().await?;
        let client = Arc::clone(&call.connection.client);
        call.finish(client.query(text, parameters)).await
    }
}

/// Whether all hosts are Unix sockets.
fn has_only_sockets(config: &Config) -> bool {
    let is_socket = |host: &Host| matches!(host, Host::Unix(_));
    config.get_hostaddrs().is_empty() && config.get_hosts().iter().all(is_socket)
}

/// Gives hosts that have an address only that address as their name.
fn name_hosts(config: &mut Config) {
    if config.get_hosts().is_empty() {
        for address in config.get_hostaddrs().to_vec() {
            config.host(address.to_string());
        }
    }
}

/// Drives an open connection in its own task.
fn spawn_connection<F>(
    connected: Result<(Client, F), tokio_postgres::Error>,
) -> Result<Connection, tokio_postgres::Error>
where
    F: Future<Output = Result<(), tokio_postgres::Error>> + Send + 'static,
{
    let (client, connection) = connected?;
    let task = tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to PostgreSQL ended");
        }
    });
    Ok(Connection { client: Arc::new(client), task: task.abort_handle() })
}

fn version(row: &Row) -> Version {
    Version(row.get::<_, i64>("version").to_string())
}

impl Store for PostgresStore {
    fn read<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<VersionedValue>, Error>> {
        Box::pin(async move {
            let text = "select version, value from baton_election where key = $1";
            let rows = self.query_rows(text, &[&key]).await?;
            Ok(rows.first().map(|row| (version(row), row.get("value"))))
        })
    }

    fn swap<'a>(
        &'a self,
        key: &'a str,
        expected: Option<&'a Version>,
        value: Vec<u8>,
    ) -> BoxFuture<'a, Result<SwapOutcome, Error>> {
        Box::pin(async move {
            let rows = match expected {
                None => {
                    let text = "insert into baton_election (key, value) values ($1, $2)
                        on conflict (key) do nothing returning version";
                    self.query_rows(text, &[&key, &value]).await?
                }
                Some(expected) => {
                    let expected: i64 = expected.0.parse().unwrap_or(-1);
                    let text =
                        "update baton_election set value = $2, version = nextval('baton_election_version')
                        where key = $1 and version = $3 returning version";
                    self.query_rows(text, &[&key, &value, &expected]).await?
                }
            };
            Ok(rows.first().map_or(SwapOutcome::Conflict, |row| SwapOutcome::Done(version(row))))
        })
    }

    fn put<'a>(&'a self, key: &'a str, value: Vec<u8>) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let text = "insert into baton_election (key, value) values ($1, $2) on conflict (key)
                do update set value = excluded.value, version = nextval('baton_election_version')";
            self.query_rows(text, &[&key, &value]).await.map(|_| ())
        })
    }

    fn list<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<Vec<(String, String)>, Error>> {
        Box::pin(async move {
            let text = "select key, version from baton_election where starts_with(key, $1) order by key";
            let rows = self.query_rows(text, &[&prefix]).await?;
            Ok(rows.iter().map(|row| (row.get("key"), version(row).0)).collect())
        })
    }

    fn remove<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            self.query_rows("delete from baton_election where key = $1", &[&key]).await.map(|_| ())
        })
    }
}

impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresStore").finish_non_exhaustive()
    }
}
