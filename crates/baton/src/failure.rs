//! How a failure is told: what happened, then what to do about it.

use std::io;
use std::process::ExitCode;

use baton_client::Error;

/// Tells a failure on stderr. A reader that went away, as `head` does, is none.
pub fn report(error: &anyhow::Error) -> ExitCode {
    if is_closed_pipe(error) {
        return ExitCode::SUCCESS;
    }
    eprintln!("error: {}", text(error));
    let hint = error.downcast_ref::<Error>().and_then(hint);
    if let Some(hint) = hint.or_else(|| is_refused(error).then_some(NOBODY_LISTENS)) {
        eprintln!("{hint}");
    }
    ExitCode::FAILURE
}

/// The reasons, outermost first. A client error tells its own inner reasons.
fn text(error: &anyhow::Error) -> String {
    let mut parts = Vec::new();
    for cause in error.chain() {
        parts.push(cause.to_string());
        if cause.is::<Error>() {
            break;
        }
    }
    parts.join(": ")
}

/// Whether our own reader went away; a server that hangs up is a client error.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .take_while(|cause| !cause.is::<Error>())
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|io| io.kind() == io::ErrorKind::BrokenPipe)
}

const NOBODY_LISTENS: &str = "Nobody listens there: is `baton serve` running? Start it in another terminal, or name a server with --url or BATON_URL.";

/// Whether nobody listens where a connection of our own was to go.
fn is_refused(error: &anyhow::Error) -> bool {
    let mut reasons = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    reasons.any(|reason| reason.kind() == io::ErrorKind::ConnectionRefused)
}

/// What to do next.
fn hint(error: &Error) -> Option<&'static str> {
    match error {
        _ if error.is_connection_refused() => Some(NOBODY_LISTENS),
        Error::Denied { status: 401, .. } => Some("Give a token with --token or BATON_TOKEN."),
        Error::Denied { .. } => Some(
            "The token is valid but its role does not allow this: use another with --token or BATON_TOKEN.",
        ),
        Error::Unavailable { .. } | Error::Timeout { .. } => Some(
            "The server did not manage. Look at its log, or try again; a repeated push does no harm with the same --transaction-id.",
        ),
        Error::Full { .. } => Some("Let consumers catch up and try again."),
        Error::Protocol { .. } => Some("Is that address a Baton server, and of a version near this one?"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn a_reader_that_went_away_is_no_failure() {
        let pipe = || io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(is_closed_pipe(&anyhow::Error::new(pipe()).context("cannot print")));
        let server = Error::Unavailable { url: "http://test".into(), cause: pipe().into() };
        assert!(!is_closed_pipe(&server.into()));
    }

    #[test]
    fn a_failure_is_told_from_the_outside_in() {
        let outcome: Result<(), Error> = Err(Error::NotFound("Queue not found".into()));
        let error = outcome.context("cannot show orders").unwrap_err();
        assert_eq!(text(&error), "cannot show orders: Queue not found");
    }
}
