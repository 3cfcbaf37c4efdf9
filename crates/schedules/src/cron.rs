//! Cron expressions: the wall-clock times that they name.
//!
//! Five fields (minute, hour, day of the month, month, day of the week) or six with seconds first; names of months
//! and days, lists, ranges, steps, and the common words such as `@daily`. Where both fields of days are restricted,
//! either is enough, as in every crontab. Always: an expression that never fires is refused. Not here: zones and
//! clock changes (`zone`), and the letters `L`, `W`, `#` and `?` of other dialects, which are refused.

use std::fmt;
use std::str::FromStr;

use jiff::civil::{Date, DateTime, Time, date};

use crate::cron_field::{self as field, CronField, NumberSet};
use crate::error::InvalidSchedule;

/// Bytes of an expression: enough to list every minute of an hour and more.
const TEXT_BYTES_MAX: usize = 512;

/// An expression that does not fire between 2000 and this day never fires: every combination of a date and a day of
/// the week occurs within forty years, and the calendar repeats.
const LAST_DAY: Date = date(2050, 1, 1);

const WORDS: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

/// A cron expression.
#[derive(Clone, Debug)]
pub struct Cron {
    text: String,
    seconds: NumberSet,
    minutes: NumberSet,
    hours: NumberSet,
    days: CronField,
    months: NumberSet,
    weekdays: CronField,
    is_periodic: bool,
}

impl FromStr for Cron {
    type Err = InvalidSchedule;

    fn from_str(text: &str) -> Result<Self, InvalidSchedule> {
        let text = text.trim();
        if text.len() > TEXT_BYTES_MAX {
            let problem =
                format!("an expression has at most {TEXT_BYTES_MAX} bytes; split it into schedules");
            return Err(InvalidSchedule::new("cron", problem));
        }
        let cron = Self::parse(text)?;
        let (start, end) = (date(2000, 1, 1), LAST_DAY);
        if cron.first(start.to_datetime(Time::midnight()), end.to_datetime(Time::midnight())).is_none() {
            return Err(InvalidSchedule::new(
                "cron",
                format!("{text:?} never fires: no year has such a day"),
            ));
        }
        Ok(cron)
    }
}

impl Cron {
    fn parse(text: &str) -> Result<Self, InvalidSchedule> {
        let word = WORDS.iter().find(|(word, _)| word.eq_ignore_ascii_case(text));
        if text.starts_with('@') && word.is_none() {
            let words: Vec<_> = WORDS.iter().map(|(word, _)| *word).collect();
            let problem = format!("{text:?} is not known; the words are {}", words.join(", "));
            return Err(InvalidSchedule::new("cron", problem));
        }
        let fields: Vec<_> = word.map_or(text, |(_, fields)| fields).split_ascii_whitespace().collect();
        let (second, rest) = match fields[..] {
            [second, ref rest @ ..] if rest.len() == 5 => {
                (field::parse(second, &field::SECOND)?.values, rest)
            }
            ref rest if rest.len() == 5 => (NumberSet::only(0), rest),
            _ => {
                let problem = format!(
                    "an expression has 5 fields (minute, hour, day of the month, month, day of the week) or 6 \
                     with seconds first; this one has {}",
                    fields.len()
                );
                return Err(InvalidSchedule::new("cron", problem));
            }
        };
        let (minute, hour) = (field::parse(rest[0], &field::MINUTE)?, field::parse(rest[1], &field::HOUR)?);
        Ok(Self {
            text: text.into(),
            seconds: second,
            minutes: minute.values,
            hours: hour.values,
            days: field::parse(rest[2], &field::DAY)?,
            months: field::parse(rest[3], &field::MONTH)?.values,
            weekdays: field::parse(rest[4], &field::WEEKDAY)?,
            is_periodic: minute.is_periodic || hour.is_periodic,
        })
    }

    /// Whether the expression is periodic, with a star or a step in hours or minutes, instead of a list of times of day.
    pub(crate) fn is_periodic(&self) -> bool {
        self.is_periodic
    }

    /// The first time named from `from`, which has whole seconds, and before `end`.
    pub(crate) fn first(&self, from: DateTime, end: DateTime) -> Option<DateTime> {
        let (mut day, mut since) = (from.date(), from.time());
        while day.to_datetime(Time::midnight()) < end {
            if !self.has_month(day) {
                day = day.last_of_month().tomorrow().ok()?;
            } else if self.has_day(day)
                && let Some(time) = self.first_time(since)
            {
                return Some(day.to_datetime(time)).filter(|found| *found < end);
            } else {
                day = day.tomorrow().ok()?;
            }
            since = Time::midnight();
        }
        None
    }

    /// The last time named from `from` on and before `end`.
    pub(crate) fn last(&self, from: DateTime, end: DateTime) -> Option<DateTime> {
        let (mut day, mut until) = (end.date(), Some(end.time()));
        while day >= from.date() {
            if !self.has_month(day) {
                day = day.first_of_month().yesterday().ok()?;
            } else if self.has_day(day)
                && let Some(time) = self.last_time(until)
            {
                return Some(day.to_datetime(time)).filter(|found| *found >= from);
            } else {
                day = day.yesterday().ok()?;
            }
            until = None;
        }
        None
    }

    fn has_month(&self, day: Date) -> bool {
        self.months.has(number(day.month()))
    }

    fn has_day(&self, day: Date) -> bool {
        let by_date = self.days.values.has(number(day.day()));
        let by_weekday = self.weekdays.values.has(number(day.weekday().to_sunday_zero_offset()));
        if self.days.is_any || self.weekdays.is_any { by_date && by_weekday } else { by_date || by_weekday }
    }

    /// The first time of a day from `since` on.
    fn first_time(&self, since: Time) -> Option<Time> {
        let (hour, minute, second) = parts(since);
        if self.hours.has(hour) {
            if self.minutes.has(minute)
                && let Some(second) = self.seconds.first_from(second)
            {
                return time(hour, minute, second);
            }
            if let Some(minute) = self.minutes.first_from(minute + 1) {
                return time(hour, minute, self.seconds.first_from(0)?);
            }
        }
        time(self.hours.first_from(hour + 1)?, self.minutes.first_from(0)?, self.seconds.first_from(0)?)
    }

    /// The last time of a day before `until`, or of the whole day.
    fn last_time(&self, until: Option<Time>) -> Option<Time> {
        let (hour, minute, second) = until.map_or((24, 0, 0), parts);
        if self.hours.has(hour) {
            if self.minutes.has(minute)
                && let Some(second) = self.seconds.last_below(second)
            {
                return time(hour, minute, second);
            }
            if let Some(minute) = self.minutes.last_below(minute) {
                return time(hour, minute, self.seconds.last_below(60)?);
            }
        }
        time(self.hours.last_below(hour)?, self.minutes.last_below(60)?, self.seconds.last_below(60)?)
    }
}

impl fmt::Display for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A part of a date or a time, none of which is negative.
fn number(part: i8) -> u32 {
    u32::from(part.unsigned_abs())
}

fn parts(time: Time) -> (u32, u32, u32) {
    (number(time.hour()), number(time.minute()), number(time.second()))
}

fn time(hour: u32, minute: u32, second: u32) -> Option<Time> {
    let part = |number: u32| i8::try_from(number).ok();
    Time::new(part(hour)?, part(minute)?, part(second)?, 0).ok()
}
