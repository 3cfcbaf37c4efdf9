//! Request bodies: read whole, each bounded and all of them together bounded.
//!
//! Always: a body is charged against the budget as it arrives, never by its declared length, and the charge lasts until
//! the request is answered; one peer gets a share of the budget only. Not here: how a body is read, and how slowly it may
//! arrive (`connection`). Start at [`Charge`].

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use baton_types::limits::BODY_BYTES_MAX;

use super::error::{Error, Kind};

/// Bytes of all bodies that are being read or worked on. Beyond it requests are refused, so that a burst of large
/// pushes cannot exhaust the memory.
pub const BYTES_IN_FLIGHT_MAX: usize = 512 << 20;
const _: () = assert!(BODY_BYTES_MAX <= BYTES_IN_FLIGHT_MAX / PEERS_SHARE);

/// One peer may hold a part of the budget, this many of which make the whole. A proxy is one peer.
const PEERS_SHARE: usize = 2;

/// Bytes of a body that are not counted for its peer: most bodies are smaller, and so need no lock.
const UNCOUNTED_BYTES: usize = 64 << 10;

/// How many body bytes there are and may be.
#[derive(Debug)]
pub struct Budget {
    used: AtomicUsize,
    max: usize,
    /// Bytes of larger bodies by peer.
    by_peer: Mutex<HashMap<IpAddr, usize>>,
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(BYTES_IN_FLIGHT_MAX)
    }
}

impl Budget {
    /// A budget of `max` bytes.
    pub fn new(max: usize) -> Self {
        Self { used: AtomicUsize::new(0), max, by_peer: Mutex::new(HashMap::new()) }
    }

    fn peers(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.by_peer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes in use.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

/// A part of the budget, given back when dropped.
#[derive(Debug)]
pub struct Charge {
    budget: Arc<Budget>,
    peer: IpAddr,
    bytes: usize,
    /// As many of them are counted for the peer.
    counted: usize,
}

impl Charge {
    /// A part of nothing yet.
    pub fn new(budget: &Arc<Budget>, peer: IpAddr) -> Self {
        Self { budget: Arc::clone(budget), peer, bytes: 0, counted: 0 }
    }

    /// Takes `bytes` more, unless that is more than there is.
    pub fn grow(&mut self, bytes: usize) -> Result<(), Error> {
        let before = self.budget.used.fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
        if before + bytes > self.budget.max {
            return Err(Error::overloaded("too many request bodies are under way"));
        }
        if self.bytes <= UNCOUNTED_BYTES {
            return Ok(());
        }
        let mut peers = self.budget.peers();
        let of_peer = peers.entry(self.peer).or_default();
        *of_peer += self.bytes - self.counted;
        self.counted = self.bytes;
        if *of_peer > self.budget.max / PEERS_SHARE {
            return Err(Error::overloaded("too many request bodies of this address are under way"));
        }
        Ok(())
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
        if self.counted > 0 {
            let mut peers = self.budget.peers();
            if let Some(left) = peers.get_mut(&self.peer).map(|bytes| *bytes - self.counted) {
                match left {
                    0 => drop(peers.remove(&self.peer)),
                    left => drop(peers.insert(self.peer, left)),
                }
            }
        }
    }
}

/// A body that was read whole.
#[derive(Debug)]
pub struct Received {
    bytes: Vec<u8>,
    _charge: Option<Charge>,
}

impl Received {
    /// A body that was charged for.
    pub fn new(bytes: Vec<u8>, charge: Charge) -> Self {
        Self { bytes, _charge: Some(charge) }
    }

    /// A body without bytes.
    pub fn empty() -> Self {
        Self { bytes: Vec::new(), _charge: None }
    }
}

impl Deref for Received {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The refusal of a body that is larger than its route allows.
pub fn too_large(max: usize) -> Error {
    Error::new(Kind::BodyTooLarge, format!("the body of this request holds at most {max} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    #[test]
    fn a_charge_is_given_back() {
        let budget = Arc::new(Budget::new(10));
        let mut first = Charge::new(&budget, PEER);
        first.grow(8).unwrap();
        let mut second = Charge::new(&budget, PEER);
        assert_eq!(second.grow(3).unwrap_err().kind(), Kind::Overloaded);
        drop(second);
        assert_eq!(budget.used(), 8);
        drop(first);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn one_peer_gets_a_share_of_the_budget_only() {
        let budget = Arc::new(Budget::new(8 * UNCOUNTED_BYTES));
        let mut first = Charge::new(&budget, PEER);
        first.grow(3 * UNCOUNTED_BYTES).unwrap();
        let mut second = Charge::new(&budget, PEER);
        assert_eq!(second.grow(2 * UNCOUNTED_BYTES).unwrap_err().kind(), Kind::Overloaded);
        let mut other = Charge::new(&budget, IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1)));
        other.grow(3 * UNCOUNTED_BYTES).unwrap();
        drop((first, second, other));
        assert_eq!(budget.used(), 0);
        assert!(budget.peers().is_empty());
    }
}
