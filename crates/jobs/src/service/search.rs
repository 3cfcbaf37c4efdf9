//! Searches, as methods of the handle.

use crate::model::error::Error;
use crate::model::limits::PAGE_MAX;
use crate::rules::search::{Filter, JobPage, by_label, by_queue};
use crate::service::Jobs;

impl Jobs {
    /// A page of the jobs that match `filter`, starting at `cursor`.
    pub async fn search(
        &self,
        filter: Filter,
        cursor: Option<String>,
        limit: usize,
    ) -> Result<JobPage, Error> {
        let limit = limit.clamp(1, PAGE_MAX);
        let queue = match &filter.queue {
            Some(queue) => Some(self.shared.existing_queue(queue).await?),
            None => None,
        };
        let asked = filter.clone();
        let found = self
            .shared
            .decide(move |tx| match asked.label() {
                Some((label, text)) => by_label(tx, &asked, label, text, cursor.as_deref(), limit),
                None => by_queue(tx, &asked, queue, cursor.as_deref(), limit),
            })
            .await?;
        let mut jobs = self.complete_views(found.seen).await?;
        jobs.retain(|job| filter.fits(job));
        Ok(JobPage { jobs, next: found.next })
    }
}
