//! The rules: what each operation does to jobs, queues, workers and schedules, as functions of one unit of work.
//!
//! Always: a rule reads and writes through the unit of work alone, so the store can run it again; it uses no clock
//! but the store's, no network and no task. Start at `state_machine`, then `completion`.

pub mod audit;
pub mod availability;
pub mod cancellation;
pub mod completion;
pub mod enqueue;
pub mod heartbeat;
pub mod history;
pub mod idempotency;
pub mod job_view;
pub mod leasing;
pub mod logs;
pub mod permits;
pub mod queues;
pub mod reporting;
pub mod schedules;
pub mod search;
pub mod state_machine;
pub mod workers;
