//! Running an instance of the store, and replacing it after a failure.

mod instance;
mod supervisor;

pub use supervisor::RecoverySupervisor;
