//! Checks the names that callers give to queues, job types, keys and tags.

use crate::model::error::Error;
use crate::model::limits::NAME_BYTES_MAX;

/// Refuses a name that is empty, too long, or has a character that a key cannot have.
pub fn check_name(what: &str, name: &str) -> Result<(), Error> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(Error::invalid(format!("{what} has {} bytes: give 1 to {NAME_BYTES_MAX}", name.len())));
    }
    if name.chars().any(char::is_control) {
        return Err(Error::invalid(format!("{what} holds a control character: leave it out")));
    }
    Ok(())
}
