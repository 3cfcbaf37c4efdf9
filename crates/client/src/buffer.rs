//! Buffered pushes: sends messages in the background, in batches.
//!
//! A producer that pushes small messages one by one pays a round trip for each; a buffer pays one for many. Always:
//! messages arrive in the order of their pushes, one request at a time. At most [`BATCHES_MAX`] batches and
//! [`BYTES_MAX`] bytes wait; then a push waits for room. After a temporary error the buffer sends its messages again,
//! which is safe because every message has a transaction id. Not here: anything on disk, so messages that are not
//! flushed are lost with the process. Start at [`Buffer`].

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_env::Stopwatch;
use baton_types::limits;
use bytes::Bytes;
use serde::Serialize;
use tokio::sync::{Notify, Semaphore, SemaphorePermit, watch};

use crate::push::{self, PushBody};
use crate::retry::{self, RetryPolicy};
use crate::{Client, Error, Queue};

/// Batches that may wait: one in flight, one full, and room to go on meanwhile.
const BATCHES_MAX: usize = 4;

/// Bytes that may wait, unless one message alone is larger.
const BYTES_MAX: u32 = 16 << 20;

/// The buffer sends a batch of this many bytes, even with room for more messages.
const BATCH_BYTES: u32 = BYTES_MAX / 4;

const _: () = assert!((BYTES_MAX as usize) < limits::BODY_BYTES_MAX);

/// Messages to push to one queue.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// # let server = baton_server::testing().await?;
/// # let baton = baton_client::Client::new(server.url())?;
/// use std::time::Duration;
///
/// let clicks = baton.queue("clicks").buffer(500, Duration::from_millis(100));
/// for n in 0..10_000 {
///     clicks.push(&n).await?;
/// }
/// clicks.close().await?;
/// # Ok(())
/// # }
/// ```
///
/// Dropping a buffer sends its messages once, as long as the runtime lives; only [`close`](Self::close) reports
/// whether that worked.
#[derive(Debug)]
pub struct Buffer {
    shared: Arc<BufferShared>,
}

#[derive(Debug)]
struct BufferShared {
    client: Client,
    queue: Box<str>,
    head: Vec<u8>,
    batch: usize,
    after: Duration,
    /// Permits for messages and bytes. Semaphores are fair, so waiting pushes keep their order.
    room: Semaphore,
    bytes_room: Semaphore,
    /// Never locked across an await.
    state: Mutex<BufferState>,
    /// Wakes the sender.
    work: Notify,
    /// Wakes flushes.
    progress: watch::Sender<SendProgress>,
}

#[derive(Debug)]
struct BufferState {
    items: PushBody,
    bytes: u32,
    /// When the oldest waiting message was pushed.
    oldest_waiting: Option<Stopwatch>,
    pushed: u64,
    /// Pushes that wait for bytes. While there are any, the sender sends even a small batch.
    byte_waiters: usize,
    flush: bool,
    closed: bool,
    /// The last failure, until a caller gets it or a retry succeeds.
    failure: Option<SendFailure>,
}

#[derive(Debug)]
struct SendFailure {
    error: Error,
    /// Whether it lost messages.
    is_final: bool,
}

/// The progress of the sender.
#[derive(Clone, Copy, Debug, Default)]
struct SendProgress {
    /// Messages that are stored or lost.
    settled: u64,
    /// Failed attempts that left their messages waiting.
    failures: u64,
}

/// One request of the sender.
struct PushBatch {
    body: Bytes,
    count: usize,
    bytes: u32,
}

impl Queue {
    /// Pushes in the background: sends messages together once there are `count` of them, or `after` this time. Needs
    /// a tokio runtime.
    pub fn buffer(&self, count: usize, after: Duration) -> Buffer {
        Buffer::new(self, count, after)
    }
}

impl Buffer {
    pub(crate) fn new(queue: &Queue, batch: usize, after: Duration) -> Self {
        let batch = batch.clamp(1, limits::BATCH_ITEMS_MAX / BATCHES_MAX);
        let state = BufferState {
            items: PushBody::default(),
            bytes: 0,
            oldest_waiting: None,
            pushed: 0,
            byte_waiters: 0,
            flush: false,
            closed: false,
            failure: None,
        };
        let shared = Arc::new(BufferShared {
            client: queue.client().clone(),
            queue: queue.name().into(),
            head: push::encode_item_head(queue),
            batch,
            after,
            room: Semaphore::new(batch * BATCHES_MAX),
            bytes_room: Semaphore::new(BYTES_MAX as usize),
            state: Mutex::new(state),
            work: Notify::new(),
            progress: watch::Sender::new(SendProgress::default()),
        });
        tokio::spawn(send_all(Arc::clone(&shared)));
        Self { shared }
    }

    /// Adds a message, and waits for room when the buffer is full. An error may be about earlier messages: the next
    /// caller gets the error of messages that the server refused for good, once.
    pub async fn push<T: Serialize + ?Sized>(&self, payload: &T) -> Result<(), Error> {
        let shared = &self.shared;
        shared.lock().check_open()?;
        let id = shared.client.transport().transaction_ids.next_id();
        let item = push::encode_item(&shared.head, payload, id)?;
        if item.len() + 64 > limits::BODY_BYTES_MAX {
            let (bytes, max) = (item.len(), limits::BODY_BYTES_MAX);
            return Err(Error::Invalid(format!("a message of {bytes} bytes is over the limit of {max}")));
        }
        let bytes = u32::try_from(item.len()).unwrap_or(u32::MAX).min(BYTES_MAX);
        // The sender releases the permit once the message is stored or lost.
        let room = shared.room.acquire().await.map_err(|_| Error::Closed)?;
        let bytes_room = shared.reserve_bytes(bytes).await?;
        let wake = {
            let mut state = shared.lock();
            state.check_open()?;
            state.items.append(&item);
            state.bytes += bytes;
            state.pushed += 1;
            state.oldest_waiting.get_or_insert_with(Stopwatch::start);
            room.forget();
            bytes_room.forget();
            // The first message starts the timer.
            state.items.count == 1 || shared.is_ready(&state)
        };
        if wake {
            shared.work.notify_one();
        }
        Ok(())
    }

    /// Sends all messages and waits until the server has them. After a temporary error they are still in the buffer:
    /// flush again.
    pub async fn flush(&self) -> Result<(), Error> {
        let shared = &self.shared;
        let mut progress = shared.progress.subscribe();
        let mut failures = progress.borrow_and_update().failures;
        let goal = {
            let mut state = shared.lock();
            state.flush = true;
            state.pushed
        };
        shared.work.notify_one();
        loop {
            let news = progress.wait_for(|p| p.settled >= goal || p.failures > failures).await;
            let news = *news.map_err(|_| Error::Closed)?;
            match shared.lock().failure.take() {
                Some(problem) => return Err(problem.error),
                None if news.settled >= goal => return Ok(()),
                None => failures = news.failures,
            }
        }
    }

    /// Flushes and closes the buffer. On an error, unsent messages are lost: to keep trying, flush until it succeeds
    /// and then close.
    pub async fn close(self) -> Result<(), Error> {
        self.shared.begin_close();
        self.flush().await
    }

    /// Messages that the server does not have yet.
    pub fn waiting(&self) -> u64 {
        let pushed = self.shared.lock().pushed;
        pushed - self.shared.progress.borrow().settled.min(pushed)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.shared.begin_close();
    }
}

impl BufferState {
    /// Refuses a push after a loss of earlier messages, or when the buffer is closed.
    fn check_open(&mut self) -> Result<(), Error> {
        match self.failure.take_if(|problem| problem.is_final) {
            Some(problem) => Err(problem.error),
            None if self.closed => Err(Error::Closed),
            None => Ok(()),
        }
    }

    /// Records the result of an attempt. Returns how long to wait before the next, if there is one.
    fn record_attempt(&mut self, error: Option<Error>, tries: u32) -> Option<Duration> {
        let Some(error) = error else {
            self.failure.take_if(|problem| !problem.is_final);
            return None;
        };
        let given_up = self.closed || !error.is_temporary();
        tracing::warn!(%error, given_up, "buffered push failed");
        let wait = retry::backoff(tries, &error, baton_env::random_u64());
        if !self.failure.as_ref().is_some_and(|known| known.is_final) {
            self.failure = Some(SendFailure { error, is_final: given_up });
        }
        (!given_up).then_some(wait)
    }

    fn take_batch(&mut self) -> PushBatch {
        self.oldest_waiting = None;
        self.flush = false;
        let items = std::mem::take(&mut self.items);
        PushBatch { count: items.count, bytes: std::mem::take(&mut self.bytes), body: items.finish() }
    }
}

/// What the sender does next.
enum NextSend {
    Now,
    After(Duration),
    WhenNotified,
    Never,
}

impl BufferShared {
    fn lock(&self) -> MutexGuard<'_, BufferState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin_close(&self) {
        self.lock().closed = true;
        self.work.notify_one();
    }

    fn next_send(&self) -> NextSend {
        let state = self.lock();
        let Some(waiting) = state.oldest_waiting else {
            return if state.closed { NextSend::Never } else { NextSend::WhenNotified };
        };
        let left = self.after.saturating_sub(waiting.elapsed());
        if self.is_ready(&state) || left.is_zero() { NextSend::Now } else { NextSend::After(left) }
    }

    /// Whether to send before the time is up.
    fn is_ready(&self, state: &BufferState) -> bool {
        let full = state.items.count >= self.batch || state.bytes >= BATCH_BYTES;
        full || state.flush || state.closed || state.byte_waiters > 0
    }

    /// Reserves bytes; wakes the sender when there are too few.
    async fn reserve_bytes(&self, bytes: u32) -> Result<SemaphorePermit<'_>, Error> {
        if let Ok(room) = self.bytes_room.try_acquire_many(bytes) {
            return Ok(room);
        }
        let _starving = ByteWaiter::new(self);
        self.bytes_room.acquire_many(bytes).await.map_err(|_| Error::Closed)
    }

    /// Sends a batch until the server has it or refuses it for good.
    async fn deliver(&self, batch: &PushBatch) {
        let mut tries = 0;
        loop {
            let answer = push::push(&self.client, batch.body.clone(), RetryPolicy::Always, &self.queue).await;
            let outcome = answer.and_then(|answer| push::parse_confirmation(&answer, batch.count));
            let Some(wait) = self.lock().record_attempt(outcome.err(), tries) else { return };
            self.progress.send_modify(|p| p.failures += 1);
            baton_env::sleep(wait).await;
            tries += 1;
        }
    }
}

/// Counts a push that waits for bytes, even if its caller gives up.
struct ByteWaiter<'a>(&'a BufferShared);

impl<'a> ByteWaiter<'a> {
    fn new(shared: &'a BufferShared) -> Self {
        shared.lock().byte_waiters += 1;
        shared.work.notify_one();
        Self(shared)
    }
}

impl Drop for ByteWaiter<'_> {
    fn drop(&mut self) {
        self.0.lock().byte_waiters -= 1;
    }
}

/// The sender: sends batches until the buffer is closed and empty.
async fn send_all(shared: Arc<BufferShared>) {
    loop {
        match shared.next_send() {
            NextSend::Never => return,
            NextSend::WhenNotified => shared.work.notified().await,
            NextSend::After(left) => tokio::select! {
                () = baton_env::sleep(left) => {}
                () = shared.work.notified() => {}
            },
            NextSend::Now => {
                let batch = shared.lock().take_batch();
                shared.deliver(&batch).await;
                shared.room.add_permits(batch.count);
                shared.bytes_room.add_permits(batch.bytes as usize);
                shared.progress.send_modify(|p| p.settled += batch.count as u64);
            }
        }
    }
}
