//! The head of a job queue: its settings, how many jobs are in which state, and its lanes.

use std::sync::Arc;
use std::time::Duration;

use baton_store::Error;
use baton_types::{PartitionId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::model::codec::{Reader, Writer};
use crate::model::ids::CHUNK;
use crate::model::lane::{Lane, Ranges};
use crate::model::limits::LANE_RANGES_MAX;
use crate::model::state::State;

const FORMAT: u8 = 1;
/// Ranges that all lanes of a queue may have together, so that the head fits a record.
const RANGES_MAX: usize = 64 * LANE_RANGES_MAX;

/// A rate: so many jobs in so many milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rate {
    /// How many.
    pub count: u32,
    /// In how many milliseconds.
    pub per_ms: u64,
}

/// Settings of a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct QueueSettings {
    /// Whether no job is leased.
    pub paused: bool,
    /// How many may run at once.
    pub concurrency: Option<u32>,
    /// How many jobs may be leased in a time.
    pub rate_limit: Option<Rate>,
    /// Its weight among the queues of a worker that serves several.
    pub weight: Option<u32>,
    /// Whether jobs that fail for good are listed as dead letters.
    pub dlq: bool,
}

impl Default for QueueSettings {
    fn default() -> Self {
        Self { paused: false, concurrency: None, rate_limit: None, weight: None, dlq: true }
    }
}

/// A set of chunks that mostly grows from the start of a queue, with gaps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prefix {
    /// The set contains all chunks before this one.
    pub end: u64,
    /// The chunks after it that the set contains.
    pub beyond: Ranges,
}

impl Prefix {
    pub fn contains(&self, number: u64) -> bool {
        number < self.end || self.beyond.contains(number)
    }

    /// Adds a chunk. Returns whether the end moved.
    pub fn insert(&mut self, number: u64) -> bool {
        if number < self.end {
            return false;
        }
        self.beyond.insert(number);
        let before = self.end;
        while self.beyond.first() == Some(self.end) {
            self.beyond.remove(self.end);
            self.end += 1;
        }
        self.end > before
    }

    fn encode(&self, out: &mut Writer) {
        out.number(self.end);
        self.beyond.encode(out);
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(Self { end: from.number()?, beyond: Ranges::decode(from)? })
    }
}

/// The head of one queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The queue's name.
    pub name: Arc<str>,
    /// The partition of its history.
    pub history: PartitionId,
    /// When it was created.
    pub created_at: Timestamp,
    /// The settings that an operator gave.
    pub settings: QueueSettings,
    /// Jobs by state.
    pub counts: [u64; State::COUNT],
    /// The token bucket of the rate limit, in millionths of a job, and when it was last filled.
    pub bucket: (u64, Timestamp),
    /// Chunks whose slots were deleted.
    pub removed: Prefix,
    /// Chunks whose messages are garbage: their jobs are gone, or their specifications were moved.
    pub freed: Prefix,
    /// Dispatched jobs.
    pub lanes: Vec<Lane>,
    /// Jobs that have not ended, by slice; empty while the server is alone on its store.
    pub open: Vec<u64>,
    /// The chunk up to which `open` counts; `None` when it counts all. See `maintenance::owner_tally`.
    pub counted: Option<u64>,
}

/// One job in the token bucket.
const TOKENS_PER_JOB: u64 = 1_000_000;

impl Head {
    pub fn new(name: &str, history: PartitionId, now: Timestamp) -> Self {
        Self {
            name: name.into(),
            history,
            created_at: now,
            settings: QueueSettings::default(),
            counts: [0; State::COUNT],
            bucket: (0, Timestamp::default()),
            removed: Prefix::default(),
            freed: Prefix::default(),
            lanes: Vec::new(),
            open: Vec::new(),
            counted: None,
        }
    }

    /// Starts the tally, if it has not started. Existing jobs are yet to be counted.
    pub fn begin_tally(&mut self) {
        if self.open.is_empty() {
            self.counted = (self.open_jobs() > 0).then_some(0);
            self.open.resize(CHUNK as usize, 0);
        }
    }

    /// Updates the tally for one chunk; each bit of `before` and `after` is a slot with an open job.
    pub fn tally(&mut self, number: u64, before: u64, after: u64) {
        if self.counted.is_some_and(|counted| number >= counted) {
            return;
        }
        let mut changed = before ^ after;
        while changed != 0 {
            let at = changed.trailing_zeros() as usize;
            changed &= changed - 1;
            let count = &mut self.open[at];
            *count = if after >> at & 1 == 1 { *count + 1 } else { count.saturating_sub(1) };
        }
    }

    /// Whether some jobs are not in the tally yet.
    pub fn is_uncounted(&self) -> bool {
        self.counted.is_some() || (self.open.is_empty() && self.open_jobs() > 0)
    }

    /// Jobs that have not ended, by slice. Jobs that are not counted yet are assumed to be spread evenly.
    pub fn loads(&self) -> impl Iterator<Item = u64> {
        let slices = CHUNK as usize;
        let rest = self.open_jobs().saturating_sub(self.open.iter().sum());
        let rest = if self.is_uncounted() { rest } else { 0 };
        let part = move |slice: usize| rest / CHUNK + u64::from((slice as u64) < rest % CHUNK);
        (0..slices).map(move |slice| self.open.get(slice).copied().unwrap_or(0) + part(slice))
    }

    /// Jobs that have not ended.
    fn open_jobs(&self) -> u64 {
        State::ALL.iter().filter(|state| !state.is_terminal()).map(|state| self.count(*state)).sum()
    }

    /// Jobs in a state.
    pub fn count(&self, state: State) -> u64 {
        self.counts.get(state as usize).copied().unwrap_or(0)
    }

    /// Jobs that workers have.
    pub fn running(&self) -> u64 {
        self.count(State::Running) + self.count(State::Cancelling)
    }

    /// How many more jobs may be leased now.
    pub fn allowance(&self, now: Timestamp) -> u64 {
        if self.settings.paused {
            return 0;
        }
        let by_concurrency =
            self.settings.concurrency.map(|limit| u64::from(limit).saturating_sub(self.running()));
        let by_rate = self.settings.rate_limit.map(|rate| self.tokens(rate, now) / TOKENS_PER_JOB);
        by_concurrency.unwrap_or(u64::MAX).min(by_rate.unwrap_or(u64::MAX))
    }

    /// When the rate limit allows the next job, if it holds jobs back.
    pub fn allowed_in(&self, now: Timestamp) -> Option<Duration> {
        let rate = self.settings.rate_limit?;
        let lacking = TOKENS_PER_JOB.checked_sub(self.tokens(rate, now)).filter(|lacking| *lacking > 0)?;
        let micros = u128::from(lacking) * u128::from(rate.per_ms) * 1000;
        let micros = micros.div_ceil(u128::from(rate.count.max(1)) * u128::from(TOKENS_PER_JOB));
        Some(Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)))
    }

    /// Takes leased jobs from the token bucket.
    pub fn take_tokens(&mut self, jobs: u64, now: Timestamp) {
        if let Some(rate) = self.settings.rate_limit {
            self.bucket = (self.tokens(rate, now).saturating_sub(jobs * TOKENS_PER_JOB), now);
        }
    }

    /// The content of the token bucket: it fills steadily, up to the jobs of one interval.
    fn tokens(&self, rate: Rate, now: Timestamp) -> u64 {
        let (had, at) = self.bucket;
        let full = u64::from(rate.count) * TOKENS_PER_JOB;
        let gained = now.since(at).as_micros() * u128::from(rate.count) * u128::from(TOKENS_PER_JOB)
            / (u128::from(rate.per_ms.max(1)) * 1000);
        had.saturating_add(u64::try_from(gained).unwrap_or(u64::MAX)).min(full)
    }

    pub fn encode(&mut self) -> Vec<u8> {
        self.lanes.retain(|lane| !lane.chunks.is_empty());
        let most = (RANGES_MAX / self.lanes.len().max(1)).clamp(8, LANE_RANGES_MAX);
        self.lanes.iter_mut().for_each(|lane| lane.chunks.bound(most));
        let mut out = Writer(Vec::with_capacity(128));
        out.byte(FORMAT);
        out.bytes(self.name.as_bytes());
        out.number(self.history.0);
        out.moment(self.created_at, Timestamp::default());
        let settings = serde_json::to_vec(&self.settings).unwrap_or_default();
        out.bytes(&settings);
        self.counts.iter().for_each(|count| out.number(*count));
        out.number(self.bucket.0);
        out.moment(self.bucket.1, Timestamp::default());
        self.removed.encode(&mut out);
        self.freed.encode(&mut out);
        out.number(self.lanes.len() as u64);
        self.lanes.iter().for_each(|lane| lane.encode(&mut out));
        self.open.iter().chain(&self.counted).for_each(|number| out.number(*number));
        out.0
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let mut from = Reader(bytes);
        if from.byte()? != FORMAT {
            return Err(Error::Corrupt("the head of a job queue has an unknown format".into()));
        }
        let name = from.text()?.into();
        let history = PartitionId(from.number()?);
        let created_at = from.moment(Timestamp::default())?;
        let settings = serde_json::from_slice(from.bytes()?).map_err(|error| {
            Error::Corrupt(format!("the settings of a job queue cannot be read: {error}"))
        })?;
        let mut counts = [0; State::COUNT];
        for count in &mut counts {
            *count = from.number()?;
        }
        let bucket = (from.number()?, from.moment(Timestamp::default())?);
        let (removed, freed) = (Prefix::decode(&mut from)?, Prefix::decode(&mut from)?);
        let lanes = from.number()?;
        let lanes = (0..lanes).map(|_| Lane::decode(&mut from)).collect::<Result<_, Error>>()?;
        let mut open = Vec::new();
        while !from.0.is_empty() {
            open.push(from.number()?);
        }
        let counted = if open.len() > CHUNK as usize { open.pop() } else { None };
        Ok(Self { name, history, created_at, settings, counts, bucket, removed, freed, lanes, open, counted })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(settings: QueueSettings) -> Head {
        Head { settings, ..Head::new("q", PartitionId(2), Timestamp::from_micros(5)) }
    }

    #[test]
    fn a_head_is_read_back_as_it_was() {
        let mut head = head(QueueSettings { concurrency: Some(3), ..QueueSettings::default() });
        let mut chunks = Ranges::default();
        chunks.insert(4);
        head.lanes.push(Lane { priority: 3, kind: 1, since: Timestamp::from_micros(7), chunks });
        head.counts[2] = 9;
        assert_eq!(Head::decode(&head.encode()).unwrap(), head);
        head.open = vec![300; CHUNK as usize];
        assert_eq!(Head::decode(&head.encode()).unwrap(), head);
        head.counted = Some(7);
        assert_eq!(Head::decode(&head.encode()).unwrap(), head);
    }

    #[test]
    fn a_tally_that_begins_late_leaves_what_was_there_to_be_counted() {
        let mut late = head(QueueSettings::default());
        late.counts[State::Running as usize] = 130;
        assert!(late.is_uncounted());
        assert_eq!(late.loads().collect::<Vec<_>>()[..3], [3, 3, 2]);
        late.begin_tally();
        late.tally(0, 0b1, 0);
        assert!(late.is_uncounted() && late.open.iter().all(|count| *count == 0));
        let mut first = head(QueueSettings::default());
        first.begin_tally();
        first.tally(0, 0, 0b101);
        assert!(!first.is_uncounted());
        assert_eq!(first.loads().sum::<u64>(), 2);
    }

    #[test]
    fn a_rate_gives_out_so_many_and_then_one_by_one() {
        let rate = Rate { count: 10, per_ms: 1_000 };
        let mut head = head(QueueSettings { rate_limit: Some(rate), ..QueueSettings::default() });
        let start = Timestamp::from_micros(1_000_000_000);
        assert_eq!(head.allowance(start), 10);
        head.take_tokens(10, start);
        assert_eq!(head.allowance(start), 0);
        assert_eq!(head.allowed_in(start), Some(Duration::from_millis(100)));
        assert_eq!(head.allowance(start.after(Duration::from_millis(100))), 1);
        assert_eq!(head.allowance(start.after(Duration::from_secs(60))), 10);
    }

    #[test]
    fn paused_and_full_queues_give_out_nothing() {
        let mut full = head(QueueSettings { concurrency: Some(1), ..QueueSettings::default() });
        full.counts[State::Running as usize] = 1;
        assert_eq!(full.allowance(Timestamp::default()), 0);
        let paused = head(QueueSettings { paused: true, ..QueueSettings::default() });
        assert_eq!(paused.allowance(Timestamp::default()), 0);
    }

    #[test]
    fn a_queue_begins_at_the_first_chunk_that_is_kept() {
        let mut removed = Prefix::default();
        assert!(!removed.insert(1));
        assert!(removed.contains(1) && !removed.contains(0));
        assert!(removed.insert(0));
        assert_eq!((removed.end, removed.beyond.len()), (2, 0));
        assert!(!removed.insert(1), "it was there");
    }
}
