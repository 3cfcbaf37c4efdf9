//! What a person who looks at a server wants to know first: who they are to it, what every queue and group is doing, who
//! holds which partition, and how the server is set.
//!
//! Always: numbers come from the walk that metrics share, so that many who look cost no more than one; a secret is never
//! shown. Start at [`fleet`].

use baton_auth::Access;
use baton_config::ShownSetting;
use baton_http::Reply;
use baton_queue::{GroupOverview, GroupPartition};
use baton_types::limits::PAGE_ROWS_MAX;
use serde_json::{Value, json};

use super::messages::lease;
use super::resources::counters;
use crate::call::{Answer, Call};

/// Leases of an answer that is not asked for a number of them.
const LEASES: u64 = 500;

/// Who calls, and what they may do.
pub(super) fn caller(call: Call) -> Answer {
    Box::pin(async move {
        let levels = [
            (Access::Read, "read"),
            (Access::Push, "push"),
            (Access::Write, "write"),
            (Access::Admin, "admin"),
        ];
        let may = levels.into_iter().filter(|(level, _)| call.may(*level)).map(|(_, name)| name);
        Reply::ok(&json!({
            "authentication": call.app().auth.is_some(),
            "subject": call.caller(),
            "may": may.collect::<Vec<_>>(),
        }))
    })
}

/// Every queue and group.
pub(super) fn fleet(call: Call) -> Answer {
    Box::pin(async move {
        let numbers = call.broker().numbers().await?;
        let queues = numbers.queues.iter().map(|row| {
            json!({
                "name": row.queue.spec.name,
                "namespace": row.queue.spec.namespace,
                "task": row.queue.spec.task,
                "createdAt": row.queue.created_at.to_iso_millis(),
                "partitions": row.partitions,
                "messages": counters(&row.counts),
            })
        });
        Reply::ok(&json!({
            "now": call.broker().store().now().to_iso_millis(),
            "countedAt": numbers.at.to_iso_millis(),
            "queues": queues.collect::<Vec<_>>(),
            "groups": numbers.groups.iter().map(group).collect::<Vec<_>>(),
        }))
    })
}

fn group(group: &GroupOverview) -> Value {
    json!({
        "name": group.name,
        "queue": group.queue,
        "leases": group.leases,
        "partitionsWithLag": group.partitions_with_lag,
        "totalLag": group.total_lag,
        "maxTimeLag": group.time_lag_seconds,
        "everConsumed": group.ever_consumed,
        "subscriptionMode": group.subscription_mode,
        "subscribedAt": group.subscribed_at.to_iso_millis(),
        "conflation": group.conflation,
    })
}

/// The partitions that are leased now.
pub(super) fn leases(call: Call) -> Answer {
    Box::pin(async move {
        let limit = call.query()?.number("limit", 1, PAGE_ROWS_MAX as u64)?.unwrap_or(LEASES);
        let limit = usize::try_from(limit).unwrap_or(1);
        let mut leased = call.broker().leased_partitions(limit + 1).await?;
        let truncated = leased.len() > limit;
        leased.truncate(limit);
        Reply::ok(&json!({
            "now": call.broker().store().now().to_iso_millis(),
            "leases": leased.iter().filter_map(leased_row).collect::<Vec<_>>(),
            "truncated": truncated,
        }))
    })
}

fn leased_row(partition: &GroupPartition) -> Option<Value> {
    let mut row = lease(partition.lease.as_ref()?);
    row["queue"] = json!(partition.queue);
    row["partition"] = json!(partition.partition_name);
    row["partitionId"] = partition.partition.to_string().into();
    row["lag"] = partition.lag.into();
    Some(row)
}

/// Every setting with its value here and its default.
pub(super) fn settings(call: Call) -> Answer {
    Box::pin(async move {
        let row = |setting: &ShownSetting| {
            json!({
                "name": setting.name,
                "value": setting.value,
                "default": setting.default,
                "isDefault": setting.value == setting.default,
                "help": setting.help,
            })
        };
        Reply::ok(&json!({"settings": call.app().options.settings.iter().map(row).collect::<Vec<_>>()}))
    })
}
