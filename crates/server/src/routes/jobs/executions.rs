//! `/api/v1/executions…`: how executions ended, and what they say meanwhile.

use std::time::Duration;

use baton_http::Reply;
use baton_jobs::limits::{LINES_MAX, REPORTS_MAX};
use baton_jobs::{
    ExecutionId, JobError, JobId, LogAppended, LogLevel, NewLogLine, NewLogLines, Outcome, Report, Reported,
};
use bytes::Bytes;
use http::StatusCode;
use serde::Deserialize;
use serde_json::json;

use super::parsed;
use crate::call::{Answer, Call};
use crate::error::{Error, Kind};
use crate::json::{self, Kept};
use crate::unknown;

/// One more than the rules allow, so that they say what is wrong.
const REPORTS_READ: usize = REPORTS_MAX + 1;
const LINES_READ: usize = LINES_MAX + 1;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Items<'a> {
    #[serde(borrow, deserialize_with = "json::up_to::<_, _, REPORTS_READ>")]
    items: Vec<Item<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Item<'a> {
    job_id: JobId,
    execution_id: Option<String>,
    fence: Option<u64>,
    outcome: Outcome,
    #[serde(borrow)]
    result: Option<Kept<'a>>,
    error: Option<RawError>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an object with `type` and `message`")]
struct RawError {
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    message: String,
    #[serde(default = "yes")]
    retryable: bool,
    retry_after_ms: Option<u64>,
}

fn yes() -> bool {
    true
}

impl Item<'_> {
    fn checked(self) -> Result<Report, Error> {
        let named = self.execution_id.as_deref().map(str::parse::<ExecutionId>).transpose();
        let named = named.map_err(Error::unprocessable)?.map(|execution| execution.fence);
        let fence = self
            .fence
            .or(named)
            .ok_or_else(|| Error::unprocessable("each item needs a fence or an executionId"))?;
        if self.outcome == Outcome::Lost {
            return Err(Error::unprocessable(
                "outcome is succeeded, failed, timed_out, released or cancelled",
            ));
        }
        let (retryable, retry_after) =
            self.error.as_ref().map_or((true, None), |error| (error.retryable, error.retry_after_ms));
        let result = self.result.filter(|result| result.get() != "null");
        Ok(Report {
            job: self.job_id,
            fence,
            outcome: self.outcome,
            result: result.map_or_else(Bytes::new, |result| Bytes::copy_from_slice(result.get().as_bytes())),
            error: self.error.map(|error| JobError { kind: error.kind, message: error.message }),
            retryable,
            retry_after: retry_after.map(Duration::from_millis),
        })
    }
}

/// Takes in how executions ended, one answer for each.
pub(in crate::routes) fn report(mut call: Call) -> Answer {
    Box::pin(async move {
        let body = call.body()?;
        let items: Items<'_> = serde_json::from_slice(&body).map_err(|e| {
            let expected = "{\"items\": [{\"jobId\": id, \"fence\": number, \"outcome\": word}]}";
            Error::new(Kind::BadBody, format!("the body is not {expected}: {}", unknown::explain(&e)))
        })?;
        let reports = items.items.into_iter().map(Item::checked).collect::<Result<Vec<_>, _>>()?;
        let jobs: Vec<JobId> = reports.iter().map(|report| report.job).collect();
        let answers = call.jobs().report(reports).await?;
        let mut out = Vec::with_capacity(32 + answers.len() * 96);
        out.extend_from_slice(b"{\"items\":[");
        for (index, (job, answer)) in jobs.iter().zip(&answers).enumerate() {
            if index > 0 {
                out.push(b',');
            }
            write(&mut out, *job, answer);
        }
        out.extend_from_slice(b"]}");
        Ok(Reply::json(StatusCode::OK, out))
    })
}

fn write(out: &mut Vec<u8>, job: JobId, answer: &Reported) {
    out.extend_from_slice(b"{\"jobId\":");
    json::uuid(out, job.as_uuid());
    let (ok, member, word) = match answer {
        Reported::Accepted(state) => (true, &b",\"state\":"[..], state.word()),
        Reported::Repeated => (true, &b",\"code\":"[..], "repeated"),
        Reported::StaleFence { .. } => (false, &b",\"code\":"[..], "stale_fence"),
        Reported::NotFound => (false, &b",\"code\":"[..], "not_found"),
    };
    out.extend_from_slice(b",\"ok\":");
    json::boolean(out, ok);
    out.extend_from_slice(member);
    json::string(out, word);
    if let Reported::StaleFence { current } = answer {
        out.extend_from_slice(b",\"currentFence\":");
        json::number(out, *current);
    }
    out.push(b'}');
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Lines {
    #[serde(default = "first")]
    first_seq: u64,
    #[serde(deserialize_with = "json::up_to::<_, _, LINES_READ>")]
    lines: Vec<RawLine>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLine {
    #[serde(default)]
    level: LogLevel,
    message: String,
    at: Option<String>,
}

impl From<RawLine> for NewLogLine {
    fn from(RawLine { level, message, at }: RawLine) -> Self {
        Self { level, message, at }
    }
}

fn first() -> u64 {
    1
}

/// Keeps lines of an execution's log. Lines that come again are kept once.
pub(in crate::routes) fn log(mut call: Call) -> Answer {
    Box::pin(async move {
        let execution: ExecutionId =
            call.parameter(0).parse().map_err(|wrong: &str| Error::not_found(wrong))?;
        let told: Lines =
            parsed(&mut call, "{\"firstSeq\": number, \"lines\": [{\"level\": word, \"message\": text}]}")?;
        let lines = told.lines.into_iter().map(NewLogLine::from).collect();
        let new = NewLogLines { execution, first: told.first_seq, lines };
        match call.jobs().log(new).await? {
            LogAppended::UpTo(next) => Reply::ok(&json!({"nextSeq": next})),
            LogAppended::StaleFence { current } => {
                let message = format!("execution {execution} is over: the fence that counts is {current}");
                Err(Error::refused(Kind::Conflict, "stale_fence", message))
            }
        }
    })
}
