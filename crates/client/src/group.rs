//! Consumer groups.

use bytes::Bytes;
use http::Method;

use crate::path::Path;
use crate::{Client, Error, Queue};

impl Client {
    /// Forgets a group in all queues: its place, its leases and where it started. Its next pop is that of a new one.
    pub async fn delete_group(&self, group: &str) -> Result<(), Error> {
        let path =
            Path::new("/api/v1/consumer-groups").segment(group).query("deleteMetadata", "true").build()?;
        self.call(Method::DELETE, path, Bytes::new(), "").await.map(drop)
    }
}

impl Queue {
    /// Forgets the group of this handle in this queue.
    pub async fn delete_group(&self) -> Result<(), Error> {
        let group =
            self.group_name().ok_or_else(|| Error::Invalid("say which group: .group(\"name\")".into()))?;
        let path = Path::new("/api/v1/consumer-groups")
            .segment(group)
            .plain("/queues")
            .segment(self.name())
            .query("deleteMetadata", "true")
            .build()?;
        self.client().call(Method::DELETE, path, Bytes::new(), self.name()).await.map(drop)
    }
}
