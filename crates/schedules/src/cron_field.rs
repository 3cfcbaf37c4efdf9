//! One field of a cron expression: a set of small numbers.

use crate::error::InvalidSchedule;

/// The range and the names of a field's values.
pub(crate) struct FieldKind {
    pub name: &'static str,
    pub min: u32,
    pub max: u32,
    /// Names of the values from `min` on; empty where only numbers are allowed.
    names: &'static [&'static str],
}

pub(crate) const SECOND: FieldKind = FieldKind { name: "second", min: 0, max: 59, names: &[] };
pub(crate) const MINUTE: FieldKind = FieldKind { name: "minute", min: 0, max: 59, names: &[] };
pub(crate) const HOUR: FieldKind = FieldKind { name: "hour", min: 0, max: 23, names: &[] };
pub(crate) const DAY: FieldKind = FieldKind { name: "day of the month", min: 1, max: 31, names: &[] };
pub(crate) const MONTH: FieldKind = FieldKind {
    name: "month",
    min: 1,
    max: 12,
    names: &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
};
/// Seven is Sunday, as zero is.
pub(crate) const WEEKDAY: FieldKind = FieldKind {
    name: "day of the week",
    min: 0,
    max: 7,
    names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
};

/// Numbers below 64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NumberSet(u64);

impl NumberSet {
    pub(crate) fn only(value: u32) -> Self {
        Self(1 << value)
    }

    pub(crate) fn has(self, value: u32) -> bool {
        value < 64 && self.0 & (1 << value) != 0
    }

    /// The lowest number that is not below `from`.
    pub(crate) fn first_from(self, from: u32) -> Option<u32> {
        let rest = self.0.checked_shr(from).unwrap_or(0);
        (rest != 0).then(|| from + rest.trailing_zeros())
    }

    /// The highest number below `end`.
    pub(crate) fn last_below(self, end: u32) -> Option<u32> {
        let rest = if end >= 64 { self.0 } else { self.0 & ((1 << end) - 1) };
        (rest != 0).then(|| 63 - rest.leading_zeros())
    }

    fn insert(&mut self, value: u32) {
        self.0 |= 1 << value;
    }
}

/// One parsed field.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CronField {
    pub values: NumberSet,
    /// Whether the field begins with a star; for days, the other field of days decides then.
    pub is_any: bool,
    /// Whether the field has a star or a step, instead of a list of values.
    pub is_periodic: bool,
}

/// Parses a list of values, ranges and steps.
pub(crate) fn parse(text: &str, kind: &FieldKind) -> Result<CronField, InvalidSchedule> {
    let mut values = NumberSet::default();
    for item in text.split(',') {
        let (range, step) = item.split_once('/').map_or((item, None), |(range, step)| (range, Some(step)));
        let (low, high) = bounds(range, step.is_some(), kind)?;
        let step = step.map_or(Ok(1), |step| parse_step(step, kind))?;
        for value in (low..=high).step_by(step) {
            values.insert(if kind.max == WEEKDAY.max { value % 7 } else { value });
        }
    }
    Ok(CronField { values, is_any: text.starts_with('*'), is_periodic: text.contains(['*', '/']) })
}

/// The first and the last value of a range; a lone value with a step runs to the end of the field.
fn bounds(range: &str, has_step: bool, kind: &FieldKind) -> Result<(u32, u32), InvalidSchedule> {
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
        return Err(InvalidSchedule::new("cron", problem));
    }
    Ok((low, high))
}

fn parse_step(text: &str, kind: &FieldKind) -> Result<usize, InvalidSchedule> {
    let span = kind.max - kind.min;
    match parse_number(text) {
        Some(step) if (1..=span).contains(&step) => Ok(step as usize),
        _ => Err(InvalidSchedule::new(
            "cron",
            format!(
                "a step of the {} is a number from 1 to {span}, not {text:?}; for another rhythm use an interval",
                kind.name
            ),
        )),
    }
}

fn parse_value(text: &str, kind: &FieldKind) -> Result<u32, InvalidSchedule> {
    let named = kind.names.iter().position(|name| name.eq_ignore_ascii_case(text));
    let named = named.and_then(|place| Some(kind.min + u32::try_from(place).ok()?));
    named.or_else(|| parse_number(text)).filter(|value| (kind.min..=kind.max).contains(value)).ok_or_else(|| {
        let names = if kind.names.is_empty() { "" } else { " or a name such as " };
        let example = kind.names.get(1).copied().unwrap_or_default();
        let problem = format!(
            "the {} is a number from {} to {}{names}{example}, with `*`, `,`, `-` and `/`; {text:?} is not",
            kind.name, kind.min, kind.max
        );
        InvalidSchedule::new("cron", problem)
    })
}

/// Digits alone: no sign, no space.
fn parse_number(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}
