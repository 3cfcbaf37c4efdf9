//! A set of offsets stored as ranges, such as the finished messages beyond a cursor.

use baton_types::Offset;

/// A set of offsets, stored as sorted ranges that neither touch nor overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OffsetRanges(Vec<(u64, u64)>);

impl OffsetRanges {
    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of offsets in the set.
    pub fn len(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }

    /// The number of offsets at or above `offset` in the set.
    pub fn len_from(&self, offset: Offset) -> u64 {
        let first = self.0.partition_point(|(_, end)| *end <= offset.0);
        self.0[first..].iter().map(|(start, end)| end - start.max(&offset.0)).sum()
    }

    /// The ranges, each with an exclusive end.
    pub fn ranges(&self) -> &[(u64, u64)] {
        &self.0
    }

    /// Builds a set from ranges in any order.
    pub fn from_ranges(ranges: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let mut set = Self::default();
        for (start, end) in ranges {
            set.insert_range(Offset(start), Offset(end));
        }
        set
    }

    /// Whether the set contains `offset`.
    pub fn contains(&self, offset: Offset) -> bool {
        let after = self.0.partition_point(|(start, _)| *start <= offset.0);
        after > 0 && offset.0 < self.0[after - 1].1
    }

    /// Adds one offset.
    pub fn insert(&mut self, offset: Offset) {
        self.insert_range(offset, offset.plus(1));
    }

    /// Adds the offsets from `start` up to `end`, exclusive.
    pub fn insert_range(&mut self, start: Offset, end: Offset) {
        if start >= end {
            return;
        }
        let first = self.0.partition_point(|(_, e)| *e < start.0);
        let last = self.0.partition_point(|(s, _)| *s <= end.0);
        let merged = self.0[first..last]
            .iter()
            .fold((start.0, end.0), |(s, e), range| (s.min(range.0), e.max(range.1)));
        self.0.splice(first..last, [merged]);
    }

    /// Removes all offsets below `offset`.
    pub fn remove_below(&mut self, offset: Offset) {
        self.0.retain_mut(|(start, end)| {
            *start = (*start).max(offset.0);
            start < end
        });
    }

    /// The position after `count` offsets that are not in the set, starting at `from`, at most `limit`; and how many
    /// of them were counted. Also skips offsets of the set right at the end.
    pub fn advance(&self, from: Offset, limit: Offset, count: u64) -> (Offset, u64) {
        let (mut at, mut passed) = (from, 0);
        for (start, end) in self.0.iter().skip_while(|(_, end)| *end <= from.0) {
            let free = start.saturating_sub(at.0).min(limit.since(at));
            if passed + free > count || at >= limit {
                break;
            }
            passed += free;
            at = Offset((*end).min(limit.0)).max(at);
        }
        let rest = limit.since(at).min(count - passed);
        (at.plus(rest), passed + rest)
    }

    /// The last offset in `from..end` that is not in the set.
    pub fn last_missing(&self, from: Offset, end: Offset) -> Option<Offset> {
        let mut end = end.0;
        for (start, held_end) in self.0.iter().rev() {
            if *held_end < end {
                break;
            }
            end = end.min(*start);
        }
        end.checked_sub(1).map(Offset).filter(|last| *last >= from)
    }

    /// The first offset at or above `offset` that is not in the set.
    pub fn first_missing(&self, offset: Offset) -> Offset {
        let after = self.0.partition_point(|(start, _)| *start <= offset.0);
        match after.checked_sub(1).map(|i| self.0[i]) {
            Some((_, end)) if offset.0 < end => Offset(end),
            _ => offset,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    #[test]
    fn the_last_that_is_missing_is_found_behind_what_is_held() {
        let set = OffsetRanges::from_ranges([(2, 4), (6, 9)]);
        let last = |from, end| set.last_missing(Offset(from), Offset(end)).map(|offset| offset.0);
        assert_eq!((last(0, 12), last(0, 9), last(0, 7), last(0, 6)), (Some(11), Some(5), Some(5), Some(5)));
        assert_eq!(
            (last(2, 4), last(0, 3), last(6, 9), last(3, 3), last(0, 0)),
            (None, Some(1), None, None, None)
        );
    }

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_agree_with_a_plain_set(
            inserts in prop::collection::vec((0u64..60, 0u64..6), 0..40),
            below in 0u64..70,
        ) {
            let (mut ranges, mut set) = (OffsetRanges::default(), BTreeSet::new());
            for (start, length) in inserts {
                ranges.insert_range(Offset(start), Offset(start + length));
                set.extend(start..start + length);
            }
            ranges.remove_below(Offset(below));
            set.retain(|o| *o >= below);
            prop_assert_eq!(ranges.len(), set.len() as u64);
            for offset in 0..80 {
                prop_assert_eq!(ranges.contains(Offset(offset)), set.contains(&offset));
                let beyond = set.range(offset..).count() as u64;
                prop_assert_eq!(ranges.len_from(Offset(offset)), beyond);
                let missing = (offset..).find(|o| !set.contains(o));
                prop_assert_eq!(Some(ranges.first_missing(Offset(offset)).0), missing);
            }
            for (from, limit, count) in [(0, 70, 5), (10, 30, 8), (below, 64, 3), (5, 5, 2), (0, 70, 0)] {
                let (end, passed) = ranges.advance(Offset(from), Offset(limit), count);
                let free = |range: std::ops::Range<u64>| range.filter(|o| !set.contains(o)).count() as u64;
                prop_assert_eq!(free(from..end.0), passed);
                prop_assert_eq!(passed, free(from..limit.max(from)).min(count));
                prop_assert!(end.0 <= limit.max(from));
            }
            prop_assert!(ranges.ranges().windows(2).all(|w| w[0].1 < w[1].0), "{:?}", ranges);
            prop_assert_eq!(OffsetRanges::from_ranges(ranges.ranges().iter().copied()), ranges);
        }
    }
}
