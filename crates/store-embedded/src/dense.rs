//! A map for millions of small entries.
//!
//! A plain hash map keeps up to half of its room empty, at the size of an entry each. Here only four-byte places
//! are kept that way; the entries stand next to each other. Always: no order, and an entry may move when
//! another is removed. Not here: anything that a plain map would do better with few entries.

use std::hash::{BuildHasher, Hash};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use rustc_hash::FxBuildHasher;

/// At most four billion entries.
pub struct DenseMap<K, V> {
    places: HashTable<u32>,
    entries: Vec<(K, V)>,
}

impl<K, V> Default for DenseMap<K, V> {
    fn default() -> Self {
        Self { places: HashTable::new(), entries: Vec::new() }
    }
}

fn hash<K: Hash>(key: &K) -> u64 {
    FxBuildHasher.hash_one(key)
}

impl<K: Copy + Eq + Hash, V> DenseMap<K, V> {
    fn place(&self, key: &K) -> Option<usize> {
        let same = |place: &u32| self.entries[*place as usize].0 == *key;
        self.places.find(hash(key), same).map(|place| *place as usize)
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn contains_key(&self, key: &K) -> bool {
        self.place(key).is_some()
    }

    pub fn get(&self, key: &K) -> Option<&V> {
        self.place(key).map(|place| &self.entries[place].1)
    }

    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.place(key).map(|place| &mut self.entries[place].1)
    }

    /// The value under `key`, after putting `fresh` there if there was none.
    pub fn get_or_insert(&mut self, key: K, fresh: V) -> &mut V {
        let Self { places, entries } = self;
        let same = |place: &u32| entries[*place as usize].0 == key;
        let place = match places.entry(hash(&key), same, |place| hash(&entries[*place as usize].0)) {
            Entry::Occupied(entry) => *entry.get() as usize,
            Entry::Vacant(entry) => {
                let place = entries.len();
                entry.insert(u32::try_from(place).unwrap_or(u32::MAX));
                entries.push((key, fresh));
                place
            }
        };
        &mut entries[place].1
    }

    pub fn remove(&mut self, key: &K) -> Option<V> {
        let Self { places, entries } = self;
        let same = |place: &u32| entries[*place as usize].0 == *key;
        let (place, _) = places.find_entry(hash(key), same).ok()?.remove();
        let (_, value) = entries.swap_remove(place as usize);
        if let Some((moved, _)) = entries.get(place as usize) {
            let was = u32::try_from(entries.len()).unwrap_or(u32::MAX);
            if let Some(moved) = places.find_mut(hash(moved), |place| *place == was) {
                *moved = place;
            }
        }
        Some(value)
    }

    pub fn into_entries(self) -> impl Iterator<Item = (K, V)> {
        self.entries.into_iter()
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
            let key = (number >> 33) % 3000;
            if number >> 63 == 0 {
                assert_eq!(dense.remove(&key), plain.remove(&key));
            } else {
                assert_eq!(dense.get_or_insert(key, step), plain.entry(key).or_insert(step));
                *dense.get_mut(&key).unwrap() += 1;
                *plain.get_mut(&key).unwrap() += 1;
            }
            assert_eq!(dense.get(&key), plain.get(&key));
            assert_eq!(dense.contains_key(&(key + 1)), plain.contains_key(&(key + 1)));
        }
        let mut entries: Vec<_> = dense.into_entries().collect();
        entries.sort_unstable();
        let mut expected: Vec<_> = plain.into_iter().collect();
        expected.sort_unstable();
        assert_eq!(entries, expected);
    }
}
