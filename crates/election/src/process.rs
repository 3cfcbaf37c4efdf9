//! A process that takes part in many groups, and holds all that it coordinates by one lease.
//!
//! Always: one small write per interval, however many groups; losing the lease ends every term held by it. Leases of
//! processes that died are fenced and cleared away by those that live. Start at [`Process::start`].

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_env::Clock;
use tokio::sync::{mpsc, watch};

use crate::call;
use crate::candidate::Candidate;
use crate::elector::{Elector, Options, StartError};
use crate::machine::{Held, Keeper, KeeperEffect, KeeperInput, Now, Swapped, Workers};
use crate::record;
use crate::store::{self, Store, Swap};

/// After how many time-outs the lease of a silent process is cleared away.
const SILENT_TIMEOUTS: u32 = 3;

/// Leases cleared away at a time.
const CLEARED_MAX: usize = 100;

/// A process, from which one takes part in any number of groups of a store.
#[derive(Debug)]
pub struct Process {
    store: Arc<dyn Store>,
    options: Options,
    worker_id: String,
    held: watch::Receiver<Option<Held>>,
    forsake: mpsc::Sender<()>,
    joined: Joined,
    finished: watch::Receiver<bool>,
}

/// The groups that a process takes part in: in each once, for it has one name in all of them.
type Joined = Arc<Mutex<BTreeSet<String>>>;

fn lock(joined: &Joined) -> MutexGuard<'_, BTreeSet<String>> {
    joined.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A participation's share of the lease of its process, until it has ended.
#[derive(Debug)]
pub(crate) struct Share {
    /// The lease.
    pub held: watch::Receiver<Option<Held>>,
    forsake: mpsc::Sender<()>,
    group: String,
    joined: Joined,
}

impl Share {
    /// Something may be held by the lease that nobody will act upon. So it is exchanged for another.
    pub fn forsake(&self) {
        // If there is no room, it is about to be.
        let _ = self.forsake.try_send(());
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        lock(&self.joined).remove(&self.group);
    }
}

impl Process {
    /// Takes a lease on `store` for all groups that will be joined, with the settings of `options`.
    pub async fn start(store: Arc<dyn Store>, options: Options) -> Result<Self, StartError> {
        let (options, worker_id) = options.checked("a process")?;
        if options.probe && !store.is_trusted() {
            store::probe(&store).await?;
        }
        // Told here and now rather than by failing for ever.
        store
            .read(&record::process_key(&format!("{worker_id}.probe")))
            .await
            .map_err(store::ProbeError::Failed)?;
        let (tell, held) = watch::channel(None);
        let (forsake, forsaken) = mpsc::channel(1);
        let (done, finished) = watch::channel(false);
        let seed = [baton_env::random_u64() | 1, baton_env::random_u64()];
        let keeping = Keeping {
            keeper: Keeper::new(options.settings.clone(), worker_id.clone(), seed),
            call_timeout: options.settings.call_timeout,
            silence: options.settings.worker_timeout,
            clock: Arc::clone(&options.clock),
            store: Arc::clone(&store),
            tell,
        };
        tokio::spawn(async move {
            keeping.run(forsaken).await;
            done.send_replace(true);
        });
        let options = Options { probe: false, ..options };
        Ok(Self { store, options, worker_id, held, forsake, joined: Joined::default(), finished })
    }

    /// This process's worker id in all its groups.
    pub fn worker_id(&self) -> &str {
        &self.worker_id
    }

    /// Takes part in `group`. The lease is kept for as long as anybody holds by it.
    pub async fn join<C: Candidate>(&self, group: &str, candidate: C) -> Result<Elector, StartError> {
        if !lock(&self.joined).insert(group.to_owned()) {
            return Err(StartError::Joined(group.to_owned()));
        }
        let (group, joined) = (group.to_owned(), Arc::clone(&self.joined));
        let (held, forsake) = (self.held.clone(), self.forsake.clone());
        let share = Share { held, forsake, group: group.clone(), joined };
        let options = Options { worker_id: Some(self.worker_id.clone()), ..self.options.clone() };
        Elector::begin(Arc::clone(&self.store), &group, options, candidate, Some(share)).await
    }

    /// Waits until all participations have ended, and gives the lease up.
    pub async fn stop(self) {
        let Self { held, mut finished, .. } = self;
        drop(held);
        let _ = finished.wait_for(|finished| *finished).await;
    }
}

/// Keeps the lease until nobody holds by it.
struct Keeping {
    keeper: Keeper,
    call_timeout: Duration,
    silence: Duration,
    clock: Arc<dyn Clock>,
    store: Arc<dyn Store>,
    tell: watch::Sender<Option<Held>>,
}

impl Keeping {
    async fn run(mut self, mut forsaken: mpsc::Receiver<()>) {
        let (answers, mut answered) = mpsc::channel(1);
        let clearing = tokio::spawn(clear(Arc::clone(&self.store), Arc::clone(&self.clock), self.silence));
        let mut input = KeeperInput::Tick;
        let mut used = true;
        loop {
            let now = Now {
                mono: self.clock.elapsed(),
                wall_ms: u64::try_from(self.clock.now().micros() / 1000).unwrap_or(0),
            };
            let mut finished = false;
            for effect in self.keeper.step(now, input) {
                match effect {
                    KeeperEffect::Held(held) => {
                        self.tell.send_replace(held);
                    }
                    KeeperEffect::Finished => finished = true,
                    KeeperEffect::Read(_) | KeeperEffect::Swap(..) => self.call(effect, answers.clone()),
                }
            }
            if finished {
                break;
            }
            let rest = self.keeper.wake_at().saturating_sub(self.clock.elapsed());
            input = tokio::select! {
                Some(answer) = answered.recv() => answer,
                Some(()) = forsaken.recv() => KeeperInput::Forsake,
                () = self.tell.closed(), if used => {
                    used = false;
                    KeeperInput::Stop
                }
                () = baton_env::sleep(rest.min(Duration::from_secs(3600))) => KeeperInput::Tick,
            };
        }
        clearing.abort();
        let (process, version) = self.keeper.current();
        // If this fails somebody else does it, later.
        let id = process.id();
        let ending = end(&*self.store, &id, version);
        let _ = tokio::time::timeout(self.call_timeout, ending).await;
    }

    /// Makes a call in a task of its own, within its time.
    fn call(&self, effect: KeeperEffect, answers: mpsc::Sender<KeeperInput>) {
        let (store, timeout) = (Arc::clone(&self.store), self.call_timeout);
        tokio::spawn(async move {
            let late = || format!("the store did not answer within {timeout:?}");
            let input = match effect {
                KeeperEffect::Swap(_, expected, process) => {
                    let id = process.id();
                    let swap = call::swap_process(&*store, &id, expected.as_ref(), &process);
                    KeeperInput::Swapped(match tokio::time::timeout(timeout, swap).await {
                        Ok(Ok(Swap::Done(version))) => Swapped::Done(version),
                        Ok(Ok(Swap::Conflict)) => Swapped::Conflict,
                        Ok(Err(error)) => Swapped::Unknown(error.0),
                        Err(_) => Swapped::Unknown(late()),
                    })
                }
                KeeperEffect::Read(key) => {
                    let id = key.strip_prefix(record::PROCESSES).unwrap_or(&key);
                    let read = tokio::time::timeout(timeout, call::read_process(&*store, id)).await;
                    KeeperInput::Read(read.map_or_else(|_| Err(late()), |found| found.map_err(|e| e.0)))
                }
                KeeperEffect::Held(_) | KeeperEffect::Finished => return,
            };
            let _ = answers.send(input).await;
        });
    }
}

/// Fences the record of a process, from the version that it has, and removes it.
async fn end(store: &dyn Store, id: &str, version: Option<&store::Version>) -> Result<(), store::Error> {
    let Some(version) = version else { return Ok(()) };
    match call::swap_process(store, id, Some(version), &call::fence(id)).await? {
        Swap::Done(_) => store.remove(&record::process_key(id)).await,
        Swap::Conflict => Ok(()),
    }
}

/// Clears away, again and again, what processes left behind that have been silent for long.
async fn clear(store: Arc<dyn Store>, clock: Arc<dyn Clock>, silence: Duration) {
    let mut known = Workers::default();
    loop {
        baton_env::sleep(silence).await;
        let Ok(list) = store.list(record::PROCESSES).await else { continue };
        known.learn(clock.elapsed(), list);
        let silent = known.silent(clock.elapsed(), silence * SILENT_TIMEOUTS, "");
        let mut seen = Vec::new();
        for key in silent.iter().take(CLEARED_MAX) {
            let id = key.strip_prefix(record::PROCESSES).unwrap_or(key);
            if let Ok(Some((version, process))) = call::read_process(&*store, id).await {
                seen.push((id, version, process));
            }
        }
        // A list may be late. So each is given its lease once more, from a version that was read.
        let longest = seen.iter().map(|(_, _, process)| process.lease_ms).max().unwrap_or(0);
        baton_env::sleep(Duration::from_millis(longest)).await;
        for (id, version, process) in seen {
            let _ = match process.fenced {
                true => store.remove(&process.key()).await,
                false => end(&*store, id, Some(&version)).await,
            };
        }
    }
}
