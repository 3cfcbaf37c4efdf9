//! Keys of records. The crate's documentation describes them.

use baton_types::{PartitionId, Timestamp};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::model::ids::{JobId, JobPosition};

pub const DUE: &str = "jobs/due/";
pub const LEADER: &str = "jobs/leader";
pub const TERM: &str = "jobs/term";
/// Since when the leader's maintenance has run without a gap.
pub const AVAILABILITY: &str = "jobs/availability";
pub const OWNERS: &str = "jobs/owners";
pub const EVENTS: &str = "jobs/event/";
pub const EVENTS_END: &str = "jobs/events";
pub const JOURNAL: &str = "jobs/journal/";
pub const JOURNAL_END: &str = "jobs/journal-end";
pub const NODES: &str = "jobs/node/";
pub const PERMITS: &str = "jobs/permits";
pub const QUEUES: &str = "jobs/queue/";
pub const WORKERS: &str = "jobs/worker/";
pub const DEAD: &str = "jobs/dead/";
pub const WORN: &str = "jobs/worn/";

/// The kinds of labels of jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Label {
    Tag,
    Correlation,
    Schedule,
}

pub fn queue(name: &str) -> String {
    format!("{QUEUES}{name}")
}

pub fn head(partition: PartitionId) -> String {
    format!("jobs/head/{:016x}", partition.0)
}

pub fn kinds(partition: PartitionId) -> String {
    format!("jobs/kinds/{:016x}", partition.0)
}

pub fn chunk(partition: PartitionId, number: u64) -> String {
    format!("jobs/chunk/{:016x}/{number:010x}", partition.0)
}

pub fn due(at: Timestamp, partition: PartitionId, number: u64) -> String {
    format!("{DUE}{:020}/{:016x}/{number:010x}", at.micros().max(0), partition.0)
}

/// The parts of a key of the due index.
pub fn read_due(key: &str) -> Option<(Timestamp, PartitionId, u64)> {
    let mut parts = key.strip_prefix(DUE)?.split('/');
    let at = Timestamp::from_micros(parts.next()?.parse().ok()?);
    let partition = PartitionId(u64::from_str_radix(parts.next()?, 16).ok()?);
    Some((at, partition, u64::from_str_radix(parts.next()?, 16).ok()?))
}

pub fn permits(page: u64) -> String {
    format!("{PERMITS}/{page:08x}")
}

pub fn unique(hash: u64) -> String {
    format!("jobs/unique/{hash:016x}")
}

pub fn after(position: JobPosition) -> String {
    format!("jobs/after/{:016x}/{:010x}", position.partition.0, position.offset.0)
}

pub fn labels(label: Label, text: &str) -> String {
    let (kind, seed) = match label {
        Label::Tag => ('t', 1),
        Label::Correlation => ('c', 2),
        Label::Schedule => ('s', 3),
    };
    format!("jobs/label/{kind}/{:016x}/", xxh3_64_with_seed(text.as_bytes(), seed))
}

/// A key that sorts the newest job first.
pub fn label(label: Label, text: &str, job: JobId) -> String {
    format!("{}{}", labels(label, text), newest_first(job))
}

fn newest_first(job: JobId) -> String {
    format!("{:032x}", u128::MAX - job.as_uuid().as_u128())
}

/// The job of a key that [`newest_first`] made.
pub fn read_newest_first(text: &str) -> Option<JobId> {
    let number = u128::from_str_radix(text, 16).ok()?;
    uuid::Uuid::from_u128(u128::MAX - number).to_string().parse().ok()
}

/// A key that sorts the newest dead letter first.
pub fn dead(at: Timestamp, job: JobId) -> String {
    format!("{DEAD}{:020}/{:032x}", i64::MAX - at.micros(), job.as_uuid().as_u128())
}

/// The job of a dead letter's key.
pub fn read_dead(key: &str) -> Option<JobId> {
    let (_, job) = key.strip_prefix(DEAD)?.split_once('/')?;
    let number = u128::from_str_radix(job, 16).ok()?;
    uuid::Uuid::from_u128(number).to_string().parse().ok()
}

pub fn logs(job: JobId) -> String {
    format!("jobs/logs/{:032x}", job.as_uuid().as_u128())
}

pub fn log_lines(job: JobId) -> String {
    format!("jobs/log/{:032x}/", job.as_uuid().as_u128())
}

pub fn log(job: JobId, number: u64) -> String {
    format!("{}{number:016x}", log_lines(job))
}

/// When to remove a job's log.
pub fn worn(at: Timestamp, job: JobId) -> String {
    format!("{WORN}{:020}/{:032x}", at.micros().max(0), job.as_uuid().as_u128())
}

/// The parts of such a key.
pub fn read_worn(key: &str) -> Option<(Timestamp, JobId)> {
    let (at, job) = key.strip_prefix(WORN)?.split_once('/')?;
    let number = u128::from_str_radix(job, 16).ok()?;
    let job = uuid::Uuid::from_u128(number).to_string().parse().ok()?;
    Some((Timestamp::from_micros(at.parse().ok()?), job))
}

/// Why a job was cancelled, until its worker has stopped.
pub fn cancel_reason(job: JobId) -> String {
    format!("jobs/cancel-reason/{:032x}", job.as_uuid().as_u128())
}

/// The progress that a job's worker reported.
pub fn progress(job: JobId) -> String {
    format!("jobs/progress/{:032x}", job.as_uuid().as_u128())
}

pub fn worker(number: u64) -> String {
    format!("{WORKERS}{number:016x}")
}

pub fn node(id: &str) -> String {
    format!("{NODES}{id}")
}

pub fn event(number: u64) -> String {
    format!("{EVENTS}{number:020}")
}

pub fn journal(number: u64) -> String {
    format!("{JOURNAL}{number:020}")
}

pub fn idempotent(key: &str) -> String {
    format!("jobs/idempotent/{:032x}", xxhash_rust::xxh3::xxh3_128(key.as_bytes()))
}

/// The hash of a unique key of a queue.
pub fn unique_hash(partition: PartitionId, key: &str) -> u64 {
    xxh3_64_with_seed(key.as_bytes(), partition.0)
}

/// The hash of a concurrency key.
pub fn permit_hash(key: &str) -> u64 {
    xxh3_64_with_seed(key.as_bytes(), 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_back_and_stand_in_order() {
        let at = |micros| Timestamp::from_micros(micros);
        assert_eq!(read_due(&due(at(5), PartitionId(7), 9)), Some((at(5), PartitionId(7), 9)));
        assert!(due(at(99), PartitionId(7), 9) < due(at(100), PartitionId(1), 0));
        let job = |millis: i64| JobId::new(at(millis * 1000), JobPosition::new(PartitionId(1), 2));
        let (old, new) = (job(1_000_000), job(2_000_000));
        assert_eq!(read_dead(&dead(at(5), old)), Some(old));
        assert_eq!(read_worn(&worn(at(5), old)), Some((at(5), old)));
        assert!(dead(at(6), old) < dead(at(5), new));
        assert!(label(Label::Tag, "a", new) < label(Label::Tag, "a", old));
        let prefix = labels(Label::Tag, "a");
        assert_eq!(read_newest_first(label(Label::Tag, "a", old).strip_prefix(&prefix).unwrap()), Some(old));
    }
}
