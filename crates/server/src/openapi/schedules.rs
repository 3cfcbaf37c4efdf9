//! Schedules, described.

use baton_jobs::schedule::BACKFILL_MAX;
use baton_types::limits::PAGE_ROWS_MAX;
use http::StatusCode;
use serde_json::{Value, json};

use super::describe::{Operation, delete, get, post, put, text, whole};
use super::jobs::{key, retry};
use super::shape::shape;

/// What a caller says of a schedule.
fn described() -> Value {
    json!({
        "kind": "cron|interval|once", "cron?": "text", "everyMs?": "whole", "at?": "time", "timeZone?": "text",
        "startAt?": "time", "endAt?": "time", "jitterMs?": "whole", "misfire?": "once|all|skip",
        "misfireGraceMs?": "whole", "overlap?": "allow|skip|queue_one|replace", "dstGap?": "shift|skip",
        "dstOverlap?": "first|last|both", "enabled?": "flag",
        "job": {
            "jobType": "name", "queue?": "name", "args?": "any", "priority?": "any", "timeoutMs?": "whole",
            "retry?": retry(), "concurrencyKey?": "name", "concurrencyLimit?": "whole", "correlationId?": "name",
            "tags?": ["name"],
        },
    })
}

/// What the server says of it.
fn shown() -> Value {
    let mut shown = described();
    let more = json!({
        "id": "text", "revision": "whole", "createdAt": "time", "updatedAt": "time", "nextFires": ["time"],
        "lastFire": "any", "lastOutcome": "text?", "waiting": "time?", "problem": "text?", "jobs": "whole",
        "overlapped": "whole", "misfires": "whole", "tzdb": "text",
    });
    if let (Some(shown), Value::Object(more)) = (shown.as_object_mut(), more) {
        shown.extend(more);
    }
    shown
}

pub(super) fn operations() -> Vec<Operation> {
    let schedule = "/api/v1/schedules/:schedule";
    let revision =
        || whole("revision", 0, u64::MAX, "Only if the schedule has this revision; 0 if it must be new.");
    let if_match = || {
        json!({
            "name": "If-Match", "in": "header", "required": false, "schema": {"type": "string", "pattern": "^\"[0-9]{1,19}\"$"},
            "description": "The `ETag` of the schedule that was read, which is its revision.",
        })
    };
    let answer =
        |help: &'static str| move |operation: Operation| operation.answers(200, help, shape(shown()));
    vec![
        get("/api/v1/schedules")
            .query([
                whole("limit", 1, PAGE_ROWS_MAX as u64, "Schedules to answer; 100 unless given."),
                text("cursor", "Where the last page ended."),
            ])
            .answers(
                200,
                "Schedules, by id; with a `nextCursor` when there are more.",
                shape(json!({"schedules": [shown()], "nextCursor": "text?"})),
            ),
        answer("The schedule with its next five fires.")(get(schedule)),
        put(schedule)
            .query([revision(), if_match()])
            .answers_error(StatusCode::CONFLICT)
            .answers_error(StatusCode::PRECONDITION_FAILED)
            .body(shape(described()))
            .answers(200, "The schedule, changed.", shape(shown()))
            .answers(201, "The schedule, which is new.", shape(shown())),
        delete(schedule)
            .query([revision(), if_match()])
            .answers_error(StatusCode::CONFLICT)
            .answers_error(StatusCode::PRECONDITION_FAILED)
            .answers_nothing(204, "It is gone; its jobs stay."),
        post("/api/v1/schedules/:schedule/trigger").query([key()]).answers(
            201,
            "The job; or none when it waits for the last one to end.",
            shape(json!({"jobId": "uuid?", "state": "text?", "waiting": "flag"})),
        ),
        answer("The schedule, which does not fire any more.")(post("/api/v1/schedules/:schedule/pause")),
        answer("The schedule, which fires again, from now on.")(post("/api/v1/schedules/:schedule/resume")),
        post("/api/v1/schedules/:schedule/backfill")
            .query([key()])
            .body(shape(json!({"from": "time", "to": "time", "max?": "whole", "dryRun?": "flag"})))
            .answers(
                200,
                &format!("The nominal times, at most {BACKFILL_MAX}, and the jobs made for them."),
                shape(json!({"fires": ["time"], "jobIds": ["uuid"], "truncated": "flag", "dryRun": "flag"})),
            ),
    ]
}
