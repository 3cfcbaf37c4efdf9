//! NATS JetStream: a stream in files, durable pull consumers, acks that are confirmed.
//!
//! Either one consumer that all connections share, with an ack for each message, or, with `--lanes`, a subject
//! and a consumer for each pair of connections, with one ack for all that came before it: what NATS offers to
//! those who can split their work by hand.
//!
//! A batch goes out as many publishes whose acks are awaited together or, with `--atomic`, as one atomic batch
//! with one ack (server 2.12 and later). Confirmations of acks share one inbox per connection, which costs the
//! server less than a subscription for each.

use std::future::IntoFuture;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use async_nats::jetstream::consumer::pull;
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer};
use async_nats::jetstream::stream::{Config, StorageType};
use async_nats::jetstream::{self, context::Context as JetStream};
use async_nats::{Client, HeaderMap, Subject, Subscriber};
use futures_util::StreamExt;
use futures_util::future::try_join_all;
use futures_util::stream::ReadyChunks;

use crate::message::{Stamp, stamp};
use crate::system;

const STREAM: &str = "bench";

pub struct Nats {
    pub url: String,
    pub batch: usize,
    /// Whether a batch is one atomic batch instead of many publishes.
    pub atomic: bool,
    /// Subjects and consumers, each with cumulative acks; 0 is one consumer for all, with an ack per message.
    pub lanes: usize,
}

impl Nats {
    fn ack_policy(&self) -> AckPolicy {
        if self.lanes == 0 { AckPolicy::Explicit } else { AckPolicy::All }
    }

    async fn connect(&self) -> Result<(Client, JetStream)> {
        let client = async_nats::ConnectOptions::new().connect(&self.url).await?;
        Ok((client.clone(), jetstream::new(client)))
    }
}

fn subject(lane: usize) -> String {
    format!("{STREAM}.{lane}")
}

fn consumer(lane: usize) -> String {
    format!("workers-{lane}")
}

impl system::System for Nats {
    type Link = Link;

    async fn prepare(&self) -> Result<()> {
        let (_, jetstream) = self.connect().await?;
        if jetstream.get_stream(STREAM).await.is_ok() {
            jetstream.delete_stream(STREAM).await?;
        }
        let config = Config {
            name: STREAM.into(),
            subjects: vec![format!("{STREAM}.*")],
            storage: StorageType::File,
            allow_atomic_publish: self.atomic,
            ..Config::default()
        };
        let stream = jetstream.create_stream(config).await?;
        for lane in 0..self.lanes.max(1) {
            let config = pull::Config {
                durable_name: Some(consumer(lane)),
                filter_subject: subject(lane),
                ack_policy: self.ack_policy(),
                ack_wait: Duration::from_secs(300),
                max_ack_pending: 1_000_000,
                ..pull::Config::default()
            };
            stream.create_consumer(config).await?;
        }
        Ok(())
    }

    async fn open(&self, number: usize) -> Result<Link> {
        let (client, jetstream) = self.connect().await?;
        let confirmations = client.new_inbox();
        let confirmed = client.subscribe(confirmations.clone()).await?;
        let lane = number % self.lanes.max(1);
        Ok(Link {
            client,
            jetstream,
            lane,
            subject: subject(lane).into(),
            batch: self.batch,
            atomic: self.atomic,
            cumulative: self.lanes > 0,
            batches: 0,
            incoming: None,
            confirmations: confirmations.into(),
            confirmed,
        })
    }

    async fn unfinished(&self) -> Result<u64> {
        let (_, jetstream) = self.connect().await?;
        let mut unfinished = 0;
        for lane in 0..self.lanes.max(1) {
            let mut consumer: PullConsumer =
                jetstream.get_consumer_from_stream(consumer(lane), STREAM).await?;
            let info = consumer.info().await?;
            unfinished += info.num_pending + info.num_ack_pending as u64;
        }
        Ok(unfinished)
    }
}

pub struct Link {
    client: Client,
    jetstream: JetStream,
    lane: usize,
    subject: Subject,
    batch: usize,
    atomic: bool,
    cumulative: bool,
    batches: u64,
    incoming: Option<ReadyChunks<pull::Stream>>,
    confirmations: Subject,
    confirmed: Subscriber,
}

impl Link {
    /// Sends the batch as one: only its last message is answered, when all are stored.
    async fn push_atomic(&mut self, batch: Vec<Vec<u8>>) -> Result<()> {
        self.batches += 1;
        let id = format!("{}-{}", self.confirmations, self.batches);
        let last = batch.len();
        for (index, payload) in batch.into_iter().enumerate() {
            let mut headers = HeaderMap::new();
            headers.insert("Nats-Batch-Id", id.as_str());
            headers.insert("Nats-Batch-Sequence", (index + 1).to_string().as_str());
            if index + 1 < last {
                self.client.publish_with_headers(self.subject.clone(), headers, payload.into()).await?;
                continue;
            }
            headers.insert("Nats-Batch-Commit", "1");
            let answer =
                self.client.request_with_headers(self.subject.clone(), headers, payload.into()).await?;
            let answer: serde_json::Value = serde_json::from_slice(&answer.payload)?;
            ensure!(answer["count"] == last, "the batch was not stored: {answer}");
        }
        Ok(())
    }

    async fn incoming(&mut self) -> Result<&mut ReadyChunks<pull::Stream>> {
        if self.incoming.is_none() {
            let consumer: PullConsumer =
                self.jetstream.get_consumer_from_stream(consumer(self.lane), STREAM).await?;
            let messages = consumer.stream().max_messages_per_batch(self.batch * 2).messages().await?;
            self.incoming = Some(messages.ready_chunks(self.batch));
        }
        self.incoming.as_mut().context("just set")
    }
}

impl system::Link for Link {
    type Receipt = Subject;

    async fn push(&mut self, batch: Vec<Vec<u8>>) -> Result<()> {
        if self.atomic && batch.len() > 1 {
            return self.push_atomic(batch).await;
        }
        let mut answers = Vec::with_capacity(batch.len());
        for payload in batch {
            answers.push(self.jetstream.publish(self.subject.clone(), payload.into()).await?.into_future());
        }
        try_join_all(answers).await?;
        Ok(())
    }

    async fn take(&mut self, _most: usize) -> Result<Vec<(Stamp, Subject)>> {
        let messages = self.incoming().await?.next().await.context("the consumer ended")?;
        let mut taken = Vec::with_capacity(messages.len());
        for message in messages {
            let message = message.map_err(|e| anyhow!("the consumer failed: {e}"))?;
            let reply = message.reply.clone().context("a message that cannot be acked")?;
            taken.push((stamp(&message.payload)?, reply));
        }
        Ok(taken)
    }

    async fn finish(&mut self, mut receipts: Vec<Subject>) -> Result<()> {
        if self.cumulative {
            receipts.drain(..receipts.len().saturating_sub(1));
        }
        let count = receipts.len();
        for reply in receipts {
            self.client.publish_with_reply(reply, self.confirmations.clone(), "+ACK".into()).await?;
        }
        for _ in 0..count {
            self.confirmed.next().await.context("the connection ended before an ack was confirmed")?;
        }
        Ok(())
    }
}
