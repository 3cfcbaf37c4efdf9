//! Logs, as methods of the handle.

use crate::model::error::Error;
use crate::model::ids::JobId;
use crate::rules::logs::{LogPage, LogQuery, Logged, NewLines, append, lines};
use crate::service::Jobs;

impl Jobs {
    /// Appends lines of an execution.
    pub async fn log(&self, new: NewLines) -> Result<Logged, Error> {
        self.shared.decide(move |book| append(book, &new)).await
    }

    /// Reads a job's log.
    pub async fn logs(&self, job: JobId, query: LogQuery) -> Result<LogPage, Error> {
        self.shared.decide(move |book| lines(book, job, &query)).await
    }
}
