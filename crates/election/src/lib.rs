//! Elections: one coordinator among many participants, on S3, Google Cloud Storage, Azure, PostgreSQL, a directory,
//! or a Baton server.
//!
//! Some work must be done by one instance at a time: cleaning up, publishing, scheduling. The instances elect that
//! one, and share nothing but a store with compare-and-set. Always: at most one coordinator for each
//! epoch number, decided by compare-and-set on one record; the number is a fencing token that only rises; a
//! coordinator stops, by its own monotonic clock, before another can begin, whatever wall clocks do; a worker with a
//! different view of the others delays an election, but cannot split it. Deliberately absent: a quorum of its own
//! (the store is the judge), and any trust in the time of another machine.
//!
//! ```
//! use std::sync::Arc;
//! use baton_election::{Candidate, Elector, Leadership, Options, Settings, store};
//!
//! struct CleanUp;
//!
//! impl Candidate for CleanUp {
//!     async fn work(&self, leadership: &Leadership) {
//!         println!("cleaning up, fenced by token {}", leadership.token());
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let store = store::open("memory:").await?; // or s3://bucket/prefix, file:///srv/elections, …
//! let options = Options { settings: Settings { skip_cold_start: true, ..Settings::default() }, ..Options::default() };
//! let elector = Elector::start(Arc::clone(&store), "clean-up", options, CleanUp).await?;
//! # let mut events = elector.events();
//! # while !elector.is_coordinator() { events.recv().await?; }
//! elector.stop().await; // the next one begins at once
//! # Ok(())
//! # }
//! ```
//!
//! Start at [`Elector`], then [`machine`].

mod candidate;
mod elector;
pub mod event;
mod leadership;
#[cfg(feature = "store")]
pub mod lease;
pub mod machine;
mod membership;
mod process;
pub mod record;
pub mod settings;
pub mod store;
pub mod store_calls;

pub use candidate::Candidate;
pub use elector::{Elector, EnsureError, Options, StartError, Status};
pub use event::{Event, Reason};
pub use leadership::{Ended, Leadership};
pub use process::Process;
pub use settings::Settings;
pub use tokio::sync::broadcast;
