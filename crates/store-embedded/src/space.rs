//! Free space on the disk: two floors, and a ballast file.
//!
//! Below the first floor the store takes in no messages. Below the second, the reserve, it lets only decisions write that
//! free space: checkpoints and compaction need the rest. The ballast holds some of it against other programs. It goes
//! when the reserve is reached, at the latest at a start, and comes back once there is room. A floor of 0 turns all of
//! this off. Not here: which decisions free space (`tx`).

use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use baton_store::Error;
use rustix::fs::{FallocateFlags, fallocate, statvfs};

/// The reserve is this share of the floor: acks and leases still have three quarters of it,
const RESERVE_SHARE: u64 = 4;
/// and at most this: rows that one checkpoint writes, and as much again for the compaction after it.
const RESERVE_MAX: u64 = 64 << 20;
/// The share of the reserve that the ballast holds: a start and some deletes take a few MiB.
const BALLAST_SHARE: u64 = 4;
const BALLAST: &str = "ballast";
/// The shortest time between two looks at the disk.
const CHECK_EVERY: Duration = Duration::from_millis(100);

/// What is known of the free space.
pub struct Space {
    directory: PathBuf,
    floor: u64,
    /// Whether less than the floor is free, and whether less than the reserve is.
    full: AtomicBool,
    low: AtomicBool,
    /// Whether the ballast is there, or cannot be made.
    ballast: AtomicBool,
    checked_at: AtomicU64,
}

impl Space {
    /// Looks at the disk of a data directory before anything is written there.
    pub fn open(directory: &Path, floor: u64) -> Self {
        let space = Self {
            directory: directory.into(),
            floor,
            full: AtomicBool::new(false),
            low: AtomicBool::new(false),
            ballast: AtomicBool::new(directory.join(BALLAST).exists()),
            checked_at: AtomicU64::new(0),
        };
        space.look();
        space
    }

    /// Whether less than the floor is free.
    pub fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    /// Whether messages can be taken in.
    pub fn admit(&self) -> Result<(), Error> {
        self.refuse(&self.full, self.floor)
    }

    /// Whether anything that frees no space can be written.
    pub fn admit_update(&self) -> Result<(), Error> {
        self.refuse(&self.low, self.reserve())
    }

    fn refuse(&self, below: &AtomicBool, floor: u64) -> Result<(), Error> {
        match below.load(Ordering::Relaxed) {
            true => Err(Error::DiskFull { floor }),
            false => Ok(()),
        }
    }

    /// Looks at the disk if the last look was a while ago; says whether it did.
    pub fn check(&self, now: Duration) -> bool {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let due = micros(now).saturating_sub(self.checked_at.load(Ordering::Relaxed)) >= micros(CHECK_EVERY);
        if due {
            self.checked_at.store(micros(now), Ordering::Relaxed);
            self.look();
        }
        due
    }

    fn look(&self) {
        let Ok(stat) = statvfs(&self.directory) else { return };
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        let note = |below: &AtomicBool, floor: u64| {
            if below.swap(free < floor, Ordering::Relaxed) != (free < floor) {
                tracing::warn!(free, floor, "free disk space crossed a floor");
            }
        };
        note(&self.full, self.floor);
        note(&self.low, self.reserve());
        let ballast = self.reserve() / BALLAST_SHARE;
        if free < self.reserve() {
            self.drop_ballast();
        } else if ballast > 0 && free >= self.floor.saturating_add(ballast) {
            self.make_ballast(ballast);
        }
    }

    fn reserve(&self) -> u64 {
        (self.floor / RESERVE_SHARE).min(RESERVE_MAX)
    }

    fn drop_ballast(&self) {
        if self.ballast.swap(false, Ordering::Relaxed) {
            match fs::remove_file(self.directory.join(BALLAST)) {
                Ok(()) => tracing::warn!("removed the ballast file: the disk is full"),
                Err(error) => tracing::warn!(%error, "the ballast file could not be removed"),
            }
        }
    }

    fn make_ballast(&self, bytes: u64) {
        if self.ballast.swap(true, Ordering::Relaxed) {
            return;
        }
        let path = self.directory.join(BALLAST);
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path);
        let made = file.and_then(|file| Ok(fallocate(file, FallocateFlags::empty(), 0, bytes)?));
        if let Err(error) = made {
            // Some file systems cannot set space aside.
            tracing::info!(%error, "there is no ballast file");
            drop(fs::remove_file(&path));
        }
    }
}
