//! `/api/v1/dead-letters…`: jobs that failed for good.

use baton_http::Reply;
use baton_jobs::{JobId, State};
use serde::Deserialize;
use serde_json::json;

use super::change::RawFilter;
use super::{job_id, parsed, row};
use crate::call::{Answer, Call};
use crate::error::Error;

/// Dead letters replayed with one call.
const REPLAYED_MAX: usize = 1_000;

/// A page of dead letters, the newest first.
pub(in crate::routes) fn list(call: Call) -> Answer {
    Box::pin(async move {
        let query = call.query()?;
        let limit = usize::try_from(query.number("limit", 1, 1_000)?.unwrap_or(50)).unwrap_or(1);
        let page = call.jobs().dead_letters(query.owned("cursor"), limit).await?;
        let jobs: Vec<_> = page.jobs.iter().map(row).collect();
        Reply::ok(&json!({"jobs": jobs, "nextCursor": page.next}))
    })
}

/// Gives one another try.
pub(in crate::routes) fn replay(call: Call) -> Answer {
    Box::pin(async move {
        let id = job_id(&call, 0)?;
        if call.jobs().replay(vec![id], None).await? == 0 {
            return Err(Error::not_found(format!("{id} is no dead letter")));
        }
        Reply::ok(&json!({"jobId": id, "state": call.jobs().get(id).await?.state}))
    })
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct Replay {
    filter: RawFilter,
    all: bool,
    limit: Option<usize>,
    rate_per_sec: Option<f64>,
}

/// Gives those that a filter describes another try, perhaps so many a second.
pub(in crate::routes) fn replay_many(mut call: Call) -> Answer {
    Box::pin(async move {
        let expected = "{\"filter\": {...} or \"all\": true, \"limit\": number, \"ratePerSec\": number}";
        let wish: Replay = parsed(&mut call, expected)?;
        let limit = wish.limit.unwrap_or(REPLAYED_MAX).clamp(1, REPLAYED_MAX);
        let mut filter = wish.filter.checked_or_all(wish.all)?;
        let is_dead = |state: &State| matches!(state, State::Failed | State::TimedOut);
        if !filter.states.iter().all(is_dead) {
            return Err(Error::unprocessable("the state of a dead letter is failed or timed_out"));
        }
        if filter.states.is_empty() {
            filter.states = vec![State::Failed, State::TimedOut];
        }
        let (mut ids, mut cursor): (Vec<JobId>, _) = (Vec::new(), None);
        loop {
            let page = call.jobs().search(filter.clone(), cursor, limit - ids.len()).await?;
            ids.extend(page.jobs.iter().filter(|job| job.dead_at.is_some()).map(|job| job.id));
            cursor = page.next;
            if cursor.is_none() || ids.len() >= limit {
                break;
            }
        }
        let replayed = call.jobs().replay(ids, wish.rate_per_sec).await?;
        Reply::ok(&json!({"replayed": replayed, "more": cursor.is_some()}))
    })
}

/// Takes one from the list.
pub(in crate::routes) fn delete(call: Call) -> Answer {
    Box::pin(async move {
        let id = job_id(&call, 0)?;
        call.jobs().dismiss_dead_letter(id).await?;
        Reply::ok(&json!({"jobId": id, "deleted": true}))
    })
}
