//! Takes care of the log: its index, checkpoints, and space given back after messages were given up.
//!
//! A thread of its own writes rows of the index when they are many. It makes a checkpoint when a start would have much
//! to do again, and when files that could go are held by it. Then it takes the files of which the most is garbage, has
//! what is still needed in them written again at the end of the log, and removes them. Always: a file goes only after
//! the index has been asked about every segment in it; what is written again is at most a small multiple of what is
//! freed, because nothing happens below a share of garbage. Not here: what may be removed (`tx`), removing it
//! (`writer`), how much is garbage (`log`).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::Thread;
use std::time::Duration;

use baton_store::{Error, Operation, Tx, TxError};
use baton_types::{Offset, PartitionId};
use bytes::{Buf, Bytes};
use fjall::PersistMode;
use tokio::sync::mpsc::WeakSender;

use crate::log::{Frame, Place, Position, usage_key};
use crate::shared::Shared;
use crate::tables::{IDS_KEY, SEGMENT_KEY_BYTES, engine_error};
use crate::writer::Input;

/// Segments that are written again with one commit, in bytes.
const MOVED_AT_ONCE: usize = 1 << 20;
/// How often to look whether the engine has written its buffers.
const FLUSHED_CHECK_EVERY: Duration = Duration::from_millis(2);

/// Asks for care.
pub struct Reclaimer {
    /// Up to where in the log the engine knew everything.
    requests: SyncSender<Position>,
}

/// Segments to be written again, and who is told when they are on disk.
pub struct Move {
    pub segments: Vec<Moved>,
    pub done: Box<dyn Operation>,
}

/// A segment that is to be written again, as it stands in the log.
pub struct Moved {
    pub key: [u8; SEGMENT_KEY_BYTES],
    pub entry: Bytes,
    pub partition: PartitionId,
    /// The first offset after it.
    pub end: Offset,
    /// Where it is now.
    pub from: Place,
}

impl Reclaimer {
    /// With the other end for [`run`].
    pub fn new() -> (Self, Receiver<Position>) {
        let (requests, receiver) = sync_channel(1);
        (Self { requests }, receiver)
    }

    /// Asks for care if there is need of it. While more is still `to_clear` away, garbage can wait.
    pub fn look(&self, shared: &Shared, to_clear: bool) {
        let index = &shared.messages.index;
        if !index.is_busy() && (shared.log().wants_care(to_clear) || index.is_much()) {
            shared.tell_engine();
            // If one is waiting already, that will do.
            let _ = self.requests.try_send(shared.telling.end());
        }
    }
}

/// Works whenever asked, until nobody can ask any more.
pub fn run(
    shared: &Arc<Shared>,
    requests: &Receiver<Position>,
    intake: &WeakSender<Input>,
    decider: &Thread,
) {
    while let Ok(end) = requests.recv() {
        if let Err(error) = care(shared, end, intake, decider) {
            // Space stays taken; everything else goes on.
            tracing::error!(%error, "disk space could not be taken back");
        }
    }
}

fn care(shared: &Shared, end: Position, intake: &WeakSender<Input>, decider: &Thread) -> Result<(), Error> {
    if let Some(error) = shared.failure() {
        return Err(error);
    }
    if shared.messages.index.is_much() {
        shared.messages.index.write()?;
    }
    if shared.log().wants_checkpoint() {
        checkpoint(shared, end)?;
    }
    let mut looked_at = BTreeSet::new();
    while let Some(file) = { shared.log().garbage_file(&looked_at) } {
        looked_at.insert(file);
        if !move_out(shared, file, intake, decider)? {
            return Ok(());
        }
        shared.tell_engine();
        // Some may be removed but not yet cleared away; then it is looked at again after the next removal.
        if needed(shared, file)?.is_empty() {
            // That nothing points to it must be on disk before.
            shared.sync_log()?;
            shared.messages.log.remove(file).map_err(|e| Error::Closed(e.to_string()))?;
            shared.log().note_removed(file);
            shared.tables.meta.remove(usage_key(file)).map_err(engine_error)?;
            tracing::debug!(file, "took back disk space");
        }
    }
    Ok(())
}

/// Writes everything that the engine knew at `end` to sorted files, and syncs the remembered ids.
pub fn checkpoint(shared: &Shared, end: Position) -> Result<(), Error> {
    shared.messages.index.write()?;
    let ids = shared.id_files.sync()?;
    shared.tables.meta.insert(IDS_KEY, ids).map_err(engine_error)?;
    let tables = || shared.tables.all().into_iter();
    for table in tables() {
        table.rotate_memtable().map_err(engine_error)?;
    }
    while tables().any(|table| table.sealed_memtable_count() > 0) {
        baton_env::sleep_blocking(FLUSHED_CHECK_EVERY);
        // Fails if the engine has given up writing.
        shared.db.persist(PersistMode::Buffer).map_err(engine_error)?;
        if let Some(error) = shared.failure() {
            return Err(error);
        }
    }
    // What is not on disk may not be taken for covered.
    shared.sync_log()?;
    end.store(shared.directory())?;
    shared.log().note_checkpoint(end);
    Ok(())
}

/// The segments of a file that the index still points to.
fn needed(shared: &Shared, file: u64) -> Result<Vec<Moved>, Error> {
    let unreadable = |e: std::io::Error| Error::Closed(format!("file {file} of the log cannot be read: {e}"));
    let damaged = || Error::Corrupt(format!("file {file} of the log is damaged"));
    let mut rest = shared.messages.log.read(file).map_err(unreadable)?;
    let (mut at, mut found) = (0, Vec::new());
    while !rest.is_empty() {
        let frame = Frame::read(&rest).ok_or_else(damaged)?;
        at += frame.len();
        rest.advance(usize::try_from(frame.len()).unwrap_or(usize::MAX));
        for entry in &frame.entries {
            let from = entry.place(file, at - frame.len());
            if shared.messages.place(entry.key())? == Some(from) {
                let segment = entry.segment().ok_or_else(damaged)?;
                let (partition, end) = (segment.partition(), segment.end());
                let key = entry.key().try_into().map_err(|_| damaged())?;
                found.push(Moved { key, entry: entry.bytes.clone(), partition, end, from });
            }
        }
    }
    Ok(found)
}

/// Has what is needed of a file written again; `false` when the store closes.
fn move_out(shared: &Shared, file: u64, intake: &WeakSender<Input>, decider: &Thread) -> Result<bool, Error> {
    let mut segments = needed(shared, file)?.into_iter().peekable();
    while segments.peek().is_some() {
        let (mut some, mut bytes) = (Vec::new(), 0);
        while let Some(moved) =
            segments.next_if(|moved| bytes == 0 || bytes + moved.entry.len() <= MOVED_AT_ONCE)
        {
            bytes += moved.entry.len();
            some.push(moved);
        }
        let Some(intake) = intake.upgrade() else { return Ok(false) };
        let (done, on_disk) = sync_channel(1);
        if intake.blocking_send(Input::Move(Move { segments: some, done: Box::new(Done(done)) })).is_err() {
            return Ok(false);
        }
        drop(intake);
        decider.unpark();
        match on_disk.recv() {
            Ok(outcome) => outcome?,
            Err(_) => return Ok(false),
        }
    }
    Ok(true)
}

/// Tells when a commit is on disk.
struct Done(SyncSender<Result<(), Error>>);

impl Operation for Done {
    fn apply(&mut self, _: &mut dyn Tx) -> Result<(), TxError> {
        Ok(())
    }

    fn finish(self: Box<Self>, outcome: Result<(), Error>) {
        // Whoever asked may have gone.
        let _ = self.0.send(outcome);
    }
}
