//! `GET /api/v1/jobs…`: looking at jobs, finding them, waiting for them.

use std::time::Duration;

use baton_http::{Query, Reply};
use baton_jobs::{Filter, State};
use http::StatusCode;
use serde_json::json;

use super::{detail, job_id, row};
use crate::call::{Answer, Call};
use crate::error::{Error, Kind};

const LIMIT_DEFAULT: u64 = 50;

/// The filter that a query describes.
pub(super) fn filter(query: &Query<'_>) -> Result<Filter, Error> {
    Ok(Filter {
        states: states(query.text("state").unwrap_or(""))?,
        queue: query.owned("queue"),
        job_type: query.owned("jobType"),
        tag: query.owned("tag"),
        schedule_id: query.owned("scheduleId"),
        correlation_id: query.owned("correlationId"),
        created_after: query.moment("createdAfter")?,
        text: query.owned("q"),
    })
}

/// States, separated by commas.
pub(super) fn states(text: &str) -> Result<Vec<State>, Error> {
    let wrong = |word: &str| Error::invalid(format!("state {word:?} is none of: {}", known()));
    let words = text.split(',').filter(|word| !word.is_empty());
    words
        .map(|word| State::from_word(word).filter(|state| *state != State::Gone).ok_or_else(|| wrong(word)))
        .collect()
}

fn known() -> String {
    let words = State::ALL.iter().filter(|state| **state != State::Gone).map(|state| state.word());
    words.collect::<Vec<_>>().join(", ")
}

/// A page of jobs, the newest first.
pub(in crate::routes) fn list(call: Call) -> Answer {
    Box::pin(async move {
        let query = call.query()?;
        let limit = query.number("limit", 1, 1_000)?.unwrap_or(LIMIT_DEFAULT);
        let limit = usize::try_from(limit).unwrap_or(1);
        let found = call.jobs().search(filter(&query)?, query.owned("cursor"), limit).await;
        let page = found.map_err(|error| Error::from(error).of_query())?;
        let jobs: Vec<_> = page.jobs.iter().map(row).collect();
        Reply::ok(&json!({"jobs": jobs, "nextCursor": page.next}))
    })
}

async fn shown(call: &Call, id: baton_jobs::JobId) -> Result<Reply, Error> {
    let found = call.jobs().detail(id).await?;
    let owner = id.position().and_then(|position| call.jobs().owner(position));
    Reply::ok(&detail(&found, owner.as_ref()))
}

/// One job with its history.
pub(in crate::routes) fn one(call: Call) -> Answer {
    Box::pin(async move { shown(&call, job_id(&call, 0)?).await })
}

/// The same once it has ended, or when the time is over.
pub(in crate::routes) fn wait(call: Call) -> Answer {
    Box::pin(async move {
        let id = job_id(&call, 0)?;
        let wait = call.query()?.number("timeoutMs", 0, 60_000)?.unwrap_or(20_000);
        let stopped = call.app().stopped();
        tokio::select! {
            waited = call.jobs().wait(id, Duration::from_millis(wait)) => drop(waited?),
            () = stopped => {}
        }
        shown(&call, id).await
    })
}

/// What a job came to, as its worker reported it.
pub(in crate::routes) fn result(call: Call) -> Answer {
    Box::pin(async move {
        let id = job_id(&call, 0)?;
        let detail = call.jobs().detail(id).await?;
        match detail.result {
            Some(result) => Ok(Reply::json(StatusCode::OK, result)),
            None if detail.job.state == State::Completed => Ok(Reply::json(StatusCode::OK, "null")),
            None => {
                let message = format!("job {id} is {}: it has no result", detail.job.state.word());
                Err(Error::refused(Kind::Conflict, "no_result", message))
            }
        }
    })
}
