//! Rebalancing: which slices move from a busy node to an idle one.
//!
//! A pure function of the ownership. Always: it moves at most half the difference between two nodes, so it never
//! reverses an imbalance, and the same input moves no slice twice. Start at [`plan`].

use std::sync::Arc;

/// The factor by which the busiest node must exceed the idlest.
const FACTOR: u64 = 2;
/// A smaller difference is not worth a move.
const DIFFERENCE_MIN: u64 = 10;
/// Slices that a node may have beyond 125% of another's before any of them move.
const SLICES_NEAR: usize = 3;
/// Slices moved in one round.
pub const MOVES_MAX: usize = 32;

/// A node and its load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeLoad {
    /// The node.
    pub node: Arc<str>,
    /// Its slices, each with its number of open jobs.
    pub slices: Vec<(usize, u64)>,
}

impl NodeLoad {
    fn jobs(&self) -> u64 {
        self.slices.iter().map(|(_, jobs)| jobs).sum()
    }
}

/// The move of one slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// The slice.
    pub slice: usize,
    /// Its open jobs.
    pub jobs: u64,
    /// Its owner.
    pub from: Arc<str>,
    /// Its next owner.
    pub to: Arc<str>,
}

/// Plans one round. `holdings` are the nodes that may own jobs, without draining ones.
pub fn plan(holdings: &[NodeLoad]) -> Vec<Move> {
    let moves = by_jobs(holdings);
    if moves.is_empty() { by_slices(holdings) } else { moves }
}

/// Moves jobs, if the busiest node has twice as many as the idlest.
fn by_jobs(holdings: &[NodeLoad]) -> Vec<Move> {
    let (Some(busy), Some(idle)) =
        (holdings.iter().max_by_key(|one| one.jobs()), holdings.iter().min_by_key(|one| one.jobs()))
    else {
        return Vec::new();
    };
    let difference = busy.jobs() - idle.jobs();
    if busy.jobs() + 1 < FACTOR * (idle.jobs() + 1) || difference < DIFFERENCE_MIN {
        return Vec::new();
    }
    // The largest that still fit first, so that few slices move.
    let mut slices: Vec<_> = busy.slices.iter().filter(|(_, jobs)| *jobs > 0).collect();
    slices.sort_unstable_by_key(|(slice, jobs)| (std::cmp::Reverse(*jobs), *slice));
    let (mut room, mut moves) = (difference / 2, Vec::new());
    for (slice, jobs) in slices {
        if *jobs <= room && moves.len() < MOVES_MAX {
            room -= jobs;
            moves.push(slice_move(*slice, *jobs, busy, idle));
        }
    }
    moves
}

/// Moves slices with no or few jobs, if a node has clearly fewer slices than another. So a new node gets its share of
/// future jobs.
fn by_slices(holdings: &[NodeLoad]) -> Vec<Move> {
    let (Some(rich), Some(poor)) = (
        holdings.iter().max_by_key(|one| one.slices.len()),
        holdings.iter().min_by_key(|one| one.slices.len()),
    ) else {
        return Vec::new();
    };
    let near = poor.slices.len() + poor.slices.len() / 4 + SLICES_NEAR;
    if rich.slices.len() < near {
        return Vec::new();
    }
    let mut slices = rich.slices.clone();
    slices.sort_unstable_by_key(|(slice, jobs)| (*jobs, *slice));
    slices.truncate(((rich.slices.len() - poor.slices.len()) / 2).min(MOVES_MAX));
    // The jobs in these slices must not reverse the balance of jobs.
    let mut room = rich.jobs().saturating_sub(poor.jobs()) / 2;
    slices.retain(|(_, jobs)| {
        let fits = *jobs <= room;
        room -= if fits { *jobs } else { 0 };
        fits
    });
    slices.into_iter().map(|(slice, jobs)| slice_move(slice, jobs, rich, poor)).collect()
}

fn slice_move(slice: usize, jobs: u64, from: &NodeLoad, to: &NodeLoad) -> Move {
    Move { slice, jobs, from: Arc::clone(&from.node), to: Arc::clone(&to.node) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ownership::SLICES;

    /// Nodes that share the slices as told, with so many jobs each, spread over their slices.
    fn nodes(shares: &[(usize, u64)]) -> Vec<NodeLoad> {
        let mut next = 0;
        let holding = |(number, (count, jobs)): (usize, &(usize, u64))| {
            let first = next;
            next += count;
            let of = |slice: usize| {
                let (slice, count) = ((slice - first) as u64, *count as u64);
                jobs / count + u64::from(slice < jobs % count)
            };
            let slices = (first..first + count).map(|slice| (slice, of(slice))).collect();
            NodeLoad { node: format!("n{number}").into(), slices }
        };
        shares.iter().enumerate().map(holding).collect()
    }

    fn apply(holdings: &mut [NodeLoad], moves: &[Move]) {
        for one in moves {
            for holding in holdings.iter_mut() {
                holding.slices.retain(|(slice, _)| *slice != one.slice || holding.node != one.from);
                if holding.node == one.to {
                    holding.slices.push((one.slice, one.jobs));
                }
            }
        }
    }

    fn jobs(holdings: &[NodeLoad]) -> Vec<u64> {
        holdings.iter().map(NodeLoad::jobs).collect()
    }

    #[test]
    fn a_hundred_and_twenty_become_sixty_and_sixty() {
        let mut two = nodes(&[(54, 100), (10, 20)]);
        let moves = plan(&two);
        assert_eq!(moves.iter().map(|one| one.jobs).sum::<u64>(), 40);
        apply(&mut two, &moves);
        assert_eq!(jobs(&two), [60, 60]);
        assert!(by_jobs(&two).is_empty());
    }

    #[test]
    fn small_differences_are_left() {
        assert!(plan(&nodes(&[(32, 100), (32, 60)])).is_empty());
        assert!(plan(&nodes(&[(32, 9), (32, 0)])).is_empty());
        assert!(plan(&nodes(&[(64, 1_000)])).is_empty());
        assert!(plan(&[]).is_empty());
    }

    #[test]
    fn one_slice_with_all_jobs_does_not_move() {
        let mut two = nodes(&[(32, 0), (32, 0)]);
        two[0].slices[0].1 = 500;
        assert!(plan(&two).is_empty());
    }

    #[test]
    fn an_empty_node_gets_its_share_of_future_jobs() {
        let mut three = nodes(&[(32, 0), (32, 0)]);
        three.push(NodeLoad { node: "n2".into(), slices: Vec::new() });
        for _ in 0..3 {
            let moves = plan(&three);
            apply(&mut three, &moves);
        }
        assert!(plan(&three).is_empty());
        assert!(three.iter().all(|one| one.slices.len() >= 12), "{three:?}");
    }

    #[test]
    fn any_input_settles_and_loses_no_slice() {
        let mut seed = 9u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for _ in 0..500 {
            let count = usize::try_from(random(5) + 1).unwrap();
            let mut holdings: Vec<_> = (0..count)
                .map(|number| NodeLoad { node: format!("n{number}").into(), slices: Vec::new() })
                .collect();
            let busy = 1 + random(200);
            for slice in 0..SLICES {
                let node = usize::try_from(random(count as u64 * 2)).unwrap().min(count - 1);
                let jobs = random(busy);
                holdings[node].slices.push((slice, jobs));
            }
            let total: u64 = jobs(&holdings).iter().sum();
            for round in 0.. {
                let moves = plan(&holdings);
                assert!(moves.len() <= MOVES_MAX);
                if moves.is_empty() {
                    break;
                }
                let spread = |holdings: &[NodeLoad]| {
                    let jobs = jobs(holdings);
                    let slices = holdings.iter().map(|one| one.slices.len()).collect::<Vec<_>>();
                    (jobs.iter().map(|n| n * n).sum::<u64>(), slices.iter().map(|n| n * n).sum::<usize>())
                };
                let before = spread(&holdings);
                apply(&mut holdings, &moves);
                let after = spread(&holdings);
                assert!(after.0 < before.0 || (after.0 == before.0 && after.1 < before.1) || round < 40);
                assert!(round < 40, "it does not settle: {holdings:?}");
            }
            assert_eq!(jobs(&holdings).iter().sum::<u64>(), total);
        }
    }
}
