//! What all tasks of one server share: running a rule in one commit, wake-ups, hints, counters and options.
//!
//! Always: nothing here decides; what it keeps in memory is a hint or a count. Start at `context`.

pub mod context;
pub mod meter;
pub mod notifiers;
pub mod options;
pub mod participation;
pub mod prefetch;
