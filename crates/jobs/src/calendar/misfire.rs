//! What becomes of fires that nobody was there for.
//!
//! A look at a schedule finds its oldest fire that has not happened. While that one is not later than the grace
//! allows, nothing was missed, and all that is due fires. Otherwise the policy decides about everything due at once.
//! Always: at most [`FIRES_MAX`] fires per look, the newest ones; the work is bounded however long the downtime was;
//! what was decided about lies in the past, so the next fire lies in the future.

use std::time::Duration;

use baton_types::Timestamp;
use serde::{Deserialize, Serialize};

use super::Calendar;

/// The most fires that are made up for at once; older ones are given up.
pub const FIRES_MAX: usize = 100;

/// How late a fire may be without counting as missed, unless the schedule says otherwise.
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

/// What a look at a schedule came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CatchUp {
    /// The nominal times to fire for, in order.
    pub fires: Vec<Timestamp>,
    /// Whether some were missed, so that the policy had a say.
    pub is_misfire: bool,
    /// The next nominal time, after now; none when the schedule has ended.
    pub next: Option<Timestamp>,
}

/// What is to fire `now`, the oldest fire that has not happened being `oldest`; `None` when that is still ahead.
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
