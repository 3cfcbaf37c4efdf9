//! Queues by label: pops from all queues with a label.

use std::sync::Arc;

use crate::Client;

/// All queues with a namespace, a task or both, including later ones. Makes no call.
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
pub struct LabelledQueues {
    client: Client,
    namespace: Option<Arc<str>>,
    task: Option<Arc<str>>,
    group: Option<Arc<str>>,
}

impl Client {
    /// All queues of a namespace.
    pub fn namespace(&self, name: impl Into<Arc<str>>) -> LabelledQueues {
        LabelledQueues { client: self.clone(), namespace: Some(name.into()), task: None, group: None }
    }

    /// All queues of a task.
    pub fn task(&self, name: impl Into<Arc<str>>) -> LabelledQueues {
        LabelledQueues { client: self.clone(), namespace: None, task: Some(name.into()), group: None }
    }
}

impl LabelledQueues {
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

    /// Pops for this consumer group. Without it all consumers share the messages as one group.
    pub fn group(mut self, name: impl Into<Arc<str>>) -> Self {
        self.group = Some(name.into());
        self
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn group_name(&self) -> Option<&str> {
        self.group.as_deref()
    }

    pub(crate) fn namespace_name(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    pub(crate) fn task_name(&self) -> Option<&str> {
        self.task.as_deref()
    }
}
