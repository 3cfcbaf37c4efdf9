//! A connection: its settings, its prepared statements, and many statements in one round trip.

use std::collections::HashMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use baton_types::Timestamp;
use bytes::{Bytes, BytesMut};
use tokio::sync::Notify;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{IsNull, ToSql, Type, accepts, to_sql_checked};
use tokio_postgres::{Client, Row, Statement};

use crate::address::Address;
use crate::schema::quoted;

/// Every statement ends by then, also when the other side is silent.
pub const DEADLINE: Duration = Duration::from_secs(15);
/// How long a lock is waited for: others hold theirs for a few round trips.
const LOCK_TIMEOUT_MS: u64 = 2_000;
/// After this a server that went away in the middle of a transaction holds its locks no longer.
const IDLE_TIMEOUT_MS: u64 = 10_000;

/// A value for a statement.
pub type Param = Box<dyn ToSql + Sync + Send>;

/// One statement with its values.
pub struct Call {
    text: &'static str,
    params: Vec<Param>,
}

/// A statement with its values.
pub fn call(text: &'static str, params: Vec<Param>) -> Call {
    Call { text, params }
}

/// A value for a statement.
pub fn param(value: impl ToSql + Sync + Send + 'static) -> Param {
    Box::new(value)
}

/// Why statements failed.
#[derive(Debug)]
pub enum Failure {
    /// The database refused one of them, so nothing of the transaction is kept.
    Refused(tokio_postgres::Error),
    /// The connection is gone, or silent; what had been sent may have happened.
    Lost(String),
}

impl Failure {
    /// Whether running the transaction again may help.
    pub fn is_passing(&self) -> bool {
        let passing = [
            // A guard was not met: another server changed what this one relied on.
            SqlState::DIVISION_BY_ZERO,
            SqlState::UNIQUE_VIOLATION,
            SqlState::T_R_SERIALIZATION_FAILURE,
            SqlState::T_R_DEADLOCK_DETECTED,
            SqlState::LOCK_NOT_AVAILABLE,
        ];
        match self {
            Self::Refused(error) => error.code().is_some_and(|code| passing.contains(code)),
            Self::Lost(_) => false,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(error) => f.write_str(&describe(error)),
            Self::Lost(reason) => write!(f, "the connection to PostgreSQL was lost: {reason}"),
        }
    }
}

/// What went wrong, in full: by itself the error only says "db error".
pub fn describe(error: &tokio_postgres::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(deeper) = cause {
        text = format!("{text}: {deeper}");
        cause = deeper.source();
    }
    text
}

/// A connection with its prepared statements.
pub struct Link {
    client: Client,
    ended: Arc<Notify>,
    statements: Mutex<HashMap<&'static str, Statement>>,
}

impl Link {
    /// Connects and makes the session ours.
    pub async fn open(address: &Address, schema: &str) -> Result<Self, Failure> {
        let (client, ended) = connect(address).await?;
        // Tables grow from nothing faster than statistics follow: plans use the indexes that exist for them.
        let settings = format!(
            "SET search_path = {}; SET enable_seqscan = off; SET plan_cache_mode = force_generic_plan; SET jit = off;
             SET lock_timeout = {LOCK_TIMEOUT_MS}; SET statement_timeout = {};
             SET idle_in_transaction_session_timeout = {IDLE_TIMEOUT_MS}; SET default_transaction_isolation = 'read committed';
             SET client_min_messages = warning",
            quoted(schema),
            DEADLINE.as_millis(),
        );
        in_time(client.batch_execute(&settings)).await?;
        Ok(Self { client, ended, statements: Mutex::default() })
    }

    /// Returns when the connection has ended.
    pub async fn ended(&self) {
        if !self.client.is_closed() {
            self.ended.notified().await;
        }
    }

    pub fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    async fn prepare(&self, text: &'static str) -> Result<Statement, Failure> {
        let known =
            |link: &Self| link.statements.lock().unwrap_or_else(PoisonError::into_inner).get(text).cloned();
        if let Some(statement) = known(self) {
            return Ok(statement);
        }
        let statement = in_time(self.client.prepare(text)).await?;
        let mut statements = self.statements.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(statements.entry(text).or_insert(statement).clone())
    }

    /// Runs statements one after the other in one round trip, and tells the rows of each. After the first that is
    /// refused inside a transaction, all are.
    pub async fn run(&self, calls: Vec<Call>) -> Result<Vec<Vec<Row>>, Failure> {
        let mut prepared = Vec::with_capacity(calls.len());
        for call in calls {
            prepared.push((self.prepare(call.text).await?, call.params));
        }
        self.send(prepared).await
    }

    /// As [`run`](Self::run), but tells apart what failed before anything was sent.
    pub async fn commit(&self, calls: Vec<Call>) -> Result<Vec<Vec<Row>>, (Failure, bool)> {
        let mut prepared = Vec::with_capacity(calls.len());
        for call in calls {
            prepared.push((self.prepare(call.text).await.map_err(|e| (e, false))?, call.params));
        }
        self.send(prepared).await.map_err(|e| (e, true))
    }

    async fn send(&self, prepared: Vec<(Statement, Vec<Param>)>) -> Result<Vec<Vec<Row>>, Failure> {
        let queries: Vec<_> = prepared
            .into_iter()
            .map(|(statement, params)| {
                let query: Pin<
                    Box<dyn Future<Output = Result<Vec<Row>, tokio_postgres::Error>> + Send + '_>,
                > = Box::pin(async move {
                    let params: Vec<&(dyn ToSql + Sync)> =
                        params.iter().map(|param| &**param as &(dyn ToSql + Sync)).collect();
                    self.client.query(&statement, &params).await
                });
                query
            })
            .collect();
        let results = tokio::time::timeout(DEADLINE, in_order(queries)).await;
        let results = results.map_err(|_| Failure::Lost("it was silent for too long".into()))?;
        let mut rows = Vec::with_capacity(results.len());
        for result in results {
            rows.push(result.map_err(failure)?);
        }
        Ok(rows)
    }
}

/// Connects without any settings; also tells when the connection has ended.
pub async fn connect(address: &Address) -> Result<(Client, Arc<Notify>), Failure> {
    let (client, connection) = in_time(address.config.connect(address.tls.clone())).await?;
    let ended = Arc::new(Notify::new());
    let tell = ended.clone();
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(error = describe(&error), "a connection to PostgreSQL has ended");
        }
        tell.notify_one();
    });
    Ok((client, ended))
}

async fn in_time<T>(work: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T, Failure> {
    match tokio::time::timeout(DEADLINE, work).await {
        Ok(result) => result.map_err(failure),
        Err(_) => Err(Failure::Lost("it was silent for too long".into())),
    }
}

fn failure(error: tokio_postgres::Error) -> Failure {
    // What ends the session also ends what was under way in it: an administrator, a crash, a shutdown.
    let ends = |code: &SqlState| code.code().starts_with("57P") || code.code().starts_with("08");
    match error.code() {
        Some(code) if !ends(code) => Failure::Refused(error),
        _ => Failure::Lost(describe(&error)),
    }
}

/// Polls all, always the earlier ones first, so that they are sent in order and answered together.
async fn in_order<T>(mut futures: Vec<Pin<Box<dyn Future<Output = T> + Send + '_>>>) -> Vec<T> {
    let mut results: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    poll_fn(|cx| {
        let mut all = true;
        for (future, result) in futures.iter_mut().zip(&mut results) {
            if result.is_none() {
                match future.as_mut().poll(cx) {
                    Poll::Ready(value) => *result = Some(value),
                    Poll::Pending => all = false,
                }
            }
        }
        if all { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    results.into_iter().flatten().collect()
}

/// Bytes that are shared with others, as a `bytea`.
#[derive(Debug)]
pub struct Raw(pub Bytes);

impl ToSql for Raw {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        out.extend_from_slice(&self.0);
        Ok(IsNull::No)
    }

    accepts!(BYTEA);
    to_sql_checked!();
}

/// A number as the database has it.
pub fn signed(number: u64) -> i64 {
    number.cast_signed()
}

/// A number that a row holds.
pub fn unsigned(row: &Row, column: usize) -> u64 {
    row.get::<_, i64>(column).cast_unsigned()
}

/// A moment that a row holds.
pub fn moment(row: &Row, column: usize) -> Timestamp {
    Timestamp::from_micros(row.get(column))
}
