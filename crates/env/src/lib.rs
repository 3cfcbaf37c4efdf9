//! The only access to clocks, randomness, sleeping and fresh ids.
//!
//! All other crates use this one, so that a test can control the clock, and `clippy.toml` can forbid every other way.
//! Always: [`Clock::now`] is a wall clock and may jump, so no code measures durations with it; [`Clock::elapsed`]
//! never goes back. Not here: store time, which alone decides about leases. Start at [`Clock`].

#![allow(clippy::disallowed_methods, reason = "this is the door")]

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use baton_types::{LeaseId, Timestamp};
use uuid::Uuid;

/// A clock.
pub trait Clock: Send + Sync + 'static {
    /// The wall clock. It may jump in both directions.
    fn now(&self) -> Timestamp;

    /// The time since a fixed moment. It never goes back.
    fn elapsed(&self) -> Duration;
}

/// The machine's clock.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self { start: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
    }

    fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }
}

/// The machine's clock, whose [`elapsed`](Clock::elapsed) also counts suspended time. For leases, which expire for
/// others meanwhile.
#[derive(Debug, Default)]
pub struct BootClock(SystemClock);

impl Clock for BootClock {
    fn now(&self) -> Timestamp {
        self.0.now()
    }

    #[cfg(target_os = "linux")]
    fn elapsed(&self) -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
    }

    #[cfg(not(target_os = "linux"))]
    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// A clock that moves only when a test moves it.
#[derive(Debug)]
pub struct ManualClock {
    now: AtomicI64,
    elapsed: AtomicI64,
}

impl ManualClock {
    /// A clock at `start`.
    pub fn new(start: Timestamp) -> Self {
        Self { now: AtomicI64::new(start.micros()), elapsed: AtomicI64::new(0) }
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        let micros = i64::try_from(by.as_micros()).unwrap_or(0);
        self.now.fetch_add(micros, Ordering::SeqCst);
        self.elapsed.fetch_add(micros, Ordering::SeqCst);
    }

    /// Moves the clock forward to a time.
    pub fn advance_to(&self, at: Timestamp) {
        self.advance(at.since(self.now()));
    }

    /// Sets the wall clock, also back. The elapsed time stays.
    pub fn set(&self, now: Timestamp) {
        self.now.store(now.micros(), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.now.load(Ordering::SeqCst))
    }

    fn elapsed(&self) -> Duration {
        Duration::from_micros(u64::try_from(self.elapsed.load(Ordering::SeqCst)).unwrap_or(0))
    }
}

/// A slewed clock (as by `adjtime`): it advances with monotonic time and follows a wall clock slowly. So a step of
/// the wall clock neither expires leases at once nor stops time.
/// clock makes anything expire at once or stand still.
#[derive(Clone, Copy, Debug)]
pub struct SlewedClock {
    at: Timestamp,
    /// The monotonic time at which the clock showed `at`.
    since: Duration,
}

/// A slewed clock gains at most this fraction of the elapsed time: half of the clock drift that elections and shards
/// allow, because leases must not end early.
const GAIN_DIVISOR: i64 = 200;
/// It loses at most this fraction.
const LOSS_DIVISOR: i64 = 10;

impl SlewedClock {
    /// A clock that shows `at` when the monotonic time is `since`.
    pub fn new(at: Timestamp, since: Duration) -> Self {
        Self { at, since }
    }

    /// The time, when the wall clock shows `wall` and the monotonic time is `elapsed`.
    pub fn read(&self, wall: Timestamp, elapsed: Duration) -> Timestamp {
        let passed = i64::try_from(elapsed.saturating_sub(self.since).as_micros()).unwrap_or(i64::MAX);
        let steady = self.at.micros().saturating_add(passed);
        let off = wall.micros().saturating_sub(steady);
        Timestamp::from_micros(
            steady.saturating_add(off.clamp(-passed / LOSS_DIVISOR, passed / GAIN_DIVISOR)),
        )
    }

    /// Reads the time, and continues from there.
    pub fn advance(&mut self, wall: Timestamp, elapsed: Duration) -> Timestamp {
        let now = self.read(wall, elapsed);
        (self.at, self.since) = (now, elapsed.max(self.since));
        now
    }

    /// Shows at least `at` from now on.
    pub fn raise(&mut self, at: Timestamp) {
        self.at = self.at.max(at);
    }
}

/// Measures elapsed time.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts now.
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// The time since the start.
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Fills `bytes` with random bytes of the operating system.
///
/// # Panics
///
/// If the operating system has none: code that needs secrets must not continue.
pub fn random_bytes(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the operating system gives random bytes");
}

/// A random number.
pub fn random_u64() -> u64 {
    u64::from_le_bytes(random())
}

/// A few random bytes from a buffer. One system call for each id would cost more than the id.
fn random<const N: usize>() -> [u8; N] {
    thread_local!(static SUPPLY: RefCell<RandomBuffer> = const { RefCell::new(RandomBuffer { bytes: [0; 512], left: 0 }) });
    SUPPLY.with_borrow_mut(RandomBuffer::take)
}

/// Random bytes that were not handed out yet.
struct RandomBuffer {
    bytes: [u8; 512],
    left: usize,
}

impl RandomBuffer {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        if self.left < N {
            random_bytes(&mut self.bytes);
            self.left = self.bytes.len();
        }
        self.left -= N;
        // Bytes are cleared when they are handed out.
        std::array::from_fn(|index| std::mem::take(&mut self.bytes[self.left + index]))
    }
}

/// A fresh version 7 UUID.
pub fn fresh_uuid() -> Uuid {
    let millis = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    uuid::Builder::from_unix_timestamp_millis(u64::try_from(millis).unwrap_or(0), &random()).into_uuid()
}

/// A fresh lease id.
pub fn fresh_lease() -> LeaseId {
    LeaseId(fresh_uuid())
}

/// Suspends the current task. Use it for back-off; to wait for an event, wait for the event.
pub async fn sleep(duration: Duration) {
    tokio::time::sleep(duration).await;
}

/// A resettable timer without allocations, for code that polls by hand.
#[derive(Debug)]
pub struct ResettableSleep(Pin<Box<tokio::time::Sleep>>);

impl ResettableSleep {
    /// A timer that fires after `duration`.
    pub fn after(duration: Duration) -> Self {
        Self(Box::pin(tokio::time::sleep(duration)))
    }

    /// Resets it to fire `duration` from now.
    pub fn reset(&mut self, duration: Duration) {
        self.0.as_mut().reset(tokio::time::Instant::now() + duration);
    }

    /// Whether it has fired; if not, it wakes the task when it fires.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }
}

/// Suspends the current thread. Use it for back-off; to wait for an event, wait for the event.
pub fn sleep_blocking(duration: Duration) {
    std::thread::sleep(duration);
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_slewed_clock_follows_steps_slowly_and_never_stands_still() {
        let (begin, second) = (Timestamp::from_micros(1_800_000_000_000_000), Duration::from_secs(1));
        for step in [3600i64, -3600, 10 * 365 * 24 * 3600] {
            let mut clock = SlewedClock::new(begin, second);
            let mut last = begin;
            let minutes = 36_000 / 60 + 10;
            for minute in 1..=minutes {
                let passed = Duration::from_secs(60 * minute);
                let wall = Timestamp::from_micros(begin.after(passed).micros() + step * 1_000_000);
                let now = clock.advance(wall, second + passed);
                let gained = now.micros() - last.micros();
                assert!((54_000_000..=60_300_000).contains(&gained), "{step}: {gained} in a minute");
                last = now;
            }
            let right = begin.after(Duration::from_secs(60 * minutes)).micros() + step * 1_000_000;
            assert_eq!(last.micros() == right, step == -3600, "{step}");
        }
        let mut clock = SlewedClock::new(begin, second);
        clock.raise(begin.after(second));
        assert_eq!(clock.read(begin, second), begin.after(second));
    }

    #[test]
    fn no_random_byte_is_given_twice() {
        let given: HashSet<[u8; 10]> = (0..10_000).map(|_| random()).collect();
        assert_eq!(given.len(), 10_000);
        let mut supply = RandomBuffer { bytes: [1; 512], left: 512 };
        let _: [u8; 100] = supply.take();
        assert_eq!((supply.left, &supply.bytes[412..]), (412, [0; 100].as_slice()));
        let _: [u8; 500] = supply.take();
        assert!(supply.left == 12 && supply.bytes[..12] != [1; 12]);
    }
}
