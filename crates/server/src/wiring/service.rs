//! From the head of a request to its handler, if its caller may go there, and from a handler to its reply.
//!
//! Always: a handler that panics is answered for; a handler's future is boxed at its own size, so a parked pop
//! holds only what a pop needs. Start at the implementation of [`Service`].

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use baton_auth::{Access, Admission, Auth, Identity, Refusal};
use baton_http::{Accepted, Decision, Head, Limits, Received, Reply, Running, Service, Traffic, media};
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, StatusCode, header};

use crate::app::App;
use crate::call::{Answer, Call};
use crate::cluster::ForwardInfo;
use crate::error::{Error, Kind};
use crate::ignored::Ignored;
use crate::openapi::known;
use crate::routes::{self, Found, Route};

/// A request whose route is known, and whose caller may go there.
#[derive(Debug)]
pub struct ResolvedRoute {
    /// What answers it.
    route: &'static Route,
    /// How long that may take, and in whose words it is told.
    deadline: Deadline,
    /// The open segments of its path, decoded.
    parameters: Vec<String>,
    /// Its query, still encoded.
    query: String,
    /// Whether a stream of events is wanted.
    wants_events: bool,
    /// What it may be repeated under.
    idempotency_key: Option<String>,
    /// The last event that the peer has seen.
    last_event_id: Option<String>,
    /// What must be there for the request to be done.
    if_match: Option<String>,
    /// Whom its token speaks for, if there is one.
    caller: Option<Arc<Identity>>,
    /// How it came, if it may have to be passed on.
    origin: Option<Box<ForwardInfo>>,
}

/// A request that its handler works on.
pub struct RunningCall {
    answer: Answer,
    deadline: Deadline,
    /// How long the caller's token is valid.
    token_valid_for: Option<Duration>,
    ignored: Ignored,
}

/// How long a request may be worked on.
#[derive(Clone, Copy, Debug, Default)]
struct Deadline {
    /// So long; for ever if there is none.
    allowed: Option<Duration>,
    is_pop: bool,
    /// Whether it is over because the caller's token expires.
    ends_with_token: bool,
}

impl Deadline {
    fn of(route: &Route, query: &str, prompt: Duration) -> Self {
        Self {
            allowed: route.timeout_class.allows(query, prompt),
            is_pop: route.path.starts_with("/api/v1/pop"),
            ends_with_token: false,
        }
    }

    /// The same, but over when the caller's token expires.
    fn while_token_is_valid(self, remaining: Option<Duration>) -> Self {
        match remaining {
            Some(remaining) if self.allowed.is_none_or(|allowed| remaining < allowed) => {
                Self { allowed: Some(remaining), ends_with_token: true, ..self }
            }
            _ => self,
        }
    }

    /// What is told when it is over. The handler is dropped, as it is when its peer has gone: what it was given goes
    /// back, and what it has handed to the store may still happen.
    fn over(self) -> Reply {
        let error = match self.ends_with_token {
            true => baton_auth::Error::from(Refusal::Expired).into(),
            false => Error::took_too_long(self.allowed.unwrap_or_default()),
        };
        if self.is_pop { error.of_pop() } else { error }.into_reply()
    }
}

impl Service for App {
    type Request = ResolvedRoute;
    type Running = RunningCall;

    fn accept(self: &Arc<Self>, head: &Head<'_>) -> Accepted<ResolvedRoute> {
        match self.sites.check(head.host, head.origin) {
            Ok(sharing) => Accepted { decision: find(head, self).unwrap_or_else(Decision::Refuse), sharing },
            Err(error) => Accepted { decision: Decision::Refuse(self.refusal(error)), sharing: None },
        }
    }

    fn body_max(&self, request: &ResolvedRoute) -> usize {
        request.route.body_max
    }

    fn start(self: &Arc<Self>, request: ResolvedRoute, body: Received) -> Result<RunningCall, Reply> {
        let ResolvedRoute { route, parameters, query, caller, .. } = request;
        let ignored = known::screen(route, &query, &body).map_err(Error::into_reply)?;
        let token_valid_for = caller.as_ref().and_then(|caller| self.auth.as_ref()?.remaining(caller));
        let deadline = request.deadline.while_token_is_valid(token_valid_for);
        let call = Call::new(Arc::clone(self), parameters, query, body, caller)
            .wanting_events(request.wants_events)
            .repeating(request.idempotency_key, request.last_event_id)
            .depending_on(request.if_match)
            .from(request.origin);
        match catch_unwind(AssertUnwindSafe(|| (route.handler)(call))) {
            Ok(answer) => Ok(RunningCall { answer, deadline, token_valid_for, ignored }),
            Err(_) => Err(ignored.list_in(panicked())),
        }
    }

    fn refusal(&self, error: baton_http::Error) -> Reply {
        Error::from(error).into_reply()
    }

    fn complete(&self, reply: Reply) -> Reply {
        self.marked(reply)
    }

    fn event_headers(&self) -> String {
        self.served_by().unwrap_or_default()
    }

    fn limits(&self) -> Limits {
        Limits {
            connections_max: self.options.connections_max,
            connections_per_address: self.options.connections_per_address,
            shutdown_deadline: self.options.shutdown_deadline,
        }
    }

    fn traffic(&self) -> &Traffic {
        &self.traffic
    }
}

impl Running for RunningCall {
    fn poll_reply(&mut self, cx: &mut Context<'_>) -> Poll<Reply> {
        poll(&mut self.answer, cx).map(|reply| self.ignored.list_in(reply))
    }

    fn allowed(&self) -> Option<Duration> {
        self.deadline.allowed
    }

    fn timed_out(&self) -> Reply {
        self.ignored.list_in(self.deadline.over())
    }

    fn events_allowed(&self) -> Option<Duration> {
        self.token_valid_for
    }
}

/// Finds where a request leads, or the reply when that is known already.
fn find(head: &Head<'_>, app: &App) -> Result<Decision<ResolvedRoute>, Reply> {
    if head.method == Method::OPTIONS {
        return Err(Reply::nothing());
    }
    if let Some(file) = console_file(head, app) {
        return Err(file);
    }
    let (route, segments) = match routes::find(&head.method, head.path) {
        Found::Route(route, segments) => (route, segments),
        Found::OtherMethods(allow) => return Err(Error::method_not_allowed(allow).into_reply()),
        Found::Nothing => {
            let unknown = || Error::new(Kind::NoSuchRoute, "Not Found");
            return Err(routes::unsupported::refusal(head.path).unwrap_or_else(unknown).into_reply());
        }
    };
    if head.cross_site && head.origin.is_none() && route.access != Access::Public {
        app.sites.check_cross_site().map_err(|error| app.refusal(error))?;
    }
    let (caller, unknown) = match &app.auth {
        None => (None, None),
        Some(auth) => match auth.admit(route.access, head.path, head.authorization) {
            Admission::Granted(caller) => (caller, None),
            Admission::Unknown(token) => (None, Some((Arc::clone(auth), token))),
            Admission::Refused(error) => return Err(Error::from(error).into_reply()),
        },
    };
    media::check(head).map_err(|error| app.refusal(error))?;
    let parameters = segments.decoded().map_err(|error| app.refusal(error))?;
    let text = |value: Option<&[u8]>| value.map(|value| String::from_utf8_lossy(value).into_owned());
    let request = ResolvedRoute {
        route,
        deadline: Deadline::of(route, head.query, app.options.call_timeout),
        parameters,
        query: head.query.to_owned(),
        wants_events: head.wants_events,
        idempotency_key: text(head.idempotency_key),
        last_event_id: text(head.last_event_id),
        if_match: text(head.if_match),
        caller,
        origin: ForwardInfo::of(head, app.cluster.as_ref()).map_err(Error::into_reply)?,
    };
    Ok(match unknown {
        None => Decision::Proceed(request),
        Some((auth, token)) => Decision::Wait(Box::pin(admit_later(auth, token, request))),
    })
}

/// The file of the console that a request asks for. Files hold no data, so they are answered before any token is looked at.
fn console_file(head: &Head<'_>, app: &App) -> Option<Reply> {
    if !app.options.console || !matches!(head.method, Method::GET | Method::HEAD) {
        return None;
    }
    let (status, asset, body) = match baton_console::answer(head.path, head.if_none_match)? {
        baton_console::Answer::Content(asset) => (StatusCode::OK, asset, asset.bytes),
        baton_console::Answer::NotModified(asset) => (StatusCode::NOT_MODIFIED, asset, &[][..]),
    };
    let mut reply = Reply::text(status, asset.content_type, Bytes::from_static(body));
    for (name, value) in baton_console::HEADERS {
        reply = reply.with_header(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    let etag = HeaderValue::from_str(&asset.etag).ok()?;
    Some(reply.with_header(header::ETAG, etag))
}

/// Waits until it is known whether the key that a token is signed with is published.
async fn admit_later(auth: Arc<Auth>, token: String, request: ResolvedRoute) -> Result<ResolvedRoute, Reply> {
    match auth.admit_later(request.route.access, &token).await {
        Ok(caller) => Ok(ResolvedRoute { caller: Some(caller), ..request }),
        Err(error) => Err(Error::from(error).into_reply()),
    }
}

/// Asks a handler for its reply.
fn poll(answer: &mut Answer, cx: &mut Context<'_>) -> Poll<Reply> {
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
        assert_eq!(reply.status(), StatusCode::INTERNAL_SERVER_ERROR);
    }
}
