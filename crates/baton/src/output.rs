//! Output: text for people, JSON lines for programs.

use std::io::{self, BufWriter, StdoutLock, Write};
use std::time::Duration;

use baton_client::{Message, RawValue};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

/// How often a command that waits checks whether its output is still read.
const READER_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Waits until no process reads stdout any more, as after `| head -1`. Never returns for a file or a terminal.
pub async fn reader_gone() {
    loop {
        let stdout = io::stdout();
        let mut polled = [PollFd::new(&stdout, PollFlags::empty())];
        let now = Timespec::default();
        let is_ready = poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0);
        if is_ready && polled[0].revents().intersects(PollFlags::ERR | PollFlags::HUP) {
            return;
        }
        baton_env::sleep(READER_CHECK_INTERVAL).await;
    }
}

/// Stdout, buffered until [`flush`](Self::flush).
pub struct Output {
    out: BufWriter<StdoutLock<'static>>,
    json: bool,
}

/// A message for programs.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct MessageLine<'a> {
    id: &'a str,
    transaction_id: &'a str,
    queue: &'a str,
    partition: &'a str,
    partition_id: &'a str,
    offset: u64,
    created_at: &'a str,
    delivery_attempt: u32,
    consumer_group: &'a str,
    lease_id: Option<&'a str>,
    trace_id: Option<&'a str>,
    producer_sub: Option<&'a str>,
    data: &'a RawValue,
}

impl Output {
    /// JSON when `json`, otherwise text.
    pub fn new(json: bool) -> Self {
        Self { out: BufWriter::new(io::stdout().lock()), json }
    }

    /// Whether it prints JSON.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Prints a line of text.
    pub fn text(&mut self, text: impl std::fmt::Display) -> io::Result<()> {
        writeln!(self.out, "{text}")
    }

    /// Prints a line of JSON.
    pub fn json(&mut self, value: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.out, value)?;
        self.out.write_all(b"\n")
    }

    /// Prints a message.
    pub fn message(&mut self, message: &Message) -> io::Result<()> {
        if self.json {
            return self.json(&MessageLine {
                id: message.id(),
                transaction_id: message.transaction_id(),
                queue: message.queue(),
                partition: message.partition(),
                partition_id: message.partition_id(),
                offset: message.offset(),
                created_at: message.created_at(),
                delivery_attempt: message.attempt(),
                consumer_group: message.group(),
                lease_id: message.lease_id(),
                trace_id: message.trace_id(),
                producer_sub: message.producer(),
                data: message.raw(),
            });
        }
        let (time, partition, offset) = (message.created_at(), message.partition(), message.offset());
        writeln!(self.out, "{time}  {partition}:{offset}  {}", message.raw())
    }

    /// Writes the buffer to stdout.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
