//! A moment, in microseconds since 1970, as the store's clock told it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A moment in UTC with microsecond precision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Timestamp(i64);

impl Timestamp {
    /// Before every message.
    pub const MIN: Self = Self(i64::MIN);
    /// After every message.
    pub const MAX: Self = Self(i64::MAX);

    /// From microseconds since 1970.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since 1970.
    pub const fn micros(self) -> i64 {
        self.0
    }

    /// Milliseconds since 1970, rounded down.
    pub const fn millis(self) -> i64 {
        self.0.div_euclid(1000)
    }

    /// This moment plus `duration`, or the last one there is.
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)))
    }

    /// This moment minus `duration`, or the first one there is.
    pub fn before(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)))
    }

    /// How long after `earlier` this is; zero when it is not.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// ISO-8601 in UTC with three digits after the second, as most answers carry it.
    pub fn to_iso_millis(self) -> String {
        self.to_iso(3)
    }

    /// ISO-8601 in UTC with six digits after the second, as a popped message carries it.
    pub fn to_iso_micros(self) -> String {
        self.to_iso(6)
    }

    /// ISO-8601 in UTC with whole seconds.
    pub fn to_iso_seconds(self) -> String {
        self.to_iso(0)
    }

    fn to_iso(self, digits: usize) -> String {
        let (days, in_day) = (self.0.div_euclid(86_400_000_000), self.0.rem_euclid(86_400_000_000));
        let (year, month, day) = civil_from_days(days);
        let (seconds, micros) = (in_day / 1_000_000, in_day % 1_000_000);
        let mut text = String::with_capacity("2026-11-15T18:34:07.638487Z".len());
        match year {
            0..10_000 => push_digits::<4>(&mut text, year),
            _ => text.push_str(&format!("{year:04}")),
        }
        let rest =
            [('-', month), ('-', day), ('T', seconds / 3600), (':', seconds / 60 % 60), (':', seconds % 60)];
        for (before, number) in rest {
            text.push(before);
            push_digits::<2>(&mut text, number);
        }
        if digits > 0 {
            text.push('.');
            match digits {
                3 => push_digits::<3>(&mut text, micros / 1000),
                _ => push_digits::<6>(&mut text, micros),
            }
        }
        text.push('Z');
        text
    }
}

/// The last `N` digits of a number: every message that is popped has a moment, and formatting one in general takes as
/// long as all the rest of it.
fn push_digits<const N: usize>(text: &mut String, mut number: i64) {
    let mut digits = ['0'; N];
    for digit in digits.iter_mut().rev() {
        // The remainder is below ten.
        *digit = char::from(b'0' + (number % 10) as u8);
        number /= 10;
    }
    text.extend(digits);
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_iso_micros())
    }
}

/// A text that is no ISO-8601 moment.
#[derive(Debug, thiserror::Error)]
#[error("not an ISO-8601 time such as 2026-11-15T18:34:07.638Z: {0:?}")]
pub struct ParseTimestampError(String);

impl FromStr for Timestamp {
    type Err = ParseTimestampError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        let parsed = text.parse::<jiff::Timestamp>().or_else(|_| format!("{text}Z").parse());
        parsed.map(|t| Self(t.as_microsecond())).map_err(|_| ParseTimestampError(text.into()))
    }
}

/// Year, month and day of a day number counted from 1970-01-01 in the Gregorian calendar.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    // Counted from 0000-03-01, so that the leap day is the last day of a year.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_survives_the_way_to_text_and_back() {
        for micros in [0, 1, 951_782_400_000_000, 1_794_767_647_638_487, 4_107_542_399_999_999, -1] {
            let moment = Timestamp::from_micros(micros);
            assert_eq!(moment.to_iso_micros().parse::<Timestamp>().unwrap(), moment);
        }
    }

    #[test]
    fn text_is_iso_in_utc() {
        let moment = Timestamp::from_micros(1_794_767_647_638_487);
        assert_eq!(moment.to_iso_millis(), "2026-11-15T18:34:07.638Z");
        assert_eq!(moment.to_string(), "2026-11-15T18:34:07.638487Z");
    }

    #[test]
    fn offsets_and_missing_zones_are_understood() {
        let utc: Timestamp = "2026-11-15T18:34:07Z".parse().unwrap();
        assert_eq!("2026-11-15T19:34:07+01:00".parse::<Timestamp>().unwrap(), utc);
        assert_eq!("2026-11-15T18:34:07".parse::<Timestamp>().unwrap(), utc);
        assert!("yesterday".parse::<Timestamp>().is_err());
    }
}
