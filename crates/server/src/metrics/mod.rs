//! Numbers for Prometheus: which families there are, and what is in them now.
//!
//! Names that begin with `queen_` are those that existing dashboards know; what they cannot express is under
//! `baton_`. Always: a family that is written stands in [`FAMILIES`], from which the reference page is printed.
//! Start at [`render`].

mod cluster;
mod exposition;
mod families;

use std::sync::atomic::Ordering;
use std::time::Duration;

use baton_queue::{Kind, Minute, Numbers, Tally};
use baton_shards::{ServiceCounters, Snapshot, Status};

use crate::app::App;
use crate::error::Error;
use crate::process::Usage;
use exposition::Exposition;
pub use families::{FAMILIES, Family, Type};

/// A family that tells one number of each queue.
type Field = (&'static str, fn(&Tally) -> u64);

/// What anybody may see, in the text format: numbers about the process and the store, without a name.
pub fn render_public(app: &App) -> String {
    let mut page = Exposition::default();
    process(&mut page, app);
    store(&mut page, app);
    page.finish()
}

/// Everything, in the text format.
pub async fn render(app: &App) -> Result<String, Error> {
    let numbers = app.broker.numbers().await?;
    let now = app.broker.store().now();
    let minutes = app.broker.minutes(now.before(Duration::from_secs(120)), now).await?;
    let mut page = Exposition::default();
    process(&mut page, app);
    counted(&mut page, app);
    last_minute(&mut page, app, &minutes);
    queues(&mut page, &numbers);
    jobs(&mut page, app).await?;
    shards(&mut page, app);
    elections(&mut page, app).await?;
    store(&mut page, app);
    Ok(page.finish())
}

fn process(page: &mut Exposition, app: &App) {
    let usage = Usage::now();
    page.one("queen_uptime_seconds", app.uptime().as_secs_f64());
    page.one("queen_process_resident_memory_bytes", usage.resident_bytes);
    page.one("queen_process_virtual_memory_bytes", usage.virtual_bytes);
    page.one("queen_cpu_user_microseconds_total", usage.user_micros);
    page.one("queen_cpu_system_microseconds_total", usage.system_micros);
    cluster::servers(page, app.cluster.as_ref());
    page.one("baton_connections", app.traffic.connections.load(Ordering::Relaxed));
    for (limit, count) in app.traffic.refusals.counts() {
        page.labelled("baton_connections_refused_total", &[("limit", limit.setting())], count);
    }
    page.one("baton_body_bytes_in_flight", app.traffic.budget.used());
    page.labelled(
        "baton_build_info",
        &[("version", env!("CARGO_PKG_VERSION")), ("node", &app.options.node_id)],
        1,
    );
}

fn counted(page: &mut Exposition, app: &App) {
    let meters = app.broker.meters();
    let all = meters.total();
    let cluster = [("scope", "cluster")];
    for (name, value) in [
        ("queen_cluster_push_requests_total", all.push_requests),
        ("queen_cluster_pop_requests_total", all.pop_requests),
        ("queen_cluster_ack_requests_total", all.ack_requests),
        ("queen_cluster_transactions_total", all.transactions),
        ("queen_cluster_push_messages_total", all.push_messages),
        ("queen_cluster_pop_messages_total", all.pop_messages),
        ("queen_cluster_ack_messages_total", all.ack_success + all.ack_failed),
        ("queen_cluster_dlq_total", all.dead_letters),
    ] {
        page.labelled(name, &cluster, value);
    }
    page.labelled("queen_cluster_ack_total", &[("scope", "cluster"), ("result", "success")], all.ack_success);
    page.labelled("queen_cluster_ack_total", &[("scope", "cluster"), ("result", "failed")], all.ack_failed);
    let mut queues: Vec<_> = meters.by_queue().into_iter().collect();
    queues.sort_by(|(a, _), (b, _)| a.cmp(b));
    let fields: [Field; 7] = [
        ("baton_queue_pushed_messages_total", |tally| tally.push_messages),
        ("baton_queue_duplicate_messages_total", |tally| tally.push_duplicates),
        ("baton_queue_popped_messages_total", |tally| tally.pop_messages),
        ("baton_queue_redelivered_messages_total", |tally| tally.redelivered),
        ("baton_queue_acked_messages_total", |tally| tally.ack_success),
        ("baton_queue_failed_acks_total", |tally| tally.ack_failed),
        ("baton_queue_dead_letters_total", |tally| tally.dead_letters),
    ];
    for (name, field) in fields {
        for (queue, tally) in &queues {
            page.labelled(name, &[("queue", queue)], field(tally));
        }
    }
    page.one("baton_expired_messages_total", all.expired);
    page.one("baton_timers_fired_total", meters.timers());
    for kind in Kind::ALL {
        let durations = meters.durations(kind);
        page.histogram("baton_request_duration_seconds", &[("kind", kind.name())], &durations, 1e6);
    }
    let waits = app.broker.wait_statistics();
    page.one("baton_waiting_pops", waits.waiters);
    page.one("baton_waiting_lines_in_flight", waits.groups_in_flight);
    page.one("queen_queue_backoff_queues", waits.groups_tracked);
    page.one("queen_queue_backoff_groups", waits.groups_backed_off);
}

/// What happened in the last whole minute, as existing dashboards show it.
fn last_minute(page: &mut Exposition, app: &App, minutes: &[Minute]) {
    let Some(minute) = minutes.iter().rev().find(|minute| *minute.node == *app.options.node_id) else {
        return;
    };
    let fields: [Field; 5] = [
        ("queen_queue_push_requests_per_minute", |tally| tally.push_requests),
        ("queen_queue_push_messages_per_minute", |tally| tally.push_messages),
        ("queen_queue_pop_messages_per_minute", |tally| tally.pop_messages),
        ("queen_queue_pop_empty_per_minute", |tally| tally.pop_empty),
        ("queen_queue_transactions_per_minute", |tally| tally.transactions),
    ];
    for (name, field) in fields {
        for (queue, tally) in &minute.queues {
            page.labelled(name, &[("queue", queue)], field(tally));
        }
    }
    for (queue, tally) in &minute.queues {
        let lag = "queen_queue_pop_lag_milliseconds";
        page.labelled(lag, &[("queue", queue), ("stat", "avg")], tally.lag_avg_ms());
        page.labelled(lag, &[("queue", queue), ("stat", "max")], tally.lag_max_ms);
    }
    for (queue, tally) in &minute.queues {
        let acks = "queen_queue_ack_per_minute";
        page.labelled(acks, &[("queue", queue), ("result", "success")], tally.ack_success);
        page.labelled(acks, &[("queue", queue), ("result", "failed")], tally.ack_failed);
    }
}

fn queues(page: &mut Exposition, numbers: &Numbers) {
    let mut dead = 0;
    for queue in &numbers.queues {
        dead += queue.counts.dead_letter;
        page.labelled(
            "queen_dlq_depth_by_queue",
            &[("queue", &queue.queue.spec.name)],
            queue.counts.dead_letter,
        );
    }
    page.labelled("queen_dlq_depth", &[("scope", "cluster")], dead);
    for queue in &numbers.queues {
        page.labelled("baton_queue_messages", &[("queue", &queue.queue.spec.name)], queue.counts.total);
    }
    for queue in &numbers.queues {
        page.labelled("baton_queue_partitions", &[("queue", &queue.queue.spec.name)], queue.partitions);
    }
    for group in &numbers.groups {
        page.labelled(
            "baton_group_depth",
            &[("queue", &group.queue), ("group", &group.name)],
            group.total_lag,
        );
    }
    for group in &numbers.groups {
        let labels = [("queue", &*group.queue), ("group", &*group.name)];
        page.labelled("baton_group_oldest_age_seconds", &labels, group.time_lag_seconds);
    }
    for group in &numbers.groups {
        page.labelled("baton_group_leases", &[("queue", &group.queue), ("group", &group.name)], group.leases);
    }
}

async fn jobs(page: &mut Exposition, app: &App) -> Result<(), Error> {
    let queues = app.jobs.queues().await?;
    for queue in &queues {
        for (state, count) in &queue.counts {
            page.labelled("baton_jobs", &[("queue", &queue.name), ("state", state)], count);
        }
    }
    for queue in &queues {
        let age = Duration::from_millis(queue.oldest_ms).as_secs_f64();
        page.labelled("baton_job_oldest_age_seconds", &[("queue", &queue.name)], age);
    }
    let numbers = app.jobs.numbers();
    page.one("baton_jobs_enqueued_total", numbers.enqueued);
    page.one("baton_jobs_deduplicated_total", numbers.deduplicated);
    page.one("baton_jobs_leased_total", numbers.leased);
    for (outcome, count) in &numbers.outcomes {
        page.labelled("baton_job_executions_total", &[("outcome", outcome.word())], count);
    }
    page.one("baton_job_stale_fences_total", numbers.stale);
    page.one("baton_job_dead_letters_total", numbers.dead);
    page.one("baton_jobs_forgotten_total", numbers.forgotten);
    page.one("baton_job_log_lines_total", numbers.lines);
    page.one("baton_job_log_lines_dropped_total", numbers.lines_dropped);
    page.one("baton_job_leader_terms_total", numbers.terms);
    page.one("baton_job_leader", u64::from(numbers.is_leader));
    page.one("baton_job_node_slices", app.jobs.slices());
    for (case, count) in baton_jobs::HandoffCase::ALL.iter().zip(numbers.handoffs) {
        page.labelled("baton_job_handoffs_total", &[("case", case.word())], count);
    }
    for (reason, count) in numbers.claims {
        page.labelled("baton_job_claims_total", &[("reason", reason.word())], count);
    }
    page.one("baton_job_orphans_total", numbers.orphans);
    page.one("baton_job_rebalanced_total", numbers.rebalanced);
    page.one("baton_schedule_misfires_total", numbers.misfires);
    page.one("baton_schedule_overlapped_total", numbers.overlapped);
    page.histogram("baton_schedule_lateness_seconds", &[], &numbers.lateness, 1e6);
    page.histogram("baton_job_pickup_seconds", &[], &numbers.pickup, 1e6);
    page.histogram("baton_job_run_seconds", &[], &numbers.run, 1e6);
    Ok(())
}

fn shards(page: &mut Exposition, app: &App) {
    let services = app.shards.counters();
    type Field = (&'static str, fn(&Snapshot, &ServiceCounters) -> f64);
    let fields: [Field; 8] = [
        ("baton_shards", |snapshot, _| snapshot.service.count.into()),
        ("baton_shards_unassigned", |snapshot, _| snapshot.unassigned.into()),
        ("baton_shards_revoking", |snapshot, _| {
            snapshot.service.workers().map(|(_, worker)| f64::from(worker.revoking)).sum()
        }),
        ("baton_shards_generation", |snapshot, _| snapshot.service.generation as f64),
        ("baton_shards_moves_total", |snapshot, _| snapshot.service.moves as f64),
        ("baton_shards_beats_total", |_, pulse| pulse.heartbeats.load(Ordering::Relaxed) as f64),
        ("baton_shards_refusals_total", |_, pulse| pulse.refusals.load(Ordering::Relaxed) as f64),
        ("baton_shards_heartbeat_lag_seconds", |_, pulse| {
            pulse.lag_micros.load(Ordering::Relaxed) as f64 / 1e6
        }),
    ];
    for (name, field) in fields {
        for (service, snapshot, pulse) in &services {
            page.labelled(name, &[("service", service)], field(snapshot, pulse));
        }
    }
    let statuses = [("active", Status::Active), ("inactive", Status::Inactive), ("fenced", Status::Fenced)];
    for (service, snapshot, _) in &services {
        for (word, status) in statuses {
            let count = snapshot.service.workers().filter(|(_, worker)| worker.status == status).count();
            page.labelled("baton_shards_workers", &[("service", service), ("status", word)], count);
        }
    }
}

async fn elections(page: &mut Exposition, app: &App) -> Result<(), Error> {
    let present = app.elections.present().await?;
    page.one("baton_election_groups", present.groups);
    page.one("baton_election_coordinated_groups", present.coordinated);
    page.one("baton_election_watchers", present.watchers);
    let counts = &app.elections.counts;
    for (name, count) in [
        ("baton_election_heartbeats_total", &counts.heartbeats),
        ("baton_election_terms_total", &counts.terms),
        ("baton_election_releases_total", &counts.releases),
        ("baton_election_conflicts_total", &counts.conflicts),
        ("baton_election_unsteady_total", &counts.unsteady),
    ] {
        page.one(name, count.load(Ordering::Relaxed));
    }
    Ok(())
}

fn store(page: &mut Exposition, app: &App) {
    let store = app.broker.store();
    let statistics = store.statistics();
    page.one("baton_store_healthy", u8::from(store.failure().is_none()));
    page.one("baton_store_commits_total", statistics.commits);
    page.one("baton_store_syncs_total", statistics.syncs);
    page.one("baton_store_operations_total", statistics.operations);
    page.one("baton_store_repeats_total", statistics.repeats);
    page.one("baton_store_deadlocks_total", statistics.deadlocks);
    page.one("baton_store_undone_total", statistics.undone);
    page.one("baton_store_missing_slots_total", statistics.missing_slots);
    page.one("baton_store_disk_bytes", statistics.disk_bytes);
    page.one("baton_store_remembered_ids", statistics.remembered);
    page.histogram("baton_store_commit_seconds", &[], &statistics.commit_micros, 1e6);
    page.histogram("baton_store_commit_operations", &[], &statistics.commit_operations, 1.0);
}
