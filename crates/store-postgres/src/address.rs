//! Where the database is, and how it is spoken to there: in the clear, or under TLS with a certificate that is checked.
//!
//! Always: a certificate is never taken on trust, so `require` means what `verify-full` means, and `prefer`, which
//! anyone in between can talk out of TLS, is refused. A password goes out in clear text only under TLS, over a socket of
//! this machine, or if `require_auth` names `password`. Deliberately absent: certificates of clients.

use std::net::IpAddr;
use std::path::Path;
use std::str::FromStr;

use baton_store::Error;
use baton_tls::Trust;
use tokio_postgres::Config;
use tokio_postgres::config::Host;

/// See the module.
#[derive(Clone)]
pub struct Address {
    pub config: Config,
    /// Whom to believe under TLS; none means in the clear.
    pub trust: Option<Trust>,
    /// The ways to authenticate that are allowed; none means all but a password in clear text.
    require_auth: Option<Vec<String>>,
}

/// The ways to authenticate that are known here, as libpq's `require_auth` names them.
const AUTH_METHODS: &[&str] = &[CLEAR_TEXT, "md5", "scram-sha-256", "none"];
/// The one that shows the password to the server, and to anybody on the way.
pub const CLEAR_TEXT: &str = "password";

impl Address {
    /// Reads `postgres://…` or `host=… user=…`, with `sslmode` and `sslrootcert` as libpq writes them.
    pub fn read(text: &str) -> Result<Self, Error> {
        let Split { rest, mode, authorities, require_auth } = split(text);
        let mut config = Config::from_str(&rest).map_err(|e| {
            let why = std::error::Error::source(&e)
                .map_or_else(|| e.to_string(), |source| format!("{e}: {source}"));
            let help = "give postgres://user@host/database";
            Error::Unusable(format!("the address of the store cannot be read: {why}; {help}"))
        })?;
        if config.get_application_name().is_none() {
            config.application_name("baton");
        }
        let tls = match mode.as_deref() {
            None if authorities.is_some() => Some(authorities),
            None | Some("disable") => None,
            Some("require" | "verify-ca" | "verify-full") => Some(authorities),
            Some(other) => {
                let help = "give verify-full for TLS with a certificate that is checked, or disable for none";
                return Err(Error::Unusable(format!("sslmode {other:?} is not known: {help}")));
            }
        };
        let trust = tls.map(|authorities| match authorities {
            Some(path) => Trust::file(Path::new(&path)),
            None => Trust::system(),
        });
        let trust = trust.transpose().map_err(|e| Error::Unusable(e.to_string()))?;
        let require_auth: Option<Vec<String>> =
            require_auth.map(|methods| methods.split(',').map(String::from).collect());
        if let Some(unknown) =
            require_auth.iter().flatten().find(|method| !AUTH_METHODS.contains(&method.as_str()))
        {
            let known = AUTH_METHODS.join(", ");
            return Err(Error::Unusable(format!("require_auth {unknown:?} is not known: give {known}")));
        }
        Ok(Self { config, trust, require_auth })
    }

    /// Whether the database may ask for this proof; `is_private` when only this machine and the database can listen.
    pub fn allows(&self, method: &str, is_private: bool) -> bool {
        match &self.require_auth {
            Some(allowed) => allowed.iter().any(|name| name == method),
            None => is_private || method != CLEAR_TEXT,
        }
    }

    /// The first host on another machine that is spoken to without TLS.
    pub fn exposed_host(&self) -> Option<&str> {
        let is_local =
            |host: &str| host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
        let mut hosts = self.config.get_hosts().iter().filter_map(|host| match host {
            Host::Tcp(name) => Some(name.as_str()),
            Host::Unix(_) => None,
        });
        if self.trust.is_some() { None } else { hosts.find(|host| !is_local(host)) }
    }
}

/// An address without what only concerns TLS.
#[derive(Debug, Default, PartialEq, Eq)]
struct Split {
    rest: String,
    mode: Option<String>,
    /// A file with the authorities to believe.
    authorities: Option<String>,
    require_auth: Option<String>,
}

fn split(text: &str) -> Split {
    let mut split = Split::default();
    let is_url = text.contains("://");
    let (before, separator, pairs) = match text.split_once('?') {
        Some((before, pairs)) if is_url => (before, '&', pairs),
        _ if is_url => (text, '&', ""),
        _ => ("", ' ', text),
    };
    let mut others = Vec::new();
    for pair in pairs.split(separator).filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("sslmode", value)) => split.mode = Some(value.into()),
            Some(("require_auth", value)) => split.require_auth = Some(decoded(value)),
            Some(("sslrootcert", value)) => split.authorities = Some(decoded(value)),
            _ => others.push(pair),
        }
    }
    let joined = others.join(&separator.to_string());
    split.rest = match (before.is_empty(), joined.is_empty()) {
        (false, false) => format!("{before}?{joined}"),
        (false, true) => before.into(),
        (true, _) => joined,
    };
    split
}

/// A value with its `%2F` and the like written out.
fn decoded(value: &str) -> String {
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
        let wanted = Split { rest: rest.into(), mode, authorities, require_auth: None };
        assert_eq!(split(text), wanted, "{text}");
    }

    #[test]
    fn what_concerns_tls_is_taken_out_of_an_address() {
        check("postgres://u@h/d", "postgres://u@h/d", None, None);
        check("postgres://u@h/d?sslmode=verify-full", "postgres://u@h/d", Some("verify-full"), None);
        let url = "postgres://u@h/d?sslrootcert=%2Fa%20b&application_name=x&sslmode=require";
        check(url, "postgres://u@h/d?application_name=x", Some("require"), Some("/a b"));
        check("host=h user=u sslmode=disable", "host=h user=u", Some("disable"), None);
        check("host=h sslrootcert=/ca user=u", "host=h user=u", None, Some("/ca"));
    }

    #[test]
    fn a_certificate_is_checked_or_there_is_none() {
        let mode = |text: &str| Address::read(text).map(|address| address.trust.is_some());
        assert!(!mode("postgres://u@h/d").unwrap());
        assert!(mode("postgres://u@h/d?sslmode=require").unwrap());
        for bad in ["prefer", "allow", "yes"] {
            let refused = mode(&format!("host=h sslmode={bad}")).unwrap_err().to_string();
            assert!(refused.contains("verify-full"), "{refused}");
        }
        assert!(mode("postgres://u@h/d?sslrootcert=/nowhere").unwrap_err().to_string().contains("/nowhere"));
    }

    #[test]
    fn a_password_in_clear_text_needs_tls_or_a_word() {
        let read = |text: &str| Address::read(text).unwrap();
        let usual = read("postgres://u@h/d");
        assert!(usual.allows("scram-sha-256", false) && usual.allows(CLEAR_TEXT, true));
        assert!(!usual.allows(CLEAR_TEXT, false));
        let asked = read("postgres://u@h/d?require_auth=password,md5");
        assert!(asked.allows(CLEAR_TEXT, false) && !asked.allows("scram-sha-256", true));
        assert!(
            Address::read("host=h require_auth=kerberos").err().unwrap().to_string().contains("kerberos")
        );
    }

    #[test]
    fn a_host_elsewhere_without_tls_is_named() {
        let exposed = |text: &str| Address::read(text).unwrap().exposed_host().map(String::from);
        assert_eq!(exposed("postgres://u@localhost,10.1.1.1/d").as_deref(), Some("10.1.1.1"));
        assert_eq!(exposed("postgres://u@127.0.0.1,[::1]/d"), None);
        assert_eq!(exposed("postgres://u@db/d?sslmode=verify-full"), None);
        assert_eq!(exposed("host=/run/postgresql"), None);
    }
}
