//! One request as a handler sees it.
//!
//! Always: nothing here refers to the connection's read buffer, so that a parked request holds no buffer.
//! Start at [`Call`].

use std::pin::Pin;
use std::sync::Arc;

use baton_auth::{Access, Identity};
use baton_http::{Query, Received, Reply};
use baton_jobs::Jobs;
use baton_queue::Broker;

use crate::app::App;
use crate::cluster::{ClusterRouter, ForwardInfo};
use crate::error::Error;

/// What a handler is on its way to.
pub type Answer = Pin<Box<dyn Future<Output = Result<Reply, Error>> + Send>>;

/// Answers one kind of request.
pub type Handler = fn(Call) -> Answer;

/// One request.
#[derive(Debug)]
pub struct Call {
    app: Arc<App>,
    parameters: Vec<String>,
    query: String,
    body: Option<Received>,
    caller: Option<Arc<Identity>>,
    wants_events: bool,
    idempotency_key: Option<String>,
    last_event_id: Option<String>,
    if_match: Option<String>,
    origin: Option<Box<ForwardInfo>>,
}

impl Call {
    pub(crate) fn new(
        app: Arc<App>,
        parameters: Vec<String>,
        query: String,
        body: Received,
        caller: Option<Arc<Identity>>,
    ) -> Self {
        Self {
            app,
            parameters,
            query,
            body: Some(body),
            caller,
            wants_events: false,
            idempotency_key: None,
            last_event_id: None,
            if_match: None,
            origin: None,
        }
    }

    /// The same request, which wants a stream of events if `wants_events`.
    pub(crate) fn wanting_events(self, wants_events: bool) -> Self {
        Self { wants_events, ..self }
    }

    /// The same request, which may be repeated under a key and goes on after an event.
    pub(crate) fn repeating(self, idempotency_key: Option<String>, last_event_id: Option<String>) -> Self {
        Self { idempotency_key, last_event_id, ..self }
    }

    /// The same request, which is to be done only if what is there has this tag.
    pub(crate) fn depending_on(self, if_match: Option<String>) -> Self {
        Self { if_match, ..self }
    }

    /// The tag that what is there must have, as the peer sent it.
    pub fn if_match(&self) -> Option<&str> {
        self.if_match.as_deref()
    }

    /// What the request may be repeated under.
    pub fn idempotency_key(&self) -> Option<&str> {
        self.idempotency_key.as_deref()
    }

    /// The last event that the peer has seen.
    pub fn last_event_id(&self) -> Option<&str> {
        self.last_event_id.as_deref()
    }

    /// The same request, which came as `origin` says.
    pub(crate) fn from(self, origin: Option<Box<ForwardInfo>>) -> Self {
        Self { origin, ..self }
    }

    /// What the cluster needs to know, if there are other servers.
    pub(crate) fn routed(&mut self) -> Option<Box<ClusterRouter>> {
        let origin = self.origin.take()?;
        Some(Box::new(ClusterRouter::new(self.app.cluster.clone()?, self.app.broker.clone(), *origin)))
    }

    /// Whether the answer should be a stream of events.
    pub fn wants_events(&self) -> bool {
        self.wants_events
    }

    /// Whom the caller's token speaks for.
    pub fn caller(&self) -> Option<&str> {
        self.caller.as_ref()?.subject.as_deref()
    }

    /// Whether the caller may read what queues, jobs, shards and elections there are.
    pub fn may_read(&self) -> bool {
        self.may(Access::Read)
    }

    /// Whether the caller may call routes of that level.
    pub fn may(&self, access: Access) -> bool {
        self.app.auth.is_none() || self.caller.as_ref().is_some_and(|caller| caller.may(access))
    }

    /// What all requests share.
    pub fn app(&self) -> &Arc<App> {
        &self.app
    }

    /// The queues.
    pub fn broker(&self) -> &Broker {
        &self.app.broker
    }

    /// The jobs.
    pub fn jobs(&self) -> &Jobs {
        &self.app.jobs
    }

    /// The open segment of the path at `place`, decoded.
    pub fn parameter(&self, place: usize) -> &str {
        self.parameters.get(place).map_or("", String::as_str)
    }

    /// The same, owned.
    pub fn take_parameter(&mut self, place: usize) -> String {
        self.parameters.get_mut(place).map(std::mem::take).unwrap_or_default()
    }

    /// The query parameters.
    pub fn query(&self) -> Result<Query<'_>, Error> {
        Ok(Query::parse(&self.query)?)
    }

    /// The body. It can be had once.
    pub fn body(&mut self) -> Result<Received, Error> {
        self.body.take().ok_or_else(|| Error::invalid("Empty request body"))
    }
}
