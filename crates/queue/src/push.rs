use baton_store::{Block, NewMessage};
use baton_types::{MessageId, Offset, PartitionId};
use std::sync::Arc;

/// Messages to push, encoded and grouped by partition while they are added.
#[derive(Debug, Default)]
pub struct PushBatch {}

impl PushBatch {
    /// Adds a message, or says what is wrong with it.
    pub fn add(
        &mut self,
        queue: &str,
        partition: &str,
        message: &NewMessage<'_>,
    ) -> Result<(), crate::Error> {
        todo!()
    }
    pub fn len(&self) -> usize {
        todo!()
    }
    pub fn is_empty(&self) -> bool {
        todo!()
    }
}

/// What became of one pushed message, in the order in which they were added.
#[derive(Clone, Debug)]
pub struct Pushed {
    /// Whether a message with its transaction id was there already; the rest then tells of that one.
    pub duplicate: bool,
    pub partition: PartitionId,
    pub offset: Offset,
    pub id: MessageId,
}
