//! Services in a store: read and written whole, in the decision that changes them.
//!
//! A service is a small head and as many parts as it takes, all written in one commit. The head's version tells whether
//! what one has in memory is still so, and then the parts are not read. Beats that change nothing are kept apart, in a
//! ring of small records for each server: a ring is so long, and a server writes so rarely, that a beat is overwritten
//! only when it is too old to matter. Always: who expires a worker has read the beats of all servers in the same
//! decision. Start at [`load`].

use std::sync::Arc;
use std::time::Duration;

use baton_store::{Error, Stop, Tx};
use baton_types::Timestamp;
use bytes::Bytes;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use crate::Service;
use crate::codec::{decode, decode_beats, encode, encode_beats};
use crate::limits::SERVICES_MAX;

const HEADS: &str = "shards/services/";
const PARTS: &str = "shards/parts/";
const BEATS: &str = "shards/beats/";
/// The highest generation of all services that were deleted.
const DELETED: &str = "shards/deleted";

/// Bytes of a part: less than a record may have.
const PART_BYTES_MAX: usize = 900 << 10;
const _: () = assert!(PART_BYTES_MAX < baton_types::limits::RECORD_BYTES_MAX);

/// Beat records of one server and service.
const SLOTS: u64 = 128;
/// How many of them a server fills, at most, within a timeout.
const SLOTS_PER_TIMEOUT: u32 = 64;
const _: () = assert!(SLOTS_PER_TIMEOUT as u64 * 2 <= SLOTS);
/// Beat records that are read at a time.
const BEATS_PAGE: usize = 4_096;

/// A service and the write it is from.
#[derive(Clone, Debug)]
pub struct Stored {
    /// The service.
    pub service: Arc<Service>,
    /// The version of its head; zero before it was ever written.
    pub version: u64,
    /// Its parts in the store.
    parts: usize,
}

impl Stored {
    /// A service that was never written.
    pub fn nothing() -> Self {
        Self { service: Arc::default(), version: 0, parts: 0 }
    }
}

#[derive(Serialize, Deserialize)]
struct Head {
    name: String,
    parts: usize,
}

/// A name as part of a key.
fn escaped(name: &str) -> String {
    let mut key = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-') {
            key.push(byte.into());
        } else {
            key.push_str(&format!("%{byte:02x}"));
        }
    }
    key
}

fn head_key(name: &str) -> String {
    format!("{HEADS}{}", escaped(name))
}

fn part_key(name: &str, part: usize) -> String {
    format!("{PARTS}{}/{part:06}", escaped(name))
}

/// The names of all services.
pub fn names(tx: &mut dyn Tx) -> Result<Vec<String>, Stop> {
    let heads = tx.records(HEADS, None, SERVICES_MAX)?;
    let name = |value: &[u8]| serde_json::from_slice::<Head>(value).ok().map(|head| head.name);
    Ok(heads.iter().filter_map(|(_, record)| name(&record.value)).collect())
}

/// A service as it stands; `known` is what one has in memory of it.
pub fn load(tx: &mut dyn Tx, name: &str, known: &Stored) -> Result<Stored, Stop> {
    let Some(head) = tx.record(&head_key(name))? else {
        // Tokens of a service that comes again must be above all that it had before.
        let service = Service { generation: highest_deleted(tx)?, ..Service::default() };
        return Ok(Stored { service: Arc::new(service), ..Stored::nothing() });
    };
    if head.version == known.version {
        return Ok(known.clone());
    }
    let parts = serde_json::from_slice::<Head>(&head.value).map_err(damaged)?.parts;
    let (mut bytes, mut missing) = (Vec::new(), false);
    for part in 0..parts {
        // All that are not at hand are asked for before the decision is run again.
        match tx.record(&part_key(name, part)) {
            Ok(Some(record)) => bytes.extend_from_slice(&record.value),
            Ok(None) => return Err(damaged("a part is missing").into()),
            Err(Stop::Load) => missing = true,
            Err(stop) => return Err(stop),
        }
    }
    if missing {
        return Err(Stop::Load);
    }
    Ok(Stored { service: Arc::new(decode(&bytes)?), version: head.version, parts })
}

fn highest_deleted(tx: &mut dyn Tx) -> Result<u64, Stop> {
    let Some(record) = tx.record(DELETED)? else { return Ok(0) };
    Ok(serde_json::from_slice(&record.value).map_err(damaged)?)
}

fn damaged(problem: impl std::fmt::Display) -> Error {
    Error::Corrupt(format!("the record of a service of shards: {problem}"))
}

/// Whether there is room for a service that was never written.
pub fn has_room(tx: &mut dyn Tx) -> Result<bool, Stop> {
    Ok(tx.records(HEADS, None, SERVICES_MAX)?.len() < SERVICES_MAX)
}

/// Writes a service in place of `before`.
pub fn save(tx: &mut dyn Tx, name: &str, service: Arc<Service>, before: &Stored) -> Result<Stored, Stop> {
    let bytes = Bytes::from(encode(&service));
    let parts = bytes.len().div_ceil(PART_BYTES_MAX);
    let head = serde_json::to_vec(&Head { name: name.to_owned(), parts }).map_err(damaged)?;
    for part in 0..parts {
        let (from, to) = (part * PART_BYTES_MAX, ((part + 1) * PART_BYTES_MAX).min(bytes.len()));
        tx.put_record(&part_key(name, part), bytes.slice(from..to), None)?;
    }
    for part in parts..before.parts {
        tx.remove_record(&part_key(name, part));
    }
    let version = tx.put_record(&head_key(name), head.into(), None)?;
    Ok(Stored { service, version, parts })
}

/// Removes a service, of which the generation is kept.
pub fn delete(tx: &mut dyn Tx, name: &str, service: Arc<Service>, before: &Stored) -> Result<Stored, Stop> {
    let generation = highest_deleted(tx)?.max(service.generation);
    let (_, beats) = beats(tx, name, Duration::ZERO)?;
    tx.put_record(DELETED, serde_json::to_vec(&generation).map_err(damaged)?.into(), None)?;
    tx.remove_record(&head_key(name));
    (0..before.parts).for_each(|part| tx.remove_record(&part_key(name, part)));
    beats.iter().for_each(|key| tx.remove_record(key));
    Ok(Stored { service, ..Stored::nothing() })
}

/// How long a server waits from one beat record of a service to the next, whose workers may be silent for `timeout`.
pub fn beat_spacing(timeout: Duration) -> Duration {
    timeout / SLOTS_PER_TIMEOUT
}

/// Writes that these workers were heard now, by the server called `server`, as its record number `place`.
pub fn put_beats(tx: &mut dyn Tx, name: &str, server: u64, place: u64, workers: &[u32]) -> Result<(), Stop> {
    let key = format!("{BEATS}{}/{server:016x}/{:03}", escaped(name), place % SLOTS);
    tx.put_record(&key, encode_beats(tx.now(), workers).into(), None)?;
    Ok(())
}

/// When each worker was last heard, by any server; and the keys of what is at least as old as `useless`.
pub fn beats(
    tx: &mut dyn Tx,
    name: &str,
    useless: Duration,
) -> Result<(FxHashMap<u32, Timestamp>, Vec<String>), Stop> {
    let prefix = format!("{BEATS}{}/", escaped(name));
    let (mut heard, mut old, mut after) = (FxHashMap::default(), Vec::new(), None::<String>);
    let oldest = tx.now().before(useless);
    loop {
        let page = tx.records(&prefix, after.as_deref(), BEATS_PAGE)?;
        for (key, record) in &page {
            let (at, workers) = decode_beats(&record.value).unwrap_or((Timestamp::MIN, Vec::new()));
            if at <= oldest {
                old.push(key.clone());
            }
            for worker in workers {
                let last = heard.entry(worker).or_insert(at);
                *last = (*last).max(at);
            }
        }
        match page.last() {
            Some((key, _)) if page.len() == BEATS_PAGE => after = Some(key.clone()),
            _ => return Ok((heard, old)),
        }
    }
}
