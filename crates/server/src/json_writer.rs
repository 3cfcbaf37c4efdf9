//! JSON written by hand, around bytes that are stored. Start at [`string`].

pub use baton_http::write_decimal as number;
use uuid::Uuid;

/// Writes `text` as a JSON string.
pub fn string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    // All of it whatever the first bytes are, so that many are looked at in one go.
    let is_plain = |plain, b| plain & (b >= 0x20) & (b != b'"') & (b != b'\\');
    if text.bytes().fold(true, is_plain) {
        out.extend_from_slice(text.as_bytes());
    } else {
        escaped(out, text);
    }
    out.push(b'"');
}

fn escaped(out: &mut Vec<u8>, text: &str) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    for byte in text.bytes() {
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0..0x20 => {
                out.extend_from_slice(b"\\u00");
                out.extend_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
            }
            _ => out.push(byte),
        }
    }
}

/// Writes bytes that were a `str` when they were stored.
pub fn string_bytes(out: &mut Vec<u8>, text: &[u8]) {
    string(out, &String::from_utf8_lossy(text));
}

/// Writes a string or `null`.
pub fn string_or_null(out: &mut Vec<u8>, text: Option<&str>) {
    match text {
        Some(text) => string(out, text),
        None => out.extend_from_slice(b"null"),
    }
}

/// Writes a UUID as a JSON string.
pub fn uuid(out: &mut Vec<u8>, id: Uuid) {
    out.push(b'"');
    let mut buffer = [0; uuid::fmt::Hyphenated::LENGTH];
    out.extend_from_slice(id.hyphenated().encode_lower(&mut buffer).as_bytes());
    out.push(b'"');
}

/// Writes a UUID as a JSON string, or `null`.
pub fn uuid_or_null(out: &mut Vec<u8>, id: Option<Uuid>) {
    match id {
        Some(id) => uuid(out, id),
        None => out.extend_from_slice(b"null"),
    }
}

/// Writes a number as a JSON string.
pub fn number_text(out: &mut Vec<u8>, value: u64) {
    out.push(b'"');
    number(out, value);
    out.push(b'"');
}

/// Writes `true` or `false`.
pub fn boolean(out: &mut Vec<u8>, value: bool) {
    out.extend_from_slice(if value { b"true" } else { b"false" });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_written_string_is_read_back(text in any::<String>()) {
            let mut out = Vec::new();
            string(&mut out, &text);
            prop_assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), text);
        }
    }
}
