//! The chunks that a unit of work has read, in order.
//!
//! A rule goes from job to job, mostly within one chunk, so a lookup tries the last chunk first.

use baton_types::PartitionId;

use crate::model::chunk::Chunk;
use crate::storage::derived::Summary;

/// A queue, and the number of a chunk in it.
pub(super) type At = (PartitionId, u64);

/// A chunk that the unit of work has read.
pub(super) struct Page {
    pub chunk: Chunk,
    pub before: Summary,
    pub stored: bool,
    pub dirty: bool,
    /// Whether its entry in the due index must be recomputed.
    pub swept: bool,
}

#[derive(Default)]
pub(super) struct Pages {
    sorted: Vec<(At, Page)>,
    last: usize,
}

impl Pages {
    /// The index of a chunk, or where to insert it.
    pub fn find(&mut self, at: At) -> Result<usize, usize> {
        if self.sorted.get(self.last).is_some_and(|(known, _)| *known == at) {
            return Ok(self.last);
        }
        let found = self.sorted.binary_search_by_key(&at, |(known, _)| *known);
        self.last = found.unwrap_or(self.last);
        found
    }

    pub fn contains(&self, at: At) -> bool {
        self.sorted.binary_search_by_key(&at, |(known, _)| *known).is_ok()
    }

    /// Inserts a chunk where [`find`](Self::find) said.
    pub fn insert(&mut self, index: usize, at: At, page: Page) {
        self.sorted.insert(index, (at, page));
        self.last = index;
    }

    pub fn get_mut(&mut self, index: usize) -> Option<&mut Page> {
        self.sorted.get_mut(index).map(|(_, page)| page)
    }

    pub fn iter(&self) -> impl Iterator<Item = (At, &Page)> {
        self.sorted.iter().map(|(at, page)| (*at, page))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (At, &mut Page)> {
        self.sorted.iter_mut().map(|(at, page)| (*at, page))
    }
}
