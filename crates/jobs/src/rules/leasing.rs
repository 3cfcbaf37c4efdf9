//! Leasing: which jobs a worker gets, and in which order.
//!
//! The most urgent lane of all queues that a worker serves comes first, and the oldest job of a lane. Where an
//! operator gave one of the queues a weight, a weighted random draw chooses the queue first. A lease call reads the
//! head of each queue and the chunks of the leased jobs, however many other jobs wait.
//! of each queue and the chunks that jobs are taken from, however many others wait.

use std::time::Duration;

use baton_types::{PartitionId, Timestamp};

use crate::model::ids::{CHUNK, JobPosition, WorkerId};
use crate::model::keys;
use crate::model::lane::Lane;
use crate::model::queue_head::Head;
use crate::model::state::State;
use crate::model::worker::Desired;
use crate::rules::{state_machine, workers};
use crate::storage::{Abort, JobsTx};

/// Chunks prefetched from one lane.
const AHEAD: u64 = 16;
/// Chunks prefetched for several workers whose calls share a commit.
const AHEAD_OF_ALL: usize = 64;
/// Jobs leased after one draw between weighted queues.
const DRAWN: usize = 8;
/// How often the time of a worker's last lease call is written.
const NOTE_EVERY: Duration = Duration::from_secs(5);

/// A leased job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantedJob {
    /// Its position.
    pub position: JobPosition,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// The offset of its specification.
    pub spec: u64,
    /// The fence of the execution.
    pub fence: u64,
    /// The number of the execution.
    pub execution: u32,
    /// The number of the attempt.
    pub attempt: u32,
    /// When it exceeds its timeout.
    pub deadline: Timestamp,
}

/// The result of a lease call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// The jobs.
    pub jobs: Vec<GrantedJob>,
    /// The wanted state of the worker.
    pub desired: Desired,
    /// Queues that may have more jobs.
    pub more: Vec<PartitionId>,
    /// When a queue's rate limit allows the next job.
    pub allowed_in: Option<Duration>,
    /// The queues that the worker serves.
    pub queues: Vec<PartitionId>,
}

/// A lane of one of the queues.
struct LaneCandidate {
    partition: PartitionId,
    lane: Lane,
}

/// Leases up to `max` jobs to a worker. `draw` is a random number for the choice between queues; `served` are the
/// queues that the worker is known to serve, prefetched along with it.
pub fn lease(
    tx: &mut JobsTx<'_>,
    id: WorkerId,
    max: usize,
    draw: u64,
    served: &[PartitionId],
) -> Result<Grant, Abort> {
    let mut keys = vec![keys::worker(id.0)];
    keys.extend(served.iter().flat_map(|queue| [keys::head(*queue), keys::kinds(*queue)]));
    tx.prefetch(keys.iter().map(String::as_str))?;
    let mut worker = workers::expect(tx, id)?;
    let now = tx.now();
    let partitions: Vec<PartitionId> = worker.partitions.iter().copied().map(PartitionId).collect();
    let mut grant = Grant { desired: worker.desired, queues: partitions.clone(), ..Grant::default() };
    if worker.desired == Desired::Active {
        fetch_heads(tx, &partitions, !worker.registration.job_types.is_empty())?;
        let wish = LeaseRequest { worker: id, job_types: &worker.registration.job_types, max, draw };
        lease_from_lanes(tx, &partitions, &wish, &mut grant)?;
    }
    if !grant.jobs.is_empty() || now.since(worker.leased_at) > NOTE_EVERY {
        (worker.leased_at, worker.seen_at) = (now, now);
        workers::put(tx, id, &worker)?;
    }
    Ok(grant)
}

fn fetch_heads(tx: &mut JobsTx<'_>, partitions: &[PartitionId], with_kinds: bool) -> Result<(), Abort> {
    let mut keys: Vec<String> = partitions.iter().copied().map(keys::head).collect();
    if with_kinds {
        keys.extend(partitions.iter().copied().map(keys::kinds));
    }
    tx.prefetch(keys.iter().map(String::as_str))
}

/// The parameters of a lease call.
struct LeaseRequest<'a> {
    worker: WorkerId,
    job_types: &'a [String],
    max: usize,
    draw: u64,
}

/// A queue with jobs to lease.
struct QueueSource {
    partition: PartitionId,
    /// How many more jobs its limits allow now.
    left: u64,
    weight: Option<u32>,
}

fn lease_from_lanes(
    tx: &mut JobsTx<'_>,
    partitions: &[PartitionId],
    wish: &LeaseRequest<'_>,
    grant: &mut Grant,
) -> Result<(), Abort> {
    let now = tx.now();
    let (mut choices, mut sources) = (Vec::new(), Vec::new());
    for partition in partitions {
        let wanted = wanted_kinds(tx, *partition, wish.job_types)?;
        let head = tx.head(*partition)?;
        let is_wanted = |lane: &&Lane| wanted.as_ref().is_none_or(|wanted| wanted.contains(&lane.kind));
        let (left, weight) = (head.allowance(now), head.settings.weight);
        let lanes: Vec<Lane> = head.lanes.iter().filter(is_wanted).cloned().collect();
        if left == 0 && !lanes.is_empty() && !head.settings.paused {
            grant.allowed_in = shortest(grant.allowed_in, head.allowed_in(now));
        }
        sources.push(QueueSource { partition: *partition, left, weight });
        choices.extend(lanes.into_iter().map(|lane| LaneCandidate { partition: *partition, lane }));
    }
    let (mut draw, weighs) = (wish.draw, sources.iter().any(|source| source.weight.is_some()));
    while grant.jobs.len() < wish.max {
        let has_work = |source: &&QueueSource| {
            source.left > 0 && choices.iter().any(|choice| choice.partition == source.partition)
        };
        let mut open: Vec<&QueueSource> = sources.iter().filter(has_work).collect();
        let mut room = wish.max - grant.jobs.len();
        if weighs && open.len() > 1 {
            open = draw_queue(open, &mut draw).into_iter().collect();
            room = room.min(DRAWN);
        }
        let Some(index) = most_urgent(&choices, &open, now, tx.policy.ageing) else { break };
        let partition = choices[index].partition;
        let Some(source) = sources.iter_mut().find(|source| source.partition == partition) else { break };
        let room = usize::try_from(source.left).unwrap_or(usize::MAX).min(room);
        source.left -= lease_from_chunk(tx, &mut choices[index], wish.worker, room, grant)?;
        if choices[index].lane.chunks.is_empty() {
            choices.swap_remove(index);
        }
    }
    for QueueSource { partition, left, .. } in sources {
        let taken = grant.jobs.iter().filter(|job| job.position.partition == partition).count() as u64;
        if taken > 0 && tx.head(partition)?.settings.rate_limit.is_some() {
            tx.head_mut(partition)?.take_tokens(taken, now);
        }
        if left > 0 && choices.iter().any(|choice| choice.partition == partition) {
            grant.more.push(partition);
        }
    }
    Ok(())
}

/// Draws a queue by weight; the default weight is 1.
fn draw_queue<'s>(open: Vec<&'s QueueSource>, draw: &mut u64) -> Option<&'s QueueSource> {
    let weight = |source: &QueueSource| u64::from(source.weight.unwrap_or(1));
    // Derives the next draw of the same call.
    *draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let mut left = (*draw >> 33) % open.iter().map(|source| weight(source)).sum::<u64>().max(1);
    open.into_iter().find(|source| match left.checked_sub(weight(source)) {
        Some(rest) => {
            left = rest;
            false
        }
        None => true,
    })
}

/// The most urgent lane of these queues, the oldest of several.
fn most_urgent(
    choices: &[LaneCandidate],
    open: &[&QueueSource],
    now: Timestamp,
    ageing: Duration,
) -> Option<usize> {
    let is_open = |choice: &LaneCandidate| open.iter().any(|source| source.partition == choice.partition);
    let open = choices.iter().enumerate().filter(|(_, choice)| is_open(choice));
    let urgent = open
        .max_by_key(|(_, choice)| (choice.lane.urgency(now, ageing), std::cmp::Reverse(choice.lane.since)));
    urgent.map(|(index, _)| index)
}

/// Leases jobs from the first chunk of a lane. Returns how many.
fn lease_from_chunk(
    tx: &mut JobsTx<'_>,
    choice: &mut LaneCandidate,
    worker: WorkerId,
    room: usize,
    grant: &mut Grant,
) -> Result<u64, Abort> {
    let (partition, lane) = (choice.partition, &mut choice.lane);
    let ahead = (room as u64 / CHUNK + 1).min(AHEAD);
    let chunks: Vec<_> = lane.chunks.iter().map(|number| (partition, number)).take(ahead as usize).collect();
    if let Err(missing) = tx.prefetch_chunks(&chunks) {
        // The other lease calls of this commit will need the following chunks.
        let after = lane.chunks.iter().take(AHEAD_OF_ALL).map(|number| (partition, number));
        let _ = tx.prefetch_chunks(&after.collect::<Vec<_>>());
        return Err(missing);
    }
    let Some(at @ (_, number)) = chunks.first().copied() else { return Ok(0) };
    let (now, policy) = (tx.now(), tx.policy);
    tx.recompute_lanes(at)?;
    let is_ours = |slot: &crate::model::slot::Slot| {
        slot.state == State::Dispatched && (slot.priority, slot.kind) == (lane.priority, lane.kind)
    };
    let slots = tx.chunk(at)?;
    let found: Vec<usize> =
        slots.iter().enumerate().filter(|(_, slot)| is_ours(slot)).map(|(at, _)| at).collect();
    let newest = slots.last().map(|slot| slot.created_at);
    let mut taken = 0;
    for index in found.iter().take(room) {
        let position = JobPosition::new(partition, number * CHUNK + *index as u64);
        let slot = tx.slot_mut(position)?;
        let ready_at = slot.run_at.unwrap_or(slot.created_at);
        let Some(fence) = state_machine::lease(slot, now, worker.0, &policy) else { continue };
        grant.jobs.push(GrantedJob {
            position,
            created_at: slot.created_at,
            spec: slot.spec.unwrap_or(position.offset).0,
            fence,
            execution: slot.executions,
            attempt: slot.attempts,
            deadline: slot.deadline,
        });
        tx.effects.counts.leased.push(now.since(ready_at));
        tx.notify_watchers(position);
        taken += 1;
    }
    if found.len() <= room {
        lane.chunks.remove(number);
        lane.since = newest.unwrap_or(lane.since);
    }
    Ok(taken)
}

/// The numbers of the job types that a worker accepts; `None` when it accepts all.
fn wanted_kinds(
    tx: &mut JobsTx<'_>,
    partition: PartitionId,
    job_types: &[String],
) -> Result<Option<Vec<u32>>, Abort> {
    if job_types.is_empty() {
        return Ok(None);
    }
    let kinds = tx.kinds(partition)?.iter().zip(0u32..);
    let known = kinds.filter(|(kind, _)| job_types.iter().any(|wanted| *wanted.as_str() == ***kind));
    Ok(Some(known.map(|(_, number)| number).collect()))
}

fn shortest(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// Why a queue leases none of its dispatched jobs.
pub fn held_back(head: &Head, now: Timestamp) -> Option<crate::model::state::WaitReason> {
    use crate::model::state::WaitReason;
    let settings = &head.settings;
    if settings.paused {
        return Some(WaitReason::Paused);
    }
    if settings.concurrency.is_some_and(|limit| head.running() >= limit.into()) {
        return Some(WaitReason::QueueLimit);
    }
    head.allowed_in(now).map(|_| WaitReason::RateLimit)
}
