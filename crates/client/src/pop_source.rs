//! The source of a pop: one queue, or all queues with a label.

use crate::path::PathBuilder;
use crate::{Client, LabelledQueues, Queue};

/// The source of a pop.
#[derive(Clone, Debug)]
pub(crate) enum PopSource {
    Queue(Queue),
    Labelled(LabelledQueues),
}

impl PopSource {
    pub fn client(&self) -> &Client {
        match self {
            Self::Queue(queue) => queue.client(),
            Self::Labelled(labelled) => labelled.client(),
        }
    }

    pub fn group_name(&self) -> Option<&str> {
        match self {
            Self::Queue(queue) => queue.group_name(),
            Self::Labelled(labelled) => labelled.group_name(),
        }
    }

    /// The queue's name, or the labels.
    pub fn name(&self) -> &str {
        match self {
            Self::Queue(queue) => queue.name(),
            Self::Labelled(labelled) => {
                labelled.namespace_name().or(labelled.task_name()).unwrap_or_default()
            }
        }
    }

    /// The path of a pop, without its options.
    pub fn pop_path(&self) -> PathBuilder {
        match self {
            Self::Queue(queue) => {
                let path = PathBuilder::new("/api/v1/pop/queue").segment(queue.name());
                match queue.partition_name() {
                    Some(partition) => path.literal("/partition").segment(partition),
                    None => path,
                }
            }
            Self::Labelled(labelled) => PathBuilder::new("/api/v1/pop")
                .optional_query("namespace", labelled.namespace_name())
                .optional_query("task", labelled.task_name()),
        }
    }
}
