//! State that all tasks of one server share: rules in commits, wake-ups, hints, counters and options.
//!
//! Always: nothing here makes decisions; what it keeps in memory is a hint or a count. Start at `context`.

pub mod context;
pub mod meter;
pub mod notifiers;
pub mod options;
pub mod participation;
pub mod prefetch;
