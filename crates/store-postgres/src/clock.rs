//! The store's time: a hybrid logical clock.
//!
//! It is at least the database's time and always later than any moment in a row that was read, so along every
//! row time rises, whichever server wrote it. Its numbers serve as tokens, versions and places in line: the
//! moment, and below it the server that drew it, so that no two servers draw the same.

use baton_types::Timestamp;

/// Bits of a number that tell the server.
const SERVER_BITS: u32 = 10;
/// The last moment that a number can tell: in the year 2255.
const MICROS_MAX: i64 = i64::MAX >> SERVER_BITS;

/// Tells moments and numbers that only rise.
#[derive(Clone, Copy, Debug)]
pub struct Hybrid {
    last: i64,
    server: i64,
}

impl Hybrid {
    pub fn new(last: Timestamp, server: i64) -> Self {
        Self { last: last.micros(), server: server & ((1 << SERVER_BITS) - 1) }
    }

    /// The last moment that was told.
    pub fn last(&self) -> Timestamp {
        Timestamp::from_micros(self.last)
    }

    /// From now on every moment is later than `moment`.
    pub fn see(&mut self, moment: Timestamp) {
        self.last = self.last.max(moment.micros().min(MICROS_MAX));
    }

    /// From now on every number is higher than `number`.
    pub fn see_number(&mut self, number: i64) {
        self.last = self.last.max(number >> SERVER_BITS);
    }

    /// A moment later than every one before, at `base` or later.
    pub fn next(&mut self, base: Timestamp) -> Timestamp {
        self.last = base.micros().max(self.last.saturating_add(1));
        self.last()
    }

    /// A number higher than every one before.
    pub fn number(&mut self) -> i64 {
        self.last = self.last.saturating_add(1);
        (self.last << SERVER_BITS) | self.server
    }
}

/// The lowest number of a moment.
pub fn number_of(moment: Timestamp) -> i64 {
    moment.micros().clamp(0, MICROS_MAX) << SERVER_BITS
}

/// The highest number of a moment.
pub fn number_until(moment: Timestamp) -> i64 {
    number_of(moment) | ((1 << SERVER_BITS) - 1)
}

/// The moment of a number.
pub fn moment_of(number: i64) -> Timestamp {
    Timestamp::from_micros(number >> SERVER_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_and_numbers_only_rise_and_differ_between_servers() {
        let at = Timestamp::from_micros;
        let (mut one, mut two) = (Hybrid::new(at(0), 1), Hybrid::new(at(0), 1026));
        let first = one.next(at(100));
        assert_eq!(first, at(100));
        let number = one.number();
        assert!(number > number_until(first));
        two.see_number(number);
        assert!(two.next(at(50)) > first && two.number() > number);
        one.see(at(500));
        assert_eq!(one.next(at(100)), at(501));
        let (mut one, mut two) = (Hybrid::new(at(7), 1), Hybrid::new(at(7), 2));
        assert_ne!(one.number(), two.number());
        assert_eq!(moment_of(number_of(at(9))), at(9));
    }
}
