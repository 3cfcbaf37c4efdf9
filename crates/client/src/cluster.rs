//! The cluster that a server is part of.

use bytes::Bytes;
use http::Method;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::path::PathBuilder;
use crate::{Client, Error};

impl Client {
    /// The servers as one of them sees them, decoded as `T`.
    pub async fn cluster<T: DeserializeOwned>(&self) -> Result<T, Error> {
        let path = PathBuilder::new("/api/v1/cluster").build()?;
        self.call(Method::GET, path, Bytes::new(), "").await?.parse()
    }

    /// Stops other servers from forwarding requests to a server, or allows it again.
    pub async fn drain_server(&self, server: &str, drain: bool) -> Result<Value, Error> {
        let path = PathBuilder::new("/api/v1/cluster").segment(server).literal("/drain").build()?;
        let body = json!({"mode": if drain { "on" } else { "off" }}).to_string();
        self.call(Method::POST, path, body.into(), "").await?.parse()
    }

    /// The servers that share the jobs of a store, the leader, and the share of each.
    pub async fn nodes(&self) -> Result<Value, Error> {
        let path = PathBuilder::new("/api/v1/nodes").build()?;
        self.call(Method::GET, path, Bytes::new(), "").await?.parse()
    }

    /// Asks a server, by its id or name, to hand over the jobs that it owns, or to take part again.
    pub async fn drain_node(&self, node: &str, drain: bool) -> Result<Value, Error> {
        let path = PathBuilder::new("/api/v1/nodes").segment(node).literal("/drain").build()?;
        let body = json!({"mode": if drain { "on" } else { "off" }}).to_string();
        self.call(Method::POST, path, body.into(), "").await?.parse()
    }
}
