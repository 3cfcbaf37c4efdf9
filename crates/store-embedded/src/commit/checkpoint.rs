//! The checkpoint: from then on a start replays the log only from its position.

use std::time::Duration;

use baton_store::Error;
use fjall::PersistMode;

use super::shared::Shared;
use crate::index::engine_error;
use crate::rows::DEDUP_FILES_KEY;
use crate::wal::LogPosition;

/// The pause between two checks whether the engine has flushed its buffers.
const FLUSH_CHECK_EVERY: Duration = Duration::from_millis(2);

/// Flushes everything that the index had at `end` to sorted files, syncs the dedup files, and stores the checkpoint.
pub fn write_checkpoint(shared: &Shared, end: LogPosition) -> Result<(), Error> {
    shared.segments.index.flush()?;
    let lengths = shared.dedup_files.sync()?;
    shared.tables.meta.insert(DEDUP_FILES_KEY, lengths).map_err(engine_error)?;
    let tables = || shared.tables.all().into_iter();
    for table in tables() {
        table.rotate_memtable().map_err(engine_error)?;
    }
    while tables().any(|table| table.sealed_memtable_count() > 0) {
        baton_env::sleep_blocking(FLUSH_CHECK_EVERY);
        // Fails if the engine has given up writing.
        shared.db.persist(PersistMode::Buffer).map_err(engine_error)?;
        if let Some(error) = shared.failure() {
            return Err(error);
        }
    }
    // The checkpoint must not cover commits that are not on disk.
    shared.sync_log()?;
    end.store(shared.directory())?;
    shared.log().usage_mut().set_checkpoint(end);
    Ok(())
}
