//! A string that must not be printed.
//!
//! Always: `Debug` hides it, so a structure that holds one can be logged. Not here: erasing it from memory.
//! Start at [`Secret`].

use std::fmt;

/// A string that `Debug` hides.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// The placeholder that is printed instead of a secret.
    pub const HIDDEN: &str = "(hidden)";

    /// Hides `text`.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "(none)" } else { Self::HIDDEN })
    }
}
