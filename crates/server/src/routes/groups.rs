//! `/api/v1/consumer-groups…`: how far groups are, and moving or forgetting them.

use std::time::Duration;

use baton_http::{Reply, moment};
use baton_queue::{GroupOverview, GroupPartition, Position};
use baton_types::Timestamp;
use serde_json::{Map, Value, json};

use super::messages::lease;
use crate::call::{Answer, Call};
use crate::error::Error;
use crate::json;
use crate::names;

/// Seconds behind from which a group counts as lagging.
const LAGGING_SECONDS: u64 = 300;
/// A group that has got no message yet is not taken for dead for this long.
const NEW_FOR: Duration = Duration::from_secs(300);
const DEFAULT_MIN_LAG_SECONDS: u64 = 3600;

/// Rows of a list of partitions where groups are behind: there may be as many as groups times partitions.
const LAGGING_MAX: usize = 10_000;

/// Lists groups.
pub(super) fn list(call: Call) -> Answer {
    Box::pin(async move {
        let groups = call.broker().groups().await?;
        Reply::ok(&groups.iter().map(overview).collect::<Vec<_>>())
    })
}

fn overview(group: &GroupOverview) -> Value {
    let state = if group.time_lag_seconds > LAGGING_SECONDS {
        "Lagging"
    } else if group.ever_consumed || group.members > 0 || group.age < NEW_FOR {
        "Stable"
    } else {
        "Dead"
    };
    json!({
        "name": group.name,
        "topics": [group.queue],
        "queueName": group.queue,
        "members": group.members,
        "partitionsWithLag": group.partitions_with_lag,
        "totalLag": group.total_lag,
        "maxTimeLag": group.time_lag_seconds,
        "state": state,
        "subscriptionMode": group.subscription_mode,
        "subscriptionTimestamp": group.subscription_timestamp.map(Timestamp::to_iso_millis),
        "subscriptionCreatedAt": group.subscribed_at.to_iso_millis(),
        "conflation": group.conflation,
    })
}

/// Lists the partitions where a group is behind.
pub(super) fn lagging(call: Call) -> Answer {
    Box::pin(async move {
        let min = call.query()?.number("minLagSeconds", 0, u64::MAX)?.unwrap_or(DEFAULT_MIN_LAG_SECONDS);
        let behind = call.broker().lagging_partitions(min, LAGGING_MAX).await?;
        Reply::ok(&behind.iter().map(lagging_row).collect::<Vec<_>>())
    })
}

fn lagging_row(partition: &GroupPartition) -> Value {
    json!({
        "consumer_group": partition.group,
        "queue_name": partition.queue,
        "partition_name": partition.partition_name,
        "partition_id": partition.partition.to_string(),
        "worker_id": partition.lease.as_ref().map(|lease| lease.id.to_string()),
        "offset_lag": partition.lag,
        "time_lag_seconds": partition.time_lag_seconds,
        "lag_hours": hours(partition.time_lag_seconds),
        "oldest_unconsumed_at": partition.oldest_unfinished_at.map(Timestamp::to_iso_millis),
        "last_consumed_at": partition.last_pop_at.map(Timestamp::to_iso_millis),
    })
}

/// Hours with two digits after the point.
#[expect(clippy::cast_precision_loss, reason = "a lag of a billion years may be shown a little wrong")]
fn hours(seconds: u64) -> f64 {
    (seconds as f64 / 36.0).round() / 100.0
}

/// Shows one group.
pub(super) fn one(call: Call) -> Answer {
    Box::pin(async move {
        let partitions = call.broker().group_partitions(call.parameter(0)).await?;
        let mut queues = Map::new();
        for partition in &partitions {
            let queue = queues.entry(&*partition.queue).or_insert_with(|| json!({"partitions": []}));
            if let Some(Value::Array(rows)) = queue.get_mut("partitions") {
                rows.push(partition_row(partition));
            }
        }
        Reply::ok(&queues)
    })
}

fn partition_row(partition: &GroupPartition) -> Value {
    json!({
        "partition": partition.partition_name,
        "partitionId": partition.partition.to_string(),
        "workerId": partition.lease.as_ref().map(|lease| lease.id.to_string()),
        "lastConsumedAt": partition.last_pop_at.map(Timestamp::to_iso_millis),
        "totalConsumed": partition.consumed,
        "offsetLag": partition.lag,
        "timeLagSeconds": partition.time_lag_seconds,
        "leaseActive": partition.lease.is_some(),
        "lease": partition.lease.as_ref().map(lease),
        "nextOffset": partition.next.0,
    })
}

/// Forgets a group in all queues.
pub(super) fn delete(call: Call) -> Answer {
    Box::pin(async move {
        let forget = forgets_subscription(&call)?;
        let deleted = call.broker().delete_group(call.parameter(0), None, !forget).await?;
        Reply::ok(&json!({
            "success": true,
            "consumerGroup": call.parameter(0),
            "deletedPartitions": deleted,
            "metadataDeleted": forget,
        }))
    })
}

/// Forgets a group in one queue.
pub(super) fn delete_for_queue(call: Call) -> Answer {
    Box::pin(async move {
        let forget = forgets_subscription(&call)?;
        let (group, queue) = (call.parameter(0), call.parameter(1));
        let deleted = call.broker().delete_group(group, Some(queue), !forget).await?;
        Reply::ok(&json!({
            "success": true,
            "consumerGroup": group,
            "queueName": queue,
            "deletedPartitions": deleted,
            "metadataDeleted": forget,
        }))
    })
}

/// Whether the group is to start as a new one; it is, unless the caller says otherwise.
fn forgets_subscription(call: &Call) -> Result<bool, Error> {
    let query = call.query()?;
    Ok(query.text("deleteMetadata").is_none() || query.flag("deleteMetadata")?)
}

/// Changes where a group begins in partitions it has not read.
pub(super) fn subscription(mut call: Call) -> Answer {
    Box::pin(async move {
        let body: Value = json::parse_or_default(&call.body()?)?;
        let Some(text) = body.get("subscriptionTimestamp").and_then(Value::as_str) else {
            return Err(Error::invalid("Missing subscriptionTimestamp in request body"));
        };
        let at = moment("subscriptionTimestamp", text)?;
        let updated = call.broker().resubscribe(call.parameter(0), at).await?;
        Reply::ok(&json!({
            "success": true,
            "consumerGroup": call.parameter(0),
            "newTimestamp": text,
            "rowsUpdated": updated,
        }))
    })
}

/// Moves a group in a queue.
pub(super) fn seek(mut call: Call) -> Answer {
    Box::pin(async move {
        let to = position(&call.body()?)?
            .ok_or_else(|| Error::invalid("Must specify either 'toEnd': true or 'timestamp'"))?;
        let (group, queue) = (call.parameter(0), call.parameter(1));
        names::check("consumerGroup", group)?;
        let moved = call.broker().seek(group, queue, to).await?;
        let moved =
            moved.ok_or_else(|| Error::not_found("Queue not found or has no partitions").of_outcome())?;
        let target = match to {
            Position::End => None,
            Position::After(at) => Some(at.to_iso_millis()),
        };
        Reply::ok(&json!({
            "success": true,
            "consumerGroup": group,
            "queueName": queue,
            "seekToEnd": to == Position::End,
            "targetTimestamp": target,
            "partitionsUpdated": moved,
        }))
    })
}

/// Moves a group in a partition; to the end unless the caller says otherwise.
pub(super) fn seek_partition(mut call: Call) -> Answer {
    Box::pin(async move {
        let to = position(&call.body()?)?.unwrap_or(Position::End);
        let (group, queue, partition) = (call.parameter(0), call.parameter(1), call.parameter(2));
        names::check("consumerGroup", group)?;
        let moved = call.broker().seek_partition(group, queue, partition, to).await?;
        let moved = moved.ok_or_else(|| Error::not_found("Partition not found").of_outcome())?;
        Reply::ok(&json!({
            "success": true,
            "consumerGroup": group,
            "queueName": queue,
            "partitionName": partition,
            "updated": true,
            "cursorMovedTo": moved.map(Timestamp::to_iso_millis),
        }))
    })
}

/// Where a seek goes; `None` when the body does not say.
fn position(body: &[u8]) -> Result<Option<Position>, Error> {
    let body: Value = json::parse_or_default(body)?;
    if body.get("toEnd").and_then(Value::as_bool) == Some(true) {
        return Ok(Some(Position::End));
    }
    match body.get("timestamp") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(Position::After(moment("timestamp", text)?))),
        Some(_) => Err(Error::invalid("timestamp must be a string")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seek_says_where_to() {
        let at = "2026-11-15T18:34:07Z";
        assert_eq!(position(b"").unwrap(), None);
        assert_eq!(position(b"[]").unwrap(), None);
        assert_eq!(position(br#"{"toEnd":false,"timestamp":null}"#).unwrap(), None);
        assert_eq!(position(br#"{"toEnd":true}"#).unwrap(), Some(Position::End));
        let body = format!(r#"{{"timestamp":"{at}"}}"#);
        assert_eq!(position(body.as_bytes()).unwrap(), Some(Position::After(at.parse().unwrap())));
        assert!(position(br#"{"timestamp":"soon"}"#).is_err());
        assert!(position(br#"{"timestamp":5}"#).is_err());
    }

    #[test]
    fn hours_have_two_digits() {
        assert!((hours(5400) - 1.5).abs() < f64::EPSILON);
        assert!((hours(100) - 0.03).abs() < f64::EPSILON);
    }
}
