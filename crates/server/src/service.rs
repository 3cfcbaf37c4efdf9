//! From a hyper request to a handler and back.
//!
//! Always: every request gets an answer, also when its handler panics; a handler's future is boxed at its own
//! size, so a parked pop holds only what a pop needs. Start at [`Connection`].

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;

use crate::app::App;
use crate::call::{Answer, Call};
use crate::error::{Error, Kind};
use crate::reply::Reply;
use crate::routes::{self, Found};
use crate::transport::{Phase, SharedPhase};

/// Answers the requests of one connection.
#[derive(Debug)]
pub struct Connection {
    app: Arc<App>,
    phase: SharedPhase,
}

impl Connection {
    /// A connection whose peer is watched through `phase`.
    pub fn new(app: Arc<App>, phase: SharedPhase) -> Self {
        Self { app, phase }
    }

    fn begin(&self, request: Request<Incoming>) -> Result<Answer, Reply> {
        // Everything that refers to the read buffer ends here: see `call`.
        let (head, body) = request.into_parts();
        if head.method == Method::OPTIONS {
            return Err(Reply::nothing());
        }
        let (handler, segments) = match routes::find(&head.method, head.uri.path()) {
            Found::Route(route, segments) => (route.handler, segments),
            Found::OtherMethods(allow) => return Err(Error::method_not_allowed(allow).into_reply()),
            Found::Nothing => return Err(Error::new(Kind::NoSuchRoute, "Not Found").into_reply()),
        };
        let parameters = segments.decoded().map_err(Error::into_reply)?;
        let query = head.uri.query().unwrap_or_default().to_owned();
        let call = Call::new(Arc::clone(&self.app), parameters, query, body, self.phase.clone());
        drop(head);
        Ok(handler(call))
    }
}

impl hyper::service::Service<Request<Incoming>> for Connection {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Handling;

    fn call(&self, request: Request<Incoming>) -> Handling {
        self.phase.set(Phase::Busy);
        match catch_unwind(AssertUnwindSafe(|| self.begin(request))) {
            Ok(Ok(answer)) => Handling::Running(answer),
            Ok(Err(reply)) => Handling::Done(Some(reply)),
            Err(_) => Handling::Done(Some(panicked())),
        }
    }
}

/// A request being answered.
pub enum Handling {
    /// Its handler is at work.
    Running(Answer),
    /// The answer was known at once.
    Done(Option<Reply>),
}

impl Future for Handling {
    type Output = Result<Response<Full<Bytes>>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let reply = match &mut *self {
            Self::Done(reply) => reply.take().unwrap_or_else(panicked),
            Self::Running(answer) => match catch_unwind(AssertUnwindSafe(|| answer.as_mut().poll(cx))) {
                Ok(Poll::Pending) => return Poll::Pending,
                Ok(Poll::Ready(outcome)) => outcome.unwrap_or_else(Error::into_reply),
                Err(_) => panicked(),
            },
        };
        Poll::Ready(Ok(reply.into_response()))
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
        let answer: Answer = Box::pin(async { panic!("on purpose") });
        let Ok(response) = Handling::Running(answer).await;
        assert_eq!(response.status(), http::StatusCode::INTERNAL_SERVER_ERROR);
    }
}
