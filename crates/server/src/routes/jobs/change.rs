//! Calling jobs off and trying them again, one by one or many at once.

use baton_http::{Reply, moment};
use baton_jobs::{BulkAction, Cancelled, Filter};
use bytes::Bytes;
use http::StatusCode;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::{job_id, parsed, read};
use crate::call::{Answer, Call};
use crate::error::{Error, Kind};
use crate::json;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Cancel {
    reason: Option<String>,
    #[serde(default)]
    force: bool,
}

/// Calls a job off: at once when nobody has it, otherwise its worker is asked.
pub(in crate::routes) fn cancel(mut call: Call) -> Answer {
    Box::pin(async move {
        let id = job_id(&call, 0)?;
        let wish: Cancel = parsed(&mut call, "{\"reason\": text, \"force\": flag}")?;
        match call.jobs().cancel(id, wish.force, wish.reason).await? {
            Cancelled::Done => Reply::ok(&json!({"jobId": id, "state": "cancelled"})),
            Cancelled::Asked => Reply::of(StatusCode::ACCEPTED, &json!({"jobId": id, "state": "cancelling"})),
            Cancelled::TooLate => {
                Err(Error::refused(Kind::Conflict, "already_ended", format!("job {id} has ended before")))
            }
        }
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Retry {
    #[serde(default = "yes")]
    reset_attempts: bool,
    args: Option<Box<RawValue>>,
}

fn yes() -> bool {
    true
}

/// Gives an ended job another try.
pub(in crate::routes) fn retry(mut call: Call) -> Answer {
    Box::pin(async move {
        let id = job_id(&call, 0)?;
        let wish: Retry = parsed(&mut call, "{\"resetAttempts\": flag, \"args\": any}")?;
        if let Some(args) = &wish.args {
            json::check_kept(args.get()).map_err(Error::invalid)?;
        }
        let args = wish.args.map(|args| Bytes::from(args.get().to_owned()));
        let state = call.jobs().retry(id, wish.reset_attempts, args).await?;
        Reply::ok(&json!({"jobId": id, "state": state}))
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Bulk {
    action: RawAction,
    #[serde(default)]
    filter: RawFilter,
    #[serde(default)]
    all: bool,
    #[serde(default)]
    dry_run: bool,
    cursor: Option<String>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RawAction {
    Cancel,
    Retry,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(super) struct RawFilter {
    state: Option<String>,
    queue: Option<String>,
    job_type: Option<String>,
    tag: Option<String>,
    schedule_id: Option<String>,
    correlation_id: Option<String>,
    created_after: Option<String>,
    q: Option<String>,
}

impl RawFilter {
    /// The filter of a call that changes what it describes. One that describes everything must say `all`, so that a
    /// filter that was left out or misspelt changes nothing.
    pub(super) fn checked_or_all(self, all: bool) -> Result<Filter, Error> {
        let filter = self.checked()?;
        match (filter == Filter::default(), all) {
            (true, false) => Err(Error::unprocessable("give a filter, or \"all\": true to mean every job")),
            (false, true) => Err(Error::unprocessable("give a filter or \"all\": true, not both")),
            _ => Ok(filter),
        }
    }

    pub(super) fn checked(self) -> Result<Filter, Error> {
        let created_after =
            |at: String| moment("createdAfter", &at).map_err(|error| Error::from(error).of_body());
        Ok(Filter {
            states: read::states(self.state.as_deref().unwrap_or("")).map_err(Error::of_body)?,
            queue: self.queue,
            job_type: self.job_type,
            tag: self.tag,
            schedule_id: self.schedule_id,
            correlation_id: self.correlation_id,
            created_after: self.created_after.map(created_after).transpose()?,
            text: self.q,
        })
    }
}

/// Does the same to many jobs, or tells to how many.
pub(in crate::routes) fn bulk(mut call: Call) -> Answer {
    Box::pin(async move {
        let bulk: Bulk =
            parsed(&mut call, "{\"action\": \"cancel\" or \"retry\", \"filter\": {...}, \"dryRun\": flag}")?;
        let filter = bulk.filter.checked_or_all(bulk.all)?;
        let action = match bulk.action {
            RawAction::Cancel => BulkAction::Cancel,
            RawAction::Retry => BulkAction::Retry,
        };
        let done = call.jobs().bulk(action, filter, bulk.cursor, bulk.dry_run).await?;
        Reply::ok(&json!({
            "dryRun": bulk.dry_run,
            "matched": done.matched,
            "changed": done.changed,
            "sample": done.sample,
            "nextCursor": done.next,
        }))
    })
}
