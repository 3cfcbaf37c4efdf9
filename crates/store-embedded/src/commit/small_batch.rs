//! Small batches: the deciding thread commits them itself.
//!
//! It decides nothing meanwhile, but it need not wake the commit thread and be woken by it. While the disk is fast that
//! is the better deal: operations that arrive during the commit are decided and answered together.

use super::batch::CommitBatch;
use super::group_commit::commit_batch;
use super::writer::Writer;

/// The largest batch, in bytes of messages, that the deciding thread commits itself while commits are fast.
const SMALL_BATCH_BYTES: usize = 64 << 10;

impl Writer {
    /// Whether the deciding thread commits the present batch itself.
    pub fn is_batch_small(&self) -> bool {
        self.batch.message_bytes() <= SMALL_BATCH_BYTES
            && !self.batch.is_full()
            && self.shared.context.are_commits_fast()
    }

    /// Commits a batch on this thread.
    pub fn commit_small_batch(&mut self, batch: CommitBatch) {
        let frees = !batch.freed.is_empty();
        commit_batch(&self.shared, batch).answer();
        self.apply_if_due(frees);
    }
}
