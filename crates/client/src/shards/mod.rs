//! Shards of a service: run a worker, or read who owns what.

mod leases;
mod worker;

use bytes::Bytes;
use http::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::path::PathBuilder;
use crate::{Client, Error};
pub use worker::{GainedShard, LostShard, ShardWorker, ShardWorkerBuilder};

/// One service and its shards.
#[derive(Clone, Debug)]
pub struct Shards {
    client: Client,
    service: String,
}

impl Client {
    /// The shards of this service. Makes no call.
    pub fn shards(&self, service: impl Into<String>) -> Shards {
        Shards { client: self.clone(), service: service.into() }
    }

    /// All services, decoded as `T`.
    pub async fn shard_services<T: DeserializeOwned>(&self) -> Result<T, Error> {
        self.call(Method::GET, PathBuilder::new("/api/v1/shards").build()?, Bytes::new(), "").await?.parse()
    }
}

impl Shards {
    fn path(&self) -> PathBuilder {
        PathBuilder::new("/api/v1/shards").segment(&self.service)
    }

    /// A worker with this id, of a service with `count` shards. No other process may have the same id.
    pub fn worker(&self, id: impl Into<String>, count: u32) -> ShardWorkerBuilder {
        ShardWorkerBuilder::new(self.clone(), id.into(), count)
    }

    /// The state of the service, decoded as `T`.
    pub async fn get<T: DeserializeOwned>(&self) -> Result<T, Error> {
        self.client.call(Method::GET, self.path().build()?, Bytes::new(), &self.service).await?.parse()
    }

    /// Drains a worker, or lets it have shards again.
    pub async fn drain<T: DeserializeOwned>(&self, worker: &str, draining: bool) -> Result<T, Error> {
        let action = if draining { "drain" } else { "undrain" };
        self.post_action(&serde_json::json!({"action": action, "workerId": worker})).await
    }

    /// Deletes the service, which must have no live workers.
    pub async fn delete(&self) -> Result<(), Error> {
        self.client.call(Method::DELETE, self.path().build()?, Bytes::new(), &self.service).await?;
        Ok(())
    }

    async fn post_action<T: DeserializeOwned>(&self, action: &impl Serialize) -> Result<T, Error> {
        self.client.post(self.path().build()?, action, &self.service).await?.parse()
    }
}
