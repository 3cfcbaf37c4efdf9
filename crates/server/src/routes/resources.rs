//! `/api/v1/resources/…`: what there is, counted; deleting and emptying queues.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use baton_http::Reply;
use baton_queue::{Counts, PartitionSummary, QueueSummary, Tally};
use baton_types::limits::PAGE_ROWS_MAX;
use baton_types::{PartitionId, Timestamp};
use serde_json::{Value, json};

use crate::call::{Answer, Call};
use crate::error::Error;

/// What counts as throughput now.
const LATELY: Duration = Duration::from_secs(60);

pub(super) fn queue_not_found() -> Error {
    Error::not_found("Queue not found")
}

pub(super) fn counters(counts: &Counts) -> Value {
    json!({
        "total": counts.total,
        "pending": counts.pending,
        "processing": counts.processing,
        "completed": counts.completed,
        "failed": counts.failed,
        "deadLetter": counts.dead_letter,
    })
}

/// Lists queues.
pub(super) fn queues(call: Call) -> Answer {
    Box::pin(async move {
        let queues = call.broker().queues().await?;
        Reply::ok(&json!({"queues": queues.iter().map(queue_row).collect::<Vec<_>>()}))
    })
}

pub(super) fn queue_row(summary: &QueueSummary) -> Value {
    let queue = &summary.queue;
    json!({
        "id": queue.id.to_string(),
        "name": queue.spec.name,
        "namespace": queue.spec.namespace,
        "task": queue.spec.task,
        "createdAt": queue.created_at.to_iso_millis(),
        "partitions": summary.partitions,
        "messages": counters(&summary.counts),
    })
}

/// Shows one queue.
pub(super) fn queue(call: Call) -> Answer {
    Box::pin(async move {
        let (summary, partitions) =
            call.broker().queue(call.parameter(0)).await?.ok_or_else(queue_not_found)?;
        let queue = &summary.queue;
        Reply::ok(&json!({
            "id": queue.id.to_string(),
            "name": queue.spec.name,
            "namespace": queue.spec.namespace,
            "task": queue.spec.task,
            "createdAt": queue.created_at.to_iso_millis(),
            "options": queue.spec.options,
            "partitions": partitions.iter().map(partition_row).collect::<Vec<_>>(),
            "totals": counters(&summary.counts),
        }))
    })
}

fn partition_row(partition: &PartitionSummary) -> Value {
    json!({
        "id": partition.id.to_string(),
        "name": partition.name,
        "createdAt": partition.created_at.to_iso_millis(),
        "stats": counters(&partition.counts),
        "oldestMessage": partition.oldest_message_at.map(Timestamp::to_iso_millis),
        "newestMessage": partition.newest_message_at.map(Timestamp::to_iso_millis),
    })
}

/// Partitions of a page that does not say how many.
const PARTITIONS: u64 = 100;

/// Shows one queue with a page of its partitions, which may be a million.
pub(super) fn page(call: Call) -> Answer {
    Box::pin(async move {
        let (partition, after, limit) = {
            let query = call.query()?;
            let after = query.number("after", 0, u64::MAX)?.map(PartitionId);
            let limit = query.number("limit", 1, PAGE_ROWS_MAX as u64)?.unwrap_or(PARTITIONS);
            (query.owned("partition"), after, usize::try_from(limit).unwrap_or(1))
        };
        let is_one = partition.is_some();
        let page = call.broker().queue_page(call.parameter(0), partition, after, limit).await?;
        let (queue, partitions) = page.ok_or_else(queue_not_found)?;
        let next = partitions.last().filter(|_| !is_one && partitions.len() == limit);
        let row = |partition: &PartitionSummary| {
            json!({
                "id": partition.id.to_string(),
                "name": partition.name,
                "createdAt": partition.created_at.to_iso_millis(),
                "total": partition.counts.total,
                "pending": partition.counts.pending,
                "processing": partition.counts.processing,
                "oldestMessage": partition.oldest_message_at.map(Timestamp::to_iso_millis),
                "newestMessage": partition.newest_message_at.map(Timestamp::to_iso_millis),
            })
        };
        Reply::ok(&json!({
            "name": queue.spec.name,
            "namespace": queue.spec.namespace,
            "task": queue.spec.task,
            "createdAt": queue.created_at.to_iso_millis(),
            "options": queue.spec.options,
            "partitions": partitions.iter().map(row).collect::<Vec<_>>(),
            "nextAfter": next.map(|partition| partition.id.to_string()),
        }))
    })
}

/// Shows what a group has before it.
pub(super) fn depth(call: Call) -> Answer {
    Box::pin(async move {
        let (queue, group) = (call.parameter(0), call.query()?.owned("group"));
        let partitions = call.broker().depth(queue, group.as_deref()).await?.ok_or_else(queue_not_found)?;
        let conflation = match &group {
            Some(group) => call.broker().conflation(queue, group).await?.unwrap_or(false),
            None => false,
        };
        let rows = partitions.iter().map(|partition| depth_row(&partition.name, &partition.counts));
        let rows = rows.collect::<Vec<_>>();
        let sum: Counts = partitions.iter().map(|partition| partition.counts).sum();
        let with = |wanted: fn(&Counts) -> u64| {
            partitions.iter().filter(|partition| wanted(&partition.counts) > 0).count()
        };
        let pending = sum.pending + sum.processing;
        let with_pending = with(|counts| counts.pending + counts.processing) as u64;
        let with_ready = with(|counts| counts.pending) as u64;
        Reply::ok(&json!({
            "queue": queue,
            "group": group,
            "pending": pending,
            "processing": sum.processing,
            "ready": sum.pending,
            "partitionsPending": with_pending,
            "partitionsReady": with_ready,
            "conflation": conflation,
            // One message of each partition is all that such a group is given.
            "effectivePending": if conflation { with_pending } else { pending },
            "effectiveReady": if conflation { with_ready } else { sum.pending },
            "partitions": rows,
        }))
    })
}

fn depth_row(name: &str, counts: &Counts) -> Value {
    json!({
        "partition": name,
        "pending": counts.pending + counts.processing,
        "processing": counts.processing,
        "ready": counts.pending,
    })
}

/// Lists the partitions of a queue.
pub(super) fn partitions(call: Call) -> Answer {
    Box::pin(async move {
        let name = call.query()?.owned("queue").ok_or_else(|| Error::invalid("queue is required"))?;
        let (_, partitions) = call.broker().queue(&name).await?.ok_or_else(queue_not_found)?;
        let rows: Vec<_> = partitions.iter().map(partition_row).collect();
        Reply::ok(&json!({"queue": name, "partitions": rows}))
    })
}

/// Deletes a queue. One that is not there is deleted too: clients delete before they create.
pub(super) fn delete(call: Call) -> Answer {
    Box::pin(async move {
        let existed = call.broker().delete_queue(call.parameter(0)).await?;
        Reply::ok(&json!({"deleted": true, "queue": call.parameter(0), "existed": existed}))
    })
}

/// Deletes all messages of a queue or partition.
pub(super) fn clear(call: Call) -> Answer {
    Box::pin(async move {
        let query = call.query()?;
        let partition = query.owned("partition");
        let cursor = query.number("cursor", 0, u64::MAX)?.map(PartitionId);
        let cleared = call.broker().clear_queue(call.parameter(0), partition.as_deref(), cursor).await?;
        let cleared = cleared.ok_or_else(queue_not_found)?;
        Reply::ok(&json!({
            "success": true,
            "cleared": cleared.next.is_none(),
            "queue": call.parameter(0),
            "partition": partition,
            "partitionsCleared": cleared.partitions,
            "nextCursor": cleared.next.map(|partition| partition.to_string()),
        }))
    })
}

/// Lists namespaces.
pub(super) fn namespaces(call: Call) -> Answer {
    Box::pin(async move {
        let queues = call.broker().queues().await?;
        Reply::ok(&json!({"namespaces": by_label(&queues, "namespace", |queue| &queue.queue.spec.namespace)}))
    })
}

/// Lists tasks.
pub(super) fn tasks(call: Call) -> Answer {
    Box::pin(async move {
        let queues = call.broker().queues().await?;
        Reply::ok(&json!({"tasks": by_label(&queues, "task", |queue| &queue.queue.spec.task)}))
    })
}

fn by_label(queues: &[QueueSummary], key: &str, label: fn(&QueueSummary) -> &Arc<str>) -> Vec<Value> {
    let mut sums: BTreeMap<&str, (u64, u64, Counts)> = BTreeMap::new();
    for queue in queues {
        let sum = sums.entry(label(queue)).or_default();
        sum.0 += 1;
        sum.1 += queue.partitions;
        sum.2 += queue.counts;
    }
    let row = |(label, (queues, partitions, counts)): (&str, (u64, u64, Counts))| {
        json!({
            key: label,
            "queues": queues,
            "partitions": partitions,
            "messages": {"total": counts.total, "pending": counts.pending},
        })
    };
    sums.into_iter().map(row).collect()
}

/// Totals over everything.
pub(super) fn overview(call: Call) -> Answer {
    Box::pin(async move {
        let numbers = call.broker().numbers().await?;
        let (queues, groups) = (&numbers.queues, &numbers.groups);
        let now = call.broker().store().now();
        let mut lately = Tally::default();
        let minutes = call.broker().minutes(now.before(LATELY), now).await?;
        minutes.iter().for_each(|minute| lately += minute.total);
        let per_second = |count: u64| count as f64 / LATELY.as_secs_f64();
        let counts: Counts = queues.iter().map(|queue| queue.counts).sum();
        let labels =
            |label: fn(&QueueSummary) -> &Arc<str>| queues.iter().map(label).collect::<BTreeSet<_>>().len();
        Reply::ok(&json!({
            "queues": queues.len(),
            "partitions": queues.iter().map(|queue| queue.partitions).sum::<u64>(),
            "namespaces": labels(|queue| &queue.queue.spec.namespace),
            "tasks": labels(|queue| &queue.queue.spec.task),
            "messages": counters(&counts),
            "lag": {
                "time": spread(groups.iter().map(|group| group.time_lag_seconds).collect()),
                "offset": spread(groups.iter().map(|group| group.total_lag).collect()),
            },
            "throughput": {
                "ingestedPerSecond": per_second(lately.push_messages),
                "processedPerSecond": per_second(lately.ack_success),
            },
            "timestamp": now.to_iso_millis(),
            "statsAge": now.since(numbers.at).as_secs(),
        }))
    })
}

/// Average, median, least and greatest.
fn spread(mut values: Vec<u64>) -> Value {
    values.sort_unstable();
    let sum: u128 = values.iter().map(|value| u128::from(*value)).sum();
    let average = u64::try_from(sum / (values.len().max(1) as u128)).unwrap_or(u64::MAX);
    json!({
        "avg": average,
        "median": values.get(values.len() / 2).copied().unwrap_or(0),
        "min": values.first().copied().unwrap_or(0),
        "max": values.last().copied().unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_of_nothing_is_zero() {
        assert_eq!(spread(vec![]), json!({"avg": 0, "median": 0, "min": 0, "max": 0}));
        assert_eq!(spread(vec![9, 1, 2]), json!({"avg": 4, "median": 2, "min": 1, "max": 9}));
    }
}
