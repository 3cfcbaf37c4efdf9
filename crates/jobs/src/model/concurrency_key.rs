//! Concurrency keys: how many jobs of one key run, and which jobs wait for a permit.

use baton_store::Error as StoreError;
use baton_types::PartitionId;

use crate::model::codec::{Reader, Writer};
use crate::model::ids::JobPosition;
use crate::model::keys;
use crate::model::slot::Permit;
use crate::model::spec::Spec;

/// The stored state of a concurrency key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Key {
    /// How many jobs may run at once.
    pub limit: u32,
    /// How many jobs hold a permit.
    pub held: u32,
    /// The first and the last waiting job.
    pub wait_list: Option<(JobPosition, JobPosition)>,
}

impl Key {
    /// Whether no job holds a permit or waits for one, so that the key need not be stored.
    pub fn is_idle(&self) -> bool {
        self.held == 0 && self.wait_list.is_none()
    }

    pub(crate) fn encode(&self, out: &mut Writer) {
        out.number(self.limit.into());
        out.number(self.held.into());
        out.byte(u8::from(self.wait_list.is_some()));
        for position in self.wait_list.into_iter().flat_map(|(first, last)| [first, last]) {
            out.number(position.partition.0);
            out.number(position.offset.0);
        }
    }

    pub(crate) fn decode(from: &mut Reader<'_>) -> Result<Self, StoreError> {
        let (limit, held) = (from.small()?, from.small()?);
        let wait_list =
            if from.byte()? == 0 { None } else { Some((read_position(from)?, read_position(from)?)) };
        Ok(Self { limit, held, wait_list })
    }
}

fn read_position(from: &mut Reader<'_>) -> Result<JobPosition, StoreError> {
    let partition = PartitionId(from.number()?);
    Ok(JobPosition::new(partition, from.number()?))
}

/// The permit that a job's specification asks for, not yet acquired.
pub fn permit_of(spec: &Spec) -> Option<Permit> {
    let text = spec.concurrency_key.as_ref()?;
    Some(Permit {
        key: keys::permit_hash(text),
        limit: spec.concurrency_limit.unwrap_or(1),
        held: false,
        is_waiting: false,
        next: None,
    })
}
