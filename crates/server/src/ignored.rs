//! Names in a request that its route does not know and ignores, and the header that lists them.
//!
//! Always: the header is short and holds nothing but escaped names, whatever the request holds. Start at [`Ignored`].

use std::fmt::{self, Write as _};

use baton_http::Reply;
use http::{HeaderName, HeaderValue};

/// The header that lists what was ignored.
pub const HEADER: HeaderName = HeaderName::from_static("baton-ignored");

/// Names that the header lists at most; three dots stand for the rest.
const NAMES_MAX: usize = 8;
/// Bytes of one name in the header, before it is escaped.
pub const NAME_BYTES_MAX: usize = 40;

/// Names that were ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ignored {
    names: Vec<String>,
    more: bool,
}

impl Ignored {
    /// Whether nothing was ignored.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The name that was met first.
    pub fn first(&self) -> Option<&str> {
        self.names.first().map(String::as_str)
    }

    /// Adds a name, unless it is there or there are enough.
    pub fn add(&mut self, name: &str) {
        if self.names.iter().any(|known| known == name) {
            return;
        }
        if self.names.len() == NAMES_MAX {
            self.more = true;
            return;
        }
        self.names.push(name.to_owned());
    }

    /// The same reply with the header that lists the names, if there are any and the reply has none.
    #[must_use]
    pub fn list_in(&self, reply: Reply) -> Reply {
        match HeaderValue::from_str(&self.to_string()) {
            Ok(value) if !self.is_empty() && !reply.has_header(&HEADER) => reply.with_header(HEADER, value),
            _ => reply,
        }
    }
}

/// The names between commas, percent-encoded so that any name fits into a header.
impl fmt::Display for Ignored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, name) in self.names.iter().enumerate() {
            if index > 0 {
                f.write_str(", ")?;
            }
            for byte in name.bytes().take(NAME_BYTES_MAX) {
                match byte {
                    b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => {
                        f.write_char(byte.into())?
                    }
                    byte => write!(f, "%{byte:02X}")?,
                }
            }
            if name.len() > NAME_BYTES_MAX {
                f.write_str("...")?;
            }
        }
        if self.more { f.write_str(", ...") } else { Ok(()) }
    }
}
