//! `GET /api/v1/jobs/:job/logs`: a job's log as a page, or live as server-sent events.
//!
//! Always: the id of an event is the place of the last line that was told, so a reader that comes back with
//! `Last-Event-ID` misses no line and sees none twice; lines that were dropped are told as a gap; the stream ends
//! after everything that was said before the job's end. Start at [`logs`].

use std::sync::Arc;
use std::time::Duration;

use baton_env::Stopwatch;
use baton_http::{Query, Reply};
use baton_jobs::{JobId, LogLevel, LogPage, LogQuery};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{job_id, progress};
use crate::app::App;
use crate::call::{Answer, Call};
use crate::error::Error;

/// Lines of one page of a stream.
const LINES_AT_ONCE: usize = 500;
/// Events that wait for a slow reader; then it holds up only itself.
const EVENTS_MAX: usize = 16;
/// How often a stream without news says that it is there.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Streams at a time.
const WATCHERS_MAX: usize = 4_096;

fn asked(query: &Query<'_>) -> Result<LogQuery, Error> {
    let execution =
        query.text("executionId").map(str::parse).transpose().map_err(|wrong: &str| Error::invalid(wrong))?;
    let level = query.text("level").map(|word| serde_json::from_value::<LogLevel>(word.into())).transpose();
    Ok(LogQuery {
        execution,
        after: query.number("after", 0, u64::MAX)?.unwrap_or(0),
        level: level.map_err(|_| Error::invalid("level is trace, debug, info, warn or error"))?,
        limit: usize::try_from(query.number("limit", 1, 1_000)?.unwrap_or(200)).unwrap_or(1),
    })
}

/// A job's log.
pub(in crate::routes) fn logs(call: Call) -> Answer {
    Box::pin(async move {
        let (id, query) = (job_id(&call, 0)?, call.query()?);
        let mut asked = asked(&query)?;
        if call.wants_events() || query.flag("follow")? {
            if call.jobs().watchers() >= WATCHERS_MAX {
                return Err(Error::overloaded(format!(
                    "{WATCHERS_MAX} callers watch jobs, which is as many as may"
                )));
            }
            if let Some(last) = call.last_event_id().and_then(|id| id.parse().ok()) {
                asked.after = last;
            }
            // What is not there is told before the stream begins.
            call.jobs().logs(id, LogQuery { limit: 1, ..asked.clone() }).await?;
            let (sender, events) = mpsc::channel(EVENTS_MAX);
            tokio::spawn(follow(Arc::clone(call.app()), id, asked, sender));
            return Ok(Reply::events(events));
        }
        let page = call.jobs().logs(id, asked).await?;
        let lines: Vec<_> = page.lines.iter().map(line).collect();
        Reply::ok(&json!({
            "lines": lines, "after": page.last, "more": page.more, "dropped": page.dropped, "state": page.state,
        }))
    })
}

fn line(line: &baton_jobs::LogLine) -> Value {
    let mut shown = json!(line);
    shown["offset"] = line.offset.into();
    shown
}

fn event(out: &mut Vec<u8>, id: u64, name: &str, data: &Value) {
    out.extend_from_slice(format!("id: {id}\nevent: {name}\ndata: {data}\n\n").as_bytes());
}

/// Sends what is new until the job has ended, the reader leaves or the server stops.
async fn follow(app: Arc<App>, id: JobId, mut asked: LogQuery, sender: mpsc::Sender<Bytes>) {
    asked.limit = LINES_AT_ONCE;
    let Some(position) = id.position() else { return };
    let (jobs, watching) = (&app.jobs, app.jobs.watch(position));
    let (mut last, mut quiet) = (None, Stopwatch::start());
    loop {
        let notifier = watching.notifier();
        let mut ring = Box::pin(notifier.notified());
        ring.as_mut().enable();
        let page = match jobs.logs(id, asked.clone()).await {
            Ok(page) => page,
            Err(error) => {
                // The reader comes back with its last id and misses nothing.
                tracing::debug!(%error, "a log stream was ended");
                return;
            }
        };
        let mut out = news(&page, last.as_ref(), asked.after);
        asked.after = page.last;
        let is_done = page.state.is_terminal() && !page.more;
        if is_done {
            event(&mut out, page.last, "end", &json!({"state": page.state}));
        }
        let goes_on = page.more;
        last = Some(page);
        if out.is_empty() && quiet.elapsed() >= KEEP_ALIVE {
            out.extend_from_slice(b": still here\n\n");
        }
        if !out.is_empty() {
            quiet = Stopwatch::start();
            if sender.send(out.into()).await.is_err() {
                return;
            }
        }
        if is_done {
            return;
        }
        if goes_on {
            continue;
        }
        tokio::select! {
            () = ring => {}
            () = baton_env::sleep(jobs.look_every()) => {}
            () = sender.closed() => return,
            () = app.stopped() => return,
        }
    }
}

/// The events that lead from what was told to what there is.
fn news(page: &LogPage, before: Option<&LogPage>, after: u64) -> Vec<u8> {
    let mut out = Vec::new();
    if before.is_none_or(|before| (before.state, before.fence) != (page.state, page.fence)) {
        event(&mut out, after, "state", &json!({"state": page.state, "fence": page.fence}));
    }
    for one in &page.lines {
        if one.dropped > 0 {
            event(&mut out, one.offset - 1, "gap", &json!({"dropped": one.dropped}));
        }
        event(&mut out, one.offset, "log", &line(one));
    }
    if page.progress.is_some() && before.is_none_or(|before| before.progress != page.progress) {
        event(&mut out, page.last, "progress", &progress(page.progress.as_ref()));
    }
    out
}
