//! The store's time: monotonic time, slewed toward the machine's clock.
//!
//! Always: while the store is open, no step of the machine's clock lets anything expire early or stand still. A start takes
//! the machine's clock, unless it is implausibly far from the stored time. Then the store refuses to open, because stored
//! time cannot go back by itself. Start at [`start_time`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use baton_env::{Clock, SlewedClock};
use baton_store::Error;
use baton_types::Timestamp;

use crate::index::{RowWrite, Tables, engine_error};
use crate::options::Options;
use crate::rows::{Counters, decode_cursor, encode_cursor};

/// How far the stored time may be ahead of the machine's clock at a start.
const AHEAD_MAX: Duration = Duration::from_secs(24 * 3600);
/// How far the machine's clock may be ahead of the stored time at a start: a store may be closed for long.
const BEHIND_MAX: Duration = Duration::from_secs(366 * 24 * 3600);
/// A difference of this length is logged.
const LOGGED_DIFFERENCE: Duration = Duration::from_secs(10);

/// The store's time, for any thread.
pub struct StoreClock {
    clock: Arc<dyn Clock>,
    slewed: Mutex<SlewedClock>,
    is_off: AtomicBool,
}

impl StoreClock {
    pub fn new(clock: Arc<dyn Clock>, now: Timestamp) -> Self {
        let slewed = Mutex::new(SlewedClock::new(now, clock.elapsed()));
        Self { clock, slewed, is_off: AtomicBool::new(false) }
    }

    pub fn now(&self) -> Timestamp {
        let mut slewed = self.slewed.lock().unwrap_or_else(PoisonError::into_inner);
        let wall = self.clock.now();
        let now = slewed.advance(wall, self.clock.elapsed());
        drop(slewed);
        let is_off = now.since(wall).max(wall.since(now)) > LOGGED_DIFFERENCE;
        if is_off != self.is_off.load(Ordering::Relaxed)
            && self.is_off.swap(is_off, Ordering::Relaxed) != is_off
        {
            match is_off {
                true => tracing::warn!(
                    store = %now, clock = %wall,
                    "the machine's clock was stepped; the store follows it slowly, a restart at once"
                ),
                false => tracing::info!("the store has caught up with the machine's clock"),
            }
        }
        now
    }
}

/// The store's time at a start.
pub fn start_time(options: &Options, stored: &Counters) -> Result<Timestamp, Error> {
    let (wall, stored) = (options.clock.now(), stored.now);
    if options.resets_clock || stored == Timestamp::MIN {
        return Ok(wall);
    }
    if stored.since(wall) > AHEAD_MAX || wall.since(stored) > BEHIND_MAX {
        let directory = options.directory.display();
        return Err(Error::Unusable(format!(
            "the last commit in {directory} is of {stored}, and this machine's clock says {wall}: set the clock, or, if \
             it is right, run `baton data reset-clock --data {directory}`"
        )));
    }
    Ok(wall.max(stored))
}

/// Rows of all cursors whose lease or delay ends after `now`, so that it ends at `now`.
pub fn reset_cursors(tables: &Tables, now: Timestamp) -> Result<Vec<RowWrite>, Error> {
    let mut writes = Vec::new();
    for entry in tables.cursors.iter() {
        let (key, value) = entry.into_inner().map_err(engine_error)?;
        let mut cursor = decode_cursor(&value)?;
        if cursor.available_at > now {
            cursor.available_at = now;
            if let Some(lease) = &mut cursor.lease {
                lease.until = lease.until.min(now);
            }
            writes.push(RowWrite {
                table: tables.cursors.clone(),
                key,
                value: Some(encode_cursor(&cursor).into()),
            });
        }
    }
    Ok(writes)
}
