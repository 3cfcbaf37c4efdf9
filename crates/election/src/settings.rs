//! The settings of a participant, validated together before it starts.
//!
//! Every option can be read from JSON under its camelCase name, in milliseconds. Always: a value that cannot work
//! with the others is refused with advice; one that is merely unwise is warned of. Start at [`Settings::check`].

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The shortest minimum mandate, unless [`Settings::allow_short_epochs`].
pub const EPOCH_DURATION_MIN: Duration = Duration::from_secs(60);

/// Ranks beyond this one wait no longer than it does.
pub(crate) const STAGGER_RANK_MAX: u32 = 5;

/// The options of one participant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Settings {
    /// Whether there is an election at all. If not, this instance is alone and coordinates at once.
    pub enable_coordinator: bool,
    /// How often a heartbeat is written, and a coordinator renews its lease.
    #[serde(with = "millis")]
    pub heartbeat_interval: Duration,
    /// How long after its last renewal a coordinator counts as dead.
    #[serde(with = "millis")]
    pub worker_timeout: Duration,
    /// The minimum time before a coordinator hands over by itself.
    #[serde(with = "millis")]
    pub min_epoch_duration: Duration,
    /// How long a mandate is; it is renewed when a fifth of it is left.
    #[serde(with = "millis")]
    pub max_epoch_duration: Duration,
    /// How long a cold start observes before it elects.
    #[serde(with = "millis")]
    pub cold_start_observation_window: Duration,
    /// How long a cold start waits after an election before work begins.
    #[serde(with = "millis")]
    pub cold_start_preparation_delay: Duration,
    /// Elect and work at once.
    pub skip_cold_start: bool,
    /// How often the epoch record is read; the heartbeat interval or 10 s, whichever is less, unless set.
    #[serde(with = "optional_millis")]
    pub poll_interval: Option<Duration>,
    /// How long one call of the store may take.
    #[serde(with = "millis")]
    pub call_timeout: Duration,
    /// By how much of its rate a clock may be wrong: 0.01 is one percent.
    pub clock_drift: f64,
    /// How long each worker defers to the one before it in the order.
    #[serde(with = "millis")]
    pub claim_stagger: Duration,
    /// Whether a coordinator hands over to a smaller worker id, after the minimum mandate.
    pub prefer_first: bool,
    /// How often the periodic work of a coordinator is called; the heartbeat interval unless set.
    #[serde(with = "optional_millis")]
    pub work_interval: Option<Duration>,
    /// How many changes of coordinator within six mandates are worth a warning.
    pub changes_warning: u32,
    /// Lifts the floor of the mandates. For tests.
    pub allow_short_epochs: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            enable_coordinator: true,
            heartbeat_interval: Duration::from_secs(30),
            worker_timeout: Duration::from_secs(90),
            min_epoch_duration: Duration::from_secs(60),
            max_epoch_duration: Duration::from_secs(300),
            cold_start_observation_window: Duration::from_secs(15),
            cold_start_preparation_delay: Duration::from_secs(5),
            skip_cold_start: false,
            poll_interval: None,
            call_timeout: Duration::from_secs(5),
            clock_drift: 0.01,
            claim_stagger: Duration::from_secs(2),
            prefer_first: false,
            work_interval: None,
            changes_warning: 5,
            allow_short_epochs: false,
        }
    }
}

/// Settings that cannot work, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(String);

impl Settings {
    /// Settings with which another coordinator is there within 4 seconds of a crash: for tests and demonstrations,
    /// or a store that answers within milliseconds.
    pub fn fast() -> Self {
        Self {
            heartbeat_interval: Duration::from_secs(1),
            worker_timeout: Duration::from_secs(3),
            min_epoch_duration: Duration::from_secs(10),
            max_epoch_duration: Duration::from_secs(30),
            cold_start_observation_window: Duration::from_millis(500),
            cold_start_preparation_delay: Duration::from_millis(100),
            poll_interval: Some(Duration::from_millis(200)),
            call_timeout: Duration::from_millis(500),
            claim_stagger: Duration::from_millis(200),
            allow_short_epochs: true,
            ..Self::default()
        }
    }

    /// Refuses what cannot work; returns what is unwise.
    pub fn check(&self) -> Result<Vec<String>, Invalid> {
        let invalid = |text: String| Err(Invalid(text));
        let (heartbeat, timeout, call) = (self.heartbeat_interval, self.worker_timeout, self.call_timeout);
        for (name, value) in [
            ("heartbeatInterval", heartbeat),
            ("workerTimeout", timeout),
            ("callTimeout", call),
            ("pollInterval", self.effective_poll_interval()),
            ("workInterval", self.effective_work_interval()),
            ("maxEpochDuration", self.max_epoch_duration),
        ] {
            if value.is_zero() {
                return invalid(format!("{name} is 0: give a positive number of milliseconds"));
            }
            if value > Duration::from_secs(30 * 24 * 3600) {
                return invalid(format!("{name} is {value:?}: give at most 30 days"));
            }
        }
        if heartbeat >= timeout {
            return invalid(format!(
                "heartbeatInterval ({heartbeat:?}) is not shorter than workerTimeout ({timeout:?}), so every worker \
                 would look dead between two beats: give a workerTimeout of three intervals, {:?}",
                heartbeat * 3
            ));
        }
        if timeout < heartbeat * 2 + call * 2 {
            return invalid(format!(
                "workerTimeout ({timeout:?}) leaves no time to repeat a failed renewal: give at least two intervals \
                 and two calls, {:?}, or lower callTimeout ({call:?})",
                heartbeat * 2 + call * 2
            ));
        }
        if self.effective_poll_interval() > timeout {
            return invalid(format!(
                "pollInterval ({:?}) is longer than workerTimeout ({timeout:?}): give at most that",
                self.effective_poll_interval()
            ));
        }
        if !(0.0..=0.2).contains(&self.clock_drift) {
            return invalid(format!(
                "clockDrift is {}: give a share from 0 to 0.2, for instance 0.01",
                self.clock_drift
            ));
        }
        if self.min_epoch_duration > self.max_epoch_duration {
            return invalid(format!(
                "minEpochDuration ({:?}) is longer than maxEpochDuration ({:?}): exchange them",
                self.min_epoch_duration, self.max_epoch_duration
            ));
        }
        if self.min_epoch_duration < EPOCH_DURATION_MIN && !self.allow_short_epochs {
            return invalid(format!(
                "minEpochDuration ({:?}) is below {EPOCH_DURATION_MIN:?}: give at least that, or set allowShortEpochs in a test",
                self.min_epoch_duration
            ));
        }
        if self.cold_start_observation_window > Duration::from_secs(3600)
            || self.cold_start_preparation_delay > Duration::from_secs(3600)
            || self.claim_stagger > Duration::from_secs(3600)
        {
            return invalid("a cold start or stagger of more than an hour: give less".into());
        }
        let mut unwise = Vec::new();
        if timeout < heartbeat * 3 {
            unwise.push(format!(
                "workerTimeout ({timeout:?}) is less than three heartbeat intervals: two lost beats end a term"
            ));
        }
        if self.claim_stagger < call.min(Duration::from_millis(100)) {
            unwise.push(format!(
                "claimStagger ({:?}) is short: another than the first worker may win",
                self.claim_stagger
            ));
        }
        Ok(unwise)
    }

    /// How often the epoch record is read.
    pub fn effective_poll_interval(&self) -> Duration {
        self.poll_interval.unwrap_or_else(|| self.heartbeat_interval.min(Duration::from_secs(10)))
    }

    /// How often the periodic work is called.
    pub fn effective_work_interval(&self) -> Duration {
        self.work_interval.unwrap_or(self.heartbeat_interval)
    }

    /// How long a coordinator trusts a renewal, from before it was sent. Shorter than others wait by twice what
    /// clocks may differ, so that it stops before they begin.
    pub fn trusted_lease(&self) -> Duration {
        self.worker_timeout.mul_f64((1.0 - self.clock_drift) / (1.0 + self.clock_drift))
    }

    /// Within what time of a crash the worker of `rank` (0 is the next in line) coordinates, if it stays up and
    /// the store answers.
    pub fn failover_bound(&self, rank: u32) -> Duration {
        let wait = self.worker_timeout.mul_f64((1.0 + self.clock_drift) / (1.0 - self.clock_drift));
        let stagger = self.claim_stagger * rank.min(STAGGER_RANK_MAX);
        self.effective_poll_interval() + wait + stagger + stagger / 4 + self.call_timeout * 3
    }

    /// The same after a clean stop.
    pub fn handover_bound(&self, rank: u32) -> Duration {
        let stagger = self.claim_stagger * rank.min(STAGGER_RANK_MAX);
        self.effective_poll_interval() + stagger + stagger / 4 + self.call_timeout * 3
    }
}

mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(u64::try_from(value.as_millis()).unwrap_or(u64::MAX))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_millis)
    }
}

mod optional_millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(value: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => super::millis::serialize(value, serializer),
            None => serializer.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(deserializer)?.map(Duration::from_millis))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(json: &str) -> String {
        serde_json::from_str::<Settings>(json).unwrap().check().unwrap_err().to_string()
    }

    #[test]
    fn the_defaults_are_the_known_ones_and_hold_together() {
        let settings: Settings = serde_json::from_str("{}").unwrap();
        assert_eq!(settings.check(), Ok(vec![]));
        let json = serde_json::to_value(&settings).unwrap();
        for (name, value) in [
            ("heartbeatInterval", 30_000),
            ("workerTimeout", 90_000),
            ("minEpochDuration", 60_000),
            ("maxEpochDuration", 300_000),
            ("coldStartObservationWindow", 15_000),
            ("coldStartPreparationDelay", 5_000),
        ] {
            assert_eq!(json[name], value, "{name}");
        }
        assert_eq!((&json["enableCoordinator"], &json["skipColdStart"]), (&true.into(), &false.into()));
        assert_eq!(settings.effective_poll_interval(), Duration::from_secs(10));
    }

    #[test]
    fn what_cannot_work_is_refused_with_advice() {
        for (json, advice) in [
            (r#"{"heartbeatInterval":90000}"#, "workerTimeout of three intervals"),
            (
                r#"{"heartbeatInterval":30000,"workerTimeout":65000}"#,
                "at least two intervals and two calls, 70s",
            ),
            (r#"{"heartbeatInterval":0}"#, "positive"),
            (r#"{"pollInterval":100000}"#, "at most that"),
            (r#"{"minEpochDuration":5000}"#, "allowShortEpochs"),
            (r#"{"minEpochDuration":400000}"#, "exchange them"),
            (r#"{"clockDrift":1.5}"#, "from 0 to 0.2"),
        ] {
            assert!(refused(json).contains(advice), "{json}: {}", refused(json));
        }
        assert!(serde_json::from_str::<Settings>(r#"{"heartbeatIntervall":1}"#).is_err());
    }

    #[test]
    fn a_coordinator_stops_before_others_begin() {
        for settings in [Settings::default(), Settings::fast()] {
            settings.check().unwrap();
            let slowest_leader = settings.trusted_lease().as_secs_f64() / (1.0 - settings.clock_drift);
            let fastest_follower = settings.worker_timeout.as_secs_f64() / (1.0 + settings.clock_drift);
            assert!(slowest_leader <= fastest_follower + 1e-6);
        }
        assert!(Settings::fast().failover_bound(0) < Duration::from_secs(5));
    }
}
