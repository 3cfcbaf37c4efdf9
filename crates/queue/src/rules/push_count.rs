//! How much one push changes, by queue.
//!
//! A push counts its messages before it is submitted, and the partitions that it created once it is committed. Not
//! here: the counters of the process that this is added to (`broker::metrics`). Start at [`PushCount`].

use std::sync::Arc;

/// Counts of one push by queue: its messages and the partitions that it created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PushCount {
    pub messages: Vec<(Arc<str>, u64)>,
    pub created: Vec<(Arc<str>, u64)>,
}

impl PushCount {
    pub fn add(&mut self, queue: &Arc<str>, messages: u64) {
        add_to(&mut self.messages, queue, messages);
    }

    pub fn add_created(&mut self, queue: &Arc<str>) {
        add_to(&mut self.created, queue, 1);
    }
}

fn add_to(counts: &mut Vec<(Arc<str>, u64)>, queue: &Arc<str>, more: u64) {
    match counts.iter_mut().find(|(name, _)| name == queue) {
        Some((_, count)) => *count += more,
        None => counts.push((queue.clone(), more)),
    }
}
