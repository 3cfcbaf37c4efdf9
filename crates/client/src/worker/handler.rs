//! Handlers by job type, and middleware around them.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};

use super::{Context, Failure};

/// The result of a handler: the job's result as JSON, or a failure.
pub type HandlerResult = Result<Box<RawValue>, Failure>;

/// A running handler.
pub type HandlerFuture = Pin<Box<dyn Future<Output = HandlerResult> + Send>>;

pub(super) type Handler = Arc<dyn Fn(Context) -> HandlerFuture + Send + Sync>;
type Middleware = Arc<dyn Fn(Context, Next) -> HandlerFuture + Send + Sync>;

/// The rest of the chain: the next middleware, and at last the handler.
pub struct Next {
    handler: Handler,
    rest: Arc<[Middleware]>,
    at: usize,
}

impl std::fmt::Debug for Next {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Next").field("left", &self.rest.len().saturating_sub(self.at)).finish()
    }
}

impl Next {
    /// Runs the rest.
    pub fn run(self, context: Context) -> HandlerFuture {
        match self.rest.get(self.at).map(Arc::clone) {
            Some(middleware) => middleware(context, Self { at: self.at + 1, ..self }),
            None => (self.handler)(context),
        }
    }
}

/// All handlers of a worker.
#[derive(Clone, Default)]
pub(super) struct Handlers {
    by_type: HashMap<String, Handler>,
    any: Option<Handler>,
    middleware: Vec<Middleware>,
}

impl Handlers {
    pub(super) fn add<A, R, F, W>(&mut self, job_type: String, handler: F)
    where
        A: DeserializeOwned + Send,
        R: Serialize,
        F: Fn(A, Context) -> W + Send + Sync + 'static,
        W: Future<Output = Result<R, Failure>> + Send + 'static,
    {
        let handler: Handler = Arc::new(move |context| {
            let args = serde_json::from_str(context.args().get());
            match args {
                Ok(args) => {
                    let work = handler(args, context);
                    Box::pin(async { Ok(to_raw_value(&work.await?)?) })
                }
                Err(error) => {
                    let why = format!("the arguments are not what the handler takes: {error}");
                    Box::pin(async { Err(Failure::permanent(why).kind("arguments")) })
                }
            }
        });
        self.by_type.insert(job_type, handler);
    }

    pub(super) fn add_raw<F, W>(&mut self, job_type: String, handler: F)
    where
        F: Fn(Context) -> W + Send + Sync + 'static,
        W: Future<Output = HandlerResult> + Send + 'static,
    {
        self.by_type.insert(job_type, Arc::new(move |context| Box::pin(handler(context))));
    }

    pub(super) fn set_any<F, W>(&mut self, handler: F)
    where
        F: Fn(Context) -> W + Send + Sync + 'static,
        W: Future<Output = HandlerResult> + Send + 'static,
    {
        self.any = Some(Arc::new(move |context| Box::pin(handler(context))));
    }

    pub(super) fn wrap<F, W>(&mut self, middleware: F)
    where
        F: Fn(Context, Next) -> W + Send + Sync + 'static,
        W: Future<Output = HandlerResult> + Send + 'static,
    {
        self.middleware.push(Arc::new(move |context, next| Box::pin(middleware(context, next))));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_type.is_empty() && self.any.is_none()
    }

    /// The types that the worker takes; empty when it takes every type.
    pub(super) fn types(&self) -> Vec<&str> {
        let mut types: Vec<_> = self.by_type.keys().map(String::as_str).collect();
        if self.any.is_some() {
            types.clear();
        }
        types.sort_unstable();
        types
    }

    /// Starts the handler of a job.
    pub(super) fn work(&self, context: Context) -> HandlerFuture {
        let handler = self.by_type.get(context.job_type()).or(self.any.as_ref());
        let Some(handler) = handler.map(Arc::clone) else {
            let why = format!("this worker has no handler for jobs of type {:?}", context.job_type());
            return Box::pin(async { Err(Failure::new(why).kind("no_handler")) });
        };
        Next { handler, rest: self.middleware.clone().into(), at: 0 }.run(context)
    }
}
