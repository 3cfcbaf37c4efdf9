//! Schedules, as methods of the handle.

use baton_store::IdempotencyKey;
use baton_types::Timestamp;

use crate::model::error::Error;
use crate::model::limits::PAGE_MAX;
use crate::rules::enqueue::Enqueued;
use crate::rules::idempotency;
use crate::rules::schedules::{Schedule, ScheduleSpec, enable, expect, firing, list, put, remove};
use crate::service::Jobs;

impl Jobs {
    /// Creates or changes a schedule. Returns whether it is new. With a `revision`, only if the schedule has that
    /// revision; zero means that it must not exist.
    pub async fn put_schedule(
        &self,
        id: String,
        spec: ScheduleSpec,
        revision: Option<u64>,
    ) -> Result<(Schedule, bool), Error> {
        // Its jobs need an existing queue.
        self.shared.queue(&spec.job.queue).await?;
        self.shared.decide(move |tx| put(tx, &id, &spec, revision)).await
    }

    /// A schedule.
    pub async fn schedule(&self, id: String) -> Result<Schedule, Error> {
        self.shared.decide(move |tx| expect(tx, &id)).await
    }

    /// A page of schedules, by id, and whether there are more.
    pub async fn schedules(
        &self,
        after: Option<String>,
        limit: usize,
    ) -> Result<(Vec<(String, Schedule)>, bool), Error> {
        let limit = limit.clamp(1, PAGE_MAX);
        self.shared.decide(move |tx| list(tx, after.as_deref(), limit)).await
    }

    /// Removes a schedule. Its jobs stay.
    pub async fn remove_schedule(&self, id: String, revision: Option<u64>) -> Result<(), Error> {
        self.shared.decide(move |tx| remove(tx, &id, revision)).await
    }

    /// Pauses a schedule, or resumes it with the fires after now.
    pub async fn enable_schedule(&self, id: String, enabled: bool) -> Result<Schedule, Error> {
        self.shared.decide(move |tx| enable(tx, &id, enabled)).await
    }

    /// Fires a schedule now; no job when the fire waits for its last job. A repeated call with the same `key` gets
    /// the first answer.
    pub async fn trigger_schedule(
        &self,
        id: String,
        key: Option<IdempotencyKey>,
    ) -> Result<Option<Enqueued>, Error> {
        let rule = move |tx: &mut crate::storage::JobsTx<'_>| {
            idempotency::run_once(tx, key.as_ref(), |tx| firing::trigger(tx, &id))
        };
        Ok(self.shared.decide(rule).await?.into_iter().next())
    }

    /// The nominal times of a past period, and whether there are more than `max`.
    pub async fn schedule_fires_between(
        &self,
        id: String,
        stretch: (Timestamp, Timestamp),
        max: usize,
    ) -> Result<(Vec<Timestamp>, bool), Error> {
        self.shared.decide(move |tx| firing::fires_between(tx, &id, stretch, max)).await
    }

    /// Enqueues a job for each of these nominal times. A repeated call with the same `key` gets the first answer.
    pub async fn backfill_schedule(
        &self,
        id: String,
        fires: Vec<Timestamp>,
        key: Option<IdempotencyKey>,
    ) -> Result<Vec<Enqueued>, Error> {
        let rule = move |tx: &mut crate::storage::JobsTx<'_>| {
            idempotency::run_once(tx, key.as_ref(), |tx| firing::backfill(tx, &id, &fires))
        };
        self.shared.decide(rule).await
    }
}
