//! The audit, as a method of the handle.

use crate::model::error::Error;
use crate::rules::audit::audit;
use crate::service::Jobs;

impl Jobs {
    /// Returns what is wrong.
    pub async fn audit(&self) -> Result<Vec<String>, Error> {
        let queues = self.shared.all_queues().await?;
        self.shared.decide(move |tx| audit(tx, &queues)).await
    }
}
