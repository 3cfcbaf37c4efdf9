//! Queues by their labels: taken from as if they were one.

use std::sync::Arc;

use crate::path::Path;
use crate::{Client, Consume, Pop, Queue};

/// All queues with a namespace, a task or both, also those that get them later. Making one calls nobody.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// # let server = baton_server::testing().await?;
/// # let baton = baton_client::Client::new(server.url())?;
/// baton.queue("invoices").namespace("billing").create().await?;
/// baton.queue("invoices").push(&"the first").send().await?;
///
/// let messages = baton.namespace("billing").pop().send().await?;
/// assert_eq!(messages[0].queue(), "invoices");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Labelled {
    client: Client,
    namespace: Option<Arc<str>>,
    task: Option<Arc<str>>,
    group: Option<Arc<str>>,
}

impl Client {
    /// All queues of a namespace.
    pub fn namespace(&self, name: impl Into<Arc<str>>) -> Labelled {
        Labelled { client: self.clone(), namespace: Some(name.into()), task: None, group: None }
    }

    /// All queues of a task.
    pub fn task(&self, name: impl Into<Arc<str>>) -> Labelled {
        Labelled { client: self.clone(), namespace: None, task: Some(name.into()), group: None }
    }
}

impl Labelled {
    /// Only those of this namespace.
    pub fn namespace(mut self, name: impl Into<Arc<str>>) -> Self {
        self.namespace = Some(name.into());
        self
    }

    /// Only those of this task.
    pub fn task(mut self, name: impl Into<Arc<str>>) -> Self {
        self.task = Some(name.into());
        self
    }

    /// Pops for this consumer group. Without it all consumers compete as one.
    pub fn group(mut self, name: impl Into<Arc<str>>) -> Self {
        self.group = Some(name.into());
        self
    }

    /// Takes messages, of queues with a higher priority first.
    pub fn pop(&self) -> Pop {
        Pop::new(Source::Labelled(self.clone()))
    }

    /// Takes messages and hands them to your code, until told to stop.
    pub fn consume(&self) -> Consume {
        Consume::new(Source::Labelled(self.clone()))
    }
}

/// What messages are taken from.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    Queue(Queue),
    Labelled(Labelled),
}

impl Source {
    pub fn client(&self) -> &Client {
        match self {
            Self::Queue(queue) => queue.client(),
            Self::Labelled(labelled) => &labelled.client,
        }
    }

    pub fn group_name(&self) -> Option<&str> {
        match self {
            Self::Queue(queue) => queue.group_name(),
            Self::Labelled(labelled) => labelled.group.as_deref(),
        }
    }

    /// The queue's name, or that of the labels.
    pub fn name(&self) -> &str {
        match self {
            Self::Queue(queue) => queue.name(),
            Self::Labelled(Labelled { namespace, task, .. }) => {
                namespace.as_deref().or(task.as_deref()).unwrap_or_default()
            }
        }
    }

    /// The path of a pop, but for how it is to be done.
    pub fn pop_path(&self) -> Path {
        match self {
            Self::Queue(queue) => {
                let path = Path::new("/api/v1/pop/queue").segment(queue.name());
                match queue.partition_name() {
                    Some(partition) => path.plain("/partition").segment(partition),
                    None => path,
                }
            }
            Self::Labelled(Labelled { namespace, task, .. }) => Path::new("/api/v1/pop")
                .maybe("namespace", namespace.as_deref())
                .maybe("task", task.as_deref()),
        }
    }
}
