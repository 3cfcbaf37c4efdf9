//! `/api/v1/system/…`, `/internal/api/…` and `/api/v1/status/buffers`: maintenance modes, and what servers know of each
//! other.
//!
//! The words under `message` are what existing tools look for.

use baton_http::Reply;
use baton_queue::{Maintenance, PushMode};
use serde_json::{Value, json};

use super::cluster;
use crate::call::{Answer, Call};
use crate::error::Error;
use crate::json::{self, Text, lenient};

/// Whether a mode is to be on, as the body says.
fn enabled(call: &mut Call) -> Result<bool, Error> {
    let body: Value = json::parse(&call.body()?)?;
    body.get("enabled")
        .and_then(Value::as_bool)
        .ok_or_else(|| Error::invalid("enabled (boolean) is required"))
}

fn is_spooling(modes: Maintenance) -> bool {
    modes.push == PushMode::Spooled
}

/// Shows both modes and what waits in the spool.
pub(super) fn maintenance(call: Call) -> Answer {
    Box::pin(async move {
        let (modes, spooled) = call.broker().maintenance().await?;
        let healthy = call.broker().store().failure().is_none();
        Reply::ok(&json!({
            "maintenanceMode": is_spooling(modes),
            "popMaintenanceMode": modes.pops_stopped,
            "draining": modes.push == PushMode::Draining,
            "bufferedMessages": spooled,
            "bufferHealthy": healthy,
            "bufferStats": {
                "pendingCount": spooled,
                "failedCount": 0,
                "dbHealthy": healthy,
                "failedFiles": {"count": 0, "totalBytes": 0, "totalMB": 0, "failoverCount": 0, "qos0Count": 0},
            },
        }))
    })
}

/// Lets pushes wait in the spool, or go where they are meant to again.
pub(super) fn set_maintenance(mut call: Call) -> Answer {
    Box::pin(async move {
        let on = enabled(&mut call)?;
        call.broker().spool_pushes(on).await?;
        let (modes, spooled) = call.broker().maintenance().await?;
        Reply::ok(&json!({
            "maintenanceMode": is_spooling(modes),
            "bufferedMessages": spooled,
            "bufferHealthy": call.broker().store().failure().is_none(),
            "message": if on {
                "Maintenance mode ENABLED. All PUSHes routing to file buffer."
            } else {
                "Maintenance mode DISABLED. Background processor will drain buffer to DB."
            },
        }))
    })
}

/// Shows whether pops find anything.
pub(super) fn pop_maintenance(call: Call) -> Answer {
    Box::pin(async move {
        let (modes, _) = call.broker().maintenance().await?;
        Reply::ok(&json!({
            "popMaintenanceMode": modes.pops_stopped,
            "message": if modes.pops_stopped {
                "Pop maintenance mode is ON. All POP operations return empty arrays."
            } else {
                "Pop maintenance mode is OFF. Normal operation."
            },
        }))
    })
}

/// Lets every pop find nothing, or have them find messages again.
pub(super) fn set_pop_maintenance(mut call: Call) -> Answer {
    Box::pin(async move {
        let on = enabled(&mut call)?;
        call.broker().stop_pops(on).await?;
        Reply::ok(&json!({
            "popMaintenanceMode": on,
            "message": if on {
                "Pop maintenance mode ENABLED. All POP operations will return empty arrays."
            } else {
                "Pop maintenance mode DISABLED. Normal operation resumed."
            },
        }))
    })
}

/// Shows what waits in the spool.
pub(super) fn buffers(call: Call) -> Answer {
    Box::pin(async move {
        let (broker, store) = (call.broker(), call.broker().store());
        let healthy = store.failure().is_none() && store.outage().is_none();
        // What waits here is known also while the store cannot be asked.
        let spooled = if healthy { broker.maintenance().await?.1 } else { 0 };
        let pending = spooled + broker.waiting_locally();
        Reply::ok(&json!({"pending": pending, "failed": 0, "dbHealthy": healthy, "worker": 0}))
    })
}

/// Shows what this server shares with others.
pub(super) fn shared_state(call: Call) -> Answer {
    Box::pin(async move {
        let (modes, _) = call.broker().maintenance().await?;
        let mut shared = cluster::shared(call.app());
        let waits = call.broker().wait_statistics();
        // Everything that wakes the waiting pops of this server is in one process.
        shared["local_sidecars"] = 1.into();
        shared["group_backoff"] = json!({
            "groups_tracked": waits.groups_tracked,
            "groups_in_flight": waits.groups_in_flight,
            "groups_backed_off": waits.groups_backed_off,
        });
        shared["queue_config_cache"] = json!({"size": 0, "hits": 0, "misses": 0, "hit_rate": 0.0});
        shared["maintenance_mode"] = is_spooling(modes).into();
        shared["pop_maintenance_mode"] = modes.pops_stopped.into();
        Reply::ok(&shared)
    })
}

lenient! {
    struct Notice<'a> {
        "queue" => queue: Text<'a>,
    }
}

/// Lets the waiting pops of a queue look again now.
pub(super) fn notify(mut call: Call) -> Answer {
    Box::pin(async move {
        let body = call.body()?;
        let queue = json::parse::<Notice<'_>>(&body)?.queue.required("queue is required")?;
        call.broker().notify(&queue).await?;
        Reply::ok(&json!({"status": "ok"}))
    })
}
