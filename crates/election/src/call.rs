//! The calls that participants make on a store, each with its answer as an input for the machine.
//!
//! A term that is held by the lease of a process stands in two records: who holds it, and whether that process lives.
//! Here both are read as one, whose version changes when either does, so that the machine need not know. Always: what
//! is held by a process is claimed only after that process's record was fenced, from the version that was seen to be
//! silent.

use std::sync::Arc;

use crate::machine::{Input, Swapped};
use crate::record::{self, Epoch, Process, Worker};
use crate::store::{Error, Store, Swap, Version};

/// Worker records that are read when the epoch record is missing.
const SURVEY_MAX: usize = 1000;

/// Separates the parts of a version of two records; none of them holds it.
const SEPARATOR: char = '\t';

/// The record of a group together with that of the process it is held by, which is `None` when it is gone.
pub fn joined(group: (Version, Epoch), process: Option<(Version, Process)>) -> (Version, Epoch) {
    let (version, mut epoch) = group;
    match (&epoch.process, process) {
        (Some(id), Some((seen, process))) if !process.fenced => {
            let version = format!("{}{SEPARATOR}{id}{SEPARATOR}{}", version.0, seen.0);
            epoch.epoch = epoch.epoch.max(process.epoch);
            (Version(version), epoch)
        }
        // Nobody holds it any more.
        (Some(_), _) => {
            epoch.released = true;
            (version, epoch)
        }
        (None, _) => (version, epoch),
    }
}

/// The version of the group's own record, and the process with the version of its record if there is one.
pub fn parted(version: &Version) -> (Version, Option<(&str, Version)>) {
    let mut parts = version.0.splitn(3, SEPARATOR);
    let group = Version(parts.next().unwrap_or_default().to_owned());
    let process = parts.next().zip(parts.next()).map(|(id, version)| (id, Version(version.to_owned())));
    (group, process)
}

/// What is written over the record of the process called `id`, so that it renews no more.
pub fn fence(id: &str) -> Process {
    let worker_id = record::worker_of_process(id).to_owned();
    let incarnation = id.rsplit_once('.').map_or("", |(_, incarnation)| incarnation).to_owned();
    Process { worker_id, incarnation, seq: u64::MAX, lease_ms: 0, renewed_at: 0, epoch: 0, fenced: true }
}

fn encode<T: serde::Serialize>(record: &T) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(record).map_err(|e| Error(e.to_string()))
}

fn decode<T: serde::de::DeserializeOwned>(what: &str, value: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(value).map_err(|e| Error(format!("{what} cannot be understood: {e}")))
}

/// The record of the process called `id`.
pub async fn read_process(store: &dyn Store, id: &str) -> Result<Option<(Version, Process)>, Error> {
    let found = store.read(&record::process_key(id)).await?;
    found.map(|(version, value)| Ok((version, decode("the record of a process", &value)?))).transpose()
}

/// Compares and sets the record of the process called `id`.
pub async fn swap_process(
    store: &dyn Store,
    id: &str,
    expected: Option<&Version>,
    process: &Process,
) -> Result<Swap, Error> {
    store.swap(&record::process_key(id), expected, encode(process)?).await
}

/// Reads who coordinates. What is held by the process called `own` is not looked up: it knows for itself.
pub async fn read(store: Arc<dyn Store>, group: String, own: Option<String>) -> Result<Input, Error> {
    let Some((version, value)) = store.read(&record::epoch_key(&group)).await? else {
        return Ok(Input::Read(Ok(None)));
    };
    let epoch: Epoch = decode("the epoch record", &value)?;
    let foreign = epoch.process.as_deref().filter(|id| !epoch.released && Some(*id) != own.as_deref());
    let found = match foreign {
        Some(id) => {
            let process = read_process(&*store, id).await?;
            joined((version, epoch), process)
        }
        None => (version, epoch),
    };
    Ok(Input::Read(Ok(Some(found))))
}

/// Compares and sets who coordinates.
pub async fn swap(
    store: Arc<dyn Store>,
    group: String,
    expected: Option<Version>,
    record: Epoch,
) -> Result<Input, Error> {
    let (expected, process) = match expected.as_ref().map(parted) {
        Some((version, process)) => (Some(version), process),
        None => (None, None),
    };
    // Whoever takes the term from a process ends that process's lease first; whoever leaves it there need not.
    if let Some((id, seen)) = process.filter(|(id, _)| record.process.as_deref() != Some(id))
        && swap_process(&*store, id, Some(&seen), &fence(id)).await? == Swap::Conflict
    {
        return Ok(Input::Swapped(Swapped::Conflict));
    }
    let outcome = store.swap(&record::epoch_key(&group), expected.as_ref(), encode(&record)?).await?;
    Ok(Input::Swapped(match outcome {
        Swap::Done(version) => Swapped::Done(version),
        Swap::Conflict => Swapped::Conflict,
    }))
}

/// Lists the workers, each with a mark that changes when its record, or that of its process, does.
pub async fn list(store: Arc<dyn Store>, group: String) -> Result<Input, Error> {
    let prefix = record::workers_prefix(&group);
    let workers = store.list(&prefix).await?;
    let processes = store.list(record::PROCESSES).await?;
    let mut listed = Vec::with_capacity(workers.len());
    for (key, mut mark) in workers {
        let Some(worker) = key.strip_prefix(&prefix) else { continue };
        for (process, seen) in &processes {
            let id = process.strip_prefix(record::PROCESSES).unwrap_or(process);
            if record::worker_of_process(id) == worker {
                mark.push(SEPARATOR);
                mark.push_str(seen);
            }
        }
        listed.push((worker.to_owned(), mark));
    }
    Ok(Input::Listed(Ok(listed)))
}

/// Reads the highest epoch number in any worker record.
pub async fn survey(store: Arc<dyn Store>, group: String) -> Result<Input, Error> {
    let mut highest = 0;
    let workers = store.list(&record::workers_prefix(&group)).await?;
    for (key, _) in workers.iter().take(SURVEY_MAX) {
        if let Some((_, value)) = store.read(key).await?
            && let Ok(worker) = serde_json::from_slice::<Worker>(&value)
        {
            highest = highest.max(worker.epoch_number);
        }
    }
    Ok(Input::Surveyed(Ok(highest)))
}

/// Writes a worker's record.
pub async fn beat(store: Arc<dyn Store>, group: String, worker: Worker) -> Result<Input, Error> {
    store.put(&record::worker_key(&group, &worker.worker_id), encode(&worker)?).await?;
    Ok(Input::Beat(Ok(())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_of_two_records_comes_apart_again() {
        let version = Version("etag\n7\tw.1.abc\tother\n".into());
        let (group, process) = parted(&version);
        assert_eq!(group.0, "etag\n7");
        assert_eq!(process, Some(("w.1.abc", Version("other\n".into()))));
        assert_eq!(parted(&Version("12".into())), (Version("12".into()), None));
        assert_eq!(
            (record::worker_of_process("w.1.abc"), fence("w.1.abc").id().as_str()),
            ("w.1", "w.1.abc")
        );
    }
}
