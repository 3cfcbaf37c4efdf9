//! Latencies, counted in buckets that are 1/64 of their value wide, so that recording one costs a few
//! instructions and no memory grows with the run.

const STEPS_LOG2: u32 = 6;
const STEPS: u64 = 1 << STEPS_LOG2;

/// Counts durations in nanoseconds.
pub struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: vec![0; ((64 - STEPS_LOG2 as usize) + 1) << STEPS_LOG2], count: 0, max: 0 }
    }
}

impl Histogram {
    pub fn record(&mut self, nanos: u64) {
        self.buckets[bucket(nanos)] += 1;
        self.count += 1;
        self.max = self.max.max(nanos);
    }

    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
        self.count += other.count;
        self.max = self.max.max(other.max);
    }

    /// The value below which the share `quantile` of all values lies, in microseconds.
    pub fn micros_at(&self, quantile: f64) -> f64 {
        let rank = ((self.count as f64 * quantile).ceil() as u64).max(1);
        let mut seen = 0;
        for (index, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return middle(index).min(self.max as f64) / 1e3;
            }
        }
        0.0
    }

    pub fn summary(&self) -> serde_json::Value {
        serde_json::json!({
            "p50": self.micros_at(0.50),
            "p95": self.micros_at(0.95),
            "p99": self.micros_at(0.99),
            "max": self.max as f64 / 1e3,
        })
    }
}

fn bucket(value: u64) -> usize {
    if value < STEPS {
        return value as usize;
    }
    let shift = value.ilog2() - STEPS_LOG2;
    (((u64::from(shift) + 1) << STEPS_LOG2) + ((value >> shift) - STEPS)) as usize
}

fn middle(index: usize) -> f64 {
    let index = index as u64;
    if index < STEPS {
        return index as f64;
    }
    let shift = (index >> STEPS_LOG2) - 1;
    let low = (STEPS + (index & (STEPS - 1))) << shift;
    low as f64 + ((1u64 << shift) as f64 / 2.0)
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

    #[test]
    fn every_value_has_a_bucket() {
        let mut histogram = Histogram::default();
        for value in [0, 1, 63, 64, 65, 1 << 40, u64::MAX] {
            histogram.record(value);
        }
        assert_eq!(histogram.count, 7);
    }
}
