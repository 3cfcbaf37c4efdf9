//! The chunks that a unit of work has read, in order.
//!
//! A rule goes from job to job, mostly within one chunk, so a lookup tries the last chunk first.

use baton_types::PartitionId;

use crate::model::chunk::Chunk;
use crate::storage::derived::ChunkSummary;

/// A queue, and the number of a chunk in it.
pub(super) type ChunkAddress = (PartitionId, u64);

/// A chunk that the unit of work has read.
pub(super) struct CachedChunk {
    pub chunk: Chunk,
    pub before: ChunkSummary,
    pub stored: bool,
    pub dirty: bool,
    /// Whether its entry in the due index must be recomputed.
    pub swept: bool,
}

#[derive(Default)]
pub(super) struct ChunkCache {
    sorted: Vec<(ChunkAddress, CachedChunk)>,
    last: usize,
}

impl ChunkCache {
    /// The index of a chunk, or where to insert it.
    pub fn find(&mut self, at: ChunkAddress) -> Result<usize, usize> {
        if self.sorted.get(self.last).is_some_and(|(known, _)| *known == at) {
            return Ok(self.last);
        }
        let found = self.sorted.binary_search_by_key(&at, |(known, _)| *known);
        self.last = found.unwrap_or(self.last);
        found
    }

    pub fn contains(&self, at: ChunkAddress) -> bool {
        self.sorted.binary_search_by_key(&at, |(known, _)| *known).is_ok()
    }

    /// Inserts a chunk where [`find`](Self::find) said.
    pub fn insert(&mut self, index: usize, at: ChunkAddress, page: CachedChunk) {
        self.sorted.insert(index, (at, page));
        self.last = index;
    }

    pub fn get_mut(&mut self, index: usize) -> Option<&mut CachedChunk> {
        self.sorted.get_mut(index).map(|(_, page)| page)
    }

    pub fn iter(&self) -> impl Iterator<Item = (ChunkAddress, &CachedChunk)> {
        self.sorted.iter().map(|(at, page)| (*at, page))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (ChunkAddress, &mut CachedChunk)> {
        self.sorted.iter_mut().map(|(at, page)| (*at, page))
    }
}
