//! A job's log on its way to the server: lines are batched, sent in order, each once.
//!
//! Always: lines have rising numbers, so a retried call adds none twice; a full buffer makes the handler wait and
//! drops no line; a job without log lines starts no task. After a refusal (the lease is over) lines are discarded.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::wire::{Level, LogLine, LogRequest};
use crate::path::PathBuilder;
use crate::{Client, retry};

/// Lines that wait to be sent.
const WAITING_MAX: usize = 1_000;
/// Lines of one call.
const LINES_MAX: usize = 500;
/// Bytes of one call.
const CALL_BYTES_MAX: usize = 1 << 20;
/// Bytes of a line; the server accepts no more.
const LINE_BYTES_MAX: usize = 16 << 10;
/// How long lines are batched.
const COLLECTED_FOR: Duration = Duration::from_millis(200);

enum LogCommand {
    Line(LogLine),
    /// Answered when everything before it was sent.
    Flush(oneshot::Sender<()>),
}

/// The log of one execution.
pub(super) struct LogBuffer {
    client: Client,
    execution_id: String,
    /// Cancelled when the lease is over.
    pub lease_over: CancellationToken,
    sender_state: Mutex<SenderState>,
}

#[derive(Default)]
enum SenderState {
    /// No line came yet.
    #[default]
    Unused,
    Open(mpsc::Sender<LogCommand>),
    /// The execution has ended.
    Closed,
}

impl LogBuffer {
    pub(super) fn new(client: Client, execution_id: String) -> Self {
        Self { client, execution_id, lease_over: CancellationToken::new(), sender_state: Mutex::default() }
    }

    pub(super) async fn add(&self, level: Level, mut message: String) {
        let fits = |end: &usize| message.is_char_boundary(*end);
        if let Some(end) = (0..=LINE_BYTES_MAX.min(message.len())).rev().find(fits) {
            message.truncate(end);
        }
        if let Some(sender) = self.sender() {
            // The receiver is gone only after a refusal.
            let _ = sender.send(LogCommand::Line(LogLine { level, message })).await;
        }
    }

    /// Waits until all lines were sent; accepts no more.
    pub(super) async fn close(&self) {
        let way = std::mem::replace(
            &mut *self.sender_state.lock().unwrap_or_else(PoisonError::into_inner),
            SenderState::Closed,
        );
        let SenderState::Open(sender) = way else { return };
        let (sent, all_sent) = oneshot::channel();
        if sender.send(LogCommand::Flush(sent)).await.is_ok() {
            let _ = all_sent.await;
        }
    }

    fn sender(&self) -> Option<mpsc::Sender<LogCommand>> {
        let mut way = self.sender_state.lock().unwrap_or_else(PoisonError::into_inner);
        match &*way {
            SenderState::Open(sender) => Some(sender.clone()),
            SenderState::Closed => None,
            SenderState::Unused => {
                let (sender, receiver) = mpsc::channel(WAITING_MAX);
                let target = LogUploader {
                    client: self.client.clone(),
                    execution_id: self.execution_id.clone(),
                    gone: self.lease_over.clone(),
                };
                tokio::spawn(target.send_all(receiver));
                *way = SenderState::Open(sender.clone());
                Some(sender)
            }
        }
    }
}

/// Sends lines.
struct LogUploader {
    client: Client,
    execution_id: String,
    gone: CancellationToken,
}

impl LogUploader {
    async fn send_all(self, mut entries: mpsc::Receiver<LogCommand>) {
        let (mut next_seq, mut waiting) = (1, Vec::with_capacity(LINES_MAX));
        while entries.recv_many(&mut waiting, LINES_MAX).await > 0 {
            collect_lines(&mut entries, &mut waiting).await;
            let (mut flushed, mut lines) = (Vec::new(), Vec::with_capacity(waiting.len()));
            for entry in waiting.drain(..) {
                match entry {
                    LogCommand::Line(line) => lines.push(line),
                    LogCommand::Flush(sent) => flushed.push(sent),
                }
            }
            for part in split_calls(&lines) {
                if !self.send(&LogRequest { first_seq: next_seq, lines: part }).await {
                    return;
                }
                next_seq += part.len() as u64;
            }
            for sent in flushed {
                // The flush may have been abandoned.
                let _ = sent.send(());
            }
        }
    }

    /// Sends lines until the server accepts or refuses them.
    async fn send(&self, lines: &LogRequest<'_>) -> bool {
        let mut tries = 0;
        while !self.gone.is_cancelled() {
            let path =
                PathBuilder::new("/api/v1/executions").segment(&self.execution_id).literal("/logs").build();
            let Ok(path) = path else { return false };
            match self.client.post(path, lines, "").await {
                Ok(_) => return true,
                Err(error) if error.is_temporary() => {
                    let wait = retry::backoff(tries, &error, baton_env::random_u64());
                    let _ = tokio::time::timeout(wait, self.gone.cancelled()).await;
                    tries += 1;
                }
                Err(error) => {
                    tracing::warn!(execution_id = self.execution_id, %error, "the log is not wanted");
                    return false;
                }
            }
        }
        false
    }
}

/// Waits a moment for more lines, unless there are enough or a flush waits.
async fn collect_lines(entries: &mut mpsc::Receiver<LogCommand>, waiting: &mut Vec<LogCommand>) {
    if waiting.len() >= LINES_MAX || waiting.iter().any(|entry| matches!(entry, LogCommand::Flush(_))) {
        return;
    }
    baton_env::sleep(COLLECTED_FOR).await;
    while waiting.len() < LINES_MAX
        && let Ok(entry) = entries.try_recv()
    {
        waiting.push(entry);
    }
}

/// The lines in runs that fit a call.
fn split_calls(mut lines: &[LogLine]) -> impl Iterator<Item = &[LogLine]> {
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |line: &&LogLine| {
            bytes += line.message.len();
            bytes <= CALL_BYTES_MAX
        };
        let count = lines.iter().take_while(fits).count();
        let (part, rest) = lines.split_at(count);
        lines = rest;
        (!part.is_empty()).then_some(part)
    })
}
