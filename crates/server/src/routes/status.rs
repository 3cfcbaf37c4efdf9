//! `/api/v1/status/…`: the state of everything, for dashboards.
//!
//! What is in the queues may be a few seconds old; `POST /api/v1/stats/refresh` counts anew at once.

use std::collections::BTreeSet;
use std::time::Duration;

use baton_http::Reply;
use baton_queue::{Counts, MessageFilter, PartitionSummary, QueueSummary, Tally};
use baton_types::Timestamp;
use serde_json::{Map, Value, json};

use super::messages::page;
use super::resources::{self, counters};
use crate::call::{Answer, Call};
use crate::error::Error;
use crate::timeline::{Load, Span};

/// Rows of a page that does not say how many.
const PAGE: u64 = 100;
const MESSAGES: u64 = 50;
/// The most frequent errors of dead letters that are shown.
const TOP_ERRORS: usize = 5;
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// The whole picture.
pub(super) fn overview(call: Call) -> Answer {
    Box::pin(async move {
        let (app, broker) = (call.app(), call.broker());
        let now = broker.store().now();
        let span = Span::of(&call.query()?, now, HOUR)?;
        let wanted = Wanted::of(&call)?;
        let numbers = broker.numbers().await?;
        let minutes = broker.minutes(span.from, span.to).await?;
        let queues: Vec<_> =
            numbers.queues.iter().filter(|summary| wanted.has(&summary.queue.spec)).collect();
        let is_shown = |name: &str| queues.iter().any(|summary| *summary.queue.spec.name == *name);
        let sums = span.gather(&minutes, |minute| {
            if wanted.is_everything() {
                return vec![((), minute.total)];
            }
            let mut sum = Tally::default();
            minute.queues.iter().filter(|(name, _)| is_shown(name)).for_each(|(_, tally)| sum += *tally);
            vec![((), sum)]
        });
        let loads = span.loads(&minutes, &app.options.node_id);
        let throughput: Vec<_> = span
            .points()
            .into_iter()
            .rev()
            .map(|at| {
                let tally = sums.get(&(at, ())).copied().unwrap_or_default();
                point(at, tally, span, loads.get(&at).copied().unwrap_or_default())
            })
            .collect();
        let counts: Counts = queues.iter().map(|summary| summary.counts).sum();
        let mut total = Tally::default();
        sums.values().for_each(|tally| total += *tally);
        let groups = || numbers.groups.iter().filter(|group| is_shown(&group.queue));
        let mut messages = six(&counts);
        messages.insert(
            "requests".into(),
            json!({"push": total.push_requests, "pop": total.pop_requests, "ack": total.ack_requests}),
        );
        let per_request = |messages: u64, requests: u64| messages as f64 / requests.max(1) as f64;
        let acked = total.ack_success + total.ack_failed;
        messages.insert(
            "batchEfficiency".into(),
            json!({
                "push": per_request(total.push_messages, total.push_requests),
                "pop": per_request(total.pop_messages, total.pop_requests - total.pop_empty.min(total.pop_requests)),
                "ack": per_request(acked, total.ack_requests),
            }),
        );
        let waits = broker.wait_statistics();
        let with_letters = queues.iter().filter(|summary| summary.counts.dead_letter > 0);
        let causes = broker.causes(with_letters.map(|summary| summary.queue.id).collect()).await?;
        let error = |(error, count): &(String, u64)| json!({"error": error, "count": count});
        let lag_ms = scheduling_delay().await.as_secs_f64() * 1000.0;
        Reply::ok(&json!({
            "timeRange": span.shown(),
            "bucketMinutes": span.minutes,
            "pointCount": throughput.len(),
            "throughput": throughput,
            "queues": queues.iter().map(|summary| json!({
                "id": summary.queue.id.to_string(),
                "name": summary.queue.spec.name,
                "namespace": summary.queue.spec.namespace,
                "task": summary.queue.spec.task,
                "partitions": summary.partitions,
                "totalConsumed": summary.counts.completed,
            })).collect::<Vec<_>>(),
            "messages": messages,
            "leases": {
                "active": groups().map(|group| group.leases).sum::<u64>(),
                "partitionsWithLeases": groups().map(|group| group.leases).sum::<u64>(),
                "totalBatchSize": counts.processing,
                "totalAcked": total.ack_success,
            },
            "deadLetterQueue": {
                "totalMessages": counts.dead_letter,
                "affectedPartitions": causes.partitions,
                "topErrors": causes.errors.iter().take(TOP_ERRORS).map(error).collect::<Vec<_>>(),
            },
            "workers": [{
                "hostname": app.options.node_id,
                "workerId": 0,
                "avgEventLoopLagMs": lag_ms,
                "maxEventLoopLagMs": lag_ms,
                "freeSlots": 0,
                "dbConnections": 0,
                "jobQueueSize": waits.groups_in_flight,
                "messagesProcessed": total.pop_messages,
            }],
            "errors": {"dbErrors": 0, "ackFailed": total.ack_failed, "dlqMessages": total.dead_letters},
            "statsAge": now.since(numbers.at).as_secs(),
        }))
    })
}

/// How long a task that is ready waits until it runs, now.
async fn scheduling_delay() -> Duration {
    let watch = baton_env::Stopwatch::start();
    tokio::spawn(async move { watch.elapsed() }).await.unwrap_or_default()
}

fn point(at: Timestamp, tally: Tally, span: Span, load: Load) -> Value {
    let per_second = |count: u64| count as f64 / span.seconds();
    json!({
        "timestamp": at.to_iso_millis(),
        "ingested": tally.push_messages,
        "processed": tally.ack_success,
        "popMessages": tally.pop_messages,
        "ingestedPerSecond": per_second(tally.push_messages),
        "processedPerSecond": per_second(tally.ack_success),
        "popPerSecond": per_second(tally.pop_messages),
        "avgLagMs": tally.lag_avg_ms(),
        "maxLagMs": tally.lag_max_ms,
        "avgEventLoopLagMs": 0,
        "maxEventLoopLagMs": 0,
        "minFreeSlots": 0,
        "dbErrors": 0,
        "ackFailed": tally.ack_failed,
        "dlqCount": tally.dead_letters,
        "queenCpuUserPct": load.user_percent,
        "queenCpuSysPct": load.system_percent,
        "queenRssMb": load.resident_bytes / f64::from(1 << 20),
        "dbPoolActive": 0,
        "dbPoolIdle": 0,
        "dbPoolSize": 0,
    })
}

/// Which queues a request asks about.
struct Wanted {
    queue: Option<String>,
    namespace: Option<String>,
    task: Option<String>,
}

impl Wanted {
    fn of(call: &Call) -> Result<Self, Error> {
        let query = call.query()?;
        Ok(Self {
            queue: query.owned("queue"),
            namespace: query.owned("namespace"),
            task: query.owned("task"),
        })
    }

    fn is_everything(&self) -> bool {
        self.queue.is_none() && self.namespace.is_none() && self.task.is_none()
    }

    fn has(&self, spec: &baton_store::QueueSpec) -> bool {
        let same =
            |wanted: &Option<String>, have: &str| wanted.as_deref().is_none_or(|wanted| wanted == have);
        same(&self.queue, &spec.name)
            && same(&self.namespace, &spec.namespace)
            && same(&self.task, &spec.task)
    }
}

fn six(counts: &Counts) -> Map<String, Value> {
    match counters(counts) {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// Lists queues, a page at a time.
pub(super) fn queues(call: Call) -> Answer {
    Box::pin(async move {
        let (limit, offset) = page(&call.query()?, PAGE)?;
        let wanted = Wanted::of(&call)?;
        let numbers = call.broker().numbers().await?;
        let rows = numbers.queues.iter().filter(|summary| wanted.has(&summary.queue.spec));
        let rows: Vec<_> = rows.map(resources::queue_row).skip(offset).take(limit).collect();
        Reply::ok(&json!({"queues": rows, "pagination": {"limit": limit, "offset": offset}}))
    })
}

/// One queue with its partitions.
pub(super) fn queue(call: Call) -> Answer {
    Box::pin(async move {
        let found = call.broker().queue(call.parameter(0)).await?;
        let (summary, partitions) = found.ok_or_else(resources::queue_not_found)?;
        let (queue, options) = (&summary.queue, &summary.queue.spec.options);
        let mut totals = six(&summary.counts);
        totals.insert("messages".into(), counters(&summary.counts));
        Reply::ok(&json!({
            "queue": {
                "id": queue.id.to_string(),
                "name": queue.spec.name,
                "namespace": queue.spec.namespace,
                "task": queue.spec.task,
                "priority": options.priority,
                "createdAt": queue.created_at.to_iso_millis(),
                "config": {
                    "leaseTime": options.lease_time,
                    "retryLimit": options.retry_limit,
                    "retryDelay": options.retry_delay,
                    "ttl": options.ttl,
                    "maxQueueSize": options.max_size,
                    "deadLetterQueue": options.dead_letter_queue,
                },
            },
            "partitions": partitions.iter().map(partition_row).collect::<Vec<_>>(),
            "totals": totals,
        }))
    })
}

fn partition_row(partition: &PartitionSummary) -> Value {
    json!({
        "id": partition.id.to_string(),
        "name": partition.name,
        "createdAt": partition.created_at.to_iso_millis(),
        "messages": counters(&partition.counts),
        "stats": counters(&partition.counts),
        "cursor": {"totalConsumed": partition.counts.completed, "batchesConsumed": 0},
        "lastActivity": partition.newest_message_at.map(Timestamp::to_iso_millis),
        "oldestMessage": partition.oldest_message_at.map(Timestamp::to_iso_millis),
        "newestMessage": partition.newest_message_at.map(Timestamp::to_iso_millis),
    })
}

/// The newest messages of a queue.
pub(super) fn messages(call: Call) -> Answer {
    Box::pin(async move {
        let (limit, offset) = page(&call.query()?, MESSAGES)?;
        let queue = Some(call.parameter(0).to_owned());
        let filter = MessageFilter { queue, limit, offset, ..MessageFilter::default() };
        let messages = call.broker().messages(filter).await?;
        let rows: Vec<_> = messages.iter().map(super::messages::short_row).collect();
        Reply::ok(&rows)
    })
}

/// Messages stored over time.
pub(super) fn analytics(call: Call) -> Answer {
    Box::pin(async move {
        let query = call.query()?;
        let interval = query.text("interval").unwrap_or("hour");
        let minutes = match interval {
            "minute" => 1,
            "hour" => 60,
            "day" => 1440,
            _ => return Err(Error::invalid("interval is minute, hour or day")),
        };
        let span = Span { minutes, ..Span::of(&query, call.broker().store().now(), DAY)? };
        let wanted = Wanted::of(&call)?;
        let everything = wanted.is_everything();
        let queues = call.broker().matching_queues(wanted.queue, wanted.namespace, wanted.task).await?;
        let names: BTreeSet<&str> = queues.iter().map(|queue| &*queue.spec.name).collect();
        let kept = call.broker().minutes(span.from, span.to).await?;
        let sums = span.gather(&kept, |minute| {
            if everything {
                return vec![((), minute.total)];
            }
            let shown = minute.queues.iter().filter(|(name, _)| names.contains(&***name));
            shown.map(|(_, tally)| ((), *tally)).collect()
        });
        let points: Vec<_> = span
            .points()
            .into_iter()
            .map(|at| {
                let messages = sums.get(&(at, ())).map_or(0, |tally| tally.push_messages);
                json!({"timestamp": at.to_iso_millis(), "messages": messages})
            })
            .collect();
        Reply::ok(&json!({
            "interval": interval,
            "from": span.from.to_iso_millis(),
            "to": span.to.to_iso_millis(),
            "dataPoints": points,
        }))
    })
}

/// Counts everything anew.
pub(super) fn refresh(call: Call) -> Answer {
    Box::pin(async move {
        let numbers = call.broker().fresh_numbers().await?;
        let partitions: u64 = numbers.queues.iter().map(|row| row.partitions).sum();
        let labels = |label: fn(&QueueSummary) -> &str| {
            numbers.queues.iter().map(label).collect::<BTreeSet<_>>().len()
        };
        Reply::ok(&json!({
            "partition": {"partitionsUpdated": partitions},
            "queue": {"queuesUpdated": numbers.queues.len()},
            "namespace": {"namespacesUpdated": labels(|row| &row.queue.spec.namespace)},
            "task": {"tasksUpdated": labels(|row| &row.queue.spec.task)},
            "system": {"updatedAt": numbers.at.to_iso_millis()},
            "cleanup": {"orphanedDeleted": 0},
        }))
    })
}
