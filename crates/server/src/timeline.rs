//! From minutes to the points of a plot.
//!
//! A question names a span of time; the answer has points of equal width, wide enough that there are at most a few
//! hundred of them. Start at [`Span::of`].

use std::collections::BTreeMap;
use std::time::Duration;

use baton_http::Query;
use baton_queue::{Minute, Tally};
use baton_types::Timestamp;
use serde_json::{Value, json};

use crate::error::Error;

const MINUTE_MICROS: i64 = 60_000_000;
/// Points of one plot; a longer span is cut at its beginning.
const POINTS_MAX: i64 = 10_000;

/// A span of time, and the width of its points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Its beginning.
    pub from: Timestamp,
    /// Its end, not included.
    pub to: Timestamp,
    /// Minutes to a point.
    pub minutes: i64,
}

impl Span {
    /// What a request asks for: `from` to `to`, by default the last `usual`.
    pub fn of(query: &Query<'_>, now: Timestamp, usual: Duration) -> Result<Self, Error> {
        let to = query.moment("to")?.unwrap_or(now);
        let from = query.moment("from")?.unwrap_or_else(|| to.before(usual));
        if from > to {
            return Err(Error::invalid("from is later than to"));
        }
        let length = to.since(from).as_secs().div_ceil(60);
        let minutes = match length {
            0..=60 => 1,
            61..=360 => 5,
            361..=1440 => 15,
            1441..=10_080 => 60,
            _ => 360,
        };
        Ok(Self { from, to, minutes })
    }

    /// The beginning of the point that holds `at`.
    pub fn point(&self, at: Timestamp) -> Timestamp {
        let width = self.minutes * MINUTE_MICROS;
        Timestamp::from_micros(at.micros().div_euclid(width).saturating_mul(width))
    }

    /// The beginnings of all points, oldest first.
    pub fn points(&self) -> Vec<Timestamp> {
        let width = self.minutes * MINUTE_MICROS;
        let last = self.point(self.to).micros();
        let first = self.point(self.from).micros().max(last.saturating_sub(width * (POINTS_MAX - 1)));
        (0..=(last - first) / width).map(|step| Timestamp::from_micros(first + step * width)).collect()
    }

    /// How many seconds a point stands for.
    pub fn seconds(&self) -> f64 {
        (self.minutes * 60) as f64
    }

    /// The span as answers show it.
    pub fn shown(&self) -> Value {
        json!({"from": self.from.to_iso_millis(), "to": self.to.to_iso_millis()})
    }

    /// Sums up what minutes hold, by point and by what `parts` tells apart.
    pub fn gather<K: Ord>(
        &self,
        minutes: &[Minute],
        parts: impl Fn(&Minute) -> Vec<(K, Tally)>,
    ) -> BTreeMap<(Timestamp, K), Tally> {
        let mut sums: BTreeMap<_, Tally> = BTreeMap::new();
        for minute in minutes {
            for (key, tally) in parts(minute) {
                *sums.entry((self.point(minute.at), key)).or_default() += tally;
            }
        }
        sums
    }

    /// What the process of `node` used in each point.
    pub fn loads(&self, minutes: &[Minute], node: &str) -> BTreeMap<Timestamp, Load> {
        let mut loads: BTreeMap<Timestamp, Load> = BTreeMap::new();
        let mut before: Option<&Minute> = None;
        for minute in minutes.iter().filter(|minute| *minute.node == *node) {
            let percent = |name: &str| {
                let grown = before.map_or(0.0, |before| growth(before, minute, name));
                grown / MINUTE_MICROS as f64 * 100.0
            };
            let load = loads.entry(self.point(minute.at)).or_default();
            load.user_percent = load.user_percent.max(percent("cpuUserMicros"));
            load.system_percent = load.system_percent.max(percent("cpuSystemMicros"));
            load.resident_bytes = gauge(minute, "residentBytes");
            before = Some(minute);
        }
        loads
    }
}

fn gauge(minute: &Minute, name: &str) -> f64 {
    minute.gauges.get(name).copied().unwrap_or(0.0)
}

/// By how much a counter of a process grew from one minute to another. After a restart it begins anew.
pub fn growth(before: &Minute, minute: &Minute, name: &str) -> f64 {
    let (was, now) = (gauge(before, name), gauge(minute, name));
    if now < was { now } else { now - was }
}

/// What a process used: processor time in percent of one core, in the busiest minute, and memory.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// In its own code.
    pub user_percent: f64,
    /// In the kernel.
    pub system_percent: f64,
    /// Memory at the end.
    pub resident_bytes: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    fn span(query: &str) -> Result<Span, Error> {
        Span::of(&Query::parse(query)?, at(1_000_000), Duration::from_secs(3600))
    }

    #[test]
    fn a_point_is_as_wide_as_the_span_is_long() {
        assert_eq!(span("").unwrap().minutes, 1);
        let wide = |hours: i64| {
            let from = at(1_000_000 - hours * 3600).to_iso_millis();
            span(&format!("from={from}")).unwrap().minutes
        };
        assert_eq!([wide(1), wide(6), wide(24), wide(168), wide(200)], [1, 5, 15, 60, 360]);
        assert!(span("from=2031-01-01T00:00:00Z&to=2030-01-01T00:00:00Z").is_err());
        assert!(span("from=yesterday").is_err());
    }

    #[test]
    fn a_span_of_a_century_has_a_bounded_number_of_points() {
        let long = span("from=1970-01-01T00:00:00Z&to=2300-01-01T00:00:00Z").unwrap();
        assert_eq!(long.points().len(), usize::try_from(POINTS_MAX).unwrap());
    }

    #[test]
    fn minutes_of_a_point_are_summed_up() {
        let span = Span { from: at(0), to: at(900), minutes: 5 };
        let minute = |seconds: i64| Minute {
            at: at(seconds),
            total: Tally { push_messages: 1, ..Tally::default() },
            ..Minute::default()
        };
        let minutes = [minute(0), minute(240), minute(300)];
        let sums = span.gather(&minutes, |minute| vec![((), minute.total)]);
        let pushed: Vec<_> = sums.iter().map(|((at, ()), sum)| (at.micros(), sum.push_messages)).collect();
        assert_eq!(pushed, [(0, 2), (300_000_000, 1)]);
    }
}
