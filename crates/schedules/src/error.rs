//! The error of a schedule's text.

/// A text that does not describe a calendar, with what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct InvalidSchedule {
    /// The field of the schedule that is wrong, as the API names it.
    pub field: &'static str,
    /// What is wrong and how to correct it.
    pub problem: String,
}

impl InvalidSchedule {
    pub(crate) fn new(field: &'static str, problem: impl Into<String>) -> Self {
        Self { field, problem: problem.into() }
    }
}
