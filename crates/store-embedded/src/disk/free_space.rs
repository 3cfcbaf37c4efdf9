//! Free space on the disk: two floors, and a ballast file.
//!
//! Below the first floor the store accepts no messages. Below the second, the reserve, only operations that free space
//! may write: checkpoints and compaction need the rest. The ballast file holds a part of the reserve, so that other
//! programs cannot take it. It is removed when less than the reserve is free, at the latest at a start, and created again
//! when there is room. A floor of 0 turns all of this off. Not here: which operations free space (`commit::tx`).

use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use baton_store::Error;
use rustix::fs::{FallocateFlags, fallocate, statvfs};

/// The reserve is this fraction of the floor. So acks and leases can use three quarters of the floor.
const RESERVE_SHARE: u64 = 4;
/// The largest reserve: the rows that one checkpoint writes, and as much again for the compaction after it.
const RESERVE_MAX: u64 = 64 << 20;
/// The fraction of the reserve that the ballast holds: a start and some deletes need a few MiB.
const BALLAST_SHARE: u64 = 4;
const BALLAST: &str = "ballast";
/// The shortest time between two measurements.
const CHECK_EVERY: Duration = Duration::from_millis(100);

/// What is known about the free space.
pub struct FreeSpace {
    directory: PathBuf,
    floor: u64,
    /// Whether less than the floor is free.
    full: AtomicBool,
    /// Whether less than the reserve is free.
    low: AtomicBool,
    /// Whether the ballast file exists, or cannot be created.
    ballast: AtomicBool,
    checked_at: AtomicU64,
}

impl FreeSpace {
    /// Measures the free space of a data directory before anything is written there.
    pub fn open(directory: &Path, floor: u64) -> Self {
        let space = Self {
            directory: directory.into(),
            floor,
            full: AtomicBool::new(false),
            low: AtomicBool::new(false),
            ballast: AtomicBool::new(directory.join(BALLAST).exists()),
            checked_at: AtomicU64::new(0),
        };
        space.measure();
        space
    }

    /// Whether less than the floor is free.
    pub fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    /// Refuses messages below the floor.
    pub fn admit_messages(&self) -> Result<(), Error> {
        self.refuse_below(&self.full, self.floor)
    }

    /// Refuses writes that free no space below the reserve.
    pub fn admit_update(&self) -> Result<(), Error> {
        self.refuse_below(&self.low, self.reserve())
    }

    fn refuse_below(&self, below: &AtomicBool, floor: u64) -> Result<(), Error> {
        match below.load(Ordering::Relaxed) {
            true => Err(Error::DiskFull { floor }),
            false => Ok(()),
        }
    }

    /// Measures the free space if the last measurement is too old. Returns whether it did.
    pub fn measure_if_due(&self, now: Duration) -> bool {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let due = micros(now).saturating_sub(self.checked_at.load(Ordering::Relaxed)) >= micros(CHECK_EVERY);
        if due {
            self.checked_at.store(micros(now), Ordering::Relaxed);
            self.measure();
        }
        due
    }

    fn measure(&self) {
        let Ok(stat) = statvfs(&self.directory) else { return };
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        let update = |below: &AtomicBool, floor: u64| {
            if below.swap(free < floor, Ordering::Relaxed) != (free < floor) {
                tracing::warn!(free, floor, "free disk space crossed a floor");
            }
        };
        update(&self.full, self.floor);
        update(&self.low, self.reserve());
        let ballast = self.reserve() / BALLAST_SHARE;
        if free < self.reserve() {
            self.remove_ballast();
        } else if ballast > 0 && free >= self.floor.saturating_add(ballast) {
            self.create_ballast(ballast);
        }
    }

    fn reserve(&self) -> u64 {
        (self.floor / RESERVE_SHARE).min(RESERVE_MAX)
    }

    fn remove_ballast(&self) {
        if self.ballast.swap(false, Ordering::Relaxed) {
            match fs::remove_file(self.directory.join(BALLAST)) {
                Ok(()) => tracing::warn!("removed the ballast file: the disk is full"),
                Err(error) => tracing::warn!(%error, "the ballast file could not be removed"),
            }
        }
    }

    fn create_ballast(&self, bytes: u64) {
        if self.ballast.swap(true, Ordering::Relaxed) {
            return;
        }
        let path = self.directory.join(BALLAST);
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path);
        let made = file.and_then(|file| Ok(fallocate(file, FallocateFlags::empty(), 0, bytes)?));
        if let Err(error) = made {
            // Some file systems cannot allocate space ahead.
            tracing::info!(%error, "there is no ballast file");
            drop(fs::remove_file(&path));
        }
    }
}
