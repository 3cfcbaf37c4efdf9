//! The plan: how many shards each worker gets, and which ones.
//!
//! [`Allocation::Contiguous`] gives every worker one range of numbers, in the order of their ids.
//! [`Allocation::Sticky`] moves as few shards as the counts allow. Both share by weight, within each worker's
//! capacity, and give the remainders to the largest fractions (the largest remainder method). Always: every shard
//! has a worker unless all are at capacity; two workers of equal weight without a capacity differ by at most one;
//! the same input gives the same output. Not here: when a shard changes hands (`service`). Start at [`plan`].

use std::sync::Arc;

/// How shards are spread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Allocation {
    /// One range of numbers per worker, in the order of their ids. A change moves about a third of all shards.
    #[default]
    Contiguous,
    /// As few moves as possible.
    Sticky,
}

/// A worker that may have shards.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Its number; not zero.
    pub number: u32,
    /// Its id.
    pub id: Arc<str>,
    /// Its share, relative to others.
    pub weight: u32,
    /// Shards it can have at most.
    pub capacity: Option<u32>,
}

/// The worker's number for each of `count` shards, or zero when all workers are at capacity. `candidates` are
/// sorted by id; `held` is the current owner of each shard that may keep it, or zero.
pub fn plan(allocation: Allocation, count: u32, candidates: &[Candidate], held: &[u32]) -> Vec<u32> {
    match allocation {
        Allocation::Contiguous => contiguous(count, candidates),
        Allocation::Sticky => sticky(count, candidates, held),
    }
}

fn contiguous(count: u32, candidates: &[Candidate]) -> Vec<u32> {
    let mut plan = Vec::with_capacity(count as usize);
    for (candidate, share) in
        candidates.iter().zip(shard_counts(count, candidates, &vec![0; candidates.len()]))
    {
        plan.resize(plan.len() + share as usize, candidate.number);
    }
    plan.resize(count as usize, 0);
    plan
}

fn sticky(count: u32, candidates: &[Candidate], held: &[u32]) -> Vec<u32> {
    let mut places: Vec<(u32, usize)> = candidates.iter().enumerate().map(|(at, c)| (c.number, at)).collect();
    places.sort_unstable();
    let place = |number: u32| places.binary_search_by_key(&number, |&(n, _)| n).ok().map(|at| places[at].1);
    let keepers: Vec<Option<usize>> = (0..count as usize)
        .map(|shard| held.get(shard).filter(|number| **number != 0).and_then(|number| place(*number)))
        .collect();
    let mut holds = vec![0; candidates.len()];
    keepers.iter().flatten().for_each(|keeper| holds[*keeper] += 1);
    // How many more shards each worker may take; it keeps its lowest numbers.
    let mut room = shard_counts(count, candidates, &holds);
    let mut plan = vec![0; count as usize];
    for (shard, keeper) in keepers.iter().enumerate() {
        if let Some(keeper) = keeper.filter(|keeper| room[*keeper] > 0) {
            room[keeper] -= 1;
            plan[shard] = candidates[keeper].number;
        }
    }
    let mut taker = 0;
    for shard in plan.iter_mut().filter(|shard| **shard == 0) {
        while taker < room.len() && room[taker] == 0 {
            taker += 1;
        }
        let Some(left) = room.get_mut(taker) else { break };
        *left -= 1;
        *shard = candidates[taker].number;
    }
    plan
}

/// How many shards each candidate gets: by weight, within its capacity. Equal remainders go to those that hold
/// more, then to the first.
fn shard_counts(count: u32, candidates: &[Candidate], holds: &[u32]) -> Vec<u32> {
    let mut shares = vec![0; candidates.len()];
    let capacity = |at: usize| u64::from(candidates[at].capacity.unwrap_or(u32::MAX));
    let weight = |at: usize| u64::from(candidates[at].weight);
    // Fill the smallest capacities per weight first; the others share what is left.
    let mut open: Vec<usize> = (0..candidates.len()).filter(|at| weight(*at) > 0).collect();
    open.sort_by(|a, b| (capacity(*a) * weight(*b)).cmp(&(capacity(*b) * weight(*a))).then(a.cmp(b)));
    let (mut left, mut weights) = (u64::from(count), open.iter().map(|at| weight(*at)).sum::<u64>());
    let mut full = 0;
    for &at in &open {
        if capacity(at) * weights > left * weight(at) {
            break;
        }
        shares[at] = u32::try_from(capacity(at)).unwrap_or(u32::MAX);
        left -= capacity(at);
        weights -= weight(at);
        full += 1;
    }
    let mut open = open.split_off(full);
    if weights == 0 {
        return shares;
    }
    let mut given = 0;
    for &at in &open {
        let share = left * weight(at) / weights;
        given += share;
        shares[at] = u32::try_from(share).unwrap_or(u32::MAX);
    }
    let remainder = |at: usize| left * weight(at) % weights;
    open.sort_by(|a, b| remainder(*b).cmp(&remainder(*a)).then(holds[*b].cmp(&holds[*a])).then(a.cmp(b)));
    let rest = usize::try_from(left - given).unwrap_or(usize::MAX);
    open.iter().take(rest).for_each(|at| shares[*at] += 1);
    shares
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn workers(ids: &[&str]) -> Vec<Candidate> {
        let worker = |(at, id): (usize, &&str)| Candidate {
            number: u32::try_from(at).unwrap() + 1,
            id: (*id).into(),
            weight: 1,
            capacity: None,
        };
        ids.iter().enumerate().map(worker).collect()
    }

    fn counts(plan: &[u32], workers: usize) -> Vec<u32> {
        let mut counts = vec![0; workers];
        plan.iter().filter(|n| **n > 0).for_each(|n| counts[*n as usize - 1] += 1);
        counts
    }

    #[test]
    fn ten_shards_over_three_workers() {
        let plan = plan(Allocation::Contiguous, 10, &workers(&["a", "b", "c"]), &[]);
        assert_eq!(plan, [1, 1, 1, 1, 2, 2, 2, 3, 3, 3]);
    }

    #[test]
    fn no_workers_and_no_shards() {
        assert_eq!(plan(Allocation::Contiguous, 3, &[], &[]), [0, 0, 0]);
        assert!(plan(Allocation::Sticky, 0, &workers(&["a"]), &[]).is_empty());
        assert_eq!(plan(Allocation::Contiguous, 2, &workers(&["a", "b", "c"]), &[]), [1, 2]);
    }

    #[test]
    fn weights_and_capacities() {
        let mut three = workers(&["a", "b", "c"]);
        three[0].weight = 3;
        assert_eq!(counts(&plan(Allocation::Contiguous, 10, &three, &[]), 3), [6, 2, 2]);
        three[0].capacity = Some(4);
        assert_eq!(counts(&plan(Allocation::Sticky, 10, &three, &[]), 3), [4, 3, 3]);
        three[1].capacity = Some(1);
        three[2].capacity = Some(2);
        assert_eq!(counts(&plan(Allocation::Contiguous, 10, &three, &[]), 3), [4, 1, 2]);
    }

    fn candidates() -> impl Strategy<Value = Vec<Candidate>> {
        let one = (1u32..5, proptest::option::weighted(0.3, 0u32..40));
        proptest::collection::vec(one, 0..12).prop_map(|all| {
            let worker = |(at, (weight, capacity)): (usize, (u32, Option<u32>))| Candidate {
                number: u32::try_from(at).unwrap() + 1,
                id: format!("{at:03}").into(),
                weight,
                capacity,
            };
            all.into_iter().enumerate().map(worker).collect()
        })
    }

    proptest! {
        #[test]
        fn plain_contiguous_is_floor_and_remainder(count in 0u32..200, ids in 1usize..20) {
            let ids: Vec<String> = (0..ids).map(|n| format!("{n:03}")).collect();
            let all = workers(&ids.iter().map(String::as_str).collect::<Vec<_>>());
            let plan = plan(Allocation::Contiguous, count, &all, &[]);
            let (base, extra) = (count / all.len() as u32, count as usize % all.len());
            let mut expected = Vec::new();
            for (at, worker) in all.iter().enumerate() {
                let share = base + u32::from(at < extra);
                expected.resize(expected.len() + share as usize, worker.number);
            }
            prop_assert_eq!(plan, expected);
        }

        #[test]
        fn no_capacity_is_passed_and_no_shard_left_while_there_is_room(
            count in 0u32..200, all in candidates(), held in proptest::collection::vec(0u32..14, 0..200),
            sticky in any::<bool>(),
        ) {
            let allocation = if sticky { Allocation::Sticky } else { Allocation::Contiguous };
            let plan = plan(allocation, count, &all, &held);
            let counts = counts(&plan, all.len());
            let mut room = 0;
            for (worker, count) in all.iter().zip(&counts) {
                let capacity = worker.capacity.unwrap_or(u32::MAX);
                prop_assert!(*count <= capacity);
                room += u64::from(capacity - count);
            }
            let unassigned = plan.iter().filter(|n| **n == 0).count() as u64;
            prop_assert!(unassigned == 0 || room == 0, "{unassigned} unassigned, room for {room}");
        }

        #[test]
        fn sticky_moves_the_minimum_and_balances_within_one(
            count in 0u32..200, before in 1usize..12, joins in 0usize..3, leaves in 0usize..3,
        ) {
            let ids: Vec<String> = (0..before + joins).map(|n| format!("{n:03}")).collect();
            let all = workers(&ids.iter().map(String::as_str).collect::<Vec<_>>());
            let held = plan(Allocation::Sticky, count, &all[..before], &[]);
            let rest = &all[leaves.min(before - 1)..];
            let now = plan(Allocation::Sticky, count, rest, &held);
            let (counts, kept) = (counts(&now, all.len()), counts(&held, all.len()));
            let shares: Vec<u32> = rest.iter().map(|worker| counts[worker.number as usize - 1]).collect();
            prop_assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1, "{shares:?}");
            let moved = held.iter().zip(&now).filter(|(a, b)| a != b).count() as u32;
            // Workers that stay must take the shards of leavers, and give shards to joiners, in any balance.
            let taken: u32 = rest.iter().map(|w| w.number as usize - 1).map(|at| counts[at].saturating_sub(kept[at])).sum();
            prop_assert_eq!(moved, taken);
        }
    }
}
