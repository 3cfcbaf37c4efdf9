//! Which web pages may call: the rules of `Origin` and `Host`.
//!
//! A browser sends requests of any page to any address that it reaches, this machine's own above all. It names the page
//! in `Origin` and the address in `Host`. Always: a request with an `Origin` is served only if that is the host it came to
//! or is listed; a server on loopback that asks for no token serves only requests to a loopback name, as a name that
//! belongs to another may lead here (DNS rebinding). Clients that are no browsers send neither or the right ones. Start at
//! [`Sites::check`].

use std::net::IpAddr;
use std::sync::Arc;

use super::error::{Error, Kind};

/// Which web pages may call.
#[derive(Debug)]
pub struct Sites {
    origins: Vec<String>,
    hosts: Vec<String>,
    /// Whether a name beyond loopback is refused unless it is listed.
    only_loopback: bool,
}

impl Sites {
    /// Pages of these `origins` may call (`*` is every one), and the server goes by these names; with `only_loopback` by
    /// no other name beyond loopback, else by any where there is no list.
    pub fn new(origins: Vec<String>, hosts: Vec<String>, only_loopback: bool) -> Self {
        Self { origins, hosts, only_loopback }
    }

    /// The headers that let a page of another site read the answer, if one sends the request and may; an error if the
    /// request is not to be served.
    pub fn check(&self, host: Option<&[u8]>, origin: Option<&[u8]>) -> Result<Option<Arc<str>>, Error> {
        if let Some(host) = host.filter(|host| !self.is_named(host)) {
            let host = String::from_utf8_lossy(host);
            return Err(foreign(format!("this server does not go by the name {host:?}; see allowed_hosts")));
        }
        let Some(origin) = origin else { return Ok(None) };
        let text = std::str::from_utf8(origin).unwrap_or_default();
        if self.origins.iter().any(|listed| listed == "*" || listed.eq_ignore_ascii_case(text)) {
            return Ok(Some(sharing(text)));
        }
        let own = text.split_once("://").map(|(_, authority)| authority.as_bytes());
        if host.is_some_and(|host| own.is_some_and(|own| own.eq_ignore_ascii_case(host))) {
            return Ok(None);
        }
        Err(foreign(format!("pages of {text:?} may not call this server; see cors_origins")))
    }

    /// An error if a request is not to be served that a page of another site had sent without a word of itself, as an
    /// image or a link does: a pop takes messages.
    pub fn check_cross_site(&self) -> Result<(), Error> {
        match self.origins.iter().any(|listed| listed == "*") {
            true => Ok(()),
            false => Err(foreign("pages of other sites may not call this server; see cors_origins".into())),
        }
    }

    /// Whether the server goes by a name.
    fn is_named(&self, host: &[u8]) -> bool {
        if self.hosts.is_empty() && !self.only_loopback {
            return true;
        }
        let Ok(host) = std::str::from_utf8(host) else { return false };
        let name = without_port(host);
        let is_listed =
            |listed: &String| listed.eq_ignore_ascii_case(host) || listed.eq_ignore_ascii_case(name);
        self.hosts.iter().any(is_listed) || (self.only_loopback && is_loopback(name))
    }
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

fn is_loopback(name: &str) -> bool {
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    bare.eq_ignore_ascii_case("localhost") || bare.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

fn sharing(origin: &str) -> Arc<str> {
    format!(
        "access-control-allow-origin: {origin}\r\nvary: origin\r\n\
         access-control-allow-methods: GET, POST, PUT, DELETE, OPTIONS\r\n\
         access-control-allow-headers: Content-Type, Authorization, Idempotency-Key, If-Match, Last-Event-ID\r\n\
         access-control-max-age: 86400\r\n"
    )
    .into()
}

fn foreign(message: String) -> Error {
    Error::new(Kind::ForeignSite, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sites(origins: &[&str], hosts: &[&str], only_loopback: bool) -> Sites {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        Sites { origins: owned(origins), hosts: owned(hosts), only_loopback }
    }

    fn check(sites: &Sites, host: &str, origin: &str) -> Option<bool> {
        let given = |text: &'_ str| (!text.is_empty()).then(|| text.as_bytes().to_vec());
        sites.check(given(host).as_deref(), given(origin).as_deref()).ok().map(|sharing| sharing.is_some())
    }

    #[test]
    fn a_server_on_loopback_without_tokens_goes_by_loopback_names_only() {
        let sites = sites(&[], &[], true);
        for host in ["", "localhost", "LOCALHOST:6632", "127.0.0.1:6632", "127.9.9.9", "[::1]:6632", "[::1]"]
        {
            assert_eq!(check(&sites, host, ""), Some(false), "{host}");
        }
        for host in
            ["evil.example", "evil.example:6632", "localhost.evil.example", "127.0.0.1.nip.io", "10.0.0.1"]
        {
            assert_eq!(check(&sites, host, ""), None, "{host}");
        }
    }

    #[test]
    fn elsewhere_names_are_checked_only_against_a_list() {
        assert_eq!(check(&sites(&[], &[], false), "anything:1", ""), Some(false));
        let listed = sites(&[], &["baton.example", "10.0.0.1:6632"], false);
        for (host, served) in
            [("Baton.example:99", true), ("10.0.0.1:6632", true), ("10.0.0.1:1", false), ("x", false)]
        {
            assert_eq!(check(&listed, host, "").is_some(), served, "{host}");
        }
    }

    #[test]
    fn a_page_calls_its_own_host_or_is_listed() {
        let sites = sites(&["https://console.example"], &[], false);
        assert_eq!(check(&sites, "h:6632", "http://h:6632"), Some(false));
        assert_eq!(check(&sites, "h", "https://H"), Some(false));
        assert_eq!(check(&sites, "h:6632", "https://console.example"), Some(true));
        for origin in ["http://h", "http://evil.example", "null", "https://console.example.evil", "h:6632"] {
            assert_eq!(check(&sites, "h:6632", origin), None, "{origin}");
        }
        assert_eq!(check(&sites, "", "http://"), None);
    }

    #[test]
    fn every_site_may_be_listed() {
        let headers = sites(&["*"], &[], true).check(Some(b"localhost"), Some(b"null")).unwrap().unwrap();
        assert!(headers.starts_with("access-control-allow-origin: null\r\nvary: origin\r\n"), "{headers}");
    }
}
