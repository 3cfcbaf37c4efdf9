//! Jobs: work that is enqueued, scheduled, run by a worker, retried and watched.

pub mod calendar;
