//! All services of a server: where requests enter and watchers subscribe.
//!
//! Each stored or requested service has its own actor task (`service_actor`). Always: the requests of one worker
//! are decided in the order of their arrival; an answer leaves after its state is stored; services, queued requests
//! and watchers are bounded. Not here: decisions (`service`), sockets. Start at [`Shards::submit`].

use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use baton_store::Store;
use rustc_hash::FxHashMap;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::limits::{ACTORS_MAX, QUEUED_REQUESTS_MAX, WATCHERS_MAX};
use crate::options::Options;
use crate::outcome::{Outcome, ReplyCallback};
use crate::request::{Refusal, Request};
use crate::service_actor::{QueuedRequest, ServiceActor, ServiceCounters};
use crate::service_record;
use crate::view::Snapshot;

/// Receives each new snapshot of a service; `None` until the first read.
pub type SnapshotReceiver = watch::Receiver<Option<Arc<Snapshot>>>;

#[derive(Clone, Debug)]
struct ActorHandle {
    inbox: mpsc::Sender<QueuedRequest>,
    snapshots: SnapshotReceiver,
    subscribed: Arc<Notify>,
    counters: Arc<ServiceCounters>,
}

/// The shards of a server. Cheap to clone.
#[derive(Clone)]
pub struct Shards(Arc<Inner>);

struct Inner {
    store: Arc<dyn Store>,
    options: Options,
    /// Tells the heartbeats that this server writes from those of other servers.
    server: u64,
    actors: Mutex<FxHashMap<Arc<str>, ActorHandle>>,
    watchers: AtomicUsize,
    stopping: CancellationToken,
}

impl std::fmt::Debug for Shards {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shards").field("options", &self.0.options).finish_non_exhaustive()
    }
}

impl Shards {
    /// Manages the shards in `store` until [`stop`](Self::stop).
    pub fn start(store: Arc<dyn Store>, options: Options) -> Self {
        let shards = Self(Arc::new(Inner {
            store,
            options,
            server: baton_env::random_u64(),
            actors: Mutex::default(),
            watchers: AtomicUsize::new(0),
            stopping: CancellationToken::new(),
        }));
        tokio::spawn(shards.clone().start_stored_services());
        shards
    }

    /// The options it was started with.
    pub fn options(&self) -> &Options {
        &self.0.options
    }

    /// Ends all actors. Requests that are not decided yet are refused.
    pub fn stop(&self) {
        self.0.stopping.cancel();
    }

    /// Starts an actor for each stored service, also for those that another server stored: only an actor notices
    /// that workers are silent.
    async fn start_stored_services(self) {
        loop {
            match baton_store::run(&*self.0.store, |tx| service_record::service_names(tx)).await {
                Ok(names) => names.into_iter().for_each(|name| {
                    if let Err(refusal) = self.actor(&name.into()) {
                        tracing::debug!(%refusal, "cannot start the actor of a service of shards");
                    }
                }),
                Err(error) => tracing::debug!(%error, "cannot list the services of shards"),
            }
            tokio::select! {
                () = self.0.stopping.cancelled() => return,
                () = baton_env::sleep(self.0.options.check_interval) => {}
            }
        }
    }

    fn lock_actors(&self) -> std::sync::MutexGuard<'_, FxHashMap<Arc<str>, ActorHandle>> {
        self.0.actors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The actor of a service; starts one if there is none.
    fn actor(&self, name: &Arc<str>) -> Result<ActorHandle, Refusal> {
        self.actor_in(&mut self.lock_actors(), name).cloned()
    }

    fn actor_in<'a>(
        &self,
        actors: &'a mut FxHashMap<Arc<str>, ActorHandle>,
        name: &Arc<str>,
    ) -> Result<&'a ActorHandle, Refusal> {
        if self.0.stopping.is_cancelled() {
            return Err(Refusal::Store("the server is stopping".into()));
        }
        let count = actors.len();
        let free = match actors.entry(Arc::clone(name)) {
            Entry::Occupied(found) => return Ok(found.into_mut()),
            Entry::Vacant(free) => free,
        };
        if count >= ACTORS_MAX {
            return Err(Refusal::Busy("too many services are asked for: try again".into()));
        }
        let (inbox, inputs) = mpsc::channel(QUEUED_REQUESTS_MAX);
        let (sender, snapshots) = watch::channel(None);
        let counters = Arc::new(ServiceCounters::default());
        let (store, options, server) = (Arc::clone(&self.0.store), self.0.options, self.0.server);
        let subscribed = Arc::new(Notify::new());
        let (name_, woken, counts) = (Arc::clone(name), Arc::clone(&subscribed), Arc::clone(&counters));
        let actor = ServiceActor::new(name_, store, options, server, woken, sender, counts);
        tokio::spawn(self.clone().run_actor(actor, inputs));
        Ok(free.insert(ActorHandle { inbox, snapshots, subscribed, counters }))
    }

    /// Runs an actor until the server stops, or until its service is neither stored nor requested.
    async fn run_actor(self, mut actor: ServiceActor, mut inputs: mpsc::Receiver<QueuedRequest>) {
        while actor.run(&mut inputs, &self.0.stopping).await {
            // Requests are queued under this lock, so none can arrive in between.
            let mut actors = self.lock_actors();
            if inputs.is_empty() {
                actors.remove(actor.name());
                return;
            }
        }
    }

    /// Queues a request; calls `reply` with the outcome.
    pub fn submit(&self, service: &Arc<str>, request: Request, reply: ReplyCallback) {
        if let Request::Heartbeat(heartbeat) = &request
            && let Some(count) = heartbeat.shard_count.filter(|count| *count > self.0.options.shards_max)
        {
            let max = self.0.options.shards_max;
            let text = format!("maxShardCount is {count}: this server allows {max} (shards_max)");
            return reply(Err(Refusal::TooMuch(text)));
        }
        let (reply, refusal) = {
            let mut actors = self.lock_actors();
            match self.actor_in(&mut actors, service) {
                Err(refusal) => (reply, refusal),
                Ok(actor) => match actor.inbox.try_send(QueuedRequest { request, reply }) {
                    Ok(()) => return,
                    Err(TrySendError::Full(input)) => {
                        let refusal =
                            Refusal::Busy("too many requests of this service wait: try again".into());
                        (input.reply, refusal)
                    }
                    Err(TrySendError::Closed(input)) => {
                        (input.reply, Refusal::Store("the server is stopping".into()))
                    }
                },
            }
        };
        reply(Err(refusal));
    }

    /// Queues a request and waits for its outcome.
    pub async fn submit_and_wait(&self, service: &Arc<str>, request: Request) -> Result<Outcome, Refusal> {
        let (sender, answer) = oneshot::channel();
        self.submit(
            service,
            request,
            Box::new(move |outcome| {
                // The caller may have gone away; then the outcome is dropped.
                let _ = sender.send(outcome);
            }),
        );
        answer.await.unwrap_or_else(|_| Err(Refusal::Store("the server is stopping".into())))
    }

    /// Subscribes to the snapshots of a stored service.
    pub async fn subscribe(&self, service: &Arc<str>) -> Result<SnapshotReceiver, Refusal> {
        let known = self.lock_actors().get(service).cloned();
        let handle = match known {
            Some(handle) => handle,
            None => {
                let unknown = || Refusal::UnknownService(service.clone());
                let names = baton_store::run(&*self.0.store, |tx| service_record::service_names(tx)).await;
                let names = names.map_err(|error| Refusal::Store(error.to_string()))?;
                if !names.iter().any(|name| **name == **service) {
                    return Err(unknown());
                }
                self.actor(service)?
            }
        };
        handle.subscribed.notify_one();
        Ok(handle.snapshots)
    }

    /// The current snapshot of a stored service.
    pub async fn snapshot(&self, service: &Arc<str>) -> Result<Arc<Snapshot>, Refusal> {
        let snapshot = first_snapshot(&mut self.subscribe(service).await?).await?;
        if snapshot.version == 0 { Err(Refusal::UnknownService(service.clone())) } else { Ok(snapshot) }
    }

    /// The snapshots of all services, by name.
    pub async fn list(&self) -> Result<Vec<(Arc<str>, Arc<Snapshot>)>, Refusal> {
        let names = baton_store::run(&*self.0.store, |tx| service_record::service_names(tx)).await;
        let mut services = Vec::new();
        for name in names.map_err(|error| Refusal::Store(error.to_string()))? {
            let name: Arc<str> = name.into();
            if let Ok(snapshot) = self.snapshot(&name).await {
                services.push((name, snapshot));
            }
        }
        Ok(services)
    }

    /// The counters of each service that this server knows, by name.
    pub fn counters(&self) -> Vec<(Arc<str>, Arc<Snapshot>, Arc<ServiceCounters>)> {
        let mut pulses: Vec<_> = self
            .lock_actors()
            .iter()
            .filter_map(|(name, handle)| {
                let snapshot = handle.snapshots.borrow().clone().filter(|snapshot| snapshot.version > 0)?;
                Some((name.clone(), snapshot, Arc::clone(&handle.counters)))
            })
            .collect();
        pulses.sort_by(|a, b| a.0.cmp(&b.0));
        pulses
    }

    /// A permit to wait for new snapshots; refuses beyond the limit.
    pub fn acquire_watcher(&self) -> Result<WatcherPermit, Refusal> {
        if self.0.watchers.fetch_add(1, Ordering::Relaxed) >= WATCHERS_MAX {
            self.0.watchers.fetch_sub(1, Ordering::Relaxed);
            return Err(Refusal::Busy("too many callers wait for changes of shards".into()));
        }
        Ok(WatcherPermit(self.clone()))
    }
}

/// Waits for the first snapshot.
pub async fn first_snapshot(snapshots: &mut SnapshotReceiver) -> Result<Arc<Snapshot>, Refusal> {
    let stopping = || Refusal::Store("the server is stopping".into());
    let found = snapshots.wait_for(Option::is_some).await.map_err(|_| stopping())?;
    found.clone().ok_or_else(stopping)
}

/// One of the bounded number of watchers.
#[derive(Debug)]
pub struct WatcherPermit(Shards);

impl Drop for WatcherPermit {
    fn drop(&mut self) {
        self.0.0.watchers.fetch_sub(1, Ordering::Relaxed);
    }
}
