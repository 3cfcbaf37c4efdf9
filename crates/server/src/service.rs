//! From the head of a request to its handler, and from a handler to its reply.
//!
//! Always: a handler that panics is answered for; a handler's future is boxed at its own size, so a parked pop
//! holds only what a pop needs. Start at [`find`].

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Poll};

use http::Method;

use crate::call::{Answer, Call, Handler};
use crate::error::{Error, Kind};
use crate::http1::Head;
use crate::reply::Reply;
use crate::routes::{self, Found};

/// Where a request leads.
#[derive(Debug)]
pub struct Place {
    /// What answers it.
    pub handler: Handler,
    /// The open segments of its path, decoded.
    pub parameters: Vec<String>,
    /// Its query, still encoded.
    pub query: String,
    /// Whether a stream of events is wanted.
    pub wants_events: bool,
}

/// Finds where a request leads, or the reply when that is known already.
pub fn find(head: &Head<'_>) -> Result<Place, Reply> {
    if head.method == Method::OPTIONS {
        return Err(Reply::nothing());
    }
    let (handler, segments) = match routes::find(&head.method, head.path) {
        Found::Route(route, segments) => (route.handler, segments),
        Found::OtherMethods(allow) => return Err(Error::method_not_allowed(allow).into_reply()),
        Found::Nothing => return Err(Error::new(Kind::NoSuchRoute, "Not Found").into_reply()),
    };
    let parameters = segments.decoded().map_err(Error::into_reply)?;
    Ok(Place { handler, parameters, query: head.query.to_owned(), wants_events: head.wants_events })
}

/// Starts a handler.
pub fn start(handler: Handler, call: Call) -> Result<Answer, Reply> {
    catch_unwind(AssertUnwindSafe(|| handler(call))).map_err(|_| panicked())
}

/// Asks a handler for its reply.
pub fn poll(answer: &mut Answer, cx: &mut Context<'_>) -> Poll<Reply> {
    match catch_unwind(AssertUnwindSafe(|| answer.as_mut().poll(cx))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(outcome)) => Poll::Ready(outcome.unwrap_or_else(Error::into_reply)),
        Err(_) => Poll::Ready(panicked()),
    }
}

fn panicked() -> Reply {
    Error::new(Kind::Internal, "the server made a mistake; its log says which").into_reply()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_handler_that_panics_is_answered_for() {
        let mut answer: Answer = Box::pin(async { panic!("on purpose") });
        let reply = std::future::poll_fn(|cx| poll(&mut answer, cx)).await;
        assert_eq!(reply.status(), http::StatusCode::INTERNAL_SERVER_ERROR);
    }
}
