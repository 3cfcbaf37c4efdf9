//! Deciding: runs the operations of a group against memory, and finds out which rows they miss.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use baton_store::{Error, Operation, Stop};

use crate::memory::Memory;
use crate::remembered::Remembered;
use crate::store::Shared;
use crate::tx::{Missing, Names, PostgresTx};

/// Bytes of messages after which a group takes no more operations.
const GROUP_BYTES_ENOUGH: usize = 16 << 20;

/// Runs decisions against memory.
pub struct Decider<'a> {
    pub names: &'a Names,
    pub shared: &'a Shared,
}

impl Decider<'_> {
    fn decide(
        &self,
        memory: &mut Memory,
        remembered: &Remembered,
        operation: &mut Box<dyn Operation>,
    ) -> Result<(), Stop> {
        memory.begin();
        let Shared { cache, room, .. } = self.shared;
        let mut tx = PostgresTx { memory, names: self.names, remembered, cache, room, ids: 0 };
        match catch_unwind(AssertUnwindSafe(|| operation.apply(&mut tx))) {
            Ok(outcome) => outcome,
            Err(thrown) if thrown.is::<Missing>() => Err(Stop::Load),
            // It is taken back like any other that failed; the others of its group go on.
            Err(_) => Err(Stop::Failed(Error::Closed("a decision has panicked".into()))),
        }
    }

    /// Finds out which rows decisions want, and leaves nothing of them.
    pub fn discover<'o>(
        &mut self,
        memory: &mut Memory,
        remembered: &mut Remembered,
        operations: impl Iterator<Item = &'o mut Box<dyn Operation>>,
    ) {
        let marks = memory.changed.marks;
        for operation in operations {
            // What it answers now counts for nothing.
            let _ = self.decide(memory, remembered, operation);
            memory.take_back();
        }
        memory.changed.marks = marks;
    }

    /// Runs decisions in order until one misses a row; tells whether none did.
    pub fn apply(
        &mut self,
        memory: &mut Memory,
        remembered: &mut Remembered,
        waiting: &mut VecDeque<Box<dyn Operation>>,
        outcomes: &mut Vec<Result<(), Error>>,
    ) -> bool {
        while outcomes.len() < waiting.len() {
            let marks = memory.changed.marks;
            match self.decide(memory, remembered, &mut waiting[outcomes.len()]) {
                Ok(()) => outcomes.push(Ok(())),
                Err(Stop::Failed(error)) => {
                    if memory.has_done() {
                        tracing::error!(%error, "a decision failed after its first write and is undone");
                        self.shared.count_undone();
                    }
                    memory.take_back();
                    memory.changed.marks = marks;
                    outcomes.push(Err(error));
                }
                Err(Stop::Load) => {
                    memory.take_back();
                    memory.changed.marks = marks;
                    return false;
                }
            }
            if memory.changed.marks.bytes >= GROUP_BYTES_ENOUGH {
                return true;
            }
        }
        true
    }
}
