//! Chunks: the record that stores neighbouring slots.
//!
//! A slot takes a few bytes unless its job needed anything special. Always: a chunk of an earlier format is still read.

use baton_store::Error;
use baton_types::{Offset, PartitionId, Timestamp};

use crate::model::codec::{Reader, Writer};
use crate::model::ids::{CHUNK, JobPosition};
use crate::model::slot::{Permit, Slot, TIMEOUT_MS};
use crate::model::state::State;

/// Stores equal neighbouring slots as one run; see [`Chunk::encode`].
const FORMAT: u8 = 2;
/// The earlier format: stores each slot by itself, with its key. Still readable.
const FORMAT_WITHOUT_RUNS: u8 = 1;

/// Which of the optional parts a slot has.
mod part {
    pub const RUN_AT: u64 = 1;
    pub const RAN: u64 = 1 << 1;
    pub const ENDED: u64 = 1 << 2;
    pub const LOSSES: u64 = 1 << 3;
    pub const HISTORY: u64 = 1 << 4;
    pub const RESULT: u64 = 1 << 5;
    pub const SPEC: u64 = 1 << 6;
    pub const BLOCKERS: u64 = 1 << 7;
    pub const FAILED_BLOCKER: u64 = 1 << 8;
    pub const DEPENDENTS: u64 = 1 << 9;
    pub const LABELS: u64 = 1 << 10;
    pub const UNIQUE: u64 = 1 << 11;
    pub const PERMIT: u64 = 1 << 12;
    pub const HELD: u64 = 1 << 13;
    pub const WAITING: u64 = 1 << 14;
    pub const NEXT: u64 = 1 << 15;
    pub const OUTPUT: u64 = 1 << 16;
    pub const DEAD: u64 = 1 << 17;
    pub const FENCE: u64 = 1 << 18;
    pub const TIMEOUT: u64 = 1 << 19;
}

/// A record with the slots of neighbouring jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chunk {
    /// The time of the chunk's entry in the due index.
    pub indexed: Option<Timestamp>,
    /// The slots, from the chunk's first offset on; at most [`CHUNK`].
    pub slots: Vec<Slot>,
}

impl Chunk {
    /// Encodes the chunk. Jobs that were enqueued together were mostly leased and ended together. So neighbours are
    /// equal except for their concurrency keys: a run of them is stored as its length, one slot, and their keys.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer(Vec::with_capacity(64 + 9 * self.slots.len()));
        let base = self.slots.iter().find(|slot| slot.state != State::Gone);
        let base = base.map_or(Timestamp::default(), |slot| slot.created_at);
        out.byte(FORMAT);
        out.moment(base, Timestamp::default());
        out.byte(u8::from(self.indexed.is_some()));
        if let Some(indexed) = self.indexed {
            out.moment(indexed, base);
        }
        out.number(self.slots.len() as u64);
        let mut rest = &self.slots[..];
        while let Some(first) = rest.first() {
            let (run, after) = rest.split_at(run_of(first, rest));
            out.number(run.len() as u64);
            encode_slot(&mut out, first, base);
            run.iter().filter_map(Slot::kept_permit).for_each(|permit| out.fixed(permit.key));
            rest = after;
        }
        out.0
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let mut from = Reader(bytes);
        let format = from.byte()?;
        if ![FORMAT, FORMAT_WITHOUT_RUNS].contains(&format) {
            return Err(Error::Corrupt("a chunk of jobs has an unknown format".into()));
        }
        let base = from.moment(Timestamp::default())?;
        let indexed = if from.byte()? == 0 { None } else { Some(from.moment(base)?) };
        let count = usize::try_from(from.number()?.min(CHUNK)).unwrap_or(0);
        let mut slots = Vec::with_capacity(CHUNK as usize);
        while slots.len() < count {
            let run = if format == FORMAT { from.number()? } else { 1 };
            let first = decode_slot(&mut from, base, format)?;
            let end = usize::try_from(run).unwrap_or(usize::MAX).saturating_add(slots.len());
            if end > count || run == 0 {
                return Err(Error::Corrupt("a chunk of jobs has a run that is too long".into()));
            }
            let begin = slots.len();
            slots.resize(end, first);
            if format == FORMAT {
                for permit in slots[begin..].iter_mut().filter_map(|slot| slot.permit.as_mut()) {
                    permit.key = from.fixed()?;
                }
            }
        }
        Ok(Self { indexed, slots })
    }
}

/// How many slots from the first on are equal, except for their keys.
fn run_of(first: &Slot, slots: &[Slot]) -> usize {
    let mut same = first.clone();
    let is_same = |slot: &&Slot| {
        if let Some((same, permit)) = same.permit.as_mut().zip(slot.permit) {
            same.key = permit.key;
        }
        same == **slot
    };
    slots.iter().take_while(is_same).count()
}

fn encode_slot(out: &mut Writer, slot: &Slot, base: Timestamp) {
    out.byte(slot.state as u8 | (slot.priority << 4));
    if slot.state == State::Gone {
        // A position in a key's wait list outlives the job, and so does a specification that is stored here.
        let linked = slot.kept_permit();
        out.byte(u8::from(linked.is_some()) | (u8::from(slot.spec.is_some()) << 1));
        if let Some(permit) = linked {
            encode_permit(out, &permit);
        }
        if let Some(owner) = slot.spec {
            out.number(owner.0);
        }
        return;
    }
    let permit = slot.permit;
    let mut parts = 0;
    for (present, part) in [
        (slot.run_at.is_some(), part::RUN_AT),
        (slot.executions > 0, part::RAN),
        (slot.state.is_terminal(), part::ENDED),
        (slot.losses > 0, part::LOSSES),
        (slot.history.is_some(), part::HISTORY),
        (slot.has_result, part::RESULT),
        (slot.spec.is_some(), part::SPEC),
        (slot.blockers > 0, part::BLOCKERS),
        (slot.has_failed_blocker, part::FAILED_BLOCKER),
        (slot.has_dependents, part::DEPENDENTS),
        (slot.has_labels, part::LABELS),
        (slot.unique.is_some(), part::UNIQUE),
        (permit.is_some(), part::PERMIT),
        (slot.has_output, part::OUTPUT),
        (slot.dead_at.is_some(), part::DEAD),
        (slot.fence > 0, part::FENCE),
        (slot.timeout_ms != TIMEOUT_MS, part::TIMEOUT),
    ] {
        parts |= if present { part } else { 0 };
    }
    out.number(parts);
    out.number(slot.kind.into());
    out.moment(slot.created_at, base);
    if let Some(run_at) = slot.run_at {
        out.moment(run_at, slot.created_at);
    }
    if slot.fence > 0 {
        out.number(slot.fence);
    }
    if slot.executions > 0 {
        out.number(slot.executions.into());
        out.number(slot.attempts.into());
        out.number(slot.worker);
        out.moment(slot.started_at, slot.created_at);
        out.moment(slot.lease_until, slot.started_at);
        out.moment(slot.deadline, slot.started_at);
    }
    if slot.state.is_terminal() {
        out.moment(slot.ended_at, slot.created_at);
        out.moment(slot.forget_at, slot.ended_at);
    }
    if slot.losses > 0 {
        out.number(slot.losses.into());
        out.moment(slot.losses_since, slot.created_at);
    }
    for position in [slot.history, slot.spec].into_iter().flatten() {
        out.number(position.0);
    }
    if slot.blockers > 0 {
        out.number(slot.blockers.into());
    }
    if let Some(unique) = slot.unique {
        out.number(unique);
    }
    if let Some(permit) = &permit {
        encode_permit(out, permit);
    }
    if let Some(dead_at) = slot.dead_at {
        out.moment(dead_at, slot.created_at);
    }
    if slot.timeout_ms != TIMEOUT_MS {
        out.number(slot.timeout_ms);
    }
}

fn encode_permit(out: &mut Writer, permit: &Permit) {
    let flags =
        [(permit.held, part::HELD), (permit.is_waiting, part::WAITING), (permit.next.is_some(), part::NEXT)];
    let flags: u64 = flags.iter().map(|(present, part)| if *present { *part } else { 0 }).sum();
    out.number(flags / part::HELD);
    out.number(permit.limit.into());
    if let Some(next) = permit.next {
        out.number(next.partition.0);
        out.number(next.offset.0);
    }
}

/// A permit without its key, which follows the run.
fn decode_permit(from: &mut Reader<'_>, format: u8) -> Result<Permit, Error> {
    let (flags, key) = match format {
        FORMAT_WITHOUT_RUNS => (from.number()?, from.number()?),
        _ => (from.number()?.saturating_mul(part::HELD), 0),
    };
    let limit = from.small()?;
    let next = if flags & part::NEXT != 0 {
        let partition = PartitionId(from.number()?);
        Some(JobPosition::new(partition, from.number()?))
    } else {
        None
    };
    Ok(Permit { key, limit, held: flags & part::HELD != 0, is_waiting: flags & part::WAITING != 0, next })
}

fn decode_slot(from: &mut Reader<'_>, base: Timestamp, format: u8) -> Result<Slot, Error> {
    let first = from.byte()?;
    let state = State::from_number(first & 0xf)
        .ok_or_else(|| Error::Corrupt(format!("a job has the unknown state {}", first & 0xf)))?;
    let mut slot = Slot::new(state, first >> 4, 0, base);
    if state == State::Gone {
        slot.created_at = Timestamp::default();
        let parts = from.byte()?;
        slot.permit = if parts & 1 == 0 { None } else { Some(decode_permit(from, format)?) };
        slot.spec = if parts & 2 == 0 { None } else { Some(Offset(from.number()?)) };
        return Ok(slot);
    }
    let parts = from.number()?;
    let has = |part: u64| parts & part != 0;
    slot.kind = from.small()?;
    slot.created_at = from.moment(base)?;
    if has(part::RUN_AT) {
        slot.run_at = Some(from.moment(slot.created_at)?);
    }
    if has(part::FENCE) {
        slot.fence = from.number()?;
    }
    if has(part::RAN) {
        slot.executions = from.small()?;
        slot.attempts = from.small()?;
        slot.worker = from.number()?;
        slot.started_at = from.moment(slot.created_at)?;
        slot.lease_until = from.moment(slot.started_at)?;
        slot.deadline = from.moment(slot.started_at)?;
    }
    if has(part::ENDED) {
        slot.ended_at = from.moment(slot.created_at)?;
        slot.forget_at = from.moment(slot.ended_at)?;
    }
    if has(part::LOSSES) {
        slot.losses = from.small()?;
        slot.losses_since = from.moment(slot.created_at)?;
    }
    if has(part::HISTORY) {
        slot.history = Some(Offset(from.number()?));
    }
    if has(part::SPEC) {
        slot.spec = Some(Offset(from.number()?));
    }
    if has(part::BLOCKERS) {
        slot.blockers = from.small()?;
    }
    if has(part::UNIQUE) {
        slot.unique = Some(from.number()?);
    }
    if has(part::PERMIT) {
        slot.permit = Some(decode_permit(from, format)?);
    }
    if has(part::DEAD) {
        slot.dead_at = Some(from.moment(slot.created_at)?);
    }
    if has(part::TIMEOUT) {
        slot.timeout_ms = from.number()?;
    }
    slot.has_result = has(part::RESULT);
    slot.has_failed_blocker = has(part::FAILED_BLOCKER);
    slot.has_dependents = has(part::DEPENDENTS);
    slot.has_labels = has(part::LABELS);
    slot.has_output = has(part::OUTPUT);
    Ok(slot)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Slot {
        let at = |seconds: i64| Timestamp::from_micros(1_794_767_647_638_487 + seconds * 1_000_000);
        Slot {
            run_at: Some(at(9)),
            fence: 4,
            attempts: 2,
            executions: 3,
            losses: 1,
            losses_since: at(3),
            worker: 1 << 60,
            started_at: at(4),
            ended_at: at(5),
            lease_until: at(34),
            deadline: Timestamp::MAX,
            forget_at: at(100_000),
            history: Some(Offset(0)),
            has_result: true,
            spec: Some(Offset(77)),
            blockers: 2,
            has_failed_blocker: true,
            has_dependents: true,
            has_labels: true,
            unique: Some(u64::MAX),
            permit: Some(Permit {
                key: 9,
                limit: 2,
                held: true,
                is_waiting: true,
                next: Some(JobPosition::new(PartitionId(3), 8)),
            }),
            has_output: true,
            dead_at: Some(at(5)),
            timeout_ms: 0,
            ..Slot::new(State::Failed, 3, 12, at(0))
        }
    }

    #[test]
    fn a_chunk_is_read_back_as_it_was() {
        let created = Timestamp::from_micros(1_794_767_647_638_487);
        let plain = Slot::new(State::Dispatched, 1, 0, created);
        let chunk = Chunk { indexed: Some(created), slots: vec![Slot::gone(), plain.clone(), full(), plain] };
        assert_eq!(Chunk::decode(&chunk.encode()).unwrap(), chunk);
        assert_eq!(Chunk::decode(&Chunk::default().encode()).unwrap(), Chunk::default());
    }

    #[test]
    fn a_waiting_job_takes_few_bytes() {
        let created = Timestamp::from_micros(1_794_767_647_638_487);
        let slots = vec![Slot::new(State::Dispatched, 1, 0, created); 64];
        let bytes = Chunk { indexed: None, slots }.encode().len();
        assert!(bytes < 32, "{bytes}");
    }

    fn keyed(created: Timestamp, key: u64) -> Slot {
        let permit = Permit { key, limit: 1000, held: true, is_waiting: false, next: None };
        Slot { permit: Some(permit), ..Slot::new(State::Dispatched, 1, 0, created) }
    }

    #[test]
    fn jobs_of_many_keys_are_one_run() {
        let created = Timestamp::from_micros(1_794_767_647_638_487);
        let slots = (0..64).map(|number: u64| keyed(created, number.wrapping_mul(u64::MAX / 7))).collect();
        let chunk = Chunk { indexed: None, slots };
        let bytes = chunk.encode();
        assert!(bytes.len() < 8 * 64 + 32, "{}", bytes.len());
        assert_eq!(Chunk::decode(&bytes).unwrap(), chunk);
    }

    #[test]
    fn slots_that_differ_anywhere_are_no_run() {
        let created = Timestamp::from_micros(1_794_767_647_638_487);
        let plain = Slot::new(State::Dispatched, 1, 0, created);
        let waits = Permit { key: 9, limit: 2, held: false, is_waiting: true, next: None };
        let linked = Slot { permit: Some(waits), ..Slot::gone() };
        let slots = vec![
            Slot::gone(),
            linked.clone(),
            linked,
            Slot::gone(),
            plain.clone(),
            keyed(created, 7),
            plain.clone(),
            plain.clone(),
            Slot { fence: 1, ..plain.clone() },
            plain,
            full(),
            full(),
        ];
        let chunk = Chunk { indexed: Some(created), slots };
        assert_eq!(Chunk::decode(&chunk.encode()).unwrap(), chunk);
    }

    #[test]
    fn a_chunk_from_before_there_were_runs_is_read() {
        let created = Timestamp::from_micros(1_794_767_647_638_487);
        let mut out = Writer::default();
        out.byte(FORMAT_WITHOUT_RUNS);
        out.moment(created, Timestamp::default());
        out.byte(0);
        out.number(2);
        for key in [5, u64::MAX] {
            out.byte(State::Dispatched as u8 | (1 << 4));
            out.number(part::PERMIT);
            out.number(0);
            out.moment(created, created);
            [part::HELD, key, 1000].into_iter().for_each(|number| out.number(number));
        }
        let chunk = Chunk { indexed: None, slots: vec![keyed(created, 5), keyed(created, u64::MAX)] };
        assert_eq!(Chunk::decode(&out.0).unwrap(), chunk);
    }

    #[test]
    fn a_damaged_record_is_an_error() {
        let bytes = Chunk { indexed: None, slots: vec![full()] }.encode();
        for end in 0..bytes.len() {
            assert!(Chunk::decode(&bytes[..end]).is_err(), "{end}");
        }
    }
}
