//! Room for connections: how many there may be, and how many of one address.
//!
//! Always: a connection that finds no room is answered, as long as not too many are being answered so; a slot is given
//! back when its connection ends. Addresses of this machine are not counted, since a proxy or a program here is no
//! stranger; an IPv6 address counts with its /64, which one host may have to itself. Start at [`ConnectionSlots::reserve`].

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_env::Stopwatch;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Connections beyond a limit that are being answered; more are closed without an answer.
const REFUSALS_MAX: usize = 64;

/// How often a refusal is logged at most.
const REFUSALS_LOGGED_EVERY: Duration = Duration::from_secs(60);

/// Which limit a connection is beyond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// That of all connections.
    Server,
    /// That of one address.
    Address,
}

impl Limit {
    /// The setting that it comes from.
    pub fn setting(self) -> &'static str {
        match self {
            Self::Server => "connections_max",
            Self::Address => "connections_per_address",
        }
    }
}

/// Connections that found no room.
#[derive(Debug, Default)]
pub struct Refusals {
    server: AtomicU64,
    address: AtomicU64,
}

impl Refusals {
    fn of(&self, limit: Limit) -> &AtomicU64 {
        match limit {
            Limit::Server => &self.server,
            Limit::Address => &self.address,
        }
    }

    /// How many there were, for each limit.
    pub fn counts(&self) -> [(Limit, u64); 2] {
        [Limit::Server, Limit::Address].map(|limit| (limit, self.of(limit).load(Ordering::Relaxed)))
    }
}

type ByAddress = Arc<Mutex<HashMap<IpAddr, usize>>>;

/// Room for connections.
pub struct ConnectionSlots {
    served: Arc<Semaphore>,
    refused: Arc<Semaphore>,
    per_address: usize,
    by_address: ByAddress,
    logged: Option<Stopwatch>,
}

/// What a connection holds for as long as it lives.
pub struct ConnectionSlot {
    /// The limit that it is beyond, if it is to be refused.
    pub beyond: Option<Limit>,
    _held: OwnedSemaphorePermit,
    _of_address: Option<OfAddress>,
}

/// One of the slots of an address.
struct OfAddress {
    by_address: ByAddress,
    address: IpAddr,
}

impl ConnectionSlots {
    /// Room for so many connections, and so many of one address; 0 is as many as there are.
    pub fn new(connections_max: usize, per_address: usize) -> Self {
        let (served, refused) = (Semaphore::new(connections_max), Semaphore::new(REFUSALS_MAX));
        Self {
            served: Arc::new(served),
            refused: Arc::new(refused),
            per_address,
            by_address: ByAddress::default(),
            logged: None,
        }
    }

    /// A slot for a connection that has come; `None` if it cannot even be answered.
    pub fn reserve(&mut self, peer: IpAddr, refusals: &Refusals) -> Option<ConnectionSlot> {
        let limit = match self.of_address(peer) {
            Ok(of_address) => match Arc::clone(&self.served).try_acquire_owned() {
                Ok(held) => {
                    return Some(ConnectionSlot { beyond: None, _held: held, _of_address: of_address });
                }
                Err(_) => Limit::Server,
            },
            Err(limit) => limit,
        };
        refusals.of(limit).fetch_add(1, Ordering::Relaxed);
        if self.logged.as_ref().is_none_or(|logged| logged.elapsed() >= REFUSALS_LOGGED_EVERY) {
            self.logged = Some(Stopwatch::start());
            let setting = limit.setting();
            tracing::warn!(%peer, "connections are refused: there are as many as {setting} allows");
        }
        let held = Arc::clone(&self.refused).try_acquire_owned().ok()?;
        Some(ConnectionSlot { beyond: Some(limit), _held: held, _of_address: None })
    }

    fn of_address(&self, peer: IpAddr) -> Result<Option<OfAddress>, Limit> {
        let address = counted_as(peer);
        if self.per_address == 0 || address.is_loopback() {
            return Ok(None);
        }
        let mut counts = locked(&self.by_address);
        let count = counts.entry(address).or_default();
        if *count >= self.per_address {
            return Err(Limit::Address);
        }
        *count += 1;
        Ok(Some(OfAddress { by_address: Arc::clone(&self.by_address), address }))
    }
}

impl Drop for OfAddress {
    fn drop(&mut self) {
        let mut counts = locked(&self.by_address);
        if let Some(count) = counts.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.address);
            }
        }
    }
}

fn locked(counts: &ByAddress) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What stands for all addresses that one host may have.
fn counted_as(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)))
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beyond(
        slots: &mut ConnectionSlots,
        refusals: &Refusals,
        peer: &str,
    ) -> (Option<Limit>, Option<ConnectionSlot>) {
        let slot = slots.reserve(peer.parse().unwrap(), refusals).unwrap();
        (slot.beyond, Some(slot).filter(|slot| slot.beyond.is_none()))
    }

    #[test]
    fn one_address_has_a_part_of_the_room_only() {
        let (mut slots, refusals) = (ConnectionSlots::new(5, 2), Refusals::default());
        let mut take = |peer: &str| beyond(&mut slots, &refusals, peer);
        let (first, second) = (take("10.0.0.1"), take("::ffff:10.0.0.1"));
        assert_eq!((first.0, second.0), (None, None));
        assert_eq!(take("10.0.0.1").0, Some(Limit::Address));
        // Another address has room, and so has one that gave a slot back.
        let other = take("10.0.0.2");
        drop(first);
        let again = take("10.0.0.1");
        assert_eq!((other.0, again.0), (None, None));
        assert_eq!(take("10.0.0.1").0, Some(Limit::Address));
        // One host has a whole prefix of IPv6.
        let third = (take("2001:db8::1"), take("2001:db8::ffff:2"));
        assert_eq!((third.0.0, third.1.0), (None, None));
        assert_eq!(take("2001:db8::3").0, Some(Limit::Address));
        assert_eq!(take("2001:db8:0:1::3").0, Some(Limit::Server));
        assert_eq!(refusals.counts(), [(Limit::Server, 1), (Limit::Address, 3)]);
        drop((second, other, again, third));
        assert!(locked(&slots.by_address).is_empty());
    }

    #[test]
    fn this_machine_and_a_limit_of_nothing_are_not_counted() {
        for (per_address, peer) in [(1, "127.0.0.1"), (1, "::1"), (1, "::ffff:127.0.0.1"), (0, "10.0.0.1")] {
            let (mut slots, refusals) = (ConnectionSlots::new(3, per_address), Refusals::default());
            let held: Vec<_> = (0..3).map(|_| beyond(&mut slots, &refusals, peer)).collect();
            assert!(held.iter().all(|(limit, _)| limit.is_none()), "{peer}");
            assert_eq!(beyond(&mut slots, &refusals, peer).0, Some(Limit::Server));
        }
    }
}
