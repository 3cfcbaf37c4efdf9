//! Errors of other crates as errors that a caller can see: the one place that gives them their kinds.

use std::time::Duration;

use super::{Error, Kind};

impl From<baton_http::Error> for Error {
    fn from(error: baton_http::Error) -> Self {
        use baton_http::Kind as Http;
        let message = error.to_string();
        match error.kind() {
            Http::Invalid => Self::invalid(message),
            Http::TargetTooLong => Self::new(Kind::TargetTooLong, message),
            Http::HeadTooLarge => Self::new(Kind::HeadTooLarge, message),
            Http::UnknownVersion => Self::new(Kind::UnknownVersion, message),
            Http::ForeignSite => Self::new(Kind::ForeignSite, message),
            Http::UnsupportedMedia => Self::new(Kind::UnsupportedMedia, message),
            Http::BodyTooLarge => Self::new(Kind::BodyTooLarge, message),
            Http::RequestTimeout => Self::new(Kind::RequestTimeout, message),
            Http::Overloaded => Self::overloaded(message),
            Http::Unwritable => Self::new(Kind::Internal, message),
        }
    }
}

impl From<baton_auth::Error> for Error {
    fn from(error: baton_auth::Error) -> Self {
        let kind = match error {
            baton_auth::Error::Unauthenticated(_) => Kind::Unauthenticated,
            baton_auth::Error::Forbidden => Kind::Forbidden,
            baton_auth::Error::KeysUnavailable => Kind::KeysUnavailable,
        };
        Self::new(kind, error.to_string())
    }
}

impl From<baton_queue::Error> for Error {
    fn from(error: baton_queue::Error) -> Self {
        use baton_queue::Error as Queue;
        let message = error.to_string();
        match error {
            Queue::Invalid(_) => Self::invalid(message),
            Queue::NotFound(_) => Self::not_found(message),
            Queue::QueueFull { .. } => {
                Self { retry_after: Some(Duration::from_secs(1)), ..Self::new(Kind::QueueFull, message) }
            }
            Queue::NoRoom { .. } => Self::new(Kind::LimitReached, message),
            Queue::Busy { after, .. } => {
                Self { retry_after: Some(after), ..Self::new(Kind::Overloaded, message) }
            }
            Queue::KeyMissing(_) | Queue::Unsealed(_) => Self::new(Kind::EncryptionKeyMissing, message),
            Queue::KeyReused => Self::refused(Kind::Conflict, "idempotency_key_reused", message),
            Queue::ShuttingDown => {
                Self { retry_after: Some(Duration::from_secs(1)), ..Self::new(Kind::ShuttingDown, message) }
            }
            Queue::Store(error) => error.into(),
        }
    }
}

impl From<baton_shards::Refusal> for Error {
    fn from(refusal: baton_shards::Refusal) -> Self {
        use baton_shards::Refusal;
        let message = refusal.to_string();
        match refusal {
            Refusal::Invalid(_) | Refusal::TooMuch(_) => Self::invalid(message),
            Refusal::Fenced(_) => Self::new(Kind::FencedSession, message),
            Refusal::UnknownWorker(_) | Refusal::UnknownService(_) => Self::not_found(message),
            Refusal::NotOwner(_) => Self::new(Kind::NotOwner, message),
            Refusal::InUse(_) => Self::refused(Kind::Conflict, "service_in_use", message),
            Refusal::Full(_) => Self::new(Kind::LimitReached, message),
            Refusal::Busy(_) => Self::overloaded(message),
            Refusal::Store(_) => {
                Self { retry_after: Some(Duration::from_secs(1)), ..Self::new(Kind::StoreBusy, message) }
            }
        }
    }
}

impl From<baton_store::Error> for Error {
    fn from(error: baton_store::Error) -> Self {
        use baton_store::Error as Store;
        let message = error.to_string();
        match error {
            Store::Busy(after) => Self { retry_after: Some(after), ..Self::new(Kind::StoreBusy, message) },
            Store::DiskFull { .. } => Self::new(Kind::DiskFull, message),
            Store::Corrupt(_) => Self::new(Kind::Corrupt, message),
            Store::Closed(_) | Store::Unusable(_) => Self::new(Kind::StoreClosed, message),
            Store::LimitReached(_) => Self::new(Kind::LimitReached, message),
            Store::TooLarge { .. } => Self::new(Kind::BodyTooLarge, message),
        }
    }
}
