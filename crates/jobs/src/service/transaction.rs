//! Enqueues jobs within a transaction that does other things, too.

use baton_store::{Tx, TxError};
use baton_types::PartitionId;

use crate::model::error::Error;
use crate::model::new_job::NewJob;
use crate::model::policy::Policy;
use crate::rules::enqueue::{self, Enqueued};
use crate::service::Jobs;
use crate::storage::{Abort, Changes, CommitEffects, JobsTx};

/// See [`Jobs::in_transaction`].
#[derive(Clone, Debug)]
pub struct JobsInTx {
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

impl JobsInTx {
    /// Reads what is needed, without writing. Returns the jobs and the changes to write, or why the jobs are refused.
    pub fn prepare(&self, tx: &mut dyn Tx) -> Result<Result<(Vec<Enqueued>, Changes), Refused>, TxError> {
        let (mut tx, mut culprit) = (JobsTx::new(tx, self.policy), None);
        match enqueue::add_until_refused(&mut tx, &self.placed, &mut culprit) {
            Ok(enqueued) => Ok(Ok((enqueued, tx.into_changes()?))),
            Err(Abort::Refused(error)) => Ok(Err(Refused { error, culprit })),
            Err(Abort::Stop(stop)) => Err(stop),
        }
    }
}

impl Jobs {
    /// Jobs to enqueue within another transaction.
    pub async fn in_transaction(&self, jobs: Vec<NewJob>) -> Result<JobsInTx, Error> {
        Ok(JobsInTx { placed: self.resolve_queues(jobs).await?, policy: self.shared.policy().await })
    }

    /// Wakes waiters and counts after such a transaction.
    pub fn apply_effects(&self, effects: &CommitEffects) {
        self.shared.apply_effects(effects);
    }
}
