//! Query parameters, by the rules of this API: an integer that does not parse is an error, an empty one counts as
//! absent, one that is out of range is moved into it, and a boolean is `true`, `1`, `false`, `0` or empty. Not here:
//! names that a route does not know.
//!
//! Start at [`Query::parse`].

use std::borrow::Cow;

use baton_types::Timestamp;

use super::error::Error;
use super::path::decode;

/// As many parameters as most requests have.
const PAIRS_USUAL: usize = 8;

/// The parameters of one request.
#[derive(Debug, Default)]
pub struct Query<'a> {
    pairs: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

impl<'a> Query<'a> {
    /// Reads what stands behind the question mark.
    pub fn parse(text: &'a str) -> Result<Self, Error> {
        let mut pairs = Vec::with_capacity(PAIRS_USUAL);
        for part in text.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            pairs.push((decode(name, true)?, decode(value, true)?));
        }
        Ok(Self { pairs })
    }

    /// The first parameter of this name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.pairs.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_ref())
    }

    /// The first parameter of this name, unless it is empty.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|value| !value.is_empty())
    }

    /// The same, owned.
    pub fn owned(&self, name: &str) -> Option<String> {
        self.text(name).map(str::to_owned)
    }

    /// Whether the parameter is `true` or `1`; anything but a boolean is an error.
    pub fn flag(&self, name: &str) -> Result<bool, Error> {
        match self.get(name) {
            Some("true" | "1") => Ok(true),
            None | Some("" | "false" | "0") => Ok(false),
            Some(text) => Err(Error::invalid(format!("{name} is true or false, not {text:?}"))),
        }
    }

    /// The parameter as one of these words; `None` when it is absent or empty.
    pub fn one_of<'w>(&self, name: &str, words: &[&'w str]) -> Result<Option<&'w str>, Error> {
        let Some(text) = self.text(name) else { return Ok(None) };
        match words.iter().find(|word| **word == text) {
            Some(word) => Ok(Some(word)),
            None => Err(Error::invalid(format!("{name} is one of {}, not {text:?}", words.join(", ")))),
        }
    }

    /// The parameter as a number moved into `min..=max`; `None` when it is absent or empty.
    pub fn number(&self, name: &str, min: u64, max: u64) -> Result<Option<u64>, Error> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let (negative, digits) = match text.strip_prefix('-') {
            Some(digits) => (true, digits),
            None => (false, text),
        };
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(Error::invalid(format!("{name} is a whole number, not {text:?}")));
        }
        // All digits: parsing can fail only because the number is too large.
        let size = if negative { 0 } else { digits.parse().unwrap_or(u64::MAX) };
        Ok(Some(size.clamp(min, max)))
    }

    /// The parameter as a moment.
    pub fn moment(&self, name: &str) -> Result<Option<Timestamp>, Error> {
        self.text(name).map(|text| moment(name, text)).transpose()
    }
}

/// Reads a moment that a caller named `name`.
pub fn moment(name: &str, text: &str) -> Result<Timestamp, Error> {
    text.parse().map_err(|e| Error::invalid(format!("{name} is {e}")))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn number(text: &str) -> Result<Option<u64>, String> {
        let text = format!("n={text}");
        let query = Query::parse(&text).unwrap();
        query.number("n", 1, 1000).map_err(|error| error.to_string())
    }

    #[test]
    fn a_number_is_moved_into_its_range_and_anything_else_is_an_error() {
        assert_eq!(number("10"), Ok(Some(10)));
        assert_eq!(number("0"), Ok(Some(1)));
        assert_eq!(number("-5"), Ok(Some(1)));
        assert_eq!(number("99999999999999999999999999"), Ok(Some(1000)));
        assert_eq!(number("-99999999999999999999999999"), Ok(Some(1)));
        assert_eq!(number(""), Ok(None));
        for text in ["-", "ten", "1.5", "1e3", "0x10", "%201", "1%00"] {
            assert!(number(text).is_err(), "{text}");
        }
        assert_eq!(number("ten"), Err("n is a whole number, not \"ten\"".into()));
    }

    #[test]
    fn a_boolean_is_written_as_one_or_is_an_error() {
        let query = Query::parse("a=true&b=1&c=false&d=0&e&f=&x=TRUE&y=yes").unwrap();
        let flags = ["a", "b", "c", "d", "e", "f", "g"].map(|name| query.flag(name).unwrap());
        assert_eq!(flags, [true, true, false, false, false, false, false]);
        for name in ["x", "y"] {
            let refused = query.flag(name).unwrap_err().to_string();
            assert!(refused.starts_with(&format!("{name} is true or false, not")), "{refused}");
        }
    }

    #[test]
    fn a_word_is_one_of_those_that_are_known() {
        let query = Query::parse("mode=count&empty=&other=counts").unwrap();
        let words = ["list", "count"];
        assert_eq!(query.one_of("mode", &words).unwrap(), Some("count"));
        assert_eq!(query.one_of("empty", &words).unwrap(), None);
        assert_eq!(query.one_of("absent", &words).unwrap(), None);
        let refused = query.one_of("other", &words).unwrap_err().to_string();
        assert_eq!(refused, "other is one of list, count, not \"counts\"");
    }

    #[test]
    fn names_and_values_are_decoded_and_the_first_wins() {
        let query = Query::parse("consumer%47roup=a+b%2Bc&&consumerGroup=second&x").unwrap();
        assert_eq!(query.get("consumerGroup"), Some("a b+c"));
        assert_eq!(query.get("x"), Some(""));
        assert!(Query::parse("a=%zz").is_err());
    }

    #[test]
    fn a_moment_that_is_none_is_an_error_that_names_it() {
        let query = Query::parse("from=yesterday&to=2026-11-15T18:34:07%2B01:00").unwrap();
        assert!(query.moment("from").unwrap_err().to_string().starts_with("from is not an ISO-8601 time"));
        assert_eq!(query.moment("to").unwrap().unwrap().to_iso_millis(), "2026-11-15T17:34:07.000Z");
        assert_eq!(query.moment("other").unwrap(), None);
    }

    proptest! {
        #[test]
        fn no_query_makes_the_parser_panic(text in any::<String>()) {
            if let Ok(query) = Query::parse(&text) {
                let _ = (query.number("a", 0, 9), query.flag("b"), query.moment("c"));
            }
        }
    }
}
