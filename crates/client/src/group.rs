//! Consumer groups.

use baton_types::Timestamp;
use bytes::Bytes;
use http::Method;
use serde_json::json;

use crate::path::PathBuilder;
use crate::{Client, Error, QUEUE_MODE, Queue, Subscription};

impl Client {
    /// Deletes a group in all queues: its cursors, its leases and where it started. Its next pop starts as a new
    /// group.
    pub async fn delete_group(&self, group: &str) -> Result<(), Error> {
        let path = PathBuilder::new("/api/v1/consumer-groups")
            .segment(group)
            .query("deleteMetadata", "true")
            .build()?;
        self.call(Method::DELETE, path, Bytes::new(), "").await.map(drop)
    }
}

impl Queue {
    /// Moves the cursors of the group of this handle (or of consumers without a group) in this queue, or in its one
    /// partition. Ends the group's leases: their acks change nothing.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// # let server = baton_server::testing().await?;
    /// # let baton = baton_client::Client::new(server.url())?;
    /// use baton_client::Subscription;
    ///
    /// let orders = baton.queue("orders").group("billing");
    /// orders.push(&"the first").send().await?;
    /// assert_eq!(orders.pop().auto_ack(true).send().await?.len(), 1);
    ///
    /// orders.seek(Subscription::All).await?;
    /// assert_eq!(orders.pop().auto_ack(true).send().await?.len(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn seek(&self, to: Subscription) -> Result<(), Error> {
        // The server takes the last moment to skip.
        let after = |micros| json!({ "timestamp": Timestamp::from_micros(micros).to_iso_micros() });
        let body = match to {
            Subscription::All => after(0),
            Subscription::New => json!({ "toEnd": true }),
            Subscription::From(moment) => after(moment.micros().saturating_sub(1)),
        };
        let mut path = self.group_path(self.group_name().unwrap_or(QUEUE_MODE));
        if let Some(partition) = self.partition_name() {
            path = path.literal("/partitions").segment(partition);
        }
        self.client().post(path.literal("/seek").build()?, &body, self.name()).await.map(drop)
    }

    /// Deletes the group of this handle in this queue.
    pub async fn delete_group(&self) -> Result<(), Error> {
        let group =
            self.group_name().ok_or_else(|| Error::Invalid("say which group: .group(\"name\")".into()))?;
        let path = self.group_path(group).query("deleteMetadata", "true").build()?;
        self.client().call(Method::DELETE, path, Bytes::new(), self.name()).await.map(drop)
    }

    fn group_path(&self, group: &str) -> PathBuilder {
        PathBuilder::new("/api/v1/consumer-groups").segment(group).literal("/queues").segment(self.name())
    }
}
