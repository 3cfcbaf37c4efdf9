//! Published keys: read at the start, again after a while, and when a token names one that is not known.
//!
//! Always: what was read last stays until something better is read, so an issuer that is away harms only tokens
//! with new keys; strangers cannot make us ask the issuer more often than every [`PAUSE`]; an answer has a limit in
//! time and in bytes. Start at [`Published::refresh`].

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use baton_env::Stopwatch;
use baton_tls::TlsClient;
use bytes::Bytes;
use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1::handshake;
use hyper::rt::{Read, Write};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::Mutex;

use super::key::KeySet;

/// How soon the issuer may be asked again.
const PAUSE: Duration = Duration::from_secs(10);
/// Bytes of a document.
const DOCUMENT_BYTES_MAX: usize = 1 << 20;

/// Why the keys could not be read.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The keys that an issuer publishes.
#[derive(Debug)]
pub struct Published {
    uri: Uri,
    host: String,
    port: u16,
    /// What to trust, for https.
    trust: Option<TlsClient>,
    timeout: Duration,
    keys: RwLock<Arc<KeySet>>,
    /// When the issuer was last asked. Held while it is asked, so that it is asked once.
    asked: Mutex<Option<Stopwatch>>,
}

impl Published {
    /// The keys at `url`, which are not read yet.
    pub fn new(url: &str, timeout: Duration) -> Result<Self, String> {
        let uri: Uri = url.parse().map_err(|_| format!("jwt_jwks_url cannot be {url:?}: it is no URL"))?;
        let host = uri.host().ok_or_else(|| format!("jwt_jwks_url cannot be {url:?}: it names no host"))?;
        let host = host.trim_matches(['[', ']']).to_owned();
        let (trust, port) = match uri.scheme_str() {
            Some("https") => (Some(TlsClient::with_system_roots().map_err(|e| e.to_string())?), 443),
            Some("http") if is_loopback(&host) => (None, 80),
            _ => {
                return Err(format!(
                    "jwt_jwks_url cannot be {url:?}: give an https address; one who can change the keys on their \
                     way can sign tokens, so http is for this machine only"
                ));
            }
        };
        let port = uri.port_u16().unwrap_or(port);
        Ok(Self { uri, host, port, trust, timeout, keys: RwLock::default(), asked: Mutex::new(None) })
    }

    /// What is known.
    pub fn keys(&self) -> Arc<KeySet> {
        Arc::clone(&self.keys.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads the keys again, unless that was tried a moment ago; whether they are others now.
    pub async fn refresh(&self) -> bool {
        let mut asked = self.asked.lock().await;
        if asked.as_ref().is_some_and(|asked| asked.elapsed() < PAUSE) {
            return false;
        }
        let outcome = match tokio::time::timeout(self.timeout, self.fetch()).await {
            Ok(outcome) => outcome,
            Err(_) => Err(format!("no answer within {:?}", self.timeout).into()),
        };
        *asked = Some(Stopwatch::start());
        match outcome {
            Ok(keys) => self.replace(keys),
            Err(error) => {
                tracing::warn!(url = %self.uri, %error, "cannot read the keys of tokens; those known stay");
                false
            }
        }
    }

    fn replace(&self, keys: KeySet) -> bool {
        let mut known = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        if known.is_same(&keys) {
            return false;
        }
        match keys.len() {
            0 => {
                tracing::warn!(url = %self.uri, "no key for tokens is published any more: every token is refused")
            }
            count => tracing::info!(url = %self.uri, keys = count, "read the keys of tokens"),
        }
        *known = Arc::new(keys);
        true
    }

    async fn fetch(&self) -> Result<KeySet, Failure> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        let document = match &self.trust {
            Some(trust) => self.get(TokioIo::new(trust.connect(&self.host, stream).await?)).await?,
            None => self.get(TokioIo::new(stream)).await?,
        };
        Ok(KeySet::read(&document)?)
    }

    async fn get(&self, stream: impl Read + Write + Unpin + Send + 'static) -> Result<Bytes, Failure> {
        let (mut sender, connection) = handshake(stream).await?;
        let target = self.uri.path_and_query().map_or("/", |path| path.as_str());
        let host = self.uri.authority().map_or("", |authority| authority.as_str());
        let request = Request::get(target)
            .header(header::HOST, host)
            .header(header::ACCEPT, "application/json")
            .body(Empty::<Bytes>::new())?;
        let exchange = async {
            let response = sender.send_request(request).await?;
            if response.status() != StatusCode::OK {
                return Err(format!("the answer is {}", response.status()).into());
            }
            let body = Limited::new(response.into_body(), DOCUMENT_BYTES_MAX).collect().await?;
            Ok::<_, Failure>(body.to_bytes())
        };
        tokio::pin!(exchange);
        tokio::select! {
            answer = &mut exchange => answer,
            ended = connection => {
                ended?;
                exchange.await
            }
        }
    }
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_do_not_travel_in_the_clear() {
        let of = |url: &str| Published::new(url, Duration::from_secs(1));
        assert!(of("http://127.0.0.1:1/keys").is_ok() && of("http://[::1]/").is_ok());
        for url in ["http://issuer.test/keys", "ftp://127.0.0.1/", "/keys", "not a url", ""] {
            assert!(of(url).is_err(), "{url}");
        }
    }
}
