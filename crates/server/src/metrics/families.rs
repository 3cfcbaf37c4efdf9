//! The families of metrics, as one table.

/// What kind of number a family holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// It only rises.
    Counter,
    /// It goes up and down.
    Gauge,
    /// How values are spread.
    Histogram,
}

/// One family.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// Its name.
    pub name: &'static str,
    /// What kind of number it holds.
    pub kind: Type,
    /// Its labels, separated by commas.
    pub labels: &'static str,
    /// What it tells, in a line.
    pub help: &'static str,
}

const fn family(name: &'static str, kind: Type, labels: &'static str, help: &'static str) -> Family {
    Family { name, kind, labels, help }
}

use Type::{Counter, Gauge, Histogram};

/// Every family.
#[rustfmt::skip]
pub const FAMILIES: &[Family] = &[
    family("queen_uptime_seconds", Gauge, "", "Seconds since the server started."),
    family("queen_process_resident_memory_bytes", Gauge, "", "Memory in use."),
    family("queen_process_virtual_memory_bytes", Gauge, "", "Address space."),
    family("queen_cpu_user_microseconds_total", Counter, "", "Processor time in the server's own code."),
    family("queen_cpu_system_microseconds_total", Counter, "", "Processor time in the kernel."),
    family("queen_shared_state_enabled", Gauge, "", "Whether servers gossip."),
    family("queen_servers", Gauge, "state", "Known servers."),
    family("baton_cluster_load_score", Gauge, "server", "How busy a server is, from 0 to 1."),
    family("baton_cluster_affinities", Gauge, "server", "Affinities of a server, as far as this one knows."),
    family("baton_cluster_circuit_state", Gauge, "server", "Whether a server is asked: 0 closed (it is), 1 half open, 2 open (it is not)."),
    family("baton_cluster_silent_seconds", Gauge, "server", "How long a server has been silent."),
    family("baton_cluster_peers_configured", Gauge, "", "Configured peers without this server."),
    family("baton_cluster_peers_heard", Gauge, "", "Those of them that are heard; fewer than configured: look at GET /api/v1/cluster for the reasons."),
    family("baton_cluster_duplicate_node_id", Gauge, "", "1 when another server has the node_id of this one."),
    family("baton_cluster_draining", Gauge, "", "1 when this server is drained from routing."),
    family("baton_cluster_requests_total", Counter, "kind, outcome", "Requests by where they were served: local, forwarded, fallback (here, since others did not answer), received (here, for another server)."),
    family("baton_cluster_affinity_total", Counter, "step", "Affinity events: hit, assigned, migrated, broken, detour, expired, lost (with their server)."),
    family("baton_cluster_forward_failures_total", Counter, "", "Requests that another server did not answer."),
    family("baton_cluster_circuits_opened_total", Counter, "", "How often a circuit breaker opened."),
    family("baton_cluster_datagrams_total", Counter, "direction", "Datagrams sent, received, and dropped because too many waited to be sent."),
    family("baton_cluster_datagrams_rejected_total", Counter, "reason", "Refused datagrams."),
    family("baton_connections", Gauge, "", "Open connections."),
    family("baton_connections_refused_total", Counter, "limit", "Connections refused, by the setting that was exceeded."),
    family("baton_body_bytes_in_flight", Gauge, "", "Bytes of request bodies in flight."),
    family("baton_build_info", Gauge, "version, node", "Always 1; the labels tell what runs."),
    family("queen_cluster_push_requests_total", Counter, "scope", "Pushes."),
    family("queen_cluster_pop_requests_total", Counter, "scope", "Pops."),
    family("queen_cluster_ack_requests_total", Counter, "scope", "Acks."),
    family("queen_cluster_transactions_total", Counter, "scope", "Transactions."),
    family("queen_cluster_push_messages_total", Counter, "scope", "Messages stored."),
    family("queen_cluster_pop_messages_total", Counter, "scope", "Messages delivered."),
    family("queen_cluster_ack_messages_total", Counter, "scope", "Messages in acks."),
    family("queen_cluster_dlq_total", Counter, "scope", "Messages that became dead letters."),
    family("queen_cluster_ack_total", Counter, "scope, result", "Messages in acks, by outcome."),
    family("baton_queue_pushed_messages_total", Counter, "queue", "Messages stored in a queue."),
    family("baton_queue_duplicate_messages_total", Counter, "queue", "Messages that were duplicates."),
    family("baton_queue_popped_messages_total", Counter, "queue", "Messages delivered from a queue."),
    family("baton_queue_redelivered_messages_total", Counter, "queue", "Messages that were delivered again."),
    family("baton_queue_acked_messages_total", Counter, "queue", "Accepted acks."),
    family("baton_queue_failed_acks_total", Counter, "queue", "Refused acks, mostly because the lease had expired."),
    family("baton_queue_dead_letters_total", Counter, "queue", "Messages of a queue that became dead letters."),
    family("baton_expired_messages_total", Counter, "", "Messages deleted by retention."),
    family("baton_timers_fired_total", Counter, "", "Timers that fired; their messages count as pushed."),
    family("baton_request_duration_seconds", Histogram, "kind", "How long pushes, pops (without their wait), acks and transactions took."),
    family("baton_waiting_pops", Gauge, "", "Pops that wait."),
    family("baton_waiting_lines_in_flight", Gauge, "", "Wait lists with a recheck in flight."),
    family("queen_queue_backoff_queues", Gauge, "", "Wait lists of pops."),
    family("queen_queue_backoff_groups", Gauge, "", "Wait lists whose recheck interval has grown."),
    family("queen_queue_push_requests_per_minute", Gauge, "queue", "Pushes in the last minute."),
    family("queen_queue_push_messages_per_minute", Gauge, "queue", "Messages stored in the last minute."),
    family("queen_queue_pop_messages_per_minute", Gauge, "queue", "Messages delivered in the last minute."),
    family("queen_queue_pop_empty_per_minute", Gauge, "queue", "Pops of the last minute that got nothing."),
    family("queen_queue_transactions_per_minute", Gauge, "queue", "Transactions of the last minute."),
    family("queen_queue_pop_lag_milliseconds", Gauge, "queue, stat", "How long messages delivered in the last minute had waited."),
    family("queen_queue_ack_per_minute", Gauge, "queue, result", "Messages in acks of the last minute, by outcome."),
    family("queen_dlq_depth_by_queue", Gauge, "queue", "Dead letters of a queue."),
    family("queen_dlq_depth", Gauge, "scope", "Dead letters in all."),
    family("baton_queue_messages", Gauge, "queue", "Messages kept."),
    family("baton_queue_partitions", Gauge, "queue", "Partitions."),
    family("baton_group_depth", Gauge, "queue, group", "Messages that a group has not finished."),
    family("baton_group_oldest_age_seconds", Gauge, "queue, group", "Age of the oldest message that a group has not finished."),
    family("baton_group_leases", Gauge, "queue, group", "Partitions that a group has leased."),
    family("baton_shards", Gauge, "service", "Shards of a service."),
    family("baton_shards_unassigned", Gauge, "service", "Shards without an owner."),
    family("baton_shards_revoking", Gauge, "service", "Shards whose owner was asked to stop and has not confirmed yet."),
    family("baton_shards_workers", Gauge, "service, status", "Workers by state."),
    family("baton_shards_generation", Gauge, "service", "Rises with every change of an assignment."),
    family("baton_shards_moves_total", Counter, "service", "Shards that moved to another worker."),
    family("baton_shards_beats_total", Counter, "service", "Heartbeats that this server has answered."),
    family("baton_shards_refusals_total", Counter, "service", "Requests about shards that this server has refused."),
    family("baton_shards_heartbeat_lag_seconds", Gauge, "service", "The longest silence of an active worker at the last check."),
    family("baton_election_groups", Gauge, "", "Election groups."),
    family("baton_election_coordinated_groups", Gauge, "", "Election groups with a coordinator."),
    family("baton_election_watchers", Gauge, "", "Callers that wait for changes of elections."),
    family("baton_election_heartbeats_total", Counter, "", "Heartbeats of candidates."),
    family("baton_election_terms_total", Counter, "", "Terms that began."),
    family("baton_election_releases_total", Counter, "", "Terms that ended by a resignation."),
    family("baton_election_conflicts_total", Counter, "", "Claims and renewals that lost a conflict."),
    family("baton_election_unsteady_total", Counter, "", "Times that the coordinator of a group was found to change too often."),
    family("baton_store_healthy", Gauge, "", "1 while the store works, 0 when it has stopped."),
    family("baton_store_commits_total", Counter, "", "Commits."),
    family("baton_store_syncs_total", Counter, "", "Commits with an fsync."),
    family("baton_store_operations_total", Counter, "", "Decisions in all commits."),
    family("baton_store_repeats_total", Counter, "", "Commit batches that ran again because of a conflict with another server (PostgreSQL)."),
    family("baton_store_deadlocks_total", Counter, "", "Those of them that were caused by a deadlock."),
    family("baton_store_undone_total", Counter, "", "Decisions that failed after their first write and were rolled back: bugs of the server."),
    family("baton_store_missing_slots_total", Counter, "", "Partitions with messages that a group could not reach, found and repaired (PostgreSQL)."),
    family("baton_store_disk_bytes", Gauge, "", "Bytes on disk."),
    family("baton_store_remembered_ids", Gauge, "", "Transaction ids remembered to recognise repeated pushes."),
    family("baton_store_commit_seconds", Histogram, "", "The latency of commits with an fsync."),
    family("baton_store_commit_operations", Histogram, "", "The number of decisions of such a commit."),
    family("baton_jobs", Gauge, "queue, state", "Jobs of a queue by state."),
    family("baton_job_oldest_age_seconds", Gauge, "queue", "How long the oldest dispatched job has waited."),
    family("baton_jobs_enqueued_total", Counter, "", "Jobs accepted by this server."),
    family("baton_jobs_deduplicated_total", Counter, "", "Jobs whose unique key another job had."),
    family("baton_jobs_leased_total", Counter, "", "Jobs leased to workers."),
    family("baton_job_executions_total", Counter, "outcome", "Executions that ended, by outcome; `lost` are leases that ran out."),
    family("baton_job_stale_fences_total", Counter, "", "Requests refused because of an old fence."),
    family("baton_job_dead_letters_total", Counter, "", "Jobs that failed for good."),
    family("baton_jobs_forgotten_total", Counter, "", "Jobs deleted after their retention."),
    family("baton_job_log_lines_total", Counter, "", "Log lines stored."),
    family("baton_job_log_lines_dropped_total", Counter, "", "Log lines dropped beyond the limit of an execution."),
    family("baton_job_leader_terms_total", Counter, "", "How often this node became leader of the jobs."),
    family("baton_job_leader", Gauge, "", "1 on the leader of the jobs, as far as it knows."),
    family("baton_job_node_slices", Gauge, "", "Slices of the jobs, of 64, that this node owns, as far as it knows."),
    family("baton_job_handoffs_total", Counter, "case", "Slices of jobs that this node handed over when it drained: A at the first offer, B at a later one, C left for the leader, D left because no other node was there."),
    family("baton_job_claims_total", Counter, "reason", "Slices of jobs that this node claimed."),
    family("baton_job_orphans_total", Counter, "", "Slices of dead nodes that this node, as leader, offered to the others."),
    family("baton_job_rebalanced_total", Counter, "", "Slices that this node, as leader, moved to a node with fewer jobs."),
    family("baton_schedule_misfires_total", Counter, "", "Checks of schedules that found missed fires."),
    family("baton_schedule_overlapped_total", Counter, "", "Fires of schedules that enqueued no job because of the last one."),
    family("baton_schedule_lateness_seconds", Histogram, "", "How late schedules fired."),
    family("baton_job_pickup_seconds", Histogram, "", "How long due jobs waited for a worker."),
    family("baton_job_run_seconds", Histogram, "", "How long executions took."),
];

/// A family by name.
pub fn find(name: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.name == name)
}
