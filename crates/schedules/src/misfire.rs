//! Misfires: fires whose nominal time passed while no server could act.
//!
//! A check of a schedule starts from its oldest fire that has not happened. If that fire is late by no more than the
//! grace, nothing was missed and everything due fires. Otherwise the policy decides about all due fires at once.
//! Always: a check makes at most [`FIRES_MAX`] fires, the newest ones, however long the downtime was; the next fire
//! lies in the future.

use std::time::Duration;

use baton_types::Timestamp;
use serde::{Deserialize, Serialize};

use crate::calendar::Calendar;

/// The most fires that one check makes; it drops older ones.
pub const FIRES_MAX: usize = 100;

/// How late a fire may be without counting as missed, by default.
pub const GRACE: Duration = Duration::from_secs(60);

/// What to do about fires that were missed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Misfire {
    /// One job for all of them, under the nominal time of the newest.
    #[default]
    Once,
    /// One job for each, up to [`FIRES_MAX`].
    All,
    /// No job.
    Skip,
}

/// The result of [`catch_up`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CatchUp {
    /// The nominal times to fire for, in order.
    pub fires: Vec<Timestamp>,
    /// Whether fires were missed, so that the policy applied.
    pub is_misfire: bool,
    /// The next nominal time after now; `None` when the schedule has ended.
    pub next: Option<Timestamp>,
}

/// Decides what fires `now`. `oldest` is the oldest fire that has not happened; `None` if it lies in the future.
pub fn catch_up(
    calendar: &Calendar,
    oldest: Timestamp,
    now: Timestamp,
    policy: Misfire,
    grace: Duration,
) -> Option<CatchUp> {
    if oldest > now {
        return None;
    }
    let is_misfire = now.since(oldest) > grace;
    let most = match policy {
        _ if !is_misfire => FIRES_MAX,
        Misfire::Once => 1,
        Misfire::All => FIRES_MAX,
        Misfire::Skip => 0,
    };
    let earlier = |fire: &Timestamp| calendar.last(fire.before(Duration::from_micros(1)));
    let newest_first = std::iter::successors(calendar.last(now), earlier);
    let mut fires: Vec<_> = newest_first.take_while(|fire| *fire >= oldest).take(most).collect();
    fires.reverse();
    Some(CatchUp { fires, is_misfire, next: calendar.next(now) })
}
