//! Numbers about everything: what was counted, what is in the queues, how far the groups are.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use baton_env::Stopwatch;
use baton_types::Timestamp;

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
/// a twentieth of the time at most, and never for longer than [`AGE_MAX`],
const AGE_PER_COST: u32 = 20;
/// the oldest numbers that are used again, unless newer ones are not there after [`PATIENCE`].
const AGE_MAX: Duration = Duration::from_secs(10);
/// How long to wait for new numbers where there are some: with a million partitions under load they take a minute.
const PATIENCE: Duration = Duration::from_secs(2);

/// The last numbers.
#[derive(Default)]
pub(super) struct Cache {
    last: Mutex<Option<Counted>>,
    /// Held while new ones are put together, so that many who ask at once cost as much as one.
    counting: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Clone)]
struct Counted {
    numbers: Arc<Numbers>,
    at: Stopwatch,
    took: Duration,
}

impl Counted {
    fn is_young(&self) -> bool {
        self.at.elapsed() < (self.took * AGE_PER_COST).min(AGE_MAX)
    }
}

impl Cache {
    fn last(&self) -> Option<Counted> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn young(&self) -> Option<Arc<Numbers>> {
        self.last().filter(Counted::is_young).map(|counted| counted.numbers)
    }
}

impl Broker {
    /// What is in all queues, perhaps as it was some seconds ago: putting it together walks over every partition.
    pub async fn numbers(&self) -> Result<Arc<Numbers>, Error> {
        if let Some(young) = self.shared.numbers.young() {
            return Ok(young);
        }
        let numbers = &self.shared.numbers;
        let mut counted = pin!(async {
            let turn = numbers.counting.clone().lock_owned().await;
            if let Some(young) = numbers.young() {
                return Ok(young);
            }
            let broker = self.clone();
            // One task, which goes on when its caller leaves, so that the next caller has the numbers.
            let counting = tokio::spawn(async move {
                let _turn = turn;
                broker.count().await
            });
            counting.await.unwrap_or_else(|e| Err(Error::Store(baton_store::Error::Closed(e.to_string()))))
        });
        match (tokio::time::timeout(PATIENCE, counted.as_mut()).await, numbers.last()) {
            (Ok(counted), _) => counted,
            (Err(_), Some(last)) => Ok(last.numbers),
            (Err(_), None) => counted.await,
        }
    }

    /// The same, counted now.
    pub async fn fresh_numbers(&self) -> Result<Arc<Numbers>, Error> {
        let _turn = self.shared.numbers.counting.lock().await;
        self.count().await
    }

    async fn count(&self) -> Result<Arc<Numbers>, Error> {
        let watch = Stopwatch::start();
        let (queues, groups) = (self.queues().await?, self.groups().await?);
        let numbers = Arc::new(Numbers { at: self.shared.store.now(), queues, groups });
        let counted = Counted { numbers: numbers.clone(), at: Stopwatch::start(), took: watch.elapsed() };
        *self.shared.numbers.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(counted);
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
