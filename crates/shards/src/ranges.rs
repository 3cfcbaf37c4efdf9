//! Sets of shard numbers as ranges, which the extended wire format uses instead of lists.
//!
//! Always: ranges are in order, do not touch, and include both ends. Start at [`Ranges`].

use serde::{Deserialize, Serialize};

use crate::limits::RANGES_MAX;

/// A set of shard numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<(u32, u32)>", into = "Vec<(u32, u32)>")]
pub struct Ranges(Vec<(u32, u32)>);

impl Ranges {
    /// The set of `numbers`, in any order.
    pub fn from_numbers(mut numbers: Vec<u32>) -> Self {
        numbers.sort_unstable();
        numbers.into_iter().collect()
    }

    /// The ranges, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.0.iter().copied()
    }

    /// Every number, in order.
    pub fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().flat_map(|&(from, to)| from..=to)
    }

    /// The number of numbers.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|&(from, to)| u64::from(to - from) + 1).sum()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the set contains `number`.
    pub fn contains(&self, number: u32) -> bool {
        let after = self.0.partition_point(|&(from, _)| from <= number);
        after > 0 && self.0[after - 1].1 >= number
    }

    /// Adds a number that is not below any other.
    pub fn push(&mut self, number: u32) {
        match self.0.last_mut() {
            Some((_, to)) if *to >= number => {}
            Some((_, to)) if *to + 1 == number => *to = number,
            _ => self.0.push((number, number)),
        }
    }
}

impl FromIterator<u32> for Ranges {
    /// Builds a set from numbers in order.
    fn from_iter<I: IntoIterator<Item = u32>>(numbers: I) -> Self {
        let mut ranges = Self::default();
        numbers.into_iter().for_each(|number| ranges.push(number));
        ranges
    }
}

impl TryFrom<Vec<(u32, u32)>> for Ranges {
    type Error = String;

    fn try_from(mut given: Vec<(u32, u32)>) -> Result<Self, String> {
        if given.len() > RANGES_MAX {
            return Err(format!("there are {} ranges: give at most {RANGES_MAX}", given.len()));
        }
        if let Some((from, to)) = given.iter().find(|(from, to)| from > to) {
            return Err(format!("[{from}, {to}] is no range: the first number is the smaller one"));
        }
        given.sort_unstable();
        let mut ranges: Vec<(u32, u32)> = Vec::with_capacity(given.len());
        for (from, to) in given {
            match ranges.last_mut() {
                Some(last) if from <= last.1.saturating_add(1) => last.1 = last.1.max(to),
                _ => ranges.push((from, to)),
            }
        }
        Ok(Self(ranges))
    }
}

impl From<Ranges> for Vec<(u32, u32)> {
    fn from(ranges: Ranges) -> Self {
        ranges.0
    }
}

/// As text: `0-3,7`.
impl std::fmt::Display for Ranges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (place, (from, to)) in self.iter().enumerate() {
            let comma = if place == 0 { "" } else { "," };
            if from == to { write!(f, "{comma}{from}")? } else { write!(f, "{comma}{from}-{to}")? }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranges_are_joined_and_written_short() {
        let ranges = Ranges::try_from(vec![(7, 7), (0, 2), (2, 3)]).unwrap();
        assert_eq!(ranges.to_string(), "0-3,7");
        assert_eq!(serde_json::to_string(&ranges).unwrap(), "[[0,3],[7,7]]");
        assert!(Ranges::try_from(vec![(2, 1)]).is_err());
        assert_eq!(Ranges::try_from(vec![(0, u32::MAX), (u32::MAX, u32::MAX)]).unwrap().count(), 1 << 32);
    }

    proptest! {
        #[test]
        fn ranges_hold_what_a_set_holds(numbers in proptest::collection::vec(0u32..60, 0..60)) {
            let set: BTreeSet<u32> = numbers.iter().copied().collect();
            let ranges = Ranges::from_numbers(numbers);
            prop_assert!(ranges.numbers().eq(set.iter().copied()));
            prop_assert_eq!(ranges.count(), set.len() as u64);
            for number in 0..70 {
                prop_assert_eq!(ranges.contains(number), set.contains(&number));
            }
            let read: Ranges = serde_json::from_str(&serde_json::to_string(&ranges).unwrap()).unwrap();
            prop_assert_eq!(read, ranges);
        }
    }
}
