//! What the body of a request may be: JSON, as it is.
//!
//! Newer clients of Queen can send pushes as a binary or compressed form. Always: such a request is refused with a text that
//! says what to switch off, before its body is read. A body without a type, or with the one that curl gives, is taken for
//! JSON. Start at [`check`].

use super::error::{Error, Kind};
use super::head::Head;

/// The binary form in which clients of Queen push.
const QUEEN_FORMS: &str = "application/x-queen-";
/// Types beside `text/…` and `…+json` that hold JSON, or that a client gives when it was told none.
const JSON_TYPES: &[&str] = &["application/json", "application/x-www-form-urlencoded"];

/// Refuses a body that is compressed or not JSON.
pub fn check(head: &Head<'_>) -> Result<(), Error> {
    if head.framing.is_empty() {
        return Ok(());
    }
    let word = |value: &[u8]| {
        let value = value.split(|byte| *byte == b';').next().unwrap_or_default();
        String::from_utf8_lossy(value.trim_ascii()).to_ascii_lowercase()
    };
    if let Some(encoding) = head.content_encoding.map(word)
        && !matches!(encoding.as_str(), "" | "identity")
    {
        return Err(refusal(format!(
            "a body with Content-Encoding {encoding} is not supported: send the JSON uncompressed, and switch off \
             push_compression of a Queen client (pushCompression)"
        )));
    }
    let Some(media) = head.content_type.map(word) else { return Ok(()) };
    if media.is_empty()
        || media.starts_with("text/")
        || media.ends_with("+json")
        || JSON_TYPES.contains(&media.as_str())
    {
        return Ok(());
    }
    Err(refusal(match media.starts_with(QUEEN_FORMS) {
        true => format!(
            "the binary form {media} is not supported: switch off binary_push and push_compression of the client \
             (binaryPush, pushCompression), which then sends JSON"
        ),
        false => {
            format!("a body of type {media} is not supported: send JSON with Content-Type application/json")
        }
    }))
}

fn refusal(text: String) -> Error {
    Error::new(Kind::UnsupportedMedia, text)
}
