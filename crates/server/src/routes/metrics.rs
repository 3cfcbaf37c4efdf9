//! `/metrics` and `/metrics/prometheus`: numbers about this server. Where callers need a token, those without one that
//! may read see neither names nor counts of what is in it.

use baton_http::Reply;
use baton_queue::Tally;
use http::header::CACHE_CONTROL;
use http::{HeaderValue, StatusCode};
use serde_json::json;

use crate::call::{Answer, Call};
use crate::metrics;
use crate::process::Usage;

/// The version of the text format that Prometheus reads.
const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A few numbers as JSON.
pub(super) fn json(call: Call) -> Answer {
    Box::pin(async move {
        let (app, usage) = (call.app(), Usage::now());
        let uptime = app.uptime().as_secs_f64();
        let rate = |count: u64| if uptime > 0.0 { count as f64 / uptime } else { 0.0 };
        let Tally { push_requests, pop_requests, ack_requests, transactions, push_messages, .. } =
            app.broker.meters().total();
        let requests = push_requests + pop_requests + ack_requests + transactions;
        let counted = |count: u64| call.may_read().then(|| json!({"total": count, "rate": rate(count)}));
        Reply::ok(&json!({
            "uptime": uptime,
            "requests": counted(requests),
            "messages": counted(push_messages),
            "database": {"poolSize": 0, "idleConnections": 0, "waitingRequests": 0},
            "memory": {
                "rss": usage.resident_bytes,
                "heapTotal": 0,
                "heapUsed": 0,
                "external": 0,
                "arrayBuffers": 0,
            },
            "cpu": {"user": usage.user_micros, "system": usage.system_micros},
        }))
    })
}

/// Everything, for Prometheus.
pub(super) fn prometheus(call: Call) -> Answer {
    Box::pin(async move {
        let page = match call.may_read() {
            true => metrics::render(call.app()).await?,
            false => metrics::render_public(call.app()),
        };
        Ok(Reply::text(StatusCode::OK, TEXT_FORMAT, page)
            .with_header(CACHE_CONTROL, HeaderValue::from_static("no-cache")))
    })
}
