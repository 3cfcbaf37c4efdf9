//! The assignments of all workers of a service, computed once per state.
//!
//! A service may have a million shards and ten thousand workers, and collecting one worker's shards reads all of
//! them. So one pass computes all views. Start at [`Snapshot`].

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use rustc_hash::FxHashMap;

use crate::{Ranges, Service};

/// A range of shards that were granted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The first.
    pub from: u32,
    /// The last.
    pub to: u32,
    /// Their fencing token.
    pub token: u64,
}

/// The assignment of one worker.
#[derive(Debug, Default)]
pub struct WorkerView {
    /// The shards it may use.
    pub grants: Vec<Grant>,
    /// Those it must stop using and confirm.
    pub revoking: Ranges,
    /// The encoded answer to a worker of the plain protocol; every heartbeat gets the same bytes.
    pub(crate) plain: OnceLock<Bytes>,
}

impl WorkerView {
    /// The shards it may use, without their tokens.
    pub fn shards(&self) -> Ranges {
        self.grants.iter().flat_map(|grant| grant.from..=grant.to).collect()
    }
}

/// A service and the views of its workers.
#[derive(Debug)]
pub struct Snapshot {
    /// The state.
    pub service: Arc<Service>,
    /// The version of the state; zero if it is not stored.
    pub version: u64,
    /// Shards without an owner.
    pub unassigned: u32,
    views: FxHashMap<u32, WorkerView>,
    empty_view: WorkerView,
}

impl Snapshot {
    /// Computes all views in one pass over the shards.
    pub fn compute(service: Arc<Service>, version: u64) -> Self {
        let mut views: FxHashMap<u32, WorkerView> = FxHashMap::default();
        let mut unassigned = 0;
        for (number, shard) in (0u32..).zip(service.shards()) {
            if shard.owner == 0 {
                unassigned += 1;
                continue;
            }
            let view = views.entry(shard.owner).or_default();
            if shard.revoking {
                view.revoking.push(number);
                continue;
            }
            match view.grants.last_mut() {
                Some(last) if last.to + 1 == number && last.token == shard.token => last.to = number,
                _ => view.grants.push(Grant { from: number, to: number, token: shard.token }),
            }
        }
        Self { service, version, unassigned, views, empty_view: WorkerView::default() }
    }

    /// The view of the worker with this number.
    pub fn view(&self, number: u32) -> &WorkerView {
        self.views.get(&number).unwrap_or(&self.empty_view)
    }
}
