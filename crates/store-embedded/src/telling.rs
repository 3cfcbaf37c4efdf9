//! What the engine has not been told of yet, and telling it.
//!
//! Always: it is told in the order of the commits, one at a time, and nobody who only adds a commit waits for that;
//! after one that it could not be told of, it is told of no other, so that what it knows has no gap.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use baton_store::Error;
use fjall::Database;

use crate::committer::Untold;
use crate::index::Index;
use crate::log::Position;

/// Commits that the engine is told of at once: most of them write the same rows, of which it then learns only the last.
const MANY: usize = 32;
/// Or fewer, if they have so many bytes of messages, which stay in memory until then.
const MANY_BYTES: u64 = 1 << 20;
/// Or all that have come, once they have so many, even if the engine is busy.
const TOO_MANY_BYTES: u64 = 32 << 20;

pub struct Telling {
    untold: Mutex<Vec<Untold>>,
    /// Held by whoever tells. Whether it could not be told of a commit: that was begun, and neither ended well nor was
    /// it undone, not even by a panic.
    broken: Mutex<bool>,
    /// The last group that the engine knows of, and where it ends in the log.
    seq: AtomicU64,
    end: Mutex<Position>,
}

impl Telling {
    /// For an engine that knows the log up to there.
    pub fn new(end: Position) -> Self {
        let (untold, broken, seq) = Default::default();
        Self { untold, broken, seq, end: Mutex::new(end) }
    }

    /// Notes a commit that is in the log.
    pub fn keep(&self, commit: Untold) {
        self.untold().push(commit);
    }

    pub fn is_much(&self) -> bool {
        let untold = self.untold();
        untold.len() >= MANY || bytes_of(&untold) >= MANY_BYTES
    }

    pub fn is_too_much(&self) -> bool {
        bytes_of(&self.untold()) >= TOO_MANY_BYTES
    }

    /// Tells the engine of everything that was kept.
    pub fn tell(&self, db: &Database, index: &Index) -> Result<(), Error> {
        let mut broken = self.broken.lock().unwrap_or_else(PoisonError::into_inner);
        if *broken {
            return Err(Error::Closed("it was not told of an earlier one".into()));
        }
        let untold = std::mem::take(&mut *self.untold());
        for run in untold.chunk_by(|_, next| !next.gives_up) {
            *broken = true;
            Untold::tell(run, db, index)?;
            *broken = false;
            if let Some(last) = run.last() {
                self.seq.store(last.seq, Ordering::Release);
                *self.end.lock().unwrap_or_else(PoisonError::into_inner) = last.end;
            }
        }
        Ok(())
    }

    pub fn seq(&self) -> u64 {
        self.seq.load(Ordering::Acquire)
    }

    pub fn end(&self) -> Position {
        *self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn untold(&self) -> MutexGuard<'_, Vec<Untold>> {
        self.untold.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn bytes_of(commits: &[Untold]) -> u64 {
    commits.iter().map(|commit| commit.bytes).sum()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use baton_types::{Offset, PartitionId, Timestamp};

    use super::*;
    use crate::committer;
    use crate::log::{Log, Place, Segments};
    use crate::tables::{Tables, segment_key};
    use crate::writer::{Group, Write};

    /// A log, an engine in the folder `engine`, and nothing to tell it of yet.
    fn opened(directory: &Path) -> (Log, Database, Tables, Index, Telling) {
        let log = Log::open(directory, 32 << 20, 0, |_, _, _| Ok(())).unwrap();
        let db = Database::builder(directory.join("engine")).open().unwrap();
        let tables = Tables::open(&db).unwrap();
        let index = Index::new(db.clone(), tables.segments.clone(), 4);
        let telling = Telling::new(log.end());
        (log, db, tables, index, telling)
    }

    #[test]
    fn after_a_commit_that_the_engine_was_not_told_of_it_is_told_of_none() {
        let directory = tempfile::tempdir().unwrap();
        let engine = directory.path().join("engine");
        let (mut log, db, tables, index, telling) = opened(directory.path());
        let mut commit = |seq: u64, given_up: Vec<Place>| {
            let mut segments = Segments::default();
            segments
                .add(segment_key(PartitionId(seq), Offset(0), Timestamp::from_micros(1)), vec![1; 9].into());
            let group = Group { seq, number: seq, segments, given_up, ..Group::default() };
            telling.keep(committer::append(&tables, &mut log, group).unwrap());
        };
        commit(1, vec![]);
        telling.tell(&db, &index).unwrap();
        let end = telling.end();
        assert_eq!(telling.seq(), 1);

        // It cannot make files.
        let (there, away) = (engine.join("keyspaces"), directory.path().join("away"));
        fs::rename(&there, &away).unwrap();
        commit(2, vec![Place { file: 0, at: 0, length: 9 }]);
        commit(3, vec![]);
        assert!(telling.tell(&db, &index).is_err());
        assert_eq!((telling.seq(), telling.end()), (1, end));

        // It can again, but the third must not come before the second.
        fs::rename(&away, &there).unwrap();
        commit(4, vec![]);
        assert!(telling.tell(&db, &index).is_err());
        assert_eq!((telling.seq(), telling.end()), (1, end));
        assert_eq!(index.table().unwrap().iter().count(), 1, "what it was told of is there");
    }

    #[test]
    fn of_rows_that_several_commits_write_the_engine_learns_the_last() {
        let directory = tempfile::tempdir().unwrap();
        let (mut log, db, tables, index, telling) = opened(directory.path());
        let mut commit = |seq: u64, rows: &[(&[u8], Option<&[u8]>)], given_up: Vec<Place>| {
            let write = |(key, value): &(&[u8], Option<&[u8]>)| Write {
                table: tables.records.clone(),
                key: (*key).into(),
                value: value.map(Into::into),
            };
            let group = Group {
                seq,
                number: seq,
                writes: rows.iter().map(write).collect(),
                given_up,
                ..Group::default()
            };
            telling.keep(committer::append(&tables, &mut log, group).unwrap());
        };
        let place = || vec![Place { file: 0, at: 0, length: 9 }];
        commit(1, &[(b"again", Some(b"1")), (b"gone", Some(b"1")), (b"back", Some(b"1"))], vec![]);
        commit(2, &[(b"again", Some(b"2")), (b"back", None)], vec![]);
        commit(3, &[(b"again", Some(b"3")), (b"gone", None)], place());
        commit(4, &[(b"again", Some(b"4")), (b"back", Some(b"4"))], vec![]);
        telling.tell(&db, &index).unwrap();
        let get = |key: &str| tables.records.get(key).unwrap().map(|value| value.to_vec());
        assert_eq!((get("again"), get("gone"), get("back")), (Some(b"4".into()), None, Some(b"4".into())));
        assert_eq!((telling.seq(), telling.end()), (4, log.end()));
    }
}
