//! Opening, the way in, reading messages, and what all parts share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use baton_env::{Clock, SlewedClock, Stopwatch};
use baton_store::{
    Bounds, BoxFuture, Cache, Error, Event, Histogram, Listener, MICROS, Operation, SIZES, Segment,
    Statistics, Store,
};
use baton_types::{Offset, PartitionId, Timestamp};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::address::Address;
use crate::failure::Failure;
use crate::lanes::{LANES_MAX, Lanes};
use crate::link::{Call, DEADLINE, Link, Row, call, param, signed};
use crate::repair;
use crate::room::Room;
use crate::schema::{self, Standing};
use crate::sweeper;
use crate::writer::{AWAY_MAX, RECONNECT_FIRST, RECONNECT_MAX};

/// When to try again at a full intake, or while the database is away.
pub const BUSY_FOR: Duration = Duration::from_millis(500);

/// How long bringing the schema up to date may take, waiting for another server that does it included.
const MIGRATION_MAX: Duration = Duration::from_secs(300);

/// The segments of a partition that touch a range, up to a number of bytes. What was trimmed is not told, though
/// it may not be cleared away yet.
const READ: &str = "
    SELECT body FROM (
        SELECT s.base, s.body, sum(octet_length(s.body)) OVER (ORDER BY s.base) - octet_length(s.body) AS before
        FROM segments s JOIN partitions p ON p.id = s.partition_id
        WHERE s.partition_id = $1 AND s.base < $3 AND s.base + s.count > $2 AND s.base + s.count > p.start
            AND s.base >= coalesce((SELECT max(base) FROM segments WHERE partition_id = $1 AND base <= $2), 0)
        ORDER BY s.base LIMIT $5) found
    WHERE before <= $4 ORDER BY base";
/// Each connection of a server names its schema.
const COMPANY: &str = "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database()
    AND application_name = current_setting('application_name') AND pid <> pg_backend_pid()";
/// Segments looked at in one read.
const READ_ROWS_MAX: i64 = 1_000;

/// How to open a store.
#[derive(Clone)]
pub struct Options {
    /// Where the database is: `postgres://user:password@host:port/database`, or `host=… user=…`, with
    /// `sslmode=verify-full` for TLS.
    pub url: String,
    /// The schema that holds everything; created when missing.
    pub schema: String,
    /// Bytes of young messages kept in memory.
    pub cache_bytes: usize,
    /// How many queues, partitions and groups there may be.
    pub bounds: Bounds,
    /// A clock in place of the database's, for tests.
    pub clock: Option<Arc<dyn Clock>>,
}

impl Options {
    /// The usual options for a database.
    pub fn new(url: impl Into<String>) -> Self {
        let bounds = Bounds::default();
        Self { url: url.into(), schema: "baton".into(), cache_bytes: 64 << 20, bounds, clock: None }
    }

    fn address(&self) -> Result<Address, Error> {
        Address::read(&self.url)
    }
}

/// Looks at the schema without changing it.
pub async fn check(options: &Options) -> Result<Standing, Error> {
    let link = Link::plain(&options.address()?, DEADLINE).await.map_err(|e| unreachable(&e))?;
    schema::check(&link, &options.schema).await
}

/// Brings the schema up to date.
pub async fn migrate(options: &Options) -> Result<(), Error> {
    let link = Link::plain(&options.address()?, MIGRATION_MAX).await.map_err(|e| unreachable(&e))?;
    schema::migrate(&link, &options.schema).await
}

/// Whether anybody else is connected to the schema. To be asked before the first connection of a store.
async fn has_company(options: &Options) -> Result<bool, Failure> {
    let address = options.address().map_err(|e| Failure::Lost(e.to_string()))?;
    let link = Link::open(&address, &options.schema).await?;
    let rows = link.run(vec![call(COMPANY, Vec::new())]).await?;
    Ok(rows[0][0].get(0))
}

fn unreachable(failure: &Failure) -> Error {
    Error::Unusable(format!("PostgreSQL cannot be reached: {failure}"))
}

/// A store on PostgreSQL.
pub struct PostgresStore {
    lanes: Arc<Lanes>,
    shared: Arc<Shared>,
    reader: tokio::sync::Mutex<Option<Arc<Link>>>,
    adapting: JoinHandle<()>,
    sweeping: JoinHandle<()>,
    repairing: JoinHandle<()>,
    has_company: bool,
    closed: AtomicBool,
}

/// What the parts share.
pub struct Shared {
    pub address: Address,
    pub schema: String,
    pub cache: Cache,
    pub room: Room,
    /// Tells the sweeper that there is something to clear away.
    pub sweep: Notify,
    clock: Option<Arc<dyn Clock>>,
    listener: RwLock<Option<Listener>>,
    now: Mutex<(Timestamp, (Timestamp, Stopwatch))>,
    slewed: Mutex<Option<SlewedClock>>,
    watch: Stopwatch,
    /// The lanes for which the database is away, and why.
    away: Mutex<BTreeMap<usize, String>>,
    /// For which lanes the database has been away for so long that nobody should wait for it.
    refusing: [AtomicBool; LANES_MAX],
    commits: AtomicU64,
    syncs: AtomicU64,
    operations: AtomicU64,
    repeats: AtomicU64,
    deadlocks: AtomicU64,
    undone: AtomicU64,
    missing_slots: AtomicU64,
    remembered: AtomicU64,
    commit_micros: Histogram,
    commit_operations: Histogram,
}

impl PostgresStore {
    /// Connects, brings the schema up to date, and starts the store's tasks.
    pub async fn open(options: Options) -> Result<Self, Error> {
        let address = options.address()?;
        if let Some(host) = address.exposed_host() {
            tracing::warn!(
                host,
                "PostgreSQL on another machine is spoken to in the clear; give sslmode=verify-full"
            );
        }
        migrate(&options).await?;
        let has_company = has_company(&options).await.map_err(|e| unreachable(&e))?;
        let shared = Arc::new(Shared {
            address,
            schema: options.schema,
            cache: Cache::new(options.cache_bytes),
            room: Room::new(options.bounds),
            sweep: Notify::new(),
            clock: options.clock,
            listener: RwLock::default(),
            now: Mutex::new((Timestamp::MIN, (Timestamp::MIN, Stopwatch::start()))),
            slewed: Mutex::default(),
            watch: Stopwatch::start(),
            away: Mutex::default(),
            refusing: Default::default(),
            commits: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
            operations: AtomicU64::new(0),
            repeats: AtomicU64::new(0),
            deadlocks: AtomicU64::new(0),
            undone: AtomicU64::new(0),
            missing_slots: AtomicU64::new(0),
            remembered: AtomicU64::new(0),
            commit_micros: Histogram::new(MICROS),
            commit_operations: Histogram::new(SIZES),
        });
        let lanes = Arc::new(Lanes::open(shared.clone()).await.map_err(|e| unreachable(&e))?);
        let adapting = tokio::spawn(lanes.clone().adapt());
        let sweeping = tokio::spawn(sweeper::run(shared.clone()));
        let repairing = tokio::spawn(repair::run(shared.clone(), lanes.clone()));
        Ok(Self {
            lanes,
            shared,
            reader: tokio::sync::Mutex::default(),
            adapting,
            sweeping,
            repairing,
            has_company,
            closed: AtomicBool::new(false),
        })
    }

    /// Whether another server was connected to the same schema when this one was opened.
    pub fn has_company(&self) -> bool {
        self.has_company
    }

    async fn reader(&self) -> Result<Arc<Link>, Failure> {
        let mut reader = self.reader.lock().await;
        if let Some(link) = reader.as_ref().filter(|link| !link.is_closed()) {
            return Ok(link.clone());
        }
        let link = Arc::new(Link::open(&self.shared.address, &self.shared.schema).await?);
        *reader = Some(link.clone());
        Ok(link)
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
                Error::Busy(BUSY_FOR)
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
    ) -> Result<Vec<Row>, Failure> {
        let params = || {
            vec![
                param(signed(partition.0)),
                param(signed(from.0.min(i64::MAX.cast_unsigned()))),
                param(signed(to.0.min(i64::MAX.cast_unsigned()))),
                param(i64::try_from(bytes_max).unwrap_or(i64::MAX)),
                param(READ_ROWS_MAX),
            ]
        };
        let (watch, mut pause) = (Stopwatch::start(), RECONNECT_FIRST);
        loop {
            match self.try_read(vec![call(READ, params())]).await {
                Err(Failure::Lost(reason)) if watch.elapsed() < AWAY_MAX => {
                    tracing::debug!(reason, "messages are read again over another connection");
                    baton_env::sleep(pause).await;
                    pause = (pause * 2).min(RECONNECT_MAX);
                }
                rows => return rows,
            }
        }
    }

    async fn try_read(&self, calls: Vec<Call>) -> Result<Vec<Row>, Failure> {
        let link = self.reader().await?;
        // Whoever asked may be gone before the answer, which would tear the connection for all.
        let reading = tokio::spawn(async move { link.run(calls).await });
        let rows = reading.await.map_err(|e| Failure::Lost(e.to_string()))??;
        Ok(rows.into_iter().flatten().collect())
    }
}

impl Shared {
    /// The store's time as far as it is known without asking.
    pub fn time(&self, heard: (Timestamp, Stopwatch)) -> Timestamp {
        match &self.clock {
            _ if heard.0 == Timestamp::MIN => heard.0,
            Some(clock) => self.slew(clock.now(), clock.elapsed()),
            None => self.slew(heard.0.after(heard.1.elapsed()), self.watch.elapsed()),
        }
    }

    /// No step of the database's clock lets anything expire early or stand still.
    fn slew(&self, wall: Timestamp, elapsed: Duration) -> Timestamp {
        let mut slewed = self.slewed.lock().unwrap_or_else(PoisonError::into_inner);
        slewed.get_or_insert_with(|| SlewedClock::new(wall, elapsed)).advance(wall, elapsed)
    }

    /// The time of the last decision or later.
    pub fn now(&self) -> Timestamp {
        let (last, heard) = *self.now.lock().unwrap_or_else(PoisonError::into_inner);
        last.max(self.time(heard))
    }

    /// The time of the last decision of any lane.
    pub fn last(&self) -> Timestamp {
        self.now.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    pub fn set_now(&self, last: Timestamp, heard: (Timestamp, Stopwatch)) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        *now = (now.0.max(last), heard);
        // What other servers have written in goes on from there, instead of standing still until it is reached.
        if let Some(slewed) = &mut *self.slewed.lock().unwrap_or_else(PoisonError::into_inner) {
            slewed.raise(last);
        }
    }

    /// Notes that the database is away for a lane, and why, or that it is back.
    pub fn set_away(&self, lane: usize, reason: Option<String>) {
        let mut away = self.away.lock().unwrap_or_else(PoisonError::into_inner);
        match (away.get(&lane), &reason) {
            (None, Some(reason)) => tracing::warn!(reason, lane, "PostgreSQL is away"),
            (Some(_), None) => tracing::info!(lane, "PostgreSQL is back"),
            _ => {}
        }
        match reason {
            Some(reason) => drop(away.insert(lane, reason)),
            None => drop(away.remove(&lane)),
        }
    }

    /// Whether the database is away for any lane.
    pub fn is_away(&self) -> bool {
        !self.away.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    pub fn refuse(&self, lane: usize, refusing: bool) {
        self.refusing[lane].store(refusing, Ordering::Release);
    }

    pub fn is_refused(&self, lane: usize) -> bool {
        self.refusing[lane].load(Ordering::Acquire)
    }

    /// Notes how many transaction ids a lane remembers, and how many it did.
    pub fn set_remembered(&self, before: usize, now: usize) {
        self.remembered.fetch_add(now as u64, Ordering::Relaxed);
        self.remembered.fetch_sub(before as u64, Ordering::Relaxed);
    }

    /// Counts a commit that was forced to disk.
    pub fn observe(&self, operations: usize, took: Duration) {
        self.commit_micros.observe(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        self.commit_operations.observe(operations as u64);
    }

    /// Counts a decision that was undone.
    pub fn count_undone(&self) {
        self.undone.fetch_add(1, Ordering::Relaxed);
    }

    pub fn count(&self, operations: usize, commits: u64, synced: bool) {
        self.operations.fetch_add(operations as u64, Ordering::Relaxed);
        self.commits.fetch_add(commits, Ordering::Relaxed);
        self.syncs.fetch_add(u64::from(synced), Ordering::Relaxed);
    }

    /// Counts a group that has to be run again, perhaps because of a deadlock.
    pub fn count_repeat(&self, is_deadlock: bool) {
        self.repeats.fetch_add(1, Ordering::Relaxed);
        self.deadlocks.fetch_add(u64::from(is_deadlock), Ordering::Relaxed);
    }

    pub fn count_missing_slots(&self, count: u64) {
        self.missing_slots.fetch_add(count, Ordering::Relaxed);
    }

    pub fn notify(&self, event: Event) {
        let listener = self.listener.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(listener) = &*listener {
            listener(event);
        }
    }
}

impl Store for PostgresStore {
    fn submit(&self, operation: Box<dyn Operation>) {
        if self.closed.load(Ordering::Acquire) {
            return operation.finish(Err(Error::Closed("it was closed".into())));
        }
        self.lanes.submit(operation);
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

    fn listen(&self, listener: Listener) {
        *self.shared.listener.write().unwrap_or_else(PoisonError::into_inner) = Some(listener);
    }

    fn now(&self) -> Timestamp {
        self.shared.now()
    }

    fn statistics(&self) -> Statistics {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Statistics {
            commits: load(&self.shared.commits),
            syncs: load(&self.shared.syncs),
            operations: load(&self.shared.operations),
            repeats: load(&self.shared.repeats),
            deadlocks: load(&self.shared.deadlocks),
            undone: load(&self.shared.undone),
            missing_slots: load(&self.shared.missing_slots),
            disk_bytes: 0,
            remembered: load(&self.shared.remembered),
            commit_micros: self.shared.commit_micros.read(),
            commit_operations: self.shared.commit_operations.read(),
        }
    }

    /// Never: a database that is away comes back.
    fn failure(&self) -> Option<String> {
        None
    }

    fn away(&self) -> Option<String> {
        // Without the others the first lane does everything.
        self.shared.away.lock().unwrap_or_else(PoisonError::into_inner).get(&0).cloned()
    }

    fn close(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.closed.store(true, Ordering::Release);
            self.adapting.abort();
            let closed = self.lanes.close().await;
            self.sweeping.abort();
            self.repairing.abort();
            closed
        })
    }
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        self.sweeping.abort();
        self.repairing.abort();
        self.adapting.abort();
        self.lanes.abort();
    }
}
