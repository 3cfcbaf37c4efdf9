//! Retry counts of the messages of a partition.

use baton_types::Offset;

/// Retries of unfinished messages, sorted by offset. Messages that have not failed have no entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retries(Vec<(u64, u32)>);

impl Retries {
    /// Whether no message has failed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many messages have failed.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The entries, each an offset with its retries.
    pub fn entries(&self) -> &[(u64, u32)] {
        &self.0
    }

    /// Builds the counts from entries in any order.
    pub fn from_entries(entries: impl IntoIterator<Item = (u64, u32)>) -> Self {
        let mut retries = Self::default();
        for (offset, spent) in entries {
            *retries.entry(Offset(offset)) = spent;
        }
        retries
    }

    /// The retries of a message.
    pub fn count(&self, offset: Offset) -> u32 {
        self.0.binary_search_by_key(&offset.0, |entry| entry.0).map_or(0, |at| self.0[at].1)
    }

    /// Adds one retry to each of these messages.
    pub fn spend(&mut self, offsets: impl IntoIterator<Item = Offset>) {
        self.0.extend(offsets.into_iter().map(|offset| (offset.0, 1)));
        self.0.sort_by_key(|entry| entry.0);
        self.0.dedup_by(|later, earlier| {
            let is_same = later.0 == earlier.0;
            if is_same {
                earlier.1 = earlier.1.saturating_add(later.1);
            }
            is_same
        });
    }

    /// Keeps only the entries of messages that `keep` accepts.
    pub fn retain(&mut self, keep: impl Fn(Offset) -> bool) {
        self.0.retain(|(offset, _)| keep(Offset(*offset)));
    }

    fn entry(&mut self, offset: Offset) -> &mut u32 {
        let at = self.0.binary_search_by_key(&offset.0, |entry| entry.0).unwrap_or_else(|at| {
            self.0.insert(at, (offset.0, 0));
            at
        });
        &mut self.0[at].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_has_a_count_of_its_own() {
        let mut retries = Retries::from_entries([(9, 2), (4, 1)]);
        retries.spend([Offset(6), Offset(4)]);
        assert_eq!(retries.entries(), [(4, 2), (6, 1), (9, 2)]);
        assert_eq!((retries.count(Offset(6)), retries.count(Offset(7)), retries.len()), (1, 0, 3));
        retries.retain(|offset| offset.0 > 4);
        assert_eq!(retries.entries(), [(6, 1), (9, 2)]);
    }
}
