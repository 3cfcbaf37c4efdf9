//! News of elections: callers that wait for a change of a group, and those that listen to all that happens in it.
//!
//! Always: a watcher also looks by itself, since another server may have written or a lease may have run out; a slow
//! listener holds up only itself.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use baton_election::lease::LeaseState;
use baton_election::record::{EpochRecord, WorkerRecord};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{Elections, Look, Refusal};

/// Callers that wait for news at a time.
const WATCHERS_MAX: usize = 4_096;
/// How often a watcher looks by itself.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Events that wait for a slow reader.
const EVENTS_MAX: usize = 16;
/// How often a stream without news says that it is there.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

impl Elections {
    /// One group, as soon as its version is another than `after`, or when `wait` has passed.
    pub async fn watch(self: &Arc<Self>, group: &str, after: &str, wait: Duration) -> Result<Look, Refusal> {
        let _place = self.place()?;
        self.wait(group, after, wait, Look::version).await
    }

    async fn wait(
        &self,
        group: &str,
        after: &str,
        wait: Duration,
        version: fn(&Look) -> String,
    ) -> Result<Look, Refusal> {
        let mut news = self.news.subscribe();
        let end = tokio::time::timeout(wait, async {
            loop {
                news.borrow_and_update();
                let found = self.look(group).await?;
                if version(&found) != after {
                    return Ok(found);
                }
                tokio::select! {
                    _ = news.changed() => {}
                    () = baton_env::sleep(LOOK_INTERVAL) => {}
                }
            }
        });
        match end.await {
            Ok(found) => found,
            Err(_) => self.look(group).await,
        }
    }

    /// Tells of every change of coordinator, as server-sent events, until nobody listens or `stopped` returns.
    pub fn events(
        self: &Arc<Self>,
        group: String,
        stopped: impl Future<Output = ()> + Send + 'static,
    ) -> Result<mpsc::Receiver<Bytes>, Refusal> {
        let place = self.place()?;
        let (events, receiver) = mpsc::channel(EVENTS_MAX);
        tokio::spawn(async move {
            tokio::select! {
                () = place.0.tell_all(&group, &events) => {}
                () = events.closed() => {}
                () = stopped => {}
            }
        });
        Ok(receiver)
    }

    async fn tell_all(&self, group: &str, events: &mpsc::Sender<Bytes>) {
        let (mut after, mut last) = (String::new(), None);
        loop {
            // A store that fails for a while is asked again; the stream goes on.
            let text = match self.wait(group, &after, KEEP_ALIVE, Look::full_version).await {
                Ok(look) if look.full_version() == after => ": still here\n\n".to_owned(),
                Ok(look) => {
                    after = look.full_version();
                    news(last.replace(look.clone()).as_ref(), &look)
                }
                Err(_) => {
                    baton_env::sleep(LOOK_INTERVAL).await;
                    continue;
                }
            };
            if !text.is_empty() && events.send(text.into()).await.is_err() {
                return;
            }
        }
    }

    fn place(self: &Arc<Self>) -> Result<Place, Refusal> {
        if self.watchers.fetch_add(1, Ordering::Relaxed) >= WATCHERS_MAX {
            self.watchers.fetch_sub(1, Ordering::Relaxed);
            return Err(Refusal::Busy("too many callers wait for news of elections"));
        }
        Ok(Place(Arc::clone(self)))
    }
}

/// A watcher's place among those that there may be.
pub struct Place(Arc<Elections>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.watchers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What has happened from one look to the next, as server-sent events.
fn news(before: Option<&Look>, now: &Look) -> String {
    let mut text = String::new();
    let mut event =
        |name: &str, data: Value| text.push_str(&format!("event: coord:{name}\ndata: {data}\n\n"));
    for (worker, version) in &now.workers {
        let same_id = |(known, _): &&(WorkerRecord, u64)| known.worker_id == worker.worker_id;
        let known = before.and_then(|before| before.workers.iter().find(same_id));
        if known.is_some_and(|(_, known)| known == version) {
            continue;
        }
        let id = &worker.worker_id;
        event("worker-heartbeat", json!({"workerId": id, "timestamp": worker.last_heartbeat}));
        // A worker may come to several steps from one look to the next. What came before the first look is no news.
        let told = match known {
            Some((known, _)) if known.incarnation == worker.incarnation => known.phases.len(),
            _ if before.is_none() => worker.phases.len(),
            _ => 0,
        };
        for step in worker.phases.iter().skip(told) {
            let data = json!({"workerId": id, "phase": step.phase, "duration": step.duration});
            event("cold-start-phase-changed", data);
        }
    }
    let held = |look: &Look| look.state.clone().filter(|state| !state.is_free()).map(|state| state.epoch);
    let (before, after) = (before.and_then(held), held(now));
    let number = |epoch: &Option<EpochRecord>| epoch.as_ref().map(|epoch| epoch.epoch_number);
    if number(&before) == number(&after) {
        if let Some((before, after)) = before.zip(after).filter(|(before, after)| before.epoch != after.epoch)
        {
            let data = json!({
                "workerId": before.coordinator_id,
                "newEpoch": after.epoch,
                "epochNumber": after.epoch_number,
            });
            event("coordinator-epoch-renewed", data);
        }
        return text;
    }
    if let Some(gone) = &before {
        let same = |state: &&LeaseState| state.epoch.epoch_number == gone.epoch_number;
        let reason = match now.state.as_ref().filter(same) {
            Some(state) if state.epoch.released => "released",
            Some(_) => "lease-expired",
            None => "superseded",
        };
        let data =
            json!({"workerId": gone.coordinator_id, "reason": reason, "epochNumber": gone.epoch_number});
        event("coordinator-demoted", data);
    }
    if let Some(epoch) = after {
        // One whose lease has run out leaves its record behind.
        let lost =
            before.as_ref().map(|gone| &gone.coordinator_id).filter(|lost| **lost != epoch.coordinator_id);
        let alive = now.workers.iter().filter(|(worker, _)| lost != Some(&worker.worker_id)).count();
        let data = json!({
            "workerId": epoch.coordinator_id,
            "epoch": epoch.epoch,
            "activeWorkers": alive,
            "epochNumber": epoch.epoch_number,
            "previous": before.map(|gone| gone.coordinator_id),
        });
        event("coordinator-elected", data);
        let data = json!({
            "workerId": epoch.coordinator_id,
            "timestamp": epoch.epoch_start,
            "epochNumber": epoch.epoch_number,
        });
        event("coordinator-promoted", data);
    }
    text
}
