//! Services in a store: read and written whole, in the decision that changes them.
//!
//! A service is a small head record and as many part records as it needs, all written in one commit. The head's
//! version validates the cached copy, so the parts are read only after a change. Heartbeats that change nothing are
//! kept apart, in a ring of small records per server. The ring is long and a server writes rarely, so a heartbeat
//! is overwritten only when it is too old to matter. Always: a decision that expires a worker has read the
//! heartbeats of all servers. Start at [`load`].

use std::sync::Arc;
use std::time::Duration;

use baton_store::{Error, Tx, TxError};
use baton_types::Timestamp;
use bytes::Bytes;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use crate::Service;
use crate::codec::{decode, decode_heartbeats, encode, encode_heartbeats};
use crate::limits::SERVICES_MAX;

const HEADS: &str = "shards/services/";
const PARTS: &str = "shards/parts/";
const HEARTBEATS: &str = "shards/beats/";
/// The highest generation of all services that were deleted.
const DELETED: &str = "shards/deleted";

/// Bytes of a part, below the limit of a record.
const PART_BYTES_MAX: usize = 900 << 10;
const _: () = assert!(PART_BYTES_MAX < baton_types::limits::RECORD_BYTES_MAX);

/// Heartbeat records per server and service.
const HEARTBEAT_SLOTS: u64 = 128;
/// How many of them a server writes per timeout, at most.
const SLOTS_PER_TIMEOUT: u32 = 64;
const _: () = assert!(SLOTS_PER_TIMEOUT as u64 * 2 <= HEARTBEAT_SLOTS);
/// Heartbeat records per read.
const HEARTBEATS_PER_READ: usize = 4_096;

/// A service and the version it was read at.
#[derive(Clone, Debug)]
pub struct StoredService {
    /// The service.
    pub service: Arc<Service>,
    /// The version of its head; zero if it is not stored.
    pub version: u64,
    /// The number of its part records.
    parts: usize,
}

impl StoredService {
    /// A service that is not stored.
    pub fn absent() -> Self {
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
pub fn service_names(tx: &mut dyn Tx) -> Result<Vec<String>, TxError> {
    let heads = tx.records(HEADS, None, SERVICES_MAX)?;
    let name = |value: &[u8]| serde_json::from_slice::<Head>(value).ok().map(|head| head.name);
    Ok(heads.iter().filter_map(|(_, record)| name(&record.value)).collect())
}

/// Reads a service; `cached` is the last copy that was read.
pub fn load(tx: &mut dyn Tx, name: &str, cached: &StoredService) -> Result<StoredService, TxError> {
    let Some(head) = tx.record(&head_key(name))? else {
        // The tokens of a service that is created again must be above all tokens it had before.
        let service = Service { generation: highest_deleted(tx)?, ..Service::default() };
        return Ok(StoredService { service: Arc::new(service), ..StoredService::absent() });
    };
    if head.version == cached.version {
        return Ok(cached.clone());
    }
    let parts = serde_json::from_slice::<Head>(&head.value).map_err(corrupt)?.parts;
    let (mut bytes, mut missing) = (Vec::new(), false);
    for part in 0..parts {
        // Asks for all missing parts before the decision runs again.
        match tx.record(&part_key(name, part)) {
            Ok(Some(record)) => bytes.extend_from_slice(&record.value),
            Ok(None) => return Err(corrupt("a part is missing").into()),
            Err(TxError::RowsMissing) => missing = true,
            Err(stop) => return Err(stop),
        }
    }
    if missing {
        return Err(TxError::RowsMissing);
    }
    Ok(StoredService { service: Arc::new(decode(&bytes)?), version: head.version, parts })
}

fn highest_deleted(tx: &mut dyn Tx) -> Result<u64, TxError> {
    let Some(record) = tx.record(DELETED)? else { return Ok(0) };
    Ok(serde_json::from_slice(&record.value).map_err(corrupt)?)
}

fn corrupt(problem: impl std::fmt::Display) -> Error {
    Error::Corrupt(format!("the record of a service of shards: {problem}"))
}

/// Whether another service may be stored.
pub fn has_room_for_service(tx: &mut dyn Tx) -> Result<bool, TxError> {
    Ok(tx.records(HEADS, None, SERVICES_MAX)?.len() < SERVICES_MAX)
}

/// Writes a service in place of `before`.
pub fn save(
    tx: &mut dyn Tx,
    name: &str,
    service: Arc<Service>,
    before: &StoredService,
) -> Result<StoredService, TxError> {
    let bytes = Bytes::from(encode(&service));
    let parts = bytes.len().div_ceil(PART_BYTES_MAX);
    let head = serde_json::to_vec(&Head { name: name.to_owned(), parts }).map_err(corrupt)?;
    for part in 0..parts {
        let (from, to) = (part * PART_BYTES_MAX, ((part + 1) * PART_BYTES_MAX).min(bytes.len()));
        tx.put_record(&part_key(name, part), bytes.slice(from..to), None)?;
    }
    for part in parts..before.parts {
        tx.remove_record(&part_key(name, part));
    }
    let version = tx.put_record(&head_key(name), head.into(), None)?;
    Ok(StoredService { service, version, parts })
}

/// Deletes a service and keeps its generation.
pub fn delete(
    tx: &mut dyn Tx,
    name: &str,
    service: Arc<Service>,
    before: &StoredService,
) -> Result<StoredService, TxError> {
    let generation = highest_deleted(tx)?.max(service.generation);
    let (_, heartbeats) = read_heartbeats(tx, name, Duration::ZERO)?;
    tx.put_record(DELETED, serde_json::to_vec(&generation).map_err(corrupt)?.into(), None)?;
    tx.remove_record(&head_key(name));
    (0..before.parts).for_each(|part| tx.remove_record(&part_key(name, part)));
    heartbeats.iter().for_each(|key| tx.remove_record(key));
    Ok(StoredService { service, ..StoredService::absent() })
}

/// The interval between two heartbeat records of a service whose workers have this `timeout`.
pub fn heartbeat_write_interval(timeout: Duration) -> Duration {
    timeout / SLOTS_PER_TIMEOUT
}

/// Records that these workers were heard now, in slot number `slot` of the server with id `server`.
pub fn write_heartbeats(
    tx: &mut dyn Tx,
    name: &str,
    server: u64,
    slot: u64,
    workers: &[u32],
) -> Result<(), TxError> {
    let key = format!("{HEARTBEATS}{}/{server:016x}/{:03}", escaped(name), slot % HEARTBEAT_SLOTS);
    tx.put_record(&key, encode_heartbeats(tx.now(), workers).into(), None)?;
    Ok(())
}

/// When each worker was last heard by any server, and the keys of records at least `max_age` old.
pub fn read_heartbeats(
    tx: &mut dyn Tx,
    name: &str,
    max_age: Duration,
) -> Result<(FxHashMap<u32, Timestamp>, Vec<String>), TxError> {
    let prefix = format!("{HEARTBEATS}{}/", escaped(name));
    let (mut heard, mut old, mut after) = (FxHashMap::default(), Vec::new(), None::<String>);
    let oldest = tx.now().before(max_age);
    loop {
        let page = tx.records(&prefix, after.as_deref(), HEARTBEATS_PER_READ)?;
        for (key, record) in &page {
            let (at, workers) = decode_heartbeats(&record.value).unwrap_or((Timestamp::MIN, Vec::new()));
            if at <= oldest {
                old.push(key.clone());
            }
            for worker in workers {
                let last = heard.entry(worker).or_insert(at);
                *last = (*last).max(at);
            }
        }
        match page.last() {
            Some((key, _)) if page.len() == HEARTBEATS_PER_READ => after = Some(key.clone()),
            _ => return Ok((heard, old)),
        }
    }
}
