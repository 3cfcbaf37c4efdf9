//! Histograms that many threads update concurrently.

use std::sync::atomic::{AtomicU64, Ordering};

/// Buckets with an upper bound; one more counts larger values.
const BOUNDED: usize = 16;

/// Upper bounds for durations in microseconds, from 50 µs to 10 s.
pub const DURATION_BOUNDS: [u64; BOUNDED] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 10_000_000,
];

/// Upper bounds for counts.
pub const COUNT_BOUNDS: [u64; BOUNDED] =
    [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024, 2_048, 4_096, 8_192, 16_384, 65_536];

/// Counts values by size. Counting takes no lock.
#[derive(Debug)]
pub struct Histogram {
    bounds: [u64; BOUNDED],
    counts: [AtomicU64; BOUNDED + 1],
    sum: AtomicU64,
}

/// A snapshot of a histogram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Distribution {
    /// Upper bounds of the buckets, rising.
    pub bounds: [u64; BOUNDED],
    /// Values in each bucket; the last bucket has no bound.
    pub counts: [u64; BOUNDED + 1],
    /// The sum of all values.
    pub sum: u64,
}

impl Histogram {
    /// An empty histogram with these bounds.
    pub fn new(bounds: [u64; BOUNDED]) -> Self {
        Self { bounds, counts: Default::default(), sum: AtomicU64::new(0) }
    }

    /// Counts a value.
    pub fn observe(&self, value: u64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    /// The counts so far.
    pub fn snapshot(&self) -> Distribution {
        Distribution {
            bounds: self.bounds,
            counts: std::array::from_fn(|bucket| self.counts[bucket].load(Ordering::Relaxed)),
            sum: self.sum.load(Ordering::Relaxed),
        }
    }
}

impl Distribution {
    /// The number of values.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_falls_into_the_first_bucket_that_holds_it() {
        let histogram = Histogram::new(COUNT_BOUNDS);
        for value in [0, 1, 2, 3, 70_000] {
            histogram.observe(value);
        }
        let read = histogram.snapshot();
        assert_eq!((read.counts[0], read.counts[1], read.counts[2], read.counts[BOUNDED]), (2, 1, 1, 1));
        assert_eq!((read.count(), read.sum), (5, 70_006));
    }
}
