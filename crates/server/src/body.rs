//! Request bodies: read whole, each bounded and all of them together bounded.
//!
//! Always: a body is charged against the budget before its bytes are kept, by its declared length or as it
//! arrives, and the charge lasts until the request is answered. Not here: how slowly a body may arrive
//! (`transport`). Start at [`read`].

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use baton_types::limits::BODY_BYTES_MAX;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};

use crate::error::{Error, Kind};

/// Bytes of all bodies that are being read or worked on. Beyond it requests are refused, so that a burst of large
/// pushes cannot exhaust the memory.
pub const BYTES_IN_FLIGHT_MAX: usize = 512 << 20;
const _: () = assert!(BODY_BYTES_MAX <= BYTES_IN_FLIGHT_MAX);

/// Bytes of a refused body that are read and thrown away, so that a caller who sends before it reads sees the
/// refusal instead of a broken connection.
const DISCARDED_BYTES_MAX: usize = 2 * BODY_BYTES_MAX;

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
struct Charge {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Charge {
    fn grow(&mut self, bytes: usize) -> Result<(), Error> {
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
    bytes: Bytes,
    _charge: Charge,
}

impl Deref for Received {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Reads a body.
pub async fn read(mut body: Incoming, budget: &Arc<Budget>) -> Result<Received, Error> {
    let declared = body.size_hint().exact().map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    let mut charge = Charge { budget: Arc::clone(budget), bytes: 0 };
    let refusal = match declared {
        Some(bytes) if bytes > BODY_BYTES_MAX => Err(too_large()),
        Some(bytes) => charge.grow(bytes),
        None => Ok(()),
    };
    if let Err(error) = refusal {
        discard(body).await;
        return Err(error);
    }
    let mut whole = Whole::new(declared.unwrap_or(0));
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(broken)?.into_data() else { continue };
        let outcome = match declared {
            Some(_) => Ok(()),
            None if whole.len() + data.len() > BODY_BYTES_MAX => Err(too_large()),
            None => charge.grow(data.len()),
        };
        if let Err(error) = outcome {
            drop(whole);
            discard(body).await;
            return Err(error);
        }
        whole.push(data);
    }
    Ok(Received { bytes: whole.finish(), _charge: charge })
}

/// Reads and forgets the rest of a body, up to a limit.
async fn discard(mut body: Incoming) {
    let mut discarded = 0;
    while discarded < DISCARDED_BYTES_MAX {
        match body.frame().await {
            Some(Ok(frame)) => discarded += frame.data_ref().map_or(0, Bytes::len),
            Some(Err(_)) | None => break,
        }
    }
}

fn too_large() -> Error {
    Error::new(Kind::BodyTooLarge, format!("a request body holds at most {BODY_BYTES_MAX} bytes"))
}

fn broken(error: hyper::Error) -> Error {
    Error::new(Kind::RequestTimeout, format!("the body did not arrive: {error}"))
}

/// The body so far. One that came in one piece, as small ones do, is not copied.
enum Whole {
    Empty { capacity: usize },
    One(Bytes),
    Many(BytesMut),
}

impl Whole {
    fn new(capacity: usize) -> Self {
        Self::Empty { capacity }
    }

    fn len(&self) -> usize {
        match self {
            Self::Empty { .. } => 0,
            Self::One(bytes) => bytes.len(),
            Self::Many(bytes) => bytes.len(),
        }
    }

    fn push(&mut self, data: Bytes) {
        *self = match std::mem::replace(self, Self::Empty { capacity: 0 }) {
            Self::Empty { capacity } if data.len() >= capacity => Self::One(data),
            Self::Empty { capacity } => {
                let mut bytes = BytesMut::with_capacity(capacity);
                bytes.extend_from_slice(&data);
                Self::Many(bytes)
            }
            Self::One(first) => {
                let mut bytes = BytesMut::from(first);
                bytes.extend_from_slice(&data);
                Self::Many(bytes)
            }
            Self::Many(mut bytes) => {
                bytes.extend_from_slice(&data);
                Self::Many(bytes)
            }
        };
    }

    fn finish(self) -> Bytes {
        match self {
            Self::Empty { .. } => Bytes::new(),
            Self::One(bytes) => bytes,
            Self::Many(bytes) => bytes.freeze(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_charge_is_given_back() {
        let budget = Arc::new(Budget::new(10));
        let mut first = Charge { budget: Arc::clone(&budget), bytes: 0 };
        first.grow(8).unwrap();
        let mut second = Charge { budget: Arc::clone(&budget), bytes: 0 };
        assert_eq!(second.grow(3).unwrap_err().kind(), Kind::Overloaded);
        drop(second);
        assert_eq!(budget.used(), 8);
        drop(first);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn pieces_become_one_body() {
        let join = |capacity, pieces: &[&'static [u8]]| {
            let mut whole = Whole::new(capacity);
            pieces.iter().for_each(|piece| whole.push(Bytes::from_static(piece)));
            whole.finish()
        };
        assert_eq!(join(0, &[]), "");
        assert_eq!(join(2, &[b"ab"]), "ab");
        assert_eq!(join(4, &[b"ab", b"cd"]), "abcd");
        assert_eq!(join(0, &[b"ab", b"cd", b"e"]), "abcde");
    }
}
