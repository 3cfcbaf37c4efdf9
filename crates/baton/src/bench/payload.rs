//! The payload: JSON of an exact size with its producer, partition, number and time. The filler is random text, so
//! that compression gains nothing.

use std::io::Write;
use std::sync::OnceLock;

use serde::Deserialize;

/// Bytes of random text that fillers are cut from.
const FILLER_BYTES: usize = 1 << 20;

/// The data of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Stamp {
    /// The producer.
    #[serde(rename = "p")]
    pub producer: u32,
    /// The partition.
    #[serde(rename = "k")]
    pub partition: u32,
    /// The number among the producer's messages.
    #[serde(rename = "s")]
    pub sequence: u32,
    /// The time, in nanoseconds since the start of the run, just before the push.
    pub at: u64,
}

/// Appends a payload of `bytes` bytes, or more if the stamp needs more.
pub fn append(output: &mut Vec<u8>, stamp: Stamp, bytes: usize) {
    let start = output.len();
    let Stamp { producer, partition, sequence, at } = stamp;
    let written = write!(output, r#"{{"p":{producer},"k":{partition},"s":{sequence},"at":{at},"fill":""#);
    debug_assert!(written.is_ok(), "writing to memory cannot fail");
    let missing = bytes.saturating_sub(output.len() - start + 2).min(FILLER_BYTES / 2);
    let cut = (sequence as usize * 61 + producer as usize * 7_919) % (FILLER_BYTES / 2);
    output.extend_from_slice(&filler()[cut..cut + missing]);
    output.extend_from_slice(b"\"}");
}

fn filler() -> &'static [u8] {
    static TEXT: OnceLock<Vec<u8>> = OnceLock::new();
    TEXT.get_or_init(|| {
        const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let mut bytes = vec![0; FILLER_BYTES];
        baton_env::random_bytes(&mut bytes);
        bytes.iter_mut().for_each(|byte| *byte = LETTERS[usize::from(*byte) % LETTERS.len()]);
        bytes
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_has_its_size_and_gives_its_stamp_back() {
        let sent = Stamp { producer: 7, partition: 99, sequence: 123_456, at: 987_654_321 };
        let mut bytes = Vec::new();
        append(&mut bytes, sent, 300);
        assert_eq!(bytes.len(), 300);
        assert_eq!(serde_json::from_slice::<Stamp>(&bytes).unwrap(), sent);
    }
}
