//! `/api/v1/shards/…`: take part as a worker, or look who has which shard, from any language.
//!
//! The members of a message are those of the ZeroMQ protocol; `action` stands for its `type`. Always: a worker that gives
//! a `sessionId` is answered with ranges, tokens, and for how many milliseconds it may rely on them, counted from before
//! it asked; looking and watching renew nothing. Start at [`act`].

use std::sync::Arc;
use std::time::Duration;

use baton_http::Reply;
use baton_shards::wire::{self, MessageData, ShardMessage};
use baton_shards::{Outcome as Assigned, Refusal, Request, Snapshot, SnapshotReceiver, first_snapshot};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::call::{Answer, Call};
use crate::error::Error;
use crate::json;

/// The longest wait for news.
pub(super) const WAIT_MAX_MS: u64 = 60_000;
/// Events that wait for a slow reader; then it holds up only itself.
const EVENTS_MAX: usize = 16;
/// How often a stream without news says that it is there.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

#[derive(Deserialize)]
struct Action {
    action: String,
}

/// Lists all services.
pub(super) fn list(call: Call) -> Answer {
    Box::pin(async move {
        let services = call.app().shards.list().await?;
        let rows: Vec<Value> =
            services.iter().map(|(name, snapshot)| wire::service_summary(name, snapshot)).collect();
        Reply::ok(&json!({"services": rows}))
    })
}

/// Takes part.
pub(super) fn act(mut call: Call) -> Answer {
    Box::pin(async move {
        let service = named(&call)?;
        let body = call.body()?;
        let wrong = |problem: serde_json::Error| {
            let problem = json::problem(&problem);
            Error::invalid(format!(
                "the body is not an action ({problem}): send for instance {{\"action\":\"register\",\"workerId\":\
                 \"w1\",\"maxShardCount\":100}}; actions are register, heartbeat, release, drain and undrain"
            ))
        };
        let action: Action = serde_json::from_slice(&body).map_err(wrong)?;
        let data: MessageData<'_> = serde_json::from_slice(&body).map_err(wrong)?;
        let caller = call.caller().map(|subject| format!("token:{subject}").into());
        let ShardMessage { service, request, sequence } =
            ShardMessage::from_data(&action.action, service, data, caller)?;
        let answer = call.app().shards.submit_and_wait(&service, request).await?;
        Reply::ok(&wire::assignment_data(&answer, sequence))
    })
}

/// Deletes a service that has no live workers.
pub(super) fn delete(call: Call) -> Answer {
    Box::pin(async move {
        let service = named(&call)?;
        call.app().shards.submit_and_wait(&service, Request::Delete(Arc::clone(&service))).await?;
        Reply::ok(&json!({"service": &*service, "deleted": true}))
    })
}

/// Shows one service, or one worker of it; waits for news if asked to.
pub(super) fn look(call: Call) -> Answer {
    Box::pin(async move {
        let service = named(&call)?;
        let shards = &call.app().shards;
        let query = call.query()?;
        let subject = Subject { service: Arc::clone(&service), worker: query.get("worker").map(Into::into) };
        if call.wants_events() {
            let place = shards.acquire_watcher()?;
            let mut news = shards.subscribe(&service).await?;
            let (events, receiver) = mpsc::channel(EVENTS_MAX);
            let stopped = call.app().stopped();
            tokio::spawn(async move {
                let _place = place;
                tokio::select! {
                    () = subject.tell_all(&mut news, &events) => {}
                    () = events.closed() => {}
                    () = stopped => {}
                }
            });
            return Ok(Reply::events(receiver));
        }
        if let (Some(wait @ 1..), after) = (query.number("wait", 0, WAIT_MAX_MS)?, query.get("after")) {
            let _place = shards.acquire_watcher()?;
            let mut news = shards.subscribe(&service).await?;
            let after = after.unwrap_or("").to_owned();
            let changed = subject.wait(&mut news, &after);
            tokio::select! {
                shown = tokio::time::timeout(Duration::from_millis(wait), changed) => {
                    if let Ok(shown) = shown {
                        return Reply::ok(&shown?.1);
                    }
                }
                () = call.app().stopped() => {}
            }
        }
        Reply::ok(&subject.show(&shards.snapshot(&service).await?)?.1)
    })
}

fn named(call: &Call) -> Result<Arc<str>, Error> {
    Ok(wire::checked_name("the service", Some(call.parameter(0).to_owned()))?)
}

/// What somebody wants to know: a service, or one worker of it.
struct Subject {
    service: Arc<str>,
    worker: Option<Arc<str>>,
}

impl Subject {
    /// What there is to tell, and what tells it apart from what was told before.
    fn show(&self, snapshot: &Arc<Snapshot>) -> Result<(String, Value), Refusal> {
        if snapshot.version == 0 {
            return Err(Refusal::UnknownService(Arc::clone(&self.service)));
        }
        let Some(worker) = &self.worker else {
            return Ok((snapshot.version.to_string(), wire::service_details(&self.service, snapshot)));
        };
        let unknown = || Refusal::UnknownWorker(Arc::clone(worker));
        let number = snapshot.service.number(worker).ok_or_else(unknown)?;
        let answer = Assigned { snapshot: Arc::clone(snapshot), number };
        let generation = answer.worker().ok_or_else(unknown)?.generation;
        let mut shown = wire::assignment_data(&answer, None);
        shown["generation"] = generation.into();
        // To look is not to beat: the lease is not renewed by it.
        if let Some(shown) = shown.as_object_mut() {
            shown.remove("leaseMs");
        }
        Ok((generation.to_string(), shown))
    }

    async fn wait(&self, news: &mut SnapshotReceiver, after: &str) -> Result<(String, Value), Refusal> {
        let mut snapshot = first_snapshot(news).await?;
        loop {
            let (version, shown) = self.show(&snapshot)?;
            if version != after {
                return Ok((version, shown));
            }
            news.borrow_and_update();
            news.changed().await.map_err(|_| Refusal::Store("the server is stopping".into()))?;
            snapshot = first_snapshot(news).await?;
        }
    }

    async fn tell_all(&self, news: &mut SnapshotReceiver, events: &mpsc::Sender<Bytes>) {
        let mut after = String::new();
        loop {
            let text = match tokio::time::timeout(KEEP_ALIVE, self.wait(news, &after)).await {
                Err(_) => ": still here\n\n".to_owned(),
                Ok(Ok((version, shown))) => {
                    after = version;
                    format!("event: assignment\nid: {after}\ndata: {shown}\n\n")
                }
                Ok(Err(refusal)) => {
                    let data = json!({"code": refusal.code(), "message": refusal.to_string()});
                    format!("event: error\ndata: {data}\n\n")
                }
            };
            let ended = text.starts_with("event: error");
            if events.send(text.into()).await.is_err() || ended {
                return;
            }
        }
    }
}
