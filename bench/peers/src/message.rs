//! The payload that every system carries: JSON of an exact size that says who sent it, as which, and when.
//! The filler is random text, so that no system gains by compressing it.

use std::sync::OnceLock;
use std::time::Instant;

use anyhow::{Context, Result};

/// The parts of a payload that the checks need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    pub producer: u32,
    pub sequence: u32,
    /// Nanoseconds since the start of this process, taken just before the push.
    pub at: u64,
}

/// Nanoseconds since the first call in this process.
pub fn now() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Random printable text to cut fillers from.
fn filler() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| {
        const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let mut state = 0x9E37_79B9_7F4A_7C15u64 ^ std::process::id() as u64;
        (0..1 << 20)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                LETTERS[(state >> 32) as usize % LETTERS.len()] as char
            })
            .collect()
    })
}

/// A payload of `bytes` bytes (or the least that holds the stamp).
pub fn payload(stamp: Stamp, bytes: usize) -> Vec<u8> {
    let mut text =
        format!(r#"{{"p":{},"s":{},"at":{},"fill":""#, stamp.producer, stamp.sequence, stamp.at).into_bytes();
    let missing = bytes.saturating_sub(text.len() + 2);
    let all = filler().as_bytes();
    let start = (stamp.sequence as usize * 61 + stamp.producer as usize * 7919)
        % (all.len() - missing.min(all.len() / 2));
    text.extend_from_slice(&all[start..start + missing.min(all.len() / 2)]);
    text.extend_from_slice(b"\"}");
    text
}

/// Reads a payload back. Only what [`payload`] wrote is understood.
pub fn stamp(payload: &[u8]) -> Result<Stamp> {
    let mut numbers = [0u64; 3];
    let mut rest = payload;
    for number in &mut numbers {
        let colon = rest.iter().position(|b| *b == b':').context("a payload without its stamp")?;
        rest = &rest[colon + 1..];
        let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
        *number = std::str::from_utf8(&rest[..digits])?.parse().context("a stamp that is no number")?;
    }
    Ok(Stamp { producer: u32::try_from(numbers[0])?, sequence: u32::try_from(numbers[1])?, at: numbers[2] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_has_its_size_and_gives_its_stamp_back() {
        let sent = Stamp { producer: 7, sequence: 123_456, at: 987_654_321 };
        let bytes = payload(sent, 300);
        assert_eq!(bytes.len(), 300);
        assert_eq!(stamp(&bytes).unwrap(), sent);
        assert!(serde_json::from_slice::<serde_json::Value>(&bytes).is_ok());
    }
}
