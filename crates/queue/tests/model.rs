//! The broker on each store against a small model that is obviously right.
//!
//! Thousands of random sequences of pushes, pops, acks in any order, failures, expiries, extensions and restarts
//! run on both. A pop may choose any partition that has work, so the model does not predict; it accepts or
//! objects. Deliberately broken brokers must be caught.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use baton_env::ManualClock;
use baton_queue::{
    AckItem, Broker, Claim, LeaseClaim, Options, PopRequest, PushBatch, Repeatable, Step, Subscription,
    Target, Transaction,
};
use baton_store::{IdempotencyKey, NewMessage, Store};
use baton_store_embedded::EmbeddedStore;
use baton_store_postgres::PostgresStore;
use baton_testing_postgres::Postgres;
use baton_types::wire::AckStatus;
use baton_types::{LeaseId, PartitionId, Timestamp};
use serde_json::json;

const LEASE: Duration = Duration::from_secs(10);
/// So few that a short sequence exhausts them.
const RETRY_LIMIT: u32 = 1;
/// Each step is a round trip or two, so there are fewer of them.
const POSTGRES_SEQUENCES: u64 = 30;

/// A small generator of numbers, the same for the same seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }
}

/// How a broker is broken, if it is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// A push is answered but not made.
    LosesAPush,
    /// An ack finishes everything before its message too.
    FinishesThePrefix,
    /// A lease is given up as soon as it is taken.
    ForgetsLeases,
    /// A failed message is treated as done.
    SwallowsFailures,
    /// Of the messages that failed in one call, only the first pays.
    ChargesTheFirst,
}

/// What should be true.
#[derive(Default)]
struct Model {
    /// Per partition the transaction ids, in order.
    log: BTreeMap<String, Vec<String>>,
    groups: BTreeMap<(String, String), Progress>,
    dead: BTreeSet<(String, String, usize)>,
    now: Duration,
}

#[derive(Default, Clone)]
struct Progress {
    finished: BTreeSet<usize>,
    lease: Option<(LeaseId, Duration, BTreeSet<usize>)>,
    retries: BTreeMap<usize, u32>,
}

impl Progress {
    fn live(&self, now: Duration) -> Option<&(LeaseId, Duration, BTreeSet<usize>)> {
        self.lease.as_ref().filter(|(_, until, _)| *until > now)
    }
}

impl Model {
    fn push(&mut self, partition: &str, id: &str) -> bool {
        let log = self.log.entry(partition.into()).or_default();
        let duplicate = log.iter().any(|other| other == id);
        if !duplicate {
            log.push(id.into());
        }
        duplicate
    }

    /// The messages that a pop of this partition has to return, in order.
    fn due(&self, partition: &str, group: &str, batch: usize) -> Vec<usize> {
        let progress = self.groups.get(&(partition.into(), group.into())).cloned().unwrap_or_default();
        if progress.live(self.now).is_some() {
            return Vec::new();
        }
        let len = self.log.get(partition).map_or(0, Vec::len);
        (0..len).filter(|index| !progress.finished.contains(index)).take(batch).collect()
    }

    fn claim(
        &mut self,
        claim: &Claim,
        group: &str,
        batch: usize,
        lease: Option<LeaseId>,
    ) -> Result<(), String> {
        let partition = &*claim.partition_name;
        let due = self.due(partition, group, batch);
        let log = &self.log[partition];
        let got: Vec<_> = claim.messages.iter().map(|message| message.transaction_text()).collect();
        let expected: Vec<_> = due.iter().map(|index| log[*index].clone()).collect();
        if got != expected {
            return Err(format!("{partition}/{group}: delivered {got:?}, expected {expected:?}"));
        }
        let progress = self.groups.entry((partition.into(), group.into())).or_default();
        match lease {
            Some(lease) => progress.lease = Some((lease, self.now + LEASE, due.into_iter().collect())),
            None => {
                progress.finished.extend(due);
                progress.lease = None;
            }
        }
        Ok(())
    }

    fn ack(
        &mut self,
        partition: &str,
        group: &str,
        items: &[(usize, AckStatus, Option<LeaseId>)],
        in_transaction: bool,
    ) -> Vec<bool> {
        let now = self.now;
        let progress = self.groups.entry((partition.into(), group.into())).or_default();
        let before = progress.clone();
        let is_live = before.live(now).is_some();
        let (mut verdicts, mut ends_lease) = (BTreeMap::<usize, AckStatus>::new(), false);
        let mut answers = Vec::new();
        for (index, status, lease) in items {
            let is_finished = before.finished.contains(index);
            let held = lease.is_none_or(|lease| {
                before.live(now).is_some_and(|(id, _, range)| {
                    *id == lease && *index <= range.last().copied().unwrap_or(0)
                })
            });
            let ok = match status {
                AckStatus::Completed if is_finished => !in_transaction,
                _ => held && !is_finished,
            };
            answers.push(ok);
            ends_lease |= ok && *status != AckStatus::Completed && (lease.is_some() || !is_live);
            if ok && !is_finished {
                let grave = |s: &AckStatus| match s {
                    AckStatus::Completed => 0,
                    AckStatus::Retry => 1,
                    AckStatus::Failed => 2,
                    AckStatus::Dlq => 3,
                };
                let entry = verdicts.entry(*index).or_insert(*status);
                if grave(status) > grave(entry) {
                    *entry = *status;
                }
            }
        }
        if verdicts.is_empty() || (in_transaction && answers.contains(&false)) {
            return answers;
        }
        let of =
            |wanted| verdicts.iter().filter(move |(_, s)| **s == wanted).map(|(i, _)| *i).collect::<Vec<_>>();
        let mut dead = of(AckStatus::Dlq);
        for failed in of(AckStatus::Failed) {
            let spent = progress.retries.entry(failed).or_default();
            if *spent < RETRY_LIMIT {
                *spent += 1;
            } else {
                dead.push(failed);
            }
        }
        progress.finished.extend(of(AckStatus::Completed));
        progress.finished.extend(&dead);
        let whole = progress
            .lease
            .as_ref()
            .is_some_and(|(_, _, range)| range.iter().all(|index| progress.finished.contains(index)));
        if ends_lease || whole {
            progress.lease = None;
        }
        self.dead.extend(dead.into_iter().map(|index| (partition.into(), group.into(), index)));
        answers
    }
}

/// Where a broker keeps everything.
enum Home {
    Directory(tempfile::TempDir),
    /// A schema of the PostgreSQL that the tests share.
    Schema(String),
}

/// A broker on a store whose clock stands still until told otherwise. Each sequence has a queue of its own.
struct Subject {
    home: Home,
    clock: Arc<ManualClock>,
    opened: Option<(Arc<dyn Store>, Broker)>,
}

impl Subject {
    async fn new(home: Home) -> Self {
        let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1_800_000_000_000_000)));
        let opened = Some(open(&home, &clock).await);
        Self { home, clock, opened }
    }

    async fn embedded() -> Self {
        // Memory, where there is any: what is tested here is not the disk.
        let memory = std::path::Path::new("/dev/shm");
        let directory = match memory.is_dir() {
            true => tempfile::tempdir_in(memory).unwrap(),
            false => tempfile::tempdir().unwrap(),
        };
        Self::new(Home::Directory(directory)).await
    }

    fn broker(&self) -> &Broker {
        &self.opened.as_ref().unwrap().1
    }

    async fn configure(&self, queue: &str) {
        let options = json!({"leaseTime": LEASE.as_secs(), "retryLimit": RETRY_LIMIT, "retryDelay": 0});
        self.broker().configure(queue, None, None, options.as_object().unwrap(), false).await.unwrap();
    }

    async fn restart(&mut self) {
        let (store, broker) = self.opened.take().unwrap();
        broker.shutdown().await;
        store.close().await.unwrap();
        drop((store, broker));
        self.opened = Some(open(&self.home, &self.clock).await);
    }
}

async fn open(home: &Home, clock: &Arc<ManualClock>) -> (Arc<dyn Store>, Broker) {
    let store: Arc<dyn Store> = match home {
        Home::Directory(directory) => {
            let options = baton_store_embedded::Options {
                clock: clock.clone(),
                min_free_disk: 0,
                ..baton_store_embedded::Options::new(directory.path())
            };
            Arc::new(EmbeddedStore::open(options).unwrap())
        }
        Home::Schema(schema) => {
            let options = baton_store_postgres::Options {
                schema: schema.clone(),
                clock: Some(clock.clone()),
                ..baton_store_postgres::Options::new(Postgres::shared().url())
            };
            Arc::new(PostgresStore::open(options).await.unwrap())
        }
    };
    let broker = Broker::start(store.clone(), Options::default());
    (store, broker)
}

/// A message someone was given: enough to ack it.
#[derive(Clone)]
struct Given {
    partition: PartitionId,
    name: String,
    group: String,
    id: String,
    index: usize,
    lease: LeaseId,
}

struct Run<'a> {
    subject: &'a mut Subject,
    queue: String,
    fault: Fault,
    model: Model,
    dice: Dice,
    given: Vec<Given>,
    pushed: u64,
}

impl Run<'_> {
    async fn step(&mut self) -> Result<(), String> {
        match self.dice.roll(100) {
            0..30 => self.push().await,
            30..60 => self.pop().await,
            60..80 => self.ack().await,
            80..85 => self.transaction().await,
            85..93 => {
                // Never a whole number of seconds in sum: a lease that ends at this very moment is a tie, and
                // the store's time runs a few microseconds ahead of a clock that stands still.
                let by = Duration::from_micros(self.dice.roll(12_000) * 1000 + 137);
                self.subject.clock.advance(by);
                self.model.now += by;
                Ok(())
            }
            93..99 => self.extend().await,
            _ => {
                if self.dice.roll(5) == 0 {
                    self.subject.restart().await;
                }
                Ok(())
            }
        }
    }

    fn partition(&mut self) -> String {
        format!("p{}", self.dice.roll(3))
    }

    fn group(&mut self) -> String {
        format!("g{}", self.dice.roll(2))
    }

    async fn push(&mut self) -> Result<(), String> {
        let (partition, count) = (self.partition(), 1 + self.dice.roll(4));
        let (mut batch, mut expected) = (PushBatch::default(), Vec::new());
        for _ in 0..count {
            let id = match self.dice.roll(8) {
                0 => format!("m{}", self.dice.roll(self.pushed + 1)),
                _ => {
                    self.pushed += 1;
                    format!("m{}", self.pushed)
                }
            };
            let message = NewMessage { transaction_id: Some(&id), payload: b"{}", ..NewMessage::default() };
            batch.add(&self.queue, &partition, &message).unwrap();
            expected.push(self.model.push(&partition, &id));
        }
        if self.fault == Fault::LosesAPush && self.dice.roll(10) == 0 {
            return Ok(());
        }
        let got: Vec<_> =
            self.subject.broker().push(batch).await.unwrap().iter().map(|p| p.duplicate).collect();
        if got != expected { Err(format!("duplicates {got:?}, expected {expected:?}")) } else { Ok(()) }
    }

    async fn pop(&mut self) -> Result<(), String> {
        let (group, batch) = (self.group(), 1 + self.dice.roll(5));
        let target = match self.dice.roll(2) {
            0 => Target::Queue(self.queue.clone()),
            _ => Target::Partition { queue: self.queue.clone(), partition: self.partition() },
        };
        let request = PopRequest {
            conflation: false,
            target: target.clone(),
            group: group.clone(),
            batch: u32::try_from(batch).unwrap(),
            partitions: 1 + u32::try_from(self.dice.roll(3)).unwrap(),
            auto_ack: self.dice.roll(8) == 0,
            wait: None,
            lease: None,
            subscription: Subscription::All,
            attempt: None,
        };
        let popped = self.subject.broker().pop(request).await.unwrap();
        let Some(popped) = popped else {
            let names: Vec<String> = match target {
                Target::Partition { partition, .. } => vec![partition],
                _ => self.model.log.keys().cloned().collect(),
            };
            let missed = names.iter().find(|name| !self.model.due(name, &group, 1).is_empty());
            return missed
                .map_or(Ok(()), |name| Err(format!("{name}/{group} has work but the pop was empty")));
        };
        let mut left = usize::try_from(batch).unwrap();
        for claim in &popped.claims {
            self.model.claim(claim, &group, left, popped.lease)?;
            left -= claim.messages.len();
            let Some(lease) = popped.lease else { continue };
            for message in &claim.messages {
                let name = claim.partition_name.to_string();
                let id = message.transaction_text();
                let index = self.model.log[&name].iter().position(|other| *other == id).unwrap();
                let group = group.clone();
                self.given.push(Given { partition: claim.partition, name, group, id, index, lease });
            }
        }
        if self.fault == Fault::ForgetsLeases
            && let Some(given) = self.given.last().cloned()
            && popped.lease == Some(given.lease)
        {
            self.send(&[(given, AckStatus::Retry, true)]).await;
        }
        Ok(())
    }

    /// Some acks of messages that were given out together.
    fn choose_acks(&mut self) -> Vec<(Given, AckStatus, bool)> {
        if self.given.is_empty() {
            return Vec::new();
        }
        let at = usize::try_from(self.dice.roll(self.given.len() as u64)).unwrap();
        let first = self.given[at].clone();
        let together: Vec<_> = self
            .given
            .iter()
            .filter(|g| g.lease == first.lease && g.name == first.name && g.group == first.group)
            .cloned()
            .collect();
        let mut items = Vec::new();
        for given in together {
            let status = match self.dice.roll(10) {
                0..6 => AckStatus::Completed,
                6..8 => AckStatus::Failed,
                8 => AckStatus::Retry,
                _ => AckStatus::Dlq,
            };
            if self.dice.roll(3) > 0 {
                items.push((given, status, self.dice.roll(6) > 0));
            }
        }
        items
    }

    fn told(items: &[(Given, AckStatus, bool)]) -> Vec<(usize, AckStatus, Option<LeaseId>)> {
        let told = |(given, status, fenced): &(Given, AckStatus, bool)| {
            (given.index, *status, fenced.then_some(given.lease))
        };
        items.iter().map(told).collect()
    }

    async fn ack(&mut self) -> Result<(), String> {
        let mut items = self.choose_acks();
        let Some((first, ..)) = items.first().cloned() else { return Ok(()) };
        let told = Self::told(&items);
        let expected = self.model.ack(&first.name, &first.group, &told, false);
        if self.fault == Fault::SwallowsFailures {
            items.iter_mut().for_each(|item| item.1 = AckStatus::Completed);
        }
        if self.fault == Fault::ChargesTheFirst {
            let failed = items.iter_mut().filter(|item| item.1 == AckStatus::Failed);
            failed.skip(1).for_each(|item| item.1 = AckStatus::Retry);
        }
        if self.fault == Fault::FinishesThePrefix {
            let last = items.iter().map(|item| item.0.index).max().unwrap_or(0);
            let (name, group, lease) = (first.name.clone(), first.group.clone(), first.lease);
            let before = self
                .given
                .iter()
                .filter(|g| g.name == name && g.group == group && g.lease == lease && g.index < last);
            items
                .extend(before.cloned().map(|given| (given, AckStatus::Completed, true)).collect::<Vec<_>>());
        }
        let got = self.send(&items).await;
        let got = &got[..expected.len()];
        if got != expected {
            Err(format!("acks {got:?}, expected {expected:?} for {told:?}"))
        } else {
            Ok(())
        }
    }

    /// Acks and pushes together, and again, and under an idempotency key.
    async fn transaction(&mut self) -> Result<(), String> {
        let (items, partition) = (self.choose_acks(), self.partition());
        let key = (self.dice.roll(2) == 0).then(|| {
            let key = IdempotencyKey::new(format!("{}-{}", self.queue, self.pushed), "transaction", b"");
            Repeatable { key, write: Arc::new(|_| b"answer".to_vec()) }
        });
        for is_repeated in [false, true] {
            self.pushed += 1;
            let id = format!("m{}", self.pushed);
            let mut batch = PushBatch::default();
            let message = NewMessage { transaction_id: Some(&id), payload: b"{}", ..NewMessage::default() };
            batch.add(&self.queue, &partition, &message).unwrap();
            let steps = items.iter().map(|item| Step::Ack(Self::item(item))).chain([Step::Push(batch)]);
            let transaction =
                Transaction { steps: steps.collect(), repeatable: key.clone(), ..Transaction::default() };
            let result = self.subject.broker().transaction(transaction).await.unwrap();
            if result.repeated {
                if !is_repeated || result.answer.as_deref() != Some(b"answer") {
                    return Err(format!("an answer that was not kept: {:?}", result.answer));
                }
                continue;
            }
            let done = match items.first().cloned() {
                Some((first, ..)) => {
                    let told = Self::told(&items);
                    !self.model.ack(&first.name, &first.group, &told, true).contains(&false)
                }
                None => true,
            };
            if done {
                self.model.push(&partition, &id);
            }
            let is_kept = is_repeated && key.is_some() && done;
            if done != result.error.is_none() || is_kept {
                return Err(format!("a transaction ended with {:?}, expected success {done}", result.error));
            }
        }
        Ok(())
    }

    fn item((given, status, fenced): &(Given, AckStatus, bool)) -> AckItem {
        AckItem {
            partition: Some(given.partition),
            transaction_id: given.id.clone(),
            group: given.group.clone(),
            lease: if *fenced { LeaseClaim::Held(given.lease) } else { LeaseClaim::None },
            status: *status,
            error: None,
        }
    }

    async fn send(&self, items: &[(Given, AckStatus, bool)]) -> Vec<bool> {
        let results = self.subject.broker().ack(items.iter().map(Self::item).collect()).await.unwrap();
        results.iter().map(|result| result.error.is_none()).collect()
    }

    async fn extend(&mut self) -> Result<(), String> {
        let Some(given) = self.given.last().cloned() else { return Ok(()) };
        let by = Duration::from_secs(1 + self.dice.roll(20));
        let (count, _) = self.subject.broker().extend(given.lease, by).await.unwrap();
        let (now, mut expected) = (self.model.now, 0);
        for progress in self.model.groups.values_mut() {
            if let Some((id, until, _)) = &mut progress.lease
                && *id == given.lease
                && *until > now
            {
                *until = (*until).max(now + by);
                expected += 1;
            }
        }
        if count != expected { Err(format!("extended {count}, expected {expected}")) } else { Ok(()) }
    }

    /// Everything that is not finished must still come, in order; dead letters are exactly those expected.
    async fn drain(&mut self) -> Result<(), String> {
        self.subject.clock.advance(Duration::from_secs(3600));
        self.model.now += Duration::from_secs(3600);
        for group in ["g0", "g1"] {
            loop {
                let request = PopRequest {
                    conflation: false,
                    target: Target::Queue(self.queue.clone()),
                    group: group.into(),
                    batch: 1000,
                    partitions: 1,
                    auto_ack: true,
                    wait: None,
                    lease: None,
                    subscription: Subscription::All,
                    attempt: None,
                };
                let Some(popped) = self.subject.broker().pop(request).await.unwrap() else { break };
                for claim in &popped.claims {
                    self.model.claim(claim, group, 1000, None)?;
                }
            }
            for partition in self.model.log.keys() {
                let left = self.model.due(partition, group, 1000);
                if !left.is_empty() {
                    return Err(format!("{partition}/{group}: never delivered {left:?}"));
                }
            }
        }
        let filter = baton_queue::DeadLetterFilter {
            queue: Some(self.queue.clone()),
            limit: usize::MAX,
            ..Default::default()
        };
        let letters = self.subject.broker().dead_letters(filter).await.unwrap().letters;
        let got: BTreeSet<_> = letters
            .iter()
            .map(|listed| {
                let key = &listed.letter.key;
                (listed.partition.to_string(), key.group.to_string(), usize::try_from(key.offset.0).unwrap())
            })
            .collect();
        if got != self.model.dead {
            return Err(format!("dead letters {got:?}, expected {:?}", self.model.dead));
        }
        Ok(())
    }
}

/// Runs one random sequence; says where broker and model part.
async fn sequence(subject: &mut Subject, seed: u64, steps: usize, fault: Fault) -> Result<(), String> {
    let queue = format!("q-{fault:?}-{seed}");
    subject.configure(&queue).await;
    let dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut run = Run { subject, queue, fault, model: Model::default(), dice, given: Vec::new(), pushed: 0 };
    for step in 0..steps {
        run.step().await.map_err(|problem| format!("seed {seed}, step {step}: {problem}"))?;
    }
    run.drain().await.map_err(|problem| format!("seed {seed}, at the end: {problem}"))
}

/// How many sequences, from `BATON_MODEL_SEQUENCES` for a longer run.
fn sequences() -> u64 {
    std::env::var("BATON_MODEL_SEQUENCES").ok().and_then(|n| n.parse().ok()).unwrap_or(2000)
}

/// Quarters, so that a test runner with several cores can use them.
async fn the_broker_agrees_with_the_model(quarter: usize) {
    let mut subject = Subject::embedded().await;
    for seed in (1..=sequences()).skip(quarter).step_by(4) {
        if let Err(problem) = sequence(&mut subject, seed, 40, Fault::None).await {
            panic!("{problem}");
        }
    }
}

#[tokio::test]
async fn the_broker_agrees_with_the_model_in_the_first_quarter() {
    the_broker_agrees_with_the_model(0).await;
}

#[tokio::test]
async fn the_broker_agrees_with_the_model_in_the_second_quarter() {
    the_broker_agrees_with_the_model(1).await;
}

#[tokio::test]
async fn the_broker_agrees_with_the_model_in_the_third_quarter() {
    the_broker_agrees_with_the_model(2).await;
}

#[tokio::test]
async fn the_broker_agrees_with_the_model_in_the_last_quarter() {
    the_broker_agrees_with_the_model(3).await;
}

#[tokio::test]
async fn the_broker_on_postgres_agrees_with_the_model() {
    let mut subject = Subject::new(Home::Schema(format!("model_{}", std::process::id()))).await;
    for seed in 1..=POSTGRES_SEQUENCES {
        if let Err(problem) = sequence(&mut subject, seed, 100, Fault::None).await {
            panic!("{problem}");
        }
    }
}

#[tokio::test]
async fn broken_brokers_are_caught() {
    let mut subject = Subject::embedded().await;
    let faults = [
        Fault::LosesAPush,
        Fault::FinishesThePrefix,
        Fault::ForgetsLeases,
        Fault::SwallowsFailures,
        Fault::ChargesTheFirst,
    ];
    for fault in faults {
        let mut caught = false;
        for seed in 1..=200 {
            caught = caught || sequence(&mut subject, seed, 100, fault).await.is_err();
        }
        assert!(caught, "{fault:?} was not noticed");
    }
}
