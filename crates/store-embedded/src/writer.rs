//! The deciding thread: runs operations against memory and gathers what they change into groups.
//!
//! While the committer writes one group, the next one fills; when it comes back, that one is handed over. An
//! operation is answered when its group is on disk. One that wrote nothing it must keep is answered as soon as
//! what it has read is on disk, which is often at once.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use baton_env::Clock;
use baton_store::{Error, Operation, Segment, SegmentHeader, Stop};
use baton_types::{GroupId, Offset, PartitionId, Timestamp};
use bytes::Bytes;
use fjall::{Keyspace, UserKey, UserValue};
use rustc_hash::{FxHashMap, FxHashSet};
use tokio::sync::mpsc::Receiver;

use crate::cold::Overlay;
use crate::hot::Hot;
use crate::remembered::{Remember, Remembered};
use crate::store::Shared;
use crate::tables::{
    CLOCK_KEY, COUNTERS_KEY, Counters, clock_value, cursor_value, number_key, pair_key, partition_value,
    segment_key,
};
use crate::tx::EmbeddedTx;

/// A group is closed at this many operations, so that the first of them does not wait for ever.
const GROUP_OPERATIONS_MAX: u64 = 4096;
/// A group is closed at this many bytes of messages, so that one commit stays a fraction of a second.
const GROUP_BYTES_MAX: usize = 16 << 20;
/// Rows of deleted queues and groups that are cleared away between two groups.
const SWEEP_ROWS: usize = 500;

/// What reaches the deciding thread.
pub enum Input {
    Operation(Box<dyn Operation>),
    /// The committer has finished a group: wakes the thread, which then looks.
    Committed,
    /// Finish everything and stop.
    Close,
}

/// One key and what is to stand there.
pub struct Write {
    pub table: Keyspace,
    pub key: UserKey,
    pub value: Option<UserValue>,
}

/// What one commit writes, and who waits for it.
#[derive(Default)]
pub struct Group {
    pub seq: u64,
    /// Whether anyone is answered only after a sync.
    pub sync: bool,
    pub writes: Vec<Write>,
    pub waiting: Vec<Box<dyn Operation>>,
    pub operations: u64,
}

/// Messages of one partition that will become one segment.
pub struct Open {
    pub header: SegmentHeader,
    pub body: Vec<u8>,
}

/// Segments that are on their way to disk.
pub struct InFlight {
    seq: u64,
    pub segment: Segment,
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
    pub open: FxHashMap<PartitionId, Open>,
    /// Closed segments of the filling group.
    pub closed: Vec<(PartitionId, Open)>,
    pub in_flight: FxHashMap<PartitionId, Vec<InFlight>>,
    pub remembers: Vec<Remember>,
    pub dirty_partitions: FxHashSet<PartitionId>,
    pub dirty_cursors: FxHashSet<(GroupId, PartitionId)>,
    pub counters_dirty: bool,
    pub group: Group,
    pub group_bytes: usize,
    pub dead_partitions: Vec<PartitionId>,
    pub dead_groups: Vec<GroupId>,
    pub last_now: Timestamp,
    pub tokens: u64,
    clock: Arc<dyn Clock>,
    committer: SyncSender<Group>,
    committing: bool,
}

impl Writer {
    #[expect(clippy::too_many_arguments, reason = "everything that was loaded from disk")]
    pub fn new(
        shared: Arc<Shared>,
        clock: Arc<dyn Clock>,
        committer: SyncSender<Group>,
        hot: Hot,
        counters: Counters,
        remembered: Remembered,
        dead_partitions: Vec<PartitionId>,
        dead_groups: Vec<GroupId>,
        last_now: Timestamp,
    ) -> Self {
        Self {
            shared,
            hot,
            counters,
            remembered,
            records: Overlay::default(),
            letters: Overlay::default(),
            letter_times: Overlay::default(),
            open: FxHashMap::default(),
            closed: Vec::new(),
            in_flight: FxHashMap::default(),
            remembers: Vec::new(),
            dirty_partitions: FxHashSet::default(),
            dirty_cursors: FxHashSet::default(),
            counters_dirty: false,
            group: Group { seq: 1, ..Group::default() },
            group_bytes: 0,
            dead_partitions,
            dead_groups,
            last_now,
            tokens: 0,
            clock,
            committer,
            committing: false,
        }
    }

    /// Runs until told to close.
    pub fn run(mut self, mut intake: Receiver<Input>) {
        loop {
            let next = match intake.try_recv() {
                Ok(input) => Some(input),
                Err(_) if self.has_sweeping() && !self.committing => None,
                Err(_) => {
                    self.hand_over();
                    match intake.blocking_recv() {
                        Some(input) => Some(input),
                        None => break,
                    }
                }
            };
            match next {
                Some(Input::Operation(operation)) => self.decide(operation),
                Some(Input::Committed) => {}
                Some(Input::Close) => break,
                None => self.sweep(),
            }
            if self.is_full() {
                self.shared.wait_idle();
            }
            self.look_at_committer();
            if self.is_full() {
                self.hand_over();
            }
        }
        self.close(&mut intake);
    }

    fn decide(&mut self, mut operation: Box<dyn Operation>) {
        if let Some(reason) = self.shared.failure() {
            return operation.finish(Err(Error::Closed(reason)));
        }
        self.last_now = self.clock.now().max(Timestamp::from_micros(self.last_now.micros() + 1));
        self.shared.set_now(self.last_now);
        self.group.operations += 1;
        let mut tx = EmbeddedTx::new(self);
        let outcome = operation.apply(&mut tx);
        let (wrote, gate) = (tx.wrote_now, tx.gate);
        match outcome {
            Ok(()) if wrote || gate >= self.group.seq => {
                self.group.sync = true;
                self.group.waiting.push(operation);
            }
            Ok(()) => self.shared.finish_when_durable(gate, operation),
            Err(Stop::Failed(error)) => operation.finish(Err(error)),
            Err(Stop::Load) => operation.finish(Err(Error::Closed("a row is missing in memory".into()))),
        }
    }

    fn is_full(&self) -> bool {
        self.group.operations >= GROUP_OPERATIONS_MAX || self.group_bytes >= GROUP_BYTES_MAX
    }

    /// Notices when the committer has come back.
    fn look_at_committer(&mut self) {
        if self.committing && self.shared.is_idle() {
            self.committing = false;
            self.forget_durable();
        }
    }

    /// Gives the filling group to the committer, if it is free and there is something to write.
    fn hand_over(&mut self) {
        if self.committing {
            return;
        }
        self.write_segments();
        self.write_rows();
        if self.group.writes.is_empty() && self.group.waiting.is_empty() {
            return;
        }
        let table = self.shared.tables.meta.clone();
        self.put(table, CLOCK_KEY.to_vec(), Some(clock_value(self.last_now)));
        let next = Group { seq: self.group.seq + 1, ..Group::default() };
        let group = std::mem::replace(&mut self.group, next);
        self.group_bytes = 0;
        self.committing = true;
        self.shared.set_idle(false);
        if let Err(refused) = self.committer.send(group) {
            self.shared.fail("the committing thread has ended");
            for operation in refused.0.waiting {
                operation.finish(Err(Error::Closed("the committing thread has ended".into())));
            }
        }
    }

    fn write_segments(&mut self) {
        let open = std::mem::take(&mut self.open);
        for (partition, open) in std::mem::take(&mut self.closed).into_iter().chain(open) {
            let encoded = Bytes::from(Segment::encode(&open.header, &open.body));
            let segment = Segment::new(partition, open.header, encoded.slice(Segment::BODY_AT..));
            let key = segment_key(partition, open.header.base, open.header.created_at);
            self.put(self.shared.tables.segments.clone(), key.to_vec(), Some(encoded));
            self.shared.messages.cache.insert(segment.clone());
            let seq = self.group.seq;
            self.in_flight.entry(partition).or_default().push(InFlight { seq, segment });
        }
        let remembers = std::mem::take(&mut self.remembers);
        for packed in self.remembered.pack(&remembers) {
            let key = number_key(self.shared.next_commit_number()).to_vec();
            self.put(packed.keyspace, key, Some(packed.value.into()));
        }
    }

    fn write_rows(&mut self) {
        for id in std::mem::take(&mut self.dirty_partitions) {
            if let Some(row) = self.hot.partition(id) {
                let table = self.shared.tables.partitions.clone();
                self.put(table, number_key(id.0).to_vec(), Some(partition_value(&row)));
            }
        }
        for (group, partition) in std::mem::take(&mut self.dirty_cursors) {
            if let Some(row) = self.hot.cursor(group, partition) {
                let table = self.shared.tables.cursors.clone();
                self.put(table, pair_key(group.0, partition.0).to_vec(), Some(cursor_value(&row)));
            }
        }
        if std::mem::take(&mut self.counters_dirty) {
            let table = self.shared.tables.meta.clone();
            self.put(table, COUNTERS_KEY.to_vec(), Some(self.counters.value()));
        }
    }

    /// Adds a write to the filling group.
    pub fn put(&mut self, table: Keyspace, key: Vec<u8>, value: Option<Bytes>) {
        self.group.writes.push(Write { table, key: key.into(), value: value.map(Into::into) });
    }

    fn forget_durable(&mut self) {
        let durable = self.shared.durable();
        self.in_flight.retain(|_, segments| {
            segments.retain(|segment| segment.seq > durable);
            !segments.is_empty()
        });
        for overlay in [&mut self.records, &mut self.letters, &mut self.letter_times] {
            overlay.forget(durable);
        }
        if let Err(error) = self.remembered.forget(&self.shared.db, self.last_now) {
            self.shared.fail(&error.to_string());
        }
        self.shared.set_remembered(self.remembered.len());
    }

    fn has_sweeping(&self) -> bool {
        !self.dead_partitions.is_empty() || !self.dead_groups.is_empty()
    }

    /// Clears away some rows of deleted queues and groups. Nobody waits for it.
    fn sweep(&mut self) {
        if let Err(error) = self.sweep_some() {
            self.shared.fail(&error.to_string());
            (self.dead_partitions, self.dead_groups) = Default::default();
        }
        self.hand_over();
    }

    fn sweep_some(&mut self) -> Result<(), Error> {
        let mut rows = 0;
        while rows < SWEEP_ROWS
            && let Some(partition) = self.dead_partitions.pop()
        {
            let (keys, _) = self.shared.messages.droppable(partition, Offset(u64::MAX), Offset(0))?;
            rows += keys.len() + 1;
            for key in keys {
                self.put(self.shared.tables.segments.clone(), key, None);
            }
            self.put(self.shared.tables.partitions.clone(), number_key(partition.0).to_vec(), None);
        }
        while rows < SWEEP_ROWS
            && let Some(group) = self.dead_groups.last().copied()
        {
            let cursors = self.shared.tables.cursors.clone();
            let keys: Result<Vec<_>, _> =
                cursors.prefix(number_key(group.0)).take(SWEEP_ROWS).map(fjall::Guard::key).collect();
            let keys = keys.map_err(crate::tables::engine_error)?;
            rows += keys.len() + 1;
            if keys.len() < SWEEP_ROWS {
                self.dead_groups.pop();
            }
            for key in keys {
                self.put(cursors.clone(), key.to_vec(), None);
            }
        }
        Ok(())
    }

    /// Finishes what was taken in: everything queued is decided and committed.
    fn close(mut self, intake: &mut Receiver<Input>) {
        intake.close();
        while let Ok(input) = intake.try_recv() {
            if let Input::Operation(operation) = input {
                self.decide(operation);
            }
        }
        self.shared.wait_idle();
        self.committing = false;
        self.hand_over();
    }
}
