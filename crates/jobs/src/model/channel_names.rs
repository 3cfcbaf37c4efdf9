//! The names of channels: queues to which nodes publish what happens to jobs, while the queue exists.

/// A channel for all queues and nodes.
pub const STATUS: &str = "job.status";
/// See [`STATUS`].
pub const LOGS: &str = "job.logs";
/// See [`STATUS`].
pub const ASSIGNED: &str = "job.assigned";
/// See [`STATUS`].
pub const CANCEL: &str = "job.cancel";
/// See [`STATUS`].
pub const HANDOFF: &str = "job.handoff";
/// See [`STATUS`].
pub const WORKER: &str = "worker.heartbeat";
/// See [`STATUS`].
pub const COORDINATOR: &str = "coordinator.heartbeat";
/// Prefix of one channel for each job queue.
pub const DISPATCH: &str = "job.dispatch.";
/// Prefix of one channel for each node.
pub const ACK: &str = "job.handoff.ack.";

/// Whether a name after the prefix is that of a channel.
pub fn is_channel(name: &str) -> bool {
    [STATUS, LOGS, ASSIGNED, CANCEL, HANDOFF, WORKER, COORDINATOR].contains(&name)
        || [DISPATCH, ACK].iter().any(|start| name.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_channels_count() {
        for name in [STATUS, LOGS, ASSIGNED, CANCEL, HANDOFF, WORKER, COORDINATOR, "job.dispatch.mail"] {
            assert!(is_channel(name), "{name}");
        }
        assert!(is_channel("job.handoff.ack.node-1") && !is_channel("job.other") && !is_channel(""));
    }
}
