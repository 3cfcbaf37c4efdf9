//! `/api/openapi.json` and `/api/docs`: what this server can do, for programs and for people.

use baton_http::Reply;
use http::StatusCode;

use crate::call::{Answer, Call};

/// The OpenAPI document.
pub(super) fn document(call: Call) -> Answer {
    Box::pin(async move { Ok(Reply::json(StatusCode::OK, (call.app().reference.document)())) })
}

/// The page that shows it.
pub(super) fn page(call: Call) -> Answer {
    Box::pin(
        async move { Ok(Reply::text(StatusCode::OK, "text/html; charset=utf-8", call.app().reference.page)) },
    )
}
