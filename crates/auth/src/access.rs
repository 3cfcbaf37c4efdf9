//! The levels of what can be asked for.

/// What a caller must be allowed to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing: it is for all callers, with a token or without.
    Public,
    /// To read.
    Read,
    /// To push, which is less than writing: a pusher takes nothing away.
    Push,
    /// To write.
    Write,
    /// Everything: it is for administrators.
    Admin,
}
