//! TLS options in the address of a PostgreSQL: `sslmode` and `sslrootcert`, as in libpq.
//!
//! Always: certificates are verified, so `require` means `verify-full`; `prefer`, which an attacker can downgrade, is
//! refused. Deliberately absent: client certificates.

use std::path::Path;

use crate::{Error, TlsClient};

/// An address split from the options that the client library does not know.
#[derive(Clone, Debug)]
pub struct AddressParts {
    /// The rest of the address.
    pub rest: String,
    /// The trusted authorities; `None` means a connection without TLS.
    pub tls: Option<TlsClient>,
    /// The allowed authentication methods, separated by commas.
    pub require_auth: Option<String>,
}

/// Splits `sslmode`, `sslrootcert` and `require_auth` from `postgres://…` or `host=… user=…`.
pub fn split_tls_options(address: &str) -> Result<AddressParts, Error> {
    let RawParts { rest, mode, root_file: authorities, require_auth } = parse_parts(address);
    let tls = match mode.as_deref() {
        None if authorities.is_some() => Some(authorities),
        None | Some("disable") => None,
        Some("require" | "verify-ca" | "verify-full") => Some(authorities),
        Some(other) => return Err(Error::Mode(other.into())),
    };
    let trust = tls.map(|authorities| match authorities {
        Some(path) => TlsClient::with_roots_from(Path::new(&path)),
        None => TlsClient::with_system_roots(),
    });
    Ok(AddressParts { rest, tls: trust.transpose()?, require_auth })
}

/// The options as text.
#[derive(Debug, Default, PartialEq, Eq)]
struct RawParts {
    rest: String,
    mode: Option<String>,
    /// A file with the trusted authorities.
    root_file: Option<String>,
    require_auth: Option<String>,
}

fn parse_parts(address: &str) -> RawParts {
    let mut texts = RawParts::default();
    let is_url = address.contains("://");
    let (before, separator, pairs) = match address.split_once('?') {
        Some((before, pairs)) if is_url => (before, '&', pairs),
        _ if is_url => (address, '&', ""),
        _ => ("", ' ', address),
    };
    let mut others = Vec::new();
    for pair in pairs.split(separator).filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("sslmode", value)) => texts.mode = Some(value.into()),
            Some(("require_auth", value)) => texts.require_auth = Some(percent_decode(value)),
            Some(("sslrootcert", value)) => texts.root_file = Some(percent_decode(value)),
            _ => others.push(pair),
        }
    }
    let joined = others.join(&separator.to_string());
    texts.rest = match (before.is_empty(), joined.is_empty()) {
        (false, false) => format!("{before}?{joined}"),
        (false, true) => before.into(),
        (true, _) => joined,
    };
    texts
}

/// Decodes percent escapes.
fn percent_decode(value: &str) -> String {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let [first, tail @ ..] = rest {
        let digits = tail.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let code = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()).filter(|_| *first == b'%');
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, rest: &str, mode: Option<&str>, authorities: Option<&str>) {
        let (mode, authorities) = (mode.map(String::from), authorities.map(String::from));
        let wanted = RawParts { rest: rest.into(), mode, root_file: authorities, require_auth: None };
        assert_eq!(parse_parts(text), wanted, "{text}");
    }

    #[test]
    fn tls_options_are_split_from_an_address() {
        check("postgres://u@h/d", "postgres://u@h/d", None, None);
        check("postgres://u@h/d?sslmode=verify-full", "postgres://u@h/d", Some("verify-full"), None);
        let url = "postgres://u@h/d?sslrootcert=%2Fa%20b&application_name=x&sslmode=require";
        check(url, "postgres://u@h/d?application_name=x", Some("require"), Some("/a b"));
        check("host=h user=u sslmode=disable", "host=h user=u", Some("disable"), None);
        check("host=h sslrootcert=/ca user=u", "host=h user=u", None, Some("/ca"));
    }

    #[test]
    fn a_certificate_is_verified_or_tls_is_off() {
        let mode = |text: &str| split_tls_options(text).map(|parts| parts.tls.is_some());
        assert!(!mode("postgres://u@h/d").unwrap());
        assert!(mode("postgres://u@h/d?sslmode=require").unwrap());
        for bad in ["prefer", "allow", "yes"] {
            let refused = mode(&format!("host=h sslmode={bad}")).unwrap_err().to_string();
            assert!(refused.contains("verify-full"), "{refused}");
        }
        assert!(mode("postgres://u@h/d?sslrootcert=/nowhere").unwrap_err().to_string().contains("/nowhere"));
    }
}
