//! Searches, as methods of the handle.

use crate::model::error::Error;
use crate::model::limits::PAGE_MAX;
use crate::rules::search::{Filter, Page, by_label, by_queue};
use crate::service::Jobs;

impl Jobs {
    /// A page of the jobs that match `filter`, starting at `cursor`.
    pub async fn search(&self, filter: Filter, cursor: Option<String>, limit: usize) -> Result<Page, Error> {
        let limit = limit.clamp(1, PAGE_MAX);
        let queue = match &filter.queue {
            Some(queue) => Some(self.shared.existing_queue(queue).await?),
            None => None,
        };
        let asked = filter.clone();
        let found = self
            .shared
            .decide(move |book| match asked.label() {
                Some((label, text)) => by_label(book, &asked, label, text, cursor.as_deref(), limit),
                None => by_queue(book, &asked, queue, cursor.as_deref(), limit),
            })
            .await?;
        let mut jobs = self.filled(found.seen).await?;
        jobs.retain(|job| filter.fits(job));
        Ok(Page { jobs, next: found.next })
    }
}
