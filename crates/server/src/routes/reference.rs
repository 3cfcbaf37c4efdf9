//! `/api/openapi.json` and `/api/docs`: what this server can do, for programs and for people.

use baton_http::Reply;
use http::StatusCode;

use crate::call::{Answer, Call};
use crate::openapi::{DOCUMENT, PAGE};

/// The OpenAPI document.
pub(super) fn document(_: Call) -> Answer {
    Box::pin(async { Ok(Reply::json(StatusCode::OK, DOCUMENT.as_bytes())) })
}

/// The page that shows it.
pub(super) fn page(_: Call) -> Answer {
    Box::pin(async { Ok(Reply::text(StatusCode::OK, "text/html; charset=utf-8", PAGE)) })
}
