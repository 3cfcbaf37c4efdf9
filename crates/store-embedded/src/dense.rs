//! A map for millions of small entries whose keys are numbers given out one after the other.
//!
//! A plain hash map keeps up to half of its room empty, at the size of an entry each, and a look-up in a large one waits
//! for memory several times. Here 64 neighbouring numbers share a page, where those that are present stand next to each
//! other; only pages are looked up, and these are so few that their table stays at hand. Always: a page holds its
//! entries in the order of their numbers, and none is empty. Not here: anything that a plain map would do better with
//! keys that are scattered.

use std::marker::PhantomData;

use baton_types::PartitionId;
use rustc_hash::FxHashMap;

/// A number that says where an entry stands.
pub trait Number: Copy {
    fn number(self) -> u64;
    fn from_number(number: u64) -> Self;
}

impl Number for PartitionId {
    fn number(self) -> u64 {
        self.0
    }

    fn from_number(number: u64) -> Self {
        Self(number)
    }
}

pub struct DenseMap<K, V> {
    pages: FxHashMap<u64, Page<V>>,
    len: usize,
    keys: PhantomData<K>,
}

struct Page<V> {
    /// Which of its numbers are present, one bit each.
    present: u64,
    entries: Vec<V>,
}

impl<V> Page<V> {
    /// Where the entry of a bit stands, or would stand.
    fn place(&self, bit: u64) -> usize {
        (self.present & (bit - 1)).count_ones() as usize
    }

    fn has(&self, bit: u64) -> bool {
        self.present & bit != 0
    }
}

/// The page of a number, and its bit there.
fn split<K: Number>(key: K) -> (u64, u64) {
    (key.number() / 64, 1 << (key.number() % 64))
}

impl<K, V> Default for DenseMap<K, V> {
    fn default() -> Self {
        Self { pages: FxHashMap::default(), len: 0, keys: PhantomData }
    }
}

impl<K: Number, V> DenseMap<K, V> {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn contains_key(&self, key: &K) -> bool {
        self.get(key).is_some()
    }

    pub fn get(&self, key: &K) -> Option<&V> {
        let (number, bit) = split(*key);
        let page = self.pages.get(&number).filter(|page| page.has(bit))?;
        page.entries.get(page.place(bit))
    }

    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let (number, bit) = split(*key);
        let page = self.pages.get_mut(&number).filter(|page| page.has(bit))?;
        let place = page.place(bit);
        page.entries.get_mut(place)
    }

    /// The value under `key`, after putting `fresh` there if there was none.
    pub fn get_or_insert(&mut self, key: K, fresh: V) -> &mut V {
        let (number, bit) = split(key);
        let page = self.pages.entry(number).or_insert(Page { present: 0, entries: Vec::new() });
        let place = page.place(bit);
        if !page.has(bit) {
            if page.entries.len() == page.entries.capacity() {
                // Doubled from one on: many pages hold only one entry.
                page.entries.reserve_exact(page.entries.len().max(1));
            }
            page.present |= bit;
            page.entries.insert(place, fresh);
            self.len += 1;
        }
        &mut page.entries[place]
    }

    pub fn remove(&mut self, key: &K) -> Option<V> {
        let (number, bit) = split(*key);
        let page = self.pages.get_mut(&number).filter(|page| page.has(bit))?;
        let value = page.entries.remove(page.place(bit));
        page.present &= !bit;
        if page.present == 0 {
            self.pages.remove(&number);
        }
        self.len -= 1;
        Some(value)
    }

    pub fn into_entries(self) -> impl Iterator<Item = (K, V)> {
        self.pages.into_iter().flat_map(|(number, page)| {
            let bits = (0..64).filter(move |bit| page.present >> bit & 1 == 1);
            bits.map(move |bit| K::from_number(number * 64 + bit)).zip(page.entries)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn agrees_with_a_plain_map() {
        let (mut dense, mut plain) = (DenseMap::default(), HashMap::new());
        let mut number = 1u64;
        for step in 0..50_000u64 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let key = PartitionId((number >> 33) % 3000);
            if number >> 63 == 0 {
                assert_eq!(dense.remove(&key), plain.remove(&key));
            } else {
                assert_eq!(dense.get_or_insert(key, step), plain.entry(key).or_insert(step));
                *dense.get_mut(&key).unwrap() += 1;
                *plain.get_mut(&key).unwrap() += 1;
            }
            assert_eq!(dense.get(&key), plain.get(&key));
            let next = PartitionId(key.0 + 1);
            assert_eq!(dense.contains_key(&next), plain.contains_key(&next));
            assert_eq!(dense.len(), plain.len());
        }
        let mut entries: Vec<_> = dense.into_entries().collect();
        entries.sort_unstable();
        let mut expected: Vec<_> = plain.into_iter().collect();
        expected.sort_unstable();
        assert_eq!(entries, expected);
    }

    #[test]
    fn nothing_stays_of_what_was_removed() {
        let mut dense = DenseMap::default();
        (0..1000).for_each(|number| *dense.get_or_insert(PartitionId(number * 7), 0) += number);
        (0..1000).for_each(|number| assert_eq!(dense.remove(&PartitionId(number * 7)), Some(number)));
        assert!(dense.pages.is_empty());
    }
}
