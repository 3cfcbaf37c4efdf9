//! `/api/v1/job-queues…`: job queues and what holds for them.
//!
//! Always: a queue is answered with a tag of its settings, on which a change of them can be made dependent. Its jobs
//! come and go without changing it.

use baton_http::Reply;
use baton_jobs::{OTHER_SETTINGS, QueueSettings, QueueView};
use http::{HeaderValue, header};
use serde_json::json;

use super::parsed;
use crate::call::{Answer, Call};
use crate::error::{Error, Kind};
use crate::unknown;

fn shown(queue: &QueueView) -> Result<Reply, Error> {
    let tag = HeaderValue::try_from(format!("\"{:016x}\"", queue.tag()));
    Ok(Reply::ok::<Error>(queue)?.with_header(header::ETAG, tag.unwrap_or(HeaderValue::from_static("\"\""))))
}

/// The tag that the settings were read with, if a change depends on them.
fn read(call: &Call) -> Result<Option<u64>, Error> {
    let number = |tag: &str| {
        let digits = tag.trim().strip_prefix('"')?.strip_suffix('"').filter(|digits| digits.len() == 16)?;
        u64::from_str_radix(digits, 16).ok()
    };
    let tag = call.if_match().map(number);
    tag.map(|tag| tag.ok_or_else(|| Error::invalid("If-Match is the ETag that the queue was read with")))
        .transpose()
}

/// All job queues.
pub(in crate::routes) fn list(call: Call) -> Answer {
    Box::pin(async move { Reply::ok(&json!({"queues": call.jobs().queues().await?})) })
}

/// One job queue.
pub(in crate::routes) fn one(call: Call) -> Answer {
    Box::pin(async move { shown(&call.jobs().queue(call.parameter(0)).await?) })
}

/// Says what holds for a queue; what is not named holds as for a new one.
pub(in crate::routes) fn set(mut call: Call) -> Answer {
    Box::pin(async move {
        let expected = "{\"paused\": flag, \"concurrency\": number, \
                        \"rateLimit\": {\"count\": number, \"perMs\": number}, \"weight\": number, \"dlq\": flag}";
        let settings: QueueSettings = parsed(&mut call, expected)?;
        let Some(read) = read(&call)? else {
            return shown(&call.jobs().set_queue(call.parameter(0), settings).await?);
        };
        match call.jobs().set_queue_as_read(call.parameter(0), settings, read).await {
            Err(baton_jobs::Error::Conflict { code: OTHER_SETTINGS, message }) => {
                Err(Error::new(Kind::PreconditionFailed, message))
            }
            set => shown(&set?),
        }
    })
}

/// Gives out no more jobs.
pub(in crate::routes) fn pause(call: Call) -> Answer {
    set_paused(call, true)
}

/// Gives out jobs again.
pub(in crate::routes) fn resume(call: Call) -> Answer {
    set_paused(call, false)
}

fn set_paused(mut call: Call, paused: bool) -> Answer {
    Box::pin(async move {
        unknown::check_empty(&call.body()?)?;
        shown(&call.jobs().pause(call.parameter(0), paused).await?)
    })
}
