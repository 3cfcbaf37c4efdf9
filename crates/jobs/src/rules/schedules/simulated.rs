//! One schedule for the simulation of a cluster, fired by the real rule, and by a broken variant in two commits.

use baton_store::{Tx, TxError, expiry};
use baton_types::Timestamp;

use crate::model::ids::JobPosition;
use crate::model::policy::Policy;
use crate::rules::queues;
use crate::rules::schedules::{FIRES, SCHEDULES, ScheduleSpec, firing, put};
use crate::storage::leader_term::Term;
use crate::storage::{Abort, Changes, JobsTx, Writes};

const ID: &str = "beat";
const SPEC: &str =
    r#"{"kind": "interval", "everyMs": 5000, "misfire": "all", "job": {"jobType": "t", "queue": "q"}}"#;

fn stopped(halt: Abort) -> TxError {
    match halt {
        Abort::Stop(stop) => stop,
        Abort::Refused(error) => panic!("{error}"),
    }
}

/// Creates the schedule and its queue.
pub(crate) fn begin(tx: &mut dyn Tx) -> Result<(), TxError> {
    queues::create(tx, "q")?.unwrap();
    let mut tx = JobsTx::new(tx, Policy::default());
    put(&mut tx, ID, &ScheduleSpec::parse(SPEC).unwrap(), None).map_err(stopped)?;
    tx.commit().map(drop)
}

/// The changes of a fire, if the term is valid.
fn decided(tx: &mut dyn Tx, term: &Term) -> Result<Option<(Vec<Timestamp>, Changes)>, TxError> {
    if !term.guard(tx)? {
        return Ok(None);
    }
    let mut tx = JobsTx::new(tx, Policy::default());
    let fired = firing::fire(&mut tx, ID).map_err(stopped)?;
    Ok(Some((fired, tx.into_changes()?)))
}

/// Fires. Returns the nominal times that got jobs.
pub(crate) fn fire(tx: &mut dyn Tx, term: &Term) -> Result<Vec<Timestamp>, TxError> {
    let Some((fired, changes)) = decided(tx, term)? else { return Ok(Vec::new()) };
    changes.write(tx)?;
    Ok(fired)
}

/// Enqueues the jobs of a fire and leaves the schedule for another commit.
pub(crate) fn fire_half(tx: &mut dyn Tx, term: &Term) -> Result<(Vec<Timestamp>, Writes), TxError> {
    let Some((fired, mut changes)) = decided(tx, term)? else { return Ok(Default::default()) };
    let rest = changes.withhold(&[SCHEDULES, FIRES]);
    changes.write(tx)?;
    Ok((fired, rest))
}

/// The second commit.
pub(crate) fn fire_rest(tx: &mut dyn Tx, term: &Term, rest: &Writes) -> Result<(), TxError> {
    if !term.guard(tx)? {
        return Ok(());
    }
    for (key, (value, expires_at)) in rest {
        let old = tx.record(key)?;
        match value {
            Some(value) => drop(expiry::put(tx, key, old.as_ref(), value.clone(), *expires_at)?),
            None => tx.remove_record(key),
        }
    }
    Ok(())
}

/// The nominal times of all jobs in the store, with repetitions.
pub(crate) fn made(tx: &mut dyn Tx) -> Result<Vec<Timestamp>, TxError> {
    let mut tx = JobsTx::new(tx, Policy::default());
    let found = queues::find(&mut tx, "q").map_err(stopped)?;
    let Some(partition) = found else { return Ok(Vec::new()) };
    let end = tx.next_position(partition).map_err(stopped)?.offset.0;
    let mut made = Vec::new();
    for offset in 0..end {
        let (spec, _) = tx.spec(JobPosition::new(partition, offset)).map_err(stopped)?;
        made.extend(spec.scheduled_for);
    }
    Ok(made)
}
