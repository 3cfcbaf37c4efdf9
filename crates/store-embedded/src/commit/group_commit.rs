//! Group commit: one frame of the log and one fsync for all operations of a batch.
//!
//! A commit is answered when it is in the log and synced. The index gets its rows later, so that no answer waits for it.
//! Always: after a failed commit no further batch is written. Not here: which thread commits.

use std::io::{self, ErrorKind};

use baton_env::Stopwatch;
use baton_store::{Error, Operation};

use super::batch::CommitBatch;
use super::index_apply::PendingCommit;
use super::shared::Shared;
use crate::index::{RowWrite, Tables};
use crate::wal::{Log, RowRef};

/// Operations whose commit has ended, and its outcome.
pub struct EndedCommit {
    operations: Vec<Box<dyn Operation>>,
    /// Operations that only read what the batch wrote: pops that its pushes woke.
    readers: Vec<Box<dyn Operation>>,
    outcome: Result<(), Error>,
}

impl EndedCommit {
    /// Answers all operations, the last decided first. Those that read what the batch wrote come before those that wrote
    /// it: a consumer starts to work with its answer, while a producer only learns that its push succeeded.
    pub fn answer(self) {
        finish_all(self.readers, &self.outcome);
        finish_all(self.operations, &self.outcome);
    }
}

fn finish_all(operations: Vec<Box<dyn Operation>>, outcome: &Result<(), Error>) {
    for operation in operations.into_iter().rev() {
        operation.finish(outcome.clone());
    }
}

/// Commits one batch.
pub fn commit_batch(shared: &Shared, batch: CommitBatch) -> EndedCommit {
    begin_commit(shared, batch).complete(shared)
}

/// A commit that is in the log and not on disk yet.
pub struct BegunCommit {
    seq: u64,
    operations: Vec<Box<dyn Operation>>,
    sync: bool,
    operations_len: u64,
    appended: Result<PendingCommit, Error>,
    watch: Stopwatch,
}

/// Appends one batch to the log.
pub fn begin_commit(shared: &Shared, mut batch: CommitBatch) -> BegunCommit {
    let (seq, operations_len, sync) = (batch.seq, batch.operations, batch.sync);
    let operations = std::mem::take(&mut batch.waiting);
    shared.check_free_space();
    let watch = Stopwatch::start();
    // After a failed commit nothing that was decided on top of it is kept.
    let appended = match shared.refusal() {
        Some(refusal) => Err(refusal),
        None => {
            let mut log = shared.log();
            log.raise_high_water(shared.elapsed());
            append_batch(&shared.tables, &mut log, batch)
        }
    };
    BegunCommit { seq, operations, sync, operations_len, appended, watch }
}

impl BegunCommit {
    /// Starts the write-back, without waiting. Returns whether there is anything to sync.
    pub fn start_sync(&self, shared: &Shared) -> bool {
        let starts = self.sync && self.appended.is_ok();
        if starts {
            shared.log().start_sync();
        }
        starts
    }

    /// Waits for the fsync, and queues the commit for the index.
    pub fn complete(self, shared: &Shared) -> EndedCommit {
        let Self { seq, operations, sync, operations_len, appended, watch } = self;
        let synced = appended.and_then(|pending| {
            if sync {
                shared.log().sync().map_err(commit_error)?;
            }
            Ok(pending)
        });
        let outcome = synced.map(|pending| shared.apply_queue.push(pending));
        if let Err(error) = &outcome {
            shared.fail(error);
        }
        shared.context.count_commit(operations_len, sync.then(|| watch.elapsed()));
        let readers = shared.parked_reads.release(seq, outcome.is_ok());
        EndedCommit { operations, readers, outcome }
    }
}

/// Appends a batch to the log.
pub fn append_batch(tables: &Tables, log: &mut Log, batch: CommitBatch) -> Result<PendingCommit, Error> {
    let CommitBatch { seq, number, mut writes, ids, segments, freed, .. } = batch;
    let frees = !freed.is_empty();
    let ids_bytes = ids.iter().map(|packed| packed.value.len() as u64).sum::<u64>();
    let bytes = segments.bytes + ids_bytes + writes.iter().map(RowWrite::bytes_len).sum::<u64>();
    let not_appended = |error: io::Error| match error.kind() {
        // A part of the frame may be written; a start cuts it off as a commit that was never finished.
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            Error::DiskFull { floor: bytes }
        }
        _ => commit_error(error),
    };
    let file_rows = log.prepare_commit(freed).map_err(not_appended)?;
    writes.extend(file_rows.into_iter().map(|(key, row)| RowWrite {
        table: tables.meta.clone(),
        key: key.into(),
        value: Some(row.into()),
    }));
    let id_tables: Vec<_> = ids.iter().map(|packed| packed.table_name()).collect();
    let mut rows = Vec::with_capacity(writes.len() + ids.len());
    rows.extend(writes.iter().map(|write| RowRef {
        table: write.table.name(),
        key: &write.key,
        value: write.value.as_deref(),
    }));
    rows.extend(id_tables.iter().zip(&ids).map(|(table, packed)| RowRef {
        table,
        key: &[],
        value: Some(&packed.value),
    }));
    let first = log.append(number, &rows, &segments).map_err(not_appended)?;
    Ok(PendingCommit { seq, writes, ids, segments: segments.index, first, frees, bytes, end: log.end() })
}

fn commit_error(error: io::Error) -> Error {
    Error::Closed(format!("a commit failed: {error}"))
}
