//! One field of a cron expression: a set of small numbers.

use super::Invalid;

/// What a field may hold.
pub(super) struct Kind {
    pub name: &'static str,
    pub min: u32,
    pub max: u32,
    /// Names of the values from `min` on; none where only numbers are known.
    names: &'static [&'static str],
}

pub(super) const SECOND: Kind = Kind { name: "second", min: 0, max: 59, names: &[] };
pub(super) const MINUTE: Kind = Kind { name: "minute", min: 0, max: 59, names: &[] };
pub(super) const HOUR: Kind = Kind { name: "hour", min: 0, max: 23, names: &[] };
pub(super) const DAY: Kind = Kind { name: "day of the month", min: 1, max: 31, names: &[] };
pub(super) const MONTH: Kind = Kind {
    name: "month",
    min: 1,
    max: 12,
    names: &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
};
/// Seven is Sunday again.
pub(super) const WEEKDAY: Kind = Kind {
    name: "day of the week",
    min: 0,
    max: 7,
    names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
};

/// Numbers below 64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Set(u64);

impl Set {
    pub(super) fn only(value: u32) -> Self {
        Self(1 << value)
    }

    pub(super) fn has(self, value: u32) -> bool {
        value < 64 && self.0 & (1 << value) != 0
    }

    /// The lowest that is not below `from`.
    pub(super) fn first_from(self, from: u32) -> Option<u32> {
        let rest = self.0.checked_shr(from).unwrap_or(0);
        (rest != 0).then(|| from + rest.trailing_zeros())
    }

    /// The highest that is below `end`.
    pub(super) fn last_below(self, end: u32) -> Option<u32> {
        let rest = if end >= 64 { self.0 } else { self.0 & ((1 << end) - 1) };
        (rest != 0).then(|| 63 - rest.leading_zeros())
    }

    fn insert(&mut self, value: u32) {
        self.0 |= 1 << value;
    }
}

/// A field as it was written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    pub values: Set,
    /// Whether it begins with a star, which for days means that the other field of days decides.
    pub is_any: bool,
    /// Whether it is a rhythm, with a star or a step, rather than a list of values.
    pub is_rhythm: bool,
}

/// Reads a list of values, ranges and steps.
pub(super) fn parse(text: &str, kind: &Kind) -> Result<Field, Invalid> {
    let mut values = Set::default();
    for item in text.split(',') {
        let (range, step) = item.split_once('/').map_or((item, None), |(range, step)| (range, Some(step)));
        let (low, high) = bounds(range, step.is_some(), kind)?;
        let step = step.map_or(Ok(1), |step| parse_step(step, kind))?;
        for value in (low..=high).step_by(step) {
            values.insert(if kind.max == WEEKDAY.max { value % 7 } else { value });
        }
    }
    Ok(Field { values, is_any: text.starts_with('*'), is_rhythm: text.contains(['*', '/']) })
}

/// The first and the last value of a range; a lone value with a step runs to the end of the field.
fn bounds(range: &str, has_step: bool, kind: &Kind) -> Result<(u32, u32), Invalid> {
    if range == "*" {
        // A star over days of the week must not count Sunday twice, or steps would be uneven.
        return Ok((kind.min, if kind.max == WEEKDAY.max { 6 } else { kind.max }));
    }
    let Some((low, high)) = range.split_once('-') else {
        let value = parse_value(range, kind)?;
        return Ok((value, if has_step { kind.max.max(value) } else { value }));
    };
    let (low, mut high) = (parse_value(low, kind)?, parse_value(high, kind)?);
    if kind.max == WEEKDAY.max && high == 0 && low > 0 {
        high = 7;
    }
    if low > high {
        let problem = format!("the range {range:?} of the {} runs backwards; write it as two", kind.name);
        return Err(Invalid::new("cron", problem));
    }
    Ok((low, high))
}

fn parse_step(text: &str, kind: &Kind) -> Result<usize, Invalid> {
    let span = kind.max - kind.min;
    match parse_number(text) {
        Some(step) if (1..=span).contains(&step) => Ok(step as usize),
        _ => Err(Invalid::new(
            "cron",
            format!(
                "a step of the {} is a number from 1 to {span}, not {text:?}; for another rhythm use an interval",
                kind.name
            ),
        )),
    }
}

fn parse_value(text: &str, kind: &Kind) -> Result<u32, Invalid> {
    let named = kind.names.iter().position(|name| name.eq_ignore_ascii_case(text));
    let named = named.and_then(|place| Some(kind.min + u32::try_from(place).ok()?));
    named.or_else(|| parse_number(text)).filter(|value| (kind.min..=kind.max).contains(value)).ok_or_else(|| {
        let names = if kind.names.is_empty() { "" } else { " or a name such as " };
        let example = kind.names.get(1).copied().unwrap_or_default();
        let problem = format!(
            "the {} is a number from {} to {}{names}{example}, with `*`, `,`, `-` and `/`; {text:?} is not",
            kind.name, kind.min, kind.max
        );
        Invalid::new("cron", problem)
    })
}

/// Digits alone: no sign, no space.
fn parse_number(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}
