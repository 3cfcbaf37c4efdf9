//! Timestamps: microseconds since 1970 in UTC.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use jiff::tz::Offset;
use serde::{Deserialize, Serialize};

/// A time in UTC with microsecond precision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Timestamp(i64);

impl Timestamp {
    /// Earlier than every message.
    pub const MIN: Self = Self(i64::MIN);
    /// Later than every message.
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

    /// This time plus `duration`, at most [`MAX`](Self::MAX).
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)))
    }

    /// This time minus `duration`, at least [`MIN`](Self::MIN).
    pub fn before(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)))
    }

    /// The duration since `earlier`; zero when it is not earlier.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// ISO 8601 in UTC with milliseconds, as in most responses.
    pub fn to_iso_millis(self) -> String {
        self.to_iso(3)
    }

    /// ISO 8601 in UTC with microseconds, as in popped messages.
    pub fn to_iso_micros(self) -> String {
        self.to_iso(6)
    }

    /// ISO 8601 in UTC with whole seconds.
    pub fn to_iso_seconds(self) -> String {
        self.to_iso(0)
    }

    fn to_iso(self, digits: usize) -> String {
        // Only `MIN` and `MAX` are outside the four-digit years.
        let limit = if self.0 < 0 { jiff::Timestamp::MIN } else { jiff::Timestamp::MAX };
        let at = Offset::UTC.to_datetime(jiff::Timestamp::from_microsecond(self.0).unwrap_or(limit));
        let mut text = String::with_capacity("2026-11-15T18:34:07.638487Z".len());
        match at.year() {
            year @ 0.. => push_digits::<4>(&mut text, year.into()),
            year => text.push_str(&format!("{year:04}")),
        }
        let rest =
            [('-', at.month()), ('-', at.day()), ('T', at.hour()), (':', at.minute()), (':', at.second())];
        for (before, number) in rest {
            text.push(before);
            push_digits::<2>(&mut text, number.into());
        }
        let micros = at.subsec_nanosecond() / 1000;
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

/// Appends the last `N` digits of a number. The general formatter would take as long for a popped message's time as
/// the rest of its response.
fn push_digits<const N: usize>(text: &mut String, mut number: i32) {
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

/// The text is not an ISO 8601 time.
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
    fn the_ends_of_time_have_a_text() {
        assert_eq!(Timestamp::MIN.to_iso_seconds(), "-9999-01-02T01:59:59Z");
        assert_eq!(Timestamp::MAX.to_iso_seconds(), "9999-12-30T22:00:00Z");
        assert_eq!(Timestamp::from_micros(-62_167_219_200_000_001).to_iso_seconds(), "-001-12-31T23:59:59Z");
    }

    #[test]
    fn offsets_and_missing_zones_are_understood() {
        let utc: Timestamp = "2026-11-15T18:34:07Z".parse().unwrap();
        assert_eq!("2026-11-15T19:34:07+01:00".parse::<Timestamp>().unwrap(), utc);
        assert_eq!("2026-11-15T18:34:07".parse::<Timestamp>().unwrap(), utc);
        assert!("yesterday".parse::<Timestamp>().is_err());
    }
}
