//! Reading messages back: from memory when they are young, from disk otherwise.

use std::sync::Arc;

use baton_store::{Error, Segment, SegmentCache, StoredMessage};
use baton_types::{Offset, PartitionId, Timestamp};
use fjall::{Guard, UserKey};

use crate::index::Index;
use crate::log::{Files, Place};
use crate::tables::{engine_error, pair_key, read_segment_key, segment_key};

/// The committed segments.
pub struct Messages {
    pub cache: SegmentCache,
    /// Where they are.
    pub index: Index,
    pub log: Arc<Files>,
}

/// A segment's key, and where it is in the log.
pub type Stored = (UserKey, Place);

fn stored(entry: Guard) -> Result<Stored, Error> {
    let (key, place) = entry.into_inner().map_err(engine_error)?;
    Ok((key, Place::read(&place)?))
}

impl Messages {
    /// Segments from disk.
    pub fn read(
        &self,
        partition: PartitionId,
        from: Offset,
        to: Offset,
        bytes_max: usize,
    ) -> Result<Vec<Segment>, Error> {
        let first = self.floor(partition, from)?.map_or(from, |(base, _)| base);
        let range = pair_key(partition.0, first.0).to_vec()..pair_key(partition.0, to.0).to_vec();
        let (mut found, mut bytes) = (Vec::new(), 0);
        for entry in self.index.table()?.range(range) {
            let Some(segment) = self.fetch(stored(entry)?)? else { continue };
            if segment.end() <= from {
                continue;
            }
            bytes += segment.bytes_len();
            found.push(segment);
            if bytes > bytes_max {
                break;
            }
        }
        Ok(found)
    }

    /// A segment from the log; nothing if it has just been given up.
    fn fetch(&self, (key, mut place): Stored) -> Result<Option<Segment>, Error> {
        loop {
            if let Some(segment) = self.log.segment(&key, place)? {
                return Ok(Some(segment));
            }
            // The file is gone, because its segments stand elsewhere by now.
            match self.place(&key)? {
                Some(elsewhere) if elsewhere != place => place = elsewhere,
                Some(_) => return Err(Error::Corrupt(format!("file {} of the log is missing", place.file))),
                None => return Ok(None),
            }
        }
    }

    /// Where the segment with this key is.
    pub fn place(&self, key: &[u8]) -> Result<Option<Place>, Error> {
        let row = self.index.table()?.get(key).map_err(engine_error)?;
        row.map(|row| Place::read(&row)).transpose()
    }

    /// One message.
    pub fn message(&self, partition: PartitionId, offset: Offset) -> Result<Option<StoredMessage>, Error> {
        let segment = match self.cache.get(partition, offset) {
            Some(segment) => Some(segment),
            None => self.read(partition, offset, offset.plus(1), 0)?.into_iter().next(),
        };
        match segment {
            Some(segment) => Ok(segment.message(offset)?),
            None => Ok(None),
        }
    }

    /// The first offset and time of the last segment that begins at or before `offset`.
    pub fn floor(
        &self,
        partition: PartitionId,
        offset: Offset,
    ) -> Result<Option<(Offset, Timestamp)>, Error> {
        let low = pair_key(partition.0, 0).to_vec();
        let high = segment_key(partition, offset, Timestamp::from_micros(-1)).to_vec();
        match self.index.table()?.range(low..=high).next_back() {
            Some(entry) => read_segment_key(&entry.key().map_err(engine_error)?).map(Some),
            None => Ok(None),
        }
    }

    /// The first offset of a segment stored at or after `at` within `start..end`, where times rise with
    /// offsets; `end` when there is none. A binary search over keys: no payload is read.
    pub fn offset_at(
        &self,
        partition: PartitionId,
        start: Offset,
        end: Offset,
        at: Timestamp,
    ) -> Result<Offset, Error> {
        let (mut low, mut high) = (start, end);
        while low < high {
            let middle = Offset(low.0 + (high.0 - low.0) / 2);
            match self.floor(partition, middle)? {
                Some((base, time)) if time >= at => high = base.max(low),
                _ => low = middle.plus(1),
            }
        }
        Ok(low)
    }

    /// Up to `limit` segments that hold nothing from `start` on, and the time of the first that does.
    /// What is on disk begins with the segment around `from` and ends before `end`.
    pub fn droppable(
        &self,
        partition: PartitionId,
        from: Offset,
        start: Offset,
        end: Offset,
        limit: usize,
    ) -> Result<Droppable, Error> {
        let mut found = Droppable::default();
        if from >= end {
            return Ok(found);
        }
        let first = self.floor(partition, from)?.map_or(from, |(base, _)| base);
        let range = pair_key(partition.0, first.0).to_vec()..pair_key(partition.0, end.0).to_vec();
        let mut previous: Option<(Stored, Timestamp)> = None;
        for entry in self.index.table()?.range(range) {
            let segment = stored(entry)?;
            let (base, created_at) = read_segment_key(&segment.0)?;
            if let Some((segment, created_at)) = previous.replace((segment, created_at)) {
                if base > start {
                    found.kept_at = Some(created_at);
                    return Ok(found);
                }
                if found.segments.len() == limit {
                    found.more = true;
                    return Ok(found);
                }
                found.segments.push(segment);
            }
        }
        match previous {
            Some((segment, _)) if end <= start => found.segments.push(segment),
            Some((_, created_at)) => found.kept_at = Some(created_at),
            None => {}
        }
        Ok(found)
    }

    /// Up to `limit` segments of a partition.
    pub fn some(&self, partition: PartitionId, limit: usize) -> Result<Vec<Stored>, Error> {
        self.index.table()?.prefix(partition.0.to_be_bytes()).take(limit).map(stored).collect()
    }
}

/// What a trim leaves behind.
#[derive(Default)]
pub struct Droppable {
    /// What is to be removed.
    pub segments: Vec<Stored>,
    /// The time of the first segment on disk that stays.
    pub kept_at: Option<Timestamp>,
    /// Whether there is more to be removed.
    pub more: bool,
}
