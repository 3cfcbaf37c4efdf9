//! Direct responses: operations prepare their answers while the fsync is under way.
//!
//! So that a prepared answer needs only one write to its socket when the commit is durable. Only inline commits use it,
//! as other threads have further operations to decide meanwhile.

use super::group_commit::BegunCommit;
use super::shared::Shared;

impl BegunCommit {
    /// Prepares the answers of all operations that wait for this commit.
    pub fn prepare_answers(&mut self, shared: &Shared) {
        self.operations.iter_mut().for_each(|operation| operation.prepare());
        shared.parked_reads.for_each_waiting(self.seq, |operation| operation.prepare());
    }
}
