//! The store: opening, submitting operations, and reading messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use baton_env::{Clock, Stopwatch};
use baton_store::{
    BoxFuture, Error, Listener, Operation, Segment, SegmentCache, Statistics, Store, StoreLimits,
};
use baton_types::{Offset, PartitionId, Timestamp};
use tokio::task::JoinHandle;

use crate::client::address::DatabaseAddress;
use crate::client::connection::{
    PgConnection, PgRow, STATEMENT_TIMEOUT, Statement, param, statement, to_bigint,
};
use crate::client::error::DatabaseError;
use crate::context::{OUTAGE_MAX, RECONNECT_FIRST, RECONNECT_MAX, RETRY_AFTER, StoreContext};
use crate::maintenance::slot_repair;
use crate::maintenance::sweeper;
use crate::schema::{self, SchemaStatus};
use crate::writer::task::WriterTask;

/// How long a migration may take, including the wait for another server's migration.
const MIGRATION_MAX: Duration = Duration::from_secs(300);

/// The segments of a partition that overlap a range, up to a number of bytes. Trimmed segments that the
/// sweeper has not deleted yet are left out.
const READ_SEGMENTS: &str = "
    SELECT body FROM (
        SELECT s.base, s.body, sum(octet_length(s.body)) OVER (ORDER BY s.base) - octet_length(s.body) AS before
        FROM segments s JOIN partitions p ON p.id = s.partition_id
        WHERE s.partition_id = $1 AND s.base < $3 AND s.base + s.count > $2 AND s.base + s.count > p.start
            AND s.base >= coalesce((SELECT max(base) FROM segments WHERE partition_id = $1 AND base <= $2), 0)
        ORDER BY s.base LIMIT $5) found
    WHERE before <= $4 ORDER BY base";
/// Other connections to the same schema: each connection of a server has the schema in its application name.
const HAS_OTHER_CONNECTIONS: &str =
    "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database()
    AND application_name = current_setting('application_name') AND pid <> pg_backend_pid()";
/// Segments per statement.
const READ_ROWS_MAX: i64 = 1_000;

/// How to open a store.
#[derive(Clone)]
pub struct Options {
    /// The database's address: `postgres://user:password@host:port/database`, or `host=… user=…`, with
    /// `sslmode=verify-full` for TLS.
    pub url: String,
    /// The schema for all tables; created if missing.
    pub schema: String,
    /// Bytes of recent messages to cache.
    pub cache_bytes: usize,
    /// How many queues, partitions and groups there may be.
    pub bounds: StoreLimits,
    /// Replaces the database's clock in tests.
    pub clock: Option<Arc<dyn Clock>>,
}

impl Options {
    /// Default options for a database.
    pub fn new(url: impl Into<String>) -> Self {
        let bounds = StoreLimits::default();
        Self { url: url.into(), schema: "baton".into(), cache_bytes: 64 << 20, bounds, clock: None }
    }

    fn address(&self) -> Result<DatabaseAddress, Error> {
        DatabaseAddress::parse(&self.url)
    }
}

/// Reports the status of the schema without changing it.
pub async fn check(options: &Options) -> Result<SchemaStatus, Error> {
    let connection = PgConnection::connect_plain(&options.address()?, STATEMENT_TIMEOUT)
        .await
        .map_err(|e| unreachable(&e))?;
    schema::check(&connection, &options.schema).await
}

/// Migrates the schema to this server's version.
pub async fn migrate(options: &Options) -> Result<(), Error> {
    let connection =
        PgConnection::connect_plain(&options.address()?, MIGRATION_MAX).await.map_err(|e| unreachable(&e))?;
    schema::migrate(&connection, &options.schema).await
}

/// Whether another server is connected to the schema. Call it before the store's first connection.
async fn has_other_connections(options: &Options) -> Result<bool, DatabaseError> {
    let address = options.address().map_err(|e| DatabaseError::ConnectionLost(e.to_string()))?;
    let connection = PgConnection::connect(&address, &options.schema).await?;
    let rows = connection.run(vec![statement(HAS_OTHER_CONNECTIONS, Vec::new())]).await?;
    Ok(rows[0][0].get(0))
}

fn unreachable(failure: &DatabaseError) -> Error {
    Error::Unusable(format!("PostgreSQL cannot be reached: {failure}"))
}

/// A store on PostgreSQL.
pub struct PostgresStore {
    writer: Arc<WriterTask>,
    shared: Arc<StoreContext>,
    reader: tokio::sync::Mutex<Option<Arc<PgConnection>>>,
    sweep_task: JoinHandle<()>,
    repair_task: JoinHandle<()>,
    has_other_servers: bool,
    closed: AtomicBool,
}

impl PostgresStore {
    /// Connects, migrates the schema, and starts the store's tasks.
    pub async fn open(options: Options) -> Result<Self, Error> {
        let address = options.address()?;
        if let Some(host) = address.exposed_host() {
            tracing::warn!(
                host,
                "the connection to PostgreSQL on another machine is not encrypted; give sslmode=verify-full"
            );
        }
        migrate(&options).await?;
        let has_company = has_other_connections(&options).await.map_err(|e| unreachable(&e))?;
        let Options { schema, cache_bytes, bounds, clock, .. } = options;
        let shared =
            Arc::new(StoreContext::new(address, schema, SegmentCache::new(cache_bytes), bounds, clock));
        let writer = Arc::new(WriterTask::start(shared.clone()).await.map_err(|e| unreachable(&e))?);
        let sweeping = tokio::spawn(sweeper::run(shared.clone()));
        let repairing = tokio::spawn(slot_repair::run(shared.clone(), writer.clone()));
        Ok(Self {
            writer,
            shared,
            reader: tokio::sync::Mutex::default(),
            sweep_task: sweeping,
            repair_task: repairing,
            has_other_servers: has_company,
            closed: AtomicBool::new(false),
        })
    }

    /// Whether another server was connected to the schema when this store was opened.
    pub fn has_other_servers(&self) -> bool {
        self.has_other_servers
    }

    async fn reader(&self) -> Result<Arc<PgConnection>, DatabaseError> {
        let mut reader = self.reader.lock().await;
        if let Some(connection) = reader.as_ref().filter(|connection| !connection.is_closed()) {
            return Ok(connection.clone());
        }
        let connection = Arc::new(PgConnection::connect(&self.shared.address, &self.shared.schema).await?);
        *reader = Some(connection.clone());
        Ok(connection)
    }

    async fn read_stored(
        &self,
        partition: PartitionId,
        from: Offset,
        to: Offset,
        bytes_max: usize,
    ) -> Result<Vec<Segment>, Error> {
        let (mut found, mut at, mut bytes) = (Vec::new(), from, 0);
        while at < to && bytes <= bytes_max {
            let rows = self.read_page(partition, at, to, bytes_max - bytes).await.map_err(|failure| {
                tracing::warn!(%failure, "messages could not be read");
                Error::Busy(RETRY_AFTER)
            })?;
            let (before, count) = (found.len(), rows.len());
            for row in rows {
                let segment = Segment::decode(partition, row.bytes(0).unwrap_or_default())?;
                (at, bytes) = (segment.end(), bytes + segment.bytes_len());
                found.push(segment);
            }
            if count < usize::try_from(READ_ROWS_MAX).unwrap_or(0) || found.len() == before {
                break;
            }
        }
        Ok(found)
    }

    async fn read_page(
        &self,
        partition: PartitionId,
        from: Offset,
        to: Offset,
        bytes_max: usize,
    ) -> Result<Vec<PgRow>, DatabaseError> {
        let params = || {
            vec![
                param(to_bigint(partition.0)),
                param(to_bigint(from.0.min(i64::MAX.cast_unsigned()))),
                param(to_bigint(to.0.min(i64::MAX.cast_unsigned()))),
                param(i64::try_from(bytes_max).unwrap_or(i64::MAX)),
                param(READ_ROWS_MAX),
            ]
        };
        let (watch, mut pause) = (Stopwatch::start(), RECONNECT_FIRST);
        loop {
            match self.try_read(vec![statement(READ_SEGMENTS, params())]).await {
                Err(DatabaseError::ConnectionLost(reason)) if watch.elapsed() < OUTAGE_MAX => {
                    tracing::debug!(reason, "a read of messages is retried over another connection");
                    baton_env::sleep(pause).await;
                    pause = (pause * 2).min(RECONNECT_MAX);
                }
                rows => return rows,
            }
        }
    }

    async fn try_read(&self, statements: Vec<Statement>) -> Result<Vec<PgRow>, DatabaseError> {
        let connection = self.reader().await?;
        // A task of its own: a caller that is cancelled half-way would break the shared connection.
        let reading = tokio::spawn(async move { connection.run(statements).await });
        let rows = reading.await.map_err(|e| DatabaseError::ConnectionLost(e.to_string()))??;
        Ok(rows.into_iter().flatten().collect())
    }
}

impl Store for PostgresStore {
    fn submit(&self, operation: Box<dyn Operation>) {
        if self.closed.load(Ordering::Acquire) {
            return operation.finish(Err(Error::Closed("it was closed".into())));
        }
        self.writer.submit(operation);
    }

    fn read(
        &self,
        partition: PartitionId,
        from: Offset,
        to: Offset,
        bytes_max: usize,
    ) -> BoxFuture<'_, Result<Vec<Segment>, Error>> {
        match self.shared.cache.read(partition, from, to, bytes_max) {
            Some(found) => Box::pin(std::future::ready(Ok(found))),
            None => Box::pin(self.read_stored(partition, from, to, bytes_max)),
        }
    }

    fn set_listener(&self, listener: Listener) {
        self.shared.set_listener(listener);
    }

    fn now(&self) -> Timestamp {
        self.shared.now()
    }

    fn statistics(&self) -> Statistics {
        self.shared.statistics()
    }

    /// Always `None`: an outage of the database ends without a restart of the server.
    fn failure(&self) -> Option<String> {
        None
    }

    fn outage(&self) -> Option<String> {
        self.shared.outage()
    }

    fn close(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.closed.store(true, Ordering::Release);
            let closed = self.writer.close().await;
            self.sweep_task.abort();
            self.repair_task.abort();
            closed
        })
    }
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        self.sweep_task.abort();
        self.repair_task.abort();
        self.writer.abort();
    }
}
