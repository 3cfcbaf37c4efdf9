//! Jobs in `POST /api/v1/transaction`: accepted in the same commit as its acks, pushes, records and timers.

use std::sync::{Arc, Mutex, PoisonError};

use baton_jobs::{Changes, CommitEffects, Enqueued, Jobs, JobsInTx, NewJob, Refused};
use baton_queue::{Refusal, Ridden, Rider};
use baton_store::{Tx, TxError};

use crate::error::Error;

/// Jobs that ride along.
#[derive(Debug)]
pub(in crate::routes) struct JobRider {
    jobs: JobsInTx,
    /// What the last run of the decision came to.
    came_to: Arc<Mutex<(Vec<Enqueued>, CommitEffects)>>,
}

impl JobRider {
    /// Finds the queues of the jobs.
    pub(in crate::routes) async fn new(jobs: &Jobs, new: Vec<NewJob>) -> Result<Self, Error> {
        Ok(Self { jobs: jobs.in_transaction(new).await?, came_to: Arc::default() })
    }

    /// What became of the jobs, after the transaction was done.
    pub(in crate::routes) fn came_to(&self) -> (Vec<Enqueued>, CommitEffects) {
        self.came_to.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Rider for JobRider {
    fn prepare(&self, tx: &mut dyn Tx) -> Result<Result<Box<dyn Ridden>, Refusal>, TxError> {
        let (enqueued, changes) = match self.jobs.prepare(tx)? {
            Ok(prepared) => prepared,
            Err(Refused { error, culprit }) => {
                return Ok(Err(Refusal { reason: word(&error), error: error.to_string(), culprit }));
            }
        };
        Ok(Ok(Box::new(Prepared { enqueued, changes, came_to: Arc::clone(&self.came_to) })))
    }
}

fn word(error: &baton_jobs::Error) -> &'static str {
    match error {
        baton_jobs::Error::Conflict { code, .. } => code,
        baton_jobs::Error::Full(_) => "limit_reached",
        _ => "bad_request",
    }
}

struct Prepared {
    enqueued: Vec<Enqueued>,
    changes: Changes,
    came_to: Arc<Mutex<(Vec<Enqueued>, CommitEffects)>>,
}

impl Ridden for Prepared {
    fn write(self: Box<Self>, tx: &mut dyn Tx) -> Result<(), TxError> {
        let effects = self.changes.write(tx)?;
        *self.came_to.lock().unwrap_or_else(PoisonError::into_inner) = (self.enqueued, effects);
        Ok(())
    }
}
