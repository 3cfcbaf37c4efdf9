//! Latencies, counted in buckets that are 1/64 of their value wide: recording one costs a few instructions, and
//! no memory grows with the run.

use std::time::Duration;

use serde::Serialize;

const STEPS_LOG2: u32 = 6;
const STEPS: u64 = 1 << STEPS_LOG2;
const BUCKETS: usize = (64 - STEPS_LOG2 as usize + 1) << STEPS_LOG2;

/// Counts durations.
pub struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    max: u64,
}

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
        Self { buckets: vec![0; BUCKETS], count: 0, max: 0 }
    }
}

impl Histogram {
    /// Counts one.
    pub fn record(&mut self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket(nanos)] += 1;
        self.count += 1;
        self.max = self.max.max(nanos);
    }

    /// Adds what another counted.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
        self.count += other.count;
        self.max = self.max.max(other.max);
    }

    /// The percentiles, when anything was counted.
    pub fn latency(&self) -> Option<Latency> {
        (self.count > 0).then(|| Latency {
            p50: self.micros_at(50),
            p95: self.micros_at(95),
            p99: self.micros_at(99),
            max: self.max as f64 / 1e3,
        })
    }

    fn micros_at(&self, percent: u64) -> f64 {
        let rank = (self.count * percent).div_ceil(100).max(1);
        let mut seen = 0;
        for (index, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return middle(index).min(self.max as f64) / 1e3;
            }
        }
        self.max as f64 / 1e3
    }
}

fn bucket(nanos: u64) -> usize {
    if nanos < STEPS {
        return nanos as usize;
    }
    let shift = nanos.ilog2() - STEPS_LOG2;
    (((u64::from(shift) + 1) << STEPS_LOG2) + ((nanos >> shift) - STEPS)) as usize
}

fn middle(index: usize) -> f64 {
    let index = index as u64;
    if index < STEPS {
        return index as f64;
    }
    let shift = (index >> STEPS_LOG2) - 1;
    let low = (STEPS + (index & (STEPS - 1))) << shift;
    low as f64 + (1u64 << shift) as f64 / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_off_by_less_than_two_percent() {
        let mut histogram = Histogram::default();
        (1..=10_000).for_each(|micros| histogram.record(Duration::from_micros(micros)));
        let latency = histogram.latency().unwrap();
        for (got, expected) in [(latency.p50, 5_000.0), (latency.p95, 9_500.0), (latency.p99, 9_900.0)] {
            assert!((got - expected).abs() / expected < 0.02, "{got} is not {expected}");
        }
        assert_eq!(latency.max, 10_000.0);
    }

    #[test]
    fn every_duration_has_a_bucket() {
        let mut histogram = Histogram::default();
        for nanos in [0, 1, 63, 64, 65, 1 << 40, u64::MAX] {
            histogram.record(Duration::from_nanos(nanos));
        }
        assert_eq!(histogram.count, 7);
    }

    #[test]
    fn nothing_counted_is_no_latency() {
        assert!(Histogram::default().latency().is_none());
    }
}
