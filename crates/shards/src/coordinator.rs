//! The shards of a server: the way in for requests and for those who want to know.
//!
//! Each service has a keeper, a task of its own, for as long as it is stored or asked for. Always: requests of one worker are decided in the order in which they
//! were handed in; an answer is given after what it says is stored; services, requests under way and watchers are
//! bounded. Not here: the decision (`keeper`, `service`), sockets. Start at [`Shards::submit`].

use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use baton_store::Store;
use rustc_hash::FxHashMap;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::keeper::{Input, Keeper, Pulse};
use crate::limits::{INBOX_MAX, KEEPERS_MAX, WATCHERS_MAX};
use crate::record;
use crate::request::{Refusal, Request};
use crate::service::{Rules, Worker};
use crate::view::{Snapshot, View};

/// How shards are looked after.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The rules.
    pub rules: Rules,
    /// How often silent workers are looked for.
    pub check_interval: Duration,
    /// Shards that a service may have.
    pub shards_max: u32,
    /// Whether other servers work on the same store. If none does, beats need not be stored.
    pub shared: bool,
}

/// What became of a request.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The service, after it.
    pub snapshot: Arc<Snapshot>,
    /// The worker it was about; zero when that has left.
    pub number: u32,
}

impl Answer {
    /// The worker, unless it has left.
    pub fn worker(&self) -> Option<&Worker> {
        self.snapshot.service.worker(self.number)
    }

    /// What the worker is to be told.
    pub fn view(&self) -> &View {
        self.snapshot.view(self.number)
    }
}

/// Called once with what became of a request. Must return at once.
pub type Reply = Box<dyn FnOnce(Result<Answer, Refusal>) + Send>;

/// News of a service: `None` until it was first read.
pub type News = watch::Receiver<Option<Arc<Snapshot>>>;

#[derive(Clone, Debug)]
struct Handle {
    inbox: mpsc::Sender<Input>,
    news: News,
    subscribed: Arc<Notify>,
    pulse: Arc<Pulse>,
}

/// The shards of a server. Cheap to clone.
#[derive(Clone)]
pub struct Shards(Arc<Inner>);

struct Inner {
    store: Arc<dyn Store>,
    options: Options,
    /// Tells the beats of this server from those of others.
    server: u64,
    keepers: Mutex<FxHashMap<Arc<str>, Handle>>,
    watchers: AtomicUsize,
    stopping: CancellationToken,
}

impl std::fmt::Debug for Shards {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shards").field("options", &self.0.options).finish_non_exhaustive()
    }
}

impl Shards {
    /// Looks after the shards in `store` until [`stop`](Self::stop).
    pub fn start(store: Arc<dyn Store>, options: Options) -> Self {
        let shards = Self(Arc::new(Inner {
            store,
            options,
            server: baton_env::random_u64(),
            keepers: Mutex::default(),
            watchers: AtomicUsize::new(0),
            stopping: CancellationToken::new(),
        }));
        tokio::spawn(shards.clone().find_services());
        shards
    }

    /// How they are looked after.
    pub fn options(&self) -> &Options {
        &self.0.options
    }

    /// Ends all keepers. What was not decided yet is refused.
    pub fn stop(&self) {
        self.0.stopping.cancel();
    }

    /// Services that are stored have a keeper, whoever stored them: somebody must notice when their workers fall silent.
    async fn find_services(self) {
        loop {
            match baton_store::run(&*self.0.store, |tx| record::names(tx)).await {
                Ok(names) => names.into_iter().for_each(|name| {
                    if let Err(refusal) = self.keeper(&name.into()) {
                        tracing::debug!(%refusal, "cannot look after a service of shards");
                    }
                }),
                Err(error) => tracing::debug!(%error, "cannot look for services of shards"),
            }
            tokio::select! {
                () = self.0.stopping.cancelled() => return,
                () = baton_env::sleep(self.0.options.check_interval) => {}
            }
        }
    }

    fn handles(&self) -> std::sync::MutexGuard<'_, FxHashMap<Arc<str>, Handle>> {
        self.0.keepers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The keeper of a service, made when there is none.
    fn keeper(&self, name: &Arc<str>) -> Result<Handle, Refusal> {
        self.keeper_among(&mut self.handles(), name).cloned()
    }

    fn keeper_among<'a>(
        &self,
        keepers: &'a mut FxHashMap<Arc<str>, Handle>,
        name: &Arc<str>,
    ) -> Result<&'a Handle, Refusal> {
        if self.0.stopping.is_cancelled() {
            return Err(Refusal::Store("the server is stopping".into()));
        }
        let count = keepers.len();
        let free = match keepers.entry(Arc::clone(name)) {
            Entry::Occupied(found) => return Ok(found.into_mut()),
            Entry::Vacant(free) => free,
        };
        if count >= KEEPERS_MAX {
            return Err(Refusal::Busy("too many services are asked for: try again".into()));
        }
        let (inbox, inputs) = mpsc::channel(INBOX_MAX);
        let (teller, news) = watch::channel(None);
        let pulse = Arc::new(Pulse::default());
        let (store, options, server) = (Arc::clone(&self.0.store), self.0.options, self.0.server);
        let subscribed = Arc::new(Notify::new());
        let (name_, woken, counts) = (Arc::clone(name), Arc::clone(&subscribed), Arc::clone(&pulse));
        let keeper = Keeper::new(name_, store, options, server, woken, teller, counts);
        tokio::spawn(self.clone().keep(keeper, inputs));
        Ok(free.insert(Handle { inbox, news, subscribed, pulse }))
    }

    /// Runs a keeper until the server stops, or until its service is not stored and nobody asks for it.
    async fn keep(self, mut keeper: Keeper, mut inputs: mpsc::Receiver<Input>) {
        while keeper.run(&mut inputs, &self.0.stopping).await {
            // Requests are handed in under this lock, so none can arrive in between.
            let mut keepers = self.handles();
            if inputs.is_empty() {
                keepers.remove(keeper.name());
                return;
            }
        }
    }

    /// Hands a request in; `reply` hears what became of it.
    pub fn submit(&self, service: &Arc<str>, request: Request, reply: Reply) {
        if let Request::Beat(beat) = &request
            && let Some(count) = beat.count.filter(|count| *count > self.0.options.shards_max)
        {
            let max = self.0.options.shards_max;
            let text = format!("maxShardCount is {count}: this server allows {max} (shards_max)");
            return reply(Err(Refusal::TooMuch(text)));
        }
        let (reply, refusal) = {
            let mut keepers = self.handles();
            match self.keeper_among(&mut keepers, service) {
                Err(refusal) => (reply, refusal),
                Ok(keeper) => match keeper.inbox.try_send(Input { request, reply }) {
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

    /// Hands a request in and waits for what becomes of it.
    pub async fn ask(&self, service: &Arc<str>, request: Request) -> Result<Answer, Refusal> {
        let (sender, answer) = oneshot::channel();
        self.submit(
            service,
            request,
            Box::new(move |outcome| {
                // A caller that has gone away does not want the answer.
                let _ = sender.send(outcome);
            }),
        );
        answer.await.unwrap_or_else(|_| Err(Refusal::Store("the server is stopping".into())))
    }

    /// News of a service that is stored.
    pub async fn news(&self, service: &Arc<str>) -> Result<News, Refusal> {
        let known = self.handles().get(service).cloned();
        let handle = match known {
            Some(handle) => handle,
            None => {
                let unknown = || Refusal::UnknownService(service.clone());
                let names = baton_store::run(&*self.0.store, |tx| record::names(tx)).await;
                let names = names.map_err(|error| Refusal::Store(error.to_string()))?;
                if !names.iter().any(|name| **name == **service) {
                    return Err(unknown());
                }
                self.keeper(service)?
            }
        };
        handle.subscribed.notify_one();
        Ok(handle.news)
    }

    /// A service as it stands.
    pub async fn look(&self, service: &Arc<str>) -> Result<Arc<Snapshot>, Refusal> {
        let snapshot = first(&mut self.news(service).await?).await?;
        if snapshot.version == 0 { Err(Refusal::UnknownService(service.clone())) } else { Ok(snapshot) }
    }

    /// All services, by name.
    pub async fn list(&self) -> Result<Vec<(Arc<str>, Arc<Snapshot>)>, Refusal> {
        let names = baton_store::run(&*self.0.store, |tx| record::names(tx)).await;
        let mut services = Vec::new();
        for name in names.map_err(|error| Refusal::Store(error.to_string()))? {
            let name: Arc<str> = name.into();
            if let Ok(snapshot) = self.look(&name).await {
                services.push((name, snapshot));
            }
        }
        Ok(services)
    }

    /// Numbers about each service that this server knows, by name.
    pub fn pulses(&self) -> Vec<(Arc<str>, Arc<Snapshot>, Arc<Pulse>)> {
        let mut pulses: Vec<_> = self
            .handles()
            .iter()
            .filter_map(|(name, handle)| {
                let snapshot = handle.news.borrow().clone().filter(|snapshot| snapshot.version > 0)?;
                Some((name.clone(), snapshot, Arc::clone(&handle.pulse)))
            })
            .collect();
        pulses.sort_by(|a, b| a.0.cmp(&b.0));
        pulses
    }

    /// A place among those that wait for news.
    pub fn place(&self) -> Result<Place, Refusal> {
        if self.0.watchers.fetch_add(1, Ordering::Relaxed) >= WATCHERS_MAX {
            self.0.watchers.fetch_sub(1, Ordering::Relaxed);
            return Err(Refusal::Busy("too many callers wait for news of shards".into()));
        }
        Ok(Place(self.clone()))
    }
}

/// What a service looks like once it was read.
pub async fn first(news: &mut News) -> Result<Arc<Snapshot>, Refusal> {
    let stopping = || Refusal::Store("the server is stopping".into());
    let found = news.wait_for(Option::is_some).await.map_err(|_| stopping())?;
    found.clone().ok_or_else(stopping)
}

/// A watcher's place among those that there may be.
#[derive(Debug)]
pub struct Place(Shards);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.0.watchers.fetch_sub(1, Ordering::Relaxed);
    }
}
