//! Reading messages: from the segment cache when they are young, otherwise from the log, found by the index.

use std::sync::Arc;

use baton_store::{Error, Segment, SegmentCache, StoredMessage};
use baton_types::{Offset, PartitionId, Timestamp};
use fjall::{Guard, UserKey};

use crate::index::{SegmentIndex, engine_error};
use crate::rows::{pair_key, read_segment_key, segment_key};
use crate::wal::{LogFiles, SegmentPlace};

/// Reads committed segments.
pub struct SegmentReader {
    pub cache: SegmentCache,
    pub index: SegmentIndex,
    pub log: Arc<LogFiles>,
}

/// A segment's key, and its place in the log.
pub type StoredSegment = (UserKey, SegmentPlace);

fn decode_row(entry: Guard) -> Result<StoredSegment, Error> {
    let (key, place) = entry.into_inner().map_err(engine_error)?;
    Ok((key, SegmentPlace::decode(&place)?))
}

impl SegmentReader {
    /// Reads segments from the log.
    pub fn read_segments(
        &self,
        partition: PartitionId,
        from: Offset,
        to: Offset,
        bytes_max: usize,
    ) -> Result<Vec<Segment>, Error> {
        let first = self.last_segment_at_or_before(partition, from)?.map_or(from, |(base, _)| base);
        let range = pair_key(partition.0, first.0).to_vec()..pair_key(partition.0, to.0).to_vec();
        let (mut found, mut bytes) = (Vec::new(), 0);
        for entry in self.index.table()?.range(range) {
            let Some(segment) = self.read_stored(decode_row(entry)?)? else { continue };
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

    /// Reads a segment from the log; `None` if it has just been deleted.
    fn read_stored(&self, (key, mut place): StoredSegment) -> Result<Option<Segment>, Error> {
        loop {
            if let Some(segment) = self.log.read_segment(&key, place)? {
                return Ok(Some(segment));
            }
            // The file was compacted, so its segments have other places now.
            match self.find_place(&key)? {
                Some(elsewhere) if elsewhere != place => place = elsewhere,
                Some(_) => return Err(Error::Corrupt(format!("file {} of the log is missing", place.file))),
                None => return Ok(None),
            }
        }
    }

    /// The place of the segment with this key.
    pub fn find_place(&self, key: &[u8]) -> Result<Option<SegmentPlace>, Error> {
        let row = self.index.table()?.get(key).map_err(engine_error)?;
        row.map(|row| SegmentPlace::decode(&row)).transpose()
    }

    /// Reads one message.
    pub fn read_message(
        &self,
        partition: PartitionId,
        offset: Offset,
    ) -> Result<Option<StoredMessage>, Error> {
        let segment = match self.cache.get(partition, offset) {
            Some(segment) => Some(segment),
            None => self.read_segments(partition, offset, offset.plus(1), 0)?.into_iter().next(),
        };
        match segment {
            Some(segment) => Ok(segment.message(offset)?),
            None => Ok(None),
        }
    }

    /// The first offset and time of the last segment that begins at or before `offset`.
    fn last_segment_at_or_before(
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

    /// The first offset within `start..end` of a segment stored at or after `at`; `end` if there is none. A binary search
    /// over keys, as times rise with offsets; it reads no payload.
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
            match self.last_segment_at_or_before(partition, middle)? {
                Some((base, time)) if time >= at => high = base.max(low),
                _ => low = middle.plus(1),
            }
        }
        Ok(low)
    }

    /// Up to `limit` segments with messages before `start` only, and the time of the first one with later messages.
    /// Searches from the segment that contains `from` up to `end`.
    pub fn find_trimmed(
        &self,
        partition: PartitionId,
        from: Offset,
        start: Offset,
        end: Offset,
        limit: usize,
    ) -> Result<TrimmedSegments, Error> {
        let mut found = TrimmedSegments::default();
        if from >= end {
            return Ok(found);
        }
        let first = self.last_segment_at_or_before(partition, from)?.map_or(from, |(base, _)| base);
        let range = pair_key(partition.0, first.0).to_vec()..pair_key(partition.0, end.0).to_vec();
        let mut previous: Option<(StoredSegment, Timestamp)> = None;
        for entry in self.index.table()?.range(range) {
            let segment = decode_row(entry)?;
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
    pub fn list_segments(&self, partition: PartitionId, limit: usize) -> Result<Vec<StoredSegment>, Error> {
        self.index.table()?.prefix(partition.0.to_be_bytes()).take(limit).map(decode_row).collect()
    }
}

/// The segments that a trim removes.
#[derive(Default)]
pub struct TrimmedSegments {
    /// The segments to remove.
    pub segments: Vec<StoredSegment>,
    /// The time of the first segment on disk that stays.
    pub kept_at: Option<Timestamp>,
    /// Whether there are more segments to remove.
    pub more: bool,
}
