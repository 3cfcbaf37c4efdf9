//! The store that needs nothing installed: one process, one directory.
//!
//! It keeps what is hot (tails, cursors, leases, who has work) in memory and everything on disk: commits and messages
//! in a log, rows and where messages are in an embedded key-value engine. One thread decides: it runs operations one
//! after the other against memory. A second thread commits: it appends what a group of operations changed to the log
//! with one fsync, while the first already decides the next group. So throughput grows with load instead of with the
//! number of fsyncs, and nobody waits for a lock. While commits are small and quick, the first makes them itself; when
//! hardly anything happens, a caller decides and commits on its own thread instead: waking another would take longer.
//!
//! Always: an answer leaves only after the group that holds its writes, and those it has read, is on disk;
//! memory is rebuilt from compact rows at start, never by reading messages. Deliberately absent: any rule about
//! retries, groups or delays; a write path around the two threads. A third one takes care of the log, and a fourth opens
//! the directory again after a disk error.
//!
//! Start at [`EmbeddedStore`], then `writer`, then `hot` and `log`.

mod calm;
mod cold;
mod committer;
mod context;
mod courtesy;
mod dense;
mod directory;
mod filling;
mod hot;
mod id_files;
mod index;
mod instance;
mod leftovers;
mod loading;
mod log;
mod messages;
mod name;
mod reclaimer;
mod recovery;
mod remembered;
mod shared;
mod space;
mod store;
mod store_clock;
mod tables;
mod tails;
mod telling;
mod tx;
mod undo;
mod writer;

pub use store::{EmbeddedStore, Options};
