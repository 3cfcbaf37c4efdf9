//! A connection: session settings, prepared statements, and many statements per round trip.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use baton_env::Stopwatch;
use baton_types::Timestamp;
use bytes::{Bytes, BytesMut};
use fallible_iterator::FallibleIterator;
use postgres_protocol::IsNull as Null;
use postgres_protocol::message::backend::{DataRowBody, Message};
use postgres_protocol::message::frontend::{self, BindError};
use tokio::sync::{Mutex, MutexGuard};
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};

use crate::client::address::DatabaseAddress;
use crate::client::error::DatabaseError;
use crate::client::transport::PgTransport;

/// Time limit of each statement, also when the database does not answer.
pub const STATEMENT_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a statement waits for a lock; other servers hold theirs for a few round trips.
const LOCK_TIMEOUT_MS: u64 = 2_000;
/// After this the database ends an idle transaction, and a lost server holds no locks any more.
const IDLE_TIMEOUT_MS: u64 = 10_000;
/// Allocates and frees four megabytes in the session. From then on the allocator of glibc keeps as much for
/// later statements instead of returning it to the system each time, which saves a tenth of the cost of
/// small commits.
const WARM_ALLOCATOR: &str = "SELECT octet_length(repeat(repeat(' ', 2000), 2000))";
/// Values are binary in both directions.
const FORMAT_BINARY: i16 = 1;

/// A value for a statement.
pub type Param = Box<dyn ToSql + Sync + Send>;

/// A statement with its parameters.
pub struct Statement {
    text: Cow<'static, str>,
    params: Vec<Param>,
}

/// A statement with its parameters.
pub fn statement(text: impl Into<Cow<'static, str>>, params: Vec<Param>) -> Statement {
    Statement { text: text.into(), params }
}

/// A value for a statement.
pub fn param(value: impl ToSql + Sync + Send + 'static) -> Param {
    Box::new(value)
}

/// A connection that callers share one at a time.
pub struct PgConnection {
    session: Mutex<PgSession>,
    is_closed: AtomicBool,
    timeout: Duration,
}

struct PgSession {
    transport: PgTransport,
    /// Whether unread answers may be on their way, so that the connection cannot be used any more.
    is_unusable: bool,
    statements: HashMap<Cow<'static, str>, Arc<PreparedStatement>>,
    /// How many statements have got a name.
    statements_named: usize,
}

/// A statement that the database has prepared.
struct PreparedStatement {
    name: String,
    params: Vec<Type>,
    columns: Arc<[Type]>,
}

impl PgConnection {
    /// Connects without session settings.
    pub async fn connect_plain(address: &DatabaseAddress, deadline: Duration) -> Result<Self, DatabaseError> {
        let session = PgSession {
            transport: PgTransport::connect(address).await?,
            is_unusable: false,
            statements: HashMap::new(),
            statements_named: 0,
        };
        Ok(Self { session: Mutex::new(session), is_closed: AtomicBool::new(false), timeout: deadline })
    }

    /// Connects and applies the session settings.
    pub async fn connect(address: &DatabaseAddress, schema: &str) -> Result<Self, DatabaseError> {
        let connection = Self::connect_plain(address, STATEMENT_TIMEOUT).await?;
        // Tables grow faster than their statistics, so plans must use the indexes that exist for them.
        let settings = format!(
            "SET search_path = {}; SET enable_seqscan = off; SET plan_cache_mode = force_generic_plan; SET jit = off;
             SET lock_timeout = {LOCK_TIMEOUT_MS}; SET statement_timeout = {};
             SET idle_in_transaction_session_timeout = {IDLE_TIMEOUT_MS}; SET default_transaction_isolation = 'read committed';
             SET client_min_messages = warning; SET application_name = {}",
            quoted(schema),
            STATEMENT_TIMEOUT.as_millis(),
            quoted(&format!("baton {schema}")),
        );
        connection.run_script(&settings).await?;
        connection.run(vec![statement(WARM_ALLOCATOR, Vec::new())]).await?;
        Ok(connection)
    }

    /// Waits until the connection has ended. Cancel-safe.
    pub async fn wait_closed(&self) {
        let mut session = self.session.lock().await;
        while !self.is_closed() {
            if matches!(session.transport.next_message().await, Ok(Message::ErrorResponse(_)) | Err(_)) {
                self.is_closed.store(true, Ordering::Release);
            }
        }
    }

    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Runs statements without parameters.
    pub async fn run_script(&self, text: &str) -> Result<(), DatabaseError> {
        let work = async |session: &mut PgSession| {
            frontend::query(text, &mut session.transport.outgoing)?;
            session.transport.flush().await?;
            session.receive(&mut PendingResults::new(Vec::new())).await.map(drop)
        };
        self.with_session_uninterrupted(work).await
    }

    /// Runs statements in order in one round trip, and returns the rows of each. The first that is refused
    /// ends the run.
    pub async fn run(&self, statements: Vec<Statement>) -> Result<Vec<Vec<PgRow>>, DatabaseError> {
        let work = async |session: &mut PgSession| {
            let prepared = session.prepare(statements).await?;
            let mut sent = session.send(prepared).await?;
            session.receive(&mut sent).await
        };
        self.with_session_uninterrupted(work).await
    }

    /// Whether all of these are prepared, so that they can be pipelined.
    pub async fn has_prepared(&self, statements: &[Statement]) -> bool {
        let session = self.session.lock().await;
        statements.iter().all(|statement| session.statements.contains_key(&statement.text))
    }

    /// Sends statements and does not wait for their results. An error says whether some of them may have been
    /// sent. Call `receive` for everything that was sent before anything else.
    pub async fn send(&self, statements: Vec<Statement>) -> Result<PendingResults, (DatabaseError, bool)> {
        let mut is_sent = false;
        let work = async |session: &mut PgSession| {
            let prepared = session.prepare(statements).await?;
            is_sent = true;
            session.send(prepared).await
        };
        self.with_session_uninterrupted(work).await.map_err(|failure| (failure, is_sent))
    }

    /// The rows of sent statements. Cancel-safe: a later call continues.
    pub async fn receive(&self, sent: &mut PendingResults) -> Result<Vec<Vec<PgRow>>, DatabaseError> {
        let left = self.timeout.saturating_sub(sent.watch.elapsed());
        let work = async |session: &mut PgSession| session.receive(sent).await;
        self.with_session(left, work).await
    }

    /// Runs `work` on the session. If the caller is cancelled half-way, the connection is unusable.
    async fn with_session_uninterrupted<T>(
        &self,
        work: impl AsyncFnOnce(&mut PgSession) -> Result<T, DatabaseError>,
    ) -> Result<T, DatabaseError> {
        let work = async |session: &mut PgSession| {
            session.is_unusable = true;
            let result = work(session).await;
            session.is_unusable = matches!(result, Err(DatabaseError::ConnectionLost(_)));
            result
        };
        self.with_session(self.timeout, work).await
    }

    /// Runs `work` on the session. A timeout closes the connection.
    async fn with_session<T>(
        &self,
        limit: Duration,
        work: impl AsyncFnOnce(&mut PgSession) -> Result<T, DatabaseError>,
    ) -> Result<T, DatabaseError> {
        let turn = async {
            let mut session: MutexGuard<'_, PgSession> = self.session.lock().await;
            if session.is_unusable || self.is_closed() {
                return Err(DatabaseError::ConnectionLost("it was already closed".into()));
            }
            work(&mut session).await
        };
        let silent = |_| DatabaseError::ConnectionLost("no answer before the timeout".into());
        let result = tokio::time::timeout(limit, turn).await.map_err(silent).flatten();
        if matches!(result, Err(DatabaseError::ConnectionLost(_))) {
            self.is_closed.store(true, Ordering::Release);
        }
        result
    }
}

impl PgSession {
    /// Prepares the statements that are not prepared yet, in one round trip.
    async fn prepare(
        &mut self,
        statements: Vec<Statement>,
    ) -> Result<Vec<(Arc<PreparedStatement>, Vec<Param>)>, DatabaseError> {
        let mut unprepared: Vec<(Cow<'static, str>, String)> = Vec::new();
        for statement in &statements {
            if !self.statements.contains_key(&statement.text)
                && unprepared.iter().all(|(text, _)| *text != statement.text)
            {
                self.statements_named += 1;
                unprepared.push((statement.text.clone(), format!("s{}", self.statements_named)));
            }
        }
        if !unprepared.is_empty() {
            for (text, name) in &unprepared {
                frontend::parse(name, text, [], &mut self.transport.outgoing)?;
                frontend::describe(b'S', name, &mut self.transport.outgoing)?;
            }
            frontend::sync(&mut self.transport.outgoing);
            self.read_descriptions(unprepared).await?;
        }
        let known = |statement: Statement| {
            self.statements.get(&statement.text).map(|known| (known.clone(), statement.params))
        };
        statements.into_iter().map(|statement| known(statement).ok_or_else(unexpected_answer)).collect()
    }

    async fn read_descriptions(
        &mut self,
        unprepared: Vec<(Cow<'static, str>, String)>,
    ) -> Result<(), DatabaseError> {
        self.transport.flush().await?;
        let mut unprepared = unprepared.into_iter();
        let (mut params, mut refused) = (Vec::new(), None);
        loop {
            let columns = match self.transport.next_message().await? {
                Message::ParameterDescription(body) => {
                    params = body.parameters().map(|oid| Ok(type_of(oid))).collect()?;
                    continue;
                }
                Message::RowDescription(body) => {
                    body.fields().map(|field| Ok(type_of(field.type_oid()))).collect()?
                }
                Message::NoData => Vec::new(),
                Message::ErrorResponse(body) => {
                    refused.get_or_insert(DatabaseError::from_response(&body));
                    continue;
                }
                Message::ReadyForQuery(_) => return refused.map_or(Ok(()), Err),
                _ => continue,
            };
            let (text, name) = unprepared.next().ok_or_else(unexpected_answer)?;
            let params = std::mem::take(&mut params);
            self.statements
                .insert(text, Arc::new(PreparedStatement { name, params, columns: columns.into() }));
        }
    }

    async fn send(
        &mut self,
        prepared: Vec<(Arc<PreparedStatement>, Vec<Param>)>,
    ) -> Result<PendingResults, DatabaseError> {
        for (statement, params) in &prepared {
            let values = params.iter().zip(&statement.params);
            let write = |(value, kind): (&Param, &Type), out: &mut BytesMut| {
                let null = value.to_sql_checked(kind, out)?;
                Ok(if matches!(null, IsNull::Yes) { Null::Yes } else { Null::No })
            };
            frontend::bind(
                "",
                &statement.name,
                [FORMAT_BINARY],
                values,
                write,
                [FORMAT_BINARY],
                &mut self.transport.outgoing,
            )
            .map_err(|e| match e {
                BindError::Conversion(e) => {
                    DatabaseError::ConnectionLost(format!("a value cannot be sent: {e}"))
                }
                BindError::Serialization(e) => e.into(),
            })?;
            frontend::execute("", 0, &mut self.transport.outgoing)?;
        }
        frontend::sync(&mut self.transport.outgoing);
        self.transport.flush().await?;
        Ok(PendingResults::new(
            prepared.into_iter().map(|(statement, _)| statement.columns.clone()).collect(),
        ))
    }

    /// Receives answers until the database is ready again.
    async fn receive(&mut self, sent: &mut PendingResults) -> Result<Vec<Vec<PgRow>>, DatabaseError> {
        loop {
            match self.transport.next_message().await? {
                Message::DataRow(body) => {
                    if let Some(columns) = sent.columns.get(sent.results.len()) {
                        sent.rows.push(PgRow::new(columns.clone(), body)?);
                    }
                }
                Message::CommandComplete(_) => sent.results.push(std::mem::take(&mut sent.rows)),
                Message::ErrorResponse(body) => {
                    let failure = DatabaseError::from_response(&body);
                    if matches!(failure, DatabaseError::ConnectionLost(_)) {
                        return Err(failure);
                    }
                    sent.refused.get_or_insert(failure);
                }
                Message::ReadyForQuery(_) => {
                    return sent.refused.take().map_or(Ok(std::mem::take(&mut sent.results)), Err);
                }
                _ => {}
            }
        }
    }
}

/// Results of sent statements, as far as they have arrived.
pub struct PendingResults {
    watch: Stopwatch,
    columns: Vec<Arc<[Type]>>,
    results: Vec<Vec<PgRow>>,
    rows: Vec<PgRow>,
    refused: Option<DatabaseError>,
}

impl PendingResults {
    fn new(columns: Vec<Arc<[Type]>>) -> Self {
        let (results, rows) = (Vec::with_capacity(columns.len()), Vec::new());
        Self { watch: Stopwatch::start(), columns, results, rows, refused: None }
    }
}

fn unexpected_answer() -> DatabaseError {
    DatabaseError::ConnectionLost("the database sent an unexpected message".into())
}

fn type_of(oid: u32) -> Type {
    Type::from_oid(oid).unwrap_or(Type::UNKNOWN)
}

/// A row of a result.
pub struct PgRow {
    columns: Arc<[Type]>,
    body: DataRowBody,
    ranges: Vec<Option<Range<usize>>>,
}

impl PgRow {
    fn new(columns: Arc<[Type]>, body: DataRowBody) -> Result<Self, DatabaseError> {
        let places = body.ranges().collect()?;
        Ok(Self { columns, body, ranges: places })
    }

    /// The value in a column. Panics if it has another type: the types of a statement are known where it is
    /// written.
    pub fn get<'a, T: FromSql<'a>>(&'a self, column: usize) -> T {
        let raw = self.ranges[column].clone().map(|place| &self.body.buffer()[place]);
        match T::from_sql_nullable(&self.columns[column], raw) {
            Ok(value) => value,
            Err(error) => panic!("column {column} is no {}: {error}", std::any::type_name::<T>()),
        }
    }

    /// The bytes in a column, without a copy; they keep the row in memory.
    pub fn bytes(&self, column: usize) -> Option<Bytes> {
        self.ranges[column].clone().map(|place| self.body.buffer_bytes().slice(place))
    }
}

/// Shared bytes as a `bytea` parameter, without a copy.
#[derive(Debug)]
pub struct SharedBytea(pub Bytes);

impl ToSql for SharedBytea {
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

/// An unsigned number as a `bigint`.
pub fn to_bigint(number: u64) -> i64 {
    number.cast_signed()
}

/// An unsigned number from a `bigint` column.
pub fn read_u64(row: &PgRow, column: usize) -> u64 {
    row.get::<i64>(column).cast_unsigned()
}

/// A time from a column in microseconds.
pub fn read_timestamp(row: &PgRow, column: usize) -> Timestamp {
    Timestamp::from_micros(row.get(column))
}

/// A quoted SQL identifier.
pub fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_end_its_quotes() {
        assert_eq!(quoted("a\"b"), "\"a\"\"b\"");
    }
}
