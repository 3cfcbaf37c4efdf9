//! Every error a caller can see, in one table: kind, status, code and a line of help.
//!
//! A handler says what went wrong as a [`Kind`]; only this file knows the status and the code, and the reference
//! page is printed from the same table. Always: nothing of a request that was answered with an error has
//! happened, except where the help says otherwise. Not here: outcomes of single items (a refused ack is an
//! answer, not an error). Start at [`TABLE`].

mod conversions;

use std::time::Duration;

use baton_http::Reply;
use http::{HeaderValue, StatusCode, header};

use crate::json_writer;

/// What went wrong, sorted by what the caller can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A parameter or field is wrong.
    Invalid,
    /// The body is missing or is not JSON.
    BadBody,
    /// The body has the right shape, and says something that cannot be.
    Unprocessable,
    /// The thing named does not exist.
    NotFound,
    /// No such path.
    NoSuchRoute,
    /// Servers of Queen have this route, and this server has not.
    NotSupported,
    /// The path exists, the method does not.
    MethodNotAllowed,
    /// There is no token, or it is not valid.
    Unauthenticated,
    /// The token is valid, but its role does not allow this.
    Forbidden,
    /// A page of another site sends the request, or it was sent to another name than the server's.
    ForeignSite,
    /// The body did not arrive in time.
    RequestTimeout,
    /// The target of the request is longer than a target may be.
    TargetTooLong,
    /// The head of the request is larger than a head may be.
    HeadTooLarge,
    /// The request speaks a version of HTTP that the server does not.
    UnknownVersion,
    /// The body is larger than a body may be.
    BodyTooLarge,
    /// The body is compressed, or something else than JSON.
    UnsupportedMedia,
    /// The list in the body is longer than a list may be.
    BatchTooLarge,
    /// A name or id is longer than it may be.
    NameTooLong,
    /// The queue is at its `maxSize`.
    QueueFull,
    /// The server is at one of its own limits.
    Overloaded,
    /// The server is stopping.
    ShuttingDown,
    /// The keys that tokens are checked with cannot be had.
    KeysUnavailable,
    /// A payload cannot be encrypted or decrypted, because the key is not there.
    EncryptionKeyMissing,
    /// The store has too much under way.
    StoreBusy,
    /// The disk is nearly full.
    DiskFull,
    /// The store does not work any more.
    StoreClosed,
    /// Something stored is damaged.
    Corrupt,
    /// An operation on records is wrong.
    KvInvalid,
    /// An operation on locks is wrong.
    LocksInvalid,
    /// An operation on timers is wrong.
    TimersInvalid,
    /// A timer is further in the future than a timer may be.
    TimerTooFar,
    /// A value or payload is larger than it may be.
    PayloadTooLarge,
    /// Things are not as this needs them to be.
    Conflict,
    /// What `If-Match` names is not what is there.
    PreconditionFailed,
    /// There are as many of something as there may be.
    LimitReached,
    /// Another life of the worker has registered since.
    FencedSession,
    /// Another identity has registered the worker, and it is alive.
    NotOwner,
    /// A request was passed on by a server of another cluster.
    Misdirected,
    /// The server that a write was passed on to did not answer, and it may have happened.
    OutcomeUnknown,
    /// The call took longer than a call may take, and it may still happen.
    TookTooLong,
    /// A mistake of ours.
    Internal,
}

/// One row of the error reference.
#[derive(Debug)]
pub struct Row {
    /// The kind.
    pub kind: Kind,
    /// The HTTP status.
    pub status: StatusCode,
    /// The `code` member of the body.
    pub code: &'static str,
    /// What the reader can do next.
    pub help: &'static str,
}

const fn row(kind: Kind, status: StatusCode, code: &'static str, help: &'static str) -> Row {
    Row { kind, status, code, help }
}

/// Every kind, in the order of [`Kind`].
pub const TABLE: &[Row] = &[
    row(
        Kind::Invalid,
        StatusCode::BAD_REQUEST,
        "bad_request",
        "Fix what the text names; repeating the call as it is will fail again.",
    ),
    row(
        Kind::BadBody,
        StatusCode::BAD_REQUEST,
        "bad_body",
        "Send a JSON body of the shape that the route expects; a payload may be nested 100 levels deep.",
    ),
    row(
        Kind::Unprocessable,
        StatusCode::UNPROCESSABLE_ENTITY,
        "unprocessable",
        "Fix what the text names; repeating the call as it is will fail again.",
    ),
    row(
        Kind::NotFound,
        StatusCode::NOT_FOUND,
        "not_found",
        "Check the name or id; it may have been deleted.",
    ),
    row(
        Kind::NoSuchRoute,
        StatusCode::NOT_FOUND,
        "no_such_route",
        "Check the path against the route reference.",
    ),
    row(
        Kind::NotSupported,
        StatusCode::NOT_IMPLEMENTED,
        "not_supported",
        "Use what the text names instead; [Coming from Queen](coming-from-queen.md) lists what is not supported.",
    ),
    row(
        Kind::MethodNotAllowed,
        StatusCode::METHOD_NOT_ALLOWED,
        "method_not_allowed",
        "Use one of the methods in the `Allow` header.",
    ),
    row(
        Kind::Unauthenticated,
        StatusCode::UNAUTHORIZED,
        "unauthenticated",
        "Send `Authorization: Bearer TOKEN` with a token that is valid now; the text says what is wrong with this one.",
    ),
    row(
        Kind::Forbidden,
        StatusCode::FORBIDDEN,
        "forbidden",
        "Use a token whose role allows this; the route reference names the level.",
    ),
    row(
        Kind::ForeignSite,
        StatusCode::FORBIDDEN,
        "foreign_site",
        "A browser page of another site sent this, or it was sent to a name that is not the server's. List the site in \
         `cors_origins`, or the name in `allowed_hosts`.",
    ),
    row(
        Kind::RequestTimeout,
        StatusCode::REQUEST_TIMEOUT,
        "request_timeout",
        "The body came too slowly or stopped; nothing was changed, send it again.",
    ),
    row(
        Kind::TargetTooLong,
        StatusCode::URI_TOO_LONG,
        "target_too_long",
        "Shorten the path and the query; the head of a request holds at most 64 KiB.",
    ),
    row(
        Kind::HeadTooLarge,
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        "head_too_large",
        "Send fewer or shorter headers; a request holds at most 100 of them in 64 KiB.",
    ),
    row(Kind::UnknownVersion, StatusCode::HTTP_VERSION_NOT_SUPPORTED, "unknown_version", "Use HTTP/1.1."),
    row(
        Kind::BodyTooLarge,
        StatusCode::PAYLOAD_TOO_LARGE,
        "body_too_large",
        "Split the request; a body holds at most 64 MiB, on many routes less.",
    ),
    row(
        Kind::UnsupportedMedia,
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "unsupported_media",
        "Send uncompressed JSON; the text names what to switch off.",
    ),
    row(
        Kind::BatchTooLarge,
        StatusCode::PAYLOAD_TOO_LARGE,
        "batch_too_large",
        "Split the request; a list holds at most 100000 items.",
    ),
    row(
        Kind::NameTooLong,
        StatusCode::PAYLOAD_TOO_LARGE,
        "name_too_long",
        "Shorten the name: 255 bytes for names, 65535 for transaction ids.",
    ),
    row(
        Kind::QueueFull,
        StatusCode::TOO_MANY_REQUESTS,
        "queue_full",
        "Wait as `Retry-After` says, consume some messages, or raise the queue's `maxSize`.",
    ),
    row(
        Kind::Overloaded,
        StatusCode::SERVICE_UNAVAILABLE,
        "overloaded",
        "The server is at a limit and changed nothing; try again after `Retry-After`.",
    ),
    row(
        Kind::ShuttingDown,
        StatusCode::SERVICE_UNAVAILABLE,
        "shutting_down",
        "The server is stopping and changed nothing; ask another one or try again.",
    ),
    row(
        Kind::KeysUnavailable,
        StatusCode::SERVICE_UNAVAILABLE,
        "keys_unavailable",
        "The issuer's keys could not be read yet (`jwt_jwks_url`), so no token can be checked; try again.",
    ),
    row(
        Kind::EncryptionKeyMissing,
        StatusCode::SERVICE_UNAVAILABLE,
        "encryption_key_missing",
        "Start the server with the key that the text names among its `encryption_keys`; nothing was changed.",
    ),
    row(
        Kind::StoreBusy,
        StatusCode::SERVICE_UNAVAILABLE,
        "retry",
        "The store is busy and changed nothing; try again after `Retry-After`.",
    ),
    row(
        Kind::DiskFull,
        StatusCode::INSUFFICIENT_STORAGE,
        "storage_full",
        "Free some disk space or lower `min_free_disk`; deletes still work, and acks until a quarter of it is left.",
    ),
    row(
        Kind::StoreClosed,
        StatusCode::SERVICE_UNAVAILABLE,
        "storage_closed",
        "The store has stopped, or failed during this call; the server's log says why. A write may or may not have happened: repeat it with the same transaction id.",
    ),
    row(
        Kind::Corrupt,
        StatusCode::INTERNAL_SERVER_ERROR,
        "corrupt",
        "Stored data is damaged; the server's log names it. Restore from a copy.",
    ),
    row(
        Kind::KvInvalid,
        StatusCode::BAD_REQUEST,
        "kv_bad_request",
        "Fix what `reason` and `detail` name; nothing of the call was done.",
    ),
    row(
        Kind::LocksInvalid,
        StatusCode::BAD_REQUEST,
        "locks_bad_request",
        "Fix what `reason` and `detail` name; nothing of the call was done.",
    ),
    row(
        Kind::TimersInvalid,
        StatusCode::BAD_REQUEST,
        "timers_bad_request",
        "Fix what `reason` and `detail` name; nothing of the call was done.",
    ),
    row(
        Kind::TimerTooFar,
        StatusCode::FORBIDDEN,
        "timer_horizon_exceeded",
        "Set the timer for at most 90 days ahead, and set it again when it fires.",
    ),
    row(
        Kind::PayloadTooLarge,
        StatusCode::PAYLOAD_TOO_LARGE,
        "payload_too_large",
        "Send a smaller value, or store it elsewhere with a reference here; `detail` names the limit.",
    ),
    row(
        Kind::Conflict,
        StatusCode::CONFLICT,
        "conflict",
        "The state does not allow the call; `reason` says why. Read the state again before you repeat it.",
    ),
    row(
        Kind::PreconditionFailed,
        StatusCode::PRECONDITION_FAILED,
        "precondition_failed",
        "Another client changed it since it was read: read it again, and send the `ETag` of that response.",
    ),
    row(
        Kind::LimitReached,
        StatusCode::UNPROCESSABLE_ENTITY,
        "limit_reached",
        "A limit is reached; the text names it. Repeating the call does not help: remove something.",
    ),
    row(
        Kind::FencedSession,
        StatusCode::CONFLICT,
        "fenced_session",
        "Another process uses this worker's id: stop using its shards, and register under an id of your own.",
    ),
    row(
        Kind::NotOwner,
        StatusCode::FORBIDDEN,
        "not_owner",
        "The subject of another token, or another CURVE key, registered this worker, and it is alive: use an id of your own.",
    ),
    row(
        Kind::Misdirected,
        StatusCode::MISDIRECTED_REQUEST,
        "misdirected",
        "A server of another cluster forwarded this; nothing was changed. Check `advertise` and `peers` of both.",
    ),
    row(
        Kind::OutcomeUnknown,
        StatusCode::GATEWAY_TIMEOUT,
        "outcome_unknown",
        "Another server of the cluster went away before it answered. The write may or may not have happened: check before you repeat it.",
    ),
    row(
        Kind::TookTooLong,
        StatusCode::SERVICE_UNAVAILABLE,
        "took_too_long",
        "The store was too slow for `call_timeout_ms`. The write may have happened or may still happen: after `Retry-After` repeat it with the same transaction id or `Idempotency-Key`, or look before repeating it.",
    ),
    row(
        Kind::Internal,
        StatusCode::INTERNAL_SERVER_ERROR,
        "internal",
        "A bug in the server; please report it with the server's log.",
    ),
];

impl Kind {
    /// The row of this kind.
    pub fn row(self) -> &'static Row {
        // The order is checked by a test; the first row is only a way not to panic.
        TABLE.get(self as usize).unwrap_or(&TABLE[0])
    }
}

/// The body that an error is wrapped in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Shape {
    /// `{"error", "code"}`.
    #[default]
    Plain,
    /// The same with `"success": false, "messages": []`, which clients expect of a refused pop.
    Pop,
    /// The same with `"success": false`.
    Outcome,
    /// `{"error": code, "reason": this, "detail": text, "code"}`, for records, locks and timers.
    Reason(&'static str),
}

/// An error on its way to the caller.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: Kind,
    message: String,
    retry_after: Option<Duration>,
    allow: Option<String>,
    shape: Shape,
}

impl Error {
    /// An error of `kind` that says `message`.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), retry_after: None, allow: None, shape: Shape::Plain }
    }

    /// The request is wrong in the way that `message` says.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, message)
    }

    /// What the body says cannot be, in the way that `message` says.
    pub fn unprocessable(message: impl Into<String>) -> Self {
        Self::new(Kind::Unprocessable, message)
    }

    /// The same about a parameter, where the code that found it took it for a part of a body.
    pub fn of_query(self) -> Self {
        if self.kind == Kind::Unprocessable { Self { kind: Kind::Invalid, ..self } } else { self }
    }

    /// The same about a part of a body, where the code that found it took it for a parameter.
    pub fn of_body(self) -> Self {
        if self.kind == Kind::Invalid { Self { kind: Kind::Unprocessable, ..self } } else { self }
    }

    /// The same with a fine `reason` for clients to branch on.
    pub fn refused(kind: Kind, reason: &'static str, message: impl Into<String>) -> Self {
        Self { shape: Shape::Reason(reason), ..Self::new(kind, message) }
    }

    /// What `message` names does not exist.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(Kind::NotFound, message)
    }

    /// The server is at the limit that `message` names.
    pub fn overloaded(message: impl Into<String>) -> Self {
        Self { retry_after: Some(Duration::from_secs(1)), ..Self::new(Kind::Overloaded, message) }
    }

    /// The call has not come to an end within `allowed`.
    pub fn took_too_long(allowed: Duration) -> Self {
        let message = format!(
            "the store did not finish this within {} s; it may have happened or may still happen: repeat it with the \
             same transactionId or Idempotency-Key, or look before repeating it",
            allowed.as_secs_f64()
        );
        Self { retry_after: Some(Duration::from_secs(5)), ..Self::new(Kind::TookTooLong, message) }
    }

    /// The path is there, but only for the methods in `allow`.
    pub fn method_not_allowed(allow: String) -> Self {
        Self { allow: Some(allow), ..Self::new(Kind::MethodNotAllowed, "Method Not Allowed") }
    }

    /// The same error in the shape of a refused pop.
    #[must_use]
    pub fn of_pop(self) -> Self {
        Self { shape: Shape::Pop, ..self }
    }

    /// The same error with `"success": false` beside it.
    #[must_use]
    pub fn of_outcome(self) -> Self {
        Self { shape: Shape::Outcome, ..self }
    }

    /// What went wrong.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The answer that tells of it.
    pub fn into_reply(self) -> Reply {
        let row = self.kind.row();
        let ours =
            row.status.is_server_error() && !matches!(self.kind, Kind::UnknownVersion | Kind::NotSupported);
        if ours && self.retry_after.is_none() {
            tracing::warn!(code = row.code, error = %self.message, "a request failed");
        }
        let mut body = Vec::with_capacity(64 + self.message.len());
        body.extend_from_slice(match self.shape {
            Shape::Plain => b"{".as_slice(),
            Shape::Pop => b"{\"success\":false,\"messages\":[],".as_slice(),
            Shape::Outcome => b"{\"success\":false,".as_slice(),
            Shape::Reason(_) => b"{\"reason\":".as_slice(),
        });
        if let Shape::Reason(reason) = self.shape {
            json_writer::string(&mut body, reason);
            body.extend_from_slice(b",\"error\":");
            json_writer::string(&mut body, row.code);
            body.extend_from_slice(b",\"detail\":");
        } else {
            body.extend_from_slice(b"\"error\":");
        }
        json_writer::string(&mut body, &self.message);
        body.extend_from_slice(b",\"code\":");
        json_writer::string(&mut body, row.code);
        body.push(b'}');
        let mut reply = Reply::json(row.status, body);
        if self.kind == Kind::Unauthenticated {
            reply = reply.with_header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(after) = self.retry_after {
            let seconds = after.as_millis().div_ceil(1000).max(1);
            if let Ok(value) = HeaderValue::from_str(&seconds.to_string()) {
                reply = reply.with_header(header::RETRY_AFTER, value);
            }
        }
        if let Some(value) = self.allow.and_then(|allow| HeaderValue::from_str(&allow).ok()) {
            reply = reply.with_header(header::ALLOW, value);
        }
        reply
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_stands_at_its_own_row() {
        for (place, row) in TABLE.iter().enumerate() {
            assert_eq!(row.kind as usize, place);
            assert_eq!(row.kind.row().code, row.code);
        }
        assert_eq!(TABLE.len(), Kind::Internal as usize + 1);
    }

    #[test]
    fn a_full_queue_says_when_to_come_back() {
        let error = baton_queue::Error::QueueFull { queue: "q".into(), size: 9, max: 9, first_beyond: 0 };
        let reply = Error::from(error).into_reply();
        assert_eq!(reply.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(reply.header(&header::RETRY_AFTER).unwrap(), "1");
    }

    #[test]
    fn a_limit_that_time_does_not_lift_is_no_reason_to_try_again() {
        let full = Error::from(baton_shards::Refusal::Full("1000 services".into())).into_reply();
        assert_eq!(full.status(), StatusCode::UNPROCESSABLE_ENTITY);
        assert!(full.header(&header::RETRY_AFTER).is_none());
        let busy = Error::from(baton_shards::Refusal::Busy("too many wait".into())).into_reply();
        assert_eq!(busy.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(busy.header(&header::RETRY_AFTER).is_some());
    }

    #[test]
    fn a_refusal_with_a_reason_names_code_reason_and_text() {
        let reply = Error::refused(Kind::KvInvalid, "kv_bad_key", "no").into_reply();
        let body: serde_json::Value = serde_json::from_slice(reply.body()).unwrap();
        let expected = serde_json::json!(
            {"error": "kv_bad_request", "code": "kv_bad_request", "reason": "kv_bad_key", "detail": "no"}
        );
        assert_eq!((reply.status(), body), (StatusCode::BAD_REQUEST, expected));
    }

    #[test]
    fn a_refused_pop_still_has_messages() {
        let reply = Error::invalid("no \"x\"").of_pop().into_reply();
        let body: serde_json::Value = serde_json::from_slice(reply.body()).unwrap();
        let expected = serde_json::json!(
            {"success": false, "messages": [], "error": "no \"x\"", "code": "bad_request"}
        );
        assert_eq!(body, expected);
    }
}
