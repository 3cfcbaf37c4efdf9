//! What a writer has in memory: the rows of a batch, and what it keeps between batches.

pub mod batch;
pub mod catalog;
pub mod dedup;
pub mod group_slot;
pub mod hybrid_clock;
pub mod missing_rows;
pub mod partition_limit;
pub mod row_cache;
