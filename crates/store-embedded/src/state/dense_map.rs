//! A map for millions of small entries whose keys are consecutive numbers.
//!
//! Up to half of a hash map's slots are empty, and a look-up in a large one costs several cache misses. Here 64
//! neighbouring numbers share a page that stores its entries next to each other. A look-up hashes only the number of the
//! page; pages are so few that their table stays in the cache. Always: a page has its entries in the order of their
//! numbers, and no page is empty. Not for keys that are scattered: there a hash map is better.

use std::marker::PhantomData;

use baton_types::PartitionId;
use rustc_hash::FxHashMap;

/// A key that is a number.
pub trait NumberKey: Copy {
    fn number(self) -> u64;
    fn from_number(number: u64) -> Self;
}

impl NumberKey for PartitionId {
    fn number(self) -> u64 {
        self.0
    }

    fn from_number(number: u64) -> Self {
        Self(number)
    }
}

pub struct DenseMap<K, V> {
    pages: FxHashMap<u64, DensePage<V>>,
    len: usize,
    keys: PhantomData<K>,
}

struct DensePage<V> {
    /// One bit for each of its numbers: whether there is an entry.
    present: u64,
    entries: Vec<V>,
}

impl<V> DensePage<V> {
    /// The index of a bit's entry, or where it would be.
    fn index_of(&self, bit: u64) -> usize {
        (self.present & (bit - 1)).count_ones() as usize
    }

    fn has(&self, bit: u64) -> bool {
        self.present & bit != 0
    }
}

/// The page of a number, and its bit there.
fn page_and_bit<K: NumberKey>(key: K) -> (u64, u64) {
    (key.number() / 64, 1 << (key.number() % 64))
}

impl<K, V> Default for DenseMap<K, V> {
    fn default() -> Self {
        Self { pages: FxHashMap::default(), len: 0, keys: PhantomData }
    }
}

impl<K: NumberKey, V> DenseMap<K, V> {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn contains_key(&self, key: &K) -> bool {
        self.get(key).is_some()
    }

    pub fn get(&self, key: &K) -> Option<&V> {
        let (number, bit) = page_and_bit(*key);
        let page = self.pages.get(&number).filter(|page| page.has(bit))?;
        page.entries.get(page.index_of(bit))
    }

    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let (number, bit) = page_and_bit(*key);
        let page = self.pages.get_mut(&number).filter(|page| page.has(bit))?;
        let index = page.index_of(bit);
        page.entries.get_mut(index)
    }

    /// The value under `key`; `fresh` is inserted if there is none.
    pub fn get_or_insert(&mut self, key: K, fresh: V) -> &mut V {
        let (number, bit) = page_and_bit(key);
        let page = self.pages.entry(number).or_insert(DensePage { present: 0, entries: Vec::new() });
        let index = page.index_of(bit);
        if !page.has(bit) {
            if page.entries.len() == page.entries.capacity() {
                // The capacity doubles from one on, as many pages have only one entry.
                page.entries.reserve_exact(page.entries.len().max(1));
            }
            page.present |= bit;
            page.entries.insert(index, fresh);
            self.len += 1;
        }
        &mut page.entries[index]
    }

    pub fn remove(&mut self, key: &K) -> Option<V> {
        let (number, bit) = page_and_bit(*key);
        let page = self.pages.get_mut(&number).filter(|page| page.has(bit))?;
        let value = page.entries.remove(page.index_of(bit));
        page.present &= !bit;
        if page.present == 0 {
            self.pages.remove(&number);
        }
        self.len -= 1;
        Some(value)
    }

    /// All entries. Their order is that of the numbers only within a page.
    pub fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        self.pages.iter().flat_map(|(number, page)| keys(*number, page.present).zip(&page.entries))
    }

    pub fn into_entries(self) -> impl Iterator<Item = (K, V)> {
        self.pages.into_iter().flat_map(|(number, page)| keys(number, page.present).zip(page.entries))
    }
}

/// The keys of the entries of a page.
fn keys<K: NumberKey>(page: u64, present: u64) -> impl Iterator<Item = K> {
    let bits = (0..64).filter(move |bit| present >> bit & 1 == 1);
    bits.map(move |bit| K::from_number(page * 64 + bit))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn agrees_with_a_hash_map() {
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
        let mut seen: Vec<_> = dense.iter().map(|(key, value)| (key, *value)).collect();
        let mut entries: Vec<_> = dense.into_entries().collect();
        seen.sort_unstable();
        entries.sort_unstable();
        assert_eq!(seen, entries);
        let mut expected: Vec<_> = plain.into_iter().collect();
        expected.sort_unstable();
        assert_eq!(entries, expected);
    }

    #[test]
    fn removed_entries_leave_no_pages_behind() {
        let mut dense = DenseMap::default();
        (0..1000).for_each(|number| *dense.get_or_insert(PartitionId(number * 7), 0) += number);
        (0..1000).for_each(|number| assert_eq!(dense.remove(&PartitionId(number * 7)), Some(number)));
        assert!(dense.pages.is_empty());
    }
}
