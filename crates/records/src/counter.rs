//! Counters: a number in a record that is added to, within bounds.
//!
//! Always: whole numbers stay whole and exact; a sum that would leave its bounds, or what a number can be, is
//! refused and never cut off. Start at [`add`].

use std::cmp::Ordering;

use serde_json::Number;

/// How much to add, and what the sum may be.
#[derive(Clone, Debug, PartialEq)]
pub struct Addition {
    /// How much.
    pub delta: Number,
    /// The lowest sum.
    pub min: Option<Number>,
    /// The highest sum.
    pub max: Option<Number>,
}

/// Why a sum cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddError {
    /// The sum would leave its bounds.
    OutOfBounds,
    /// What is there is no number.
    NotANumber,
}

/// The sum of what is there, as JSON, and an addition.
pub fn add(before: Option<&[u8]>, addition: &Addition) -> Result<String, AddError> {
    let before = match before {
        Some(text) => serde_json::from_slice(text).map_err(|_| AddError::NotANumber)?,
        None => Number::from(0),
    };
    let sum = sum(&before, &addition.delta).ok_or(AddError::OutOfBounds)?;
    let too_low = addition.min.as_ref().is_some_and(|min| compare(&sum, min) == Some(Ordering::Less));
    let too_high = addition.max.as_ref().is_some_and(|max| compare(&sum, max) == Some(Ordering::Greater));
    if too_low || too_high { Err(AddError::OutOfBounds) } else { Ok(sum.to_string()) }
}

fn sum(a: &Number, b: &Number) -> Option<Number> {
    match (a.as_i64(), b.as_i64()) {
        (Some(a), Some(b)) => a.checked_add(b).map(Number::from),
        _ => Number::from_f64(a.as_f64()? + b.as_f64()?),
    }
}

fn compare(a: &Number, b: &Number) -> Option<Ordering> {
    match (a.as_i64(), b.as_i64()) {
        (Some(a), Some(b)) => Some(a.cmp(&b)),
        _ => a.as_f64()?.partial_cmp(&b.as_f64()?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(before: Option<&str>, delta: &str, min: &str, max: &str, expected: Result<&str, AddError>) {
        let number = |text: &str| serde_json::from_str(text).ok();
        let addition = Addition {
            delta: serde_json::from_str(delta).unwrap_or_else(|_| Number::from(0)),
            min: number(min),
            max: number(max),
        };
        let sum = add(before.map(str::as_bytes), &addition);
        assert_eq!(sum.as_deref().map_err(|error| *error), expected, "{before:?} + {delta}");
    }

    #[test]
    fn whole_numbers_stay_whole_and_nothing_is_cut_off() {
        check(None, "1", "", "", Ok("1"));
        check(Some("41"), "1", "", "", Ok("42"));
        check(Some("1"), "0.5", "", "", Ok("1.5"));
        check(Some("9"), "1", "", "10", Ok("10"));
        check(Some("10"), "1", "", "10", Err(AddError::OutOfBounds));
        check(Some("0"), "-1", "0", "", Err(AddError::OutOfBounds));
        check(Some("9223372036854775807"), "1", "", "", Err(AddError::OutOfBounds));
        check(Some("1e308"), "1e308", "", "", Err(AddError::OutOfBounds));
        check(Some("9007199254740993"), "1", "", "9007199254740993", Err(AddError::OutOfBounds));
        check(Some("\"9\""), "1", "", "", Err(AddError::NotANumber));
        check(Some("null"), "1", "", "", Err(AddError::NotANumber));
    }
}
