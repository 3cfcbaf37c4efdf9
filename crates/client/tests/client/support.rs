//! A tiny HTTP server on a real socket that answers as the test says and records its requests.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Its number, from 0.
    pub number: usize,
    pub method: String,
    pub path: String,
    pub authorization: Option<String>,
    pub body: Value,
}

impl Seen {
    /// How many items a push carries.
    pub fn items(&self) -> usize {
        self.body["items"].as_array().map_or(0, Vec::len)
    }

    pub fn is(&self, part: &str) -> bool {
        self.path.contains(part)
    }
}

/// The answer of the test server.
pub enum Reply {
    Json(u16, Value),
    RetryAfter(u16, &'static str),
    /// Status 204.
    Nothing,
    /// Closes the connection without an answer.
    HangUp,
    /// Keeps the connection and never answers.
    Silence,
}

/// `queued` for every item of a push.
pub fn queued(seen: &Seen) -> Reply {
    let results: Vec<_> = (0..seen.items())
        .map(|i| json!({"index": i, "status": "queued", "message_id": "m", "messageId": "m", "transaction_id": "t", "transactionId": "t"}))
        .collect();
    Reply::Json(201, results.into())
}

/// Success for every ack.
pub fn acked(seen: &Seen) -> Reply {
    let acks = seen.body["acknowledgments"].as_array().map_or(1, Vec::len);
    let result = |i| json!({"index": i, "transactionId": "t", "success": true, "error": null, "leaseReleased": true, "dlq": false});
    Reply::Json(200, (0..acks).map(result).collect())
}

/// A pop response with messages `from..to` of one partition; each payload is the number.
pub fn batch(partition: &str, from: usize, to: usize) -> Reply {
    let messages: Vec<_> = (from..to)
        .map(|n| {
            json!({"id": format!("id-{n}"), "transactionId": format!("t-{n}"), "data": n, "createdAt": "2026-11-15T18:34:07.638487Z",
                   "partition": partition, "partitionId": format!("id-{partition}"), "leaseId": "lease-1",
                   "consumerGroup": "billing", "queue": "orders", "offset": n, "deliveryAttempt": 1})
        })
        .collect();
    Reply::Json(
        200,
        json!({"success": true, "leaseId": "lease-1", "partitionsClaimed": 1, "messages": messages}),
    )
}

type Script = dyn Fn(&Seen) -> Reply + Send + Sync;

struct Shared {
    script: Box<Script>,
    seen: Mutex<Vec<Seen>>,
    connections: AtomicUsize,
}

pub struct TestServer {
    pub url: String,
    shared: Arc<Shared>,
    _task: AbortOnDropHandle<()>,
}

impl TestServer {
    pub async fn start(script: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared {
            script: Box::new(script),
            seen: Mutex::default(),
            connections: AtomicUsize::new(0),
        });
        let task = tokio::spawn(listen(listener, Arc::clone(&shared)));
        Self { url, shared, _task: AbortOnDropHandle::new(task) }
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().clone()
    }

    /// The requests whose path holds `part`.
    pub fn seen_at(&self, part: &str) -> Vec<Seen> {
        self.seen().into_iter().filter(|seen| seen.is(part)).collect()
    }

    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }
}

async fn listen(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        shared.connections.fetch_add(1, Ordering::SeqCst);
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let service = service_fn(|request| answer(request, &shared));
            drop(
                hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .await,
            );
        });
    }
}

async fn answer(request: Request<Incoming>, shared: &Shared) -> Result<Response<Full<Bytes>>, &'static str> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let seen = {
        let mut all = shared.seen.lock().unwrap();
        let seen = Seen {
            number: all.len(),
            method: head.method.to_string(),
            path: head.uri.to_string(),
            authorization: head.headers.get("authorization").map(|v| v.to_str().unwrap().to_owned()),
            body: serde_json::from_slice(&body).unwrap_or(Value::Null),
        };
        all.push(seen.clone());
        seen
    };
    let response = Response::builder();
    let response = match (shared.script)(&seen) {
        Reply::Json(status, body) => response.status(status).body(Full::from(body.to_string())),
        Reply::RetryAfter(status, when) => {
            response.status(status).header("retry-after", when).body(Full::from(r#"{"error":"full"}"#))
        }
        Reply::Nothing => response.status(204).body(Full::default()),
        Reply::HangUp => return Err("hang up"),
        Reply::Silence => match std::future::pending::<Infallible>().await {},
    };
    Ok(response.unwrap())
}
