//! Lanes: which chunks of a queue hold dispatched jobs of a priority and type, oldest first.

use std::time::Duration;

use baton_store::Error;
use baton_types::Timestamp;

use crate::model::codec::{Reader, Writer};
/// A set of chunk numbers, stored as ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }

    pub fn first(&self) -> Option<u64> {
        self.0.first().map(|(start, _)| *start)
    }

    /// All numbers, in order.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().flat_map(|(start, end)| *start..*end)
    }

    pub fn contains(&self, number: u64) -> bool {
        let at = self.0.partition_point(|(_, end)| *end <= number);
        self.0.get(at).is_some_and(|(start, _)| *start <= number)
    }

    pub fn insert(&mut self, number: u64) {
        let at = self.0.partition_point(|(_, end)| *end < number);
        match self.0.get_mut(at) {
            Some((start, end)) if *start <= number && number < *end => return,
            Some((_, end)) if *end == number => *end += 1,
            Some((start, _)) if *start == number + 1 => *start = number,
            _ => self.0.insert(at, (number, number + 1)),
        }
        if at + 1 < self.0.len() && self.0[at].1 == self.0[at + 1].0 {
            self.0[at].1 = self.0[at + 1].1;
            self.0.remove(at + 1);
        }
    }

    pub fn remove(&mut self, number: u64) {
        let at = self.0.partition_point(|(_, end)| *end <= number);
        let Some((start, end)) = self.0.get(at).copied().filter(|(start, _)| *start <= number) else {
            return;
        };
        match (start == number, end == number + 1) {
            (true, true) => drop(self.0.remove(at)),
            (true, false) => self.0[at].0 += 1,
            (false, true) => self.0[at].1 -= 1,
            (false, false) => {
                self.0[at].1 = number;
                self.0.insert(at + 1, (number + 1, end));
            }
        }
    }

    /// Joins neighbouring ranges until at most `max` are left. Only for sets that may contain too much.
    pub fn bound(&mut self, max: usize) {
        while self.0.len() > max.max(1) {
            let joined = self.0.chunks(2).map(|pair| (pair[0].0, pair[pair.len() - 1].1));
            self.0 = joined.collect();
        }
    }

    pub(crate) fn encode(&self, out: &mut Writer) {
        out.number(self.0.len() as u64);
        let mut last = 0;
        for (start, end) in &self.0 {
            out.number(start - last);
            out.number(end - start);
            last = *end;
        }
    }

    pub(crate) fn decode(from: &mut Reader<'_>) -> Result<Self, Error> {
        let (count, mut last, mut ranges) = (from.number()?, 0u64, Vec::new());
        for _ in 0..count {
            let start = last.saturating_add(from.number()?);
            last = start.saturating_add(from.number()?);
            ranges.push((start, last));
        }
        Ok(Self(ranges))
    }
}

/// Dispatched jobs of one priority and type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    /// Their priority.
    pub priority: u8,
    /// The number of their type.
    pub kind: u32,
    /// When the oldest of them was accepted, approximately.
    pub since: Timestamp,
    /// The chunks that may hold some of them; a chunk that holds one is always listed.
    pub chunks: Ranges,
}

impl Lane {
    /// The priority of its oldest job, plus one for each ageing interval that it has waited.
    pub fn urgency(&self, now: Timestamp, ageing: Duration) -> u64 {
        let waited = now.since(self.since).as_micros() / ageing.as_micros().max(1);
        u64::from(self.priority) + u64::try_from(waited).unwrap_or(u64::MAX / 2)
    }

    pub(crate) fn encode(&self, out: &mut Writer) {
        out.byte(self.priority);
        out.number(self.kind.into());
        out.moment(self.since, Timestamp::default());
        self.chunks.encode(out);
    }

    pub(crate) fn decode(from: &mut Reader<'_>) -> Result<Self, Error> {
        let (priority, kind) = (from.byte()?, from.small()?);
        Ok(Self { priority, kind, since: from.moment(Timestamp::default())?, chunks: Ranges::decode(from)? })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::model::limits::LANE_RANGES_MAX;

    #[test]
    fn ranges_are_a_set() {
        let (mut ranges, mut set, mut seed) = (Ranges::default(), BTreeSet::new(), 7u64);
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (number, adds) = ((seed >> 33) % 50, (seed >> 60).is_multiple_of(2));
            if adds {
                ranges.insert(number);
                set.insert(number);
            } else {
                ranges.remove(number);
                set.remove(&number);
            }
            assert!(ranges.iter().eq(set.iter().copied()), "{ranges:?} {set:?}");
            assert!(ranges.0.windows(2).all(|pair| pair[0].1 < pair[1].0), "{ranges:?}");
            assert_eq!(ranges.contains(number), set.contains(&number));
        }
        let mut out = Writer::default();
        ranges.encode(&mut out);
        assert_eq!(Ranges::decode(&mut Reader(&out.0)).unwrap(), ranges);
    }

    #[test]
    fn a_bounded_set_holds_at_least_what_it_held() {
        let mut ranges = Ranges::default();
        (0..5_000).for_each(|number| ranges.insert(number * 3));
        let before = ranges.clone();
        ranges.bound(LANE_RANGES_MAX);
        assert!(ranges.0.len() <= LANE_RANGES_MAX);
        assert!(before.iter().all(|number| ranges.contains(number)));
    }

    #[test]
    fn a_low_priority_overtakes_after_a_while() {
        let lane = |priority, since| Lane { priority, kind: 0, since, chunks: Ranges::default() };
        let now = Timestamp::from_micros(1_000_000_000_000);
        let minute = Duration::from_secs(60);
        assert!(lane(0, now).urgency(now, minute) < lane(3, now).urgency(now, minute));
        assert!(lane(0, now.before(4 * minute)).urgency(now, minute) > lane(3, now).urgency(now, minute));
    }
}
