//! Request bodies: read whole, each bounded and all of them together bounded.
//!
//! Always: a body is charged against the budget, by its declared length before it is read or as it arrives, and
//! the charge lasts until the request is answered. Not here: how a body is read, and how slowly it may arrive
//! (`http1`). Start at [`Charge`].

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use baton_types::limits::BODY_BYTES_MAX;

use crate::error::{Error, Kind};

/// Bytes of all bodies that are being read or worked on. Beyond it requests are refused, so that a burst of large
/// pushes cannot exhaust the memory.
pub const BYTES_IN_FLIGHT_MAX: usize = 512 << 20;
const _: () = assert!(BODY_BYTES_MAX <= BYTES_IN_FLIGHT_MAX);

/// Bytes of a refused body that are read and thrown away, so that a caller who sends before it reads sees the
/// refusal instead of a broken connection.
pub const DISCARDED_BYTES_MAX: usize = 2 * BODY_BYTES_MAX;

/// How many body bytes there are and may be.
#[derive(Debug)]
pub struct Budget {
    used: AtomicUsize,
    max: usize,
}

impl Budget {
    /// A budget of `max` bytes.
    pub fn new(max: usize) -> Self {
        Self { used: AtomicUsize::new(0), max }
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
    bytes: usize,
}

impl Charge {
    /// A part of nothing yet.
    pub fn new(budget: &Arc<Budget>) -> Self {
        Self { budget: Arc::clone(budget), bytes: 0 }
    }

    /// Takes `bytes` more, unless that is more than there is.
    pub fn grow(&mut self, bytes: usize) -> Result<(), Error> {
        let before = self.budget.used.fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
        if before + bytes > self.budget.max {
            return Err(Error::overloaded("too many request bodies are under way"));
        }
        Ok(())
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A body that was read whole.
#[derive(Debug)]
pub struct Received {
    bytes: Vec<u8>,
    _charge: Charge,
}

impl Received {
    /// A body that was charged for.
    pub fn new(bytes: Vec<u8>, charge: Charge) -> Self {
        Self { bytes, _charge: charge }
    }

    /// A body without bytes.
    pub fn empty(budget: &Arc<Budget>) -> Self {
        Self::new(Vec::new(), Charge::new(budget))
    }
}

impl Deref for Received {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The refusal of a body that is larger than a body may be.
pub fn too_large() -> Error {
    Error::new(Kind::BodyTooLarge, format!("a request body holds at most {BODY_BYTES_MAX} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_charge_is_given_back() {
        let budget = Arc::new(Budget::new(10));
        let mut first = Charge::new(&budget);
        first.grow(8).unwrap();
        let mut second = Charge::new(&budget);
        assert_eq!(second.grow(3).unwrap_err().kind(), Kind::Overloaded);
        drop(second);
        assert_eq!(budget.used(), 8);
        drop(first);
        assert_eq!(budget.used(), 0);
    }
}
