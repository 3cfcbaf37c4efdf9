//! Away and back: connecting anew, and what became of commits around which the connection was lost.

use std::collections::VecDeque;
use std::time::Duration;

use baton_env::Stopwatch;
use baton_store::Operation;
use tokio::sync::mpsc::Receiver;

use super::{Input, REGISTER, Writer, busy};
use crate::carried::Carried;
use crate::failure::Failure;
use crate::link::{Link, call, moment, param};
use crate::load;

/// How long a group waits for a database that is away.
pub const AWAY_MAX: Duration = Duration::from_secs(2);
/// How long the outcome of a commit is asked for before its operations are told that it is unknown.
const UNKNOWN_MAX: Duration = Duration::from_secs(60);
/// Pauses between tries to connect.
pub const RECONNECT_FIRST: Duration = Duration::from_millis(25);
pub const RECONNECT_MAX: Duration = Duration::from_secs(1);

/// Begins a server's row, or takes it over from a connection that was lost: whatever that one still had under
/// way has either happened by now or never will.
const TAKE_OVER: &str = "UPDATE servers SET epoch = epoch + 1, seen_at = clock_timestamp() WHERE id = $1
    RETURNING commits_made, epoch";

impl Writer {
    /// What comes next. A database that goes away meanwhile is noticed, and waited for.
    pub async fn next(&mut self, intake: &mut Receiver<Input>) -> Option<Input> {
        loop {
            match &self.link {
                Some(link) => tokio::select! {
                    input = intake.recv() => return input,
                    () = link.ended() => self.link = None,
                },
                None => {
                    let connected = self.connect(Stopwatch::start(), AWAY_MAX, intake).await;
                    if !connected && intake.is_closed() {
                        return None;
                    }
                }
            }
        }
    }

    /// Connects anew, with growing pauses, and makes sure that nothing is under way from before. Whoever comes
    /// meanwhile is told to come back later.
    pub async fn connect(
        &mut self,
        watch: Stopwatch,
        patience: Duration,
        intake: &mut Receiver<Input>,
    ) -> bool {
        self.link = None;
        let mut pause = RECONNECT_FIRST;
        loop {
            match self.take_over().await {
                Ok(()) => return true,
                Err(failure) => self.shared.set_away(self.lane, Some(failure.to_string())),
            }
            if watch.elapsed() > patience {
                self.shared.refuse(self.lane, true);
                return false;
            }
            baton_env::sleep(pause).await;
            pause = (pause * 2).min(RECONNECT_MAX);
            if watch.elapsed() <= AWAY_MAX {
                continue;
            }
            self.shared.refuse(self.lane, true);
            let mut late = VecDeque::new();
            while let Ok(input) = intake.try_recv() {
                match input {
                    Input::Operation(operation) => late.push_back(operation),
                    Input::Close => intake.close(),
                }
            }
            busy(&mut late);
        }
    }

    async fn take_over(&mut self) -> Result<(), Failure> {
        let link = Link::open(&self.shared.address, &self.shared.schema).await?;
        let rows = link
            .run(vec![call(TAKE_OVER, vec![param(self.server)]), call(load::VERSIONS, Vec::new())])
            .await?;
        match rows[0].first() {
            Some(row) => (self.commits, self.epoch) = (row.get(0), row.get(1)),
            None => {
                // Someone has cleared the row away: it is all the same which one we have.
                let register = call(REGISTER, vec![param(self.clock.last().micros())]);
                let rows = link.run(vec![register]).await?;
                let row = &rows[0][0];
                (self.server, self.commits, self.epoch) = (row.get(0), row.get(1), row.get(2));
            }
        }
        self.heard = (moment(&rows[1][0], 0), Stopwatch::start());
        // Another database may answer now, which has not got everything that the last one had.
        self.structure = None;
        self.carried = Carried::default();
        self.names.clear();
        self.names_len = 0;
        self.shared.set_remembered(self.remembered.len(), 0);
        self.remembered.clear();
        self.shared.cache.clear();
        self.shared.set_away(self.lane, None);
        self.shared.refuse(self.lane, false);
        self.link = Some(link);
        Ok(())
    }

    /// Asks what became of the commits under way, and answers their operations.
    pub async fn find_out(
        &mut self,
        waiting: &mut VecDeque<Box<dyn Operation>>,
        intake: &mut Receiver<Input>,
    ) {
        let (before, server) = (self.commits, self.server);
        let mut flights = std::mem::take(&mut self.flights);
        if !self.connect(Stopwatch::start(), UNKNOWN_MAX, intake).await || self.server != server {
            let reason = "PostgreSQL went away in the middle of a commit; whether it happened is unknown";
            flights.into_iter().for_each(|flight| flight.give_up(reason));
            return busy(waiting);
        }
        let happened = usize::try_from(self.commits - before).unwrap_or(0).min(flights.len());
        tracing::info!(happened, of = flights.len(), "found out what became of commits");
        flights.drain(..happened).for_each(|flight| flight.answer(&self.shared));
        // The others are simply run again.
        flights.into_iter().rev().for_each(|flight| flight.wait_again(waiting));
    }
}
