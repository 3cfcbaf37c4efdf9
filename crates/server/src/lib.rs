//! The HTTP front of Baton: routes requests, asks the broker, writes answers.
//!
//! The wire is the one that existing queue clients speak. Payloads pass through as bytes: a push borrows them from
//! the request's body, a pop writes its answer around them. Always: every body, name, list, wait and connection
//! has a limit, and at the limit the caller is told what to do; statuses and codes are decided in `error` alone;
//! routes, settings and error codes are tables, from which the reference pages in `docs/` are printed.
//! Deliberately absent: sockets and the rules of HTTP/1 (`baton-http` has them), and those of queues (`baton-queue`).
//!
//! Start at [`Server`], then `wiring::service`, then `routes`.

mod app;
mod call;
mod cluster;
pub mod docs;
mod elections;
pub mod error;
mod ignored;
mod json;
mod json_writer;
mod lag;
mod members;
pub mod metrics;
mod names;
mod openapi;
mod options;
mod process;
pub mod routes;
mod timeline;
mod unknown;
mod wiring;

pub use app::App;
pub use baton_config::Settings;
pub use baton_http::Reply;
pub use call::{Answer, Call, Handler};
pub use options::Options;
pub use wiring::{BindError, Server, Testing, testing, testing_with};
