//! A queue handle: a name, optionally a partition and a group, and the operations on them.

use std::sync::Arc;

use baton_types::wire::{ConfigureRequest, ConfigureResponse, DeleteResponse, PurgeResponse, QueueList};
use bytes::Bytes;
use http::Method;
use http::uri::PathAndQuery;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::path::PathBuilder;
use crate::{Client, Error, QueueDetail, QueueOptions, QueueSummary};

/// A queue by name. Makes no call.
#[derive(Clone, Debug)]
pub struct Queue {
    client: Client,
    name: Arc<str>,
    partition: Option<Arc<str>>,
    group: Option<Arc<str>>,
    namespace: Option<Arc<str>>,
    task: Option<Arc<str>>,
}

impl Client {
    /// The queue of this name. Makes no call; a push creates the queue when it is missing.
    pub fn queue(&self, name: impl Into<Arc<str>>) -> Queue {
        let (client, name) = (self.clone(), name.into());
        Queue { client, name, partition: None, group: None, namespace: None, task: None }
    }

    /// All queues, the newest first.
    pub async fn queues(&self) -> Result<Vec<QueueSummary>, Error> {
        let path = PathAndQuery::from_static("/api/v1/resources/queues");
        let answer = self.call(Method::GET, path, Bytes::new(), "").await?;
        Ok(answer.parse::<QueueList>()?.queues)
    }
}

impl Queue {
    /// Restricts pushes and pops to one partition. Without it a push goes to `Default` and a pop takes from any.
    pub fn partition(mut self, name: impl Into<Arc<str>>) -> Self {
        self.partition = Some(name.into());
        self
    }

    /// Pops for this consumer group. Without it all consumers share the messages as one group.
    pub fn group(mut self, name: impl Into<Arc<str>>) -> Self {
        self.group = Some(name.into());
        self
    }

    /// Labels the queue when it is created or configured.
    pub fn namespace(mut self, name: impl Into<Arc<str>>) -> Self {
        self.namespace = Some(name.into());
        self
    }

    /// Labels the queue when it is created or configured.
    pub fn task(mut self, name: impl Into<Arc<str>>) -> Self {
        self.task = Some(name.into());
        self
    }

    /// Creates the queue; an existing one keeps its options. Returns the options.
    pub async fn create(&self) -> Result<QueueOptions, Error> {
        self.configure(&Map::<String, Value>::new()).await
    }

    /// Creates the queue or changes its options, and returns all of them. Give a whole [`QueueOptions`], or only
    /// what to change:
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// # let server = baton_server::testing().await?;
    /// # let baton = baton_client::Client::new(server.url())?;
    /// let changes = serde_json::json!({ "leaseTime": 30, "retryLimit": 1 });
    /// let options = baton.queue("orders").configure(&changes).await?;
    /// assert_eq!(options.lease_time, 30);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn configure(&self, options: &(impl Serialize + ?Sized)) -> Result<QueueOptions, Error> {
        let (namespace, task) = (self.namespace.as_deref(), self.task.as_deref());
        let request = ConfigureRequest { queue: &self.name, namespace, task, options };
        let path = PathAndQuery::from_static("/api/v1/configure");
        let answer = self.client.post(path, &request, &self.name).await?;
        let response: ConfigureResponse = answer.parse()?;
        // Merged with the defaults instead of parsed: a newer server may know more options than this client.
        QueueOptions::default()
            .with_changes(&response.options)
            .map_err(|e| answer.protocol_error(e.to_string()))
    }

    /// Deletes the queue with all its messages. Returns whether it existed.
    pub async fn delete(&self) -> Result<bool, Error> {
        let answer = self.client.call(Method::DELETE, self.resource()?, Bytes::new(), &self.name).await?;
        Ok(answer.parse::<DeleteResponse>()?.existed)
    }

    /// Deletes all messages of the queue, or of the handle's partition. Keeps options, groups and dead letters.
    /// Returns how many partitions were emptied.
    pub async fn purge(&self) -> Result<u64, Error> {
        let (mut partitions, mut cursor) = (0, None::<String>);
        loop {
            let path = PathBuilder::new("/api/v1/queues")
                .segment(&self.name)
                .literal("/clear")
                .optional_query("partition", self.partition_name())
                .optional_query("cursor", cursor.as_deref());
            let answer = self.client.call(Method::DELETE, path.build()?, Bytes::new(), &self.name).await?;
            let cleared: PurgeResponse = answer.parse()?;
            partitions += cleared.partitions_cleared;
            cursor = cleared.next_cursor;
            if cursor.is_none() {
                return Ok(partitions);
            }
        }
    }

    /// The queue with its partitions and their message counts.
    pub async fn detail(&self) -> Result<QueueDetail, Error> {
        self.client.call(Method::GET, self.resource()?, Bytes::new(), &self.name).await?.parse()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn partition_name(&self) -> Option<&str> {
        self.partition.as_deref()
    }

    pub(crate) fn group_name(&self) -> Option<&str> {
        self.group.as_deref()
    }

    fn resource(&self) -> Result<PathAndQuery, Error> {
        PathBuilder::new("/api/v1/resources/queues").segment(&self.name).build()
    }
}
