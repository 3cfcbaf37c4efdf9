//! Gives disk space back after messages were given up.
//!
//! The engine frees a removed segment only when compaction happens upon it, and removals are so small that it
//! would take a very long time to get there by itself. So when much of what is stored has been given up, a
//! thread of its own flushes the removals and compacts the segments. Always: what is rewritten is at most a
//! small multiple of what is freed, because nothing happens below a share of garbage. Not here: what may be
//! removed (`tx`), removing it (`writer`).

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use crate::store::Shared;

/// Space is taken back when this share of the messages on disk is garbage.
const GARBAGE_PERCENT: u64 = 30;
/// And when that is at least this much, so that a small store is left alone.
const GARBAGE_BYTES_MIN: u64 = 32 << 20;

/// Decides when to take space back.
pub struct Reclaimer {
    /// Messages given up since space was last taken back.
    pub garbage: u64,
    requests: SyncSender<()>,
}

impl Reclaimer {
    /// With the other end for [`run`].
    pub fn new() -> (Self, Receiver<()>) {
        let (requests, receiver) = sync_channel(1);
        (Self { garbage: 0, requests }, receiver)
    }

    /// Asks for space to be taken back, if it is worth while. `kept` messages are not garbage.
    pub fn look(&mut self, shared: &Shared, kept: u64) {
        let all = kept + self.garbage;
        if self.garbage == 0 || self.garbage * 100 / all < GARBAGE_PERCENT {
            return;
        }
        let bytes =
            u128::from(shared.tables.segments.disk_space()) * u128::from(self.garbage) / u128::from(all);
        if bytes >= u128::from(GARBAGE_BYTES_MIN) && self.requests.try_send(()).is_ok() {
            self.garbage = 0;
        }
    }
}

/// Takes space back whenever asked, until nobody can ask any more.
pub fn run(shared: &Arc<Shared>, requests: &Receiver<()>) {
    while requests.recv().is_ok() {
        if let Err(error) = reclaim(shared) {
            // Space stays taken; everything else goes on.
            tracing::error!(%error, "disk space could not be taken back");
        }
    }
}

fn reclaim(shared: &Shared) -> fjall::Result<()> {
    let segments = &shared.tables.segments;
    let before = segments.disk_space();
    // The first pass finds out which blob files hold garbage; the second moves the rest out of them.
    for _ in 0..2 {
        segments.rotate_memtable_and_wait()?;
        segments.major_compact()?;
        if segments.fragmented_blob_bytes() * 100 < segments.disk_space() * GARBAGE_PERCENT {
            break;
        }
    }
    // Journals go when every table has been flushed, and replaced files when something newer has been. The note
    // is that something; nobody reads it.
    for _ in 0..2 {
        shared.tables.meta.insert("reclaimed", before.to_le_bytes())?;
        shared.tables.flush()?;
    }
    tracing::info!(before, after = segments.disk_space(), "took back disk space");
    Ok(())
}
