//! Committing: one frame of the log and one sync per group, on a thread of its own when there is much to do.
//!
//! A commit is answered when it is in the log and synced. The engine is told after that, so that nobody waits for it, and
//! of many commits at once. Always: the engine is told in the order of the commits, and never of more than is on disk;
//! whoever reads in it what a commit may have changed has it told first (`Shared::tell_engine`), or knows of it from
//! memory.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread::Thread;

use baton_env::Stopwatch;
use baton_store::{Error, Operation};
use fjall::Database;
use rustc_hash::FxHashMap;

use crate::index::{Index, Row};
use crate::log::{Indexed, Log, Place, Position};
use crate::remembered::{self, Packed};
use crate::shared::Shared;
use crate::tables::{Tables, engine_error};
use crate::writer::{Group, Write};

/// Runs until the writer is gone.
pub fn run(shared: &Arc<Shared>, groups: &Receiver<Group>, decider: &Thread) {
    while let Ok(group) = groups.recv() {
        let gives_up = !group.given_up.is_empty();
        let committed = commit(shared, group);
        shared.set_idle(true);
        decider.unpark();
        committed.answer();
        shared.tell_engine_of_many(gives_up && shared.may_tell());
    }
}

/// Operations that a commit lets go, and how it went.
pub struct Committed {
    operations: Vec<Box<dyn Operation>>,
    /// Those that only rest on it: pops that its pushes woke.
    led_to: Vec<Box<dyn Operation>>,
    outcome: Result<(), Error>,
}

impl Committed {
    /// Tells everyone who waited, the last decided first.
    pub fn answer(mut self) {
        self.answer_led_to();
        finish(self.operations, &self.outcome);
    }

    /// Tells those whom it has led to, before anybody else: what a pop got is somebody's next piece of work, while the
    /// push's answer is only good news. Says whether there were any.
    pub fn answer_led_to(&mut self) -> bool {
        let led_to = std::mem::take(&mut self.led_to);
        let any = !led_to.is_empty();
        finish(led_to, &self.outcome);
        any
    }
}

fn finish(operations: Vec<Box<dyn Operation>>, outcome: &Result<(), Error>) {
    for operation in operations.into_iter().rev() {
        operation.finish(outcome.clone());
    }
}

/// Writes one group to the log.
pub fn commit(shared: &Shared, group: Group) -> Committed {
    begin(shared, group).complete(shared)
}

/// A commit that is in the log but not on disk yet.
pub struct Begun {
    seq: u64,
    sync: bool,
    operations: Vec<Box<dyn Operation>>,
    operations_len: u64,
    appended: Result<Untold, Error>,
    watch: Stopwatch,
}

/// Appends one group to the log.
pub fn begin(shared: &Shared, mut group: Group) -> Begun {
    let (seq, operations_len, sync) = (group.seq, group.operations, group.sync);
    let operations = std::mem::take(&mut group.waiting);
    shared.check_space();
    let watch = Stopwatch::start();
    // After a failed commit nothing that was decided on top of it may be kept.
    let appended = match shared.refusal() {
        Some(refusal) => Err(refusal),
        None => {
            let mut log = shared.log();
            log.raise_high_water(shared.elapsed());
            append(&shared.tables, &mut log, group)
        }
    };
    Begun { seq, sync, operations, operations_len, appended, watch }
}

impl Begun {
    /// Sends it on its way to disk; says whether it is.
    pub fn start(&self, shared: &Shared) -> bool {
        let starts = self.sync && self.appended.is_ok();
        if starts {
            shared.log().start_sync();
        }
        starts
    }

    /// Has everyone who waits for it prepare, while it is on its way.
    pub fn prepare(&mut self, shared: &Shared) {
        self.operations.iter_mut().for_each(|operation| operation.prepare());
        shared.prepare(self.seq);
    }

    /// Waits until it is on disk.
    pub fn complete(self, shared: &Shared) -> Committed {
        let Self { seq, sync, operations, operations_len, appended, watch } = self;
        let synced = appended.and_then(|untold| {
            if sync {
                shared.log().sync().map_err(failed)?;
            }
            Ok(untold)
        });
        let outcome = synced.map(|untold| shared.telling.keep(untold));
        if let Err(error) = &outcome {
            shared.fail(error);
        }
        shared.context.count_commit(operations_len, sync.then(|| watch.elapsed()));
        let led_to = shared.advance(seq, outcome.is_ok());
        Committed { operations, led_to, outcome }
    }
}

/// Appends a commit to the log.
pub fn append(tables: &Tables, log: &mut Log, group: Group) -> Result<Untold, Error> {
    let Group { seq, number, mut writes, ids, segments, given_up, .. } = group;
    let gives_up = !given_up.is_empty();
    let ids_bytes = ids.iter().map(|packed| packed.value.len() as u64).sum::<u64>();
    let bytes = segments.bytes + ids_bytes + writes.iter().map(Write::bytes_len).sum::<u64>();
    let not_appended = |error: io::Error| match error.kind() {
        // Some of the frame may be there; it is cut off as a commit that was never finished.
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            Error::DiskFull { floor: bytes }
        }
        _ => failed(error),
    };
    let about_files = log.make_ready(given_up).map_err(not_appended)?;
    writes.extend(about_files.into_iter().map(|(key, row)| Write {
        table: tables.meta.clone(),
        key: key.into(),
        value: Some(row.into()),
    }));
    let first = log.append(number, &writes, &ids, &segments).map_err(not_appended)?;
    Ok(Untold { seq, writes, ids, segments: segments.index, first, gives_up, bytes, end: log.end() })
}

fn failed(error: io::Error) -> Error {
    Error::Closed(format!("a commit failed: {error}"))
}

/// A commit that the engine has not been told of.
pub struct Untold {
    pub seq: u64,
    /// Bytes of its segments and rows.
    pub bytes: u64,
    /// Where the log ends after it.
    pub end: Position,
    writes: Vec<Write>,
    ids: Vec<Packed>,
    segments: Vec<Indexed>,
    first: Place,
    /// Whether segments are removed, or stand elsewhere from now on.
    pub gives_up: bool,
}

impl Untold {
    /// Tells the engine of commits in a row, of which only the first may give something up. Of a row that several of them
    /// write it learns the last.
    pub fn tell(commits: &[Self], db: &Database, index: &Index) -> Result<(), Error> {
        if commits.first().is_some_and(|first| first.gives_up) {
            // A row must not come after it was removed.
            index.write()?;
        }
        let writes = commits.iter().flat_map(|commit| &commit.writes);
        let last: FxHashMap<_, _> = writes.map(|write| ((write.table.id(), &write.key), write)).collect();
        let mut batch = db.batch();
        for write in last.into_values() {
            match &write.value {
                Some(value) => batch.insert(&write.table, write.key.clone(), value.clone()),
                None => batch.remove(&write.table, write.key.clone()),
            }
        }
        batch.commit().map_err(engine_error)?;
        remembered::append_to_files(commits.iter().flat_map(|commit| &commit.ids))?;
        commits.iter().try_for_each(|commit| index.keep(commit.rows()))
    }

    /// Where its segments are.
    fn rows(&self) -> impl Iterator<Item = Row> {
        self.segments.iter().map(|segment| {
            let place = Place { at: self.first.at + segment.at, length: segment.length, ..self.first };
            Row { key: segment.key, place }
        })
    }
}
