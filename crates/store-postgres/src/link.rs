//! A connection: its settings, its prepared statements, and many statements in one round trip.

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

use crate::address::Address;
use crate::failure::Failure;
use crate::schema::quoted;
use crate::wire::Wire;

/// Every statement ends by then, also when the other side is silent.
pub const DEADLINE: Duration = Duration::from_secs(15);
/// How long a lock is waited for: others hold theirs for a few round trips.
const LOCK_TIMEOUT_MS: u64 = 2_000;
/// After this a server that went away in the middle of a transaction holds its locks no longer.
const IDLE_TIMEOUT_MS: u64 = 10_000;
/// Takes four megabytes and gives them back. From then on the allocator of glibc keeps as much for what comes next, and
/// does not fetch it from the system and return it with every statement, a tenth of what small commits cost.
const LOOSEN: &str = "SELECT octet_length(repeat(repeat(' ', 2000), 2000))";
/// All values go over in binary, both ways.
const BINARY: i16 = 1;

/// A value for a statement.
pub type Param = Box<dyn ToSql + Sync + Send>;

/// One statement with its values.
pub struct Call {
    text: Cow<'static, str>,
    params: Vec<Param>,
}

/// A statement with its values.
pub fn call(text: impl Into<Cow<'static, str>>, params: Vec<Param>) -> Call {
    Call { text: text.into(), params }
}

/// A value for a statement.
pub fn param(value: impl ToSql + Sync + Send + 'static) -> Param {
    Box::new(value)
}

/// A connection with its prepared statements. Callers take turns.
pub struct Link {
    talk: Mutex<Talk>,
    is_closed: AtomicBool,
    deadline: Duration,
}

struct Talk {
    wire: Wire,
    /// Whether there may be answers on the way that nobody waits for any more: such a connection is of no use.
    is_torn: bool,
    statements: HashMap<Cow<'static, str>, Arc<Statement>>,
    /// How many names statements have got.
    names: usize,
}

/// A statement that the database has prepared.
struct Statement {
    name: String,
    params: Vec<Type>,
    columns: Arc<[Type]>,
}

impl Link {
    /// Connects without any settings.
    pub async fn plain(address: &Address, deadline: Duration) -> Result<Self, Failure> {
        let talk = Talk {
            wire: Wire::connect(address).await?,
            is_torn: false,
            statements: HashMap::new(),
            names: 0,
        };
        Ok(Self { talk: Mutex::new(talk), is_closed: AtomicBool::new(false), deadline })
    }

    /// Connects and makes the session ours.
    pub async fn open(address: &Address, schema: &str) -> Result<Self, Failure> {
        let link = Self::plain(address, DEADLINE).await?;
        // Tables grow from nothing faster than statistics follow: plans use the indexes that exist for them.
        let settings = format!(
            "SET search_path = {}; SET enable_seqscan = off; SET plan_cache_mode = force_generic_plan; SET jit = off;
             SET lock_timeout = {LOCK_TIMEOUT_MS}; SET statement_timeout = {};
             SET idle_in_transaction_session_timeout = {IDLE_TIMEOUT_MS}; SET default_transaction_isolation = 'read committed';
             SET client_min_messages = warning; SET application_name = {}",
            quoted(schema),
            DEADLINE.as_millis(),
            quoted(&format!("baton {schema}")),
        );
        link.batch(&settings).await?;
        link.run(vec![call(LOOSEN, Vec::new())]).await?;
        Ok(link)
    }

    /// Returns when the connection has ended. May be given up at any time.
    pub async fn ended(&self) {
        let mut talk = self.talk.lock().await;
        while !self.is_closed() {
            if matches!(talk.wire.message().await, Ok(Message::ErrorResponse(_)) | Err(_)) {
                self.is_closed.store(true, Ordering::Release);
            }
        }
    }

    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Runs a text of statements without values.
    pub async fn batch(&self, text: &str) -> Result<(), Failure> {
        let work = async |talk: &mut Talk| {
            frontend::query(text, &mut talk.wire.outgoing)?;
            talk.wire.send().await?;
            talk.receive(&mut Sent::new(Vec::new())).await.map(drop)
        };
        self.in_turn(work).await
    }

    /// Runs statements one after the other in one round trip, and tells the rows of each. After the first that is
    /// refused none is run.
    pub async fn run(&self, calls: Vec<Call>) -> Result<Vec<Vec<Row>>, Failure> {
        let work = async |talk: &mut Talk| {
            let prepared = talk.prepare(calls).await?;
            let mut sent = talk.send(prepared).await?;
            talk.receive(&mut sent).await
        };
        self.in_turn(work).await
    }

    /// Whether the database has prepared all of these, so that they can be sent while others are under way.
    pub async fn has_prepared(&self, calls: &[Call]) -> bool {
        let talk = self.talk.lock().await;
        calls.iter().all(|call| talk.statements.contains_key(&call.text))
    }

    /// Sends statements to be run one after the other, and does not wait for them. When that fails, tells whether some of
    /// it may have been sent. Until everything that was sent is received nothing else is to be run.
    pub async fn send(&self, calls: Vec<Call>) -> Result<Sent, (Failure, bool)> {
        let mut is_sent = false;
        let work = async |talk: &mut Talk| {
            let prepared = talk.prepare(calls).await?;
            is_sent = true;
            talk.send(prepared).await
        };
        self.in_turn(work).await.map_err(|failure| (failure, is_sent))
    }

    /// The rows of what was sent, in the order of sending. May be given up and gone on with at any time.
    pub async fn receive(&self, sent: &mut Sent) -> Result<Vec<Vec<Row>>, Failure> {
        let left = self.deadline.saturating_sub(sent.watch.elapsed());
        let work = async |talk: &mut Talk| talk.receive(sent).await;
        self.in_time(left, work).await
    }

    /// Has the connection for a conversation that must not be given up.
    async fn in_turn<T>(
        &self,
        work: impl AsyncFnOnce(&mut Talk) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let work = async |talk: &mut Talk| {
            talk.is_torn = true;
            let result = work(talk).await;
            talk.is_torn = matches!(result, Err(Failure::Lost(_)));
            result
        };
        self.in_time(self.deadline, work).await
    }

    /// Has the connection for something that ends in time, or it has come to its end.
    async fn in_time<T>(
        &self,
        limit: Duration,
        work: impl AsyncFnOnce(&mut Talk) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let turn = async {
            let mut talk: MutexGuard<'_, Talk> = self.talk.lock().await;
            if talk.is_torn || self.is_closed() {
                return Err(Failure::Lost("it had ended".into()));
            }
            work(&mut talk).await
        };
        let silent = |_| Failure::Lost("it was silent for too long".into());
        let result = tokio::time::timeout(limit, turn).await.map_err(silent).flatten();
        if matches!(result, Err(Failure::Lost(_))) {
            self.is_closed.store(true, Ordering::Release);
        }
        result
    }
}

impl Talk {
    /// Prepares what is not prepared yet, all of it in one round trip.
    async fn prepare(&mut self, calls: Vec<Call>) -> Result<Vec<(Arc<Statement>, Vec<Param>)>, Failure> {
        let mut missing: Vec<(Cow<'static, str>, String)> = Vec::new();
        for call in &calls {
            if !self.statements.contains_key(&call.text) && missing.iter().all(|(text, _)| *text != call.text)
            {
                self.names += 1;
                missing.push((call.text.clone(), format!("s{}", self.names)));
            }
        }
        if !missing.is_empty() {
            for (text, name) in &missing {
                frontend::parse(name, text, [], &mut self.wire.outgoing)?;
                frontend::describe(b'S', name, &mut self.wire.outgoing)?;
            }
            frontend::sync(&mut self.wire.outgoing);
            self.describe(missing).await?;
        }
        let known = |call: Call| self.statements.get(&call.text).map(|known| (known.clone(), call.params));
        calls.into_iter().map(|call| known(call).ok_or_else(out_of_step)).collect()
    }

    async fn describe(&mut self, missing: Vec<(Cow<'static, str>, String)>) -> Result<(), Failure> {
        self.wire.send().await?;
        let mut missing = missing.into_iter();
        let (mut params, mut refused) = (Vec::new(), None);
        loop {
            let columns = match self.wire.message().await? {
                Message::ParameterDescription(body) => {
                    params = body.parameters().map(|oid| Ok(type_of(oid))).collect()?;
                    continue;
                }
                Message::RowDescription(body) => {
                    body.fields().map(|field| Ok(type_of(field.type_oid()))).collect()?
                }
                Message::NoData => Vec::new(),
                Message::ErrorResponse(body) => {
                    refused.get_or_insert(Failure::read(&body));
                    continue;
                }
                Message::ReadyForQuery(_) => return refused.map_or(Ok(()), Err),
                _ => continue,
            };
            let (text, name) = missing.next().ok_or_else(out_of_step)?;
            let params = std::mem::take(&mut params);
            self.statements.insert(text, Arc::new(Statement { name, params, columns: columns.into() }));
        }
    }

    async fn send(&mut self, prepared: Vec<(Arc<Statement>, Vec<Param>)>) -> Result<Sent, Failure> {
        for (statement, params) in &prepared {
            let values = params.iter().zip(&statement.params);
            let write = |(value, kind): (&Param, &Type), out: &mut BytesMut| {
                let null = value.to_sql_checked(kind, out)?;
                Ok(if matches!(null, IsNull::Yes) { Null::Yes } else { Null::No })
            };
            frontend::bind("", &statement.name, [BINARY], values, write, [BINARY], &mut self.wire.outgoing)
                .map_err(|e| match e {
                BindError::Conversion(e) => Failure::Lost(format!("a value cannot be sent: {e}")),
                BindError::Serialization(e) => e.into(),
            })?;
            frontend::execute("", 0, &mut self.wire.outgoing)?;
        }
        frontend::sync(&mut self.wire.outgoing);
        self.wire.send().await?;
        Ok(Sent::new(prepared.into_iter().map(|(statement, _)| statement.columns.clone()).collect()))
    }

    /// Takes the answers until the database is ready again.
    async fn receive(&mut self, sent: &mut Sent) -> Result<Vec<Vec<Row>>, Failure> {
        loop {
            match self.wire.message().await? {
                Message::DataRow(body) => {
                    if let Some(columns) = sent.columns.get(sent.results.len()) {
                        sent.rows.push(Row::new(columns.clone(), body)?);
                    }
                }
                Message::CommandComplete(_) => sent.results.push(std::mem::take(&mut sent.rows)),
                Message::ErrorResponse(body) => {
                    let failure = Failure::read(&body);
                    if matches!(failure, Failure::Lost(_)) {
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

/// Statements that were sent, and what has come back of them.
pub struct Sent {
    watch: Stopwatch,
    columns: Vec<Arc<[Type]>>,
    results: Vec<Vec<Row>>,
    rows: Vec<Row>,
    refused: Option<Failure>,
}

impl Sent {
    fn new(columns: Vec<Arc<[Type]>>) -> Self {
        let (results, rows) = (Vec::with_capacity(columns.len()), Vec::new());
        Self { watch: Stopwatch::start(), columns, results, rows, refused: None }
    }
}

fn out_of_step() -> Failure {
    Failure::Lost("the database answered something else than was asked".into())
}

fn type_of(oid: u32) -> Type {
    Type::from_oid(oid).unwrap_or(Type::UNKNOWN)
}

/// A row of an answer.
pub struct Row {
    columns: Arc<[Type]>,
    body: DataRowBody,
    places: Vec<Option<Range<usize>>>,
}

impl Row {
    fn new(columns: Arc<[Type]>, body: DataRowBody) -> Result<Self, Failure> {
        let places = body.ranges().collect()?;
        Ok(Self { columns, body, places })
    }

    /// The value in a column. Panics when it is of another type: what a statement tells is known where it is written.
    pub fn get<'a, T: FromSql<'a>>(&'a self, column: usize) -> T {
        let raw = self.places[column].clone().map(|place| &self.body.buffer()[place]);
        match T::from_sql_nullable(&self.columns[column], raw) {
            Ok(value) => value,
            Err(error) => panic!("column {column} is no {}: {error}", std::any::type_name::<T>()),
        }
    }

    /// The bytes in a column, which keep the row in memory.
    pub fn bytes(&self, column: usize) -> Option<Bytes> {
        self.places[column].clone().map(|place| self.body.buffer_bytes().slice(place))
    }
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
    row.get::<i64>(column).cast_unsigned()
}

/// A moment that a row holds.
pub fn moment(row: &Row, column: usize) -> Timestamp {
    Timestamp::from_micros(row.get(column))
}
