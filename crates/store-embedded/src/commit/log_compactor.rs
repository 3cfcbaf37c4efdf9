//! The log compactor: checkpoints, and removing files of the log that are mostly garbage.
//!
//! A thread of its own flushes the segment index when many rows are pending. It makes a checkpoint when a start would have
//! to replay much, or when the checkpoint prevents the removal of garbage. Then it takes the files with the largest share
//! of garbage, rewrites their live segments at the end of the log, and removes the files. Always: a file is removed only
//! after the index was searched for every segment in it. Rewritten bytes are at most a small multiple of the freed ones,
//! because files with little garbage are left alone. Not here: what may be deleted (`commit::tx`), deleting it
//! (`commit::deferred_delete`), how much is garbage (`wal::usage`).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::Thread;

use baton_store::{Error, Operation, Tx, TxError};
use baton_types::{Offset, PartitionId};
use bytes::{Buf, Bytes};
use tokio::sync::mpsc::WeakSender;

use super::checkpoint::write_checkpoint;
use super::decide_thread::Input;
use super::shared::Shared;
use crate::index::engine_error;
use crate::rows::{SEGMENT_KEY_BYTES, log_file_key};
use crate::wal::{Frame, LogPosition, SegmentPlace};

/// Bytes of segments that one commit rewrites.
const REWRITE_BYTES: usize = 1 << 20;

/// Requests to the compactor.
pub struct CompactionRequests {
    /// The end of the log up to which the index had everything at the time of the request.
    requests: SyncSender<LogPosition>,
}

/// Segments to rewrite, and an operation that finishes when they are on disk.
pub struct RewriteRequest {
    pub segments: Vec<SegmentRewrite>,
    pub done: Box<dyn Operation>,
}

/// A segment to rewrite at the end of the log.
pub struct SegmentRewrite {
    pub key: [u8; SEGMENT_KEY_BYTES],
    /// The segment with its key before it.
    pub bytes: Bytes,
    pub partition: PartitionId,
    /// The first offset after it.
    pub end: Offset,
    /// Its place now.
    pub from: SegmentPlace,
}

impl CompactionRequests {
    /// Returns also the receiver for [`run_compaction`].
    pub fn new() -> (Self, Receiver<LogPosition>) {
        let (requests, receiver) = sync_channel(1);
        (Self { requests }, receiver)
    }

    /// Sends a request if there is work for the compactor. While `deletes_coming`, garbage can wait.
    pub fn request_if_needed(&self, shared: &Shared, deletes_coming: bool) {
        let index = &shared.segments.index;
        if !index.is_busy()
            && (shared.log().usage_mut().needs_maintenance(deletes_coming) || index.is_flush_due())
        {
            shared.apply_to_index();
            // A request that is waiting already is enough.
            let _ = self.requests.try_send(shared.apply_queue.applied_end());
        }
    }
}

/// The compactor's thread. Ends when the writer is dropped.
pub fn run_compaction(
    shared: &Arc<Shared>,
    requests: &Receiver<LogPosition>,
    intake: &WeakSender<Input>,
    decide_thread: &Thread,
) {
    while let Ok(end) = requests.recv() {
        if let Err(error) = compact(shared, end, intake, decide_thread) {
            // The space stays allocated; everything else goes on.
            tracing::error!(%error, "disk space could not be freed");
        }
    }
}

fn compact(
    shared: &Shared,
    end: LogPosition,
    intake: &WeakSender<Input>,
    decide_thread: &Thread,
) -> Result<(), Error> {
    if let Some(error) = shared.failure() {
        return Err(error);
    }
    if shared.segments.index.is_flush_due() {
        shared.segments.index.flush()?;
    }
    if shared.log().usage().needs_checkpoint() {
        write_checkpoint(shared, end)?;
    }
    let mut visited = BTreeSet::new();
    while let Some(file) = { shared.log().usage().file_to_compact(&visited) } {
        visited.insert(file);
        if !rewrite_live_segments(shared, file, intake, decide_thread)? {
            return Ok(());
        }
        shared.apply_to_index();
        // Deleted segments may still be in the index (`deferred_delete`). Then the file is visited again after that.
        if live_segments(shared, file)?.is_empty() {
            // The commits that freed its segments must be on disk before it is removed.
            shared.sync_log()?;
            shared.segments.log.remove(file).map_err(|e| Error::Closed(e.to_string()))?;
            shared.log().forget_file(file);
            shared.tables.meta.remove(log_file_key(file)).map_err(engine_error)?;
            tracing::debug!(file, "removed a file of the log");
        }
    }
    Ok(())
}

/// The segments of a file that the index still has there.
fn live_segments(shared: &Shared, file: u64) -> Result<Vec<SegmentRewrite>, Error> {
    let unreadable = |e: std::io::Error| Error::Closed(format!("file {file} of the log cannot be read: {e}"));
    let damaged = || Error::Corrupt(format!("file {file} of the log is damaged"));
    let mut rest = shared.segments.log.read_file(file).map_err(unreadable)?;
    let (mut at, mut found) = (0, Vec::new());
    while !rest.is_empty() {
        let frame = Frame::decode(&rest).ok_or_else(damaged)?;
        at += frame.len();
        rest.advance(usize::try_from(frame.len()).unwrap_or(usize::MAX));
        for stored in &frame.segments {
            let from = stored.place(file, at - frame.len());
            if shared.segments.find_place(stored.key())? == Some(from) {
                let segment = stored.decode().ok_or_else(damaged)?;
                let (partition, end) = (segment.partition(), segment.end());
                let key = stored.key().try_into().map_err(|_| damaged())?;
                found.push(SegmentRewrite { key, bytes: stored.bytes.clone(), partition, end, from });
            }
        }
    }
    Ok(found)
}

/// Sends the live segments of a file to the deciding thread, which commits them again. `false` if the store closes.
fn rewrite_live_segments(
    shared: &Shared,
    file: u64,
    intake: &WeakSender<Input>,
    decide_thread: &Thread,
) -> Result<bool, Error> {
    let mut segments = live_segments(shared, file)?.into_iter().peekable();
    while segments.peek().is_some() {
        let (mut some, mut bytes) = (Vec::new(), 0);
        while let Some(rewrite) =
            segments.next_if(|rewrite| bytes == 0 || bytes + rewrite.bytes.len() <= REWRITE_BYTES)
        {
            bytes += rewrite.bytes.len();
            some.push(rewrite);
        }
        let Some(intake) = intake.upgrade() else { return Ok(false) };
        let (done, on_disk) = sync_channel(1);
        let request = RewriteRequest { segments: some, done: Box::new(RewriteDone(done)) };
        if intake.blocking_send(Input::Rewrite(request)).is_err() {
            return Ok(false);
        }
        drop(intake);
        decide_thread.unpark();
        match on_disk.recv() {
            Ok(outcome) => outcome?,
            Err(_) => return Ok(false),
        }
    }
    Ok(true)
}

/// Sends the outcome of a commit.
struct RewriteDone(SyncSender<Result<(), Error>>);

impl Operation for RewriteDone {
    fn apply(&mut self, _: &mut dyn Tx) -> Result<(), TxError> {
        Ok(())
    }

    fn finish(self: Box<Self>, outcome: Result<(), Error>) {
        // The compactor may have ended.
        let _ = self.0.send(outcome);
    }
}
