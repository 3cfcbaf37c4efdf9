//! Leads a request to where it is served best: to another server, or to the handler that asks.
//!
//! Always: what another server did not answer is tried on the next best and then here, if doing it twice does no
//! harm. A pop does none, for its attempt is given back; nor does a push, for its messages get transaction ids before
//! they are passed on; nor an ack that a lease fences or that only says that a message is done. A transaction
//! without an idempotency key might, so if it may have happened the answer is `outcome_unknown`. Start at [`ClusterRouter::pop`].

use std::sync::Arc;
use std::time::Duration;

use baton_cluster::forward::{CLAIMS, FALLBACK, FORWARDED_BY, SERVED_BY};
use baton_cluster::{
    Cluster, ForwardError, ForwardRequest, ForwardedBody, ForwardedResponse, InFlightGuard, PopTarget,
    RequestKind, RoutingOutcome, name_hash,
};
use baton_env::Stopwatch;
use baton_http::{ProxiedBody, Reply};
use baton_queue::{AckItem, Broker, LeaseClaim, PopRequest, Popped, Target};
use baton_types::PartitionId;
use baton_types::wire::AckStatus;
use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode};

use super::attempt::Attempt;
use super::forward_info::ForwardInfo;
use crate::error::{Error, Kind as ErrorKind};

/// Servers that are asked before a request is served here.
const TRIES_MAX: usize = 2;
/// Partitions of one answer that are told to the server that passed the pop on.
const CLAIMS_MAX: usize = 64;

/// Where a request goes.
#[derive(Debug)]
pub enum Routing {
    /// It is served here.
    Here(ServedByHeaders),
    /// Another server has answered it.
    Answered(Reply),
}

/// A request with what the cluster needs to know about it.
pub struct ClusterRouter {
    cluster: Cluster,
    broker: Broker,
    origin: ForwardInfo,
}

impl std::fmt::Debug for ClusterRouter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterRouter").field("origin", &self.origin).finish_non_exhaustive()
    }
}

/// A request that is served here, and what its answer tells about that.
#[derive(Debug, Default)]
pub struct ServedByHeaders {
    in_hand: Option<(Cluster, InFlightGuard)>,
    forwarded: bool,
    fallback: bool,
    claims: Option<HeaderValue>,
}

impl ServedByHeaders {
    /// Notes what a pop has taken, so that its acks find their way.
    pub fn note(&mut self, popped: &Popped) {
        let Some((cluster, _)) = &self.in_hand else { return };
        let claims: Vec<_> =
            popped.claims.iter().map(|claim| (claim.partition, name_hash(&claim.queue))).collect();
        if self.forwarded {
            let shown: Vec<_> =
                claims.iter().take(CLAIMS_MAX).map(|(p, name)| format!("{}={name:016x}", p.0)).collect();
            self.claims = HeaderValue::from_str(&shown.join(",")).ok();
        }
        cluster.remember_partitions(claims);
    }

    /// The answer, with who served it.
    pub fn on(self, mut reply: Reply) -> Reply {
        let Some((cluster, _)) = &self.in_hand else { return reply };
        if !self.forwarded && !cluster.options().routes {
            return reply;
        }
        if let Ok(id) = HeaderValue::from_str(&cluster.options().id) {
            reply = reply.with_header(SERVED_BY, id);
        }
        if self.fallback {
            reply = reply.with_header(FALLBACK, HeaderValue::from_static("true"));
        }
        match self.claims {
            Some(claims) => reply.with_header(CLAIMS, claims),
            None => reply,
        }
    }
}

/// What became of asking other servers.
enum Asked {
    Answered(Reply),
    /// None answered; whether one of them may have done it.
    Failed {
        unknown: bool,
    },
}

impl ClusterRouter {
    pub(crate) fn new(cluster: Cluster, broker: Broker, origin: ForwardInfo) -> Self {
        Self { cluster, broker, origin }
    }

    /// Leads a pop.
    pub async fn pop(self: Box<Self>, request: &mut PopRequest) -> Routing {
        if let Some(forwarded) = &self.origin.forwarded {
            request.attempt = forwarded.attempt;
        }
        if self.is_served_here() {
            return self.here(RequestKind::Pop, false);
        }
        let errand = match &request.target {
            Target::Queue(queue) => PopTarget::Queue(queue),
            Target::Partition { queue, partition } => PopTarget::Partition(queue, partition),
            Target::Labels { namespace, task } => PopTarget::Labels(
                namespace.as_deref().unwrap_or_default(),
                task.as_deref().unwrap_or_default(),
            ),
        };
        let (key, mut server) = self.cluster.route_pop(errand, &request.group);
        let (watch, mut tried) = (Stopwatch::start(), Vec::new());
        let left = |wait: Option<Duration>| {
            wait.map(|wait| wait.saturating_sub(watch.elapsed())).filter(|wait| !wait.is_zero())
        };
        while let Some(asked) = server {
            if let Some(reply) = self.ask_for_messages(&asked, left(request.wait)).await {
                self.count(RequestKind::Pop, RoutingOutcome::Forwarded);
                return Routing::Answered(reply);
            }
            tried.push(asked);
            // One whose wait is over is answered here at once.
            let goes_on = tried.len() < TRIES_MAX && (request.wait.is_none() || left(request.wait).is_some());
            server = if goes_on { self.cluster.next_pop(&key, &tried) } else { None };
        }
        request.wait = left(request.wait);
        self.here(RequestKind::Pop, !tried.is_empty())
    }

    /// Asks one server for messages. What it may have taken for an answer that does not arrive is given back.
    async fn ask_for_messages(&self, server: &Arc<str>, wait: Option<Duration>) -> Option<Reply> {
        let watch = Stopwatch::start();
        let waits = wait.unwrap_or_default();
        let attempt = Attempt::new(&self.broker, waits);
        let outbound = ForwardRequest {
            method: Method::GET,
            target: with_wait(&self.origin.target, wait),
            attempt: Some(attempt.lease()),
            wait: waits,
            ..self.outbound(Bytes::new())
        };
        let inbound = self.cluster.forward(server, &outbound).await.ok()?;
        // A server that stops lets go of those who wait.
        let is_early = inbound.status == StatusCode::NO_CONTENT && watch.elapsed() < waits;
        if inbound.status == StatusCode::SERVICE_UNAVAILABLE || is_early {
            return None;
        }
        if let Some(claims) = &inbound.claims {
            self.cluster.remember_partitions(read_claims(claims));
        }
        Some(self.reply(inbound, Some(attempt)))
    }

    /// Leads a push to `queue`. `body` writes it in such a way that doing it twice does no harm.
    pub async fn push(
        self: Box<Self>,
        queue: &str,
        body: impl FnOnce() -> Vec<u8>,
    ) -> Result<Routing, Error> {
        let server = if self.is_served_here() { None } else { self.cluster.route_push(queue) };
        let Some(server) = server else { return Ok(self.here(RequestKind::Push, false)) };
        let outbound = self.outbound(body().into());
        match self.ask(server, name_hash(queue), &outbound, true).await {
            Asked::Answered(reply) => Ok(self.answered(RequestKind::Push, reply)),
            Asked::Failed { unknown: true } if self.broker.forgets_ids(queue).await? => {
                Err(outcome_unknown("the queue remembers no transaction ids"))
            }
            Asked::Failed { .. } => Ok(self.here(RequestKind::Push, true)),
        }
    }

    /// Leads acks, whose body this is.
    pub async fn ack(self: Box<Self>, items: &[AckItem], body: &[u8]) -> Result<Routing, Error> {
        let first = items.first().and_then(|item| item.partition).filter(|_| !self.is_served_here());
        let Some((name, server)) = first.and_then(|partition| self.cluster.route_ack(partition)) else {
            return Ok(self.here(RequestKind::Ack, false));
        };
        let outbound = self.outbound(Bytes::copy_from_slice(body));
        match self.ask(server, name, &outbound, items.iter().all(is_fenced)).await {
            Asked::Answered(reply) => Ok(self.answered(RequestKind::Ack, reply)),
            Asked::Failed { unknown: true } if !items.iter().all(is_fenced) => {
                Err(outcome_unknown("no lease keeps an ack from counting twice"))
            }
            Asked::Failed { .. } => Ok(self.here(RequestKind::Ack, true)),
        }
    }

    /// Leads a transaction that pushes to `queue` or acks a message of `partition`, whose body this is. It is sent again
    /// after an unknown outcome only if it has an idempotency key.
    pub async fn transaction(
        self: Box<Self>,
        queue: Option<&str>,
        partition: Option<PartitionId>,
        body: &[u8],
        repeats: bool,
    ) -> Result<Routing, Error> {
        let found = match (queue, partition) {
            _ if self.is_served_here() => None,
            (Some(queue), _) => self.cluster.route_push(queue).map(|server| (name_hash(queue), server)),
            (None, Some(partition)) => self.cluster.route_ack(partition),
            (None, None) => None,
        };
        let Some((name, server)) = found else { return Ok(self.here(RequestKind::Transaction, false)) };
        let outbound = self.outbound(Bytes::copy_from_slice(body));
        match self.ask(server, name, &outbound, repeats).await {
            Asked::Answered(reply) => Ok(self.answered(RequestKind::Transaction, reply)),
            Asked::Failed { unknown: true } if !repeats => {
                Err(outcome_unknown("a transaction without an Idempotency-Key is not repeated"))
            }
            Asked::Failed { .. } => Ok(self.here(RequestKind::Transaction, true)),
        }
    }

    /// Asks `first`, then the next best. With `repeats` also after a failure that leaves open whether it was done.
    async fn ask(&self, first: Arc<str>, name: u64, outbound: &ForwardRequest, repeats: bool) -> Asked {
        let (mut server, mut tried, mut unknown) = (Some(first), Vec::new(), false);
        while let Some(asked) = server {
            match self.cluster.forward(&asked, outbound).await {
                Ok(inbound) if !repeats || inbound.status != StatusCode::SERVICE_UNAVAILABLE => {
                    return Asked::Answered(self.reply(inbound, None));
                }
                Ok(_) | Err(ForwardError::Unknown(_)) => unknown = true,
                Err(ForwardError::Unsent(_)) => {}
            }
            tried.push(asked);
            let goes_on = tried.len() < TRIES_MAX && (repeats || !unknown);
            server = if goes_on { self.cluster.next_push(name, &tried) } else { None };
        }
        Asked::Failed { unknown }
    }

    fn is_served_here(&self) -> bool {
        self.origin.forwarded.is_some() || !self.cluster.is_routing()
    }

    fn count(&self, kind: RequestKind, outcome: RoutingOutcome) {
        self.cluster.numbers().decisions(kind, outcome).add(1);
    }

    fn answered(&self, kind: RequestKind, reply: Reply) -> Routing {
        self.count(kind, RoutingOutcome::Forwarded);
        Routing::Answered(reply)
    }

    fn here(&self, kind: RequestKind, fallback: bool) -> Routing {
        let forwarded = self.origin.forwarded.is_some();
        self.count(
            kind,
            match (forwarded, fallback) {
                (true, _) => RoutingOutcome::Received,
                (false, true) => RoutingOutcome::Fallback,
                (false, false) => RoutingOutcome::Local,
            },
        );
        let in_hand = Some((self.cluster.clone(), self.cluster.begin_request()));
        Routing::Here(ServedByHeaders { in_hand, forwarded, fallback, claims: None })
    }

    fn outbound(&self, body: Bytes) -> ForwardRequest {
        ForwardRequest {
            method: Method::POST,
            target: self.origin.target.clone(),
            authorization: self.origin.authorization.clone(),
            idempotency_key: self.origin.idempotency_key.clone(),
            body,
            attempt: None,
            wait: Duration::ZERO,
        }
    }

    /// The answer of another server as this one's.
    fn reply(&self, inbound: ForwardedResponse, attempt: Option<Attempt>) -> Reply {
        let ForwardedResponse { status, headers, body, .. } = inbound;
        let mut reply = match body {
            ForwardedBody::Whole(bytes) => {
                if let Some(attempt) = attempt {
                    attempt.arrived();
                }
                Reply::json(status, bytes)
            }
            ForwardedBody::Streaming { length, chunks } => {
                let delivered =
                    attempt.map(|attempt| Box::new(move || attempt.arrived()) as Box<dyn FnOnce() + Send>);
                Reply::proxied(status, ProxiedBody::new(length, chunks, delivered))
            }
        };
        for (name, value) in headers.into_iter().filter(|(name, _)| *name != http::header::CONTENT_TYPE) {
            reply = reply.with_header(name, value);
        }
        match HeaderValue::from_str(&self.cluster.options().id) {
            Ok(id) => reply.with_header(FORWARDED_BY, id),
            Err(_) => reply,
        }
    }
}

/// The target of a pop, with what is left of its wait.
fn with_wait(target: &str, wait: Option<Duration>) -> String {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let wait = wait.map(|wait| format!("wait=true&timeout={}", wait.as_millis().max(1)));
    let is_other = |pair: &&str| !matches!(pair.split('=').next(), Some("wait" | "timeout" | ""));
    let pairs: Vec<_> = wait.as_deref().into_iter().chain(query.split('&').filter(is_other)).collect();
    if pairs.is_empty() { path.to_owned() } else { format!("{path}?{}", pairs.join("&")) }
}

/// Whether doing an ack twice does no harm: it only says that a message is done, or a lease ends with it.
fn is_fenced(item: &AckItem) -> bool {
    item.status == AckStatus::Completed || matches!(item.lease, LeaseClaim::Held(_) | LeaseClaim::Unknown)
}

fn outcome_unknown(why: &str) -> Error {
    let message = format!("the server that was asked did not answer, and {why}; it may have happened or not");
    Error::new(ErrorKind::OutcomeUnknown, message)
}

/// Partitions with the hashes of their queues' names.
fn read_claims(claims: &HeaderValue) -> Vec<(PartitionId, u64)> {
    let one = |text: &str| {
        let (partition, name) = text.split_once('=')?;
        Some((PartitionId(partition.parse().ok()?), u64::from_str_radix(name, 16).ok()?))
    };
    claims.to_str().unwrap_or_default().split(',').take(CLAIMS_MAX).filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pop_waits_elsewhere_for_what_is_left_of_its_wait() {
        let target = "/api/v1/pop/queue/q?wait=true&timeout=9000&batch=2";
        let left = Some(Duration::from_millis(1500));
        assert_eq!(with_wait(target, left), "/api/v1/pop/queue/q?wait=true&timeout=1500&batch=2");
        assert_eq!(with_wait(target, None), "/api/v1/pop/queue/q?batch=2");
        assert_eq!(with_wait("/api/v1/pop/queue/q", None), "/api/v1/pop/queue/q");
    }

    #[test]
    fn claims_are_read_as_far_as_they_make_sense() {
        let read = |text: &str| read_claims(&HeaderValue::from_str(text).unwrap());
        assert_eq!(read("7=00000000000000ff,8=1"), [(PartitionId(7), 255), (PartitionId(8), 1)]);
        assert_eq!(read("7,=,x=1,9=zz,3=2"), [(PartitionId(3), 2)]);
        assert_eq!(read(""), []);
    }
}
