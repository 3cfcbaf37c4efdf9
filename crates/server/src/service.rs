//! From the head of a request to its handler, if its caller may go there, and from a handler to its reply.
//!
//! Always: a handler that panics is answered for; a handler's future is boxed at its own size, so a parked pop
//! holds only what a pop needs. Start at [`find`].

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use baton_auth::{Access, Admission, Auth, Identity, Refusal};
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, StatusCode, header};

use crate::app::App;
use crate::call::{Answer, Call, Handler};
use crate::cluster::Origin;
use crate::error::{Error, Kind};
use crate::http1::{self, Head};
use crate::reply::Reply;
use crate::routes::{self, Found, Route};

/// Where a request leads.
#[derive(Debug)]
pub struct Place {
    /// What answers it.
    pub route: &'static Route,
    /// How long that may take, and in whose words it is told.
    pub patience: Patience,
    /// The open segments of its path, decoded.
    pub parameters: Vec<String>,
    /// Its query, still encoded.
    pub query: String,
    /// Whether a stream of events is wanted.
    pub wants_events: bool,
    /// What it may be repeated under.
    pub idempotency_key: Option<String>,
    /// The last event that the peer has seen.
    pub last_event_id: Option<String>,
    /// What must be there for the request to be done.
    pub if_match: Option<String>,
    /// Who sends it.
    pub caller: Caller,
    /// How it came, if it may have to be passed on.
    pub origin: Option<Box<Origin>>,
}

/// How long a request may be worked on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Patience {
    /// So long; for ever if there is none.
    pub allowed: Option<Duration>,
    is_pop: bool,
    /// Whether it is over because the caller's token expires.
    ends_with_token: bool,
}

impl Patience {
    fn of(route: &Route, query: &str, prompt: Duration) -> Self {
        Self {
            allowed: route.pace.allows(query, prompt),
            is_pop: route.path.starts_with("/api/v1/pop"),
            ends_with_token: false,
        }
    }

    /// The same, but over when the caller's token expires.
    pub fn while_token_is_valid(self, remaining: Option<Duration>) -> Self {
        match remaining {
            Some(remaining) if self.allowed.is_none_or(|allowed| remaining < allowed) => {
                Self { allowed: Some(remaining), ends_with_token: true, ..self }
            }
            _ => self,
        }
    }

    /// What is told when it is over. The handler is dropped, as it is when its peer has gone: what it was given goes
    /// back, and what it has handed to the store may still happen.
    pub fn over(self) -> Reply {
        let error = match self.ends_with_token {
            true => baton_auth::Error::from(Refusal::Expired).into(),
            false => Error::took_too_long(self.allowed.unwrap_or_default()),
        };
        if self.is_pop { error.of_pop() } else { error }.into_reply()
    }
}

/// Who sends a request that may go on.
#[derive(Debug)]
pub enum Caller {
    /// Whom the token speaks for, if there is one.
    Known(Option<Arc<Identity>>),
    /// The token is signed with a key that has to be looked for first.
    Unknown(Access, String),
}

impl Caller {
    /// Whom the token speaks for, once that is known, or the reply when the request may not go on.
    pub async fn known(self, auth: Option<&Auth>) -> Result<Option<Arc<Identity>>, Reply> {
        match (self, auth) {
            (Self::Known(caller), _) => Ok(caller),
            (Self::Unknown(access, token), Some(auth)) => auth
                .admit_later(access, &token)
                .await
                .map(Some)
                .map_err(|error| Error::from(error).into_reply()),
            (Self::Unknown(..), None) => Ok(None),
        }
    }
}

/// Finds where a request leads, or the reply when that is known already.
pub fn find(head: &Head<'_>, app: &App) -> Result<Place, Reply> {
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
        app.sites.check_cross_site().map_err(Error::into_reply)?;
    }
    let caller = match app.auth.as_ref().map(|auth| auth.admit(route.access, head.path, head.authorization)) {
        None => Caller::Known(None),
        Some(Admission::Granted(caller)) => Caller::Known(caller),
        Some(Admission::Unknown(token)) => Caller::Unknown(route.access, token),
        Some(Admission::Refused(error)) => return Err(Error::from(error).into_reply()),
    };
    http1::media::check(head).map_err(Error::into_reply)?;
    let parameters = segments.decoded().map_err(Error::into_reply)?;
    let (query, wants_events) = (head.query.to_owned(), head.wants_events);
    let text = |value: Option<&[u8]>| value.map(|value| String::from_utf8_lossy(value).into_owned());
    let (idempotency_key, last_event_id) = (text(head.idempotency_key), text(head.last_event_id));
    let if_match = text(head.if_match);
    let origin = Origin::of(head, app.cluster.as_ref()).map_err(Error::into_reply)?;
    let patience = Patience::of(route, head.query, app.options.call_timeout);
    Ok(Place {
        route,
        patience,
        parameters,
        query,
        wants_events,
        idempotency_key,
        last_event_id,
        if_match,
        caller,
        origin,
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
        assert_eq!(reply.status(), StatusCode::INTERNAL_SERVER_ERROR);
    }
}
