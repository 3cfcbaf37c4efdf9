//! The queue that people build in a table: one row per message with a status and a lease, claimed with SKIP LOCKED,
//! written as well as we know how: prepared statements with binary arrays, one statement per call, a partial index
//! that holds only what waits, finished rows deleted. And, as a limit, the bare insert of the same bytes.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_postgres::{Client, NoTls, Statement};

use crate::histogram::Histogram;
use crate::message::{Stamp, now, payload, stamp};
use crate::system;

const PREPARE: &str = "
    DROP TABLE IF EXISTS messages;
    CREATE TABLE messages (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        status smallint NOT NULL DEFAULT 0,
        leased_until timestamptz,
        payload bytea NOT NULL
    ) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
    CREATE INDEX messages_waiting ON messages (id) WHERE status = 0;";
const PUSH: &str = "INSERT INTO messages (payload) SELECT unnest($1::bytea[])";
const TAKE: &str = "
    UPDATE messages SET status = 1, leased_until = clock_timestamp() + interval '60 seconds' WHERE id = ANY(ARRAY(
        SELECT id FROM messages WHERE status = 0 ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED))
    RETURNING id, payload";
const FINISH: &str = "DELETE FROM messages WHERE id = ANY($1) AND status = 1";
/// The same as people build it for jobs: what a job must say, and what became of it is kept for a while.
const PREPARE_JOBS: &str = "
    DROP TABLE IF EXISTS jobs;
    CREATE TABLE jobs (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        state smallint NOT NULL DEFAULT 0,
        priority smallint NOT NULL DEFAULT 1,
        attempts smallint NOT NULL DEFAULT 0,
        kind text NOT NULL DEFAULT 'noop',
        worker text,
        run_at timestamptz NOT NULL DEFAULT now(),
        created_at timestamptz NOT NULL DEFAULT now(),
        leased_until timestamptz,
        ended_at timestamptz,
        args bytea NOT NULL
    ) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
    CREATE INDEX jobs_waiting ON jobs (priority DESC, id) WHERE state = 0;";
const ENQUEUE: &str = "INSERT INTO jobs (args) SELECT unnest($1::bytea[])";
const LEASE: &str = "
    UPDATE jobs SET state = 1, attempts = attempts + 1, worker = 'w',
        leased_until = clock_timestamp() + interval '30 seconds'
    WHERE id = ANY(ARRAY(SELECT id FROM jobs WHERE state = 0 AND run_at <= now() ORDER BY priority DESC, id LIMIT $1
        FOR UPDATE SKIP LOCKED))
    RETURNING id, args";
const COMPLETE: &str = "
    UPDATE jobs SET state = 2, ended_at = clock_timestamp(), leased_until = NULL WHERE id = ANY($1) AND state = 1";

/// How long to wait before looking again after finding nothing.
const PAUSE: Duration = Duration::from_millis(2);

/// The table of the bare insert: nothing but what must be there.
const PREPARE_BARE: &str = "
    DROP TABLE IF EXISTS bare;
    CREATE TABLE bare (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload bytea NOT NULL);";
const INSERT_BARE: &str = "INSERT INTO bare (payload) SELECT unnest($1::bytea[])";

pub struct Postgres {
    pub url: String,
    /// Whether the table is one of jobs.
    pub of_jobs: bool,
}

async fn connect(url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

impl system::System for Postgres {
    type Link = Link;

    async fn prepare(&self) -> Result<()> {
        Ok(connect(&self.url).await?.batch_execute(if self.of_jobs { PREPARE_JOBS } else { PREPARE }).await?)
    }

    async fn open(&self, _number: usize) -> Result<Link> {
        let client = connect(&self.url).await?;
        // A table that grows from nothing has no statistics to go by: the index is what it is made for.
        client.batch_execute("SET enable_seqscan = off; SET plan_cache_mode = force_generic_plan").await?;
        let (push, take, finish) =
            if self.of_jobs { (ENQUEUE, LEASE, COMPLETE) } else { (PUSH, TAKE, FINISH) };
        let push = client.prepare(push).await?;
        let take = client.prepare(take).await?;
        let finish = client.prepare(finish).await?;
        Ok(Link { client, push, take, finish })
    }

    async fn unfinished(&self) -> Result<u64> {
        let count = if self.of_jobs {
            "SELECT count(*) FROM jobs WHERE state < 2"
        } else {
            "SELECT count(*) FROM messages"
        };
        let row = connect(&self.url).await?.query_one(count, &[]).await?;
        Ok(row.get::<_, i64>(0).cast_unsigned())
    }
}

pub struct Link {
    client: Client,
    push: Statement,
    take: Statement,
    finish: Statement,
}

impl system::Link for Link {
    type Receipt = i64;

    async fn push(&mut self, batch: Vec<Vec<u8>>) -> Result<()> {
        self.client.execute(&self.push, &[&batch]).await?;
        Ok(())
    }

    async fn take(&mut self, most: usize) -> Result<Vec<(Stamp, i64)>> {
        let most = i64::try_from(most)?;
        loop {
            let mut rows = self.client.query(&self.take, &[&most]).await?;
            if !rows.is_empty() {
                rows.sort_by_key(|row| row.get::<_, i64>(0));
                return rows.iter().map(|row| Ok((stamp(row.get(1))?, row.get(0)))).collect();
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn finish(&mut self, receipts: Vec<i64>) -> Result<()> {
        let finished = self.client.execute(&self.finish, &[&receipts]).await?;
        ensure!(finished == receipts.len() as u64, "{finished} of {} were finished", receipts.len());
        Ok(())
    }
}

/// Inserts batches from several connections for a while.
pub async fn insert(
    url: &str,
    connections: usize,
    batch: usize,
    duration: Duration,
    bytes: usize,
) -> Result<Value> {
    connect(url).await?.batch_execute(PREPARE_BARE).await?;
    let mut clients = Vec::new();
    for _ in 0..connections {
        let client = connect(url).await?;
        let statement = client.prepare(INSERT_BARE).await?;
        clients.push((client, statement));
    }
    let start = now();
    let ends_at = start + duration.as_nanos() as u64;
    let mut inserting = JoinSet::new();
    for (producer, (client, statement)) in clients.into_iter().enumerate() {
        inserting.spawn(async move {
            let (mut sent, mut latency) = (0u32, Histogram::default());
            while now() < ends_at {
                let at = now();
                let stamp = |sequence| Stamp { producer: producer as u32, sequence, at };
                let rows: Vec<_> = (sent..sent + batch as u32).map(|s| payload(stamp(s), bytes)).collect();
                client.execute(&statement, &[&rows]).await?;
                latency.record(now() - at);
                sent += batch as u32;
            }
            anyhow::Ok((sent, latency))
        });
    }
    let (mut messages, mut latency) = (0u64, Histogram::default());
    while let Some(ended) = inserting.join_next().await {
        let (sent, measured) = ended??;
        messages += u64::from(sent);
        latency.merge(&measured);
    }
    let seconds = (now() - start) as f64 / 1e9;
    let row = connect(url).await?.query_one("SELECT count(*) FROM bare", &[]).await?;
    ensure!(row.get::<_, i64>(0).cast_unsigned() == messages, "rows are missing");
    Ok(json!({
        "scenario": "push",
        "connections": connections,
        "batch": batch,
        "payload_bytes": bytes,
        "messages": messages,
        "seconds": seconds,
        "messages_per_second": messages as f64 / seconds,
        "latency_us": latency.summary(),
        "verified": true,
    }))
}
