//! Undo of an operation that failed after its first write.
//!
//! The rules check everything before they write, so this is for their bugs and for rows that cannot be read. An undo log
//! would cost every write. Instead the writer drops the batch that is filling, reloads memory from disk as a start does,
//! and decides the batch's other operations again. Always: the failed operation leaves nothing, no answered commit is
//! lost, and the store goes on. Leases of the dropped batch for which no operation waited are lost, as in a crash.

use baton_store::Error;

use super::writer::Writer;
use crate::index::TableOverlays;
use crate::startup::load_state;

impl Writer {
    /// Drops the batch that is filling and decides its operations again. No commit may be under way.
    pub fn undo_batch(&mut self) {
        let shared = self.shared.clone();
        let mut again = self.batch.take_operations();
        again.append(&mut self.postponed);
        self.needs_undo = false;
        shared.apply_to_index();
        if let Err(error) = self.reload_memory() {
            shared.fail(&Error::Closed(format!("a decision cannot be undone: {error}")));
        }
        again.into_iter().for_each(|operation| self.run_operation(operation));
    }

    /// Rebuilds memory from the index, which has every commit.
    fn reload_memory(&mut self) -> Result<(), Error> {
        let shared = self.shared.clone();
        (self.state, self.tail_log, self.deletes) = load_state(&shared.tables, self.last_now)?;
        self.dedup.undo()?;
        self.overlays = TableOverlays::default();
        self.unapplied.clear();
        self.batch.clear();
        Ok(())
    }
}
