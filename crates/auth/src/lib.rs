//! Who calls, and whether they may.
//!
//! A caller shows a token (a JWT); its roles are compared with the level of what it asks for. Always: off unless switched
//! on; no token and no secret is logged, answered or printed; a token that was found good is remembered until it is
//! over, so that signatures cost nothing on the way of a message. Deliberately absent: users, and anything of HTTP but
//! the path of a request and the value of its `Authorization`. Start at [`Auth::admit`].

mod access;
mod auth;
mod error;
mod issue;
mod jwks;
mod key;
mod options;
mod role;
mod token;
mod token_cache;

pub use access::Access;
pub use auth::{Admission, Auth};
pub use error::Error;
pub use options::Options;
pub use role::{Role, RoleNames};
pub use token::{Algorithm, Identity, Refusal};
