//! Enqueues jobs within a transaction that does other things, too.

use baton_store::{Tx, TxError};
use baton_types::PartitionId;

use crate::model::error::Error;
use crate::model::new_job::NewJob;
use crate::model::policy::Policy;
use crate::rules::enqueue::{self, Enqueued};
use crate::service::Jobs;
use crate::storage::{Book, Changes, Halt, News};

/// See [`Jobs::within`].
#[derive(Clone, Debug)]
pub struct Within {
    placed: Vec<(PartitionId, NewJob)>,
    policy: Policy,
}

/// Why jobs of a transaction were refused.
#[derive(Clone, Debug)]
pub struct Refused {
    /// The error.
    pub error: Error,
    /// The index of the refused job, if the error is about one.
    pub culprit: Option<usize>,
}

impl Within {
    /// Reads what is needed, without writing. Returns the jobs and the changes to write, or why the jobs are refused.
    pub fn prepare(&self, tx: &mut dyn Tx) -> Result<Result<(Vec<Enqueued>, Changes), Refused>, TxError> {
        let (mut book, mut culprit) = (Book::new(tx, self.policy), None);
        match enqueue::add_until_refused(&mut book, &self.placed, &mut culprit) {
            Ok(enqueued) => Ok(Ok((enqueued, book.close()?))),
            Err(Halt::Refused(error)) => Ok(Err(Refused { error, culprit })),
            Err(Halt::Stop(stop)) => Err(stop),
        }
    }
}

impl Jobs {
    /// Jobs to enqueue within another transaction.
    pub async fn within(&self, jobs: Vec<NewJob>) -> Result<Within, Error> {
        Ok(Within { placed: self.placed(jobs).await?, policy: self.shared.policy().await })
    }

    /// Wakes waiters and counts after such a transaction.
    pub fn spread(&self, news: &News) {
        self.shared.spread(news);
    }
}
