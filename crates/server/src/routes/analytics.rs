//! `/api/v1/analytics/…`: what happened over time, for dashboards.
//!
//! Numbers are kept by the minute for a week, over restarts; what this server has no notion of (a pool of database
//! connections, slots of a thread pool) is zero or empty.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use baton_http::Reply;
use baton_queue::{Minute, Tally};
use serde_json::{Value, json};

use crate::call::{Answer, Call};
use crate::error::Error;
use crate::lag::Lag;
use crate::timeline::{Span, growth};

const HOUR: Duration = Duration::from_secs(3600);

/// What a request asks for: a span, and one queue or all.
struct Asked {
    span: Span,
    queue: Option<String>,
    minutes: Vec<Minute>,
}

impl Asked {
    async fn of(call: &Call) -> Result<Self, Error> {
        let (span, queue) = {
            let query = call.query()?;
            (Span::of(&query, call.broker().store().now(), HOUR)?, query.owned("queue"))
        };
        let minutes = call.broker().minutes(span.from, span.to).await?;
        Ok(Self { span, queue, minutes })
    }

    /// By point and queue.
    fn by_queue(&self) -> BTreeMap<(baton_types::Timestamp, Arc<str>), Tally> {
        self.span.gather(&self.minutes, |minute| {
            let wanted = |name: &str| self.queue.as_deref().is_none_or(|queue| queue == name);
            let queues = minute.queues.iter().filter(|(name, _)| wanted(name));
            queues.map(|(name, tally)| (name.clone(), *tally)).collect()
        })
    }

    /// How late the runtimes of all nodes woke tasks, by point.
    fn lags(&self) -> BTreeMap<baton_types::Timestamp, Lag> {
        let mut lags: BTreeMap<_, (Lag, f64)> = BTreeMap::new();
        for minute in &self.minutes {
            let (sum, count) = lags.entry(self.span.point(minute.at)).or_default();
            let lag = Lag::of(minute);
            sum.average_ms += lag.average_ms;
            sum.longest_ms = sum.longest_ms.max(lag.longest_ms);
            *count += 1.0;
        }
        let averaged =
            |(at, (sum, count)): (_, (Lag, f64))| (at, Lag { average_ms: sum.average_ms / count, ..sum });
        lags.into_iter().map(averaged).collect()
    }

    /// By point.
    fn totals(&self) -> BTreeMap<(baton_types::Timestamp, ()), Tally> {
        self.span.gather(&self.minutes, |minute| match self.queue.as_deref() {
            None => vec![((), minute.total)],
            Some(queue) => minute.queues.get(queue).map(|tally| ((), *tally)).into_iter().collect(),
        })
    }
}

/// What the processes used: processor time in each minute, and memory.
pub(super) fn system_metrics(call: Call) -> Answer {
    Box::pin(async move {
        let asked = Asked::of(&call).await?;
        let nodes: BTreeSet<_> = asked.minutes.iter().map(|minute| minute.node.clone()).collect();
        let wanted = call.query()?.owned("hostname");
        let (mut points, mut replicas) = (0, Vec::new());
        for node in nodes.into_iter().filter(|node| wanted.as_deref().is_none_or(|wanted| wanted == &**node))
        {
            // Each minute with the one before it.
            let mut series: BTreeMap<_, Vec<(Option<&Minute>, &Minute)>> = BTreeMap::new();
            let mut before = None;
            for minute in asked.minutes.iter().filter(|minute| minute.node == node) {
                series.entry(asked.span.point(minute.at)).or_default().push((before, minute));
                before = Some(minute);
            }
            points = points.max(series.len());
            let rows = series.into_iter().map(|(at, minutes)| {
                let resident = minutes.iter().filter_map(|(_, minute)| minute.gauges.get("residentBytes"));
                json!({
                    "timestamp": at.to_iso_millis(),
                    "sampleCount": minutes.len(),
                    "metrics": {
                        "cpu": {"user_us": used(&minutes, "cpuUserMicros"), "system_us": used(&minutes, "cpuSystemMicros")},
                        "memory": {"rss_bytes": spread(resident.copied())},
                        "database": {},
                        "threadpool": {},
                        "registries": {},
                        "shared_state": {},
                    },
                })
            });
            let rows: Vec<_> = rows.collect();
            replicas.push(json!({"hostname": node, "port": 0, "workerId": "0", "timeSeries": rows}));
        }
        Reply::ok(&json!({
            "timeRange": asked.span.shown(),
            "replicaCount": replicas.len(),
            "replicas": replicas,
            "bucketMinutes": asked.span.minutes,
            "pointCount": points,
        }))
    })
}

/// How much of a counter was used up in a minute, each minute being given with the one before it.
fn used(minutes: &[(Option<&Minute>, &Minute)], name: &str) -> Value {
    spread(minutes.iter().filter_map(|(before, minute)| Some(growth((*before)?, minute, name))))
}

/// Average, least, greatest and last.
fn spread(values: impl Iterator<Item = f64>) -> Value {
    let values: Vec<f64> = values.collect();
    let sum: f64 = values.iter().sum();
    json!({
        "avg": if values.is_empty() { 0.0 } else { sum / values.len() as f64 },
        "min": values.iter().copied().reduce(f64::min).unwrap_or(0.0),
        "max": values.iter().copied().reduce(f64::max).unwrap_or(0.0),
        "last": values.last().copied().unwrap_or(0.0),
    })
}

/// What was done, in all.
pub(super) fn worker_metrics(call: Call) -> Answer {
    Box::pin(async move {
        let asked = Asked::of(&call).await?;
        let (span, totals) = (asked.span, asked.totals());
        let numbers = call.broker().numbers().await?;
        let mut sum = Tally::default();
        totals.values().for_each(|tally| sum += *tally);
        let lags = asked.lags();
        let lag = |at| lags.get(at).copied().unwrap_or_default();
        let series: Vec<_> =
            totals.iter().rev().map(|((at, ()), tally)| worker_point(*at, tally, lag(at), span)).collect();
        let mut queues: BTreeMap<Arc<str>, Tally> = BTreeMap::new();
        for ((_, name), tally) in asked.by_queue() {
            *queues.entry(name).or_default() += tally;
        }
        let queues = queues.iter().map(|(name, tally)| {
            json!({
                "queueName": name,
                "popCount": tally.pop_messages,
                "avgLagMs": tally.lag_avg_ms(),
                "maxLagMs": tally.lag_max_ms,
            })
        });
        let nodes: BTreeMap<_, _> = asked.minutes.iter().map(|minute| (&minute.node, minute)).collect();
        let workers = nodes.into_iter().map(|(node, last)| {
            let (lag, last) = (Lag::of(last), last.at);
            json!({
                "hostname": node,
                "workerId": 0,
                "avgEventLoopLagMs": lag.average_ms,
                "maxEventLoopLagMs": lag.longest_ms,
                "freeSlots": 0,
                "dbConnections": 0,
                "jobQueueSize": 0,
                "lastSeen": last.to_iso_millis(),
            })
        });
        Reply::ok(&json!({
            "timeRange": span.shown(),
            "bucketMinutes": span.minutes,
            "pointCount": series.len(),
            "timeSeries": series,
            "workers": workers.collect::<Vec<_>>(),
            "queues": queues.collect::<Vec<_>>(),
            "summary": {
                "totalPushRequests": sum.push_requests,
                "totalPopRequests": sum.pop_requests,
                "totalAckRequests": sum.ack_requests,
                "totalPushMessages": sum.push_messages,
                "totalPopMessages": sum.pop_messages,
                "totalAckMessages": sum.ack_success + sum.ack_failed,
                "totalAckFailed": sum.ack_failed,
                "totalDbErrors": 0,
                "totalDlq": sum.dead_letters,
                "pendingMessages": numbers.queues.iter().map(|row| row.counts.pending).sum::<u64>(),
            },
        }))
    })
}

fn worker_point(at: baton_types::Timestamp, tally: &Tally, lag: Lag, span: Span) -> Value {
    let per_second = |count: u64| count as f64 / span.seconds();
    let acks = tally.ack_success + tally.ack_failed;
    json!({
        "timestamp": at.to_iso_millis(),
        "pushMessages": tally.push_messages,
        "popMessages": tally.pop_messages,
        "ackMessages": acks,
        "pushRequests": tally.push_requests,
        "popRequests": tally.pop_requests,
        "ackRequests": tally.ack_requests,
        "jobsDone": tally.push_requests + tally.pop_requests + tally.ack_requests + tally.transactions,
        "pushPerSecond": per_second(tally.push_messages),
        "popPerSecond": per_second(tally.pop_messages),
        "ackPerSecond": per_second(acks),
        "avgEventLoopLagMs": lag.average_ms,
        "maxEventLoopLagMs": lag.longest_ms,
        "avgFreeSlots": 0,
        "minFreeSlots": 0,
        "dbConnections": 0,
        "avgJobQueueSize": 0,
        "maxJobQueueSize": 0,
        "backoffSize": 0,
        "avgLagMs": tally.lag_avg_ms(),
        "maxLagMs": tally.lag_max_ms,
        "lagCount": tally.lag_count,
        "dbErrors": 0,
        "ackSuccess": tally.ack_success,
        "ackFailed": tally.ack_failed,
        "dlqCount": tally.dead_letters,
    })
}

/// How long delivered messages had waited, by queue.
pub(super) fn queue_lag(call: Call) -> Answer {
    Box::pin(async move {
        let asked = Asked::of(&call).await?;
        let rows: Vec<_> = asked
            .by_queue()
            .iter()
            .map(|((at, queue), tally)| {
                json!({
                    "queueName": queue,
                    "popCount": tally.pop_messages,
                    "avgLagMs": tally.lag_avg_ms(),
                    "maxLagMs": tally.lag_max_ms,
                    "bucketTime": at.to_iso_seconds(),
                })
            })
            .collect();
        Reply::ok(&rows)
    })
}

/// What was done, by queue.
pub(super) fn queue_ops(call: Call) -> Answer {
    Box::pin(async move {
        let asked = Asked::of(&call).await?;
        let (span, sums) = (asked.span, asked.by_queue());
        let numbers = call.broker().numbers().await?;
        let partitions: BTreeMap<_, _> =
            numbers.queues.iter().map(|row| (&*row.queue.spec.name, row.partitions)).collect();
        let names: BTreeSet<_> = sums.keys().map(|(_, name)| name.clone()).collect();
        let per_second = |count: u64| count as f64 / span.seconds();
        let series: Vec<_> = sums
            .iter()
            .map(|((at, queue), tally)| {
                json!({
                    "bucket": at.to_iso_seconds(),
                    "queueName": queue,
                    "pushRequests": tally.push_requests,
                    "pushMessages": tally.push_messages,
                    "popMessages": tally.pop_messages,
                    "popEmpty": tally.pop_empty,
                    "ackRequests": tally.ack_requests,
                    "ackSuccess": tally.ack_success,
                    "ackFailed": tally.ack_failed,
                    "transactions": tally.transactions,
                    "partitionsCreated": tally.partitions_created,
                    "partitionsDeleted": tally.partitions_deleted,
                    "partitionCount": partitions.get(&**queue).copied().unwrap_or(0),
                    "avgLagMs": tally.lag_avg_ms(),
                    "maxLagMs": tally.lag_max_ms,
                    "pushPerSecond": per_second(tally.push_messages),
                    "popPerSecond": per_second(tally.pop_messages),
                    "ackPerSecond": per_second(tally.ack_success + tally.ack_failed),
                    "emptyPerSecond": per_second(tally.pop_empty),
                    "parkedCount": tally.parked,
                })
            })
            .collect();
        Reply::ok(&json!({
            "timeRange": span.shown(),
            "bucketMinutes": span.minutes,
            "queues": names,
            "series": series,
        }))
    })
}

/// Pops that waited, by point, queue and node; those of this server up to now.
pub(super) fn parked(call: Call) -> Answer {
    Box::pin(async move {
        let asked = Asked::of(&call).await?;
        let node: Arc<str> = call.app().options.node_id.as_str().into();
        let mut series: BTreeMap<(baton_types::Timestamp, Arc<str>, Arc<str>), u64> = BTreeMap::new();
        let wanted = |name: &str| asked.queue.as_deref().is_none_or(|queue| queue == name);
        for minute in &asked.minutes {
            for (queue, tally) in
                minute.queues.iter().filter(|(name, tally)| tally.parked > 0 && wanted(name))
            {
                let at = (asked.span.point(minute.at), queue.clone(), minute.node.clone());
                let most = series.entry(at).or_default();
                *most = tally.parked.max(*most);
            }
        }
        if let Some(queue) = &asked.queue {
            series.entry((asked.span.point(asked.span.to), queue.as_str().into(), node.clone())).or_insert(0);
        }
        let replicas: BTreeSet<_> = series.keys().map(|(_, _, node)| node).chain([&node]).collect();
        let row = |((at, queue, node), parked): (&(baton_types::Timestamp, Arc<str>, Arc<str>), &u64)| {
            json!({
                "bucket": at.to_iso_seconds(),
                "queueName": queue,
                "hostname": node,
                "workerId": 0,
                "parkedCount": parked,
            })
        };
        Reply::ok(&json!({
            "timeRange": asked.span.shown(),
            "bucketMinutes": asked.span.minutes,
            "replicas": replicas,
            "series": series.iter().map(row).collect::<Vec<_>>(),
        }))
    })
}

/// Messages that were given up.
pub(super) fn retention(call: Call) -> Answer {
    Box::pin(async move {
        let asked = Asked::of(&call).await?;
        let row = |messages: u64, events: usize| {
            json!({
                "retentionMsgs": messages,
                "completedRetentionMsgs": 0,
                "evictionMsgs": 0,
                "totalMsgs": messages,
                "eventCount": events,
            })
        };
        let totals = asked.totals();
        let expired: Vec<_> = totals.iter().filter(|(_, tally)| tally.expired > 0).collect();
        let series: Vec<_> = expired
            .iter()
            .map(|((at, ()), tally)| {
                let mut row = row(tally.expired, 1);
                row["bucket"] = json!(at.to_iso_seconds());
                row
            })
            .collect();
        Reply::ok(&json!({
            "timeRange": asked.span.shown(),
            "bucketMinutes": asked.span.minutes,
            "series": series,
            "totals": row(expired.iter().map(|(_, tally)| tally.expired).sum(), expired.len()),
        }))
    })
}

/// The inside of a database, which this store has not.
pub(super) fn postgres(call: Call) -> Answer {
    Box::pin(async move {
        Reply::ok(&json!({
            "timestamp": call.broker().store().now().to_iso_millis(),
            "database": {},
            "databaseCache": [],
            "tableCache": [],
            "indexCache": [],
            "cacheSummary": {},
            "deadTuples": [],
            "hotUpdates": [],
            "activeQueries": [],
            "autovacuumStatus": [],
            "bufferConfig": [],
            "bufferUsage": [],
            "tableSizes": [],
        }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_that_of_each_minute() {
        let minute = |micros: f64| Minute { gauges: [("cpu".into(), micros)].into(), ..Minute::default() };
        // A restart comes before the last one.
        let [a, b, c, d] = [1000.0, 1600.0, 2000.0, 70.0].map(minute);
        let minutes = [(None, &a), (Some(&a), &b), (Some(&b), &c), (Some(&c), &d)];
        let expected = json!({"avg": 1070.0 / 3.0, "min": 70.0, "max": 600.0, "last": 70.0});
        assert_eq!(used(&minutes, "cpu"), expected);
        assert_eq!(used(&minutes[..1], "cpu")["max"], 0.0);
    }
}
