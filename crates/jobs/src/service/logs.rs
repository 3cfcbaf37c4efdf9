//! Logs, as methods of the handle.

use crate::model::error::Error;
use crate::model::ids::JobId;
use crate::rules::logs::{LogAppended, LogPage, LogQuery, NewLogLines, append, lines};
use crate::service::Jobs;

impl Jobs {
    /// Appends lines of an execution.
    pub async fn log(&self, new: NewLogLines) -> Result<LogAppended, Error> {
        self.shared.decide(move |tx| append(tx, &new)).await
    }

    /// Reads a job's log.
    pub async fn logs(&self, job: JobId, query: LogQuery) -> Result<LogPage, Error> {
        self.shared.decide(move |tx| lines(tx, job, &query)).await
    }
}
