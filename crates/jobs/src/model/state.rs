//! The states of a job, and the outcomes of executions.

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

            /// The name in the API.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }

            /// The value of a name in the API.
            pub fn from_word(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|one| one.word() == word)
            }
        }
    };
}

words! {
    /// The state of a job.
    State {
        /// It waits for its time: it was delayed, or waits for a retry.
        Scheduled = "scheduled",
        /// It is due, and waits for a permit of its concurrency key or for a job it depends on.
        Pending = "pending",
        /// It waits for a worker.
        Dispatched = "dispatched",
        /// A worker has it.
        Running = "running",
        /// A worker has it and was asked to stop.
        Cancelling = "cancelling",
        /// It succeeded.
        Completed = "completed",
        /// It failed, and no retry is left.
        Failed = "failed",
        /// It exceeded its timeout, and no retry is left.
        TimedOut = "timed_out",
        /// It was cancelled.
        Cancelled = "cancelled",
        /// It was deleted. Its slot stays until the whole chunk is deleted.
        Gone = "gone",
    }
}

impl State {
    /// The number of states.
    pub const COUNT: usize = Self::ALL.len();

    /// Whether it has ended.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::TimedOut | Self::Cancelled | Self::Gone)
    }

    /// Whether a worker has it.
    pub const fn is_held(self) -> bool {
        matches!(self, Self::Running | Self::Cancelling)
    }

    pub(crate) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

words! {
    /// The outcome of an execution.
    Outcome {
        /// The work is done.
        Succeeded = "succeeded",
        /// The worker reported a failure.
        Failed = "failed",
        /// It exceeded its timeout.
        TimedOut = "timed_out",
        /// The worker's heartbeats stopped.
        Lost = "lost",
        /// The worker released it; this does not count as an attempt.
        Released = "released",
        /// It was cancelled.
        Cancelled = "cancelled",
    }
}

words! {
    /// Why a job does not run yet.
    WaitReason {
        /// It is not due yet.
        Delayed = "delayed",
        /// It failed and waits for a retry.
        Retry = "retry",
        /// Its concurrency key's limit is reached.
        KeyLimit = "key_limit",
        /// Jobs that it depends on have not completed.
        Depends = "depends",
        /// Its queue's rate limit is reached.
        RateLimit = "rate_limit",
        /// Its queue's concurrency limit is reached.
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
    fn names_and_numbers_are_read_back() {
        for (number, state) in State::ALL.iter().enumerate() {
            assert_eq!(*state as usize, number);
            assert_eq!(State::from_word(state.word()), Some(*state));
            assert_eq!(State::from_number(u8::try_from(number).unwrap()), Some(*state));
            let text = serde_json::to_string(state).unwrap();
            assert_eq!(text, format!("{:?}", state.word()));
        }
        assert_eq!(State::from_word("orphaned"), None);
    }
}
