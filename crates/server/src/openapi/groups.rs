//! Consumer groups, described.

use serde_json::json;

use super::describe::{Operation, delete, flag, get, post, whole};
use super::shape::shape;

pub(super) fn operations() -> Vec<Operation> {
    let keep = || [flag("deleteMetadata", "Whether to forget where it began, too; true unless given.")];
    let position = || shape(json!({"toEnd?": "flag", "timestamp?": "time?"}));
    vec![
        get("/api/v1/consumer-groups").answers(200, "The groups.", shape(json!([{
            "name": "text", "topics": ["text"], "queueName": "text", "members": "whole",
            "partitionsWithLag": "whole", "totalLag": "whole", "maxTimeLag": "whole",
            "state": "Stable|Lagging|Dead", "subscriptionMode": "text", "subscriptionTimestamp": "time?",
            "subscriptionCreatedAt": "time",
        }]))),
        get("/api/v1/consumer-groups/lagging")
            .query([whole("minLagSeconds", 0, u64::MAX, "Seconds behind at least; 3600 unless given.")])
            .answers(200, "Partitions, with how far behind the group is; at most 10,000.", shape(json!([{
                "consumer_group": "text", "queue_name": "text", "partition_name": "text", "partition_id": "text",
                "worker_id": "text?", "offset_lag": "whole", "time_lag_seconds": "whole", "lag_hours": "number",
                "oldest_unconsumed_at": "time?", "last_consumed_at": "time?",
            }]))),
        get("/api/v1/consumer-groups/:group").answers(
            200,
            "By queue; empty when there is no such group.",
            shape(json!({"*": {"partitions": [{
                "partition": "text", "partitionId": "text", "workerId": "text?", "lastConsumedAt": "time?",
                "totalConsumed": "whole", "offsetLag": "whole", "timeLagSeconds": "whole", "leaseActive": "flag",
                "lease": "@Lease?", "nextOffset": "whole",
            }]}})),
        ),
        delete("/api/v1/consumer-groups/:group").query(keep()).answers(200, "It is gone.", shape(json!({
            "success": true, "consumerGroup": "text", "deletedPartitions": "whole", "metadataDeleted": "flag",
        }))),
        delete("/api/v1/consumer-groups/:group/queues/:queue").query(keep()).answers(
            200,
            "It is gone from the queue.",
            shape(json!({
                "success": true, "consumerGroup": "text", "queueName": "text", "deletedPartitions": "whole",
                "metadataDeleted": "flag",
            })),
        ),
        post("/api/v1/consumer-groups/:group/subscription")
            .body(shape(json!({"subscriptionTimestamp": "time"})))
            .answers(200, "Where it begins in partitions that it has not read.", shape(json!({
                "success": true, "consumerGroup": "text", "newTimestamp": "text", "rowsUpdated": "whole",
            }))),
        post("/api/v1/consumer-groups/:group/queues/:queue/seek").body(position()).answers(
            200,
            "It goes on from there.",
            shape(json!({
                "success": true, "consumerGroup": "text", "queueName": "text", "seekToEnd": "flag",
                "targetTimestamp": "time?", "partitionsUpdated": "whole",
            })),
        ),
        post("/api/v1/consumer-groups/:group/queues/:queue/partitions/:partition/seek")
            .body_or_none(position())
            .answers(200, "It goes on from there; from the end unless the body says otherwise.", shape(json!({
                "success": true, "consumerGroup": "text", "queueName": "text", "partitionName": "text",
                "updated": true, "cursorMovedTo": "time?",
            }))),
    ]
}
