//! Errors of statements and connections.

use std::{fmt, io};

use fallible_iterator::FallibleIterator;
use postgres_protocol::message::backend::ErrorResponseBody;

/// A validation of the catalog, the records or the commit count failed (the schema's `conflict`).
const CONFLICT: &str = "BT001";
/// A validation of partition versions failed (the schema's `partition_conflict`).
const PARTITION_CONFLICT: &str = "BT002";
const UNIQUE_VIOLATION: &str = "23505";
const SERIALIZATION_FAILURE: &str = "40001";
const DEADLOCK_DETECTED: &str = "40P01";
const LOCK_NOT_AVAILABLE: &str = "55P03";

/// Why statements failed.
#[derive(Debug)]
pub enum DatabaseError {
    /// The database refused a statement, so the transaction is rolled back.
    Refused { code: String, message: String },
    /// The connection was lost or timed out. Statements that were sent may have taken effect.
    ConnectionLost(String),
}

impl DatabaseError {
    /// Reads an error response.
    pub fn from_response(body: &ErrorResponseBody) -> Self {
        let (mut code, mut message) = (String::new(), String::new());
        let mut fields = body.fields();
        while let Ok(Some(field)) = fields.next() {
            let value = String::from_utf8_lossy(field.value_bytes());
            match field.type_() {
                b'C' => code = value.into_owned(),
                b'S' => message = value.into_owned(),
                b'M' => message = format!("{message}: {value}"),
                b'D' | b'H' => message = format!("{message} ({value})"),
                _ => {}
            }
        }
        // These codes end the session and its transaction: an administrator's command, a crash, a shutdown.
        if code.starts_with("57P") || code.starts_with("08") {
            return Self::ConnectionLost(message);
        }
        Self::Refused { code, message }
    }

    /// Whether another server changed a partition of the read set.
    pub fn is_version_conflict(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if code == PARTITION_CONFLICT)
    }

    /// Whether the database ended the transaction to resolve a deadlock.
    pub fn is_deadlock(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if code == DEADLOCK_DETECTED)
    }

    /// Whether a retry of the transaction may succeed.
    pub fn is_retryable(&self) -> bool {
        let passing = [
            CONFLICT,
            PARTITION_CONFLICT,
            UNIQUE_VIOLATION,
            SERIALIZATION_FAILURE,
            DEADLOCK_DETECTED,
            LOCK_NOT_AVAILABLE,
        ];
        matches!(self, Self::Refused { code, .. } if passing.contains(&&**code))
    }
}

impl From<io::Error> for DatabaseError {
    fn from(error: io::Error) -> Self {
        Self::ConnectionLost(error.to_string())
    }
}

impl fmt::Display for DatabaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { message, .. } => f.write_str(message),
            Self::ConnectionLost(reason) => write!(f, "the connection to PostgreSQL was lost: {reason}"),
        }
    }
}
