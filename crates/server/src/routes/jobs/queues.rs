//! `/api/v1/job-queues…`: job queues and what holds for them.

use baton_jobs::QueueSettings;
use serde_json::json;

use super::parsed;
use crate::call::{Answer, Call};
use crate::reply::Reply;

/// All job queues.
pub(in crate::routes) fn list(call: Call) -> Answer {
    Box::pin(async move { Reply::ok(&json!({"queues": call.jobs().queues().await?})) })
}

/// One job queue.
pub(in crate::routes) fn one(call: Call) -> Answer {
    Box::pin(async move { Reply::ok(&call.jobs().queue(call.parameter(0)).await?) })
}

/// Says what holds for a queue; what is not named holds as for a new one.
pub(in crate::routes) fn set(mut call: Call) -> Answer {
    Box::pin(async move {
        let expected = "{\"paused\": flag, \"concurrency\": number, \
                        \"rateLimit\": {\"count\": number, \"perMs\": number}, \"weight\": number, \"dlq\": flag}";
        let settings: QueueSettings = parsed(&mut call, expected)?;
        Reply::ok(&call.jobs().set_queue(call.parameter(0), settings).await?)
    })
}

/// Gives out no more jobs.
pub(in crate::routes) fn pause(call: Call) -> Answer {
    Box::pin(async move { Reply::ok(&call.jobs().pause(call.parameter(0), true).await?) })
}

/// Gives out jobs again.
pub(in crate::routes) fn resume(call: Call) -> Answer {
    Box::pin(async move { Reply::ok(&call.jobs().pause(call.parameter(0), false).await?) })
}
