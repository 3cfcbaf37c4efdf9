//! Reads that take no lease and move no cursor: messages by offset, partitions by change, depth.

use std::sync::Arc;
use std::time::Duration;

use baton_store::{Partition, Queue, Segment, StoredMessage, collect_misses};
use baton_types::{Offset, PartitionId, Timestamp, limits};

use super::{Broker, PAGE};
use crate::Error;
use crate::rules::inspect::{self, PartitionSummary};

/// The first pause between two looks of a read that waits for more; it doubles up to the longest.
const FETCH_PAUSE: Duration = Duration::from_millis(50);
const FETCH_PAUSE_MAX: Duration = Duration::from_secs(1);
/// A key that is never written; removing it makes a decision that is answered only when it is on disk.
const NOTHING: &str = "nothing";

/// One partition to read.
#[derive(Clone, Debug)]
pub struct FetchEntry {
    /// The queue.
    pub queue: String,
    /// The partition.
    pub partition: String,
    /// From where.
    pub offset: Offset,
    /// At most so many bytes of payload, but at least one message.
    pub bytes_max: usize,
}

/// What was read of a partition.
#[derive(Clone, Debug)]
pub enum Fetched {
    /// There is no such queue.
    NoQueue,
    /// The partition as far as it goes.
    Read {
        /// The messages.
        messages: Vec<StoredMessage>,
        /// The first offset kept.
        start: Offset,
        /// The offset of the next message.
        tail: Offset,
        /// Whether the offset asked for is outside of what is kept.
        out_of_range: bool,
    },
}

/// Where a partition begins and ends, and what it has from a moment on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// The first offset kept.
    pub start: Offset,
    /// The offset of the next message.
    pub tail: Offset,
    /// The first message at or after the moment, and when it was stored.
    pub first: Option<(Offset, Timestamp)>,
}

impl Broker {
    /// The first message of a partition that was stored at or after `at`; `None` when there is no such queue.
    pub async fn offset_at(
        &self,
        queue: &str,
        partition: &str,
        at: Timestamp,
    ) -> Result<Option<Marks>, Error> {
        let (queue, name) = (queue.to_owned(), partition.to_owned());
        self.run(move |tx| {
            let Some(queue) = tx.queue(&queue)? else { return Ok(None) };
            let Some(partition) = tx.partition(queue.id, &name)? else { return Ok(Some(Marks::default())) };
            let (start, tail) = (partition.start, partition.tail);
            let offset = tx.offset_at(partition.id, at)?.max(start);
            let first = match offset < tail {
                true => tx.message(partition.id, offset)?.map(|message| (offset, message.created_at)),
                false => None,
            };
            Ok(Some(Marks { start, tail, first }))
        })
        .await
    }

    /// The policy of a group that was decided by its first pop; `None` when there is no such group.
    pub async fn conflation(&self, queue: &str, group: &str) -> Result<Option<bool>, Error> {
        let (queue, group) = (queue.to_owned(), group.to_owned());
        self.run(move |tx| {
            let Some(queue) = tx.queue(&queue)? else { return Ok(None) };
            Ok(tx.group(queue.id, &group)?.map(|group| group.conflation))
        })
        .await
    }

    /// Reads partitions by offset, together at most `bytes_max` bytes of payload and at least one message; waits
    /// up to `wait` until there are `bytes_min`.
    pub async fn fetch(
        &self,
        entries: &[FetchEntry],
        bytes_max: usize,
        bytes_min: usize,
        wait: Duration,
    ) -> Result<Vec<Fetched>, Error> {
        let (began, mut pause) = (baton_env::Stopwatch::start(), FETCH_PAUSE);
        loop {
            let (mut found, mut bytes, mut out_of_range) = (Vec::with_capacity(entries.len()), 0, false);
            for entry in entries {
                let fetched = self.fetch_one(entry, bytes_max.saturating_sub(bytes), bytes == 0).await?;
                if let Fetched::Read { messages, out_of_range: outside, .. } = &fetched {
                    bytes += messages.iter().map(StoredMessage::kept_bytes).sum::<usize>();
                    out_of_range |= outside;
                }
                found.push(fetched);
            }
            let left = wait.min(limits::FETCH_WAIT_MAX).saturating_sub(began.elapsed());
            if bytes >= bytes_min || out_of_range || left.is_zero() {
                return Ok(found);
            }
            tokio::select! {
                () = self.shared.stop.cancelled() => return Ok(found),
                () = baton_env::sleep(left.min(pause)) => {}
            }
            pause = (pause * 2).min(FETCH_PAUSE_MAX);
        }
    }

    async fn fetch_one(&self, entry: &FetchEntry, left: usize, is_first: bool) -> Result<Fetched, Error> {
        let (queue, name) = (entry.queue.clone(), entry.partition.clone());
        let place = self
            .run(move |tx| {
                let Some(queue) = tx.queue(&queue)? else { return Ok(None) };
                tx.partition(queue.id, &name).map(Some)
            })
            .await?;
        let Some(partition) = place else { return Ok(Fetched::NoQueue) };
        let (start, tail) = partition.as_ref().map_or((Offset(0), Offset(0)), |p| (p.start, p.tail));
        let out_of_range = entry.offset < start || entry.offset > tail;
        let messages = match partition {
            Some(partition) if !out_of_range && entry.offset < tail && (left > 0 || is_first) => {
                let read =
                    self.read_from(&partition, entry.offset, entry.bytes_max.min(left), is_first).await?;
                self.opened(entry, read)?
            }
            _ => Vec::new(),
        };
        Ok(Fetched::Read { messages, start, tail, out_of_range })
    }

    /// Messages of a partition from an offset on. The first is read however large it is, if it `may_exceed`.
    async fn read_from(
        &self,
        partition: &Partition,
        from: Offset,
        bytes_max: usize,
        may_exceed: bool,
    ) -> Result<Vec<StoredMessage>, Error> {
        let (mut messages, mut bytes, mut at) = (Vec::new(), 0, from);
        while at < partition.tail {
            let segments = self
                .shared
                .store
                .read(partition.id, at, partition.tail, bytes_max.saturating_sub(bytes))
                .await?;
            let Some(last) = segments.last() else { break };
            at = last.end();
            for message in segments.iter().flat_map(Segment::messages) {
                let message = message.map_err(baton_store::Error::from)?;
                let is_wanted = from <= message.offset
                    && message.offset < partition.tail
                    && !partition.deleted.contains(message.offset);
                if !is_wanted {
                    continue;
                }
                let is_allowed = may_exceed && messages.is_empty();
                if bytes + message.kept_bytes() > bytes_max && !is_allowed {
                    return Ok(messages);
                }
                bytes += message.kept_bytes();
                messages.push(message);
            }
        }
        Ok(messages)
    }

    /// The same messages of an entry's partition, with payloads as they were pushed.
    fn opened(
        &self,
        entry: &FetchEntry,
        mut messages: Vec<StoredMessage>,
    ) -> Result<Vec<StoredMessage>, Error> {
        let mut opener = self.shared.sealer.opener();
        messages
            .iter_mut()
            .try_for_each(|message| opener.open_message(&entry.queue, &entry.partition, message))
            .map_err(Error::KeyMissing)?;
        Ok(messages)
    }

    /// A moment up to which every message that is stored can be seen by what is asked from now on.
    pub async fn safe_time(&self) -> Result<Timestamp, Error> {
        // Messages that are stored in one commit may share a moment. This decision is answered after its commit,
        // so that later ones have a later moment.
        self.run(|tx| {
            tx.remove_record(NOTHING);
            Ok(tx.now())
        })
        .await
    }

    /// Up to `limit` partitions of a queue, in the order of their creation, that were written at or after `since`;
    /// `None` when there is no such queue. The last number is where to go on, when there may be more.
    pub async fn changed_partitions(
        &self,
        queue: &str,
        since: Option<Timestamp>,
        mut after: Option<PartitionId>,
        limit: usize,
    ) -> Result<Option<(Vec<Partition>, Option<PartitionId>)>, Error> {
        let Some(queue) = self.queue_row(queue).await? else { return Ok(None) };
        let mut found = Vec::new();
        loop {
            let id = queue.id;
            let page = self.run(move |tx| tx.partitions(id, after, PAGE)).await?;
            let Some(last) = page.last() else { return Ok(Some((found, None))) };
            after = Some(last.id);
            for partition in page {
                if since.is_some_and(|since| partition.tail == Offset(0) || partition.last_at < since) {
                    continue;
                }
                let id = partition.id;
                found.push(partition);
                if found.len() == limit {
                    return Ok(Some((found, Some(id))));
                }
            }
        }
    }

    /// What a group has before it, partition by partition; `None` when there is no such queue. Without a group it
    /// is the one that counts for the queue. A group that does not exist has everything before it.
    pub async fn depth(
        &self,
        queue: &str,
        group: Option<&str>,
    ) -> Result<Option<Vec<PartitionSummary>>, Error> {
        let Some(queue) = self.queue_row(queue).await? else { return Ok(None) };
        let (of_queue, name) = (queue.clone(), group.map(str::to_owned));
        let group = self
            .run(move |tx| match &name {
                Some(name) => tx.group(of_queue.id, name),
                None => inspect::counting_group(tx, &of_queue),
            })
            .await?;
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let (id, group) = (queue.id, group.clone());
            let page = self
                .run(move |tx| {
                    let mut page = Vec::new();
                    collect_misses(tx.partitions(id, after, PAGE)?, |partition| {
                        page.push(inspect::summarise(tx, group.as_deref(), &partition)?);
                        Ok(())
                    })?;
                    Ok(page)
                })
                .await?;
            let Some(last) = page.last() else { return Ok(Some(found)) };
            after = Some(last.id);
            found.extend(page);
        }
    }

    async fn queue_row(&self, name: &str) -> Result<Option<Arc<Queue>>, Error> {
        let name = name.to_owned();
        self.run(move |tx| tx.queue(&name)).await
    }
}
