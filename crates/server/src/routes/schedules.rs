//! `/api/v1/schedules/…`: jobs that come by themselves.
//!
//! Always: a schedule is answered with its next fires, so that its author sees what was understood; a change can
//! be made dependent on the `revision` that was read, which is also its `ETag`. Start at [`put`].

use baton_http::Reply;
use baton_jobs::schedule::{BACKFILL_MAX, OTHER_REVISION, Schedule, ScheduleSpec};
use baton_types::Timestamp;
use baton_types::limits::PAGE_ROWS_MAX;
use http::{HeaderName, HeaderValue, StatusCode, header};
use serde_json::{Value, json};

use super::idempotency;
use crate::call::{Answer, Call};
use crate::error::{Error, Kind};
use crate::members::Members;
use crate::unknown;

/// Schedules of a page that does not say how many.
const PAGE: u64 = 100;
/// Fires of a back-fill that does not say how many.
const BACKFILL: u64 = 100;

fn show(call: &Call, id: &str, schedule: &Schedule) -> Value {
    schedule.show(id, call.jobs().now())
}

/// The revision that a change depends on: the tag in `If-Match`, or a query parameter.
struct Wanted {
    revision: Option<u64>,
    is_tag: bool,
}

impl Wanted {
    fn of(call: &Call) -> Result<Self, Error> {
        if let Some(tag) = call.if_match() {
            let number = tag.trim().strip_prefix('"').and_then(|tag| tag.strip_suffix('"'));
            let number = number.and_then(|number| number.parse().ok());
            let revision = number
                .ok_or_else(|| Error::invalid("If-Match is the ETag that the schedule was read with"))?;
            return Ok(Self { revision: Some(revision), is_tag: true });
        }
        let query = call.query()?;
        let given = query.text("revision").map(str::parse);
        let revision = given
            .transpose()
            .map_err(|_| Error::invalid("revision is the number that the schedule was read with"))?;
        Ok(Self { revision, is_tag: false })
    }

    /// The refusal as the way in which the revision was given has it.
    fn refused(&self, error: baton_jobs::Error) -> Error {
        match error {
            baton_jobs::Error::Conflict { code: OTHER_REVISION, message } if self.is_tag => {
                Error::new(Kind::PreconditionFailed, message)
            }
            error => error.into(),
        }
    }
}

fn tag(schedule: &Schedule) -> (HeaderName, HeaderValue) {
    let tag = HeaderValue::try_from(format!("\"{}\"", schedule.revision));
    (header::ETAG, tag.unwrap_or(HeaderValue::from_static("\"\"")))
}

/// Creates or changes a schedule.
pub(super) fn put(mut call: Call) -> Answer {
    Box::pin(async move {
        let (id, body) = (call.take_parameter(0), call.body()?);
        let text =
            std::str::from_utf8(&body).map_err(|_| Error::new(Kind::BadBody, "the body is not UTF-8"))?;
        let spec =
            ScheduleSpec::parse(text).map_err(|error| match unknown::explain_text(&error.to_string()) {
                Some(problem) => Error::new(Kind::BadBody, format!("the body is not a schedule: {problem}")),
                None => error.into(),
            })?;
        let wanted = Wanted::of(&call)?;
        let put = call.jobs().put_schedule(id.clone(), spec, wanted.revision).await;
        let (schedule, is_new) = put.map_err(|error| wanted.refused(error))?;
        let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
        let (name, tag) = tag(&schedule);
        Ok(Reply::of::<Error>(status, &show(&call, &id, &schedule))?.with_header(name, tag))
    })
}

/// One schedule.
pub(super) fn one(mut call: Call) -> Answer {
    Box::pin(async move {
        let id = call.take_parameter(0);
        let schedule = call.jobs().schedule(id.clone()).await?;
        let (name, tag) = tag(&schedule);
        Ok(Reply::ok::<Error>(&show(&call, &id, &schedule))?.with_header(name, tag))
    })
}

/// A page of schedules.
pub(super) fn list(call: Call) -> Answer {
    Box::pin(async move {
        let (limit, after) = {
            let query = call.query()?;
            (query.number("limit", 1, PAGE_ROWS_MAX as u64)?.unwrap_or(PAGE), query.owned("cursor"))
        };
        let limit = usize::try_from(limit).unwrap_or(PAGE_ROWS_MAX);
        let (schedules, more) = call.jobs().schedules(after, limit).await?;
        let cursor = schedules.last().map(|(id, _)| id.clone()).filter(|_| more);
        let shown: Vec<_> = schedules.iter().map(|(id, schedule)| show(&call, id, schedule)).collect();
        Reply::ok(&json!({"schedules": shown, "nextCursor": cursor}))
    })
}

/// Removes a schedule.
pub(super) fn delete(mut call: Call) -> Answer {
    Box::pin(async move {
        let (id, wanted) = (call.take_parameter(0), Wanted::of(&call)?);
        let removed = call.jobs().remove_schedule(id, wanted.revision).await;
        removed.map_err(|error| wanted.refused(error))?;
        Ok(Reply::nothing())
    })
}

/// Fires now.
pub(super) fn trigger(mut call: Call) -> Answer {
    Box::pin(async move {
        let (id, body) = (call.take_parameter(0), call.body()?);
        unknown::check_empty(&body)?;
        let key = idempotency::key(&call, &format!("schedules/{id}/trigger"), &body)?;
        let job = call.jobs().trigger_schedule(id, key).await?;
        Reply::of(
            StatusCode::CREATED,
            &json!({"jobId": job.map(|job| job.job_id), "state": job.map(|job| job.state), "waiting": job.is_none()}),
        )
    })
}

/// Stops firing.
pub(super) fn pause(call: Call) -> Answer {
    enable(call, false)
}

/// Goes on firing.
pub(super) fn resume(call: Call) -> Answer {
    enable(call, true)
}

fn enable(mut call: Call, enabled: bool) -> Answer {
    Box::pin(async move {
        unknown::check_empty(&call.body()?)?;
        let id = call.take_parameter(0);
        let schedule = call.jobs().enable_schedule(id.clone(), enabled).await?;
        Reply::ok(&show(&call, &id, &schedule))
    })
}

/// Fires for a stretch of the past.
pub(super) fn backfill(mut call: Call) -> Answer {
    Box::pin(async move {
        let (id, body) = (call.take_parameter(0), call.body()?);
        let key = idempotency::key(&call, &format!("schedules/{id}/backfill"), &body)?;
        let (from, to, max, is_dry) = read_backfill(&body)?;
        let (fires, is_cut) = call.jobs().schedule_fires_between(id.clone(), (from, to), max).await?;
        let shown: Vec<_> = fires.iter().copied().map(Timestamp::to_iso_millis).collect();
        let jobs = if is_dry { Vec::new() } else { call.jobs().backfill_schedule(id, fires, key).await? };
        let jobs: Vec<_> = jobs.iter().map(|job| job.job_id).collect();
        Reply::ok(&json!({"fires": shown, "jobIds": jobs, "truncated": is_cut, "dryRun": is_dry}))
    })
}

fn read_backfill(body: &[u8]) -> Result<(Timestamp, Timestamp, usize, bool), Error> {
    let members = std::str::from_utf8(body).ok().and_then(Members::of);
    let members =
        members.ok_or_else(|| Error::new(Kind::BadBody, "the body must be an object with from and to"))?;
    unknown::check(members.names(), &["from", "to", "max", "dryRun"]).map_err(Error::invalid)?;
    let moment = |name: &str| {
        let text: String = members.need(name, "a time such as 2026-11-15T18:34:07Z")?;
        text.parse::<Timestamp>().map_err(|error| format!("{name}: {error}"))
    };
    let max: u64 = members.get("max", "a whole number").map_err(Error::unprocessable)?.unwrap_or(BACKFILL);
    if !(1..=BACKFILL_MAX as u64).contains(&max) {
        return Err(Error::unprocessable(format!("max is 1 to {BACKFILL_MAX}")));
    }
    let (from, to) =
        (moment("from").map_err(Error::unprocessable)?, moment("to").map_err(Error::unprocessable)?);
    let is_dry = members.flag("dryRun").map_err(Error::unprocessable)?;
    Ok((from, to, usize::try_from(max).unwrap_or(BACKFILL_MAX), is_dry))
}
