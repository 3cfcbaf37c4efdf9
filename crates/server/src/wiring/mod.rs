//! How the parts become a server: it is bound to its address, and requests are led from a connection to their route.
//!
//! Nothing else uses this folder. Start at [`Server`], then at what `service` does with a request.

mod server;
mod service;
mod testing;

pub use server::{BindError, Server};
pub use testing::{Testing, testing, testing_with};
