//! The database's address, and whether the connection uses TLS with certificate verification.
//!
//! Always: a password is sent in clear text only under TLS, over a Unix socket, or if `require_auth` names
//! `password`. TLS itself comes from `baton_tls::database`.

use std::net::IpAddr;
use std::str::FromStr;

use baton_store::Error;
use baton_tls::TlsClient;
use baton_tls::database::{self, AddressParts};
use tokio_postgres::Config;
use tokio_postgres::config::Host;

/// A parsed address.
#[derive(Clone)]
pub struct DatabaseAddress {
    pub config: Config,
    /// The trusted certificates for TLS; `None` means no TLS.
    pub tls: Option<TlsClient>,
    /// The allowed authentication methods; `None` allows all but a password in clear text.
    require_auth: Option<Vec<String>>,
}

/// The supported authentication methods, with the names of libpq's `require_auth`.
const AUTH_METHODS: &[&str] = &[CLEAR_TEXT, "md5", "scram-sha-256", "none"];
/// The method that reveals the password to the server and to an eavesdropper.
pub const CLEAR_TEXT: &str = "password";

impl DatabaseAddress {
    /// Parses `postgres://…` or `host=… user=…`, with `sslmode` and `sslrootcert` as libpq defines them.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let AddressParts { rest, tls: trust, require_auth } =
            database::split_tls_options(text).map_err(|e| Error::Unusable(e.to_string()))?;
        let mut config = Config::from_str(&rest).map_err(|e| {
            let why = std::error::Error::source(&e)
                .map_or_else(|| e.to_string(), |source| format!("{e}: {source}"));
            let help = "give postgres://user@host/database";
            Error::Unusable(format!("the address of the store cannot be read: {why}; {help}"))
        })?;
        if config.get_application_name().is_none() {
            config.application_name("baton");
        }
        let require_auth: Option<Vec<String>> =
            require_auth.map(|methods| methods.split(',').map(String::from).collect());
        if let Some(unknown) =
            require_auth.iter().flatten().find(|method| !AUTH_METHODS.contains(&method.as_str()))
        {
            let known = AUTH_METHODS.join(", ");
            return Err(Error::Unusable(format!("require_auth {unknown:?} is not supported: give {known}")));
        }
        Ok(Self { config, tls: trust, require_auth })
    }

    /// Whether the database may ask for this method. `is_private` says that no third machine can read the
    /// connection.
    pub fn allows_auth_method(&self, method: &str, is_private: bool) -> bool {
        match &self.require_auth {
            Some(allowed) => allowed.iter().any(|name| name == method),
            None => is_private || method != CLEAR_TEXT,
        }
    }

    /// The first host on another machine that would be connected to without TLS.
    pub fn exposed_host(&self) -> Option<&str> {
        let is_local =
            |host: &str| host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
        let mut hosts = self.config.get_hosts().iter().filter_map(|host| match host {
            Host::Tcp(name) => Some(name.as_str()),
            Host::Unix(_) => None,
        });
        if self.tls.is_some() { None } else { hosts.find(|host| !is_local(host)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_in_clear_text_needs_tls_or_a_word() {
        let read = |text: &str| DatabaseAddress::parse(text).unwrap();
        let usual = read("postgres://u@h/d");
        assert!(
            usual.allows_auth_method("scram-sha-256", false) && usual.allows_auth_method(CLEAR_TEXT, true)
        );
        assert!(!usual.allows_auth_method(CLEAR_TEXT, false));
        let asked = read("postgres://u@h/d?require_auth=password,md5");
        assert!(
            asked.allows_auth_method(CLEAR_TEXT, false) && !asked.allows_auth_method("scram-sha-256", true)
        );
        assert!(
            DatabaseAddress::parse("host=h require_auth=kerberos")
                .err()
                .unwrap()
                .to_string()
                .contains("kerberos")
        );
    }

    #[test]
    fn a_host_elsewhere_without_tls_is_named() {
        let exposed = |text: &str| DatabaseAddress::parse(text).unwrap().exposed_host().map(String::from);
        assert_eq!(exposed("postgres://u@localhost,10.1.1.1/d").as_deref(), Some("10.1.1.1"));
        assert_eq!(exposed("postgres://u@127.0.0.1,[::1]/d"), None);
        assert_eq!(exposed("postgres://u@db/d?sslmode=verify-full"), None);
        assert_eq!(exposed("host=/run/postgresql"), None);
    }
}
