//! What each worker of a service is to be told, made once for each state.
//!
//! A state may have a million shards and ten thousand workers; asking it for one worker's shards looks at all of them.
//! So one pass makes the views of all. Start at [`Snapshot`].

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use rustc_hash::FxHashMap;

use crate::{Ranges, Service};

/// A run of shards that were granted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The first.
    pub from: u32,
    /// The last.
    pub to: u32,
    /// What proves the right to them.
    pub token: u64,
}

/// What one worker is to be told.
#[derive(Debug, Default)]
pub struct View {
    /// The shards it may use.
    pub grants: Vec<Grant>,
    /// Those it must stop using, and say so.
    pub revoking: Ranges,
    /// The whole answer to a worker that speaks the plain protocol; every beat is answered with the same bytes.
    pub(crate) plain: OnceLock<Bytes>,
}

impl View {
    /// The shards it may use, without their tokens.
    pub fn shards(&self) -> Ranges {
        self.grants.iter().flat_map(|grant| grant.from..=grant.to).collect()
    }
}

/// A service as it stands, with what everybody is to be told.
#[derive(Debug)]
pub struct Snapshot {
    /// The state.
    pub service: Arc<Service>,
    /// Which write of the state it is; zero when it was never written.
    pub version: u64,
    /// Shards that nobody has.
    pub unassigned: u32,
    views: FxHashMap<u32, View>,
    nothing: View,
}

impl Snapshot {
    /// Looks at every shard once.
    pub fn of(service: Arc<Service>, version: u64) -> Self {
        let mut views: FxHashMap<u32, View> = FxHashMap::default();
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
        Self { service, version, unassigned, views, nothing: View::default() }
    }

    /// What the worker with this number is to be told.
    pub fn view(&self, number: u32) -> &View {
        self.views.get(&number).unwrap_or(&self.nothing)
    }
}
