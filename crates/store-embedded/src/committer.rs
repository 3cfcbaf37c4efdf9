//! Committing: one frame of the log and one sync per group, on a thread of its own when there is much to do.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread::Thread;

use baton_env::Stopwatch;
use baton_store::{Error, Operation};
use bytes::Bytes;
use fjall::Database;

use crate::log::{Log, Place, Segments};
use crate::store::Shared;
use crate::tables::{SEGMENT_KEY_BYTES, Tables};
use crate::writer::{Group, Write};

/// Runs until the writer is gone.
pub fn run(shared: &Arc<Shared>, groups: &Receiver<Group>, decider: &Thread) {
    while let Ok(group) = groups.recv() {
        let committed = commit(shared, group);
        shared.set_idle(true);
        decider.unpark();
        committed.answer();
    }
}

/// Operations that a commit lets go, and how it went.
pub struct Committed {
    operations: Vec<Box<dyn Operation>>,
    outcome: Result<(), Error>,
}

impl Committed {
    /// Tells everyone who waited, the last decided first: a pop comes after the push that woke it, and what it
    /// got is somebody's next piece of work, while the push's answer is only good news.
    pub fn answer(self) {
        for operation in self.operations.into_iter().rev() {
            operation.finish(self.outcome.clone());
        }
    }
}

/// Writes one group.
pub fn commit(shared: &Shared, group: Group) -> Committed {
    let Group { seq, number, sync, writes, segments, given_up, waiting: mut operations, .. } = group;
    shared.check_space();
    let watch = Stopwatch::start();
    // After a failed commit nothing that was decided on top of it may be kept.
    let mut outcome = match shared.failure() {
        Some(reason) => Err(Error::Closed(reason)),
        None => {
            write(&shared.db, &shared.tables, &mut shared.log(), number, writes, &segments, given_up, sync)
        }
    };
    if outcome.is_ok() && sync {
        let noted = shared.high_water.note(number);
        outcome = noted.map_err(|e| Error::Closed(format!("a commit could not be noted: {e}")));
    }
    if let Err(error) = &outcome {
        shared.fail(&error.to_string());
    }
    shared.count_commit(group.operations, sync.then(|| watch.elapsed()));
    operations.extend(shared.advance(seq, outcome.is_ok()));
    Committed { operations, outcome }
}

/// Writes a commit to the log, and then tells the engine, which never knows of more than is in the log.
#[expect(clippy::too_many_arguments, reason = "everything that a commit consists of")]
pub fn write(
    db: &Database,
    tables: &Tables,
    log: &mut Log,
    number: u64,
    mut writes: Vec<Write>,
    segments: &Segments,
    given_up: Vec<Place>,
    sync: bool,
) -> Result<(), Error> {
    let failed = |e: std::io::Error| Error::Closed(format!("a commit failed: {e}"));
    let complete = log.begin_file_if_full().map_err(failed)?;
    let about_files = complete.into_iter().chain(log.give_up(given_up));
    writes.extend(about_files.map(|(key, row)| Write {
        table: tables.meta.clone(),
        key: key.into(),
        value: Some(row.into()),
    }));
    let first = log.append(number, &writes, segments).map_err(failed)?;
    if sync {
        log.sync().map_err(failed)?;
    }
    let mut batch = db.batch();
    for (key, place) in index(segments, first) {
        batch.insert(&tables.segments, key, place);
    }
    for write in writes {
        match write.value {
            Some(value) => batch.insert(&write.table, write.key, value),
            None => batch.remove(&write.table, write.key),
        }
    }
    batch.commit().map_err(|e| Error::Closed(format!("a commit failed: {e}")))
}

/// Keys and places of the segments of a commit, the first of which stands at `first`, in memory that they share.
fn index(segments: &Segments, first: Place) -> impl Iterator<Item = (Bytes, Bytes)> {
    const ROW_BYTES: usize = SEGMENT_KEY_BYTES + Place::BYTES;
    let mut rows = Vec::with_capacity(ROW_BYTES * segments.index.len());
    for segment in &segments.index {
        rows.extend_from_slice(&segment.key);
        Place { at: first.at + segment.at, length: segment.length, ..first }.put(&mut rows);
    }
    let rows = Bytes::from(rows);
    (0..segments.index.len()).map(move |at| {
        let row = rows.slice(at * ROW_BYTES..(at + 1) * ROW_BYTES);
        (row.slice(..SEGMENT_KEY_BYTES), row.slice(SEGMENT_KEY_BYTES..))
    })
}
