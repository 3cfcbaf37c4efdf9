//! The limit: what the disk allows. The same bytes, appended to one file, with one fdatasync for each group of
//! messages that a perfect group commit could join.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::histogram::Histogram;
use crate::message::{Stamp, now, payload, stamp};

pub fn run(directory: &Path, group: usize, duration: Duration, payload_bytes: usize) -> Result<Value> {
    let path = directory.join("limit.log");
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).open(&path)?;
    let mut latency = Histogram::default();
    let (start, mut messages, mut bytes) = (now(), 0u64, Vec::new());
    while now() - start < duration.as_nanos() as u64 {
        let at = now();
        bytes.clear();
        for offset in 0..group as u64 {
            bytes.extend_from_slice(&payload(
                Stamp { producer: 0, sequence: (messages + offset) as u32, at },
                payload_bytes,
            ));
        }
        file.write_all(&bytes)?;
        file.sync_data()?;
        messages += group as u64;
        latency.record(now() - at);
    }
    let seconds = (now() - start) as f64 / 1e9;
    verify(&path, messages, payload_bytes)?;
    std::fs::remove_file(&path)?;
    Ok(json!({
        "scenario": "limit",
        "group": group,
        "payload_bytes": payload_bytes,
        "messages": messages,
        "seconds": seconds,
        "messages_per_second": messages as f64 / seconds,
        "latency_us": latency.summary(),
        "verified": true,
    }))
}

/// Reads the file back: every message is there, in order.
fn verify(path: &Path, messages: u64, payload_bytes: usize) -> Result<()> {
    let length = File::open(path)?.metadata()?.len();
    ensure!(length == messages * payload_bytes as u64, "the file has {length} bytes");
    let mut reader = std::io::BufReader::new(File::open(path)?);
    let mut buffer = vec![0; payload_bytes];
    for sequence in 0..messages {
        std::io::Read::read_exact(&mut reader, &mut buffer)?;
        ensure!(u64::from(stamp(&buffer)?.sequence) == sequence, "message {sequence} is not in its place");
    }
    Ok(())
}
