//! Failures: prints what happened, then what to do about it.

use std::io;
use std::process::ExitCode;

use baton_client::Error;

/// Prints a failure on stderr. A closed output pipe, as after `head`, is none.
pub fn report(error: &anyhow::Error) -> ExitCode {
    if is_closed_pipe(error) {
        return ExitCode::SUCCESS;
    }
    eprintln!("error: {}", text(error));
    let hint = error.downcast_ref::<Error>().and_then(hint);
    if let Some(hint) = hint.or_else(|| is_refused(error).then_some(NO_SERVER_LISTENS)) {
        eprintln!("{hint}");
    }
    ExitCode::FAILURE
}

/// The causes, outermost first, each once: some errors, such as client errors, contain their causes already.
fn text(error: &anyhow::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    for cause in error.chain() {
        let part = cause.to_string();
        if !parts.iter().any(|said| said.contains(&part)) {
            parts.push(part);
        }
        if cause.is::<Error>() {
            break;
        }
    }
    parts.join(": ")
}

/// Whether our own output pipe was closed; a server that hangs up is a client error.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .take_while(|cause| !cause.is::<Error>())
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|io| io.kind() == io::ErrorKind::BrokenPipe)
}

const NO_SERVER_LISTENS: &str = "No server listens there: is `baton serve` running? Start it in another terminal, or name a server with --url or BATON_URL.";

/// Whether no process listens at the address of a connection.
fn is_refused(error: &anyhow::Error) -> bool {
    let mut reasons = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    reasons.any(|reason| reason.kind() == io::ErrorKind::ConnectionRefused)
}

/// Texts of connection errors in the libraries, and what to do next.
const CONNECTION_HINTS: &[(&str, &str)] = &[
    (
        "certificate not valid for name",
        "The server's certificate is for another name: use one of its names in --url or BATON_URL.",
    ),
    (
        "invalid peer certificate",
        "The certificate is not trusted: name its authority's certificate (PEM) with --ca or BATON_CA.",
    ),
    ("invalid HTTP version parsed", "Does the server speak TLS? Then its address begins with https://."),
    ("InvalidContentType", "Does the server speak plain HTTP? Then its address begins with http://."),
    ("failed to lookup address", "No address is known for that name: check the host in --url or BATON_URL."),
];

fn connection_hint(problem: &str) -> Option<&'static str> {
    CONNECTION_HINTS.iter().find(|(reason, _)| problem.contains(reason)).map(|(_, hint)| *hint)
}

/// What to do next.
fn hint(error: &Error) -> Option<&'static str> {
    match error {
        _ if error.is_connection_refused() => Some(NO_SERVER_LISTENS),
        Error::Denied { status: 401, .. } => Some("Give a token with --token or BATON_TOKEN."),
        Error::Denied { .. } => Some(
            "The token is valid but its role does not allow this: use another with --token or BATON_TOKEN.",
        ),
        Error::Unavailable { .. } if connection_hint(&error.to_string()).is_some() => {
            connection_hint(&error.to_string())
        }
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
    fn a_certificate_for_another_name_is_explained() {
        let reason = "invalid peer certificate: certificate not valid for name \"127.0.0.1\"";
        let error = Error::Unavailable { url: "https://127.0.0.1:1".into(), cause: reason.into() };
        assert!(hint(&error).unwrap().contains("is for another name"));
        let other = Error::Unavailable { url: "https://127.0.0.1:1".into(), cause: "closed".into() };
        assert!(hint(&other).unwrap().starts_with("The server did not manage"));
    }

    #[test]
    fn a_reason_is_said_once() {
        let inner = || io::Error::other("Address already in use");
        let outer =
            anyhow::Error::new(inner()).context("cannot listen: Address already in use; is it taken?");
        assert_eq!(text(&outer), "cannot listen: Address already in use; is it taken?");
        assert_eq!(
            text(&anyhow::Error::new(inner()).context("starting")),
            "starting: Address already in use"
        );
    }

    #[test]
    fn a_failure_is_told_from_the_outside_in() {
        let outcome: Result<(), Error> = Err(Error::NotFound("Queue not found".into()));
        let error = outcome.context("cannot show orders").unwrap_err();
        assert_eq!(text(&error), "cannot show orders: Queue not found");
    }
}
