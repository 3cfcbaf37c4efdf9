//! How long a call may take before its caller is told that it took too long.
//!
//! A call may be several commits, and each of them is patient with a store that is slow or away, so only the call as a
//! whole can be given an end. Always: a call that asked to wait gets that time and then as much as every other. Not here:
//! what is told, and what may still happen (`error`). Start at [`TimeoutClass`].

use std::time::Duration;

/// How long the calls of a route may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeoutClass {
    /// As long as the store needs.
    Prompt,
    /// The same; and as long as this before it, when the query asks to `wait`.
    Asked(Duration),
    /// The same; and as long as this before it.
    Waits(Duration),
    /// As long as it takes: how much there is to do is up to the caller.
    Long,
}

impl TimeoutClass {
    /// How long a call with this query may take, if a prompt one may take `prompt`; `None` is for ever.
    pub fn allows(self, query: &str, prompt: Duration) -> Option<Duration> {
        match self {
            Self::Prompt => Some(prompt),
            Self::Asked(wait) if query.contains("wait") => Some(prompt + wait),
            Self::Asked(_) => Some(prompt),
            Self::Waits(wait) => Some(prompt + wait),
            Self::Long => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_asked_to_wait_gets_that_time_and_then_as_much_as_every_other() {
        let [prompt, wait] = [45, 300].map(Duration::from_secs);
        assert_eq!(TimeoutClass::Prompt.allows("wait=true", prompt), Some(prompt));
        assert_eq!(TimeoutClass::Asked(wait).allows("batch=1", prompt), Some(prompt));
        assert_eq!(TimeoutClass::Asked(wait).allows("batch=1&wait=true", prompt), Some(prompt + wait));
        assert_eq!(TimeoutClass::Waits(wait).allows("", prompt), Some(prompt + wait));
        assert_eq!(TimeoutClass::Long.allows("", prompt), None);
    }
}
