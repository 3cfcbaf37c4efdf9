//! Maintenance that the leader runs: timeouts, schedules, retention, compaction, tallies.
//!
//! Always: each commit is guarded by the leader's term. Start at `leader_loop`.

pub mod compaction;
pub mod leader_loop;
pub mod leadership;
pub mod log_retention;
pub mod owner_tally;
pub mod schedule_firing;
pub mod timeouts;
