//! The groups: takes in operations, runs each group of them as one database transaction, answers.
//!
//! A group costs a fixed small number of round trips, however many operations it has: one that writes and commits, and
//! before it one that fetches what decisions miss, unless the last group had it (`carried`). What was fetched is compared
//! at the commit; only after another server was in the way is it locked at once, for a while. What arrives meanwhile
//! is the next group, so groups grow with the load and with the distance to the database; where many call, the next is
//! decided and sent before the last is committed (`flight`).
//!
//! Always: nothing is answered before its commit is known to have happened or not. When the connection is lost
//! around a commit, the server's own row in the database tells, and asking also keeps a commit that is still on
//! its way from happening later.

mod flight;
mod group;
mod reconnect;
mod trust;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use baton_env::Stopwatch;
use baton_store::{Error, Operation};
use baton_types::Timestamp;
use tokio::sync::mpsc::Receiver;

use self::flight::Flight;
pub use self::reconnect::{AWAY_MAX, RECONNECT_FIRST, RECONNECT_MAX};
use self::trust::Trust;
use crate::carried::Carried;
use crate::clock::Hybrid;
use crate::failure::Failure;
use crate::link::{Link, call, moment, param};
use crate::load::{self, Trouble};
use crate::remembered::Remembered;
use crate::store::{BUSY_FOR, Shared};
use crate::structure::Structure;
use crate::tx::Names;
use crate::wanted::Wanted;

/// Operations in one group: enough to share a commit, few enough to be decided in a blink.
const GROUP_OPERATIONS_MAX: usize = 2_048;
/// Commits that are under way at the same time at most: one with the database, one on its way there.
const FLIGHTS_MAX: usize = 2;
/// Of those who call at the same time, one in so many makes a group that is sent while another is under way: that one is
/// committed while the others are answered and call again. Smaller groups would only cost more.
const CALLERS_SHARE: usize = 2;
/// With fewer callers than this nothing is sent before the last group is committed.
const CALLERS_FEW: usize = 3;
/// How often a group is run that others get in the way of.
const TRIES_MAX: u32 = 30;
/// How long a group is tried before its callers are told to come again: longer than a server that went away holds its
/// locks, and than a statement that gets no answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// For so many groups that change records the lock on them is taken at once after another server was in the way: while
/// several write records all the time, a try without it is in vain most of the time.
const RIVALRY: u32 = if cfg!(test) { 1 } else { 16 };
/// Begins a server's row.
const REGISTER: &str = "INSERT INTO servers (moment) VALUES ($1) RETURNING id, commits_made, epoch";
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
    /// Whether it changes queues or groups or rests on them more than others, as far as is known from the tries before.
    touches_structure: bool,
    /// The partitions that tries before had to lock. The next locks all of them at once, in the order of locks.
    needed: Wanted,
    /// The groups that reckon with other servers at the records.
    rivalry: u32,
    /// Whether other servers are reckoned with at the partitions.
    trust: Trust,
    /// What the next group need not fetch.
    carried: Carried,
    /// The commits that were sent and not answered yet.
    flights: VecDeque<Flight>,
    /// Whether the next group has to wait until nothing is under way.
    must_land: bool,
    /// How many called at the same time when the last commit ended.
    callers: usize,
}

/// How a try to run a group ended, other than well.
enum Setback {
    /// Others got in the way: again.
    Again,
    /// Another server has changed a partition that was not locked: again, with locks.
    Contended,
    /// Partitions that are locked by others could not be waited for, as they come before some that this group had
    /// locked: again, with all of them in order.
    Blocked,
    /// The database has found servers that waited for each other: again.
    Deadlock(String),
    /// What was carried over is out of date, as was to be expected: again without it.
    Stale,
    /// The connection was lost before anything was to be kept: again after connecting.
    Lost(String),
    /// The connection was lost around the commits under way.
    Unknown(String),
    /// It cannot work.
    Failed(Error),
}

impl From<Failure> for Setback {
    fn from(failure: Failure) -> Self {
        match failure {
            contended if contended.is_contended() => Self::Contended,
            deadlock if deadlock.is_deadlock() => Self::Deadlock(deadlock.to_string()),
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
            clock: Hybrid::new(latest),
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
            touches_structure: false,
            needed: Wanted::default(),
            rivalry: 0,
            trust: Trust::default(),
            carried: Carried::default(),
            flights: VecDeque::new(),
            must_land: false,
            callers: 0,
            lane,
            shared,
        };
        writer.tell_time();
        Ok(writer)
    }

    /// Runs until told to close, and everything that was taken in is finished.
    pub async fn run(mut self, mut intake: Receiver<Input>) {
        let mut waiting = VecDeque::new();
        while !(waiting.is_empty() && self.flights.is_empty() && intake.is_closed() && intake.is_empty()) {
            take_in(&mut waiting, &mut intake);
            if !self.flights.is_empty() {
                self.go_on(&mut waiting, &mut intake).await;
            } else if !waiting.is_empty() {
                self.work(&mut waiting, &mut intake, None).await;
            } else if let Some(input) = self.next(&mut intake).await {
                input.join(&mut waiting, &mut intake);
            }
        }
    }

    /// While a commit is under way: sends the next after it, or waits for whatever comes first.
    async fn go_on(&mut self, waiting: &mut VecDeque<Box<dyn Operation>>, intake: &mut Receiver<Input>) {
        let is_next = self.flights.len() < FLIGHTS_MAX && !self.must_land;
        let is_enough = self.callers >= CALLERS_FEW && waiting.len() >= self.callers.div_ceil(CALLERS_SHARE);
        if is_next && is_enough {
            match self.follow(waiting).await {
                Ok(followed) => self.must_land = !followed,
                Err(setback) => self.work(waiting, intake, Some(setback)).await,
            }
            return;
        }
        let has_room = waiting.len() < GROUP_OPERATIONS_MAX;
        let landed = tokio::select! {
            biased;
            landed = self.landing() => landed,
            Some(input) = intake.recv(), if has_room => return input.join(waiting, intake),
        };
        self.must_land = false;
        if let Err(setback) = self.land(landed, waiting).await {
            self.work(waiting, intake, Some(setback)).await;
        }
    }

    /// Gets a group under way, or answers it; what does not fit stays. Nothing is under way before, unless what became
    /// of it is unknown.
    async fn work(
        &mut self,
        waiting: &mut VecDeque<Box<dyn Operation>>,
        intake: &mut Receiver<Input>,
        mut setback: Option<Setback>,
    ) {
        let watch = Stopwatch::start();
        let mut tries = 0;
        self.touches_records &= setback.is_some();
        self.touches_structure &= setback.is_some();
        self.needed = Wanted::default();
        loop {
            if let Some(setback) = setback {
                // Each that was blocked knows more partitions than the one before, so they come to an end.
                let is_blocked = matches!(setback, Setback::Blocked);
                match setback {
                    Setback::Stale => {}
                    Setback::Blocked => tries = tries.max(1),
                    _ => tries += 1,
                }
                let is_patient = (is_blocked || tries < TRIES_MAX) && watch.elapsed() < PATIENCE;
                if !self.overcome(setback, tries, is_patient, waiting, intake).await {
                    return;
                }
            }
            if self.link.as_ref().is_none_or(Link::is_closed) && !self.connect(watch, AWAY_MAX, intake).await
            {
                return busy(waiting);
            }
            match self.attempt(waiting, tries).await {
                Ok(()) => return,
                Err(trouble) => setback = Some(trouble),
            }
        }
    }

    /// What is to be done after a setback. Tells whether to try again.
    async fn overcome(
        &mut self,
        setback: Setback,
        tries: u32,
        is_patient: bool,
        waiting: &mut VecDeque<Box<dyn Operation>>,
        intake: &mut Receiver<Input>,
    ) -> bool {
        if !matches!(setback, Setback::Stale) {
            self.shared.count_repeat(matches!(setback, Setback::Deadlock(_)));
        }
        let setback = match setback {
            Setback::Deadlock(reason) => {
                tracing::warn!(lane = self.lane, reason, "servers waited for each other");
                Setback::Again
            }
            setback => setback,
        };
        match setback {
            Setback::Stale => {}
            Setback::Blocked if is_patient => {}
            Setback::Again if is_patient => {
                if self.touches_records {
                    self.rivalry = RIVALRY;
                }
                let spread = u64::from(tries.min(8)) * 1_000;
                let pause = Duration::from_micros(baton_env::random_u64() % spread);
                baton_env::sleep(pause).await;
                if tries.is_multiple_of(5) {
                    self.link = None;
                }
            }
            Setback::Contended if is_patient => self.trust.is_betrayed(),
            Setback::Lost(reason) if is_patient => {
                tracing::warn!(reason, "the connection to PostgreSQL was lost");
                self.link = None;
            }
            Setback::Unknown(reason) => {
                tracing::warn!(reason, "the connection to PostgreSQL was lost around a commit");
                self.find_out(waiting, intake).await;
                return false;
            }
            Setback::Failed(error) => {
                for operation in waiting.drain(..) {
                    operation.finish(Err(error.clone()));
                }
                return false;
            }
            _ => {
                tracing::warn!(
                    lane = self.lane,
                    tries,
                    calls = waiting.len(),
                    "calls were tried in vain for too long"
                );
                busy(waiting);
                return false;
            }
        }
        true
    }

    fn tell_time(&self) {
        self.shared.set_now(self.clock.last(), self.heard);
    }
}

impl Input {
    fn join(self, waiting: &mut VecDeque<Box<dyn Operation>>, intake: &mut Receiver<Input>) {
        match self {
            Self::Operation(operation) => waiting.push_back(operation),
            Self::Close => intake.close(),
        }
    }
}

/// Takes in what has come.
fn take_in(waiting: &mut VecDeque<Box<dyn Operation>>, intake: &mut Receiver<Input>) {
    while waiting.len() < GROUP_OPERATIONS_MAX
        && let Ok(input) = intake.try_recv()
    {
        input.join(waiting, intake);
    }
}

fn busy(waiting: &mut VecDeque<Box<dyn Operation>>) {
    for operation in waiting.drain(..) {
        operation.finish(Err(Error::Busy(BUSY_FOR)));
    }
}
