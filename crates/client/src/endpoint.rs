//! The servers of a client, and which of them to ask first.
//!
//! The routing key of a call selects its server, so that the consumers of one queue share a server; the others follow
//! when that one fails. A server that failed is avoided for a while, then tried again; when all have failed, all are
//! tried. Not here: sockets.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use baton_env::Stopwatch;
use baton_tls::TlsClient;
use http::header::{CONTENT_TYPE, HOST};
use http::uri::Scheme;
use http::{HeaderMap, HeaderValue, Uri};

use crate::Error;
use crate::pool::ConnectionPool;

/// How long a server that failed is avoided.
const AVOIDED_FOR: Duration = Duration::from_secs(5);

/// One server.
#[derive(Debug)]
pub(crate) struct Endpoint {
    /// Its address in errors.
    pub url: Arc<str>,
    /// The connections to it.
    pub pool: ConnectionPool,
    /// The headers of every request to it.
    pub headers: HeaderMap,
    /// Until when it is avoided, in microseconds on the owner's stopwatch. An atomic, so that calls take no lock.
    avoided_until: AtomicU64,
}

impl Endpoint {
    fn parse(url: &str, trust: &mut TrustLoader<'_>, idle_connections_max: usize) -> Result<Self, Error> {
        let wrong = |problem: &str| {
            Error::Invalid(format!("server address {url:?} {problem}, such as http://127.0.0.1:6632"))
        };
        let uri: Uri = url.trim_end_matches('/').parse().map_err(|_| wrong("is no URL"))?;
        let parts = uri.into_parts();
        let (scheme, trust) = match parts.scheme.as_ref().map(Scheme::as_str) {
            Some("http") => ("http", None),
            Some("https") => ("https", Some(trust.load()?)),
            _ => return Err(wrong("must start with http:// or https://")),
        };
        if parts.path_and_query.is_some_and(|path| path.as_str() != "/") {
            return Err(wrong("must have no path"));
        }
        let authority = parts.authority.ok_or_else(|| wrong("names no host"))?;
        let url = format!("{scheme}://{authority}").into();
        let host = HeaderValue::try_from(authority.as_str()).map_err(|_| wrong("names no host"))?;
        let json = HeaderValue::from_static("application/json");
        let headers = HeaderMap::from_iter([(HOST, host), (CONTENT_TYPE, json)]);
        let pool = ConnectionPool::new(&authority, trust, idle_connections_max);
        Ok(Self { url, pool, headers, avoided_until: AtomicU64::new(0) })
    }
}

/// The trusted authorities, loaded for the first `https` address.
struct TrustLoader<'a> {
    ca: Option<&'a Path>,
    loaded: Option<TlsClient>,
}

impl TrustLoader<'_> {
    fn load(&mut self) -> Result<TlsClient, Error> {
        if let Some(trust) = &self.loaded {
            return Ok(trust.clone());
        }
        let trust = match self.ca {
            Some(file) => TlsClient::with_roots_from(file),
            None => TlsClient::with_system_roots(),
        };
        let trust = trust.map_err(|error| Error::Invalid(error.to_string()))?;
        Ok(self.loaded.insert(trust).clone())
    }
}

/// All servers of a client.
#[derive(Debug)]
pub(crate) struct Endpoints {
    all: Vec<Endpoint>,
    since_start: Stopwatch,
    avoided_for: Duration,
}

impl Endpoints {
    /// Servers by address, such as `http://127.0.0.1:6632`. For `https`, the authorities in the file `ca` are
    /// trusted, or those of the system.
    pub fn parse(urls: &[String], ca: Option<&Path>, idle_connections_max: usize) -> Result<Self, Error> {
        if urls.is_empty() {
            return Err(Error::Invalid("a client needs the address of at least one server".into()));
        }
        let mut trust = TrustLoader { ca, loaded: None };
        let parse = |url: &String| Endpoint::parse(url, &mut trust, idle_connections_max);
        let all = urls.iter().map(parse).collect::<Result<_, _>>()?;
        Ok(Self { all, since_start: Stopwatch::start(), avoided_for: AVOIDED_FOR })
    }

    /// Sends this header with every request.
    pub fn with_header(mut self, name: http::HeaderName, value: &HeaderValue) -> Self {
        for endpoint in &mut self.all {
            endpoint.headers.insert(name.clone(), value.clone());
        }
        self
    }

    /// The servers in the order in which to try them for a call with this key, each once. The order is fixed before
    /// the first attempt, so that a server that fails meanwhile is not tried twice.
    pub fn candidates(&self, key: &str) -> Vec<&Endpoint> {
        let count = self.all.len();
        if count == 1 {
            return self.all.iter().collect();
        }
        let now = self.now();
        let first = usize::try_from(hash(key) % count as u64).unwrap_or(0);
        let mut order: Vec<_> = (0..count).map(|i| &self.all[(first + i) % count]).collect();
        order.sort_by_key(|endpoint| endpoint.avoided_until.load(Ordering::Relaxed) > now);
        order
    }

    /// Avoids this server for a while.
    pub fn mark_failed(&self, endpoint: &Endpoint) {
        let until = self.now() + u64::try_from(self.avoided_for.as_micros()).unwrap_or(u64::MAX);
        endpoint.avoided_until.store(until, Ordering::Relaxed);
    }

    /// Stops avoiding this server.
    pub fn mark_healthy(&self, endpoint: &Endpoint) {
        if endpoint.avoided_until.load(Ordering::Relaxed) != 0 {
            endpoint.avoided_until.store(0, Ordering::Relaxed);
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.since_start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

/// The same on every machine, so that all clients of a queue use the same server.
fn hash(key: &str) -> u64 {
    key.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints() -> Endpoints {
        let urls = ["a", "b", "c"].map(|host| format!("http://{host}:1"));
        Endpoints::parse(&urls, None, 1).unwrap()
    }

    fn order(endpoints: &Endpoints, key: &str) -> Vec<String> {
        endpoints.candidates(key).iter().map(|e| e.url.to_string()).collect()
    }

    #[test]
    fn a_key_stays_with_its_server_and_keys_are_spread() {
        let endpoints = endpoints();
        assert_eq!(order(&endpoints, "orders"), order(&endpoints, "orders"));
        let firsts: std::collections::HashSet<_> =
            (0..50).map(|i| order(&endpoints, &format!("queue-{i}"))[0].clone()).collect();
        assert_eq!(firsts.len(), 3);
    }

    #[test]
    fn a_failed_server_comes_last_until_it_answers() {
        let endpoints = endpoints();
        let before = order(&endpoints, "orders");
        let first = endpoints.candidates("orders")[0];
        endpoints.mark_failed(first);
        let after = order(&endpoints, "orders");
        assert_eq!(after[2], before[0]);
        assert_eq!(after.len(), 3);
        endpoints.mark_healthy(first);
        assert_eq!(order(&endpoints, "orders"), before);
    }

    #[test]
    fn a_failed_server_is_tried_again_after_a_while() {
        let endpoints = Endpoints { avoided_for: Duration::from_millis(20), ..endpoints() };
        let before = order(&endpoints, "orders");
        endpoints.mark_failed(endpoints.candidates("orders")[0]);
        assert_ne!(order(&endpoints, "orders"), before);
        baton_env::sleep_blocking(Duration::from_millis(25));
        assert_eq!(order(&endpoints, "orders"), before);
    }

    #[test]
    fn a_wrong_address_is_explained() {
        for url in ["", "127.0.0.1:6632", "ftp://a", "http://a/path", "http://", "https://"] {
            assert!(Endpoints::parse(&[url.to_owned()], None, 1).is_err(), "{url}");
        }
        for url in ["http://a:6632/", "https://a"] {
            assert!(Endpoints::parse(&[url.to_owned()], None, 1).is_ok(), "{url}");
        }
        let missing = Some(Path::new("no-such-file.pem"));
        let error = Endpoints::parse(&["https://a".to_owned()], missing, 1).unwrap_err();
        assert!(error.to_string().contains("no-such-file.pem"), "{error}");
        assert!(Endpoints::parse(&[], None, 1).is_err());
    }
}
