//! Latencies of a run, in an HDR histogram: recording one costs a few instructions, and no memory grows with the run.

use std::time::Duration;

use serde::Serialize;

/// Longer durations count as this one, an hour.
const NANOS_MAX: u64 = 3_600_000_000_000;
/// The relative error of percentiles is below a hundredth.
const SIGNIFICANT_DIGITS: u8 = 2;

/// Counts durations.
pub struct Histogram(hdrhistogram::Histogram<u64>);

/// The percentiles of a run, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Latency {
    /// Half of all took at most this.
    pub p50: f64,
    /// 95 of 100 took at most this.
    pub p95: f64,
    /// 99 of 100 took at most this.
    pub p99: f64,
    /// The slowest.
    pub max: f64,
}

impl Default for Histogram {
    fn default() -> Self {
        let histogram = hdrhistogram::Histogram::new_with_max(NANOS_MAX, SIGNIFICANT_DIGITS);
        Self(histogram.expect("the bounds are constant"))
    }
}

impl Histogram {
    /// Counts one duration.
    pub fn record(&mut self, duration: Duration) {
        self.0.saturating_record(u64::try_from(duration.as_nanos()).unwrap_or(NANOS_MAX));
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &Self) {
        self.0.add(&other.0).expect("both have the same bounds");
    }

    /// The percentiles; `None` of an empty histogram.
    pub fn latency(&self) -> Option<Latency> {
        let micros_at = |quantile| self.0.value_at_quantile(quantile) as f64 / 1e3;
        (!self.0.is_empty()).then(|| Latency {
            p50: micros_at(0.50),
            p95: micros_at(0.95),
            p99: micros_at(0.99),
            max: self.0.max() as f64 / 1e3,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_off_by_less_than_two_percent() {
        let mut histogram = Histogram::default();
        (1..=10_000).for_each(|micros| histogram.record(Duration::from_micros(micros)));
        let latency = histogram.latency().unwrap();
        for (got, expected) in
            [(latency.p50, 5_000.0), (latency.p95, 9_500.0), (latency.p99, 9_900.0), (latency.max, 10_000.0)]
        {
            assert!((got - expected).abs() / expected < 0.02, "{got} is not {expected}");
        }
    }

    #[test]
    fn every_duration_is_counted() {
        let mut histogram = Histogram::default();
        for duration in [Duration::ZERO, Duration::from_nanos(1), Duration::from_secs(1 << 20), Duration::MAX]
        {
            histogram.record(duration);
        }
        assert_eq!(histogram.0.len(), 4);
    }

    #[test]
    fn nothing_counted_is_no_latency() {
        assert!(Histogram::default().latency().is_none());
    }
}
