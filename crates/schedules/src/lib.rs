//! When schedules fire: cron expressions in a time zone, intervals, single moments, and what happens to missed fires.
//!
//! A [`Calendar`] is a set of moments, the *nominal times*. It depends on its text alone: not on when it is asked, not
//! on the server, not on the machine's own time-zone files. So two servers compute the same fires, and a nominal time
//! names a fire. [`catch_up`] decides about fires that are late, and [`plan_fires`] about fires that overlap a running
//! job. Always: [`Calendar::next`] is later than its argument and skips no fire; [`Calendar::last`] walks the same
//! moments backwards; both end. Not here: the present time, storage, and jobs (`baton-jobs`). Start at [`Calendar`];
//! `zone` says what a clock change does to a cron expression.

mod calendar;
mod cron;
mod cron_field;
mod error;
mod fires;
mod interval;
mod jitter;
mod misfire;
mod zone;

pub use calendar::{Calendar, Recurrence};
pub use cron::Cron;
pub use error::InvalidSchedule;
pub use fires::{FirePlan, FireState, Overlap, plan_fires};
pub use interval::Interval;
pub use jitter::jitter;
pub use misfire::{CatchUp, FIRES_MAX, GRACE, Misfire, catch_up};
pub use zone::{DstGap, DstOverlap, Zone, database_version};
