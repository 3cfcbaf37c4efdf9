//! Random operations, compared with a simple model.
//!
//! Every step is a decision that returns what it did; the model applies the same and then both must answer the same
//! queries. Steps start without waiting, so that many share one commit and see each other's writes before they are
//! durable. The other variant waits for each step.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::time::Duration;

use baton_types::{GroupId, Offset, PartitionId, QueueId, Timestamp};
use bytes::Bytes;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use super::cursor::current_cursor;
use super::{Backend, Restart, TestStore, named_block, put_group};
use crate::{BoxFuture, Cursor, Durability, Error, GroupStart, OffsetRanges, Tx, TxError};

const PARTITIONS: [&str; 3] = ["p0", "p1", "p2"];
const GROUPS: [&str; 2] = ["g0", "g1"];

/// Positions in a partition are fractions of its content, because its size is known only when the step runs.
#[derive(Clone, Debug)]
enum ModelStep {
    Append {
        partition: usize,
        count: usize,
    },
    Trim {
        partition: usize,
        share: u8,
    },
    Delete {
        partition: usize,
        share: u8,
    },
    Subscribe {
        group: usize,
        start: Option<i64>,
    },
    Unsubscribe {
        group: usize,
    },
    Move {
        group: usize,
        partition: usize,
        share: u8,
        finished: Vec<(u8, u8)>,
        wait: u64,
    },
    Offer {
        group: usize,
        limit: usize,
    },
    Wait {
        seconds: u64,
    },
    Settle,
    Restart {
        crash: bool,
    },
    /// Runs the step, and then fails.
    Fail {
        after: Box<ModelStep>,
    },
}

fn step() -> impl Strategy<Value = ModelStep> {
    let whole = whole_step();
    prop_oneof![
        6 => whole_step(),
        1 => whole.prop_map(|step| ModelStep::Fail { after: Box::new(step) }),
    ]
}

fn whole_step() -> impl Strategy<Value = ModelStep> {
    let (partition, group) = (0..PARTITIONS.len(), 0..GROUPS.len());
    prop_oneof![
        8 => (partition.clone(), 1usize..5).prop_map(|(partition, count)| ModelStep::Append { partition, count }),
        3 => (partition.clone(), any::<u8>()).prop_map(|(partition, share)| ModelStep::Trim { partition, share }),
        2 => (partition.clone(), any::<u8>()).prop_map(|(partition, share)| ModelStep::Delete { partition, share }),
        2 => (group.clone(), prop::option::of(-20i64..20))
            .prop_map(|(group, start)| ModelStep::Subscribe { group, start }),
        1 => group.clone().prop_map(|group| ModelStep::Unsubscribe { group }),
        5 => (
            group.clone(),
            partition,
            any::<u8>(),
            prop::collection::vec((any::<u8>(), any::<u8>()), 0..3),
            prop_oneof![3 => Just(0u64), 1 => 1u64..20],
        )
            .prop_map(|(group, partition, share, finished, wait)| ModelStep::Move {
                group,
                partition,
                share,
                finished,
                wait
            }),
        4 => (group, 1usize..4).prop_map(|(group, limit)| ModelStep::Offer { group, limit }),
        3 => (1u64..10).prop_map(|seconds| ModelStep::Wait { seconds }),
        1 => Just(ModelStep::Settle),
        1 => any::<bool>().prop_map(|crash| ModelStep::Restart { crash }),
    ]
}

/// The result of a step.
#[derive(Debug)]
enum StepResult {
    Nothing,
    Appended { partition: PartitionId, first: Offset, created_at: Vec<Timestamp> },
    Trimmed { partition: PartitionId, start: Offset },
    Deleted { partition: PartitionId, offset: Offset },
    Subscribed { name: usize, group: GroupId, start: GroupStart },
    Unsubscribed { group: GroupId },
    Moved { group: GroupId, cursors: Vec<(PartitionId, Cursor)> },
    Offered { group: GroupId, limit: usize, now: Timestamp, cursors: Vec<(PartitionId, Cursor)> },
}

fn share_of(row: &crate::Partition, share: u8) -> Offset {
    row.start.plus(row.tail.since(row.start) * u64::from(share) / 255)
}

fn run_step(
    step: &ModelStep,
    tx: &mut dyn Tx,
    queue: QueueId,
    partitions: &[PartitionId],
) -> Result<StepResult, TxError> {
    let group_of =
        |tx: &mut dyn Tx, index: usize| Ok::<_, TxError>(tx.group(queue, GROUPS[index])?.map(|g| g.id));
    match step {
        ModelStep::Append { partition, count } => {
            let partition = partitions[*partition];
            let texts: Vec<String> = (0..*count).map(|index| format!("text {index}")).collect();
            let block = named_block(&texts.iter().map(String::as_str).collect::<Vec<_>>());
            let first = tx.append(partition, &block, Duration::from_secs(5)).first;
            let mut created_at = Vec::new();
            for index in 0..*count as u64 {
                created_at.push(tx.message(partition, first.plus(index))?.unwrap().created_at);
            }
            Ok(StepResult::Appended { partition, first, created_at })
        }
        ModelStep::Trim { partition, share } => {
            let partition = partitions[*partition];
            let start = share_of(&tx.partition_by_id(partition)?.unwrap(), *share);
            tx.trim(partition, start)?;
            Ok(StepResult::Trimmed { partition, start })
        }
        ModelStep::Delete { partition, share } => {
            let partition = partitions[*partition];
            let offset = share_of(&tx.partition_by_id(partition)?.unwrap(), *share);
            tx.delete_message(partition, offset);
            Ok(StepResult::Deleted { partition, offset })
        }
        ModelStep::Subscribe { group, start } => {
            let now = tx.now();
            let start = start.map_or(GroupStart::Oldest, |seconds| {
                GroupStart::At(Timestamp::from_micros(now.micros() + seconds * 1_000_000))
            });
            let id = put_group(tx, queue, GROUPS[*group], start);
            Ok(StepResult::Subscribed { name: *group, group: id, start })
        }
        ModelStep::Unsubscribe { group } => {
            let Some(group) = group_of(tx, *group)? else { return Ok(StepResult::Nothing) };
            tx.remove_group(group);
            Ok(StepResult::Unsubscribed { group })
        }
        ModelStep::Move { group, partition, share, finished, wait } => {
            let Some(group) = group_of(tx, *group)? else { return Ok(StepResult::Nothing) };
            let partition = partitions[*partition];
            let row = tx.partition_by_id(partition)?.unwrap();
            let next = share_of(&row, *share);
            let mut done = OffsetRanges::default();
            for (from, length) in finished {
                let from = share_of(&row, *from).max(next);
                done.insert_range(from, from.plus(u64::from(length % 4)).min(row.tail));
            }
            let cursor = Cursor {
                next,
                finished: Some(Box::new(done)).filter(|done| !done.is_empty()),
                available_at: if *wait > 0 { tx.now().after(Duration::from_secs(*wait)) } else { tx.now() },
                ..Cursor::default()
            };
            tx.put_cursor(group, partition, cursor.clone(), Durability::Now);
            Ok(StepResult::Moved { group, cursors: vec![(partition, cursor)] })
        }
        ModelStep::Offer { group, limit } => {
            let Some(group) = group_of(tx, *group)? else { return Ok(StepResult::Nothing) };
            let found = tx.ready_partitions(group, *limit)?;
            let mut cursors = Vec::new();
            for partition in found {
                cursors.push((partition, current_cursor(tx, group, partition)?));
            }
            for (partition, cursor) in cursors.clone() {
                tx.put_cursor(group, partition, cursor, Durability::Now);
            }
            Ok(StepResult::Offered { group, limit: *limit, now: tx.now(), cursors })
        }
        ModelStep::Fail { after } => {
            run_step(after, tx, queue, partitions)?;
            Err(Error::Busy(Duration::ZERO).into())
        }
        ModelStep::Wait { .. } | ModelStep::Settle | ModelStep::Restart { .. } => Ok(StepResult::Nothing),
    }
}

/// The whole visible state of the store, read in one decision.
#[derive(Debug)]
struct StoreState {
    now: Timestamp,
    kept: u64,
    rows: Vec<crate::Partition>,
    /// Per partition: times and the offsets found for them.
    moments: Vec<Vec<(Timestamp, Offset)>>,
    /// Backlog, next ready time, cursors.
    groups: BTreeMap<GroupId, (u64, Option<Timestamp>, Vec<Option<Cursor>>)>,
}

fn read_state(tx: &mut dyn Tx, queue: QueueId, partitions: &[PartitionId]) -> Result<StoreState, TxError> {
    let (now, kept, rows) = (tx.now(), tx.message_count(queue)?, tx.partitions(queue, None, 99)?);
    let mut moments = Vec::new();
    for row in &rows {
        let mut found = Vec::new();
        let steps = [-30i64, -12, -7, -3, -1, 0, 2].map(|seconds| now.micros() + seconds * 1_000_000);
        for at in steps.map(Timestamp::from_micros).into_iter().chain([row.first_at, row.last_at]) {
            found.push((at, tx.offset_at(row.id, at)?));
        }
        moments.push(found);
    }
    let mut groups = BTreeMap::new();
    for group in tx.groups(queue)? {
        let mut cursors = Vec::new();
        for partition in partitions {
            cursors.push(tx.cursor(group.id, *partition)?);
        }
        groups.insert(group.id, (tx.backlog(group.id)?, tx.next_ready_at(group.id)?, cursors));
    }
    Ok(StoreState { now, kept, rows, moments, groups })
}

#[derive(Default)]
struct LogModel {
    /// The time of every message ever appended.
    times: Vec<Timestamp>,
    start: u64,
    deleted: BTreeSet<u64>,
}

impl LogModel {
    fn tail(&self) -> u64 {
        self.times.len() as u64
    }

    fn time(&self, offset: u64) -> Timestamp {
        self.times[usize::try_from(offset).unwrap()]
    }

    fn offset_at(&self, at: Timestamp) -> u64 {
        (self.start..self.tail()).find(|offset| self.time(*offset) >= at).unwrap_or(self.tail())
    }

    fn kept(&self) -> BTreeSet<u64> {
        (self.start..self.tail()).filter(|offset| !self.deleted.contains(offset)).collect()
    }
}

struct Subscription {
    name: usize,
    start: GroupStart,
    cursors: BTreeMap<PartitionId, Cursor>,
}

#[derive(Default)]
struct Model {
    logs: BTreeMap<PartitionId, LogModel>,
    groups: BTreeMap<GroupId, Subscription>,
}

/// Bounds of a valid answer: at least, at most.
type Bounds<T> = (T, T);

impl Model {
    /// The unfinished messages. For a group that starts in the middle of a partition without a cursor the store may
    /// count all of them. Excludes deleted ones if `count`.
    fn unfinished(&self, group: &Subscription, partition: PartitionId, count: bool) -> Bounds<u64> {
        let log = &self.logs[&partition];
        let of = |from: u64, finished: Option<&OffsetRanges>| {
            (from.max(log.start)..log.tail())
                .filter(|o| !(count && log.deleted.contains(o)))
                .filter(|o| finished.is_none_or(|finished| !finished.contains(Offset(*o))))
                .count() as u64
        };
        if let Some(cursor) = group.cursors.get(&partition) {
            let exact = of(cursor.next.0, cursor.finished.as_deref());
            return (exact, exact);
        }
        match group.start {
            GroupStart::Oldest => (of(0, None), of(0, None)),
            GroupStart::At(at) => match of(log.offset_at(at), None) {
                0 if log.offset_at(at) == log.tail() => (0, 0),
                least => (least, of(0, None)),
            },
        }
    }

    fn apply(&mut self, did: &StepResult) -> Result<(), TestCaseError> {
        match did {
            StepResult::Nothing => {}
            StepResult::Appended { partition, first, created_at } => {
                let log = self.logs.get_mut(partition).unwrap();
                prop_assert_eq!(first.0, log.tail());
                prop_assert!(log.times.iter().chain(created_at).is_sorted());
                log.times.extend(created_at);
            }
            StepResult::Trimmed { partition, start } => {
                let log = self.logs.get_mut(partition).unwrap();
                log.start = log.start.max(start.0.min(log.tail()));
                log.deleted = log.deleted.split_off(&log.start);
            }
            StepResult::Deleted { partition, offset } => {
                let log = self.logs.get_mut(partition).unwrap();
                if (log.start..log.tail()).contains(&offset.0) {
                    log.deleted.insert(offset.0);
                }
            }
            StepResult::Subscribed { name, group, start } => {
                self.groups.retain(|_, old| old.name != *name);
                let fresh = Subscription { name: *name, start: *start, cursors: BTreeMap::new() };
                prop_assert!(self.groups.insert(*group, fresh).is_none());
            }
            StepResult::Unsubscribed { group } => drop(self.groups.remove(group)),
            StepResult::Moved { group, cursors } => self.put(*group, cursors),
            StepResult::Offered { group, limit, now, cursors } => {
                let subscription = &self.groups[group];
                let (mut must, mut may) = (BTreeSet::new(), BTreeSet::new());
                for partition in self.logs.keys() {
                    let waits = subscription.cursors.get(partition).is_some_and(|c| c.available_at > *now);
                    if !waits && self.unfinished(subscription, *partition, true).0 > 0 {
                        must.insert(*partition);
                    }
                    if !waits && self.unfinished(subscription, *partition, false).1 > 0 {
                        may.insert(*partition);
                    }
                }
                let offered: BTreeSet<_> = cursors.iter().map(|(partition, _)| *partition).collect();
                prop_assert_eq!(offered.len(), cursors.len(), "offered twice");
                prop_assert!(offered.is_subset(&may), "{:?} beyond {:?}", offered, may);
                let missing = must.difference(&offered).count();
                prop_assert!(
                    offered.len() == *limit || missing == 0,
                    "{:?} lacks some of {:?}",
                    offered,
                    must
                );
                self.put(*group, cursors);
            }
        }
        Ok(())
    }

    fn put(&mut self, group: GroupId, cursors: &[(PartitionId, Cursor)]) {
        self.groups.get_mut(&group).unwrap().cursors.extend(cursors.iter().cloned());
    }

    fn compare(&self, told: &StoreState) -> Result<(), TestCaseError> {
        let kept: usize = self.logs.values().map(|log| log.kept().len()).sum();
        prop_assert_eq!(told.kept, kept as u64);
        for ((row, moments), (id, log)) in told.rows.iter().zip(&told.moments).zip(&self.logs) {
            prop_assert_eq!((row.id, row.start.0, row.tail.0), (*id, log.start, log.tail()));
            let deleted: BTreeSet<u64> =
                row.deleted.ranges().iter().flat_map(|(from, to)| *from..*to).collect();
            prop_assert_eq!(&deleted, &log.deleted);
            if let Some(newest) = log.times.last() {
                prop_assert_eq!(row.last_at, *newest);
            }
            if log.start < log.tail() {
                prop_assert!(row.first_at <= log.time(log.start));
            }
            for (at, found) in moments {
                prop_assert_eq!(
                    found.0,
                    log.offset_at(*at),
                    "at {} of {:?} from {}",
                    at,
                    &log.times,
                    log.start
                );
            }
        }
        prop_assert_eq!(told.groups.keys().collect::<Vec<_>>(), self.groups.keys().collect::<Vec<_>>());
        for (id, (backlog, next, cursors)) in &told.groups {
            let group = &self.groups[id];
            let bounds = self.logs.keys().map(|p| self.unfinished(group, *p, true));
            let (least, most) = bounds.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            prop_assert!((least..=most).contains(backlog), "backlog {} not in {}..={}", backlog, least, most);
            let soonest = |deleted_too: bool| {
                let waiting =
                    group.cursors.iter().filter(|(p, _)| self.unfinished(group, **p, !deleted_too).0 > 0);
                waiting.map(|(_, c)| c.available_at).filter(|at| *at > told.now).min()
            };
            prop_assert!(
                [soonest(true), soonest(false)].contains(next),
                "{:?}, not {:?}",
                next,
                soonest(false)
            );
            for (partition, cursor) in self.logs.keys().zip(cursors) {
                prop_assert_eq!(cursor.as_ref(), group.cursors.get(partition));
            }
        }
        Ok(())
    }
}

/// Steps in flight.
type Pending =
    Vec<(BoxFuture<'static, Result<StepResult, Error>>, BoxFuture<'static, Result<StoreState, Error>>)>;

async fn settle(pending: &mut Pending, model: &mut Model) -> Result<(), TestCaseError> {
    for (did, told) in pending.drain(..) {
        let did = did.await.or_else(|error| match error {
            Error::Busy(_) => Ok(StepResult::Nothing),
            error => Err(error),
        });
        model.apply(&did.unwrap())?;
        model.compare(&told.await.unwrap())?;
    }
    Ok(())
}

async fn run_steps<B: Backend>(steps: Vec<ModelStep>, wait_for_each: bool) -> Result<(), TestCaseError> {
    let mut bench = TestStore::<B>::new().await;
    let queue = bench.queue("q").await;
    let (mut model, mut pending) = (Model::default(), Pending::new());
    let mut partitions = Vec::new();
    for name in PARTITIONS {
        let id = bench.partition(queue, name).await;
        model.logs.insert(id, LogModel::default());
        partitions.push(id);
    }
    // Several servers need not assign numbers in order.
    partitions.sort_unstable();
    for step in steps {
        match &step {
            ModelStep::Wait { seconds } => bench.clock.advance(Duration::from_secs(*seconds)),
            ModelStep::Settle => settle(&mut pending, &mut model).await?,
            ModelStep::Restart { crash } => {
                settle(&mut pending, &mut model).await?;
                bench.restart(if *crash { Restart::Crash } else { Restart::Close }).await;
            }
            _ => {}
        }
        let (all, also) = (partitions.clone(), partitions.clone());
        let mut did = bench.submit(move |tx| run_step(&step, tx, queue, &all));
        if wait_for_each {
            let done = did.await;
            did = Box::pin(async { done });
        }
        pending.push((did, bench.submit(move |tx| read_state(tx, queue, &also))));
        if wait_for_each {
            settle(&mut pending, &mut model).await?;
        }
    }
    settle(&mut pending, &mut model).await?;
    for (partition, log) in &model.logs {
        let read = bench.messages(*partition, log.start, log.tail()).await;
        let told: Vec<_> = read.iter().map(|m| (m.offset.0, m.created_at)).collect();
        let expected: Vec<_> = (log.start..log.tail()).map(|offset| (offset, log.time(offset))).collect();
        prop_assert_eq!(told, expected);
    }
    Ok(())
}

/// Runs a property test inside the runtime of the test.
async fn check<S, F>(cases: u32, strategy: S, property: impl Fn(S::Value) -> F + Send + 'static)
where
    S: Strategy + Send + 'static,
    F: Future<Output = Result<(), TestCaseError>>,
{
    let runtime = tokio::runtime::Handle::current();
    let checked = tokio::task::spawn_blocking(move || {
        let config = Config { cases, max_shrink_iters: 200, failure_persistence: None, ..Config::default() };
        let outcome = TestRunner::new(config).run(&strategy, |value| runtime.block_on(property(value)));
        outcome.map_err(|failure| failure.to_string())
    });
    if let Err(failure) = checked.await.unwrap() {
        panic!("{failure}");
    }
}

pub async fn random_work_agrees_with_a_plain_model<B: Backend>() {
    check(60, prop::collection::vec(step(), 1..80), |steps| run_steps::<B>(steps, false)).await;
}

pub async fn random_work_that_is_waited_for_agrees_with_a_plain_model<B: Backend>() {
    check(20, prop::collection::vec(step(), 1..60), |steps| run_steps::<B>(steps, true)).await;
}

/// A write or a removal of a key, or a restart.
type Touch = (u8, Option<u8>, Option<bool>);

async fn touch<B: Backend>(touches: Vec<Touch>) -> Result<(), TestCaseError> {
    let mut bench = TestStore::<B>::new().await;
    let (mut model, mut pending) = (BTreeMap::<String, u8>::new(), Vec::new());
    for (key, value, restart) in touches {
        if key % 3 == 0 || restart.is_some() {
            for (found, expected) in pending.drain(..) {
                compare_scans(found, expected).await?;
            }
        }
        if let Some(crash) = restart.filter(|_| key % 5 == 0) {
            bench.restart(if crash { Restart::Crash } else { Restart::Close }).await;
        }
        let key = format!("{:02}", key % 24);
        match value {
            Some(value) => drop(model.insert(key.clone(), value)),
            None => drop(model.remove(&key)),
        }
        let (prefix, after, limit) = (key[..1].to_owned(), format!("0{}", key.len()), 1 + key.len() * 2);
        let expected: Vec<_> = model
            .iter()
            .filter(|(key, _)| key.starts_with(&prefix) && **key > after)
            .take(limit)
            .map(|(key, value)| (key.clone(), vec![*value]))
            .collect();
        if key.ends_with('7') {
            let undone = key.clone();
            drop(bench.submit(move |tx| -> Result<(), TxError> {
                tx.put_record(&undone, "undone".into(), None)?;
                tx.remove_record("01");
                Err(Error::Busy(Duration::ZERO).into())
            }));
        }
        let scan = bench.submit(move |tx| {
            match value {
                Some(value) => drop(tx.put_record(&key, Bytes::copy_from_slice(&[value]), None)?),
                None => tx.remove_record(&key),
            }
            let found = tx.records(&prefix, Some(&after), limit)?;
            Ok(found.into_iter().map(|(key, record)| (key, record.value.to_vec())).collect::<Vec<_>>())
        });
        pending.push((scan, expected));
    }
    for (found, expected) in pending {
        compare_scans(found, expected).await?;
    }
    Ok(())
}

type Rows = Vec<(String, Vec<u8>)>;

async fn compare_scans(
    found: impl Future<Output = Result<Rows, Error>>,
    expected: Rows,
) -> Result<(), TestCaseError> {
    prop_assert_eq!(found.await.unwrap(), expected);
    Ok(())
}

pub async fn random_records_agree_with_a_plain_model<B: Backend>() {
    let touches =
        (any::<u8>(), prop::option::weighted(0.7, any::<u8>()), prop::option::weighted(0.3, any::<bool>()));
    check(30, prop::collection::vec(touches, 1..120), touch::<B>).await;
}
