//! Reconnecting after an outage, and resolving commits of unknown outcome.

use std::collections::VecDeque;
use std::time::Duration;

use baton_env::Stopwatch;
use baton_store::Operation;
use tokio::sync::mpsc::Receiver;

use super::{INSERT_SERVER, Writer, WriterInput, finish_busy};
use crate::client::connection::{PgConnection, param, read_timestamp, statement};
use crate::client::error::DatabaseError;
use crate::context::{OUTAGE_MAX, RECONNECT_FIRST, RECONNECT_MAX};
use crate::fetch;
use crate::state::row_cache::RowCache;

/// How long a writer tries to learn the outcome of a commit before its callers get `outcome unknown`.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(60);
/// Takes over the server row from a lost connection by raising its epoch: a commit of that connection has
/// either happened by now or never will.
const TAKE_OVER_SERVER: &str =
    "UPDATE servers SET epoch = epoch + 1, seen_at = clock_timestamp() WHERE id = $1
    RETURNING commits_made, epoch";

impl Writer {
    /// The next input. A connection that is lost meanwhile is noticed and replaced.
    pub async fn next_input(&mut self, intake: &mut Receiver<WriterInput>) -> Option<WriterInput> {
        loop {
            match &self.connection {
                Some(connection) => tokio::select! {
                    input = intake.recv() => return input,
                    () = connection.wait_closed() => self.connection = None,
                },
                None => {
                    let connected = self.connect(Stopwatch::start(), OUTAGE_MAX, intake).await;
                    if !connected && intake.is_closed() {
                        return None;
                    }
                }
            }
        }
    }

    /// Reconnects with growing pauses and takes over the server row. Operations that arrive during a long
    /// outage get `Busy`.
    pub async fn connect(
        &mut self,
        watch: Stopwatch,
        patience: Duration,
        intake: &mut Receiver<WriterInput>,
    ) -> bool {
        self.connection = None;
        let mut pause = RECONNECT_FIRST;
        loop {
            match self.take_over_server_row().await {
                Ok(()) => return true,
                Err(failure) => self.shared.set_outage(Some(failure.to_string())),
            }
            if watch.elapsed() > patience {
                self.shared.set_refusing(true);
                return false;
            }
            baton_env::sleep(pause).await;
            pause = (pause * 2).min(RECONNECT_MAX);
            if watch.elapsed() <= OUTAGE_MAX {
                continue;
            }
            self.shared.set_refusing(true);
            let mut late = VecDeque::new();
            while let Ok(input) = intake.try_recv() {
                match input {
                    WriterInput::Operation(operation) => late.push_back(operation),
                    WriterInput::Close => intake.close(),
                }
            }
            finish_busy(&mut late);
        }
    }

    async fn take_over_server_row(&mut self) -> Result<(), DatabaseError> {
        let connection = PgConnection::connect(&self.shared.address, &self.shared.schema).await?;
        let rows = connection
            .run(vec![
                statement(TAKE_OVER_SERVER, vec![param(self.server)]),
                statement(fetch::VERSIONS, Vec::new()),
            ])
            .await?;
        match rows[0].first() {
            Some(row) => (self.commits, self.epoch) = (row.get(0), row.get(1)),
            None => {
                // The row was deleted, so register another.
                let register = statement(INSERT_SERVER, vec![param(self.clock.last().micros())]);
                let rows = connection.run(vec![register]).await?;
                let row = &rows[0][0];
                (self.server, self.commits, self.epoch) = (row.get(0), row.get(1), row.get(2));
            }
        }
        self.database_time = (read_timestamp(&rows[1][0], 0), Stopwatch::start());
        // Another database may answer now, for example a standby that lacks the last commits.
        self.catalog = None;
        self.row_cache = RowCache::default();
        self.partition_names.clear();
        self.partition_names_len = 0;
        self.shared.update_remembered(self.dedup_index.len(), 0);
        self.dedup_index.clear();
        self.shared.cache.clear();
        self.shared.set_outage(None);
        self.shared.set_refusing(false);
        self.connection = Some(connection);
        Ok(())
    }

    /// Asks the database which of the in-flight commits happened, and answers or requeues their operations.
    pub async fn resolve_unknown_commits(
        &mut self,
        waiting: &mut VecDeque<Box<dyn Operation>>,
        intake: &mut Receiver<WriterInput>,
    ) {
        let (before, server) = (self.commits, self.server);
        let mut commits = std::mem::take(&mut self.in_flight);
        if !self.connect(Stopwatch::start(), RESOLVE_TIMEOUT, intake).await || self.server != server {
            let reason =
                "the connection to PostgreSQL was lost during a commit; whether it happened is unknown";
            commits.into_iter().for_each(|commit| commit.fail_unknown(reason));
            return finish_busy(waiting);
        }
        let happened = usize::try_from(self.commits - before).unwrap_or(0).min(commits.len());
        tracing::info!(happened, of = commits.len(), "resolved the outcome of in-flight commits");
        commits.drain(..happened).for_each(|commit| commit.reply(&self.shared));
        // The others are simply run again.
        commits.into_iter().rev().for_each(|commit| commit.requeue(waiting));
    }
}
