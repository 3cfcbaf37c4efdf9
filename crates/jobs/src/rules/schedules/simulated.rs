//! One schedule for the simulation of a cluster, fired by the real rule, and by a broken variant in two commits.

use baton_store::{Tx, TxError, expiry};
use baton_types::Timestamp;

use crate::model::ids::Place;
use crate::model::policy::Policy;
use crate::rules::queues;
use crate::rules::schedules::{FIRES, SCHEDULES, ScheduleSpec, firing, put};
use crate::storage::leader_term::Term;
use crate::storage::{Book, Changes, Halt, Writes};

const ID: &str = "beat";
const SPEC: &str =
    r#"{"kind": "interval", "everyMs": 5000, "misfire": "all", "job": {"jobType": "t", "queue": "q"}}"#;

fn stopped(halt: Halt) -> TxError {
    match halt {
        Halt::Stop(stop) => stop,
        Halt::Refused(error) => panic!("{error}"),
    }
}

/// Creates the schedule and its queue.
pub(crate) fn begin(tx: &mut dyn Tx) -> Result<(), TxError> {
    queues::create(tx, "q")?.unwrap();
    let mut book = Book::new(tx, Policy::default());
    put(&mut book, ID, &ScheduleSpec::parse(SPEC).unwrap(), None).map_err(stopped)?;
    book.commit().map(drop)
}

/// The changes of a fire, if the term is valid.
fn decided(tx: &mut dyn Tx, term: &Term) -> Result<Option<(Vec<Timestamp>, Changes)>, TxError> {
    if !term.guard(tx)? {
        return Ok(None);
    }
    let mut book = Book::new(tx, Policy::default());
    let fired = firing::fire(&mut book, ID).map_err(stopped)?;
    Ok(Some((fired, book.close()?)))
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
    let mut book = Book::new(tx, Policy::default());
    let found = queues::find(&mut book, "q").map_err(stopped)?;
    let Some(partition) = found else { return Ok(Vec::new()) };
    let end = book.next_place(partition).map_err(stopped)?.offset.0;
    let mut made = Vec::new();
    for offset in 0..end {
        let (spec, _) = book.spec(Place::new(partition, offset)).map_err(stopped)?;
        made.extend(spec.scheduled_for);
    }
    Ok(made)
}
