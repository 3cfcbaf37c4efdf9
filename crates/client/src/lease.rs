//! Leases: extends the lease of popped messages.

use std::time::Duration;

use serde::Serialize;

use crate::path::PathBuilder;
use crate::{Client, Error, LeaseExtension, Receipt};

#[derive(Serialize)]
struct Extend {
    seconds: u64,
}

impl Client {
    /// Extends the lease of this message's batch to at least this long from now (rounded to seconds).
    /// [`Error::LeaseLost`] when the lease is over.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// # let server = baton_server::testing().await?;
    /// # let baton = baton_client::Client::new(server.url())?;
    /// # baton.queue("orders").push(&"large").send().await?;
    /// use std::time::Duration;
    ///
    /// let message = baton.queue("orders").pop().send().await?.remove(0);
    /// baton.extend_lease(&message, Duration::from_secs(600)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn extend_lease(
        &self,
        message: impl AsRef<Receipt>,
        by: Duration,
    ) -> Result<LeaseExtension, Error> {
        let receipt = message.as_ref();
        let lost = || Error::LeaseLost { transaction_id: receipt.transaction_id.to_string() };
        let lease = receipt.lease_id().ok_or_else(lost)?;
        let path = PathBuilder::new("/api/v1/lease").segment(lease).literal("/extend").build()?;
        let answer = self.post(path, &Extend { seconds: by.as_secs().max(1) }, &receipt.origin.queue).await?;
        let extension: LeaseExtension = answer.parse()?;
        if extension.success { Ok(extension) } else { Err(lost()) }
    }
}
