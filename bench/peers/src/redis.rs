//! Redis Streams: XADD in a pipeline, XREADGROUP that blocks, one XACK for all ids of a batch. Redis started
//! with `appendfsync always` answers after the append-only file is on disk, for XADD and XACK alike.

use anyhow::{Context, Result, bail};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Value, cmd, pipe};

use crate::message::{Stamp, stamp};
use crate::system;

const STREAM: &str = "bench";
const GROUP: &str = "workers";
/// How long one XREADGROUP waits; it is asked again at once, so the length hardly matters.
const BLOCK_MILLIS: u32 = 5_000;

pub struct Redis {
    client: Client,
}

impl Redis {
    pub fn new(url: &str) -> Result<Self> {
        Ok(Self { client: Client::open(url)? })
    }

    async fn connect(&self) -> Result<MultiplexedConnection> {
        // The default gives up on an answer after a while, which a blocking read does not survive.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        Ok(self.client.get_multiplexed_async_connection_with_config(&config).await?)
    }
}

impl system::System for Redis {
    type Link = Link;

    async fn prepare(&self) -> Result<()> {
        let mut connection = self.connect().await?;
        let () = cmd("DEL").arg(STREAM).query_async(&mut connection).await?;
        let () = cmd("XGROUP")
            .arg("CREATE")
            .arg(STREAM)
            .arg(GROUP)
            .arg("0")
            .arg("MKSTREAM")
            .query_async(&mut connection)
            .await?;
        Ok(())
    }

    async fn open(&self, number: usize) -> Result<Link> {
        Ok(Link { connection: self.connect().await?, name: format!("worker-{number}") })
    }

    async fn unfinished(&self) -> Result<u64> {
        let mut connection = self.connect().await?;
        let pending: Value = cmd("XPENDING").arg(STREAM).arg(GROUP).query_async(&mut connection).await?;
        let Value::Array(parts) = pending else { bail!("unexpected answer to XPENDING") };
        let Some(Value::Int(pending)) = parts.first() else { bail!("unexpected answer to XPENDING") };
        let undelivered: Value = cmd("XREADGROUP")
            .arg("GROUP")
            .arg(GROUP)
            .arg("last")
            .arg("COUNT")
            .arg(1)
            .arg("STREAMS")
            .arg(STREAM)
            .arg(">")
            .query_async(&mut connection)
            .await?;
        Ok(*pending as u64 + u64::from(undelivered != Value::Nil))
    }
}

pub struct Link {
    connection: MultiplexedConnection,
    name: String,
}

impl system::Link for Link {
    type Receipt = Vec<u8>;

    async fn push(&mut self, batch: Vec<Vec<u8>>) -> Result<()> {
        let mut pipe = pipe();
        for payload in &batch {
            pipe.cmd("XADD").arg(STREAM).arg("*").arg("d").arg(payload).ignore();
        }
        Ok(pipe.query_async(&mut self.connection).await?)
    }

    async fn take(&mut self, most: usize) -> Result<Vec<(Stamp, Vec<u8>)>> {
        loop {
            let answer: Value = cmd("XREADGROUP")
                .arg("GROUP")
                .arg(GROUP)
                .arg(&self.name)
                .arg("COUNT")
                .arg(most)
                .arg("BLOCK")
                .arg(BLOCK_MILLIS)
                .arg("STREAMS")
                .arg(STREAM)
                .arg(">")
                .query_async(&mut self.connection)
                .await?;
            if answer != Value::Nil {
                return entries(answer)
                    .context("unexpected answer to XREADGROUP")?
                    .into_iter()
                    .map(entry)
                    .collect();
            }
        }
    }

    async fn push_and_take(&mut self, batch: Vec<Vec<u8>>, most: usize) -> Result<Vec<(Stamp, Vec<u8>)>> {
        let mut pipe = pipe();
        for payload in &batch {
            pipe.cmd("XADD").arg(STREAM).arg("*").arg("d").arg(payload).ignore();
        }
        // What the pipeline has added is there, so nothing has to be waited for.
        pipe.cmd("XREADGROUP").arg("GROUP").arg(GROUP).arg(&self.name).arg("COUNT").arg(most);
        pipe.arg("STREAMS").arg(STREAM).arg(">");
        let (answer,): (Value,) = pipe.query_async(&mut self.connection).await?;
        entries(answer).context("unexpected answer to XREADGROUP")?.into_iter().map(entry).collect()
    }

    async fn finish(&mut self, receipts: Vec<Vec<u8>>) -> Result<()> {
        let finished: usize =
            cmd("XACK").arg(STREAM).arg(GROUP).arg(&receipts).query_async(&mut self.connection).await?;
        anyhow::ensure!(finished == receipts.len(), "XACK finished {finished} of {}", receipts.len());
        Ok(())
    }
}

/// The entries of the only stream in the answer.
fn entries(answer: Value) -> Option<Vec<Value>> {
    let Value::Array(mut streams) = answer else { return None };
    let Value::Array(mut stream) = streams.pop()? else { return None };
    let Value::Array(entries) = stream.pop()? else { return None };
    Some(entries)
}

/// An entry is its id and the list of its fields, here one name and one value.
fn entry(value: Value) -> Result<(Stamp, Vec<u8>)> {
    let Value::Array(parts) = value else { bail!("an entry that is no list") };
    let mut parts = parts.into_iter();
    let (Some(Value::BulkString(id)), Some(Value::Array(fields))) = (parts.next(), parts.next()) else {
        bail!("an entry without id and fields")
    };
    let Some(Value::BulkString(payload)) = fields.get(1) else { bail!("an entry without a payload") };
    Ok((stamp(payload)?, id))
}
