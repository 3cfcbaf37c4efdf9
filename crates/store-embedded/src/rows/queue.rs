//! Queues and consumer groups, as JSON.

use baton_store::{Error, Group, Queue};
use bytes::Bytes;

use super::corrupt_row;

pub fn encode_queue(queue: &Queue) -> Bytes {
    serde_json::to_vec(queue).unwrap_or_default().into()
}

pub fn decode_queue(bytes: &[u8]) -> Result<Queue, Error> {
    serde_json::from_slice(bytes).map_err(|_| corrupt_row("queue"))
}

pub fn encode_group(group: &Group) -> Bytes {
    serde_json::to_vec(group).unwrap_or_default().into()
}

pub fn decode_group(bytes: &[u8]) -> Result<Group, Error> {
    serde_json::from_slice(bytes).map_err(|_| corrupt_row("group"))
}
