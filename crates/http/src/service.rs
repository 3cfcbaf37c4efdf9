//! What a server gives to the connections that it serves: who may send what, and who answers it.
//!
//! A request is accepted by its head, then its body is read within a limit, then it is worked on until there is a reply.
//! Always: nothing of a request that was refused is worked on. Not here: sockets, and the order of answers
//! (`connection`). Start at [`Service`].

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::{Context, Poll};
use std::time::Duration;

use super::body::{Budget, Received};
use super::connection_slots::Refusals;
use super::error::Error;
use super::head::Head;
use super::reply::Reply;

/// Answers requests.
pub trait Service: Send + Sync + Sized + 'static {
    /// A request whose head was accepted.
    type Request: Send + 'static;
    /// A request that is worked on.
    type Running: Running;

    /// Decides by its head whether a request may go on.
    fn accept(self: &Arc<Self>, head: &Head<'_>) -> Accepted<Self::Request>;

    /// Bytes that the body of a request may hold. Where it takes none, a small one is ignored.
    fn body_max(&self, request: &Self::Request) -> usize;

    /// Begins to work on a request, or refuses it.
    fn start(self: &Arc<Self>, request: Self::Request, body: Received) -> Result<Self::Running, Reply>;

    /// The reply to a request that is refused for `error`.
    fn refusal(&self, error: Error) -> Reply;

    /// A reply with the headers that all have.
    fn complete(&self, reply: Reply) -> Reply {
        reply
    }

    /// The same headers for a stream of events, as lines.
    fn event_headers(&self) -> String {
        String::new()
    }

    /// How many connections there may be, and how long they may last.
    fn limits(&self) -> Limits;

    /// What connections do now.
    fn traffic(&self) -> &Traffic;
}

/// What becomes of a request whose head has arrived.
pub struct Accepted<R> {
    /// Whether it may go on.
    pub decision: Decision<R>,
    /// Headers of its answer that let a page of another site read it, if it may.
    pub sharing: Option<Arc<str>>,
}

/// Whether a request may go on.
pub enum Decision<R> {
    /// It may.
    Proceed(R),
    /// That has to be found out first.
    Wait(Pin<Box<dyn Future<Output = Result<R, Reply>> + Send>>),
    /// It may not, and this is its answer.
    Refuse(Reply),
}

/// A request that is worked on. What is dropped is worked on no longer.
pub trait Running: Send {
    /// Asks for the reply.
    fn poll_reply(&mut self, cx: &mut Context<'_>) -> Poll<Reply>;

    /// How long that may take; for ever if there is none.
    fn allowed(&self) -> Option<Duration>;

    /// The reply when it has taken longer.
    fn timed_out(&self) -> Reply;

    /// How long events may be sent; for ever if there is none.
    fn events_allowed(&self) -> Option<Duration>;
}

/// How many connections there may be, and how long they may last.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections beyond which new ones are refused.
    pub connections_max: usize,
    /// The same for connections of one address; 0 is no limit.
    pub connections_per_address: usize,
    /// How long a request may take to finish when the server stops.
    pub shutdown_deadline: Duration,
}

/// What connections do now.
#[derive(Debug, Default)]
pub struct Traffic {
    /// Open connections.
    pub connections: AtomicUsize,
    /// Connections that found no room.
    pub refusals: Refusals,
    /// Bytes of bodies under way.
    pub budget: Arc<Budget>,
}
