//! The states of a job, and how its executions end.

use serde::{Deserialize, Serialize};

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $name { $($(#[$variant_doc])* $variant,)* }

        impl $name {
            /// All of them, in order.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The word for it in the API.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }

            /// What the word stands for.
            pub fn of_word(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|one| one.word() == word)
            }
        }
    };
}

words! {
    /// Where a job stands.
    State {
        /// Its time has not come: it was delayed, or waits to be tried again.
        Scheduled = "scheduled",
        /// Its time has come, and something else holds it back: a limit of its key, or a job it depends on.
        Pending = "pending",
        /// It waits for a worker.
        Dispatched = "dispatched",
        /// A worker has it.
        Running = "running",
        /// A worker has it and has been asked to stop.
        Cancelling = "cancelling",
        /// It succeeded.
        Completed = "completed",
        /// It failed for good.
        Failed = "failed",
        /// It ran out of time for good.
        TimedOut = "timed_out",
        /// It was called off.
        Cancelled = "cancelled",
        /// It has been forgotten; only its place is left until its neighbours are, too.
        Gone = "gone",
    }
}

impl State {
    /// How many there are.
    pub const COUNT: usize = Self::ALL.len();

    /// Whether it has ended, however it did.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::TimedOut | Self::Cancelled | Self::Gone)
    }

    /// Whether a worker has it.
    pub const fn is_held(self) -> bool {
        matches!(self, Self::Running | Self::Cancelling)
    }

    pub(crate) fn of_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

words! {
    /// How an execution ended.
    Outcome {
        /// The work is done.
        Succeeded = "succeeded",
        /// The worker said that it failed.
        Failed = "failed",
        /// It took longer than it may.
        TimedOut = "timed_out",
        /// The worker fell silent.
        Lost = "lost",
        /// The worker gave it back, which counts for nothing.
        Released = "released",
        /// It was called off.
        Cancelled = "cancelled",
    }
}

words! {
    /// Why a job that could run does not.
    WaitReason {
        /// Its time has not come.
        Delayed = "delayed",
        /// It failed and is tried again later.
        Retry = "retry",
        /// Too many jobs of its concurrency key are under way.
        KeyLimit = "key_limit",
        /// Jobs that it depends on have not completed.
        Depends = "depends",
        /// Its queue has given out as many as it may for now.
        RateLimit = "rate_limit",
        /// As many of its queue run as may.
        QueueLimit = "queue_limit",
        /// Its queue is paused.
        Paused = "paused",
        /// No worker has taken it yet.
        NoWorker = "no_worker",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_numbers_lead_back() {
        for (number, state) in State::ALL.iter().enumerate() {
            assert_eq!(*state as usize, number);
            assert_eq!(State::of_word(state.word()), Some(*state));
            assert_eq!(State::of_number(u8::try_from(number).unwrap()), Some(*state));
            let text = serde_json::to_string(state).unwrap();
            assert_eq!(text, format!("{:?}", state.word()));
        }
        assert_eq!(State::of_word("orphaned"), None);
    }
}
