//! Logs: the lines of executions, numbered without gaps.
//!
//! The lines of one call are one record, or several when they are large. Always: the lines of an execution are
//! numbered from 1; a repeated line is stored once, and a call that skips a number is refused. Beyond the limit the
//! oldest lines are dropped: readers see a gap. A log has a retention of its own after the job's end
//! (`log_retention`).

use baton_store::Error as StoreError;
use baton_types::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::model::error::Error;
use crate::model::ids::{ExecutionId, JobId};
use crate::model::keys;
use crate::model::limits::{LINE_BYTES_MAX, LINES_KEPT_MAX, LINES_MAX};
use crate::model::slot::Slot;
use crate::model::state::State;
use crate::rules::heartbeat::ProgressAt;
use crate::rules::state_machine;
use crate::storage::split_records::split;
use crate::storage::{Abort, JobsTx};

/// Records read in one decision.
const RECORDS_MAX: usize = 64;

/// The severity of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Each step.
    Trace,
    /// Details for finding a bug.
    Debug,
    /// Normal events.
    #[default]
    Info,
    /// Unexpected events.
    Warn,
    /// Failures.
    Error,
}

/// A line as a worker sends it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NewLogLine {
    /// Its severity.
    #[serde(default)]
    pub level: LogLevel,
    /// Its text.
    pub message: String,
    /// When the worker wrote it, by the worker's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
}

/// Lines of one execution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewLogLines {
    /// The execution.
    pub execution: ExecutionId,
    /// The number of the first line.
    pub first: u64,
    /// The lines.
    pub lines: Vec<NewLogLine>,
}

/// The result of appending lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogAppended {
    /// All lines before this number are stored or counted as dropped.
    UpTo(u64),
    /// The execution is over; another one holds the job, or none.
    StaleFence {
        /// The present fence.
        current: u64,
    },
}

/// A stored line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LogLine {
    /// Its position in the job's log, from 1, over all executions.
    #[serde(skip)]
    pub offset: u64,
    /// Its number in its execution.
    pub seq: u64,
    /// The execution.
    pub execution_id: ExecutionId,
    /// The worker's time, or else when the server stored it.
    pub at: String,
    /// Its severity.
    pub level: LogLevel,
    /// What it says.
    pub message: String,
    /// Dropped lines before it.
    #[serde(skip)]
    pub dropped: u64,
}

/// The log positions of a job's newest execution.
#[derive(Debug, Default, Serialize, Deserialize)]
struct LogPosition {
    /// Lines stored over all executions.
    offset: u64,
    /// The fence of the newest execution with a log, the number of its next line, lines stored and dropped.
    fence: u64,
    next: u64,
    kept: u64,
    dropped: u64,
    /// How the job ended, once the job itself is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ended: Option<State>,
}

/// The stored lines of one call.
#[derive(Serialize, Deserialize)]
struct LogRecord {
    fence: u64,
    first: u64,
    at: Timestamp,
    lines: Vec<NewLogLine>,
}

fn read<T: serde::de::DeserializeOwned>(value: &[u8]) -> Result<T, StoreError> {
    serde_json::from_slice(value)
        .map_err(|error| StoreError::Corrupt(format!("a log cannot be read: {error}")))
}

/// Appends lines.
pub fn append(tx: &mut JobsTx<'_>, new: &NewLogLines) -> Result<LogAppended, Abort> {
    if new.lines.is_empty() || new.lines.len() > LINES_MAX || new.first == 0 {
        return Err(Error::invalid(format!("a call has 1 to {LINES_MAX} lines, numbered from 1")).into());
    }
    let job = new.execution.job;
    let position = tx.expect(job)?;
    let Some(slot) = tx.slot(position)? else { return Err(Error::no_job(job).into()) };
    // An execution's last lines may arrive after its outcome, as long as it is the newest.
    let is_last = slot.fence == new.execution.fence && slot.state == State::Completed;
    if state_machine::check(slot, new.execution.fence).is_err() && !is_last {
        let current = slot.fence;
        tx.effects.counts.stale += 1;
        return Ok(LogAppended::StaleFence { current });
    }
    let mut logs: LogPosition =
        tx.record(&keys::logs(job))?.map(|value| read(&value)).transpose()?.unwrap_or_default();
    if logs.fence != new.execution.fence {
        logs = LogPosition { fence: new.execution.fence, next: 1, kept: 0, dropped: 0, ..logs };
    }
    if new.first > logs.next {
        let message = format!(
            "the next line has number {}, these begin with {}: send those between",
            logs.next, new.first
        );
        return Err(Error::conflict("log_gap", message).into());
    }
    let (known, sent_at) = (usize::try_from(logs.next - new.first).unwrap_or(usize::MAX), tx.now());
    let fresh = new.lines.get(known..).unwrap_or_default();
    if fresh.is_empty() {
        return Ok(LogAppended::UpTo(logs.next));
    }
    let mut seq = logs.next;
    for lines in split(fresh.iter().cloned().map(bounded).collect()) {
        tx.add_journal_entry(position.index() as u64, || {
            let at = sent_at.to_iso_millis();
            json!({
                "kind": "logs", "jobId": job, "executionId": new.execution, "firstSeq": seq, "lines": lines,
                "at": at,
            })
        });
        let count = lines.len() as u64;
        let record = LogRecord { fence: logs.fence, first: seq, at: tx.now(), lines };
        tx.put(keys::log(job, logs.offset + 1), serde_json::to_vec(&record).unwrap_or_default(), None);
        seq += count;
        logs.offset += count;
    }
    logs.next += fresh.len() as u64;
    logs.kept += fresh.len() as u64;
    let dropped = drop_oldest(tx, job, &mut logs, fresh.len())?;
    tx.put(keys::logs(job), serde_json::to_vec(&logs).unwrap_or_default(), None);
    tx.effects.counts.lines = (fresh.len() as u64, dropped);
    let now = tx.now();
    let slot = tx.slot_mut(position)?;
    let is_first = !std::mem::replace(&mut slot.has_output, true);
    if is_first && slot.state.is_terminal() {
        schedule_removal(tx, job, now);
    }
    tx.notify_watchers(position);
    Ok(LogAppended::UpTo(logs.next))
}

/// Removes the oldest records of the newest execution beyond the limit, after `fresh` lines were added. Its lines are
/// the last of the log, so removing them leaves a gap before them.
fn drop_oldest(tx: &mut JobsTx<'_>, job: JobId, logs: &mut LogPosition, fresh: usize) -> Result<u64, Abort> {
    if logs.kept <= LINES_KEPT_MAX {
        return Ok(0);
    }
    let prefix = keys::log_lines(job);
    let before = keys::log(job, logs.offset - logs.kept);
    // Each record has at least one line, so removing as many records as lines were added is enough.
    let oldest = tx.stored(&prefix, Some(&before), fresh + 1)?;
    let first = |key: &str| key.strip_prefix(&prefix).and_then(|n| u64::from_str_radix(n, 16).ok());
    let mut dropped = 0;
    for pair in oldest.windows(2) {
        let (Some(from), Some(to)) = (first(&pair[0].0), first(&pair[1].0)) else { break };
        if logs.kept - (to - from) < LINES_KEPT_MAX {
            break;
        }
        tx.remove(pair[0].0.clone());
        logs.kept -= to - from;
        dropped += to - from;
    }
    logs.dropped += dropped;
    Ok(dropped)
}

/// Prepares the log of a job that is about to be deleted.
pub fn outlive(tx: &mut JobsTx<'_>, job: JobId, slot: &Slot) -> Result<(), Abort> {
    let Some(value) = tx.record(&keys::logs(job))? else { return Ok(()) };
    let logs = LogPosition { ended: Some(slot.state), ..read(&value)? };
    tx.put(keys::logs(job), serde_json::to_vec(&logs).unwrap_or_default(), None);
    schedule_removal(tx, job, slot.ended_at);
    Ok(())
}

/// Schedules the removal of the log of a job that ended at `ended_at`.
pub fn schedule_removal(tx: &mut JobsTx<'_>, job: JobId, ended_at: Timestamp) {
    let at = ended_at.after(tx.policy.logs_for);
    tx.put(keys::worn(at, job), Vec::new(), None);
}

fn bounded(mut line: NewLogLine) -> NewLogLine {
    let end = line.message.len().min(LINE_BYTES_MAX);
    let end = (0..=end).rev().find(|end| line.message.is_char_boundary(*end)).unwrap_or(0);
    line.message.truncate(end);
    line.at = line.at.filter(|at| at.len() <= 64);
    line
}

/// What part of a log to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogQuery {
    /// Only lines of this execution.
    pub execution: Option<ExecutionId>,
    /// Only lines after this position.
    pub after: u64,
    /// Only lines at least this severe.
    pub level: Option<LogLevel>,
    /// At most this many.
    pub limit: usize,
}

/// A page of a log, and the state of the job.
#[derive(Clone, Debug, PartialEq)]
pub struct LogPage {
    /// The lines.
    pub lines: Vec<LogLine>,
    /// The position of the last line that was read.
    pub last: u64,
    /// Whether there may be more now.
    pub more: bool,
    /// Dropped lines of the newest execution.
    pub dropped: u64,
    /// The job's state.
    pub state: State,
    /// The present fence.
    pub fence: u64,
    /// The job's progress.
    pub progress: Option<ProgressAt>,
}

/// Reads a log.
pub fn lines(tx: &mut JobsTx<'_>, job: JobId, query: &LogQuery) -> Result<LogPage, Abort> {
    let slot = match tx.find(job)? {
        Some(position) => tx.slot(position)?.map(|slot| (slot.state, slot.fence, slot.has_output)),
        None => None,
    };
    let logs: Option<LogPosition> = match slot {
        Some((.., false)) => None,
        _ => tx.record(&keys::logs(job))?.map(|value| read(&value)).transpose()?,
    };
    let outlived = || logs.as_ref().and_then(|logs| logs.ended.map(|state| (state, logs.fence, true)));
    let (state, fence, has_output) = slot.or_else(outlived).ok_or_else(|| Error::no_job(job))?;
    let mut page = LogPage {
        lines: Vec::new(),
        last: query.after,
        more: false,
        dropped: 0,
        state,
        fence,
        progress: None,
    };
    if !has_output {
        return Ok(page);
    }
    page.progress = tx.record(&keys::progress(job))?.and_then(|value| serde_json::from_slice(&value).ok());
    page.dropped = logs.as_ref().map_or(0, |logs| logs.dropped);
    let prefix = keys::log_lines(job);
    // A record holds at most this many lines, so the one with the next line does not begin before this.
    let mut from = keys::log(job, (query.after + 1).saturating_sub(LINES_MAX as u64));
    let first_line = |key: &str| key.strip_prefix(&prefix).and_then(|n| u64::from_str_radix(n, 16).ok());
    let records = loop {
        let records = tx.stored(&prefix, Some(&from), RECORDS_MAX)?;
        // Records may have few lines: only the last of these can hold the next line.
        match records.last_chunk() {
            Some([(before, _), (last, _)])
                if records.len() == RECORDS_MAX && first_line(last).is_some_and(|n| n <= query.after) =>
            {
                from.clone_from(before);
            }
            _ => break records,
        }
    };
    page.more = records.len() == RECORDS_MAX;
    let (mut expected, mut gap) = (query.after + 1, 0);
    for (key, record) in records {
        let (Some(first), kept) = (first_line(&key), read::<LogRecord>(&record.value)?) else { continue };
        let execution = ExecutionId { job, fence: kept.fence };
        let at = kept.at.to_iso_millis();
        if query.execution.is_none_or(|wanted| wanted == execution) {
            gap += first.saturating_sub(expected);
        }
        expected = expected.max(first + kept.lines.len() as u64);
        for (index, line) in kept.lines.into_iter().enumerate() {
            let offset = first + index as u64;
            if offset <= query.after {
                continue;
            }
            if page.lines.len() >= query.limit {
                page.more = true;
                return Ok(page);
            }
            page.last = offset;
            let fits = query.execution.is_none_or(|wanted| wanted == execution)
                && query.level.is_none_or(|level| line.level >= level);
            if fits {
                page.lines.push(LogLine {
                    offset,
                    seq: kept.first + index as u64,
                    execution_id: execution,
                    at: line.at.unwrap_or_else(|| at.clone()),
                    level: line.level,
                    message: line.message,
                    dropped: std::mem::take(&mut gap),
                });
            }
        }
    }
    Ok(page)
}
