//! The routes, as one table: method, path, who may call it, what it does, and the handler.
//!
//! The table is searched from its head, so the routes that matter for speed come first and are found by one
//! comparison. The reference page is printed from it. Start at [`ROUTES`].

mod ack;
mod analytics;
mod cluster;
mod configure;
mod dead_letters;
mod elections;
mod fetch;
mod fleet;
mod groups;
mod health;
mod idempotency;
mod jobs;
mod kv;
mod lease;
mod letters_in_bulk;
mod locks;
mod messages;
mod metrics;
mod pop;
mod push;
mod reference;
mod resources;
mod schedules;
mod shards;
mod status;
mod streams;
mod system;
mod timeout_class;
mod timers;
mod traces;
mod transaction;
pub mod unsupported;

use std::time::Duration;

use baton_auth::Access;
use baton_http::path::{self, Segments};
use baton_jobs::limits::WAIT_MAX;
use baton_types::limits::{BODY_BYTES_MAX, FETCH_WAIT_MAX, POP_WAIT_MAX};
use http::Method;

use crate::call::Handler;

pub use self::timeout_class::TimeoutClass;

/// One route.
#[derive(Debug)]
pub struct Route {
    /// The method.
    pub method: Method,
    /// The path; a segment that begins with a colon is open, and a star stands for the rest.
    pub path: &'static str,
    /// Who may call it, when callers need a token.
    pub access: Access,
    /// What it does, in a line.
    pub help: &'static str,
    /// How long it may take.
    pub timeout_class: TimeoutClass,
    /// Bytes that its body may hold. Where it takes none, a small one is ignored.
    pub body_max: usize,
    /// What does it.
    pub handler: Handler,
}

/// Bytes of a body that says how one thing is to be. It may be read into a tree, which takes many times as much.
const SMALL: usize = 256 << 10;
/// Bytes of a body that holds one payload.
const PAYLOAD: usize = 2 << 20;

impl Route {
    /// The same route with a body of up to `max` bytes. Every list in it is bounded while it is read.
    const fn taking(mut self, max: usize) -> Self {
        self.body_max = max;
        self
    }

    /// The same route with another timeout.
    const fn at(mut self, timeout_class: TimeoutClass) -> Self {
        self.timeout_class = timeout_class;
        self
    }
}

const fn route(
    method: Method,
    path: &'static str,
    access: Access,
    help: &'static str,
    handler: Handler,
) -> Route {
    let body_max = if matches!(method, Method::GET) { 0 } else { SMALL };
    Route { method, path, access, help, timeout_class: TimeoutClass::Prompt, body_max, handler }
}

const GET: Method = Method::GET;
const POST: Method = Method::POST;
const PUT: Method = Method::PUT;
const DELETE: Method = Method::DELETE;

/// Every route. A path without open segments stands before one that would also match it.
#[rustfmt::skip]
pub const ROUTES: &[Route] = &[
    route(POST, "/api/v1/push", Access::Push, "Push messages.", push::push).taking(BODY_BYTES_MAX),
    route(POST, "/api/v1/ack/batch", Access::Write, "Ack several messages.", ack::batch).taking(BODY_BYTES_MAX),
    route(POST, "/api/v1/ack", Access::Write, "Ack one message.", ack::one).taking(BODY_BYTES_MAX),
    route(GET, "/api/v1/pop/queue/:queue", Access::Write, "Pop from any partition of a queue.", pop::queue).at(TimeoutClass::Asked(POP_WAIT_MAX)),
    route(GET, "/api/v1/pop/queue/:queue/partition/:partition", Access::Write, "Pop from one partition.", pop::partition).at(TimeoutClass::Asked(POP_WAIT_MAX)),
    route(GET, "/api/v1/pop", Access::Write, "Pop from any queue of a `namespace` or `task`.", pop::labels).at(TimeoutClass::Asked(POP_WAIT_MAX)),
    route(POST, "/api/v1/transaction", Access::Write, "Acks, pushes, records and timers, all or none.", transaction::transaction).taking(BODY_BYTES_MAX),
    route(POST, "/api/v1/lease/:lease/extend", Access::Write, "Extend a lease.", lease::extend),
    route(POST, "/api/v1/configure", Access::Write, "Create or change a queue.", configure::configure),
    route(POST, "/api/v1/kv", Access::Write, "Operations on records, in one commit.", kv::batch).taking(BODY_BYTES_MAX),
    route(GET, "/api/v1/kv", Access::Read, "List the namespaces that hold records.", kv::namespaces),
    route(GET, "/api/v1/kv/:namespace", Access::Read, "List the records of a namespace, by key.", kv::list),
    route(GET, "/api/v1/kv/:namespace/*key", Access::Read, "One record.", kv::get),
    route(PUT, "/api/v1/kv/:namespace/*key", Access::Write, "Write a record.", kv::put).taking(BODY_BYTES_MAX),
    route(DELETE, "/api/v1/kv/:namespace/*key", Access::Write, "Delete a record.", kv::delete).taking(SMALL),
    route(POST, "/api/v1/locks", Access::Write, "Acquire, renew, release and list locks.", locks::batch).taking(BODY_BYTES_MAX),
    route(GET, "/api/v1/locks", Access::Read, "List the held permits of locks.", locks::list),
    route(POST, "/api/v1/timers", Access::Push, "Set and cancel timers, in one commit.", timers::batch).taking(BODY_BYTES_MAX),
    route(GET, "/api/v1/timers/:queue", Access::Read, "List the timers of a queue, by key.", timers::list),
    route(GET, "/api/v1/timers/:queue/*key", Access::Read, "One timer with its payload.", timers::peek),
    route(DELETE, "/api/v1/timers/:queue/*key", Access::Write, "Cancel a timer.", timers::cancel),
    route(POST, "/api/v1/fetch", Access::Read, "Read partitions by offset.", fetch::fetch).taking(BODY_BYTES_MAX).at(TimeoutClass::Waits(FETCH_WAIT_MAX)),
    route(POST, "/api/v1/fetch/offsets", Access::Read, "Find offsets by time.", fetch::offsets).taking(BODY_BYTES_MAX),
    route(POST, "/api/v1/partitions/changed", Access::Read, "List partitions written since a time.", fetch::changed).taking(BODY_BYTES_MAX),
    route(GET, "/api/v1/messages", Access::Read, "List messages, newest first.", messages::list),
    route(GET, "/api/v1/messages/:partition/:transaction", Access::Read, "One message with its payload.", messages::detail),
    route(DELETE, "/api/v1/messages/:partition/:transaction", Access::Write, "Delete a message for all groups.", messages::delete),
    route(POST, "/api/v1/messages/:partition/:transaction/retry", Access::Write, "Replay a dead letter.", messages::retry),
    route(GET, "/api/v1/dlq", Access::Read, "List dead letters, newest first.", dead_letters::list),
    route(GET, "/api/v1/dlq/errors", Access::Read, "Group dead letters by their error.", letters_in_bulk::errors).at(TimeoutClass::Long),
    route(POST, "/api/v1/dlq:replay", Access::Write, "Replay the dead letters that match a filter.", letters_in_bulk::replay).at(TimeoutClass::Long),
    route(POST, "/api/v1/dlq:purge", Access::Admin, "Remove the dead letters that match a filter.", letters_in_bulk::purge).at(TimeoutClass::Long),
    route(GET, "/api/v1/consumer-groups", Access::Read, "List consumer groups, one entry per queue.", groups::list),
    route(GET, "/api/v1/consumer-groups/lagging", Access::Read, "List partitions in which a group lags.", groups::lagging),
    route(GET, "/api/v1/consumer-groups/:group", Access::Read, "One group with its partitions.", groups::one),
    route(DELETE, "/api/v1/consumer-groups/:group", Access::Admin, "Delete a group in all queues.", groups::delete),
    route(DELETE, "/api/v1/consumer-groups/:group/queues/:queue", Access::Admin, "Delete a group in one queue.", groups::delete_for_queue),
    route(POST, "/api/v1/consumer-groups/:group/subscription", Access::Write, "Change the subscription start of a group.", groups::subscription),
    route(POST, "/api/v1/consumer-groups/:group/queues/:queue/seek", Access::Write, "Seek a group in a queue.", groups::seek),
    route(POST, "/api/v1/consumer-groups/:group/queues/:queue/partitions/:partition/seek", Access::Write, "Seek a group in a partition.", groups::seek_partition),
    route(GET, "/api/v1/resources/queues", Access::Read, "List queues, newest first.", resources::queues),
    route(GET, "/api/v1/resources/queues/:queue", Access::Read, "One queue with options and partitions.", resources::queue),
    route(GET, "/api/v1/resources/queues/:queue/depth", Access::Read, "The backlog of a queue, or of a `group`.", resources::depth),
    route(DELETE, "/api/v1/resources/queues/:queue", Access::Admin, "Delete a queue with all its messages.", resources::delete),
    route(GET, "/api/v1/resources/namespaces", Access::Read, "List namespaces.", resources::namespaces),
    route(GET, "/api/v1/resources/tasks", Access::Read, "List tasks.", resources::tasks),
    route(GET, "/api/v1/resources/overview", Access::Read, "Totals over all queues.", resources::overview),
    route(GET, "/api/v1/resources/partitions", Access::Read, "The partitions of `queue`.", resources::partitions),
    route(GET, "/api/v1/queues/:queue", Access::Read, "One queue with its options and a page of its partitions.", resources::page),
    route(DELETE, "/api/v1/queues/:queue/clear", Access::Admin, "Delete all messages of a queue, or of one `partition`.", resources::clear).at(TimeoutClass::Long),
    route(GET, "/api/v1/elections", Access::Read, "List election groups and their coordinators.", elections::list),
    route(GET, "/api/v1/elections/:group", Access::Read, "One election group; waits for a change with `wait` (milliseconds) and `after` (a version), or streams events with `Accept: text/event-stream`.", elections::look).at(TimeoutClass::Asked(Duration::from_millis(elections::WAIT_MAX_MS))),
    route(POST, "/api/v1/elections/:group", Access::Write, "Take part in an election: `join`, `heartbeat`, `resign` or `force`.", elections::act),
    route(DELETE, "/api/v1/elections/:group", Access::Admin, "Delete an election group without a coordinator.", elections::delete),
    route(GET, "/api/v1/election-processes", Access::Read, "List processes with a lease of their own for their election groups.", elections::processes),
    route(GET, "/api/v1/election-processes/:process", Access::Read, "The lease of one process.", elections::process),
    route(POST, "/api/v1/election-processes/:process", Access::Write, "Renew or end the lease of a process: `swap` or `remove`.", elections::keep),
    route(POST, "/api/v1/executions:report", Access::Write, "Report how executions of jobs ended.", jobs::executions::report).taking(BODY_BYTES_MAX),
    route(POST, "/api/v1/executions/:execution/logs", Access::Write, "Append lines to the log of an execution.", jobs::executions::log).taking(BODY_BYTES_MAX),
    route(POST, "/api/v1/workers/:worker/lease", Access::Write, "Lease jobs; waits for the first.", jobs::workers::lease).at(TimeoutClass::Waits(WAIT_MAX)),
    route(POST, "/api/v1/workers/:worker/heartbeat", Access::Write, "Renew the leases of running jobs; returns which to stop, as soon as there are any with `waitMs`.", jobs::workers::heartbeat).taking(BODY_BYTES_MAX).at(TimeoutClass::Waits(WAIT_MAX)),
    route(POST, "/api/v1/workers/:worker/drain", Access::Write, "Drain a worker: it takes no more jobs.", jobs::workers::drain),
    route(POST, "/api/v1/workers", Access::Write, "Register a worker.", jobs::workers::register),
    route(GET, "/api/v1/workers", Access::Read, "List workers.", jobs::workers::list),
    route(GET, "/api/v1/workers/:worker", Access::Read, "One worker.", jobs::workers::one),
    route(DELETE, "/api/v1/workers/:worker", Access::Write, "Deregister a worker that leaves.", jobs::workers::deregister),
    route(GET, "/api/v1/nodes", Access::Read, "The servers that share the jobs of a store, the leader, and the share of each.", jobs::nodes::list),
    route(POST, "/api/v1/nodes/:node/drain", Access::Admin, "Drain a server: hand over its jobs; or, with `mode` off, let it take part again.", jobs::nodes::drain),
    route(GET, "/api/v1/events", Access::Read, "Events of the cluster; live with `Accept: text/event-stream`.", jobs::nodes::events),
    route(POST, "/api/v1/jobs", Access::Push, "Enqueue a job.", jobs::enqueue::one).taking(BODY_BYTES_MAX),
    route(POST, "/api/v1/jobs:batch", Access::Push, "Enqueue up to 1,000 jobs, all or none.", jobs::enqueue::batch).taking(BODY_BYTES_MAX),
    route(POST, "/api/v1/jobs:bulk", Access::Write, "Cancel or retry all jobs that match a filter.", jobs::change::bulk).at(TimeoutClass::Long),
    route(GET, "/api/v1/jobs", Access::Read, "Find jobs, newest first.", jobs::read::list),
    route(GET, "/api/v1/jobs/:job", Access::Read, "One job with its history.", jobs::read::one),
    route(GET, "/api/v1/jobs/:job/wait", Access::Read, "Wait until a job has ended.", jobs::read::wait).at(TimeoutClass::Waits(WAIT_MAX)),
    route(GET, "/api/v1/jobs/:job/result", Access::Read, "The result of a job.", jobs::read::result),
    route(GET, "/api/v1/jobs/:job/logs", Access::Read, "A job's log; live with `Accept: text/event-stream` or `follow=true`.", jobs::logs::logs),
    route(POST, "/api/v1/jobs/:job/cancel", Access::Write, "Cancel a job.", jobs::change::cancel),
    route(POST, "/api/v1/jobs/:job/retry", Access::Write, "Retry a job that has ended.", jobs::change::retry).taking(PAYLOAD),
    route(GET, "/api/v1/job-queues", Access::Read, "List job queues.", jobs::queues::list),
    route(GET, "/api/v1/job-queues/:queue", Access::Read, "One job queue.", jobs::queues::one),
    route(PUT, "/api/v1/job-queues/:queue", Access::Write, "Set a job queue's limits.", jobs::queues::set),
    route(POST, "/api/v1/job-queues/:queue/pause", Access::Write, "Pause a job queue.", jobs::queues::pause),
    route(POST, "/api/v1/job-queues/:queue/resume", Access::Write, "Resume a job queue.", jobs::queues::resume),
    route(GET, "/api/v1/schedules", Access::Read, "List schedules, by id.", schedules::list),
    route(GET, "/api/v1/schedules/:schedule", Access::Read, "One schedule with its next fires.", schedules::one),
    route(PUT, "/api/v1/schedules/:schedule", Access::Write, "Create or change a schedule.", schedules::put).taking(PAYLOAD),
    route(DELETE, "/api/v1/schedules/:schedule", Access::Write, "Remove a schedule; its jobs stay.", schedules::delete),
    route(POST, "/api/v1/schedules/:schedule/trigger", Access::Write, "Fire now, in addition to its times.", schedules::trigger),
    route(POST, "/api/v1/schedules/:schedule/pause", Access::Write, "Pause a schedule.", schedules::pause),
    route(POST, "/api/v1/schedules/:schedule/resume", Access::Write, "Resume a schedule with the fires after now.", schedules::resume),
    route(POST, "/api/v1/schedules/:schedule/backfill", Access::Write, "Fire for the times of a past period, or list them.", schedules::backfill).at(TimeoutClass::Long),
    route(GET, "/api/v1/dead-letters", Access::Read, "List jobs that failed for good, newest first.", jobs::dead_letters::list),
    route(POST, "/api/v1/dead-letters:replay", Access::Write, "Retry dead letters of jobs.", jobs::dead_letters::replay_many).at(TimeoutClass::Long),
    route(POST, "/api/v1/dead-letters/:job/replay", Access::Write, "Retry a dead letter of a job.", jobs::dead_letters::replay),
    route(DELETE, "/api/v1/dead-letters/:job", Access::Write, "Remove a job from the dead letters.", jobs::dead_letters::delete),
    route(GET, "/api/v1/shards", Access::Read, "List services and how their shards are spread.", shards::list),
    route(GET, "/api/v1/shards/:service", Access::Read, "One service with the owner of each shard, or the shards of one `worker`; waits for a change with `wait` (milliseconds) and `after` (a version or generation), or streams events with `Accept: text/event-stream`.", shards::look).at(TimeoutClass::Asked(Duration::from_millis(shards::WAIT_MAX_MS))),
    route(POST, "/api/v1/shards/:service", Access::Write, "Take part as a worker: `register`, `heartbeat` or `release`; or `drain` and `undrain` one.", shards::act),
    route(DELETE, "/api/v1/shards/:service", Access::Admin, "Delete a service without live workers.", shards::delete),
    route(GET, "/api/v1/cluster", Access::Read, "The servers, their load and their affinities.", cluster::cluster),
    route(GET, "/api/v1/cluster/balance", Access::Read, "How the load is balanced over the servers.", cluster::balance),
    route(POST, "/api/v1/cluster/:server/drain", Access::Admin, "Drain a server from routing, or, with `mode` off, end that.", cluster::drain),
    route(GET, "/api/v1/caller", Access::Public, "The subject and the role of the token.", fleet::caller),
    route(GET, "/api/v1/fleet", Access::Read, "Every queue and group in numbers, counted a few seconds ago at most.", fleet::fleet),
    route(GET, "/api/v1/leases", Access::Read, "List leased partitions.", fleet::leases),
    route(GET, "/api/v1/settings", Access::Admin, "The settings of this server, with secrets hidden.", fleet::settings),
    route(GET, "/api/v1/status", Access::Read, "The state of everything, over time.", status::overview),
    route(GET, "/api/v1/status/queues", Access::Read, "List queues, a page at a time.", status::queues),
    route(GET, "/api/v1/status/analytics", Access::Read, "Messages stored per minute, hour or day.", status::analytics),
    route(GET, "/api/v1/status/queues/:queue", Access::Read, "One queue, partition by partition.", status::queue),
    route(GET, "/api/v1/status/queues/:queue/messages", Access::Read, "The newest messages of a queue.", status::messages),
    route(POST, "/api/v1/stats/refresh", Access::Admin, "Count the messages of all queues again.", status::refresh).at(TimeoutClass::Long),
    route(GET, "/api/v1/analytics/system-metrics", Access::Read, "Processor time and memory over time.", analytics::system_metrics),
    route(GET, "/api/v1/analytics/worker-metrics", Access::Read, "Pushes, pops and acks over time.", analytics::worker_metrics),
    route(GET, "/api/v1/analytics/queue-lag", Access::Read, "How long messages waited, by queue.", analytics::queue_lag),
    route(GET, "/api/v1/analytics/queue-ops", Access::Read, "Pushes, pops and acks by queue.", analytics::queue_ops),
    route(GET, "/api/v1/analytics/queue-parked-replicas", Access::Read, "Pops that wait.", analytics::parked),
    route(GET, "/api/v1/analytics/retention", Access::Read, "Messages deleted by retention over time.", analytics::retention),
    route(GET, "/api/v1/analytics/postgres-stats", Access::Read, "Statistics of the database.", analytics::postgres),
    route(GET, "/metrics", Access::Public, "A few numbers as JSON.", metrics::json),
    route(GET, "/metrics/prometheus", Access::Public, "All metrics, for Prometheus.", metrics::prometheus),
    route(POST, "/api/v1/messages/:partition/:transaction/dlq", Access::Write, "Make a message a dead letter.", messages::bury),
    route(POST, "/api/v1/traces", Access::Write, "Store a trace of a message.", traces::record),
    route(GET, "/api/v1/traces/names", Access::Read, "List the names of traces.", traces::names),
    route(GET, "/api/v1/traces/by-name/:name", Access::Read, "The traces with a name, newest first.", traces::by_name),
    route(GET, "/api/v1/traces/:partition/:transaction", Access::Read, "The traces of a message, oldest first.", traces::of_message),
    route(GET, "/api/v1/system/maintenance", Access::Admin, "Both maintenance modes, and what is spooled.", system::maintenance),
    route(POST, "/api/v1/system/maintenance", Access::Admin, "Spool pushes, or push again.", system::set_maintenance),
    route(GET, "/api/v1/system/maintenance/pop", Access::Admin, "Whether pops are stopped.", system::pop_maintenance),
    route(POST, "/api/v1/system/maintenance/pop", Access::Admin, "Stop pops, or resume them.", system::set_pop_maintenance),
    route(GET, "/api/v1/system/shared-state", Access::Admin, "What this server shares with others.", system::shared_state),
    route(GET, "/api/v1/status/buffers", Access::Read, "What is spooled.", system::buffers),
    route(POST, "/internal/api/notify", Access::Admin, "Wake the waiting pops of a queue.", system::notify),
    route(GET, "/internal/api/shared-state/stats", Access::Admin, "What this server shares with others.", system::shared_state),
    route(GET, "/internal/api/inter-instance/stats", Access::Admin, "What this server shares with others.", system::shared_state),
    route(POST, "/streams/v1/queries", Access::Write, "Register a stream query.", streams::register).taking(BODY_BYTES_MAX),
    route(POST, "/streams/v1/cycle", Access::Write, "State, pushes and an ack of a stream query, all or none.", streams::cycle).taking(BODY_BYTES_MAX),
    route(POST, "/streams/v1/state/get", Access::Read, "Read the state of a stream query.", streams::state).taking(BODY_BYTES_MAX),
    route(GET, "/api/openapi.json", Access::Public, "These routes as an OpenAPI document.", reference::document),
    route(GET, "/api/docs", Access::Public, "The same as a page to read.", reference::page),
    route(GET, "/health", Access::Public, "200 when the server works, 503 when not.", health::health),
    route(GET, "/ready", Access::Public, "200 when the server takes requests, 503 when it stops, is drained or has no store.", health::ready),
];

/// What a method and a path lead to.
#[derive(Debug)]
pub enum Found<'p> {
    /// A route and the open segments of the path.
    Route(&'static Route, Segments<'p>),
    /// A path that exists for these methods only.
    OtherMethods(String),
    /// Nothing.
    Nothing,
}

/// Finds the route of a request.
pub fn find<'p>(method: &Method, path: &'p str) -> Found<'p> {
    // A pop changes what it reads, so asking only for its headers would lose messages.
    let as_get = *method == Method::HEAD && !path.starts_with("/api/v1/pop");
    let wanted = if as_get { &Method::GET } else { method };
    for route in ROUTES {
        if route.method == *wanted
            && let Some(segments) = path::matches(route.path, path)
        {
            return Found::Route(route, segments);
        }
    }
    let others: Vec<_> = ROUTES
        .iter()
        .filter(|route| path::matches(route.path, path).is_some())
        .map(|route| route.method.as_str())
        .collect();
    if others.is_empty() { Found::Nothing } else { Found::OtherMethods(others.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(method: Method, path: &str, expected: &str) {
        let found = match find(&method, path) {
            Found::Route(route, _) => format!("{} {}", route.method, route.path),
            Found::OtherMethods(allow) => allow,
            Found::Nothing => "nothing".into(),
        };
        assert_eq!(found, expected, "{method} {path}");
    }

    #[test]
    fn a_request_finds_its_route() {
        check(POST, "/api/v1/push", "POST /api/v1/push");
        check(GET, "/api/v1/consumer-groups/lagging", "GET /api/v1/consumer-groups/lagging");
        check(GET, "/api/v1/consumer-groups/g", "GET /api/v1/consumer-groups/:group");
        check(GET, "/api/v1/push", "POST");
        check(Method::PUT, "/api/v1/messages/1/t", "GET, DELETE");
        check(Method::HEAD, "/health", "GET /health");
        check(Method::HEAD, "/api/v1/pop/queue/q", "GET");
        check(GET, "/api/v1/timers/q/a/b", "GET /api/v1/timers/:queue/*key");
        check(GET, "/api/v1/timers/q", "GET /api/v1/timers/:queue");
        check(GET, "/api/v1/pushed", "nothing");
        check(GET, "/", "nothing");
    }

    #[test]
    fn every_route_can_be_reached() {
        for route in ROUTES {
            check(route.method.clone(), route.path, &format!("{} {}", route.method, route.path));
        }
    }
}
