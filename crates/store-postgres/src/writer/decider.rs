//! The decider runs the operations of a batch in memory and collects the rows that they miss.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use baton_store::{Error, Operation, TxError};

use crate::context::StoreContext;
use crate::state::batch::BatchState;
use crate::state::dedup::DedupIndex;
use crate::tx::{MissingRow, PartitionNames, PostgresTx};

/// Bytes of messages after which a batch takes no more operations.
const BATCH_BYTES_ENOUGH: usize = 16 << 20;

/// Runs operations against the rows of a batch.
pub struct Decider<'a> {
    pub names: &'a PartitionNames,
    pub shared: &'a StoreContext,
}

impl Decider<'_> {
    fn run_operation(
        &self,
        batch: &mut BatchState,
        remembered: &DedupIndex,
        operation: &mut Box<dyn Operation>,
    ) -> Result<(), TxError> {
        batch.begin_operation();
        let StoreContext { cache, partition_limit: room, .. } = self.shared;
        let mut tx = PostgresTx {
            batch,
            names: self.names,
            dedup_index: remembered,
            cache,
            partition_limit: room,
            ids_taken: 0,
        };
        match catch_unwind(AssertUnwindSafe(|| operation.apply(&mut tx))) {
            Ok(outcome) => outcome,
            Err(thrown) if thrown.is::<MissingRow>() => Err(TxError::RowsMissing),
            // A panic is undone like any other failure; the other operations of the batch go on.
            Err(_) => Err(TxError::Failed(Error::Closed("a decision panicked".into()))),
        }
    }

    /// Collects the rows that operations miss, and undoes everything else that they did.
    pub fn collect_missing_rows<'o>(
        &mut self,
        batch: &mut BatchState,
        remembered: &mut DedupIndex,
        operations: impl Iterator<Item = &'o mut Box<dyn Operation>>,
    ) {
        let marks = batch.writes.summary;
        for operation in operations {
            // The operation runs again once its rows are there, so this result does not count.
            let _ = self.run_operation(batch, remembered, operation);
            batch.undo_operation();
        }
        batch.writes.summary = marks;
    }

    /// Runs operations in order until one misses a row. Returns whether none did.
    pub fn run_until_miss(
        &mut self,
        batch: &mut BatchState,
        remembered: &mut DedupIndex,
        waiting: &mut VecDeque<Box<dyn Operation>>,
        outcomes: &mut Vec<Result<(), Error>>,
    ) -> bool {
        while outcomes.len() < waiting.len() {
            let marks = batch.writes.summary;
            match self.run_operation(batch, remembered, &mut waiting[outcomes.len()]) {
                Ok(()) => outcomes.push(Ok(())),
                Err(TxError::Failed(error)) => {
                    if batch.has_written() {
                        tracing::error!(%error, "a decision failed after its first write and was undone");
                        self.shared.count_undone();
                    }
                    batch.undo_operation();
                    batch.writes.summary = marks;
                    outcomes.push(Err(error));
                }
                Err(TxError::RowsMissing) => {
                    batch.undo_operation();
                    batch.writes.summary = marks;
                    return false;
                }
            }
            if batch.writes.summary.message_bytes >= BATCH_BYTES_ENOUGH {
                return true;
            }
        }
        true
    }
}
