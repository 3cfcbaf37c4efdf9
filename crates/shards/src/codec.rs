//! The stored form of a service: small numbers take one byte, and shards with one owner and one token are one run.
//!
//! Always: decoding returns exactly what was encoded, or an error. Start at [`encode`].

use std::sync::Arc;
use std::time::Duration;

use baton_store::Error;
use baton_types::Timestamp;

use crate::service::{Service, Shard, Status, Worker};

/// The first byte: a format without owners of workers, used while no worker has one.
const FORMAT: u8 = 1;
/// A format with owners of workers.
const FORMAT_OWNED: u8 = 2;

/// Encodes a service.
pub fn encode(service: &Service) -> Vec<u8> {
    let owned = service.workers.values().any(|worker| worker.owner.is_some());
    let mut out = vec![if owned { FORMAT_OWNED } else { FORMAT }];
    for number in [
        service.count.into(),
        service.generation,
        micros(service.rebalanced_at),
        service.moves,
        service.needs_rebalance.into(),
        service.next_number.into(),
        service.workers.len() as u64,
    ] {
        put_varint(&mut out, number);
    }
    for (number, worker) in &service.workers {
        put_varint(&mut out, (*number).into());
        put_worker(&mut out, worker);
        if owned {
            put_option(&mut out, worker.owner.as_deref());
        }
    }
    for run in service.shards.chunk_by(|a, b| a == b) {
        put_varint(&mut out, run.len() as u64);
        put_varint(&mut out, run[0].owner.into());
        put_varint(&mut out, run[0].token << 1 | u64::from(run[0].revoking));
    }
    out
}

fn put_worker(out: &mut Vec<u8>, worker: &Worker) {
    put_text(out, &worker.id);
    put_option(out, worker.session.as_deref());
    for number in [
        match worker.status {
            Status::Active => 0,
            Status::Inactive => 1,
            Status::Fenced => 2,
        },
        worker.weight.into(),
        worker.capacity.map_or(0, |capacity| u64::from(capacity) + 1),
        worker.draining.into(),
        worker.reported_count.into(),
        u64::try_from(worker.timeout.as_micros()).unwrap_or(u64::MAX),
        micros(worker.last_heard_at),
        micros(worker.registered_at),
        worker.generation,
        worker.revoking.into(),
    ] {
        put_varint(out, number);
    }
}

fn micros(at: Timestamp) -> u64 {
    u64::try_from(at.micros()).unwrap_or(0)
}

/// Seven bits a byte, the lowest first; the eighth says that more follow.
fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_varint(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

fn put_option(out: &mut Vec<u8>, text: Option<&str>) {
    out.push(text.is_some().into());
    put_text(out, text.unwrap_or(""));
}

/// Decodes a service.
pub fn decode(bytes: &[u8]) -> Result<Service, Error> {
    let mut reader = Reader(bytes);
    read_service(&mut reader).ok_or_else(|| Error::Corrupt("the record of a service of shards".into()))
}

fn read_service(reader: &mut Reader<'_>) -> Option<Service> {
    let owned = match reader.read_byte()? {
        FORMAT => false,
        FORMAT_OWNED => true,
        _ => return None,
    };
    let mut service = Service {
        count: reader.read_u32()?,
        generation: reader.read_varint()?,
        rebalanced_at: reader.read_timestamp()?,
        moves: reader.read_varint()?,
        needs_rebalance: reader.read_bool()?,
        next_number: reader.read_u32()?,
        ..Service::default()
    };
    for _ in 0..reader.read_varint()? {
        let number = reader.read_u32()?;
        let mut worker = read_worker(reader)?;
        if owned {
            worker.owner = reader.read_option()?;
        }
        if worker.status != Status::Fenced {
            service.number_by_id.insert(worker.id.clone(), number);
        }
        service.workers.insert(number, worker);
    }
    while !reader.0.is_empty() {
        let (length, owner, mark) = (reader.read_u32()?, reader.read_u32()?, reader.read_varint()?);
        if length > crate::limits::SHARDS_MAX || service.shards.len() > crate::limits::SHARDS_MAX as usize {
            return None;
        }
        let shard = Shard { owner, revoking: mark & 1 == 1, token: mark >> 1 };
        service.shards.resize(service.shards.len() + length as usize, shard);
    }
    Some(service)
}

fn read_worker(reader: &mut Reader<'_>) -> Option<Worker> {
    let id = reader.read_text()?;
    let session = reader.read_option()?;
    Some(Worker {
        id,
        session,
        owner: None,
        status: match reader.read_varint()? {
            0 => Status::Active,
            1 => Status::Inactive,
            2 => Status::Fenced,
            _ => return None,
        },
        weight: reader.read_u32()?,
        capacity: match reader.read_varint()? {
            0 => None,
            more => Some(u32::try_from(more - 1).ok()?),
        },
        draining: reader.read_bool()?,
        reported_count: reader.read_u32()?,
        timeout: Duration::from_micros(reader.read_varint()?),
        last_heard_at: reader.read_timestamp()?,
        registered_at: reader.read_timestamp()?,
        generation: reader.read_varint()?,
        revoking: reader.read_u32()?,
    })
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn read_byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn read_varint(&mut self) -> Option<u64> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.read_byte()?;
            let part = u64::from(byte & 0x7f);
            number |= part << shift;
            if part << shift >> shift != part {
                return None;
            }
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn read_u32(&mut self) -> Option<u32> {
        u32::try_from(self.read_varint()?).ok()
    }

    fn read_bool(&mut self) -> Option<bool> {
        match self.read_varint()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn read_timestamp(&mut self) -> Option<Timestamp> {
        Some(Timestamp::from_micros(i64::try_from(self.read_varint()?).ok()?))
    }

    fn read_option(&mut self) -> Option<Option<Arc<str>>> {
        let (given, text) = (self.read_bool()?, self.read_text()?);
        Some(given.then_some(text))
    }

    fn read_text(&mut self) -> Option<Arc<str>> {
        let length = usize::try_from(self.read_varint()?).ok()?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(std::str::from_utf8(text).ok()?.into())
    }
}

/// Encodes a heartbeat record: the time, and the numbers of the workers heard then.
pub fn encode_heartbeats(at: Timestamp, workers: &[u32]) -> Vec<u8> {
    let mut out = Vec::with_capacity(16 + 2 * workers.len());
    put_varint(&mut out, micros(at));
    workers.iter().for_each(|number| put_varint(&mut out, (*number).into()));
    out
}

/// Decodes a heartbeat record.
pub fn decode_heartbeats(bytes: &[u8]) -> Option<(Timestamp, Vec<u32>)> {
    let mut reader = Reader(bytes);
    let at = reader.read_timestamp()?;
    let mut workers = Vec::new();
    while !reader.0.is_empty() {
        workers.push(reader.read_u32()?);
    }
    Some((at, workers))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Allocation, Heartbeat, Request, Rules};

    fn service(joins: &[(u8, bool, u32)], owned: bool) -> Service {
        let rules = Rules {
            allocation: Allocation::Sticky,
            timeout: Duration::from_secs(15),
            forget_after: Duration::from_secs(60),
            rebalance_interval: Duration::ZERO,
        };
        let mut service = Service::default();
        for (at, (worker, leased, count)) in (1i64..).zip(joins) {
            let now = Timestamp::from_micros(at);
            let session = leased.then(|| format!("s{at}").into());
            let capacity = (at % 3 == 0).then_some(*count);
            let beat = Heartbeat {
                is_registration: true,
                session,
                capacity,
                shard_count: Some(*count),
                caller: (owned && at % 2 == 0).then(|| format!("token:{worker}").into()),
                ..Heartbeat::from_worker(format!("w{worker}"))
            };
            // Refused if the worker belongs to another identity.
            let _ = service.apply(&Request::Heartbeat(beat), &rules, now);
            service.rebalance(&rules, now);
        }
        service
    }

    proptest! {
        #[test]
        fn a_service_is_read_back(
            joins in proptest::collection::vec((0u8..6, any::<bool>(), 0u32..300), 0..20), owned in any::<bool>(),
        ) {
            let service = service(&joins, owned);
            let bytes = encode(&service);
            let owners = service.workers().any(|(_, worker)| worker.owner.is_some());
            prop_assert_eq!(bytes[0], if owners { FORMAT_OWNED } else { FORMAT });
            prop_assert_eq!(&decode(&bytes).unwrap(), &service);
            for end in 0..bytes.len().min(40) {
                prop_assert!(decode(&bytes[..end]).is_err() || end > 8);
            }
        }


        #[test]
        fn beats_are_read_back(at in 0i64..i64::MAX, workers in proptest::collection::vec(any::<u32>(), 0..50)) {
            let at = Timestamp::from_micros(at);
            prop_assert_eq!(decode_heartbeats(&encode_heartbeats(at, &workers)), Some((at, workers)));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
            for format in [FORMAT, FORMAT_OWNED] {
                let mut formatted = vec![format];
                formatted.extend(&bytes);
                let _ = decode(&formatted);
            }
        }
    }
}
