//! Producers and consumers: requests of the queue API, written and parsed with little overhead.
//!
//! Always: a push counts when all of its messages were answered `queued`, an ack when all of its messages were
//! answered with success; any other answer ends the run with the server's message.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use baton_env::Stopwatch;
use serde::Deserialize;

use super::check::DeliveryCheck;
use super::histogram::Histogram;
use super::payload::{self, Stamp};
use super::wire::Connection;
use crate::token::Token;

const PUSH: &str = "/api/v1/push";
const ACK: &str = "/api/v1/ack/batch";
/// How long a consumer's pop waits at the server.
const POP_WAIT: Duration = Duration::from_secs(30);
/// Partitions that one pop may claim; the server's own limit.
const POP_PARTITIONS_MAX: usize = baton_types::limits::POP_PARTITIONS_MAX as usize;

/// The parameters that producers and consumers of one run share.
#[derive(Debug)]
pub struct Load {
    /// The server's `HOST:PORT`.
    pub host: String,
    /// The token to send.
    pub token: Option<Token>,
    /// A queue that only this run uses.
    pub queue: String,
    /// How many producers push.
    pub producers: usize,
    /// The number of partitions.
    pub partitions: usize,
    /// Messages of one push, and the most of one pop.
    pub batch: usize,
    /// The size of each payload.
    pub payload_bytes: usize,
    /// Whether the messages of one push go to different partitions, or all to one.
    pub scatter: bool,
    /// Whether messages have transaction ids.
    pub ids: bool,
    /// The clock of the run.
    pub clock: Stopwatch,
}

impl Load {
    /// A unique name.
    pub fn fresh_queue() -> String {
        format!("bench-{:016x}", baton_env::random_u64())
    }

    fn now(&self) -> u64 {
        u64::try_from(self.clock.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// The partition of message `sequence` of `producer`: producers rotate over partitions of their own, unless there
    /// are fewer partitions than producers.
    fn partition(&self, producer: usize, sequence: u32) -> usize {
        let step = sequence as usize / if self.scatter { 1 } else { self.batch };
        if self.partitions < self.producers {
            return (producer + step) % self.partitions;
        }
        let own = (self.partitions - producer).div_ceil(self.producers);
        producer + self.producers * (step % own)
    }
}

/// Pushes batches on a connection of its own.
pub struct Producer {
    connection: Connection,
    writer: PushWriter,
    /// How long each push took.
    pub latency: Histogram,
}

impl Producer {
    /// Producer `number` of the load's producers.
    pub async fn open(load: Arc<Load>, number: usize) -> Result<Self> {
        let connection = Connection::open(&load.host, load.token.as_ref()).await?;
        let writer = PushWriter { load, number, body: Vec::new(), sent: 0 };
        Ok(Self { connection, writer, latency: Histogram::default() })
    }

    /// How many messages it has pushed.
    pub fn sent(&self) -> u64 {
        self.writer.sent.into()
    }

    /// Pushes the next `count` messages and waits until the server has stored them.
    pub async fn push(&mut self, count: usize) -> Result<()> {
        let at = self.writer.write(count)?;
        push(&mut self.connection, &self.writer.body, count).await?;
        self.latency.record(Duration::from_nanos(self.writer.load.now() - at));
        Ok(())
    }
}

/// Writes the pushes of one producer.
struct PushWriter {
    load: Arc<Load>,
    number: usize,
    body: Vec<u8>,
    sent: u32,
}

impl PushWriter {
    /// Writes a push of the next `count` messages. Returns the time in it.
    fn write(&mut self, count: usize) -> Result<u64> {
        let load = &*self.load;
        let at = load.now();
        self.body.clear();
        self.body.extend_from_slice(br#"{"items":["#);
        for sequence in self.sent..self.sent + u32::try_from(count)? {
            let partition = load.partition(self.number, sequence);
            write!(self.body, r#"{{"queue":"{}","partition":"p{partition}","#, load.queue)?;
            if load.ids {
                write!(self.body, r#""transactionId":"{}-{sequence}","#, self.number)?;
            }
            self.body.extend_from_slice(br#""payload":"#);
            let (producer, partition) = (u32::try_from(self.number)?, u32::try_from(partition)?);
            payload::append(&mut self.body, Stamp { producer, partition, sequence, at }, load.payload_bytes);
            self.body.extend_from_slice(b"},");
        }
        self.body.pop();
        self.body.extend_from_slice(b"]}");
        self.sent += u32::try_from(count)?;
        Ok(at)
    }
}

/// Sends a push of `count` messages and checks that all were stored.
pub async fn push(connection: &mut Connection, body: &[u8], count: usize) -> Result<()> {
    let (status, answer) = connection.post(PUSH, body).await?;
    check_push(status, answer, count)
}

/// Checks that all `count` messages of a push were stored.
fn check_push(status: u16, answer: &[u8], count: usize) -> Result<()> {
    let answer = std::str::from_utf8(answer)?;
    let queued = answer.matches(r#""status":"queued""#).count();
    ensure!(
        status == 201 && queued == count,
        "a push of {count} was answered {status} {}",
        shortened(answer)
    );
    Ok(())
}

/// Pops and acks on a connection of its own.
pub struct Consumer {
    connection: Connection,
    reader: PopReader,
}

/// Parses pop responses of one consumer, and writes its acks.
struct PopReader {
    load: Arc<Load>,
    path: String,
    group: String,
    body: Vec<u8>,
    latency: Histogram,
}

#[derive(Deserialize)]
struct PopResponse<'a> {
    #[serde(borrow)]
    messages: Vec<Message<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Message<'a> {
    transaction_id: &'a str,
    partition_id: &'a str,
    lease_id: &'a str,
    data: Stamp,
}

impl Consumer {
    /// A consumer of the group `group`, or of the default group when that is empty.
    pub async fn open(load: Arc<Load>, group: &str) -> Result<Self> {
        let connection = Connection::open(&load.host, load.token.as_ref()).await?;
        Ok(Self { connection, reader: PopReader::new(load, group) })
    }

    /// Waits for messages, records them, acks them, and returns their number; 0 when the wait timed out.
    pub async fn consume(&mut self, seen: &DeliveryCheck) -> Result<usize> {
        let (status, answer) = self.connection.get(&self.reader.path).await?;
        let count = self.reader.read(status, answer, seen)?;
        ack(&mut self.connection, &self.reader.body, count).await?;
        Ok(count)
    }

    /// The latency of the messages.
    pub fn latency(self) -> Histogram {
        self.reader.latency
    }
}

/// Checks that a group receives nothing more.
pub async fn expect_nothing(load: &Load, group: &str) -> Result<()> {
    let mut connection = Connection::open(&load.host, load.token.as_ref()).await?;
    let path = format!("/api/v1/pop/queue/{}?batch=1{}", load.queue, group_query(group));
    let (status, answer) = connection.get(&path).await?;
    let answer = shortened(&String::from_utf8_lossy(answer));
    ensure!(status == 204, "everything was acked, and another pop was answered {status} {answer}");
    Ok(())
}

/// The query parameter of a group.
fn group_query(group: &str) -> String {
    if group.is_empty() { String::new() } else { format!("&consumerGroup={group}") }
}

impl PopReader {
    fn new(load: Arc<Load>, group: &str) -> Self {
        let claims = if load.scatter { load.batch.min(POP_PARTITIONS_MAX) } else { 1 };
        let (queue, batch, wait) = (&load.queue, load.batch, POP_WAIT.as_millis());
        let path = format!(
            "/api/v1/pop/queue/{queue}?batch={batch}&partitions={claims}&wait=true&timeout={wait}{}",
            group_query(group)
        );
        let group = group.to_owned();
        Self { load, path, group, body: Vec::new(), latency: Histogram::default() }
    }

    /// Records the messages of a response, writes their acks, and returns their number.
    fn read(&mut self, status: u16, answer: &[u8], seen: &DeliveryCheck) -> Result<usize> {
        if status == 204 {
            return Ok(0);
        }
        let received = self.load.now();
        ensure!(status == 200, "a pop was answered {status} {}", shortened(&String::from_utf8_lossy(answer)));
        let popped: PopResponse<'_> =
            serde_json::from_str(std::str::from_utf8(answer)?).context("a pop's answer is not understood")?;
        for message in &popped.messages {
            self.latency.record(Duration::from_nanos(received.saturating_sub(message.data.at)));
            seen.record(message.data)?;
        }
        write_acks(&mut self.body, &popped.messages, &self.group)?;
        Ok(popped.messages.len())
    }
}

/// Sends the acks of `count` messages and checks that all are finished.
async fn ack(connection: &mut Connection, body: &[u8], count: usize) -> Result<()> {
    if count == 0 {
        return Ok(());
    }
    let (status, answer) = connection.post(ACK, body).await?;
    let answer = std::str::from_utf8(answer)?;
    let done = answer.matches(r#""success":true"#).count();
    if status != 200 || done != count {
        bail!("an ack of {count} was answered {status} {}", shortened(answer));
    }
    Ok(())
}

/// Alternates push, pop and ack on one connection, and pipelines the pop with its push.
pub struct AlternatingClient {
    connection: Connection,
    writer: PushWriter,
    reader: PopReader,
}

impl AlternatingClient {
    /// The only producer and the only consumer of a load.
    pub async fn open(load: &Arc<Load>) -> Result<Self> {
        let connection = Connection::open(&load.host, load.token.as_ref()).await?;
        let writer = PushWriter { load: load.clone(), number: 0, body: Vec::new(), sent: 0 };
        Ok(Self { connection, writer, reader: PopReader::new(load.clone(), "") })
    }

    /// How many messages it has pushed.
    pub fn sent(&self) -> u64 {
        self.writer.sent.into()
    }

    /// Pushes `count` messages, and finishes as many.
    pub async fn run_round(&mut self, count: usize, seen: &DeliveryCheck) -> Result<()> {
        let Self { connection, writer, reader } = self;
        writer.write(count)?;
        connection.add_post(PUSH, &writer.body)?;
        connection.add_get(&reader.path)?;
        connection.send().await?;
        let (status, answer) = connection.answer().await?;
        check_push(status, answer, count)?;
        let mut finished = 0;
        loop {
            let (status, answer) = connection.answer().await?;
            let taken = reader.read(status, answer, seen)?;
            ack(connection, &reader.body, taken).await?;
            finished += taken;
            if finished >= count {
                return Ok(());
            }
            connection.add_get(&reader.path)?;
            connection.send().await?;
        }
    }

    /// The latency of the messages.
    pub fn latency(self) -> Histogram {
        self.reader.latency
    }
}

fn write_acks(body: &mut Vec<u8>, messages: &[Message<'_>], group: &str) -> Result<()> {
    body.clear();
    body.extend_from_slice(br#"{"acknowledgments":["#);
    for Message { transaction_id, partition_id, lease_id, .. } in messages {
        write!(
            body,
            r#"{{"transactionId":"{transaction_id}","partitionId":"{partition_id}","leaseId":"{lease_id}"}},"#
        )?;
    }
    body.pop();
    match group {
        "" => body.extend_from_slice(b"]}"),
        group => write!(body, r#"],"consumerGroup":"{group}"}}"#)?,
    }
    Ok(())
}

/// The beginning of a response, for an error message.
fn shortened(answer: &str) -> String {
    answer.chars().take(300).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(producers: usize, partitions: usize, scatter: bool) -> Load {
        Load {
            token: None,
            host: String::new(),
            queue: "q".into(),
            producers,
            partitions,
            batch: 10,
            payload_bytes: 300,
            scatter,
            ids: false,
            clock: Stopwatch::start(),
        }
    }

    #[test]
    fn every_partition_is_used_and_has_one_producer() {
        for (producers, partitions) in [(1, 1), (3, 10), (8, 100)] {
            let load = load(producers, partitions, true);
            let mut owner = vec![None; partitions];
            for producer in 0..producers {
                for sequence in 0..1_000 {
                    let partition = load.partition(producer, sequence);
                    assert_eq!(*owner[partition].get_or_insert(producer), producer);
                }
            }
            assert!(owner.iter().all(Option::is_some), "{producers} {partitions}");
        }
    }

    #[test]
    fn a_batch_that_is_not_scattered_goes_to_one_partition() {
        let load = load(2, 10, false);
        let used: Vec<_> = (0..30).map(|sequence| load.partition(1, sequence)).collect();
        assert_eq!((used[0], used[9], used[10], used[29]), (1, 1, 3, 5));
    }

    #[test]
    fn acks_are_json_with_and_without_a_group() {
        let stamp = Stamp { producer: 0, partition: 0, sequence: 0, at: 0 };
        let message = Message { transaction_id: "t", partition_id: "p", lease_id: "l", data: stamp };
        let mut body = Vec::new();
        for (group, expected) in [("", None), ("g", Some("g"))] {
            write_acks(&mut body, std::slice::from_ref(&message), group).unwrap();
            let json: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(json["acknowledgments"][0]["leaseId"], "l");
            assert_eq!(json["consumerGroup"].as_str(), expected);
        }
    }
}
