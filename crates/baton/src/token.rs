//! A caller's token, which is never printed.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// The token itself.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

impl FromStr for Token {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.trim().into()))
    }
}
