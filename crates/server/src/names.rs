//! What a name may be: at most so long, and without NUL, since it becomes part of a key and of every answer.

use baton_types::limits::{NAME_BYTES_MAX, TRANSACTION_ID_BYTES_MAX};

use crate::error::{Error, Kind};

/// Refuses a queue, partition, group, namespace or task name (`what` says which) that cannot be kept.
pub fn check(what: &str, name: &str) -> Result<(), Error> {
    bounded(what, name, NAME_BYTES_MAX)?;
    if name.as_bytes().contains(&0) {
        return Err(Error::invalid(format!("{what} must not contain a NUL character")));
    }
    Ok(())
}

/// Refuses a transaction id that cannot be kept.
pub fn check_transaction_id(id: &str) -> Result<(), Error> {
    bounded("transactionId", id, TRANSACTION_ID_BYTES_MAX)
}

fn bounded(what: &str, text: &str, max: usize) -> Result<(), Error> {
    if text.len() > max {
        let message = format!("{what} has {} bytes, {max} are allowed", text.len());
        return Err(Error::new(Kind::NameTooLong, message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_bounded_and_free_of_nul() {
        assert!(check("queue", "").is_ok());
        assert!(check("queue", &"x".repeat(NAME_BYTES_MAX)).is_ok());
        assert_eq!(check("queue", &"x".repeat(NAME_BYTES_MAX + 1)).unwrap_err().kind(), Kind::NameTooLong);
        assert_eq!(check("queue", "a\0b").unwrap_err().kind(), Kind::Invalid);
    }
}
