//! The store's time: a hybrid logical clock.
//!
//! It is at least the database's time and always later than any moment in a row that was read, so along every
//! row time rises, whichever server wrote it. Its numbers are such moments, in microseconds, and serve as tokens, versions
//! and places in line. They are exact as doubles, so clients in JavaScript can send them back. Two servers may draw the
//! same number, but not for the same row: whoever changes it has seen the number that it had.

use baton_types::Timestamp;

/// The last moment that is exact as a double: in the year 2255.
const MICROS_MAX: i64 = (1 << 53) - 1;

/// Tells moments and numbers that only rise.
#[derive(Clone, Copy, Debug)]
pub struct Hybrid {
    last: i64,
}

impl Hybrid {
    pub fn new(last: Timestamp) -> Self {
        Self { last: last.micros() }
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
        self.last = self.last.max(number.min(MICROS_MAX));
    }

    /// A moment later than every one before, at `base` or later.
    pub fn next(&mut self, base: Timestamp) -> Timestamp {
        self.last = base.micros().max(self.last.saturating_add(1));
        self.last()
    }

    /// A number higher than every one before.
    pub fn number(&mut self) -> i64 {
        self.last = self.last.saturating_add(1);
        self.last
    }
}

/// The number of a moment.
pub fn number_of(moment: Timestamp) -> i64 {
    moment.micros().clamp(0, MICROS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_and_numbers_only_rise() {
        let at = Timestamp::from_micros;
        let (mut one, mut two) = (Hybrid::new(at(0)), Hybrid::new(at(0)));
        let first = one.next(at(100));
        assert_eq!(first, at(100));
        let number = one.number();
        assert!(number > number_of(first));
        two.see_number(number);
        assert!(two.next(at(50)) > first && two.number() > number);
        one.see(at(500));
        assert_eq!(one.next(at(100)), at(501));
    }

    #[test]
    fn numbers_are_exact_as_doubles_in_two_hundred_years() {
        let mut clock = Hybrid::new(Timestamp::from_micros(9_000_000_000_000_000));
        let numbers: Vec<i64> = (0..3).map(|_| clock.number()).collect();
        let doubles: Vec<f64> = numbers.iter().map(|number| number.to_string().parse().unwrap()).collect();
        assert_eq!(doubles.iter().map(|double| *double as i64).collect::<Vec<_>>(), numbers);
    }
}
