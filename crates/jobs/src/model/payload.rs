//! The stored form of a job's specification and arguments: a message of its queue.
//!
//! It is written once for each job and read when the job is leased, so it is small and fast to read. Default values
//! are omitted, and a lease decodes only what a worker needs ([`DeliveredSpec`]). Always: the arguments are the caller's
//! bytes, at the end. Payloads of the earlier format begin with the length of a JSON text, which is never zero; they
//! are still read.

use std::sync::Arc;

use baton_store::Error as StoreError;
use baton_types::Timestamp;
use bytes::Bytes;

use crate::model::codec::{Reader, Writer};
use crate::model::ids::JobId;
use crate::model::retry::{Retry, is_usual};
use crate::model::spec::{Spec, is_usual_timeout, timeout_ms};

/// The first byte of a payload of this format.
const MARK: u8 = 0;

/// Bits for the optional parts of a specification.
mod part {
    pub const TIMEOUT: u64 = 1;
    pub const RETRY: u64 = 1 << 1;
    pub const KEY: u64 = 1 << 2;
    pub const LIMIT: u64 = 1 << 3;
    pub const UNIQUE: u64 = 1 << 4;
    pub const CORRELATION: u64 = 1 << 5;
    pub const TAGS: u64 = 1 << 6;
    pub const PARENT: u64 = 1 << 7;
    pub const DEPENDS: u64 = 1 << 8;
    pub const SCHEDULE: u64 = 1 << 9;
    pub const SCHEDULED_FOR: u64 = 1 << 10;
    pub const ALL: u64 = (1 << 11) - 1;
}

/// What a worker gets of a job's specification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveredSpec {
    /// What kind of work it is.
    pub job_type: Arc<str>,
    /// How long it may run; zero is for ever.
    pub timeout_ms: u64,
    /// What the caller knows it by.
    pub correlation_id: Option<String>,
    /// The schedule that fired it.
    pub schedule_id: Option<String>,
    /// The moment that the schedule fired it for.
    pub scheduled_for: Option<Timestamp>,
}

/// Writes a payload. Facts that only enqueuing knows are arguments beside the specification.
pub fn encode(out: &mut Writer, spec: &Spec, unique_key: Option<&str>, depends_on: &[JobId], args: &[u8]) {
    let mut parts = 0;
    for (present, part) in [
        (!is_usual_timeout(&spec.timeout_ms), part::TIMEOUT),
        (!is_usual(&spec.retry), part::RETRY),
        (spec.concurrency_key.is_some(), part::KEY),
        (spec.concurrency_limit.is_some(), part::LIMIT),
        (unique_key.is_some(), part::UNIQUE),
        (spec.correlation_id.is_some(), part::CORRELATION),
        (!spec.tags.is_empty(), part::TAGS),
        (spec.parent_id.is_some(), part::PARENT),
        (!depends_on.is_empty(), part::DEPENDS),
        (spec.schedule_id.is_some(), part::SCHEDULE),
        (spec.scheduled_for.is_some(), part::SCHEDULED_FOR),
    ] {
        parts |= if present { part } else { 0 };
    }
    out.byte(MARK);
    out.number(parts);
    out.bytes(spec.job_type.as_bytes());
    if parts & part::TIMEOUT != 0 {
        out.number(spec.timeout_ms);
    }
    if parts & part::RETRY != 0 {
        encode_retry(out, &spec.retry);
    }
    if let Some(key) = &spec.concurrency_key {
        out.bytes(key.as_bytes());
    }
    if let Some(limit) = spec.concurrency_limit {
        out.number(limit.into());
    }
    for text in [unique_key, spec.correlation_id.as_deref()].into_iter().flatten() {
        out.bytes(text.as_bytes());
    }
    if parts & part::TAGS != 0 {
        out.number(spec.tags.len() as u64);
        spec.tags.iter().for_each(|tag| out.bytes(tag.as_bytes()));
    }
    if let Some(parent) = spec.parent_id {
        encode_job(out, parent);
    }
    if parts & part::DEPENDS != 0 {
        out.number(depends_on.len() as u64);
        depends_on.iter().for_each(|job| encode_job(out, *job));
    }
    if let Some(schedule) = &spec.schedule_id {
        out.bytes(schedule.as_bytes());
    }
    if let Some(at) = spec.scheduled_for {
        out.moment(at, Timestamp::default());
    }
    out.0.extend_from_slice(args);
}

/// The stored form of a specification and its arguments.
pub fn encode_spec(spec: &Spec, args: &[u8]) -> Vec<u8> {
    let mut out = Writer(Vec::with_capacity(64 + args.len()));
    encode(&mut out, spec, spec.unique_key.as_deref(), &spec.depends_on, args);
    out.0
}

/// Decodes the specification and the arguments.
pub fn decode(payload: &Bytes) -> Result<(Spec, Bytes), StoreError> {
    let Some(kept) = EncodedSpec::read(payload)? else { return decode_json(payload) };
    let spec = Spec {
        job_type: kept.job_type.into(),
        timeout_ms: kept.timeout_ms,
        retry: kept.retry,
        unique_key: kept.unique_key.map(str::to_owned),
        concurrency_key: kept.concurrency_key.map(str::to_owned),
        concurrency_limit: kept.concurrency_limit,
        correlation_id: kept.correlation_id.map(str::to_owned),
        tags: kept.tags.into_iter().map(str::to_owned).collect(),
        parent_id: kept.parent_id,
        depends_on: kept.depends_on,
        schedule_id: kept.schedule_id.map(str::to_owned),
        scheduled_for: kept.scheduled_for,
    };
    Ok((spec, payload.slice(kept.args_at..)))
}

/// Decodes what a worker gets, and the arguments. `like` is the type of the previous job; an equal type shares its
/// memory.
pub fn brief(payload: &Bytes, like: Option<&Arc<str>>) -> Result<(DeliveredSpec, Bytes), StoreError> {
    let shared = |name: &str| like.filter(|like| ***like == *name).cloned().unwrap_or_else(|| name.into());
    let Some(kept) = EncodedSpec::read(payload)? else {
        let (spec, args) = decode_json(payload)?;
        let brief = DeliveredSpec {
            job_type: shared(&spec.job_type),
            timeout_ms: spec.timeout_ms,
            correlation_id: spec.correlation_id,
            schedule_id: spec.schedule_id,
            scheduled_for: spec.scheduled_for,
        };
        return Ok((brief, args));
    };
    let brief = DeliveredSpec {
        job_type: shared(kept.job_type),
        timeout_ms: kept.timeout_ms,
        correlation_id: kept.correlation_id.map(str::to_owned),
        schedule_id: kept.schedule_id.map(str::to_owned),
        scheduled_for: kept.scheduled_for,
    };
    Ok((brief, payload.slice(kept.args_at..)))
}

fn decode_json(payload: &Bytes) -> Result<(Spec, Bytes), StoreError> {
    let mut from = Reader(payload);
    let spec = serde_json::from_slice(from.bytes()?)
        .map_err(|error| StoreError::Corrupt(format!("a job cannot be read: {error}")))?;
    Ok((spec, payload.slice(payload.len() - from.0.len()..)))
}

/// A specification that is decoded on demand.
struct EncodedSpec<'a> {
    job_type: &'a str,
    timeout_ms: u64,
    retry: Retry,
    unique_key: Option<&'a str>,
    concurrency_key: Option<&'a str>,
    concurrency_limit: Option<u32>,
    correlation_id: Option<&'a str>,
    tags: Vec<&'a str>,
    parent_id: Option<JobId>,
    depends_on: Vec<JobId>,
    schedule_id: Option<&'a str>,
    scheduled_for: Option<Timestamp>,
    args_at: usize,
}

impl<'a> EncodedSpec<'a> {
    /// `None` for a payload of the earlier format.
    fn read(payload: &'a [u8]) -> Result<Option<Self>, StoreError> {
        let Some((&MARK, rest)) = payload.split_first() else { return Ok(None) };
        let mut from = Reader(rest);
        let parts = from.number()?;
        if parts & !part::ALL != 0 {
            return Err(StoreError::Corrupt("a job has unknown parts".into()));
        }
        let has = |part: u64| parts & part != 0;
        let job_type = from.text()?;
        let timeout_ms = if has(part::TIMEOUT) { from.number()? } else { timeout_ms() };
        let retry = if has(part::RETRY) { decode_retry(&mut from)? } else { Retry::default() };
        let concurrency_key = has(part::KEY).then(|| from.text()).transpose()?;
        let concurrency_limit = has(part::LIMIT).then(|| from.small()).transpose()?;
        let unique_key = has(part::UNIQUE).then(|| from.text()).transpose()?;
        let correlation_id = has(part::CORRELATION).then(|| from.text()).transpose()?;
        let tags = if has(part::TAGS) { from.number()? } else { 0 };
        let tags = (0..tags).map(|_| from.text()).collect::<Result<_, _>>()?;
        let parent_id = has(part::PARENT).then(|| decode_job(&mut from)).transpose()?;
        let depends_on = if has(part::DEPENDS) { from.number()? } else { 0 };
        let depends_on = (0..depends_on).map(|_| decode_job(&mut from)).collect::<Result<_, _>>()?;
        let schedule_id = has(part::SCHEDULE).then(|| from.text()).transpose()?;
        let scheduled_for =
            has(part::SCHEDULED_FOR).then(|| from.moment(Timestamp::default())).transpose()?;
        Ok(Some(Self {
            job_type,
            timeout_ms,
            retry,
            unique_key,
            concurrency_key,
            concurrency_limit,
            correlation_id,
            tags,
            parent_id,
            depends_on,
            schedule_id,
            scheduled_for,
            args_at: payload.len() - from.0.len(),
        }))
    }
}

fn encode_retry(out: &mut Writer, retry: &Retry) {
    out.number(retry.max_retries.into());
    out.number(retry.initial_delay_ms);
    out.fixed(retry.multiplier.to_bits());
    out.number(retry.max_delay_ms);
    out.fixed(retry.jitter.to_bits());
}

fn decode_retry(from: &mut Reader<'_>) -> Result<Retry, StoreError> {
    Ok(Retry {
        max_retries: from.small()?,
        initial_delay_ms: from.number()?,
        multiplier: f64::from_bits(from.fixed()?),
        max_delay_ms: from.number()?,
        jitter: f64::from_bits(from.fixed()?),
    })
}

fn encode_job(out: &mut Writer, job: JobId) {
    let (high, low) = job.as_uuid().as_u64_pair();
    out.fixed(high);
    out.fixed(low);
}

fn decode_job(from: &mut Reader<'_>) -> Result<JobId, StoreError> {
    Ok(JobId::from_uuid(uuid::Uuid::from_u64_pair(from.fixed()?, from.fixed()?)))
}

#[cfg(test)]
mod tests {
    use baton_types::PartitionId;

    use super::*;
    use crate::model::ids::JobPosition;

    fn full() -> Spec {
        let job =
            |offset| JobId::new(Timestamp::from_micros(1_000_000), JobPosition::new(PartitionId(3), offset));
        Spec {
            job_type: "email.send".into(),
            timeout_ms: 0,
            retry: Retry { max_retries: 7, multiplier: 1.5, jitter: 0.25, ..Retry::default() },
            unique_key: Some("one".into()),
            concurrency_key: Some("tenant-7".into()),
            concurrency_limit: Some(1000),
            correlation_id: Some("order".into()),
            tags: vec!["a".into(), String::new()],
            parent_id: Some(job(1)),
            depends_on: vec![job(2), job(3)],
            schedule_id: Some("nightly".into()),
            scheduled_for: Some(Timestamp::from_micros(-5)),
        }
    }

    fn brief_of(spec: &Spec) -> DeliveredSpec {
        DeliveredSpec {
            job_type: Arc::clone(&spec.job_type),
            timeout_ms: spec.timeout_ms,
            correlation_id: spec.correlation_id.clone(),
            schedule_id: spec.schedule_id.clone(),
            scheduled_for: spec.scheduled_for,
        }
    }

    fn encoded(spec: &Spec, args: &[u8]) -> Bytes {
        let mut out = Writer::default();
        encode(&mut out, spec, spec.unique_key.as_deref(), &spec.depends_on, args);
        out.0.into()
    }

    #[test]
    fn a_specification_is_read_back_with_its_arguments() {
        for spec in [Spec::new("t"), full()] {
            let payload = encoded(&spec, b"{\"x\": 1}");
            let args = Bytes::from_static(b"{\"x\": 1}");
            assert_eq!(decode(&payload).unwrap(), (spec.clone(), args.clone()));
            assert_eq!(brief(&payload, None).unwrap(), (brief_of(&spec), args));
        }
    }

    #[test]
    fn a_type_that_was_seen_before_is_shared() {
        let payload = encoded(&Spec::new("t"), b"");
        let (first, _) = brief(&payload, None).unwrap();
        let (second, _) = brief(&payload, Some(&first.job_type)).unwrap();
        assert!(Arc::ptr_eq(&first.job_type, &second.job_type));
        let (other, _) = brief(&encoded(&Spec::new("u"), b""), Some(&first.job_type)).unwrap();
        assert_eq!(&*other.job_type, "u");
    }

    #[test]
    fn a_plain_job_takes_a_few_bytes_beside_its_arguments() {
        assert_eq!(encoded(&Spec::new("noop"), b"{}").len(), 3 + 4 + 2);
    }

    #[test]
    fn a_payload_from_before_is_read() {
        let spec = full();
        let mut out = Writer::default();
        out.bytes(&serde_json::to_vec(&spec).unwrap());
        out.0.extend_from_slice(b"[1]");
        let payload = Bytes::from(out.0);
        assert_eq!(decode(&payload).unwrap(), (spec.clone(), Bytes::from_static(b"[1]")));
        assert_eq!(brief(&payload, None).unwrap().0, brief_of(&spec));
    }

    #[test]
    fn a_damaged_record_is_an_error() {
        let payload = encoded(&full(), b"");
        for end in 0..payload.len() {
            assert!(decode(&payload.slice(..end)).is_err(), "{end}");
        }
        assert!(decode(&Bytes::from_static(&[0, 0xff, 0xff, 0x7f])).is_err());
    }
}
