//! The load of a server, as one number between 0 and 1.
//!
//! Each server measures itself, smooths the measurements, and sends the result. So all servers, even one that has
//! just joined, see the same number. Start at [`Load::score`].

/// The weight of a new measurement against the smoothed value.
const ALPHA: f64 = 0.3;
/// In-flight requests at which a server counts as full.
const OUTSTANDING_FULL: f64 = 100.0;
/// Waiting pops at which a server counts as full.
const WAITING_FULL: f64 = 200.0;

/// The load of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Requests that it is serving.
    pub outstanding: f64,
    /// Pops that wait for messages.
    pub waiting: f64,
    /// Processor time of the process, in percent of all processors of the machine.
    pub cpu: f64,
}

impl Load {
    /// From 0, idle, to 1, full.
    pub fn score(&self) -> f64 {
        let part = |value: f64, full: f64| (value / full).clamp(0.0, 1.0);
        0.4 * part(self.outstanding, OUTSTANDING_FULL)
            + 0.3 * part(self.waiting, WAITING_FULL)
            + 0.3 * part(self.cpu, 100.0)
    }

    /// Whether every number is in its possible range.
    pub fn is_valid(&self) -> bool {
        [self.outstanding, self.waiting, self.cpu].iter().all(|value| value.is_finite() && *value >= 0.0)
    }
}

/// A smoothed load, in which a short peak moves little.
#[derive(Clone, Copy, Debug, Default)]
pub struct SmoothedLoad(Option<Load>);

impl SmoothedLoad {
    /// Adds a measurement.
    pub fn add_sample(&mut self, measured: Load) -> Load {
        let before = self.0.unwrap_or(measured);
        let mix = |before: f64, now: f64| before + ALPHA * (now - before);
        let load = Load {
            outstanding: mix(before.outstanding, measured.outstanding),
            waiting: mix(before.waiting, measured.waiting),
            cpu: mix(before.cpu, measured.cpu),
        };
        self.0 = Some(load);
        load
    }

    /// The present value.
    pub fn current(&self) -> Load {
        self.0.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(outstanding: f64, waiting: f64, cpu: f64, expected: f64) {
        let score = Load { outstanding, waiting, cpu }.score();
        assert!((score - expected).abs() < 1e-9, "{outstanding} {waiting} {cpu}: {score}");
    }

    #[test]
    fn a_score_is_the_sum_of_capped_parts() {
        check(0.0, 0.0, 0.0, 0.0);
        check(50.0, 0.0, 0.0, 0.2);
        check(0.0, 100.0, 0.0, 0.15);
        check(0.0, 0.0, 50.0, 0.15);
        check(100.0, 200.0, 100.0, 1.0);
        check(1e9, 1e9, 1e9, 1.0);
    }

    #[test]
    fn a_peak_counts_for_less_than_a_third() {
        let mut smoothed = SmoothedLoad::default();
        smoothed.add_sample(Load::default());
        let load = smoothed.add_sample(Load { outstanding: 100.0, ..Load::default() });
        assert!((load.outstanding - 30.0).abs() < 1e-9);
        for _ in 0..20 {
            smoothed.add_sample(Load { outstanding: 100.0, ..Load::default() });
        }
        assert!(smoothed.current().outstanding > 99.0);
    }
}
