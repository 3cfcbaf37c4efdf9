//! Elections of a server: look at one, wait for news of it, take part.

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::connection::Call;
use crate::path::Path;
use crate::retry::Repeat;
use crate::{Client, Error};

/// What a long poll may take beyond its wait.
const WAIT_GRACE: Duration = Duration::from_secs(5);

/// One election group of a server.
#[derive(Clone, Debug)]
pub struct Election {
    client: Client,
    group: String,
}

impl Client {
    /// The election group of this name. Makes no call.
    pub fn election(&self, group: impl Into<String>) -> Election {
        Election { client: self.clone(), group: group.into() }
    }

    /// All election groups, in the shape that `T` reads.
    pub async fn elections<T: DeserializeOwned>(&self) -> Result<T, Error> {
        let path = Path::new("/api/v1/elections").build()?;
        self.call(Method::GET, path, Bytes::new(), "").await?.read()
    }
}

impl Election {
    fn path(&self) -> Path {
        Path::new("/api/v1/elections").segment(&self.group)
    }

    /// The group as it stands, in the shape that `T` reads.
    pub async fn look<T: DeserializeOwned>(&self) -> Result<T, Error> {
        self.client.call(Method::GET, self.path().build()?, Bytes::new(), &self.group).await?.read()
    }

    /// The group once its version is another than `after`, or when `wait` has passed.
    pub async fn watch<T: DeserializeOwned>(&self, after: &str, wait: Duration) -> Result<T, Error> {
        let millis = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let call = Call {
            method: Method::GET,
            path: self.path().number("wait", millis).query("after", after).build()?,
            body: Bytes::new(),
            timeout: wait + WAIT_GRACE,
            repeat: Repeat::Never,
            key: &self.group,
            once: None,
        };
        self.client.connection().call(call).await?.read()
    }

    /// Takes part: posts `action` once. It is not repeated, since nobody knows whether a lost answer was a yes.
    pub async fn act<T: DeserializeOwned>(
        &self,
        action: &impl Serialize,
        timeout: Duration,
    ) -> Result<T, Error> {
        let body = serde_json::to_vec(action).map_err(Error::Payload)?;
        let call = Call {
            method: Method::POST,
            path: self.path().build()?,
            body: body.into(),
            timeout,
            repeat: Repeat::Never,
            key: &self.group,
            once: None,
        };
        self.client.connection().call(call).await?.read()
    }
}
