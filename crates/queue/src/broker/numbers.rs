//! Numbers about everything: what was counted, what is in the queues, how far the groups are.

use std::sync::Arc;
use std::time::Duration;

use baton_env::Stopwatch;
use baton_types::Timestamp;
use tokio::sync::Mutex;

use super::Broker;
use crate::{Error, Gauges, GroupOverview, Meters, Minute, QueueSummary};

/// What is in all queues and how far their groups are, at one moment.
#[derive(Clone, Debug)]
pub struct Numbers {
    /// When it was put together.
    pub at: Timestamp,
    /// Every queue, the newest first.
    pub queues: Vec<QueueSummary>,
    /// Every group of every queue.
    pub groups: Vec<GroupOverview>,
}

/// Numbers are used again for this many times as long as they took to put together, so that looking at them costs
/// a twentieth of the time at most, and never for longer than [`AGE_MAX`].
const AGE_PER_COST: u32 = 20;
/// The oldest numbers that are used again.
const AGE_MAX: Duration = Duration::from_secs(10);

/// The last numbers, their age and how long they took. The lock is held while new ones are put together, so that many who ask at once
/// cost as much as one.
#[derive(Default)]
pub(super) struct Cache(Mutex<Option<(Stopwatch, Duration, Arc<Numbers>)>>);

impl Broker {
    /// What is in all queues, perhaps as it was some seconds ago: putting it together walks over every partition.
    pub async fn numbers(&self) -> Result<Arc<Numbers>, Error> {
        let mut last = self.shared.numbers.0.lock().await;
        if let Some((age, cost, numbers)) = &*last
            && age.elapsed() < (*cost * AGE_PER_COST).min(AGE_MAX)
        {
            return Ok(numbers.clone());
        }
        self.count(&mut last).await
    }

    /// The same, counted now.
    pub async fn fresh_numbers(&self) -> Result<Arc<Numbers>, Error> {
        let mut last = self.shared.numbers.0.lock().await;
        self.count(&mut last).await
    }

    async fn count(
        &self,
        last: &mut Option<(Stopwatch, Duration, Arc<Numbers>)>,
    ) -> Result<Arc<Numbers>, Error> {
        let watch = Stopwatch::start();
        let (queues, groups) = (self.queues().await?, self.groups().await?);
        let numbers = Arc::new(Numbers { at: self.shared.store.now(), queues, groups });
        *last = Some((Stopwatch::start(), watch.elapsed(), numbers.clone()));
        Ok(numbers)
    }

    /// What was counted since this process began.
    pub fn meters(&self) -> &Meters {
        &self.shared.meters
    }

    /// What happened in each minute from `from` up to, not including, `to`, on every node; oldest first.
    pub async fn minutes(&self, from: Timestamp, to: Timestamp) -> Result<Vec<Minute>, Error> {
        let (series, waiting) = (&self.shared.series, || self.waiting_by_queue());
        Ok(series.minutes(&*self.shared.store, &self.shared.meters, &waiting, from, to).await?)
    }

    /// Sets who tells numbers about the process, which are kept with each minute.
    pub fn set_gauges(&self, gauges: Gauges) {
        self.shared.series.set_gauges(gauges);
    }
}
