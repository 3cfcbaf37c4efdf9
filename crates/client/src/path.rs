//! Request paths: names become percent-encoded segments and query values.

use http::uri::PathAndQuery;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::Error;

/// Encodes all characters except the unreserved ones.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// A path under construction.
#[derive(Clone, Debug)]
pub(crate) struct PathBuilder {
    text: String,
    separator: char,
}

impl PathBuilder {
    /// Starts with text that needs no encoding.
    pub fn new(start: &str) -> Self {
        Self { text: start.to_owned(), separator: '?' }
    }

    /// Adds text that needs no encoding.
    pub fn literal(mut self, text: &str) -> Self {
        self.text.push_str(text);
        self
    }

    /// Adds `/` and a name.
    pub fn segment(mut self, name: &str) -> Self {
        // URL parsers would remove dot segments.
        match name {
            "." => self.text.push_str("/%2E"),
            ".." => self.text.push_str("/%2E%2E"),
            _ => {
                self.text.push('/');
                self.text.extend(utf8_percent_encode(name, ENCODED));
            }
        }
        self
    }

    /// Adds a query parameter.
    pub fn query(mut self, name: &str, value: &str) -> Self {
        self.text.push(self.separator);
        self.separator = '&';
        self.text.push_str(name);
        self.text.push('=');
        self.text.extend(utf8_percent_encode(value, ENCODED));
        self
    }

    /// Adds a query parameter that is a number.
    pub fn number_query(self, name: &str, value: u64) -> Self {
        self.query(name, &value.to_string())
    }

    /// Adds a query parameter when there is one.
    pub fn optional_query(self, name: &str, value: Option<&str>) -> Self {
        match value {
            Some(value) => self.query(name, value),
            None => self,
        }
    }

    /// Ready to send.
    pub fn build(self) -> Result<PathAndQuery, Error> {
        PathAndQuery::try_from(self.text).map_err(|e| Error::Invalid(e.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_their_place() {
        let path = PathBuilder::new("/pop/queue")
            .segment("a/b?c d")
            .segment("..")
            .query("consumerGroup", "x&y=é")
            .number_query("batch", 3);
        assert_eq!(
            path.build().unwrap().as_str(),
            "/pop/queue/a%2Fb%3Fc%20d/%2E%2E?consumerGroup=x%26y%3D%C3%A9&batch=3"
        );
    }
}
