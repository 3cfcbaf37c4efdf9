//! Paths: how a pattern such as `/api/v1/pop/queue/:queue` meets a request, and percent-decoding.
//!
//! Always: a path is split before it is decoded, so an encoded slash stays inside its segment; a text that does
//! not decode is refused, never passed on half decoded. Start at [`matches()`].

use std::borrow::Cow;

use super::error::Error;

/// Segments that a pattern may leave open.
const PARAMETERS_MAX: usize = 3;

/// The open segments of a matched path, still encoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segments<'p> {
    open: [&'p str; PARAMETERS_MAX],
    count: usize,
}

impl Segments<'_> {
    /// The open segments, decoded.
    pub fn decoded(&self) -> Result<Vec<String>, Error> {
        self.open.iter().take(self.count).map(|segment| Ok(decode(segment, false)?.into_owned())).collect()
    }
}

/// The open segments of `path` when it has the form of `pattern`. One that begins with a colon is one segment; one
/// that begins with a star, at the end, is all the rest.
pub fn matches<'p>(pattern: &str, path: &'p str) -> Option<Segments<'p>> {
    let Some(open_at) = pattern.find("/:").map(|slash| slash + 1) else {
        return (pattern == path).then(Segments::default);
    };
    let (fixed, open_pattern) = pattern.split_at(open_at);
    let mut rest = Some(path.strip_prefix(fixed)?);
    let mut segments = Segments::default();
    for expected in open_pattern.split('/') {
        let (segment, after) = match rest?.split_once('/') {
            Some((segment, after)) if !expected.starts_with('*') => (segment, Some(after)),
            _ => (rest?, None),
        };
        rest = after;
        if expected.starts_with([':', '*']) {
            *segments.open.get_mut(segments.count)? = segment;
            segments.count += 1;
        } else if expected != segment {
            return None;
        }
    }
    rest.is_none().then_some(segments)
}

/// `text` with `%xx` replaced and, in a query, `+` as a space.
pub fn decode(text: &str, plus_is_space: bool) -> Result<Cow<'_, str>, Error> {
    if !text.bytes().any(|b| b == b'%' || (plus_is_space && b == b'+')) {
        return Ok(Cow::Borrowed(text));
    }
    let refused = || Error::invalid(format!("not percent-encoded UTF-8: {text:?}"));
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let mut digit = || bytes.next().and_then(hex).ok_or_else(refused);
                (digit()? << 4) | digit()?
            }
            b'+' if plus_is_space => b' ',
            other => other,
        });
    }
    String::from_utf8(decoded).map(Cow::Owned).map_err(|_| refused())
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
    use proptest::prelude::*;

    use super::*;

    fn check(pattern: &str, path: &str, expected: Option<&[&str]>) {
        let found = matches(pattern, path).map(|segments| segments.decoded().unwrap());
        let expected = expected.map(|parts| parts.iter().map(|part| (*part).to_owned()).collect::<Vec<_>>());
        assert_eq!(found, expected, "{pattern} {path}");
    }

    #[test]
    fn a_pattern_takes_exactly_its_own_paths() {
        check("/api/v1/push", "/api/v1/push", Some(&[]));
        check("/api/v1/push", "/api/v1/push/", None);
        check("/q/:queue", "/q/orders", Some(&["orders"]));
        check("/q/:queue", "/q/", Some(&[""]));
        check("/q/:queue", "/q/a/b", None);
        check("/q/:queue/p/:partition", "/q/a/p/b", Some(&["a", "b"]));
        check("/q/:queue/p/:partition", "/q/a/x/b", None);
        check("/q/:queue/p/:partition", "/q/a/p", None);
        check("/t/:queue/*key", "/t/q/a/b%2Fc", Some(&["q", "a/b/c"]));
        check("/t/:queue/*key", "/t/q/", Some(&["q", ""]));
        check("/t/:queue/*key", "/t/q", None);
        check("/m/:p/:t/retry", "/m/1/x%2Fy%20z/retry", Some(&["1", "x/y z"]));
    }

    #[test]
    fn what_does_not_decode_is_refused() {
        for text in ["%", "%2", "%zz", "a%", "%ff", "%c3%28", "%+1"] {
            assert!(decode(text, false).is_err(), "{text}");
        }
        assert_eq!(decode("a+b", false).unwrap(), "a+b");
        assert_eq!(decode("a+b", true).unwrap(), "a b");
    }

    proptest! {
        #[test]
        fn an_encoded_text_comes_back(text in any::<String>()) {
            let encoded = utf8_percent_encode(&text, NON_ALPHANUMERIC).to_string();
            prop_assert_eq!(decode(&encoded, true).unwrap(), text);
        }

        #[test]
        fn no_text_makes_the_decoder_panic(text in any::<String>(), plus in any::<bool>()) {
            let _ = decode(&text, plus);
        }
    }
}
