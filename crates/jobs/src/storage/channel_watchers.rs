//! Whether a client watches a channel, that is, whether a queue with a channel's name exists.

use baton_store::{Tx, TxError};

use crate::model::channel_names::is_channel;

/// Whether a client watches a channel.
pub fn is_watched(tx: &mut dyn Tx, prefix: &str) -> Result<bool, TxError> {
    let queues = tx.queues()?;
    let channel = |name: &str| name.strip_prefix(prefix)?.strip_prefix('.').map(is_channel);
    Ok(queues.iter().any(|queue| channel(&queue.spec.name) == Some(true)))
}
