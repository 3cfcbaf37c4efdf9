//! How a rule stops early, and how it collects the rows that it misses.

use baton_store::{Error as StoreError, TxError};

use crate::model::error::Error;

/// Why a rule stopped early. None of its changes are written.
#[derive(Debug)]
pub enum Abort {
    /// The store has to fetch rows, or has failed.
    Stop(TxError),
    /// The request was refused.
    Refused(Error),
}

impl From<TxError> for Abort {
    fn from(stop: TxError) -> Self {
        Self::Stop(stop)
    }
}

impl From<StoreError> for Abort {
    fn from(error: StoreError) -> Self {
        Self::Stop(error.into())
    }
}

impl From<Error> for Abort {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

/// Runs a step for each item and collects the rows that all steps miss, so that the store fetches them together. The
/// rule then runs again from the start.
pub fn each<T, R>(
    items: impl IntoIterator<Item = T>,
    mut step: impl FnMut(T) -> Result<R, Abort>,
) -> Result<Vec<R>, Abort> {
    let (mut done, mut missing) = (Vec::new(), false);
    for item in items {
        match step(item) {
            Ok(answer) => done.push(answer),
            Err(Abort::Stop(TxError::RowsMissing)) => missing = true,
            // After a miss the other results do not count.
            Err(_) if missing => {}
            Err(other) => return Err(other),
        }
    }
    if missing { Err(Abort::Stop(TxError::RowsMissing)) } else { Ok(done) }
}
