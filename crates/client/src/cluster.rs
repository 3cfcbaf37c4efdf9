//! The cluster that a server is part of.

use bytes::Bytes;
use http::Method;
use serde::de::DeserializeOwned;

use crate::path::Path;
use crate::{Client, Error};

impl Client {
    /// The servers as one of them sees them, in the shape that `T` reads.
    pub async fn cluster<T: DeserializeOwned>(&self) -> Result<T, Error> {
        let path = Path::new("/api/v1/cluster").build()?;
        self.call(Method::GET, path, Bytes::new(), "").await?.read()
    }
}
