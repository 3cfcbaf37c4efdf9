//! What happened, counted: per queue, in all, and how long calls took.
//!
//! Counters only rise from the start of the process on; what happened in a minute is the difference between two
//! readings (`series`). Counting takes no lock beyond looking up the queue. Always: at most [`QUEUES_MAX`] queues
//! have counters of their own; what happens to others counts in the total only. Not here: what is in a queue
//! (`inspect`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use baton_store::{DURATION_BOUNDS, Distribution, Histogram};
use baton_types::Timestamp;
use rustc_hash::FxHashMap;

use crate::rules::ack::Acked;
use crate::rules::pop::Popped;
use crate::rules::push_count::PushCount;

/// Queues with counters of their own.
const QUEUES_MAX: usize = 10_000;

/// Defines the counters once: as atomics, as plain numbers, and in the order in which they are kept.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),+; $($(#[$later_doc:meta])* $later:ident),+ $(,)?) => {
        /// Counters of one queue, or of all.
        #[derive(Debug, Default)]
        struct Meter {
            $($name: AtomicU64,)+
            $($later: AtomicU64,)+
            lag_max_ms: AtomicU64,
        }

        /// What was counted.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Tally {
            $($(#[$doc])* pub $name: u64,)+
            $($(#[$later_doc])* pub $later: u64,)+
            /// The most pops that waited at once, of all moments that were sampled.
            pub parked: u64,
            /// The longest that a message waited, in milliseconds.
            pub lag_max_ms: u64,
        }

        impl Meter {
            fn add(&self, tally: &Tally) {
                $(if tally.$name > 0 {
                    self.$name.fetch_add(tally.$name, Ordering::Relaxed);
                })+
                $(if tally.$later > 0 {
                    self.$later.fetch_add(tally.$later, Ordering::Relaxed);
                })+
                self.lag_max_ms.fetch_max(tally.lag_max_ms, Ordering::Relaxed);
            }

            fn read(&self) -> Tally {
                Tally {
                    $($name: self.$name.load(Ordering::Relaxed),)+
                    $($later: self.$later.load(Ordering::Relaxed),)+
                    parked: 0,
                    lag_max_ms: self.lag_max_ms.load(Ordering::Relaxed),
                }
            }
        }

        impl Tally {
            /// What came on top of `earlier`.
            pub fn since(&self, earlier: &Self) -> Self {
                Self {
                    $($name: self.$name.saturating_sub(earlier.$name),)+
                    $($later: self.$later.saturating_sub(earlier.$later),)+
                    parked: self.parked,
                    lag_max_ms: self.lag_max_ms,
                }
            }

            /// All numbers, in a fixed order.
            pub(crate) fn numbers(&self) -> Vec<u64> {
                vec![$(self.$name,)+ self.lag_max_ms, $(self.$later,)+ self.parked]
            }

            /// From numbers in that order; those that are missing are zero.
            pub(crate) fn from_numbers(numbers: &[u64]) -> Self {
                let mut numbers = numbers.iter().copied();
                let mut next = || numbers.next().unwrap_or(0);
                Self { $($name: next(),)+ lag_max_ms: next(), $($later: next(),)+ parked: next() }
            }
        }

        impl std::ops::AddAssign for Tally {
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)+
                $(self.$later += other.$later;)+
                self.parked = self.parked.max(other.parked);
                self.lag_max_ms = self.lag_max_ms.max(other.lag_max_ms);
            }
        }
    };
}

counters! {
    /// Calls that pushed.
    push_requests,
    /// Messages stored.
    push_messages,
    /// Messages that were there already.
    push_duplicates,
    /// Calls that popped.
    pop_requests,
    /// Messages delivered.
    pop_messages,
    /// Pops that got nothing.
    pop_empty,
    /// Calls that acked.
    ack_requests,
    /// Acks that had an effect.
    ack_success,
    /// Acks that had none.
    ack_failed,
    /// Transactions.
    transactions,
    /// Messages that became dead letters.
    dead_letters,
    /// Deliveries that were not the first of their messages.
    redelivered,
    /// Messages whose waiting time was measured.
    lag_count,
    /// Their waiting times in all, in milliseconds.
    lag_sum_ms,
    /// Messages given up by retention.
    expired;
    // Those that came later stand behind, so that minutes that were kept before are still read right.
    /// Partitions created.
    partitions_created,
    /// Partitions deleted, each with its queue.
    partitions_deleted,
}

impl Tally {
    /// Whether nothing happened.
    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }

    /// How long a delivered message had waited on average, in milliseconds.
    pub fn lag_avg_ms(&self) -> f64 {
        if self.lag_count == 0 { 0.0 } else { self.lag_sum_ms as f64 / self.lag_count as f64 }
    }
}

/// The kinds of calls whose duration is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A push.
    Push,
    /// A pop, without the time it was parked.
    Pop,
    /// An ack.
    Ack,
    /// A transaction.
    Transaction,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Push, Self::Pop, Self::Ack, Self::Transaction];

    /// Its name, as it is shown.
    pub fn name(self) -> &'static str {
        match self {
            Self::Push => "push",
            Self::Pop => "pop",
            Self::Ack => "ack",
            Self::Transaction => "transaction",
        }
    }
}

/// All counters.
#[derive(Debug)]
pub struct Meters {
    all: Meter,
    queues: RwLock<FxHashMap<Arc<str>, Arc<Meter>>>,
    durations: [Histogram; Kind::ALL.len()],
    timers: AtomicU64,
}

impl Default for Meters {
    fn default() -> Self {
        Self {
            all: Meter::default(),
            queues: RwLock::default(),
            durations: std::array::from_fn(|_| Histogram::new(DURATION_BOUNDS)),
            timers: AtomicU64::new(0),
        }
    }
}

impl Meters {
    /// What was counted in all.
    pub fn total(&self) -> Tally {
        self.all.read()
    }

    /// What was counted by queue.
    pub fn by_queue(&self) -> FxHashMap<Arc<str>, Tally> {
        let queues = self.queues.read().unwrap_or_else(PoisonError::into_inner);
        queues.iter().map(|(name, meter)| (name.clone(), meter.read())).collect()
    }

    /// Timers that fired.
    pub fn timers(&self) -> u64 {
        self.timers.load(Ordering::Relaxed)
    }

    pub(crate) fn fired(&self, timers: u64) {
        self.timers.fetch_add(timers, Ordering::Relaxed);
    }

    /// How long calls of a kind took, in microseconds.
    pub fn durations(&self, kind: Kind) -> Distribution {
        self.durations[kind as usize].snapshot()
    }

    /// Begins the longest waiting time anew, for it is told by the minute.
    pub(crate) fn forget_longest(&self) {
        let queues = self.queues.read().unwrap_or_else(PoisonError::into_inner);
        queues.values().map(AsRef::as_ref).chain([&self.all]).for_each(|meter| {
            meter.lag_max_ms.store(0, Ordering::Relaxed);
        });
    }

    pub(crate) fn took(&self, kind: Kind, duration: std::time::Duration) {
        self.durations[kind as usize].observe(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX));
    }

    pub(crate) fn pushed(&self, count: &PushCount, duplicates: u64) {
        for (queue, partitions) in &count.created {
            self.add(queue, &Tally { partitions_created: *partitions, ..Tally::default() });
        }
        for (index, (queue, messages)) in count.messages.iter().enumerate() {
            // Duplicates are rare, and a push to several queues rarer: they count for the first.
            let duplicates = if index == 0 { duplicates.min(*messages) } else { 0 };
            self.add(
                queue,
                &Tally {
                    push_requests: 1,
                    push_messages: messages - duplicates,
                    push_duplicates: duplicates,
                    ..Tally::default()
                },
            );
        }
    }

    pub(crate) fn popped(&self, popped: &Popped, now: Timestamp) {
        for claim in &popped.claims {
            let mut tally = Tally {
                pop_requests: 1,
                pop_messages: claim.messages.len() as u64,
                redelivered: if claim.attempt > 1 { claim.messages.len() as u64 } else { 0 },
                ..Tally::default()
            };
            for message in &claim.messages {
                let waited = u64::try_from(now.since(message.created_at).as_millis()).unwrap_or(u64::MAX);
                tally.lag_count += 1;
                tally.lag_sum_ms += waited;
                tally.lag_max_ms = tally.lag_max_ms.max(waited);
            }
            self.add(&claim.queue, &tally);
        }
    }

    /// Counts a pop that got nothing, from `queue` if there is such a queue.
    pub(crate) fn popped_nothing(&self, queue: Option<&str>) {
        let tally = Tally { pop_requests: 1, pop_empty: 1, ..Tally::default() };
        match queue {
            Some(queue) => self.add(queue, &tally),
            None => self.all.add(&tally),
        }
    }

    pub(crate) fn acked<'a>(&self, results: impl IntoIterator<Item = &'a Acked>) {
        let mut by_queue: Vec<(Option<&Arc<str>>, Tally)> = Vec::new();
        for acked in results {
            let queue = acked.queue.as_ref();
            let at = by_queue.iter().position(|(name, _)| *name == queue).unwrap_or_else(|| {
                by_queue.push((queue, Tally { ack_requests: 1, ..Tally::default() }));
                by_queue.len() - 1
            });
            let tally = &mut by_queue[at].1;
            tally.ack_success += u64::from(acked.error.is_none());
            tally.ack_failed += u64::from(acked.error.is_some());
            tally.dead_letters += u64::from(acked.dead_lettered);
        }
        for (queue, tally) in by_queue {
            match queue {
                Some(queue) => self.add(queue, &tally),
                None => self.all.add(&tally),
            }
        }
    }

    pub(crate) fn transacted(&self, count: &PushCount) {
        let tally = Tally { transactions: 1, ..Tally::default() };
        match count.messages.first() {
            Some((queue, _)) => self.add(queue, &tally),
            None => self.all.add(&tally),
        }
    }

    pub(crate) fn expired(&self, messages: u64) {
        self.all.add(&Tally { expired: messages, ..Tally::default() });
    }

    pub(crate) fn deleted(&self, queue: &str, partitions: u64) {
        self.add(queue, &Tally { partitions_deleted: partitions, ..Tally::default() });
    }

    fn add(&self, queue: &str, tally: &Tally) {
        self.all.add(tally);
        let known = self.queues.read().unwrap_or_else(PoisonError::into_inner).get(queue).cloned();
        let meter = known.or_else(|| {
            let mut queues = self.queues.write().unwrap_or_else(PoisonError::into_inner);
            if queues.len() >= QUEUES_MAX && !queues.contains_key(queue) {
                return None;
            }
            Some(queues.entry(queue.into()).or_default().clone())
        });
        if let Some(meter) = meter {
            meter.add(tally);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_for_a_queue_is_counted_in_all() {
        let meters = Meters::default();
        let mut count = PushCount::default();
        count.add(&"a".into(), 3);
        count.add(&"b".into(), 2);
        count.add(&"a".into(), 1);
        meters.pushed(&count, 1);
        meters.popped_nothing(Some("a"));
        meters.popped_nothing(None);
        let (all, queues) = (meters.total(), meters.by_queue());
        assert_eq!((all.push_requests, all.push_messages, all.push_duplicates), (2, 5, 1));
        assert_eq!((queues["a"].push_messages, queues["b"].push_messages), (3, 2));
        assert_eq!((all.pop_empty, queues["a"].pop_empty), (2, 1));
    }

    #[test]
    fn acks_are_counted_by_queue_and_outcome() {
        let meters = Meters::default();
        let good = Acked { queue: Some("a".into()), ..Acked::default() };
        let bad = Acked { error: Some("Message not found"), ..Acked::default() };
        let dead = Acked { queue: Some("a".into()), dead_lettered: true, ..Acked::default() };
        meters.acked([&good, &bad, &dead, &good]);
        let (all, a) = (meters.total(), meters.by_queue()["a"]);
        assert_eq!((a.ack_requests, a.ack_success, a.ack_failed, a.dead_letters), (1, 3, 0, 1));
        assert_eq!((all.ack_success, all.ack_failed), (3, 1));
    }

    #[test]
    fn numbers_come_back_as_they_were_kept() {
        let tally = Tally { push_messages: 7, expired: 9, lag_max_ms: 4, ..Tally::default() };
        let later = Tally { partitions_created: 2, partitions_deleted: 1, parked: 5, ..tally };
        assert_eq!(Tally::from_numbers(&later.numbers()), later);
        // What an earlier version kept ends with the longest waiting time.
        let kept = tally.numbers();
        let kept = &kept[..=kept.iter().position(|number| *number == 4).unwrap()];
        assert_eq!(Tally::from_numbers(kept), tally);
        assert_eq!(Tally::from_numbers(&[]), Tally::default());
    }

    #[test]
    fn strangers_cannot_make_counters_without_end() {
        let meters = Meters::default();
        for number in 0..QUEUES_MAX + 5 {
            meters.popped_nothing(Some(&number.to_string()));
        }
        assert_eq!(meters.by_queue().len(), QUEUES_MAX);
        assert_eq!(meters.total().pop_empty, QUEUES_MAX as u64 + 5);
    }
}
