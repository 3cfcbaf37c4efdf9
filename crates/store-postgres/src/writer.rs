//! The groups: takes in operations, runs each group of them as one database transaction, answers.
//!
//! A group costs a fixed small number of round trips, however many operations it has: one that writes and commits, and
//! before it one that fetches what decisions miss, unless the last group had it (`carried`). What was fetched is compared
//! at the commit; only after another server was in the way is it locked at once, for a while. What arrives meanwhile
//! is the next group, together with what those send who were just answered, for whom it waits a moment; so groups
//! grow with the load and with the distance to the database.
//!
//! Always: nothing is answered before its commit is known to have happened or not. When the connection is lost
//! around a commit, the server's own row in the database tells, and asking also keeps a commit that is still on
//! its way from happening later.

mod group;
mod reconnect;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use baton_env::Stopwatch;
use baton_store::{Error, Event, Operation};
use baton_types::Timestamp;
use tokio::sync::mpsc::Receiver;

use self::reconnect::AWAY_MAX;
use crate::carried::Carried;
use crate::clock::Hybrid;
use crate::failure::Failure;
use crate::link::{Link, call, moment, param};
use crate::load::{self, Trouble};
use crate::remembered::Remembered;
use crate::store::{BUSY_FOR, Shared};
use crate::structure::Structure;
use crate::tx::Names;

/// Operations in one group: enough to share a commit, few enough to be decided in a blink.
const GROUP_OPERATIONS_MAX: usize = 2_048;
/// The share of a group's time, one in so many, that the next group waits for callers who were just answered and
/// are about to call again. Without it those who work in step split into groups that take turns, each with the cost
/// of a whole one.
const GATHER_SHARE: u32 = 3;
/// No gathering is longer than this.
const GATHER_MAX: Duration = Duration::from_millis(2);
/// How often a group is run that others get in the way of.
const TRIES_MAX: u32 = 30;
/// How long a group is tried before its callers are told to come again: longer than a server that went away holds its
/// locks, and than a statement that gets no answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// For so many groups that change records the lock on them is taken at once after another server was in the way: while
/// several write records all the time, a try without it is in vain most of the time.
const RIVALRY: u32 = if cfg!(test) { 1 } else { 16 };
/// For so many groups partitions are locked when they are read, after another server was in the way of comparing them.
const CONTENTION: u32 = if cfg!(test) { 1 } else { 64 };
/// Begins a server's row.
const REGISTER: &str = "INSERT INTO servers (moment) VALUES ($1) RETURNING id, committed, epoch";
const LATEST: &str = "SELECT coalesce(max(moment), 0) FROM servers";

/// What the intake brings.
pub enum Input {
    Operation(Box<dyn Operation>),
    Close,
}

/// One lane's way into the database.
pub struct Writer {
    shared: Arc<Shared>,
    lane: usize,
    link: Option<Link>,
    clock: Hybrid,
    /// The database's time at some moment, and the time since.
    heard: (Timestamp, Stopwatch),
    structure: Option<(i64, Structure)>,
    names: Names,
    names_len: usize,
    remembered: Remembered,
    ids: Vec<u64>,
    server: i64,
    epoch: i64,
    commits: i64,
    /// The commits of all servers together, when what is carried over was read, and one's own since.
    all_commits: i64,
    /// Whether the group that is worked on has begun its transaction. It does so with its first lock, or its commit: what is
    /// only read is not guarded by a transaction of this kind.
    has_begun: bool,
    /// Whether the group that is worked on reads records, as far as is known from the tries before.
    touches_records: bool,
    /// The groups that reckon with other servers at the records.
    rivalry: u32,
    /// The groups that reckon with other servers at the partitions.
    contention: u32,
    /// What the next group need not fetch.
    carried: Carried,
    /// What is to be told once it is known that a commit happened.
    parked: Parked,
}

/// How a group ended, if its commit happened.
#[derive(Default)]
struct Parked {
    outcomes: Vec<Result<(), Error>>,
    events: Vec<Event>,
}

/// How a try to run a group ended, other than well.
enum Setback {
    /// Others got in the way: again.
    Again,
    /// Another server has changed a partition that was not locked: again, with locks.
    Contended,
    /// What was carried over is out of date, as was to be expected: again without it.
    Stale,
    /// The connection was lost before anything was to be kept: again after connecting.
    Lost(String),
    /// The connection was lost around the commit, whose number this is.
    Unknown(String),
    /// It cannot work.
    Failed(Error),
}

impl From<Failure> for Setback {
    fn from(failure: Failure) -> Self {
        match failure {
            contended if contended.is_contended() => Self::Contended,
            passing if passing.is_passing() => Self::Again,
            Failure::Lost(reason) => Self::Lost(reason),
            // A deadline that passed, a full disk, too little memory: trying later may help.
            refused => {
                tracing::warn!(error = %refused, "PostgreSQL refused a statement");
                Self::Failed(Error::Busy(BUSY_FOR))
            }
        }
    }
}

impl From<Trouble> for Setback {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Failed(failure) => failure.into(),
            Trouble::Damaged(error) => Self::Failed(error),
        }
    }
}

impl Writer {
    /// Connects and registers the lane.
    pub async fn open(shared: Arc<Shared>, lane: usize) -> Result<Self, Failure> {
        let link = Link::open(&shared.address, &shared.schema).await?;
        let rows = link.run(vec![call(LATEST, Vec::new()), call(load::VERSIONS, Vec::new())]).await?;
        let (latest, at) = (moment(&rows[0][0], 0), moment(&rows[1][0], 0));
        let rows = link.run(vec![call(REGISTER, vec![param(latest.micros())])]).await?;
        let row = &rows[0][0];
        let (server, commits, epoch) = (row.get(0), row.get(1), row.get(2));
        let writer = Self {
            clock: Hybrid::new(latest, server),
            heard: (at, Stopwatch::start()),
            link: Some(link),
            structure: None,
            names: Names::default(),
            names_len: 0,
            remembered: Remembered::default(),
            ids: Vec::new(),
            server,
            epoch,
            commits,
            all_commits: 0,
            has_begun: false,
            touches_records: false,
            rivalry: 0,
            contention: 0,
            carried: Carried::default(),
            parked: Parked::default(),
            lane,
            shared,
        };
        writer.tell_time();
        Ok(writer)
    }

    /// Runs until told to close.
    pub async fn run(mut self, mut intake: Receiver<Input>) {
        let mut waiting = VecDeque::new();
        let (mut callers, mut gathering) = (0, Duration::ZERO);
        loop {
            let mut closing = false;
            if waiting.is_empty() {
                match self.next(&mut intake).await {
                    Some(Input::Operation(operation)) => waiting.push_back(operation),
                    Some(Input::Close) | None => closing = true,
                }
            }
            while waiting.len() < GROUP_OPERATIONS_MAX && !closing {
                match intake.try_recv() {
                    Ok(Input::Operation(operation)) => waiting.push_back(operation),
                    Ok(Input::Close) => closing = true,
                    Err(_) => break,
                }
            }
            if !closing {
                closing = gather(&mut waiting, &mut intake, callers, gathering).await;
            }
            let (watch, before) = (Stopwatch::start(), waiting.len());
            self.work(&mut waiting, &mut intake).await;
            gathering = (watch.elapsed() / GATHER_SHARE).min(GATHER_MAX);
            callers = before + intake.len();
            if closing {
                break;
            }
        }
        // Everything that was taken in is finished.
        intake.close();
        while let Ok(input) = intake.try_recv() {
            if let Input::Operation(operation) = input {
                waiting.push_back(operation);
            }
        }
        while !waiting.is_empty() {
            self.work(&mut waiting, &mut intake).await;
        }
    }

    /// Runs one group and answers it; what does not fit stays.
    async fn work(&mut self, waiting: &mut VecDeque<Box<dyn Operation>>, intake: &mut Receiver<Input>) {
        let watch = Stopwatch::start();
        let mut tries = 0;
        self.touches_records = false;
        loop {
            if self.link.as_ref().is_none_or(Link::is_closed) && !self.connect(watch, AWAY_MAX, intake).await
            {
                return busy(waiting);
            }
            let setback = match self.attempt(waiting, tries).await {
                Ok(()) => return,
                Err(setback) => setback,
            };
            if matches!(setback, Setback::Stale) {
                continue;
            }
            tries += 1;
            let is_patient = tries < TRIES_MAX && watch.elapsed() < PATIENCE;
            match setback {
                Setback::Again if is_patient => {
                    if self.touches_records {
                        self.rivalry = RIVALRY;
                    }
                    let spread = u64::from(tries.min(8)) * 1_000;
                    let pause = Duration::from_micros(baton_env::random_u64() % spread);
                    baton_env::sleep(pause).await;
                    if tries % 5 == 0 {
                        self.link = None;
                    }
                }
                Setback::Contended if is_patient => self.contention = CONTENTION,
                Setback::Lost(reason) if is_patient => {
                    tracing::warn!(reason, "the connection to PostgreSQL was lost");
                    self.link = None;
                }
                Setback::Unknown(reason) => {
                    tracing::warn!(reason, "the connection to PostgreSQL was lost around a commit");
                    return self.find_out(waiting, intake).await;
                }
                Setback::Failed(error) => {
                    let first = waiting.drain(..).collect::<Vec<_>>();
                    return first.into_iter().for_each(|operation| operation.finish(Err(error.clone())));
                }
                _ => return busy(waiting),
            }
        }
    }

    fn tell_time(&self) {
        self.shared.set_now(self.clock.last(), self.heard);
    }
}

/// Waits until as many operations are there as there were callers a moment ago, but not for long. A caller who is
/// alone never waits. Tells whether the store is closing.
async fn gather(
    waiting: &mut VecDeque<Box<dyn Operation>>,
    intake: &mut Receiver<Input>,
    callers: usize,
    limit: Duration,
) -> bool {
    let enough = callers.min(GROUP_OPERATIONS_MAX);
    if waiting.len() >= enough {
        return false;
    }
    // The runtime's own clock ticks too slowly for this.
    let mut over = tokio::task::spawn_blocking(move || baton_env::pause(limit));
    while waiting.len() < enough {
        tokio::select! {
            biased;
            input = intake.recv() => match input {
                Some(Input::Operation(operation)) => waiting.push_back(operation),
                Some(Input::Close) | None => return true,
            },
            _ = &mut over => break,
        }
    }
    false
}

fn busy(waiting: &mut VecDeque<Box<dyn Operation>>) {
    for operation in waiting.drain(..) {
        operation.finish(Err(Error::Busy(BUSY_FOR)));
    }
}
