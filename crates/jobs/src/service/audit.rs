//! The audit as the handle offers it.

use crate::model::error::Error;
use crate::rules::audit::audit;
use crate::service::Jobs;

impl Jobs {
    /// What is wrong; nothing, if all is well.
    pub async fn audit(&self) -> Result<Vec<String>, Error> {
        let queues = self.shared.all_queues().await?;
        self.shared.decide(move |book| audit(book, &queues)).await
    }
}
