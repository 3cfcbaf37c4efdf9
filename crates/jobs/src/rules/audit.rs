//! The audit: checks that all derived records agree with the slots.
//!
//! For tests, and for operators who suspect a bug. It reads whole queues, so it is slow. Always: what it finds is a
//! bug of Baton; a healthy store has none, whatever its callers did. Start at [`audit`].

use std::collections::BTreeMap;

use baton_store::TxError;
use baton_types::PartitionId;

use crate::model::ids::{CHUNK, JobId, JobPosition};
use crate::model::keys;
use crate::model::limits::LOSSES_MAX;
use crate::model::slot::Slot;
use crate::model::state::State;
use crate::storage::{Abort, JobsTx, each};

/// All slots of all queues.
type Slots = BTreeMap<JobPosition, Slot>;

/// Returns what is wrong in these queues.
pub fn audit(tx: &mut JobsTx<'_>, queues: &[PartitionId]) -> Result<Vec<String>, Abort> {
    let (mut wrong, mut slots) = (Vec::new(), Slots::new());
    for partition in queues {
        audit_queue(tx, *partition, &mut slots, &mut wrong)?;
    }
    audit_permits(tx, &slots, &mut wrong)?;
    audit_jobs(tx, &slots, &mut wrong)?;
    Ok(wrong)
}

/// Checks counts, lanes and the due index.
fn audit_queue(
    tx: &mut JobsTx<'_>,
    partition: PartitionId,
    slots: &mut Slots,
    wrong: &mut Vec<String>,
) -> Result<(), Abort> {
    let (end, head) = (tx.next_position(partition)?.offset.0, tx.head(partition)?.clone());
    let (mut counts, mut open) = ([0; State::COUNT], vec![0; CHUNK as usize]);
    let tallied = head.counted.unwrap_or(u64::MAX);
    each(head.removed.end..end.div_ceil(CHUNK), |number| {
        let (here, indexed) = tx.chunk_as_stored((partition, number))?;
        if here.is_empty() && !head.removed.contains(number) {
            wrong.push(format!("chunk {number} of {partition} is missing"));
        }
        if let Some(at) = indexed
            && tx.record(&keys::due(at, partition, number))?.is_none()
        {
            wrong.push(format!("chunk {number} of {partition} has no due entry at {at}"));
        }
        if head.freed.contains(number) && here.iter().any(|slot| !slot.is_free()) {
            wrong.push(format!("chunk {number} of {partition} is freed and needed"));
        }
        for (index, slot) in here.into_iter().enumerate() {
            let position = JobPosition::new(partition, number * CHUNK + index as u64);
            counts[slot.state as usize] += 1;
            open[index] += u64::from(number < tallied && !slot.state.is_terminal());
            let lane =
                head.lanes.iter().find(|lane| (lane.priority, lane.kind) == (slot.priority, slot.kind));
            if slot.state == State::Dispatched && !lane.is_some_and(|lane| lane.chunks.contains(number)) {
                wrong.push(format!("{position:?} is dispatched and in no lane"));
            }
            if slot.due().is_some_and(|due| indexed.is_none_or(|at| at > due)) {
                wrong.push(format!(
                    "{position:?} is due at {:?} and its chunk stands at {indexed:?}",
                    slot.due()
                ));
            }
            slots.insert(position, slot);
        }
        Ok(())
    })?;
    // Slots of deleted chunks are in no count.
    counts[State::Gone as usize] = head.counts[State::Gone as usize];
    if !head.open.is_empty() && head.open != open {
        wrong.push(format!("{partition} tallies {:?} and has {open:?}", head.open));
    }
    if counts != head.counts {
        wrong.push(format!("{partition} counts {:?} and has {counts:?}", head.counts));
    }
    Ok(())
}

/// Checks the held permits and the wait lists.
fn audit_permits(tx: &mut JobsTx<'_>, slots: &Slots, wrong: &mut Vec<String>) -> Result<(), Abort> {
    let mut keys = BTreeMap::<u64, (u32, Vec<JobPosition>)>::new();
    for (position, slot) in slots {
        let Some(permit) = slot.permit else { continue };
        let (held, waiting) = keys.entry(permit.key).or_default();
        *held += u32::from(permit.held);
        if permit.is_waiting {
            waiting.push(*position);
        }
        let may_hold = slot.state == State::Dispatched || slot.state.is_held();
        if permit.held != may_hold {
            wrong.push(format!("{position:?} is {:?} and holds a permit: {}", slot.state, permit.held));
        }
    }
    each(keys, |(hash, (held, mut waiting))| {
        let known = tx.permit(hash)?;
        if known.held != held || held > known.limit.max(1) {
            wrong.push(format!(
                "key {hash:x}: {held} hold one of {}, {} are counted",
                known.limit, known.held
            ));
        }
        let (mut line, mut next) = (Vec::new(), known.wait_list.map(|(first, _)| first));
        while let Some(position) = next.filter(|_| line.len() <= slots.len()) {
            line.push(position);
            next = slots.get(&position).and_then(|slot| slot.permit).and_then(|permit| permit.next);
        }
        if line.last() != known.wait_list.as_ref().map(|(_, last)| last) {
            wrong.push(format!(
                "key {hash:x}: the wait list ends at {:?}, not at {:?}",
                line.last(),
                known.wait_list
            ));
        }
        line.sort_unstable();
        waiting.sort_unstable();
        if line != waiting {
            wrong.push(format!("key {hash:x}: the wait list has {line:?}, the slots say {waiting:?}"));
        }
        if held < known.limit && !line.is_empty() && line.iter().any(|position| waits(slots, *position)) {
            wrong.push(format!("key {hash:x}: {held} of {} are held and a job waits", known.limit));
        }
        Ok(())
    })?;
    Ok(())
}

fn waits(slots: &Slots, position: JobPosition) -> bool {
    slots.get(&position).is_some_and(|slot| slot.state == State::Pending && slot.blockers == 0)
}

/// Checks each job by itself.
fn audit_jobs(tx: &mut JobsTx<'_>, slots: &Slots, wrong: &mut Vec<String>) -> Result<(), Abort> {
    each(slots.iter().filter(|(_, slot)| slot.state != State::Gone), |(position, slot)| {
        let id = JobId::new(slot.created_at, *position);
        let is_waiting = slot.permit.is_some_and(|permit| permit.is_waiting);
        match tx.spec(*position) {
            Err(Abort::Stop(TxError::Failed(error))) => {
                wrong.push(format!("{id} has no specification: {error}"))
            }
            other => drop(other?),
        }
        if slot.state == State::Pending && slot.blockers == 0 && !slot.has_failed_blocker && !is_waiting {
            wrong.push(format!("{id} waits for nothing"));
        }
        if slot.losses > LOSSES_MAX {
            wrong.push(format!("{id} was lost {} times", slot.losses));
        }
        if slot.state.is_terminal() && (slot.unique.is_some() || slot.has_dependents) {
            wrong.push(format!("{id} has ended and keeps others waiting"));
        }
        if let Some(unique) = slot.unique
            && tx.record(&keys::unique(unique))?.as_deref() != Some(&id.as_uuid().as_bytes()[..])
        {
            wrong.push(format!("{id} does not have its unique key"));
        }
        if let Some(at) = slot.dead_at
            && tx.record(&keys::dead(at, id))?.is_none()
        {
            wrong.push(format!("{id} is no dead letter though it says so"));
        }
        Ok(())
    })?;
    Ok(())
}
