//! The PostgreSQL client: addresses, the wire protocol, connections and their errors.

pub mod address;
pub mod connection;
pub mod error;
mod transport;
