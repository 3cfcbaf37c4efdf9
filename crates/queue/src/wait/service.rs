//! Runs waiting pops on a store: the clock, the queries and the callers around [`Waiters`].
//!
//! A push is applied in the store's memory; its event comes here on the store's own thread; the query that
//! follows is decided while the push is still being synced, and its answer leaves together with the push's.
//! So an idle consumer hears of a message one sync after it was sent.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use baton_env::{Clock, fresh_lease};
use baton_store::{Error as StoreError, Event, Operation, Store, Tx, TxError};
use baton_types::{LeaseId, QueueId};
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use super::hint::{News, Relay};
use super::recheck_schedule::LineId;
use super::wait_lists::{BackOff, Checked, Key, Query, WaitStatistics, WaiterId, Waiters, Watched};
use crate::Error;
use crate::rules::pop::{self, Decided, PopRequest};

/// What a pop was granted, before payloads are read. Dropped unaccepted it is given back, at once and uncharged.
pub struct Granted {
    pub lease: LeaseId,
    pub decided: Decided,
    home: Option<Arc<dyn Store>>,
}

impl Granted {
    fn new(store: &Arc<dyn Store>, lease: LeaseId, decided: Decided) -> Self {
        Self { lease, decided, home: Some(store.clone()) }
    }

    /// The caller has it: from now on only the lease's time or an ack ends it.
    pub fn accept(&mut self) {
        self.home = None;
    }
}

impl Drop for Granted {
    fn drop(&mut self) {
        if let Some(store) = self.home.take().filter(|_| !self.decided.claims.is_empty()) {
            store.submit(Box::new(GiveBack(self.lease)));
        }
    }
}

/// Returns messages whose caller has gone.
pub struct GiveBack(pub LeaseId);

impl Operation for GiveBack {
    fn apply(&mut self, tx: &mut dyn Tx) -> Result<(), TxError> {
        pop::give_back(tx, self.0)
    }

    fn finish(self: Box<Self>, _: Result<(), StoreError>) {}
}

/// What a wait came to: `None` if nothing was granted in time.
type Answer = Result<Option<Granted>, Error>;

/// A parked caller.
struct Caller {
    request: Arc<PopRequest>,
    answer: oneshot::Sender<Answer>,
}

/// Everyone who waits, with the store they wait for.
pub struct Parking {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    waiters: Mutex<Waiters<Caller>>,
    waiters_max: usize,
    alarm: Notify,
    closed: AtomicBool,
    /// Whether every pop finds nothing. Changed and heeded under the lock of the waiters.
    stopped: AtomicBool,
    /// Who tells other servers.
    relay: OnceLock<Relay>,
}

impl Parking {
    pub fn new(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        back_off: BackOff,
        waiters_max: usize,
    ) -> Arc<Self> {
        let this = Arc::new(Self {
            store: store.clone(),
            clock,
            waiters: Mutex::new(Waiters::new(back_off)),
            waiters_max,
            alarm: Notify::new(),
            closed: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            relay: OnceLock::new(),
        });
        let weak: Weak<Self> = Arc::downgrade(&this);
        store.set_listener(Arc::new(move |event| {
            if let Some(parking) = weak.upgrade() {
                parking.hear(event);
                parking.tell(News::Happened(event));
            }
        }));
        this
    }

    /// Keeps time: looks again when a pause ends and answers with nothing at a deadline.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        loop {
            let next = self.lock().set_alarm();
            let pause = next.map(|at| at.saturating_sub(self.clock.elapsed()));
            tokio::select! {
                () = stop.cancelled() => break,
                () = self.alarm.notified() => {}
                () = rest(pause) => self.tick(),
            }
        }
        self.close();
    }

    fn tick(self: &Arc<Self>) {
        let expired = self.lock().expire(self.clock.elapsed());
        for caller in expired {
            // A caller that has gone needs no answer.
            let _ = caller.answer.send(Ok(None));
        }
        self.look();
    }

    /// Waits until something is granted or the request's time is over. Dropping the future ends the wait.
    pub async fn wait(
        self: &Arc<Self>,
        request: Arc<PopRequest>,
        watched: Watched,
        wait: Duration,
    ) -> Answer {
        if self.closed.load(Ordering::Acquire) {
            return Ok(None);
        }
        let key = Key { target: request.target.clone(), group: request.group.clone() };
        let (answer, granted) = oneshot::channel();
        let id = {
            let mut waiters = self.lock();
            if self.is_stopped() {
                return Ok(None);
            }
            if waiters.len() >= self.waiters_max {
                return Err(Error::Busy {
                    reason: format!("{} pops are waiting already", self.waiters_max),
                    after: Duration::from_secs(1),
                });
            }
            let now = self.clock.elapsed();
            waiters.park(now, now + wait, key, watched, Caller { request, answer })
        };
        let leaving = Leaving { parking: self, id: Some(id) };
        self.look();
        self.ring();
        let answer = granted.await.unwrap_or(Ok(None));
        leaving.has_been_answered();
        answer
    }

    /// How many pops wait for each queue.
    pub fn by_queue(&self) -> BTreeMap<String, u64> {
        self.lock().by_queue()
    }

    pub fn statistics(&self) -> WaitStatistics {
        self.lock().statistics()
    }

    /// Answers every waiting pop with nothing and admits no more.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        for caller in self.lock().drain() {
            let _ = caller.answer.send(Ok(None));
        }
    }

    /// From now on every pop finds nothing, also those that wait; or no longer.
    pub fn stop(&self, on: bool) {
        let gone = {
            let mut waiters = self.lock();
            self.stopped.store(on, Ordering::Release);
            if on { waiters.drain() } else { Vec::new() }
        };
        for caller in gone {
            let _ = caller.answer.send(Ok(None));
        }
    }

    /// Whether every pop finds nothing.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Looks at once for everyone who waits for something of a queue.
    pub fn wake(self: &Arc<Self>, queue: QueueId) {
        self.lock().wake_queue(self.clock.elapsed(), queue);
        self.look();
    }

    /// From now on `relay` tells other servers.
    pub fn relay(&self, relay: Relay) {
        if self.relay.set(relay).is_ok() {
            self.lock().note_changes();
        }
    }

    /// Tells other servers, if there are any.
    pub fn tell(&self, news: News<'_>) {
        if let Some(relay) = self.relay.get() {
            relay(news);
        }
    }

    /// Something happened, here or on another server.
    pub fn hear(self: &Arc<Self>, event: Event) {
        let (Event::Appended { queue, .. } | Event::Freed { queue, .. }) = event;
        {
            let mut waiters = self.lock();
            let now = self.clock.elapsed();
            let is_news = waiters.note_queue(now, queue);
            if !waiters.watches(queue) && !is_news {
                return;
            }
            waiters.wake(now, event);
        }
        self.look();
    }

    /// Starts every query that is due.
    fn look(self: &Arc<Self>) {
        let queries: Vec<_> = {
            let mut waiters = self.lock();
            let due = waiters.take_due(self.clock.elapsed(), self.store.catalog_version());
            due.into_iter().map(|query| Look::new(self, query, &waiters)).collect()
        };
        for query in queries {
            self.store.submit(Box::new(query));
        }
    }

    /// Wakes the recheck timer's task, only if it would fire too late: every task that is woken pushes aside the one
    /// that was woken before it, which may be a caller with its answer.
    fn ring(&self) {
        if self.lock().is_before_alarm() {
            self.alarm.notify_one();
        }
    }

    fn lock(&self) -> Locked<'_> {
        let waiters = self.waiters.lock().unwrap_or_else(PoisonError::into_inner);
        Locked { waiters, relay: self.relay.get() }
    }
}

/// The waiters, locked. What changes about who waits where is told before the lock is let go, so in order.
struct Locked<'a> {
    waiters: MutexGuard<'a, Waiters<Caller>>,
    relay: Option<&'a Relay>,
}

impl Deref for Locked<'_> {
    type Target = Waiters<Caller>;

    fn deref(&self) -> &Self::Target {
        &self.waiters
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.waiters
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let Some(relay) = self.relay else { return };
        for (spot, on) in self.waiters.take_changes() {
            relay(News::Waits { queue: spot.queue, group: spot.group, name: &spot.name, on });
        }
    }
}

async fn rest(pause: Option<Duration>) {
    match pause {
        Some(pause) => baton_env::sleep(pause).await,
        None => std::future::pending().await,
    }
}

/// Takes a caller out when its future is dropped.
struct Leaving<'a> {
    parking: &'a Arc<Parking>,
    id: Option<WaiterId>,
}

impl Leaving<'_> {
    fn has_been_answered(mut self) {
        self.id = None;
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.parking.lock().cancel(id);
        }
    }
}

/// One query for a line: pops for its waiters, one after the other, until there is no more.
struct Look {
    parking: Arc<Parking>,
    line: LineId,
    asked: Vec<(WaiterId, Arc<PopRequest>)>,
    found: Vec<Found>,
    last: Decided,
    /// What the store had seen of changes that no event tells of, before it was decided.
    unheard: Option<u64>,
}

/// What is for a waiter.
struct Found {
    waiter: WaiterId,
    granted: Granted,
}

impl Look {
    fn new(parking: &Arc<Parking>, query: Query, waiters: &Waiters<Caller>) -> Self {
        let asked = query.waiters.into_iter();
        let asked = asked.filter_map(|id| Some((id, waiters.content(id)?.request.clone()))).collect();
        Self {
            parking: parking.clone(),
            line: query.line,
            asked,
            found: Vec::new(),
            last: Decided::default(),
            unheard: None,
        }
    }
}

impl Operation for Look {
    fn apply(&mut self, tx: &mut dyn Tx) -> Result<(), TxError> {
        // What an earlier run granted was never kept, and may have the lease that this one takes.
        self.found.drain(..).for_each(|mut found| found.granted.accept());
        self.unheard = self.parking.store.catalog_version();
        for (id, request) in &self.asked {
            let lease = request.attempt.unwrap_or_else(fresh_lease);
            let decided = pop::pop(tx, request, lease)?;
            if decided.claims.is_empty() {
                self.last = decided;
                break;
            }
            self.last = Decided { looked_at: decided.looked_at.clone(), ..Decided::default() };
            self.last.partition = decided.partition;
            let granted = Granted::new(&self.parking.store, lease, decided);
            self.found.push(Found { waiter: *id, granted });
        }
        Ok(())
    }

    fn finish(self: Box<Self>, outcome: Result<(), StoreError>) {
        let Self { parking, line, found, last, unheard, .. } = *self;
        let watched = Watched { queues: last.looked_at, partition: last.partition };
        let (mut served, mut failed) = (Vec::new(), Vec::new());
        {
            let mut waiters = parking.lock();
            let checked = Checked { found: !found.is_empty(), watched, due_in: last.due_in, unheard };
            match &outcome {
                Ok(()) => served.extend(found.into_iter().map(|found| (waiters.cancel(found.waiter), found))),
                Err(_) => failed = waiters.take_line(line),
            }
            waiters.checked(parking.clock.elapsed(), line, checked);
        }
        for (caller, found) in served {
            // What a caller that has gone was granted is given back as it is dropped.
            if let Some(caller) = caller {
                let _ = caller.answer.send(Ok(Some(found.granted)));
            }
        }
        if let Err(error) = outcome {
            for caller in failed {
                let _ = caller.answer.send(Err(error.clone().into()));
            }
        }
        parking.look();
        parking.ring();
    }
}

/// A pop that does not wait.
pub struct ImmediatePop {
    store: Arc<dyn Store>,
    request: Arc<PopRequest>,
    creates_queue: bool,
    granted: Option<Granted>,
    answer: oneshot::Sender<Result<Granted, StoreError>>,
}

impl ImmediatePop {
    /// Pops once; first creates the queue, if it `creates_queue`.
    pub async fn run(
        store: &Arc<dyn Store>,
        request: Arc<PopRequest>,
        creates_queue: bool,
    ) -> Result<Granted, StoreError> {
        let (answer, granted) = oneshot::channel();
        store.submit(Box::new(Self { store: store.clone(), request, creates_queue, granted: None, answer }));
        granted.await.unwrap_or_else(|_| Err(StoreError::Closed("the pop was dropped".into())))
    }
}

impl Operation for ImmediatePop {
    fn apply(&mut self, tx: &mut dyn Tx) -> Result<(), TxError> {
        if let Some(mut undone) = self.granted.take() {
            undone.accept();
        }
        let lease = self.request.attempt.unwrap_or_else(fresh_lease);
        if self.creates_queue {
            pop::create_queue(tx, &self.request)?;
        }
        self.granted = Some(Granted::new(&self.store, lease, pop::pop(tx, &self.request, lease)?));
        Ok(())
    }

    fn finish(self: Box<Self>, outcome: Result<(), StoreError>) {
        let granted = self.granted.ok_or_else(|| StoreError::Closed("the pop was never decided".into()));
        // A caller that has gone drops its answer, and so gives it back.
        let _ = self.answer.send(outcome.and(granted));
    }
}
