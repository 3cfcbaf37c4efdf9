//! A process that takes part in many groups, with one lease for all its terms.
//!
//! Always: one small write per interval, however many groups; losing the lease ends every term under it. Living
//! processes fence and remove the leases of dead ones. Start at [`Process::start`].

use std::sync::Arc;
use std::time::Duration;

use baton_env::Clock;
use tokio::sync::{mpsc, watch};

use crate::candidate::Candidate;
use crate::elector::{Elector, Options, StartError};
use crate::machine::{
    HeldLease, Now, ObservedWorkers, ProcessLease, ProcessLeaseEffect, ProcessLeaseInput, SwapAnswer,
};
use crate::membership::{JoinedGroups, ProcessLeaseHandle};
use crate::record;
use crate::store::{self, Store, SwapOutcome};
use crate::store_calls;

/// After how many worker time-outs the lease of a silent process is removed.
const CLEAR_AFTER_TIMEOUTS: u32 = 3;

/// Leases removed per round.
const CLEARED_MAX: usize = 100;

/// A process, from which one takes part in any number of groups of a store.
#[derive(Debug)]
pub struct Process {
    store: Arc<dyn Store>,
    options: Options,
    worker_id: String,
    lease: ProcessLeaseHandle,
    joined: JoinedGroups,
    finished: watch::Receiver<bool>,
}

impl Process {
    /// Takes a lease on `store` for all groups that will be joined, with the settings of `options`.
    pub async fn start(store: Arc<dyn Store>, options: Options) -> Result<Self, StartError> {
        let (options, worker_id) = options.validated("a process")?;
        if options.probe && !store.is_trusted() {
            store::probe(&store).await?;
        }
        // Report an unusable store at the start instead of failing every renewal.
        store
            .read(&record::process_key(&format!("{worker_id}.probe")))
            .await
            .map_err(store::ProbeError::Failed)?;
        let (changes, current) = watch::channel(None);
        let (abandon, abandoned) = mpsc::channel(1);
        let (done, finished) = watch::channel(false);
        let seed = [baton_env::random_u64() | 1, baton_env::random_u64()];
        let lease_loop = LeaseLoop {
            lease: ProcessLease::new(options.settings.clone(), worker_id.clone(), seed),
            call_timeout: options.settings.call_timeout,
            worker_timeout: options.settings.worker_timeout,
            clock: Arc::clone(&options.clock),
            store: Arc::clone(&store),
            changes,
        };
        tokio::spawn(async move {
            lease_loop.run(abandoned).await;
            done.send_replace(true);
        });
        let options = Options { probe: false, ..options };
        Ok(Self {
            store,
            options,
            worker_id,
            lease: ProcessLeaseHandle { current, abandon },
            joined: JoinedGroups::default(),
            finished,
        })
    }

    /// This process's worker id in all its groups.
    pub fn worker_id(&self) -> &str {
        &self.worker_id
    }

    /// Joins `group`. The lease lasts as long as the process or any of its memberships.
    pub async fn join<C: Candidate>(&self, group: &str, candidate: C) -> Result<Elector, StartError> {
        let Some(membership) = self.joined.join(group, self.lease.clone()) else {
            return Err(StartError::Joined(group.to_owned()));
        };
        let options = Options { worker_id: Some(self.worker_id.clone()), ..self.options.clone() };
        Elector::start_with(Arc::clone(&self.store), group, options, candidate, Some(membership)).await
    }

    /// Waits until all memberships have ended, then releases the lease.
    pub async fn stop(self) {
        let Self { lease, mut finished, .. } = self;
        drop(lease);
        let _ = finished.wait_for(|finished| *finished).await;
    }
}

/// Renews the lease until the last handle to it is dropped.
struct LeaseLoop {
    lease: ProcessLease,
    call_timeout: Duration,
    worker_timeout: Duration,
    clock: Arc<dyn Clock>,
    store: Arc<dyn Store>,
    changes: watch::Sender<Option<HeldLease>>,
}

impl LeaseLoop {
    async fn run(mut self, mut abandoned: mpsc::Receiver<()>) {
        let (answers, mut answered) = mpsc::channel(1);
        let clearing = tokio::spawn(clear_silent_processes(
            Arc::clone(&self.store),
            Arc::clone(&self.clock),
            self.worker_timeout,
        ));
        let mut input = ProcessLeaseInput::Tick;
        let mut used = true;
        loop {
            let now = Now {
                mono: self.clock.elapsed(),
                wall_ms: u64::try_from(self.clock.now().micros() / 1000).unwrap_or(0),
            };
            let mut finished = false;
            for effect in self.lease.step(now, input) {
                match effect {
                    ProcessLeaseEffect::LeaseChanged(held) => {
                        self.changes.send_replace(held);
                    }
                    ProcessLeaseEffect::Finished => finished = true,
                    ProcessLeaseEffect::Read(_) | ProcessLeaseEffect::Swap(..) => {
                        self.spawn_call(effect, answers.clone())
                    }
                }
            }
            if finished {
                break;
            }
            let rest = self.lease.wake_at().saturating_sub(self.clock.elapsed());
            input = tokio::select! {
                Some(answer) = answered.recv() => answer,
                Some(()) = abandoned.recv() => ProcessLeaseInput::Abandon,
                () = self.changes.closed(), if used => {
                    used = false;
                    ProcessLeaseInput::Stop
                }
                () = baton_env::sleep(rest.min(Duration::from_secs(3600))) => ProcessLeaseInput::Tick,
            };
        }
        clearing.abort();
        let (process, version) = self.lease.current();
        // If this fails, another process removes the record later.
        let id = process.id();
        let ending = end_process(&*self.store, &id, version);
        let _ = tokio::time::timeout(self.call_timeout, ending).await;
    }

    /// Makes a call in a task of its own, within its time.
    fn spawn_call(&self, effect: ProcessLeaseEffect, answers: mpsc::Sender<ProcessLeaseInput>) {
        let (store, timeout) = (Arc::clone(&self.store), self.call_timeout);
        tokio::spawn(async move {
            let late = || format!("the store did not answer within {timeout:?}");
            let input = match effect {
                ProcessLeaseEffect::Swap(_, expected, process) => {
                    let id = process.id();
                    let swap = store_calls::swap_process(&*store, &id, expected.as_ref(), &process);
                    ProcessLeaseInput::SwapAnswered(match tokio::time::timeout(timeout, swap).await {
                        Ok(Ok(SwapOutcome::Done(version))) => SwapAnswer::Done(version),
                        Ok(Ok(SwapOutcome::Conflict)) => SwapAnswer::Conflict,
                        Ok(Err(error)) => SwapAnswer::Unknown(error.0),
                        Err(_) => SwapAnswer::Unknown(late()),
                    })
                }
                ProcessLeaseEffect::Read(key) => {
                    let id = key.strip_prefix(record::PROCESSES_PREFIX).unwrap_or(&key);
                    let read = tokio::time::timeout(timeout, store_calls::read_process(&*store, id)).await;
                    ProcessLeaseInput::Read(read.map_or_else(|_| Err(late()), |found| found.map_err(|e| e.0)))
                }
                ProcessLeaseEffect::LeaseChanged(_) | ProcessLeaseEffect::Finished => return,
            };
            let _ = answers.send(input).await;
        });
    }
}

/// Fences the record of a process if its version is still `version`, and removes it.
async fn end_process(
    store: &dyn Store,
    id: &str,
    version: Option<&store::Version>,
) -> Result<(), store::Error> {
    let Some(version) = version else { return Ok(()) };
    match store_calls::swap_process(store, id, Some(version), &record::ProcessRecord::fenced_record(id))
        .await?
    {
        SwapOutcome::Done(_) => store.remove(&record::process_key(id)).await,
        SwapOutcome::Conflict => Ok(()),
    }
}

/// Periodically removes the records of processes that have been silent for long.
async fn clear_silent_processes(store: Arc<dyn Store>, clock: Arc<dyn Clock>, silence: Duration) {
    let mut known = ObservedWorkers::default();
    loop {
        baton_env::sleep(silence).await;
        let Ok(list) = store.list(record::PROCESSES_PREFIX).await else { continue };
        known.update(clock.elapsed(), list);
        let silent = known.silent(clock.elapsed(), silence * CLEAR_AFTER_TIMEOUTS, "");
        let mut seen = Vec::new();
        for key in silent.iter().take(CLEARED_MAX) {
            let id = key.strip_prefix(record::PROCESSES_PREFIX).unwrap_or(key);
            if let Ok(Some((version, process))) = store_calls::read_process(&*store, id).await {
                seen.push((id, version, process));
            }
        }
        // A list may be stale: wait one more lease after reading each version.
        let longest = seen.iter().map(|(_, _, process)| process.lease_ms).max().unwrap_or(0);
        baton_env::sleep(Duration::from_millis(longest)).await;
        for (id, version, process) in seen {
            let _ = match process.fenced {
                true => store.remove(&process.key()).await,
                false => end_process(&*store, id, Some(&version)).await,
            };
        }
    }
}
