//! Elections on a server: read a group, wait for its changes, take part.

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::connection::ApiCall;
use crate::path::PathBuilder;
use crate::retry::RetryPolicy;
use crate::{Client, Error};

/// The extra time of a long poll beyond its wait.
const WAIT_GRACE: Duration = Duration::from_secs(5);

/// The path of groups, and of leases of processes that hold many groups.
const GROUPS: &str = "/api/v1/elections";
const PROCESSES: &str = "/api/v1/election-processes";

/// One election group of a server, or the lease of one process.
#[derive(Clone, Debug)]
pub struct Election {
    client: Client,
    collection: &'static str,
    name: String,
}

impl Client {
    /// The election group of this name. Makes no call.
    pub fn election(&self, group: impl Into<String>) -> Election {
        Election { client: self.clone(), collection: GROUPS, name: group.into() }
    }

    /// The lease of the process of this id, which holds any number of groups. Makes no call.
    pub fn election_process(&self, process: impl Into<String>) -> Election {
        Election { client: self.clone(), collection: PROCESSES, name: process.into() }
    }

    /// All election groups, decoded as `T`.
    pub async fn elections<T: DeserializeOwned>(&self) -> Result<T, Error> {
        self.call(Method::GET, PathBuilder::new(GROUPS).build()?, Bytes::new(), "").await?.parse()
    }

    /// All leases of processes, decoded as `T`.
    pub async fn election_processes<T: DeserializeOwned>(&self) -> Result<T, Error> {
        self.call(Method::GET, PathBuilder::new(PROCESSES).build()?, Bytes::new(), "").await?.parse()
    }
}

impl Election {
    fn path(&self) -> PathBuilder {
        PathBuilder::new(self.collection).segment(&self.name)
    }

    /// Its present state, decoded as `T`.
    pub async fn get<T: DeserializeOwned>(&self) -> Result<T, Error> {
        self.client.call(Method::GET, self.path().build()?, Bytes::new(), &self.name).await?.parse()
    }

    /// The group once its version differs from `after`, or when `wait` has passed.
    pub async fn watch<T: DeserializeOwned>(&self, after: &str, wait: Duration) -> Result<T, Error> {
        let millis = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let call = ApiCall {
            method: Method::GET,
            path: self.path().number_query("wait", millis).query("after", after).build()?,
            body: Bytes::new(),
            timeout: wait + WAIT_GRACE,
            retry_policy: RetryPolicy::Never,
            routing_key: &self.name,
            idempotency_key: None,
        };
        self.client.transport().call(call).await?.parse()
    }

    /// Deletes a group without a coordinator, and its candidates. The next group of this name starts at epoch 1.
    pub async fn delete(&self) -> Result<(), Error> {
        self.client.call(Method::DELETE, self.path().build()?, Bytes::new(), &self.name).await?;
        Ok(())
    }

    /// Takes part: posts `action` once. It is not retried, since a lost answer may have been a success.
    pub async fn post_action<T: DeserializeOwned>(
        &self,
        action: &impl Serialize,
        timeout: Duration,
    ) -> Result<T, Error> {
        let body = serde_json::to_vec(action).map_err(Error::Payload)?;
        let call = ApiCall {
            method: Method::POST,
            path: self.path().build()?,
            body: body.into(),
            timeout,
            retry_policy: RetryPolicy::Never,
            routing_key: &self.name,
            idempotency_key: None,
        };
        self.client.transport().call(call).await?.parse()
    }
}
