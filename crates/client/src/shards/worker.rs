//! A shard worker: registers, sends heartbeats, and notifies the program of gained and lost shards.
//!
//! Always: the program hears of a shard before it counts as used, and has stopped using it before another worker can
//! get it or before its lease expires on this machine's own clock, which counts suspended time too; a lost answer
//! costs a heartbeat, not a shard. Not here: the rules (`leases`). Start at [`ShardWorkerBuilder::start`].

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_env::{BootClock, Clock};
use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::AbortOnDropHandle;

use super::Shards;
use super::leases::{Assignment, ShardChanges, ShardLeases};
use crate::Error;
use crate::connection::ApiCall;
use crate::retry::RetryPolicy;

/// The pause after a failed heartbeat.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// The longest wait for a change in one request.
const WAIT: Duration = Duration::from_secs(20);
/// The extra time of such a request beyond its wait.
const WAIT_GRACE: Duration = Duration::from_secs(5);
/// Shards whose stop the program reports at a time.
const STOPPED_MAX: usize = 1_024;

/// A shard that the program may use from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GainedShard {
    /// Its number.
    pub shard: u32,
    /// The fencing token. Pass it to the resource that the shard changes, which must refuse lower ones.
    pub token: u64,
}

/// A shard that the program must stop using.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostShard {
    /// Its number.
    pub shard: u32,
    /// Whether there is time for an orderly stop: no other worker gets the shard before this is done, or the lease
    /// expires.
    pub in_order: bool,
}

type OnGained = Arc<dyn Fn(GainedShard) + Send + Sync>;
type OnLost = Arc<dyn Fn(LostShard) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// A worker that has not started yet.
pub struct ShardWorkerBuilder {
    shards: Shards,
    id: String,
    count: u32,
    weight: Option<u32>,
    capacity: Option<u32>,
    take_over: bool,
    on_gained: OnGained,
    on_lost: OnLost,
}

impl fmt::Debug for ShardWorkerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardWorkerBuilder")
            .field("id", &self.id)
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

impl ShardWorkerBuilder {
    pub(super) fn new(shards: Shards, id: String, count: u32) -> Self {
        Self {
            shards,
            id,
            count,
            weight: None,
            capacity: None,
            take_over: false,
            on_gained: Arc::new(|_| {}),
            on_lost: Arc::new(|_| Box::pin(async {})),
        }
    }

    /// Its share of the shards, relative to other workers; 1 by default.
    pub fn weight(mut self, weight: u32) -> Self {
        self.weight = Some(weight);
        self
    }

    /// Shards it can have at most.
    pub fn capacity(mut self, capacity: u32) -> Self {
        self.capacity = Some(capacity);
        self
    }

    /// Asserts that no former process with this id runs any more, so that its shards need not wait for its lease. Use
    /// it only if you know that, for instance because a supervisor waits for the end of the last process.
    pub fn take_over(mut self) -> Self {
        self.take_over = true;
        self
    }

    /// Called with each shard that the program may use. Must return at once.
    pub fn on_gained(mut self, called: impl Fn(GainedShard) + Send + Sync + 'static) -> Self {
        self.on_gained = Arc::new(called);
        self
    }

    /// Called with each shard that the program must stop using; the shard is released when the future completes.
    pub fn on_lost<F>(mut self, called: impl Fn(LostShard) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.on_lost = Arc::new(move |lost| Box::pin(called(lost)));
        self
    }

    /// Registers, and sends heartbeats until [`ShardWorker::leave`] or until the worker is dropped. Fails when the
    /// server refuses or cannot be reached.
    pub async fn start(self) -> Result<ShardWorker, Error> {
        let session = baton_env::fresh_uuid().to_string();
        let heartbeat_ms = AtomicU64::new(0);
        let shared = Arc::new(ShardWorkerState {
            leases: Mutex::default(),
            clock: BootClock::default(),
            heartbeat_ms,
        });
        let (stopped_sender, stopped) = mpsc::channel(STOPPED_MAX);
        let driver = HeartbeatLoop { builder: self, session, shared: Arc::clone(&shared), stopped_sender };
        driver.send_heartbeat("register").await?;
        let (leave, leaving) = oneshot::channel();
        let task = AbortOnDropHandle::new(tokio::spawn(driver.run(stopped, leaving)));
        Ok(ShardWorker { shared, leave: Some(leave), task })
    }
}

/// The state that the program and the heartbeat task share.
struct ShardWorkerState {
    leases: Mutex<ShardLeases>,
    clock: BootClock,
    /// The heartbeat interval that the server asks for.
    heartbeat_ms: AtomicU64,
}

impl ShardWorkerState {
    fn lock_leases(&self) -> MutexGuard<'_, ShardLeases> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn heartbeat(&self) -> Duration {
        Duration::from_millis(self.heartbeat_ms.load(Ordering::Relaxed).max(1))
    }
}

/// A shard worker. Dropping it stops the heartbeats: its shards are free when its lease has expired.
///
/// ```no_run
/// # async fn example() -> Result<(), baton_client::Error> {
/// let baton = baton_client::Client::new("http://127.0.0.1:6632")?;
/// let worker = baton
///     .shards("orders")
///     .worker("orders-1", 100)
///     .on_gained(|gained| println!("begin {} under {}", gained.shard, gained.token))
///     .on_lost(|lost| async move { println!("ended {}", lost.shard) })
///     .start()
///     .await?;
/// println!("{:?}", worker.shards());
/// worker.leave().await?;
/// # Ok(())
/// # }
/// ```
pub struct ShardWorker {
    shared: Arc<ShardWorkerState>,
    leave: Option<oneshot::Sender<()>>,
    task: AbortOnDropHandle<Result<(), Error>>,
}

impl fmt::Debug for ShardWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardWorker").field("shards", &self.shards()).finish_non_exhaustive()
    }
}

impl ShardWorker {
    /// The shards that may be used at this moment, with their tokens.
    pub fn shards(&self) -> BTreeMap<u32, u64> {
        let now = self.shared.clock.elapsed();
        self.shared.lock_leases().shards_in_use(now)
    }

    /// The token of a shard, if it may be used now: ask right before the shard changes anything.
    pub fn token(&self, shard: u32) -> Option<u64> {
        self.shards().get(&shard).copied()
    }

    /// Stops using all shards and releases them.
    pub async fn leave(mut self) -> Result<(), Error> {
        if let Some(leave) = self.leave.take() {
            // If the task has ended, the reason follows below.
            let _ = leave.send(());
        }
        self.ended().await
    }

    /// Returns when the worker has ended by itself, with the reason: another process has registered under its id.
    pub async fn ended(&mut self) -> Result<(), Error> {
        match (&mut self.task).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Error::Closed),
        }
    }
}

/// The heartbeat task.
struct HeartbeatLoop {
    builder: ShardWorkerBuilder,
    session: String,
    shared: Arc<ShardWorkerState>,
    stopped_sender: mpsc::Sender<u32>,
}

impl HeartbeatLoop {
    async fn run(
        self,
        mut stopped: mpsc::Receiver<u32>,
        mut leaving: oneshot::Receiver<()>,
    ) -> Result<(), Error> {
        let mut next = self.shared.clock.elapsed() + self.shared.heartbeat();
        let mut left = false;
        loop {
            let now = self.shared.clock.elapsed();
            let generation = self.shared.lock_leases().generation();
            tokio::select! {
                asked = &mut leaving, if !left => {
                    left = true;
                    // The worker was dropped, and this task ends with it.
                    if asked.is_err() {
                        return Ok(());
                    }
                    let lost = self.shared.lock_leases().revoke_all();
                    self.notify_program(ShardChanges { lost, ..ShardChanges::default() }, true);
                }
                Some(shard) = stopped.recv() => {
                    let now = self.shared.clock.elapsed();
                    let change = self.shared.lock_leases().on_stopped(shard, now);
                    self.notify_program(change, true);
                    next = if self.shared.lock_leases().is_stopping() { next } else { now };
                }
                () = self.until_lease_expiry() => self.expire_lease(),
                () = baton_env::sleep(next.saturating_sub(now)), if !left => {
                    let outcome = self.heartbeat_watching_lease().await;
                    next = self.shared.clock.elapsed() + self.shared.heartbeat();
                    match outcome {
                        Ok(()) => {}
                        Err(error @ Error::Conflict(_)) => {
                            let lost = self.shared.lock_leases().revoke_all();
                            self.notify_program(ShardChanges { lost, ..ShardChanges::default() }, false);
                            return Err(error);
                        }
                        Err(error) => {
                            tracing::warn!(%error, worker = self.builder.id, "a beat of a worker of shards failed");
                            next = self.shared.clock.elapsed() + RETRY_INTERVAL.min(self.shared.heartbeat());
                        }
                    }
                }
                () = self.wait_for_change(generation), if !left => next = Duration::ZERO,
            }
            if left && !self.shared.lock_leases().is_stopping() {
                return self.release().await;
            }
        }
    }

    /// Returns when the lease of shards in use has expired.
    async fn until_lease_expiry(&self) {
        let Some(deadline) = self.shared.lock_leases().in_use_until() else {
            return std::future::pending().await;
        };
        baton_env::sleep(deadline.saturating_sub(self.shared.clock.elapsed())).await;
    }

    fn expire_lease(&self) {
        let change = self.shared.lock_leases().check_expiry(self.shared.clock.elapsed());
        self.notify_program(change, false);
    }

    /// A heartbeat may take as long as a server is out of reach; the lease expires meanwhile.
    async fn heartbeat_watching_lease(&self) -> Result<(), Error> {
        let mut beat = std::pin::pin!(self.send_heartbeat("heartbeat"));
        loop {
            tokio::select! {
                outcome = &mut beat => return outcome,
                () = self.until_lease_expiry() => self.expire_lease(),
            }
        }
    }

    /// Returns when there is a change.
    async fn wait_for_change(&self, generation: u64) {
        let shards = &self.builder.shards;
        loop {
            let millis = u64::try_from(WAIT.as_millis()).unwrap_or(u64::MAX);
            let path = shards.path().query("worker", &self.builder.id).number_query("wait", millis);
            let Ok(path) = path.number_query("after", generation).build() else {
                return std::future::pending().await;
            };
            let call = ApiCall {
                method: Method::GET,
                path,
                body: Bytes::new(),
                timeout: WAIT + WAIT_GRACE,
                retry_policy: RetryPolicy::Never,
                routing_key: &shards.service,
                idempotency_key: None,
            };
            match shards.client.transport().call(call).await.and_then(|answer| answer.parse::<Value>()) {
                Ok(shown) if shown["generation"].as_u64().is_some_and(|now| now > generation) => return,
                Ok(_) => {}
                Err(_) => baton_env::sleep(self.shared.heartbeat()).await,
            }
        }
    }

    async fn send_heartbeat(&self, action: &str) -> Result<(), Error> {
        let builder = &self.builder;
        let body = {
            let share = self.shared.lock_leases();
            json!({
                "action": action,
                "workerId": builder.id,
                "sessionId": self.session,
                "maxShardCount": builder.count,
                "weight": builder.weight,
                "capacity": builder.capacity,
                "takeOver": builder.take_over && action == "register",
                "generation": share.generation(),
                "ranges": share.held_ranges(),
            })
        };
        // Taken before the first attempt, however many follow.
        let sent = self.shared.clock.elapsed();
        let assignment: Assignment = builder.shards.post_action(&body).await?;
        self.shared.heartbeat_ms.store(assignment.heartbeat_ms, Ordering::Relaxed);
        let now = self.shared.clock.elapsed();
        let change = self.shared.lock_leases().apply_assignment(sent, now, &assignment);
        self.notify_program(change, true);
        Ok(())
    }

    async fn release(&self) -> Result<(), Error> {
        let body = json!({"action": "release", "workerId": self.builder.id, "sessionId": self.session});
        match self.builder.shards.post_action::<Value>(&body).await {
            // The registration is gone in either case.
            Ok(_) | Err(Error::NotFound(_) | Error::Conflict(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Notifies the program. Shards that it has stopped using return through `stopped`.
    fn notify_program(&self, change: ShardChanges, in_order: bool) {
        for shard in change.lost {
            let (ending, done) =
                ((self.builder.on_lost)(LostShard { shard, in_order }), self.stopped_sender.clone());
            tokio::spawn(async move {
                ending.await;
                // The worker may have been dropped meanwhile.
                let _ = done.send(shard).await;
            });
        }
        for (shard, token) in change.gained {
            (self.builder.on_gained)(GainedShard { shard, token });
        }
    }
}
