//! Latencies of a run, in an HDR histogram like that of `baton bench`.

/// Longer durations count as this one, an hour.
const NANOS_MAX: u64 = 3_600_000_000_000;
const SIGNIFICANT_DIGITS: u8 = 2;

/// Counts durations in nanoseconds.
pub struct Histogram(hdrhistogram::Histogram<u64>);

impl Default for Histogram {
    fn default() -> Self {
        let histogram = hdrhistogram::Histogram::new_with_max(NANOS_MAX, SIGNIFICANT_DIGITS);
        Self(histogram.expect("the bounds are constant"))
    }
}

impl Histogram {
    pub fn record(&mut self, nanos: u64) {
        self.0.saturating_record(nanos);
    }

    pub fn merge(&mut self, other: &Self) {
        self.0.add(&other.0).expect("both have the same bounds");
    }

    /// The value below which the share `quantile` of all values lies, in microseconds.
    pub fn micros_at(&self, quantile: f64) -> f64 {
        self.0.value_at_quantile(quantile) as f64 / 1e3
    }

    pub fn summary(&self) -> serde_json::Value {
        serde_json::json!({
            "p50": self.micros_at(0.50),
            "p95": self.micros_at(0.95),
            "p99": self.micros_at(0.99),
            "max": self.0.max() as f64 / 1e3,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_off_by_less_than_two_percent() {
        let mut histogram = Histogram::default();
        for micros in 1..=10_000u64 {
            histogram.record(micros * 1_000);
        }
        for (quantile, expected) in [(0.5, 5_000.0), (0.95, 9_500.0), (0.99, 9_900.0), (1.0, 10_000.0)] {
            let got = histogram.micros_at(quantile);
            assert!((got - expected).abs() / expected < 0.02, "{quantile}: {got}");
        }
    }
}
