//! Undo of a decision that failed after its first write.
//!
//! The rules check everything before they write, so this is for their mistakes and for rows that cannot be read. Memory
//! has no undo log, which every write would pay for: the writer drops the filling group, reloads memory from disk as a
//! start does, and decides the group's other operations again. Always: the failed decision leaves nothing, no answered
//! commit is lost, and the store goes on. Leases of the dropped group that nobody waited for are forgotten, as in a crash.

use baton_store::Error;

use crate::cold::Overlay;
use crate::filling::Filling;
use crate::loading;
use crate::writer::{Group, Writer};

impl Writer {
    /// Drops the filling group and decides the operations in it again. No commit may be under way.
    pub fn undo(&mut self) {
        let shared = self.shared.clone();
        let seq = self.group.seq;
        let dropped = std::mem::replace(&mut self.group, Group { seq, ..Group::default() });
        let mut again = dropped.waiting;
        again.append(&mut self.postponed);
        self.half_decided = false;
        shared.tell_engine();
        if let Err(error) = self.reload() {
            shared.fail(&Error::Closed(format!("a decision cannot be undone: {error}")));
        }
        again.into_iter().for_each(|operation| self.run(operation));
    }

    /// Rebuilds memory from what the engine knows, which is every commit.
    fn reload(&mut self) -> Result<(), Error> {
        let shared = self.shared.clone();
        (self.hot, self.tails, self.leftovers) = loading::load(&shared.tables, self.last_now)?;
        self.remembered.undo()?;
        for overlay in [&mut self.records, &mut self.letters, &mut self.letter_times] {
            *overlay = Overlay::default();
        }
        self.filling = Filling::default();
        self.in_flight.clear();
        self.removed_in_flight.clear();
        self.dirty_partitions.clear();
        self.dirty_cursors.clear();
        self.group_bytes = 0;
        // Segments to be written again are needed whatever is decided.
        self.group.sync = !self.moved.is_empty();
        Ok(())
    }
}
