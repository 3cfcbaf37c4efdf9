//! The ownership table: which node owns which slice of the jobs, under which epoch, and which slices are on offer.
//!
//! One record holds the whole table, so every change is one compare-and-set and no reader sees half of it. Always: an
//! epoch rises with every change of the owner and never otherwise; an offer takes nothing away, the owner goes on
//! until another node claims the slice; only the owner's epoch advances a slice's read position. Not here: when to
//! offer (`nodes::membership`, `nodes::dead_nodes`), what to move (`nodes::balance`). Start at [`OwnershipTable::claim`].

use std::sync::Arc;
use std::time::Duration;

use baton_store::Error;
use baton_types::Timestamp;
use serde::Serialize;

use crate::model::codec::{Reader, Writer};
use crate::model::ids::CHUNK;

/// Slices of all jobs: as many as a chunk has slots, so that each job of a chunk is in a different slice.
pub const SLICES: usize = CHUNK as usize;

const FORMAT: u8 = 1;

/// Why a slice changes its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum OwnershipReason {
    /// It never had one.
    New,
    /// Its owner leaves.
    Shutdown,
    /// Its owner is dead.
    NodeCrash,
    /// Its owner has more than its share.
    Rebalance,
}

impl OwnershipReason {
    /// All of them, in order.
    pub const ALL: [Self; 4] = [Self::New, Self::Shutdown, Self::NodeCrash, Self::Rebalance];

    /// Its name in the API.
    pub const fn word(self) -> &'static str {
        match self {
            Self::New => "New",
            Self::Shutdown => "Shutdown",
            Self::NodeCrash => "NodeCrash",
            Self::Rebalance => "Rebalance",
        }
    }
}

/// How the handoff of a slice ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandoffCase {
    /// It was claimed at the first offer.
    A,
    /// It was claimed after the offer was repeated.
    B,
    /// No node claimed it in time: the leader will offer it.
    C,
    /// No other node exists: it waits for one to join.
    D,
}

impl HandoffCase {
    /// All of them, in order.
    pub const ALL: [Self; 4] = [Self::A, Self::B, Self::C, Self::D];

    /// Its letter.
    pub const fn word(self) -> &'static str {
        match self {
            Self::A => "A",
            Self::B => "B",
            Self::C => "C",
            Self::D => "D",
        }
    }
}

/// An offer of a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    pub reason: OwnershipReason,
    /// The node that may claim it; any node when empty.
    pub to: Arc<str>,
    /// When it was made.
    pub at: Timestamp,
    /// How often it was made.
    pub tries: u32,
}

/// One slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Its owner; empty when it has none.
    pub owner: Arc<str>,
    /// Rises with every change of the owner.
    pub epoch: u64,
    /// The offer, if it is to be claimed.
    pub offer: Option<Offer>,
    /// Whether its owner left before another node claimed it.
    pub is_orphan: bool,
    /// The journal position up to which its events were published.
    pub read: u64,
}

/// A slice that a node has claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    pub slice: usize,
    /// Its new epoch.
    pub epoch: u64,
    /// Its former owner.
    pub from: Arc<str>,
    /// Why it was on offer.
    pub reason: OwnershipReason,
    /// How often it was offered.
    pub tries: u32,
}

/// The ownership table; see the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnershipTable {
    /// The slices.
    pub slices: Vec<Slice>,
    /// When the last rebalance was.
    pub balanced_at: Timestamp,
}

impl OwnershipTable {
    /// A table in which no slice has an owner.
    pub fn new(now: Timestamp) -> Self {
        let offer = Some(Offer { reason: OwnershipReason::New, to: "".into(), at: now, tries: 1 });
        let slice = Slice { owner: "".into(), epoch: 0, offer, is_orphan: false, read: 0 };
        Self { slices: vec![slice; SLICES], balanced_at: Timestamp::default() }
    }

    /// The slices of a node.
    pub fn slices_of<'a>(&'a self, node: &'a str) -> impl Iterator<Item = usize> + 'a {
        self.slices.iter().enumerate().filter(move |(_, slice)| *slice.owner == *node).map(|(at, _)| at)
    }

    /// Claims slices for a node: those offered to it, its share of those offered to any node, and all that no node
    /// has claimed within `patience`. `active` are the nodes that may claim, including this one.
    pub fn claim(
        &mut self,
        node: &Arc<str>,
        active: usize,
        now: Timestamp,
        patience: Duration,
    ) -> Vec<Claimed> {
        let share = SLICES.div_ceil(active.max(1));
        let (mut own, mut claimed) = (self.slices_of(node).count(), Vec::new());
        for (number, slice) in self.slices.iter_mut().enumerate() {
            let Some(offer) = &slice.offer else { continue };
            if slice.owner == *node {
                continue;
            }
            let is_meant = *offer.to == **node;
            let is_open = offer.to.is_empty() && (own < share || now.since(offer.at) >= patience);
            if !is_meant && !is_open {
                continue;
            }
            let (reason, tries) = (offer.reason, offer.tries);
            let from = std::mem::replace(&mut slice.owner, Arc::clone(node));
            slice.epoch += 1;
            (slice.offer, slice.is_orphan) = (None, false);
            own += 1;
            claimed.push(Claimed { slice: number, epoch: slice.epoch, from, reason, tries });
        }
        claimed
    }

    /// Offers the slices of a node, or repeats the offer. Returns how many.
    pub fn offer(&mut self, node: &str, reason: OwnershipReason, now: Timestamp) -> usize {
        let mut count = 0;
        for slice in self.slices.iter_mut().filter(|slice| *slice.owner == *node) {
            let tries = slice.offer.as_ref().filter(|offer| offer.reason == reason).map_or(0, |o| o.tries);
            slice.offer = Some(Offer { reason, to: "".into(), at: now, tries: tries + 1 });
            count += 1;
        }
        count
    }

    /// Offers one slice to one node.
    pub fn offer_to(&mut self, slice: usize, to: &Arc<str>, now: Timestamp) {
        if let Some(slice) = self.slices.get_mut(slice).filter(|slice| slice.offer.is_none()) {
            slice.offer =
                Some(Offer { reason: OwnershipReason::Rebalance, to: Arc::clone(to), at: now, tries: 1 });
        }
    }

    /// Withdraws the offers of a node, which keeps the slices.
    pub fn withdraw(&mut self, node: &str) -> usize {
        let own = self.slices.iter_mut().filter(|slice| *slice.owner == *node && slice.offer.is_some());
        own.map(|slice| (slice.offer, slice.is_orphan) = (None, false)).count()
    }

    /// Marks the slices that a node leaves behind as orphans.
    pub fn leave(&mut self, node: &str) -> usize {
        let own = self.slices.iter_mut().filter(|slice| *slice.owner == *node);
        own.map(|slice| slice.is_orphan = true).count()
    }

    /// Offers to any node the slices of owners that are not `alive`, and those offered to such nodes. Withdraws
    /// offers to one node that are older than `patience`. Returns how many slices lost their owner.
    pub fn offer_slices_of_dead(
        &mut self,
        alive: impl Fn(&str) -> bool,
        now: Timestamp,
        patience: Duration,
    ) -> usize {
        let mut lost = 0;
        for slice in &mut self.slices {
            let is_lost = !slice.owner.is_empty() && !alive(&slice.owner);
            let is_told = slice.offer.as_ref().is_some_and(|offer| offer.to.is_empty());
            if is_lost && !is_told {
                slice.offer =
                    Some(Offer { reason: OwnershipReason::NodeCrash, to: "".into(), at: now, tries: 1 });
                lost += 1;
            }
            let is_late = |offer: &Offer| !offer.to.is_empty() && now.since(offer.at) >= patience;
            if slice.offer.as_ref().is_some_and(is_late) {
                slice.offer = None;
            }
        }
        lost
    }

    /// Whether a node owns a slice under an epoch.
    pub fn is_owner(&self, node: &str, slice: usize, epoch: u64) -> bool {
        self.slices.get(slice).is_some_and(|slice| *slice.owner == *node && slice.epoch == epoch)
    }

    /// Advances a slice's read position; refused under another epoch than the owner's.
    pub fn advance(&mut self, node: &str, slice: usize, epoch: u64, read: u64) -> bool {
        let is_own = self.is_owner(node, slice, epoch);
        if let Some(slice) = self.slices.get_mut(slice).filter(|_| is_own) {
            slice.read = slice.read.max(read);
        }
        is_own
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut names: Vec<&Arc<str>> = Vec::new();
        let mut number = |name| match names.iter().position(|known| *known == name) {
            Some(number) => number as u64,
            None => {
                names.push(name);
                names.len() as u64 - 1
            }
        };
        let mut rows = Writer::default();
        for slice in &self.slices {
            rows.number(number(&slice.owner));
            rows.number(slice.epoch);
            rows.number(slice.read);
            rows.byte(u8::from(slice.is_orphan) | u8::from(slice.offer.is_some()) << 1);
            if let Some(offer) = &slice.offer {
                rows.byte(offer.reason as u8);
                rows.number(number(&offer.to));
                rows.moment(offer.at, Timestamp::default());
                rows.number(offer.tries.into());
            }
        }
        let mut out = Writer::default();
        out.byte(FORMAT);
        out.moment(self.balanced_at, Timestamp::default());
        out.number(names.len() as u64);
        names.iter().for_each(|name| out.bytes(name.as_bytes()));
        out.number(self.slices.len() as u64);
        out.0.extend_from_slice(&rows.0);
        out.0
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let wrong = || Error::Corrupt("the owners of jobs cannot be read".into());
        let mut from = Reader(bytes);
        if from.byte()? != FORMAT {
            return Err(wrong());
        }
        let balanced_at = from.moment(Timestamp::default())?;
        let names = from.number()?;
        let names: Vec<Arc<str>> =
            (0..names).map(|_| Ok(from.text()?.into())).collect::<Result<_, Error>>()?;
        let name = |number: u64| {
            usize::try_from(number).ok().and_then(|number| names.get(number)).cloned().ok_or_else(wrong)
        };
        let count = from.number()?;
        if count != SLICES as u64 {
            return Err(wrong());
        }
        let mut slices = Vec::with_capacity(SLICES);
        for _ in 0..count {
            let (owner, epoch, read) = (name(from.number()?)?, from.number()?, from.number()?);
            let flags = from.byte()?;
            let offer = if flags & 2 == 0 {
                None
            } else {
                let reason = *OwnershipReason::ALL.get(usize::from(from.byte()?)).ok_or_else(wrong)?;
                let to = name(from.number()?)?;
                Some(Offer { reason, to, at: from.moment(Timestamp::default())?, tries: from.small()? })
            };
            slices.push(Slice { owner, epoch, offer, is_orphan: flags & 1 == 1, read });
        }
        Ok(Self { slices, balanced_at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(5);

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros((1_000_000 + seconds) * 1_000_000)
    }

    fn name(text: &str) -> Arc<str> {
        text.into()
    }

    #[test]
    fn a_lone_node_claims_all_and_the_next_ones_their_share() {
        let mut alone = OwnershipTable::new(at(0));
        assert_eq!(alone.claim(&name("a"), 1, at(0), PATIENCE).len(), SLICES);
        let mut three = OwnershipTable::new(at(0));
        let counts = ["a", "b", "c"].map(|node| three.claim(&name(node), 3, at(0), PATIENCE).len());
        assert_eq!(counts, [22, 22, 20]);
        assert!(three.slices.iter().all(|slice| slice.epoch == 1 && slice.offer.is_none()));
    }

    #[test]
    fn an_offer_not_claimed_in_time_goes_to_any_node() {
        let mut table = OwnershipTable::new(at(0));
        assert_eq!(table.claim(&name("a"), 2, at(0), PATIENCE).len(), 32);
        assert_eq!(table.claim(&name("a"), 2, at(4), PATIENCE).len(), 0);
        assert_eq!(table.claim(&name("a"), 2, at(5), PATIENCE).len(), 32);
    }

    #[test]
    fn an_offer_takes_nothing_away_before_it_is_claimed() {
        let mut table = OwnershipTable::new(at(0));
        table.claim(&name("a"), 1, at(0), PATIENCE);
        assert_eq!(table.offer("a", OwnershipReason::Shutdown, at(1)), SLICES);
        assert!(table.advance("a", 3, 1, 17));
        let claimed = table.claim(&name("b"), 1, at(1), PATIENCE);
        assert_eq!(claimed.len(), SLICES);
        assert!(claimed.iter().all(|one| &*one.from == "a" && one.reason == OwnershipReason::Shutdown));
        assert!(!table.advance("a", 3, 1, 99), "its time is over");
        assert_eq!((table.slices[3].read, table.slices[3].epoch), (17, 2));
    }

    #[test]
    fn a_dead_node_loses_its_slices_once_and_late_offers_to_it_are_withdrawn() {
        let mut table = OwnershipTable::new(at(0));
        table.claim(&name("a"), 1, at(0), PATIENCE);
        table.offer_to(0, &name("b"), at(1));
        assert_eq!(table.offer_slices_of_dead(|node| node == "a", at(2), PATIENCE), 0);
        assert!(table.slices[0].offer.is_some());
        table.offer_slices_of_dead(|node| node == "a", at(6), PATIENCE);
        assert!(table.slices[0].offer.is_none());
        assert_eq!(table.offer_slices_of_dead(|_| false, at(7), PATIENCE), SLICES);
        assert_eq!(table.offer_slices_of_dead(|_| false, at(8), PATIENCE), 0);
    }

    #[test]
    fn a_table_is_read_back_as_it_was() {
        let mut table = OwnershipTable::new(at(0));
        table.claim(&name("a"), 2, at(0), PATIENCE);
        table.claim(&name("b"), 2, at(0), PATIENCE);
        table.offer("a", OwnershipReason::Shutdown, at(2));
        table.leave("a");
        table.offer_to(63, &name("c"), at(3));
        table.advance("b", 63, 1, 12_345);
        assert_eq!(OwnershipTable::decode(&table.encode()).unwrap(), table);
        assert!(table.encode().len() < 2_000);
        assert!(OwnershipTable::decode(&[9]).is_err());
    }
}
