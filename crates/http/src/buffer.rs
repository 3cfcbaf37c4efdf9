//! The memory that bytes arrive in.
//!
//! Always: a buffer without bytes in it can be released, and then holds no memory; what is released is kept for
//! the next connection of this thread that has something to read. Start at [`Buffer::room`].

use std::cell::RefCell;

use super::head::HEAD_BYTES_MAX;

/// Enough for the usual request with its body.
const USUAL_BYTES: usize = 16 << 10;
const _: () = assert!(USUAL_BYTES <= HEAD_BYTES_MAX);
/// Released memory that a thread keeps.
const SPARES_MAX: usize = 8;

thread_local! {
    static SPARES: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Bytes that arrived and were not used yet.
#[derive(Debug, Default)]
pub struct Buffer {
    /// Initialized throughout, so that reading needs no `unsafe` and no clearing.
    memory: Vec<u8>,
    start: usize,
    end: usize,
}

impl Buffer {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.memory.get(self.start..self.end).unwrap_or_default()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Forgets the first `count` bytes.
    pub fn consume(&mut self, count: usize) {
        self.start = self.end.min(self.start.saturating_add(count));
        if self.is_empty() {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Room for more bytes, at most [`HEAD_BYTES_MAX`] with those that are there; empty when there is no more.
    pub fn room(&mut self) -> &mut [u8] {
        if self.memory.is_empty() {
            self.memory = SPARES.with_borrow_mut(Vec::pop).unwrap_or_else(|| vec![0; USUAL_BYTES]);
        }
        if self.end == self.memory.len() {
            if self.start > 0 {
                self.memory.copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, self.end - self.start);
            } else {
                self.memory.resize((self.memory.len() * 2).min(HEAD_BYTES_MAX), 0);
            }
        }
        self.memory.get_mut(self.end..).unwrap_or_default()
    }

    /// Whether there is room for no more.
    pub fn is_full(&self) -> bool {
        self.end - self.start >= HEAD_BYTES_MAX
    }

    /// Takes in `count` bytes that were put into the room.
    pub fn filled(&mut self, count: usize) {
        self.end = self.memory.len().min(self.end + count);
    }

    /// Gives the memory away, if nothing is in it.
    pub fn release(&mut self) {
        if self.is_empty() && !self.memory.is_empty() {
            keep(std::mem::take(&mut self.memory));
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.consume(usize::MAX);
        self.release();
    }
}

fn keep(memory: Vec<u8>) {
    if memory.len() != USUAL_BYTES {
        return;
    }
    // A thread that ends has no spares any more.
    let _ = SPARES.try_with(|spares| {
        let mut spares = spares.borrow_mut();
        if spares.len() < SPARES_MAX {
            spares.push(memory);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(buffer: &mut Buffer, bytes: &[u8]) {
        for byte in bytes {
            buffer.room()[0] = *byte;
            buffer.filled(1);
        }
    }

    #[test]
    fn bytes_come_out_as_they_went_in() {
        let mut buffer = Buffer::default();
        put(&mut buffer, b"abcdef");
        buffer.consume(2);
        assert_eq!(buffer.bytes(), b"cdef");
        buffer.release();
        assert_eq!(buffer.bytes(), b"cdef");
        buffer.consume(4);
        buffer.release();
        assert!(buffer.is_empty() && buffer.memory.is_empty());
    }

    #[test]
    fn a_buffer_grows_to_its_limit_and_makes_room_before_it_grows() {
        let mut buffer = Buffer::default();
        put(&mut buffer, &vec![7; USUAL_BYTES]);
        buffer.consume(10);
        assert_eq!(buffer.room().len(), 10);
        put(&mut buffer, &vec![8; HEAD_BYTES_MAX - USUAL_BYTES + 10]);
        assert_eq!(buffer.bytes().len(), HEAD_BYTES_MAX);
        assert!(buffer.room().is_empty() && buffer.is_full());
        assert_eq!((buffer.bytes()[0], buffer.bytes()[HEAD_BYTES_MAX - 1]), (7, 8));
    }
}
