//! `/api/v1/elections/…`: take part in an election, or watch one, from any language.
//!
//! Always: an answer says who coordinates, under which epoch number (the fencing token), and for how many
//! milliseconds that may be relied upon, counted from before the request was sent. Start at [`act`].

use std::time::Duration;

use baton_election::lease::LeaseState;
use baton_election::record::{EpochRecord, ProcessRecord, WorkerRecord, check_name};
use baton_http::Reply;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::call::{Answer, Call};
use crate::elections::{Look, Refusal};
use crate::error::{Error, Kind};
use crate::json;

/// How long a lease is that does not say how long.
const LEASE_DEFAULT_MS: u64 = 30_000;
const LEASE_MIN_MS: u64 = 1_000;
const LEASE_MAX_MS: u64 = 3_600_000;
/// The longest wait for news.
pub(super) const WAIT_MAX_MS: u64 = 60_000;

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Full(what) => Self::new(Kind::LimitReached, what),
            Refusal::Busy(what) => Self::overloaded(what),
            Refusal::UnknownGroup(group) => Self::not_found(format!("there is no election group {group:?}")),
            Refusal::UnknownWorker(text) => Self::invalid(text),
            Refusal::Coordinated(worker) => {
                let text = format!("{worker:?} coordinates the group: stop its workers first");
                Self::new(Kind::Conflict, text)
            }
            Refusal::Store(error) => error.into(),
        }
    }
}

/// What a participant wants.
#[derive(Debug, Deserialize)]
#[serde(tag = "action", rename_all = "lowercase", rename_all_fields = "camelCase")]
enum Action {
    /// Take part, or go on doing so.
    #[serde(alias = "heartbeat")]
    Join { worker_id: String, incarnation: Option<String>, lease_ms: Option<u64> },
    /// Give up what one holds, and leave.
    Resign { worker_id: String, incarnation: Option<String>, handover_to: Option<String> },
    /// Ask the coordinator to give its term up.
    Force { desired_coordinator: Option<String> },
    /// Compare and set the epoch record, as a participant that decides for itself.
    Swap { version: Option<String>, record: EpochRecord },
    /// Write the own worker record, as such a participant.
    Beat { record: WorkerRecord },
    /// Remove a worker record.
    Leave { worker_id: String },
}

/// Lists all groups.
pub(super) fn list(call: Call) -> Answer {
    Box::pin(async move {
        let groups = call.app().elections.list().await?;
        let row = |(name, state): &(String, LeaseState)| {
            let mut row = summary(Some(state));
            row["group"] = name.as_str().into();
            row
        };
        Reply::ok(&json!({"elections": groups.iter().map(row).collect::<Vec<_>>()}))
    })
}

/// Shows one group; waits for news of it if asked to.
pub(super) fn look(call: Call) -> Answer {
    Box::pin(async move {
        let group = named("group", call.parameter(0))?;
        let elections = &call.app().elections;
        if call.wants_events() {
            return Ok(Reply::events(elections.events(group, call.app().stopped())?));
        }
        let query = call.query()?;
        let look = match (query.number("wait", 0, WAIT_MAX_MS)?, query.get("after")) {
            (Some(wait @ 1..), after) => {
                let stopped = call.app().stopped();
                tokio::select! {
                    look = elections.watch(&group, after.unwrap_or(""), Duration::from_millis(wait)) => look?,
                    () = stopped => elections.look(&group).await?,
                }
            }
            _ => elections.look(&group).await?,
        };
        if !look.exists() {
            return Err(Refusal::UnknownGroup(group).into());
        }
        Reply::ok(&shown(&group, &look))
    })
}

/// Forgets one group.
pub(super) fn delete(call: Call) -> Answer {
    Box::pin(async move {
        let group = named("group", call.parameter(0))?;
        call.app().elections.delete(&group).await?;
        Reply::ok(&json!({"group": group, "deleted": true}))
    })
}

/// Takes part.
pub(super) fn act(mut call: Call) -> Answer {
    Box::pin(async move {
        let group = named("group", call.parameter(0))?;
        let action: Action = serde_json::from_slice(&call.body()?).map_err(|e| {
            let e = json::problem(&e);
            Error::invalid(format!(
                "the body is not an action ({e}): send for instance {{\"action\":\"join\",\"workerId\":\"w1\"}}; \
                 actions are join, heartbeat, resign, force"
            ))
        })?;
        let elections = &call.app().elections;
        Reply::ok(&match action {
            Action::Join { worker_id, incarnation, lease_ms } => {
                let worker_id = named("workerId", &worker_id)?;
                let lease_ms = lease_ms.unwrap_or(LEASE_DEFAULT_MS);
                if !(LEASE_MIN_MS..=LEASE_MAX_MS).contains(&lease_ms) {
                    let text = format!("leaseMs is {lease_ms}: give {LEASE_MIN_MS} to {LEASE_MAX_MS}");
                    return Err(Error::invalid(text));
                }
                let incarnation = bounded("incarnation", incarnation.unwrap_or_else(|| worker_id.clone()))?;
                let lease = Duration::from_millis(lease_ms);
                let state = elections.beat(&group, &worker_id, &incarnation, lease).await?;
                let leads = !state.is_free()
                    && state.epoch.coordinator_id == worker_id
                    && state.epoch.incarnation == incarnation;
                let mut answer = summary(Some(&state));
                answer["group"] = group.into();
                answer["workerId"] = worker_id.into();
                answer["isCoordinator"] = leads.into();
                answer["heartbeatMs"] = (lease_ms / 3).into();
                if leads {
                    answer["token"] = state.epoch.epoch_number.into();
                    answer["leaseMs"] = millis(state.trusted_for()).into();
                }
                answer
            }
            Action::Resign { worker_id, incarnation, handover_to } => {
                let worker_id = named("workerId", &worker_id)?;
                let incarnation = bounded("incarnation", incarnation.unwrap_or_else(|| worker_id.clone()))?;
                let next = handover_to.map(|next| named("handoverTo", &next)).transpose()?;
                let state = elections.resign(&group, &worker_id, &incarnation, next).await?;
                let mut answer = summary(state.as_ref());
                answer["group"] = group.into();
                answer
            }
            Action::Force { desired_coordinator } => {
                let next = desired_coordinator.map(|next| named("desiredCoordinator", &next)).transpose()?;
                let state = elections.force(&group, next).await?;
                let mut answer = summary(Some(&state));
                answer["group"] = group.into();
                answer
            }
            Action::Swap { version, record } => {
                named("coordinatorId", &record.coordinator_id)?;
                for (what, text) in [
                    ("incarnation", &record.incarnation),
                    ("nonce", &record.nonce),
                    ("electedBy", &record.elected_by),
                    ("handoverTo", record.handover_to.as_ref().unwrap_or(&record.nonce)),
                ] {
                    bounded(what, text.clone())?;
                }
                if let Some(id) = &record.process {
                    process_named(id)?;
                }
                swapped(elections.swap(&group, expected(version), record).await?)
            }
            Action::Beat { record } => {
                let worker_id = named("workerId", &record.worker_id)?;
                bounded("incarnation", record.incarnation.clone())?;
                elections.put_worker(&group, &worker_id, Some(record)).await?;
                json!({"written": true})
            }
            Action::Leave { worker_id } => {
                let worker_id = named("workerId", &worker_id)?;
                elections.put_worker(&group, &worker_id, None).await?;
                json!({"removed": true})
            }
        })
    })
}

/// What is done with the lease of a process.
#[derive(Debug, Deserialize)]
#[serde(tag = "action", rename_all = "lowercase")]
enum ProcessAction {
    /// Compare and set its record: begin, renew, or fence it.
    Swap { version: Option<String>, record: ProcessRecord },
    /// Remove its record.
    Remove,
}

/// Lists all processes.
pub(super) fn processes(call: Call) -> Answer {
    Box::pin(async move {
        let processes = call.app().elections.processes().await?;
        let row = |(version, process): &(u64, ProcessRecord)| {
            let mut row = json!(process);
            row["process"] = process.id().into();
            row["version"] = version.to_string().into();
            row
        };
        Reply::ok(&json!({"processes": processes.iter().map(row).collect::<Vec<_>>()}))
    })
}

/// Shows the lease of one process.
pub(super) fn process(call: Call) -> Answer {
    Box::pin(async move {
        let id = process_named(call.parameter(0))?;
        let found = call.app().elections.process(&id).await?;
        let (version, record) = found.map(|(version, process)| (version.to_string(), process)).unzip();
        Reply::ok(&json!({"process": id, "version": version, "record": record}))
    })
}

/// Keeps the lease of one process.
pub(super) fn keep(mut call: Call) -> Answer {
    Box::pin(async move {
        let id = process_named(call.parameter(0))?;
        let action: ProcessAction = serde_json::from_slice(&call.body()?).map_err(|e| {
            let e = json::problem(&e);
            let advice = "send {\"action\":\"swap\",\"version\":…,\"record\":{…}} or {\"action\":\"remove\"}";
            Error::invalid(format!("the body is not an action ({e}): {advice}"))
        })?;
        let elections = &call.app().elections;
        Reply::ok(&match action {
            ProcessAction::Swap { version, record } => {
                if record.id() != id {
                    let text = format!("the record is that of {:?}, the path names {id:?}", record.id());
                    return Err(Error::invalid(text));
                }
                swapped(elections.swap_process(expected(version), record).await?)
            }
            ProcessAction::Remove => {
                elections.remove_process(&id).await?;
                json!({"removed": true})
            }
        })
    })
}

/// A version as it stands in the store; one that cannot be one is nobody's.
fn expected(version: Option<String>) -> Option<u64> {
    version.map(|version| version.parse().unwrap_or(u64::MAX))
}

fn swapped(written: Option<u64>) -> Value {
    json!({"swapped": written.is_some(), "version": written.map(|version| version.to_string())})
}

/// The id of a process: that of its worker, a dot, and which life of it this is.
fn process_named(id: &str) -> Result<String, Error> {
    let Some((worker, incarnation)) = id.rsplit_once('.') else {
        return Err(Error::invalid(format!("{id:?} is no process: give WORKER.INCARNATION")));
    };
    named("the worker id", worker)?;
    named("the incarnation", incarnation)?;
    Ok(id.to_owned())
}

fn named(what: &'static str, name: &str) -> Result<String, Error> {
    check_name(what, name).map_err(|e| Error::invalid(e.to_string()))?;
    Ok(name.to_owned())
}

fn bounded(what: &str, text: String) -> Result<String, Error> {
    if text.len() > baton_election::record::NAME_BYTES_MAX {
        return Err(Error::invalid(format!("{what} has {} bytes: give at most 128", text.len())));
    }
    Ok(text)
}

/// Who coordinates, and for how long.
fn summary(state: Option<&LeaseState>) -> Value {
    let coordinator = state.filter(|state| !state.is_free()).map(|state| state.epoch.coordinator_id.as_str());
    json!({
        "coordinator": coordinator,
        "epochNumber": state.map_or(0, |state| state.epoch.epoch_number),
        "leaseMs": state.map_or(0, |state| millis(state.remaining)),
        "stepDown": state.is_some_and(|state| state.epoch.step_down && !state.is_free()),
        "released": state.is_some_and(|state| state.epoch.released),
    })
}

fn shown(group: &str, look: &Look) -> Value {
    let mut shown = summary(look.state.as_ref());
    shown["group"] = group.into();
    shown["version"] = look.version().into();
    shown["recordVersion"] = look.record.as_ref().map(|(version, _)| version.to_string()).into();
    shown["record"] = json!(look.record.as_ref().map(|(_, record)| record));
    let worker = |(worker, version): &(WorkerRecord, u64)| {
        let mut row = json!(worker);
        row["version"] = version.to_string().into();
        row
    };
    shown["workers"] = look.workers.iter().map(worker).collect::<Vec<_>>().into();
    shown
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
