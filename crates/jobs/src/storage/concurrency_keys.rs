//! Storage of concurrency keys: many to a record, so that a batch of jobs over a hundred keys changes a few records.
//!
//! Keys are spread over pages by their hash. When a page is too full, one page is added and takes over its keys from
//! one other page (linear hashing). So pages stay small however many keys exist, and a commit moves few keys. Always:
//! the hash and the number of pages determine a key's page. Not here: what a key means (`permits`).

use std::collections::BTreeMap;

use bytes::Bytes;

use baton_store::Error as StoreError;

use crate::model::codec::{Reader, Writer};
use crate::model::concurrency_key::Key;
use crate::model::keys;
use crate::storage::{Abort, JobsTx};

/// A page with more keys than this causes another page.
const KEYS_MAX: usize = 32;
/// Pages that one commit adds.
const ADDED_MAX: usize = 8;

/// The pages that a unit of work has read.
#[derive(Default)]
pub(super) struct PermitPages {
    /// The number of pages, and whether it changed.
    count: Option<(u64, bool)>,
    pages: BTreeMap<u64, PermitPage>,
}

#[derive(Default)]
struct PermitPage {
    /// By hash, in order.
    keys: Vec<(u64, Key)>,
    dirty: bool,
    stored: bool,
}

impl PermitPage {
    fn encode(&self) -> Vec<u8> {
        let mut out = Writer(Vec::with_capacity(16 * self.keys.len()));
        for (hash, known) in &self.keys {
            out.number(*hash);
            known.encode(&mut out);
        }
        out.0
    }

    fn decode(bytes: &[u8]) -> Result<Self, StoreError> {
        let (mut from, mut keys) = (Reader(bytes), Vec::with_capacity(KEYS_MAX + 1));
        while !from.0.is_empty() {
            keys.push((from.number()?, Key::decode(&mut from)?));
        }
        Ok(Self { keys, dirty: false, stored: true })
    }

    fn find(&self, hash: u64) -> Result<usize, usize> {
        self.keys.binary_search_by_key(&hash, |(known, _)| *known)
    }
}

/// The page of a key among `count` pages: the last bits of its hash, one bit less where that page does not exist yet.
fn page_of(hash: u64, count: u64) -> u64 {
    let mask = count.max(1).next_power_of_two() - 1;
    let page = hash & mask;
    if page < count { page } else { page & (mask >> 1) }
}

impl JobsTx<'_> {
    fn permit_pages(&mut self) -> Result<u64, Abort> {
        if let Some((count, _)) = self.permits.count {
            return Ok(count);
        }
        let value = self.record(keys::PERMITS)?;
        let count = value.map_or(Ok(1), |value| Reader(&value).number())?.max(1);
        self.permits.count = Some((count, false));
        Ok(count)
    }

    fn permit_page(&mut self, number: u64) -> Result<&mut PermitPage, Abort> {
        if !self.permits.pages.contains_key(&number) {
            let value = self.record(&keys::permits(number))?;
            let page = value.map(|value| PermitPage::decode(&value)).transpose()?.unwrap_or_default();
            self.permits.pages.insert(number, page);
        }
        let page = self.permits.pages.get_mut(&number);
        page.ok_or_else(|| StoreError::Corrupt("a page of concurrency keys is missing".into()).into())
    }

    /// The state of a concurrency key.
    pub fn permit(&mut self, hash: u64) -> Result<Key, Abort> {
        let number = page_of(hash, self.permit_pages()?);
        let page = self.permit_page(number)?;
        Ok(page.find(hash).map_or_else(|_| Key::default(), |at| page.keys[at].1))
    }

    /// Prefetches several keys.
    pub fn prefetch_permits(&mut self, hashes: &[u64]) -> Result<(), Abort> {
        if hashes.is_empty() {
            return Ok(());
        }
        let count = self.permit_pages()?;
        let mut numbers: Vec<u64> = hashes.iter().map(|hash| page_of(*hash, count)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers.retain(|number| !self.permits.pages.contains_key(number));
        let keys: Vec<String> = numbers.into_iter().map(keys::permits).collect();
        self.prefetch(keys.iter().map(String::as_str))
    }

    /// The state of a concurrency key, to change it.
    pub fn permit_mut(&mut self, hash: u64) -> Result<&mut Key, Abort> {
        let number = page_of(hash, self.permit_pages()?);
        let page = self.permit_page(number)?;
        page.dirty = true;
        let at = page.find(hash).unwrap_or_else(|at| {
            page.keys.insert(at, (hash, Key::default()));
            at
        });
        Ok(&mut page.keys[at].1)
    }

    /// Adds pages where there are too many keys, and records what to write.
    pub(super) fn settle_permits(&mut self) -> Result<(), Abort> {
        for page in self.permits.pages.values_mut().filter(|page| page.dirty) {
            page.keys.retain(|(_, known)| !known.is_idle());
        }
        for _ in 0..ADDED_MAX {
            if !self.permits.pages.values().any(|page| page.dirty && page.keys.len() > KEYS_MAX) {
                break;
            }
            self.add_permit_page()?;
        }
        for (number, page) in self.permits.pages.iter().filter(|(_, page)| page.dirty) {
            let value = (!page.keys.is_empty()).then(|| Bytes::from(page.encode()));
            if page.stored || value.is_some() {
                self.writes.insert(keys::permits(*number), (value, None));
            }
        }
        self.effects.permit_pages = self.permits.count.map(|(count, _)| count);
        if let Some((count, true)) = self.permits.count {
            let mut out = Writer::default();
            out.number(count);
            self.writes.insert(keys::PERMITS.to_owned(), (Some(out.0.into()), None));
        }
        Ok(())
    }

    fn add_permit_page(&mut self) -> Result<(), Abort> {
        let count = self.permit_pages()?;
        // The one page whose keys may move to the new one: that of the same bits without the highest.
        let from = self.permit_page(page_of(count, count))?;
        let stays = |hash: &u64| page_of(*hash, count + 1) != count;
        let (keep, moved) = std::mem::take(&mut from.keys).into_iter().partition(|(hash, _)| stays(hash));
        (from.keys, from.dirty) = (keep, true);
        self.permits.pages.insert(count, PermitPage { keys: moved, dirty: true, stored: false });
        self.permits.count = Some((count + 1, true));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_page_takes_keys_from_one_page_only() {
        for count in 1..200 {
            let from = page_of(count, count);
            for hash in (0..2_000u64).map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15)) {
                let (before, after) = (page_of(hash, count), page_of(hash, count + 1));
                assert!(
                    before < count && (after == before || (before == from && after == count)),
                    "{count} {hash:x}"
                );
            }
        }
    }

    #[test]
    fn a_page_is_read_back_as_it_was() {
        let position = |offset| crate::model::ids::JobPosition::new(baton_types::PartitionId(300), offset);
        let with_line = Key { limit: 300, held: 2, wait_list: Some((position(1), position(2_000))) };
        let without = Key { wait_list: None, ..with_line };
        let page = PermitPage { keys: vec![(7, with_line), (u64::MAX, without)], dirty: false, stored: true };
        assert_eq!(PermitPage::decode(&page.encode()).unwrap().keys, page.keys);
    }
}
