//! Schedules: create, read, trigger and delete them. A schedule is the server's JSON, in both directions.

use bytes::Bytes;
use http::Method;
use http::uri::PathAndQuery;
use serde_json::{Value, json};

use crate::path::PathBuilder;
use crate::{Client, Error};

/// The schedules of a server.
#[derive(Clone, Debug)]
pub struct Schedules {
    client: Client,
}

impl Client {
    /// The schedules of this server.
    pub fn schedules(&self) -> Schedules {
        Schedules { client: self.clone() }
    }
}

impl Schedules {
    fn path(id: &str) -> PathBuilder {
        PathBuilder::new("/api/v1/schedules").segment(id)
    }

    /// Creates or changes a schedule.
    pub async fn put(&self, id: &str, schedule: &Value) -> Result<Value, Error> {
        let body = serde_json::to_vec(schedule).map_err(Error::Payload)?;
        self.client.call(Method::PUT, Self::path(id).build()?, body.into(), "").await?.parse()
    }

    /// One schedule, with its next fires.
    pub async fn get(&self, id: &str) -> Result<Value, Error> {
        self.client.call(Method::GET, Self::path(id).build()?, Bytes::new(), "").await?.parse()
    }

    /// A page of schedules by id: `schedules`, and `nextCursor` when there are more.
    pub async fn list(&self, cursor: Option<&str>) -> Result<Value, Error> {
        let path = PathBuilder::new("/api/v1/schedules").optional_query("cursor", cursor).build()?;
        self.client.call(Method::GET, path, Bytes::new(), "").await?.parse()
    }

    /// Removes a schedule; its jobs stay.
    pub async fn delete(&self, id: &str) -> Result<(), Error> {
        self.client.call(Method::DELETE, Self::path(id).build()?, Bytes::new(), "").await?;
        Ok(())
    }

    /// Fires now, once.
    pub async fn trigger(&self, id: &str) -> Result<Value, Error> {
        self.client.post_once(Self::action(id, "/trigger")?, &json!({}), "").await?.parse()
    }

    /// Pauses it until it is resumed.
    pub async fn pause(&self, id: &str) -> Result<Value, Error> {
        self.client.post(Self::action(id, "/pause")?, &json!({}), "").await?.parse()
    }

    /// Resumes it with the fires after now.
    pub async fn resume(&self, id: &str) -> Result<Value, Error> {
        self.client.post(Self::action(id, "/resume")?, &json!({}), "").await?.parse()
    }

    /// Fires for the nominal times of a past period, or only lists them.
    pub async fn backfill(
        &self,
        id: &str,
        from: &str,
        to: &str,
        max: u64,
        dry_run: bool,
    ) -> Result<Value, Error> {
        let body = json!({"from": from, "to": to, "max": max, "dryRun": dry_run});
        self.client.post_once(Self::action(id, "/backfill")?, &body, "").await?.parse()
    }

    fn action(id: &str, action: &str) -> Result<PathAndQuery, Error> {
        Self::path(id).literal(action).build()
    }
}
