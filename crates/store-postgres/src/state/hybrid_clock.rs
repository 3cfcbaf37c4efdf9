//! The store's time: a hybrid logical clock.
//!
//! It is at least the database's time and later than any time in a row that was read. So times rise along
//! every row, whichever server wrote it. Its numbers are such times in microseconds; they serve as tokens,
//! versions and keys of the ready index. They are exact as doubles, so JavaScript clients can send them
//! back. Two servers may draw the same number, but not for the same row: a server that changes a row has
//! observed its number.

use baton_types::Timestamp;

/// The last time that is exact as a double: in the year 2255.
const MICROS_MAX: i64 = (1 << 53) - 1;

/// A clock whose times and numbers only rise.
#[derive(Clone, Copy, Debug)]
pub struct HybridClock {
    last: i64,
}

impl HybridClock {
    pub fn new(last: Timestamp) -> Self {
        Self { last: last.micros() }
    }

    /// The last time that it gave.
    pub fn last(&self) -> Timestamp {
        Timestamp::from_micros(self.last)
    }

    /// Makes every later time later than `moment`.
    pub fn observe(&mut self, moment: Timestamp) {
        self.last = self.last.max(moment.micros().min(MICROS_MAX));
    }

    /// Makes every later number higher than `number`.
    pub fn observe_number(&mut self, number: i64) {
        self.last = self.last.max(number.min(MICROS_MAX));
    }

    /// A time later than every one before, at `base` or later.
    pub fn next_time(&mut self, base: Timestamp) -> Timestamp {
        self.last = base.micros().max(self.last.saturating_add(1));
        self.last()
    }

    /// A number higher than every one before.
    pub fn next_number(&mut self) -> i64 {
        self.last = self.last.saturating_add(1);
        self.last
    }
}

/// The number that stands for a time.
pub fn to_number(moment: Timestamp) -> i64 {
    moment.micros().clamp(0, MICROS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_and_numbers_only_rise() {
        let at = Timestamp::from_micros;
        let (mut one, mut two) = (HybridClock::new(at(0)), HybridClock::new(at(0)));
        let first = one.next_time(at(100));
        assert_eq!(first, at(100));
        let number = one.next_number();
        assert!(number > to_number(first));
        two.observe_number(number);
        assert!(two.next_time(at(50)) > first && two.next_number() > number);
        one.observe(at(500));
        assert_eq!(one.next_time(at(100)), at(501));
    }

    #[test]
    fn numbers_are_exact_as_doubles_in_two_hundred_years() {
        let mut clock = HybridClock::new(Timestamp::from_micros(9_000_000_000_000_000));
        let numbers: Vec<i64> = (0..3).map(|_| clock.next_number()).collect();
        let doubles: Vec<f64> = numbers.iter().map(|number| number.to_string().parse().unwrap()).collect();
        assert_eq!(doubles.iter().map(|double| *double as i64).collect::<Vec<_>>(), numbers);
    }
}
