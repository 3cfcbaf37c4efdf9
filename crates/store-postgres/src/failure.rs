//! Why statements failed.

use std::{fmt, io};

use fallible_iterator::FallibleIterator;
use postgres_protocol::message::backend::ErrorResponseBody;

/// A guard was not met: another server changed what this one relied on.
const DIVISION_BY_ZERO: &str = "22012";
/// The same for a partition: a root of how many are as they were, less those that should be.
const NO_ROOT: &str = "2201F";
const UNIQUE_VIOLATION: &str = "23505";
const SERIALIZATION_FAILURE: &str = "40001";
const DEADLOCK_DETECTED: &str = "40P01";
const LOCK_NOT_AVAILABLE: &str = "55P03";

/// See the module.
#[derive(Debug)]
pub enum Failure {
    /// The database refused one of them, so nothing of the transaction is kept: its code, and what it says.
    Refused { code: String, message: String },
    /// The connection is gone, or silent; what had been sent may have happened.
    Lost(String),
}

impl Failure {
    /// What the database answered.
    pub fn read(body: &ErrorResponseBody) -> Self {
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
        // What ends the session also ends what was under way in it: an administrator, a crash, a shutdown.
        if code.starts_with("57P") || code.starts_with("08") {
            return Self::Lost(message);
        }
        Self::Refused { code, message }
    }

    /// Whether another server has changed a partition that was compared.
    pub fn is_contended(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if code == NO_ROOT)
    }

    /// Whether it was one of several that waited for each other.
    pub fn is_deadlock(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if code == DEADLOCK_DETECTED)
    }

    /// Whether somebody else held a lock for too long.
    pub fn is_blocked(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if code == LOCK_NOT_AVAILABLE)
    }

    /// Whether running the transaction again may help.
    pub fn is_passing(&self) -> bool {
        let passing = [
            DIVISION_BY_ZERO,
            NO_ROOT,
            UNIQUE_VIOLATION,
            SERIALIZATION_FAILURE,
            DEADLOCK_DETECTED,
            LOCK_NOT_AVAILABLE,
        ];
        matches!(self, Self::Refused { code, .. } if passing.contains(&&**code))
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Lost(error.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { message, .. } => f.write_str(message),
            Self::Lost(reason) => write!(f, "the connection to PostgreSQL was lost: {reason}"),
        }
    }
}
