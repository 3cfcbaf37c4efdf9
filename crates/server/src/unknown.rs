//! Names that a route does not know: of members and of query parameters.
//!
//! A misspelt name that is ignored does something else than its caller wants. Always: the answer names what is unknown,
//! and the nearest name that is known. Start at [`check`] and [`explain`].

use crate::error::{Error, Kind};
use crate::json;
use crate::members::Members;

/// Says what is wrong with the first of the members `given` that is not known.
pub fn check<'n>(given: impl Iterator<Item = &'n str>, known: &[&str]) -> Result<(), String> {
    let mut given = given;
    match given.find(|name| !known.contains(name)) {
        Some(name) => Err(message("member", name, known)),
        None => Ok(()),
    }
}

/// What serde says of a body. For an unknown member it lists all that are known; the nearest of them is enough.
pub fn explain(error: &serde_json::Error) -> String {
    let text = json::problem(error);
    explain_text(&text).unwrap_or(text)
}

/// The same of what serde has said, if it is about an unknown member.
pub fn explain_text(text: &str) -> Option<String> {
    let (before, rest) = text.split_once("unknown field `")?;
    let (name, known) = rest.split_once('`')?;
    let known: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
    Some(format!("{before}{}", message("member", name, &known)))
}

/// Refuses members in the body of a route that takes none. `null` is none either.
pub fn check_empty(body: &[u8]) -> Result<(), Error> {
    if matches!(body.trim_ascii(), b"" | b"null") {
        return Ok(());
    }
    let members = std::str::from_utf8(body).ok().and_then(Members::of);
    let members = members.ok_or_else(|| Error::new(Kind::BadBody, "the body is empty or {}"))?;
    check(members.names(), &[]).map_err(Error::invalid)
}

/// What is said of a name that is not known.
pub fn message(what: &str, name: &str, known: &[&str]) -> String {
    match nearest(name, known) {
        Some(near) => format!("there is no {what} {name:?}: did you mean {near:?}?"),
        None if known.is_empty() => format!("there is no {what} {name:?}: none is known here"),
        None => format!("there is no {what} {name:?}, only {}", known.join(", ")),
    }
}

/// The name with the smallest edit distance, unless more than half of it is different.
fn nearest<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
    let near =
        known.iter().map(|other| (distance(name, other), *other)).min_by_key(|(distance, _)| *distance);
    near.filter(|(distance, other)| distance * 2 <= name.chars().count().max(other.len()))
        .map(|(_, near)| near)
}

/// The Levenshtein distance, without regard to case.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.to_lowercase().chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (index, letter) in one.to_lowercase().chars().enumerate() {
        let (mut corner, mut left) = (row[0], index + 1);
        row[0] = left;
        for (above, wanted) in row[1..].iter_mut().zip(&other) {
            left = (corner + usize::from(letter != *wanted)).min(left + 1).min(*above + 1);
            corner = std::mem::replace(above, left);
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[test]
    fn the_distance_counts_edits() {
        for (one, other, expected) in
            [("", "", 0), ("a", "", 1), ("", "ab", 2), ("kitten", "sitting", 3), ("Delay", "delayMs", 2)]
        {
            assert_eq!(distance(one, other), expected, "{one} {other}");
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_nearest() {
        #[derive(Debug, Deserialize)]
        #[serde(rename_all = "camelCase", deny_unknown_fields)]
        struct Job {
            #[allow(dead_code, reason = "only its name matters")]
            job_type: Option<String>,
            #[allow(dead_code, reason = "only its name matters")]
            delay_ms: Option<u64>,
        }
        let told = |body: &str| explain(&serde_json::from_str::<Job>(body).unwrap_err());
        assert_eq!(told(r#"{"delay": 5}"#), r#"there is no member "delay": did you mean "delayMs"?"#);
        assert_eq!(told(r#"{"colour": 5}"#), r#"there is no member "colour", only jobType, delayMs"#);
        assert!(told(r#"{"delayMs": "x"}"#).contains("invalid type"));
        assert_eq!(explain_text("missing field `kind`"), None);
        for (body, fits) in
            [("", true), (" null\n", true), ("{}", true), ("[]", false), (r#"{"a": 1}"#, false)]
        {
            assert_eq!(check_empty(body.as_bytes()).is_ok(), fits, "{body}");
        }
        let refused = check(["limit", "stat"].into_iter(), &["limit", "state"]).unwrap_err();
        assert_eq!(refused, r#"there is no member "stat": did you mean "state"?"#);
        assert!(check(["limit"].into_iter(), &["limit"]).is_ok());
        assert!(check(["limit"].into_iter(), &[]).unwrap_err().contains("none"));
    }
}
