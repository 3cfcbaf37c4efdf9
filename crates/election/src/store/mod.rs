//! Where records are stored: five small operations, and a probe that tests whether they can be trusted.
//!
//! To be correct, an implementation must make [`swap`](Store::swap) atomic against every other writer, must never
//! give one version to two different contents of a key, and must let a read that begins after a swap has ended see
//! it. Lists may be late; they only delay. Start at [`Store`].

#[cfg(feature = "file")]
mod file;
#[cfg(feature = "http")]
mod http;
mod memory;
#[cfg(feature = "objects")]
mod object;
mod open;
#[cfg(feature = "postgres")]
mod postgres;
mod probe;
#[cfg(feature = "store")]
mod record;

use std::future::Future;
use std::pin::Pin;

#[cfg(feature = "file")]
pub use file::FileStore;
#[cfg(feature = "http")]
pub use http::HttpStore;
pub use memory::MemoryStore;
#[cfg(feature = "objects")]
pub use object::ObjectStore;
pub use open::{OpenError, open};
#[cfg(feature = "postgres")]
pub use postgres::PostgresStore;
pub use probe::{ProbeError, probe};
#[cfg(feature = "store")]
pub use record::RecordStore;

/// A future that a trait object can return.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Names one state of a record. Two states of one record never share a version.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Version(pub String);

/// A record with its version.
pub type VersionedValue = (Version, Vec<u8>);

/// The outcome of a compare-and-set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwapOutcome {
    /// The record is written, and this is its version.
    Done(Version),
    /// The record was in another state.
    Conflict,
}

/// A failed store call. A failed write may or may not have taken place.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Error(pub String);

impl Error {
    /// The text of `error` and of its causes.
    pub fn from_error(error: &(dyn std::error::Error + 'static)) -> Self {
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            let cause_text = cause.to_string();
            if !text.contains(&cause_text) {
                text = format!("{text}: {cause_text}");
            }
            source = cause.source();
        }
        Self(text)
    }
}

impl std::fmt::Debug for dyn Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Store")
    }
}

/// Stores records under keys such as `epochs/clean-up`.
pub trait Store: Send + Sync + 'static {
    /// The record under `key`, with its version.
    fn read<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<VersionedValue>, Error>>;

    /// Writes the record if its version is `expected`, or if there is none and `expected` is `None`.
    fn swap<'a>(
        &'a self,
        key: &'a str,
        expected: Option<&'a Version>,
        value: Vec<u8>,
    ) -> BoxFuture<'a, Result<SwapOutcome, Error>>;

    /// Writes a record, whatever was there.
    fn put<'a>(&'a self, key: &'a str, value: Vec<u8>) -> BoxFuture<'a, Result<(), Error>>;

    /// The keys that begin with `prefix`, each with a tag that changes when the record does. Tags compare only with
    /// tags. The list may be stale.
    fn list<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<Vec<(String, String)>, Error>>;

    /// Removes a record, if it is there.
    fn remove<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), Error>>;

    /// Returns when the record under `key` may have another version than `seen`. A store without
    /// notifications never returns and is polled.
    fn wait_for_change<'a>(&'a self, key: &'a str, seen: Option<&'a Version>) -> BoxFuture<'a, ()> {
        let _ = (key, seen);
        Box::pin(std::future::pending())
    }

    /// Whether compare-and-set is known to hold, so that the [`probe`] is not needed.
    fn is_trusted(&self) -> bool {
        false
    }
}
