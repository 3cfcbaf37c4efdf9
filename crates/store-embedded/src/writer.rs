//! Deciding: runs operations against memory and gathers what they change into groups.
//!
//! Whoever decides holds the writer: the deciding thread, or in calm times a caller on its own thread (`calm`).
//! While the committer writes one group, the next one fills; when it comes back, that one is handed over. A small group
//! is committed by whoever has decided it, while the disk is quick. A caller that commits decides what its group has led
//! to while that is on its way to disk. An operation is answered when its group is on disk. One that wrote nothing it must
//! keep is answered as soon as what it has read is on disk, which is often at once.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use baton_env::Clock;
use baton_store::{Error, Event, Operation, Segment, TxError};
use baton_types::{GroupId, Offset, PartitionId, Timestamp};
use fjall::{Keyspace, UserKey, UserValue};
use rustc_hash::FxHashSet;
use tokio::sync::mpsc::Receiver;

use crate::calm::Calm;
use crate::cold::Overlay;
use crate::committer;
use crate::courtesy::Courtesy;
use crate::filling::Filling;
use crate::hot::Hot;
use crate::leftovers::Leftovers;
use crate::log::{Place, Segments};
use crate::messages::Stored;
use crate::reclaimer::{Move, Moved, Reclaimer};
use crate::remembered::{Packed, Remembered};
use crate::shared::Shared;
use crate::tables::{COUNTERS_KEY, Counters, SEGMENT_KEY_BYTES, number_key, pair_key};
use crate::tails::Tails;
use crate::tx::EmbeddedTx;

/// A group is closed at this many operations, so that the first of them does not wait for ever.
const GROUP_OPERATIONS_MAX: u64 = 4096;
/// A group is closed at this many bytes of messages, so that one commit stays a fraction of a second.
const GROUP_BYTES_MAX: usize = 16 << 20;
/// With this many bytes of messages a group is well worth a sync of its own: it goes to an idle committer at
/// once, so that writing it and deciding what else has arrived overlap.
const GROUP_BYTES_ENOUGH: usize = 1 << 20;
/// A group that no more operations than this wait for, a push and the pop that it wakes, is alone. While all are, it is calm,
/// and whoever decides commits: waking the committing thread takes longer than it saves.
const ALONE: usize = 2;
/// A group of up to so many bytes is committed by the deciding thread while commits are quick: the next group could not be
/// decided meanwhile, but nobody has to be woken, and what arrives is decided and answered by the dozen.
const GROUP_BYTES_SMALL: usize = 64 << 10;
/// A caller that commits decides what its decision has led to (a push wakes a pop of each group that waits), up to this
/// many operations, so that whoever is woken cannot keep it by waking others.
const FOLLOWERS_MAX: usize = 64;
/// Writes that nobody waits for, such as leases, go along with the next sync, or alone after this long.
const LINGER: Duration = Duration::from_millis(100);
/// A commit that moves the tails of so many partitions, and changes nothing else of them, logs them together instead
/// of writing a row of each.
const TAILS_LOGGED_FROM: usize = 4;

/// What reaches the deciding thread.
pub enum Input {
    Operation(Box<dyn Operation>),
    /// Write segments again at the end of the log.
    Move(Move),
    /// Finish everything and stop.
    Close,
}

/// One key and what is to stand there.
pub struct Write {
    pub table: Keyspace,
    pub key: UserKey,
    pub value: Option<UserValue>,
}

impl Write {
    pub fn bytes_len(&self) -> u64 {
        (self.key.len() + self.value.as_ref().map_or(0, |value| value.len())) as u64
    }
}

/// What one commit writes, and who waits for it.
#[derive(Default)]
pub struct Group {
    pub seq: u64,
    /// Which commit it is since the directory was created.
    pub number: u64,
    /// Whether anyone is answered only after a sync.
    pub sync: bool,
    pub writes: Vec<Write>,
    /// Transaction ids to remember.
    pub ids: Vec<Packed>,
    pub segments: Segments,
    /// Where segments were that are needed no more.
    pub given_up: Vec<Place>,
    pub waiting: Vec<Box<dyn Operation>>,
    pub operations: u64,
}

/// The group that is filling, and everything that decisions see.
pub struct Writer {
    pub shared: Arc<Shared>,
    pub hot: Hot,
    pub counters: Counters,
    pub remembered: Remembered,
    pub records: Overlay,
    pub letters: Overlay,
    pub letter_times: Overlay,
    pub tails: Tails,
    pub filling: Filling,
    /// Segments of groups that the engine has not been told of, each by partition and offset.
    pub in_flight: VecDeque<(u64, Arc<Vec<Segment>>)>,
    /// Some of them that are to be removed; where they are is known when the engine is told.
    pub removed_in_flight: Vec<[u8; SEGMENT_KEY_BYTES]>,
    /// Segments that are to be written again, those of them that are still needed by then.
    pub moved: Vec<Moved>,
    /// Partitions of which something has changed, other than that messages were appended.
    pub dirty_partitions: FxHashSet<PartitionId>,
    /// Partitions to which the group that is handed over appends, in order.
    appended: Vec<PartitionId>,
    pub dirty_cursors: FxHashSet<(GroupId, PartitionId)>,
    /// What decisions have led to and nobody was told of yet.
    pub events: Vec<Event>,
    /// Whether a decision failed after its first write. The filling group is undone before it is committed.
    pub half_decided: bool,
    /// Operations that arrived after that; they run after the undo.
    pub postponed: Vec<Box<dyn Operation>>,
    pub group: Group,
    pub group_bytes: usize,
    /// When the group began to fill.
    group_since: Timestamp,
    /// The last group of operations that changed a queue or a group, or created a partition.
    pub structure_changed_in: u64,
    pub leftovers: Leftovers,
    /// When the next sweep may begin, after one that could not read what it needs.
    pub sweep_after: Duration,
    pub last_now: Timestamp,
    pub tokens: u64,
    calm: Calm,
    courtesy: Courtesy,
    /// Whether to finish what was taken in, and stop.
    closing: bool,
    intake: Receiver<Input>,
    pub clock: Arc<dyn Clock>,
    committer: SyncSender<Group>,
    committing: bool,
    reclaimer: Reclaimer,
}

/// The deciding thread: works whenever it is unparked, until told to close.
pub fn run(writer: &Mutex<Writer>) {
    // A writer in which somebody panicked may have made half a decision.
    while let Ok(mut held) = writer.lock() {
        let goes_on = held.work();
        drop(held);
        if !goes_on {
            return;
        }
        std::thread::park();
    }
}

impl Writer {
    #[expect(clippy::too_many_arguments, reason = "everything that was loaded from disk")]
    pub fn new(
        shared: Arc<Shared>,
        intake: Receiver<Input>,
        clock: Arc<dyn Clock>,
        committer: SyncSender<Group>,
        reclaimer: Reclaimer,
        hot: Hot,
        tails: Tails,
        counters: Counters,
        remembered: Remembered,
        leftovers: Leftovers,
    ) -> Self {
        let last_now = counters.now;
        Self {
            shared,
            hot,
            counters,
            remembered,
            records: Overlay::default(),
            letters: Overlay::default(),
            letter_times: Overlay::default(),
            tails,
            filling: Filling::default(),
            in_flight: VecDeque::new(),
            removed_in_flight: Vec::new(),
            moved: Vec::new(),
            dirty_partitions: FxHashSet::default(),
            appended: Vec::new(),
            dirty_cursors: FxHashSet::default(),
            events: Vec::new(),
            half_decided: false,
            postponed: Vec::new(),
            group: Group { seq: 1, ..Group::default() },
            group_bytes: 0,
            group_since: last_now,
            structure_changed_in: 0,
            leftovers,
            sweep_after: Duration::ZERO,
            last_now,
            tokens: 0,
            calm: Calm::default(),
            courtesy: Courtesy::default(),
            closing: false,
            intake,
            clock,
            committer,
            committing: false,
            reclaimer,
        }
    }

    /// Decides an operation for its caller, on the caller's thread, and what it leads to at once: a push wakes
    /// pops. Gives it back where the deciding thread is in the middle of something, or does better.
    pub fn decide_here(&mut self, operation: Box<dyn Operation>) -> Result<(), Box<dyn Operation>> {
        // Whatever was taken in earlier is decided earlier.
        if !self.calm.holds() || self.committing || !self.intake.is_empty() {
            return Err(operation);
        }
        self.run(operation);
        let mut followers = FOLLOWERS_MAX;
        loop {
            if !self.group.sync {
                self.decide_followers(&mut followers);
            }
            if !self.group.sync {
                break;
            }
            self.calm.used();
            if let Some(group) = self.close_group() {
                self.commit_here(group, &mut followers);
            }
        }
        self.tell_calm();
        Ok(())
    }

    /// Whether there is something for the deciding thread to do.
    pub fn has_work(&self) -> bool {
        self.closing || !self.intake.is_empty() || self.may_sweep()
    }

    /// Decides what has been taken in; tells whether to go on when there is more.
    fn work(&mut self) -> bool {
        while !self.closing {
            self.look_at_committer();
            match self.intake.try_recv() {
                Ok(input) => self.take(input),
                Err(_) if self.may_sweep() && !self.committing => self.sweep(),
                Err(_) => {
                    if self.group.sync || self.has_lingered() {
                        self.hand_over_tested();
                    }
                    return true;
                }
            }
            if self.is_full() {
                self.shared.wait_idle();
                self.look_at_committer();
            }
            if self.group_bytes >= GROUP_BYTES_ENOUGH || self.is_full() {
                self.hand_over_tested();
            }
        }
        self.close();
        false
    }

    /// Hands over a group that went through the deciding thread, which tells how calm it is.
    fn hand_over_tested(&mut self) {
        if self.group.sync && !self.committing {
            self.gather();
            self.calm.tested(self.group.waiting.len() <= ALONE);
            self.tell_calm();
        }
        self.hand_over();
    }

    /// Lets those go first who have something for a group that this thread is about to commit.
    fn gather(&mut self) {
        if !self.calm.holds() && self.commits_itself() {
            self.courtesy.step_aside(|| self.clock.elapsed());
            while self.commits_itself()
                && let Ok(input) = self.intake.try_recv()
            {
                self.take(input);
            }
        }
    }

    /// Whether the deciding thread commits the group that is filling.
    fn commits_itself(&self) -> bool {
        self.group_bytes <= GROUP_BYTES_SMALL && !self.is_full() && self.shared.context.commits_are_quick()
    }

    fn tell_calm(&self) {
        self.shared.set_calm(self.calm.holds());
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Operation(operation) => self.decide(operation),
            Input::Move(Move { segments, done }) => {
                self.group_bytes += segments.iter().map(|moved| moved.entry.len()).sum::<usize>();
                self.moved.extend(segments);
                self.group.sync = true;
                self.group.waiting.push(done);
            }
            Input::Close => self.closing = true,
        }
    }

    fn decide(&mut self, operation: Box<dyn Operation>) {
        self.run(operation);
        self.tell_events();
    }

    fn tell_events(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        events.drain(..).for_each(|event| self.shared.context.notify(event));
        self.events = events;
    }

    /// Decides an operation; what it leads to is told later.
    pub fn run(&mut self, mut operation: Box<dyn Operation>) {
        if let Some(refusal) = self.shared.refusal() {
            return operation.finish(Err(refusal));
        }
        self.group.operations += 1;
        if self.half_decided {
            return self.postponed.push(operation);
        }
        self.last_now = self.shared.time.now().max(Timestamp::from_micros(self.last_now.micros() + 1));
        self.shared.context.set_now(self.last_now);
        let events = self.events.len();
        let mut tx = EmbeddedTx::new(self);
        let outcome = catch_unwind(AssertUnwindSafe(|| operation.apply(&mut tx)));
        let (wrote, wrote_now, gate) = (tx.wrote, tx.wrote_now, tx.gate);
        let panicked = outcome.is_err();
        let error = match outcome {
            Ok(Ok(())) if wrote_now || gate >= self.group.seq => {
                self.group.sync = true;
                return self.group.waiting.push(operation);
            }
            Ok(Ok(())) => return self.shared.finish_when_durable(gate, operation),
            Ok(Err(TxError::Failed(error))) => error,
            Ok(Err(TxError::RowsMissing)) => Error::Closed("a row is missing in memory".into()),
            Err(_) => Error::Closed("a decision has panicked".into()),
        };
        if wrote || panicked {
            tracing::error!(%error, "a decision failed after its first write and is undone");
            self.half_decided = true;
            self.events.truncate(events);
            self.shared.context.count_undone();
            // So that the group is closed, and with that undone, as soon as no other commit is under way.
            self.group.sync = true;
        }
        operation.finish(Err(error));
    }

    fn is_full(&self) -> bool {
        self.group.operations >= GROUP_OPERATIONS_MAX || self.group_bytes >= GROUP_BYTES_MAX
    }

    /// Whether writes that nobody waits for have waited long enough for a sync to go along with.
    fn has_lingered(&self) -> bool {
        self.last_now.since(self.group_since) > LINGER
    }

    /// Notices when the committer has come back.
    fn look_at_committer(&mut self) {
        if self.committing && self.shared.is_idle() {
            self.committing = false;
            self.after_commit();
        }
    }

    fn after_commit(&mut self) {
        self.forget_told();
        self.reclaimer.look(&self.shared, !self.leftovers.is_empty());
    }

    /// Commits the filling group or gives it to the committer, if that is free and there is something to write.
    pub fn hand_over(&mut self) {
        if self.committing {
            return;
        }
        let commits_itself = self.commits_itself();
        let Some(group) = self.close_group() else { return };
        if self.calm.holds() {
            return self.commit_here(group, &mut 0);
        }
        if commits_itself {
            return self.commit_at_once(group);
        }
        self.committing = true;
        self.shared.set_idle(false);
        if let Err(refused) = self.committer.send(group) {
            let ended = Error::Closed("the committing thread has ended".into());
            self.shared.fail(&ended);
            for operation in refused.0.waiting {
                operation.finish(Err(ended.clone()));
            }
        }
    }

    /// Ends the filling group and begins the next one; nothing if there is nothing to write. No other commit is under way.
    fn close_group(&mut self) -> Option<Group> {
        while self.half_decided {
            self.undo();
        }
        self.remove_arrived();
        self.write_segments();
        self.write_rows();
        let nothing = self.group.writes.is_empty() && self.group.segments.index.is_empty();
        if nothing && self.group.waiting.is_empty() {
            self.shared.context.count_operations(std::mem::take(&mut self.group.operations));
            return None;
        }
        self.counters.now = self.last_now;
        self.counters.commits += 1;
        self.group.number = self.counters.commits;
        if self.group.sync {
            self.counters.synced = self.counters.commits;
        }
        let shared = self.shared.clone();
        self.put(&shared.tables.meta, COUNTERS_KEY, self.counters.value());
        let next = Group { seq: self.group.seq + 1, ..Group::default() };
        let group = std::mem::replace(&mut self.group, next);
        self.group_bytes = 0;
        self.group_since = self.last_now;
        Some(group)
    }

    /// Commits a group on this thread, and does nothing else meanwhile.
    fn commit_at_once(&mut self, group: Group) {
        let gives_up = !group.given_up.is_empty();
        committer::commit(&self.shared, group).answer();
        self.tell_engine(gives_up);
    }

    /// Commits a group on this thread. While it is on its way to disk, up to so many of those that it has led to are
    /// decided, answers are prepared, and the engine is told of earlier commits: the processor has nothing better to do.
    fn commit_here(&mut self, group: Group, followers: &mut usize) {
        let (shared, gives_up) = (self.shared.clone(), !group.given_up.is_empty());
        let mut begun = committer::begin(&shared, group);
        if begun.start(&shared) {
            self.decide_followers(followers);
            begun.prepare(&shared);
        }
        self.tell_engine(false);
        let mut committed = begun.complete(&shared);
        if committed.answer_led_to() {
            self.courtesy.step_aside(|| self.clock.elapsed());
        }
        committed.answer();
        if gives_up {
            self.tell_engine(true);
        }
    }

    /// Tells the engine of commits, if they are many or it is to be `at_once`.
    fn tell_engine(&mut self, at_once: bool) {
        if self.shared.tell_engine_of_many(at_once) {
            self.after_commit();
        }
    }

    /// Tells what has happened, and decides up to so many of those who have come, for that or otherwise.
    fn decide_followers(&mut self, most: &mut usize) {
        self.tell_events();
        while *most > 0
            && self.group_bytes < GROUP_BYTES_ENOUGH
            && let Ok(input) = self.intake.try_recv()
        {
            *most -= 1;
            self.take(input);
        }
    }

    fn write_segments(&mut self) {
        let shared = self.shared.clone();
        let (segments, stored) = self.filling.seal();
        self.group.segments = stored;
        self.appended.extend(segments.iter().map(Segment::partition));
        self.appended.dedup();
        if !segments.is_empty() {
            let segments = Arc::new(segments);
            shared.messages.cache.add(segments.clone());
            self.in_flight.push_back((self.group.seq, segments));
        }
        self.write_moved();
        self.group.ids = self.remembered.pack();
    }

    /// Writes segments again, and gives up where they were.
    fn write_moved(&mut self) {
        for Moved { key, entry, partition, end, from } in std::mem::take(&mut self.moved) {
            // What was removed meanwhile must not come back.
            if self.hot.start(partition).is_some_and(|start| start < end) {
                self.group.segments.add(key, entry);
                self.group.given_up.push(from);
            }
        }
    }

    /// Removes what the engine had not been told of when it was given up.
    fn remove_arrived(&mut self) {
        if self.removed_in_flight.is_empty() {
            return;
        }
        let shared = self.shared.clone();
        shared.tell_engine();
        for key in std::mem::take(&mut self.removed_in_flight) {
            match shared.messages.place(&key) {
                Ok(Some(place)) => self.remove_segment((key.into(), place)),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(%error, "a segment cannot be removed now and is left for the sweep");
                    self.leave_to_sweep(PartitionId(u64::from_be_bytes(
                        *key.first_chunk().unwrap_or(&[0; 8]),
                    )));
                }
            }
        }
    }

    fn write_rows(&mut self) {
        let shared = self.shared.clone();
        let mut appended = std::mem::take(&mut self.appended);
        appended.retain(|id| !self.dirty_partitions.contains(id));
        let mut partitions: Vec<_> = self.dirty_partitions.drain().collect();
        if appended.len() < TAILS_LOGGED_FROM {
            partitions.append(&mut appended);
        } else {
            let (writes, table) = (&mut self.group.writes, &shared.tables.tails);
            self.tails.log(&self.hot, &appended, |key, value| {
                writes.push(Write { table: table.clone(), key: key.into(), value: value.map(Into::into) });
            });
            appended.clear();
        }
        self.appended = appended;
        partitions.sort_unstable();
        for id in partitions {
            if let Some(row) = self.hot.partition_value(id) {
                self.put(&shared.tables.partitions, number_key(id.0), row);
            }
        }
        let mut cursors: Vec<_> = self.dirty_cursors.drain().collect();
        cursors.sort_unstable();
        for (group, partition) in cursors {
            if let Some(row) = self.hot.cursor_value(group, partition) {
                self.put(&shared.tables.cursors, pair_key(group.0, partition.0), row);
            }
        }
        let tables = &shared.tables;
        for (overlay, table) in [
            (&self.records, &tables.records),
            (&self.letters, &tables.letters),
            (&self.letter_times, &tables.letter_times),
        ] {
            let writes = overlay.made_in(self.group.seq).map(|(key, value)| Write {
                table: table.clone(),
                key: key.into(),
                value: value.cloned().map(Into::into),
            });
            self.group.writes.extend(writes);
        }
    }

    /// Adds a write to the filling group.
    pub fn put(&mut self, table: &Keyspace, key: impl Into<UserKey>, value: impl Into<UserValue>) {
        self.group.writes.push(Write { table: table.clone(), key: key.into(), value: Some(value.into()) });
    }

    /// Forgets what the engine knows.
    fn forget_told(&mut self) {
        let told = self.shared.telling.seq();
        while self.in_flight.pop_front_if(|(seq, _)| *seq <= told).is_some() {}
        for overlay in [&mut self.records, &mut self.letters, &mut self.letter_times] {
            overlay.forget(told);
        }
        if let Err(error) = self.remembered.forget(self.last_now) {
            self.shared.fail(&error);
        }
        self.shared.set_remembered(self.remembered.len());
    }

    /// Where the segments of a partition that are on disk for certain end.
    pub fn on_disk_end(&self, partition: PartitionId, tail: Offset) -> Offset {
        let in_flight = self.in_flight(partition).map(|segment| segment.header.base);
        let filling = self.filling.runs(partition).map(|run| run.header.base);
        in_flight.chain(filling).fold(tail, Offset::min)
    }

    /// The segments of a partition that the engine has not been told of, in the order of their offsets.
    pub fn in_flight(&self, partition: PartitionId) -> impl Iterator<Item = &Segment> {
        self.in_flight.iter().flat_map(move |(_, segments)| {
            let from = segments.partition_point(|segment| segment.partition() < partition);
            segments[from..].iter().take_while(move |segment| segment.partition() == partition)
        })
    }

    /// Adds a removal to the filling group.
    pub fn remove(&mut self, table: &Keyspace, key: impl Into<UserKey>) {
        self.group.writes.push(Write { table: table.clone(), key: key.into(), value: None });
    }

    /// Adds the removal of a segment, whose space is taken back in time.
    pub fn remove_segment(&mut self, (key, place): Stored) {
        let shared = self.shared.clone();
        self.remove(&shared.tables.segments, key);
        self.group.given_up.push(place);
    }

    /// Finishes what was taken in: everything queued is decided and committed.
    fn close(&mut self) {
        self.intake.close();
        while let Ok(input) = self.intake.try_recv() {
            self.take(input);
        }
        self.shared.wait_idle();
        self.committing = false;
        self.hand_over();
    }
}
