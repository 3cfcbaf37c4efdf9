//! The store calls of participants, each with its answer as an input of the state machine.
//!
//! A term under the lease of a process is stored in two records: the group's (which process) and the process's (is it
//! alive). Here both are read as one record whose version changes when either does, so that the state machine sees
//! only one. Always: a term of a process is claimed only after the process's record was fenced from the version that
//! was seen to be silent.

use std::sync::Arc;

use crate::machine::{Input, SwapAnswer};
use crate::record::{self, EpochRecord, ProcessRecord, WorkerRecord};
use crate::store::{Error, Store, SwapOutcome, Version};

/// Worker records read when the epoch record is missing.
const WORKERS_READ_MAX: usize = 1000;

/// Separates the parts of a combined version; no part contains it.
const SEPARATOR: char = '\t';

/// Merges the record of a group with that of the process whose lease covers it; `None` if that record is missing.
pub fn merge_process(
    group: (Version, EpochRecord),
    process: Option<(Version, ProcessRecord)>,
) -> (Version, EpochRecord) {
    let (version, mut epoch) = group;
    match (&epoch.process, process) {
        (Some(id), Some((seen, process))) if !process.fenced => {
            let version = format!("{}{SEPARATOR}{id}{SEPARATOR}{}", version.0, seen.0);
            epoch.epoch = epoch.epoch.max(process.epoch);
            (Version(version), epoch)
        }
        // The process has lost its lease, so the term is free.
        (Some(_), _) => {
            epoch.released = true;
            (version, epoch)
        }
        (None, _) => (version, epoch),
    }
}

/// The version of the group's own record, and the process with the version of its record if there is one.
pub fn split_version(version: &Version) -> (Version, Option<(&str, Version)>) {
    let mut parts = version.0.splitn(3, SEPARATOR);
    let group = Version(parts.next().unwrap_or_default().to_owned());
    let process = parts.next().zip(parts.next()).map(|(id, version)| (id, Version(version.to_owned())));
    (group, process)
}

fn encode<T: serde::Serialize>(record: &T) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(record).map_err(|e| Error(e.to_string()))
}

fn decode<T: serde::de::DeserializeOwned>(what: &str, value: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(value).map_err(|e| Error(format!("{what} cannot be understood: {e}")))
}

/// The record of the process called `id`.
pub async fn read_process(store: &dyn Store, id: &str) -> Result<Option<(Version, ProcessRecord)>, Error> {
    let found = store.read(&record::process_key(id)).await?;
    found.map(|(version, value)| Ok((version, decode("the record of a process", &value)?))).transpose()
}

/// Compares and sets the record of the process called `id`.
pub async fn swap_process(
    store: &dyn Store,
    id: &str,
    expected: Option<&Version>,
    process: &ProcessRecord,
) -> Result<SwapOutcome, Error> {
    store.swap(&record::process_key(id), expected, encode(process)?).await
}

/// Reads the epoch record. For a term of the process `own` the process record is not read: the caller knows it.
pub async fn read_epoch(store: Arc<dyn Store>, group: String, own: Option<String>) -> Result<Input, Error> {
    let Some((version, value)) = store.read(&record::epoch_key(&group)).await? else {
        return Ok(Input::Read(Ok(None)));
    };
    let epoch: EpochRecord = decode("the epoch record", &value)?;
    let foreign = epoch.process.as_deref().filter(|id| !epoch.released && Some(*id) != own.as_deref());
    let found = match foreign {
        Some(id) => {
            let process = read_process(&*store, id).await?;
            merge_process((version, epoch), process)
        }
        None => (version, epoch),
    };
    Ok(Input::Read(Ok(Some(found))))
}

/// Compares and sets the epoch record.
pub async fn swap_epoch(
    store: Arc<dyn Store>,
    group: String,
    expected: Option<Version>,
    record: EpochRecord,
) -> Result<Input, Error> {
    let (expected, process) = match expected.as_ref().map(split_version) {
        Some((version, process)) => (Some(version), process),
        None => (None, None),
    };
    // To take the term from a process, fence that process first; a write that leaves it there need not.
    if let Some((id, seen)) = process.filter(|(id, _)| record.process.as_deref() != Some(id))
        && swap_process(&*store, id, Some(&seen), &ProcessRecord::fenced_record(id)).await?
            == SwapOutcome::Conflict
    {
        return Ok(Input::SwapAnswered(SwapAnswer::Conflict));
    }
    let outcome = store.swap(&record::epoch_key(&group), expected.as_ref(), encode(&record)?).await?;
    Ok(Input::SwapAnswered(match outcome {
        SwapOutcome::Done(version) => SwapAnswer::Done(version),
        SwapOutcome::Conflict => SwapAnswer::Conflict,
    }))
}

/// Lists the workers, each with a tag that changes when its record, or that of its process, does.
pub async fn list_workers(store: Arc<dyn Store>, group: String) -> Result<Input, Error> {
    let prefix = record::workers_prefix(&group);
    let workers = store.list(&prefix).await?;
    let processes = store.list(record::PROCESSES_PREFIX).await?;
    let mut listed = Vec::with_capacity(workers.len());
    for (key, mut tag) in workers {
        let Some(worker) = key.strip_prefix(&prefix) else { continue };
        for (process, seen) in &processes {
            let id = process.strip_prefix(record::PROCESSES_PREFIX).unwrap_or(process);
            if record::process_worker_id(id) == worker {
                tag.push(SEPARATOR);
                tag.push_str(seen);
            }
        }
        listed.push((worker.to_owned(), tag));
    }
    Ok(Input::Listed(Ok(listed)))
}

/// Reads the highest epoch number in any worker record.
pub async fn read_highest_epoch(store: Arc<dyn Store>, group: String) -> Result<Input, Error> {
    let mut highest = 0;
    let workers = store.list(&record::workers_prefix(&group)).await?;
    for (key, _) in workers.iter().take(WORKERS_READ_MAX) {
        if let Some((_, value)) = store.read(key).await?
            && let Ok(worker) = serde_json::from_slice::<WorkerRecord>(&value)
        {
            highest = highest.max(worker.epoch_number);
        }
    }
    Ok(Input::HighestEpoch(Ok(highest)))
}

/// Writes a worker's record.
pub async fn write_worker(
    store: Arc<dyn Store>,
    group: String,
    worker: WorkerRecord,
) -> Result<Input, Error> {
    store.put(&record::worker_key(&group, &worker.worker_id), encode(&worker)?).await?;
    Ok(Input::HeartbeatWritten(Ok(())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_of_two_records_comes_apart_again() {
        let version = Version("etag\n7\tw.1.abc\tother\n".into());
        let (group, process) = split_version(&version);
        assert_eq!(group.0, "etag\n7");
        assert_eq!(process, Some(("w.1.abc", Version("other\n".into()))));
        assert_eq!(split_version(&Version("12".into())), (Version("12".into()), None));
        assert_eq!(
            (record::process_worker_id("w.1.abc"), ProcessRecord::fenced_record("w.1.abc").id().as_str()),
            ("w.1", "w.1.abc")
        );
    }
}
