//! Ids of jobs and executions: the position of the job, and the fence of the execution.

use std::fmt;
use std::str::FromStr;

use baton_types::{MessageId, Offset, PartitionId, Timestamp};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Jobs of one chunk: enough that a batch changes few records, few enough that one job's change is a small write.
pub const CHUNK: u64 = 64;

/// The position of a job: its partition and offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobPosition {
    /// The partition of its queue.
    pub partition: PartitionId,
    /// Its offset there.
    pub offset: Offset,
}

impl JobPosition {
    pub(crate) const fn new(partition: PartitionId, offset: u64) -> Self {
        Self { partition, offset: Offset(offset) }
    }

    /// The chunk that holds the job's slot.
    pub(crate) const fn chunk(self) -> (PartitionId, u64) {
        (self.partition, self.offset.0 / CHUNK)
    }

    /// The index of the job's slot in its chunk.
    pub(crate) fn index(self) -> usize {
        usize::try_from(self.offset.0 % CHUNK).unwrap_or(0)
    }
}

/// A job's id: a version 7 UUID that holds when and where it was accepted. It is computed, never stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct JobId(MessageId);

impl JobId {
    /// The id of the job accepted at `created_at` at `position`.
    pub fn new(created_at: Timestamp, position: JobPosition) -> Self {
        Self(MessageId::new(created_at, position.partition, position.offset))
    }

    /// The job's position, if the id can be that of a job.
    pub fn position(self) -> Option<JobPosition> {
        self.0.position().map(|(partition, offset)| JobPosition { partition, offset })
    }

    /// A UUID as a job id. No such job need exist.
    pub(crate) const fn from_uuid(id: uuid::Uuid) -> Self {
        Self(MessageId::from_uuid(id))
    }

    /// The id as a UUID.
    pub const fn as_uuid(self) -> uuid::Uuid {
        self.0.as_uuid()
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for JobId {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

impl Serialize for JobId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.as_uuid().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for JobId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl serde::de::Visitor<'_> for Text {
            type Value = JobId;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a job id")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<JobId, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Text)
    }
}

/// One execution of a job: it has a fence of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExecutionId {
    /// The job.
    pub job: JobId,
    /// The fence that the worker must present.
    pub fence: u64,
}

impl fmt::Display for ExecutionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.job, self.fence)
    }
}

impl FromStr for ExecutionId {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = "an execution id is a job's id, a dot and a fence";
        let (job, fence) = text.split_once('.').ok_or(wrong)?;
        Ok(Self { job: job.parse().map_err(|_| wrong)?, fence: fence.parse().map_err(|_| wrong)? })
    }
}

impl Serialize for ExecutionId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A worker, from one registration to its end. A process that restarts registers as another worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(pub u64);

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "w-{:x}", self.0)
    }
}

impl FromStr for WorkerId {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.strip_prefix("w-").ok_or("a worker id begins with w-")?;
        u64::from_str_radix(digits, 16).map(Self).map_err(|_| "a worker id is w- and a number")
    }
}

impl Serialize for WorkerId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_as_they_are_written() {
        let job =
            JobId::new(Timestamp::from_micros(1_794_767_647_638_487), JobPosition::new(PartitionId(7), 130));
        assert_eq!(job.to_string().parse::<JobId>().unwrap(), job);
        assert_eq!(job.position().unwrap().chunk(), (PartitionId(7), 130 / CHUNK));
        let execution = ExecutionId { job, fence: 3 };
        assert_eq!(execution.to_string().parse::<ExecutionId>().unwrap(), execution);
        assert_eq!("w-1f".parse::<WorkerId>().unwrap(), WorkerId(31));
        assert!("1f".parse::<WorkerId>().is_err());
        let json = serde_json::to_string(&job).unwrap();
        assert_eq!(serde_json::from_str::<JobId>(&json).unwrap(), job);
    }
}
