//! What is wrong with a request before anything of it is known but its head and its size.
//!
//! Not here: statuses and codes, which the [`Service`](crate::Service) gives. Start at [`Kind`].

/// What is wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A part of it is malformed.
    Invalid,
    /// Its target is longer than a target may be.
    TargetTooLong,
    /// Its head is larger than a head may be.
    HeadTooLarge,
    /// It speaks a version of HTTP that is not spoken here.
    UnknownVersion,
    /// A page of another site sends it, or it was sent to another name than the server's.
    ForeignSite,
    /// Its body is compressed, or something else than JSON.
    UnsupportedMedia,
    /// Its body is larger than a body may be.
    BodyTooLarge,
    /// Its body did not arrive in time.
    RequestTimeout,
    /// There are as many connections or bodies as there may be.
    Overloaded,
    /// Its answer cannot be written down.
    Unwritable,
}

/// An error of a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: Kind,
    message: String,
}

impl Error {
    /// An error of `kind` that says `message`.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// The request is malformed in the way that `message` says.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, message)
    }

    /// The server is at the limit that `message` names.
    pub fn overloaded(message: impl Into<String>) -> Self {
        Self::new(Kind::Overloaded, message)
    }

    /// What is wrong.
    pub fn kind(&self) -> Kind {
        self.kind
    }
}
