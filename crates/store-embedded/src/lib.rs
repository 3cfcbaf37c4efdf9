//! The store that needs nothing installed: one process, one directory.
//!
//! Queues, partitions, cursors and leases are in memory (`state`). Commits and messages go to a write-ahead log (`wal`).
//! Rows, and the places of messages in the log, go to an embedded key-value engine (`index`). Operations form commit
//! batches (`commit`): one thread runs operations one after the other against memory, and a second thread appends the
//! batch before to the log with one fsync. So throughput grows with load and not with the number of fsyncs, and no
//! operation waits for a lock. While commits are small and fast, the first thread commits itself. At very low load the
//! caller decides and commits on its own thread, because waking another would take longer.
//!
//! Always: an answer leaves only after the batch with its writes, and those with everything it has read, is on disk.
//! Memory is rebuilt from compact rows at a start, never by reading messages. Deliberately absent: any rule about
//! retries, groups or delays. A third thread compacts the log, and a fourth opens the directory again after a disk error.
//!
//! Which folder may touch what: `state` memory only, `wal` files only, `index` the engine only; `rows` converts between
//! values and bytes. `commit` joins them; `startup` fills them from disk; `recovery` runs an instance of the whole.
//!
//! Start at [`EmbeddedStore`], then `commit::writer`, then `state` and `wal`.

mod commit;
mod context;
mod dedup;
mod disk;
mod index;
mod options;
mod recovery;
mod rows;
mod segment_reader;
mod startup;
mod state;
mod store;
mod store_clock;
mod wal;

pub use options::Options;
pub use store::EmbeddedStore;
