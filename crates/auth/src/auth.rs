//! Admission: the token of a request, found good or not, against the level of what it asks for.
//!
//! Start at [`Auth::admit`].

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use baton_env::{Clock, SystemClock};
use tokio_util::sync::CancellationToken;

use super::access::Access;
use super::error::Error;
use super::jwks::Published;
use super::key::{Key, KeySet};
use super::options::Options;
use super::token::{Algorithm, Identity, Refusal, Rules};
use super::token_cache::{Digest, TokenCache, digest_of};

/// How soon keys that could not be read are tried again.
const RETRY: Duration = Duration::from_secs(15);
/// What is left of a token counts up to here: no connection lasts longer, and timers overflow far beyond.
const REMAINING_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Bytes of a secret below which it can be guessed.
const SECRET_BYTES_SAFE: usize = 32;

/// Decides who may call what.
#[derive(Debug)]
pub struct Auth {
    rules: Rules,
    fixed: Vec<Key>,
    published: Option<Published>,
    refresh: Duration,
    skip: Vec<String>,
    /// Held for a look-up, never across an await.
    cache: Mutex<TokenCache>,
    clock: SystemClock,
}

/// Whether a request may go on.
#[derive(Debug)]
pub enum Admission {
    /// It may, for whom the token speaks, if there is one.
    Granted(Option<Arc<Identity>>),
    /// It may not.
    Refused(Error),
    /// Its key is not known; [`Auth::admit_later`] looks whether it is published by now.
    Unknown(String),
}

impl Auth {
    /// From options that fit together, or says which do not.
    pub fn new(options: Options) -> Result<Self, String> {
        let mut fixed = Vec::new();
        let secret = options.secret.expose();
        if !secret.is_empty() && matches!(options.algorithm, Algorithm::Hs256 | Algorithm::Auto) {
            if secret.len() < SECRET_BYTES_SAFE {
                tracing::warn!(
                    "jwt_secret is short enough to be guessed; use {SECRET_BYTES_SAFE} bytes or more"
                );
            }
            fixed.push(Key::secret(secret));
        }
        if options.algorithm == Algorithm::Hs256 && fixed.is_empty() {
            return Err("jwt_algorithm is HS256, which needs a jwt_secret".into());
        }
        if !options.public_key.is_empty() {
            let key = Key::from_pem(&options.public_key);
            fixed.push(key.map_err(|problem| format!("jwt_public_key cannot be used: {problem}"))?);
        }
        let published = match options.jwks_url.as_str() {
            "" => None,
            url => Some(Published::new(url, options.jwks_timeout)?),
        };
        if fixed.is_empty() && published.is_none() {
            return Err(format!(
                "jwt_algorithm is {}, which needs a jwt_public_key or a jwt_jwks_url",
                options.algorithm
            ));
        }
        Ok(Self {
            rules: Rules {
                algorithm: options.algorithm,
                issuer: options.issuer,
                audience: options.audience,
                clock_skew: options.clock_skew,
                roles_claim: options.roles_claim,
                roles_array_claim: options.roles_array_claim,
                roles: options.roles,
            },
            fixed,
            published,
            refresh: options.jwks_refresh,
            skip: options.skip_paths.split(',').map(|path| path.trim().to_owned()).collect(),
            cache: Mutex::default(),
            clock: SystemClock::default(),
        })
    }

    /// Keeps published keys fresh until `shutdown`.
    pub async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        let Some(published) = &self.published else { return };
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = self.read_again(published) => {}
            }
            let pause = if published.keys().is_missing() { RETRY.min(self.refresh) } else { self.refresh };
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = baton_env::sleep(pause) => {}
            }
        }
    }

    /// Whether a request with this `Authorization` header may go on.
    pub fn admit(&self, access: Access, path: &str, header: Option<&[u8]>) -> Admission {
        if access == Access::Public || self.skips(path) {
            return Admission::Granted(self.recognize(header));
        }
        let Some(token) = token_of(header) else { return Admission::Refused(Refusal::Missing.into()) };
        let Ok(token) = std::str::from_utf8(token) else {
            return Admission::Refused(Refusal::Malformed("it is not text".into()).into());
        };
        match self.identify(token) {
            Ok(identity) => permit(identity, access)
                .map_or_else(Admission::Refused, |identity| Admission::Granted(Some(identity))),
            Err(Refusal::UnknownKey(_)) if self.published.is_some() => Admission::Unknown(token.to_owned()),
            Err(refusal) => Admission::Refused(refusal.into()),
        }
    }

    /// Whom a token speaks for that is not needed; `None` if it is not good.
    fn recognize(&self, header: Option<&[u8]>) -> Option<Arc<Identity>> {
        let token = std::str::from_utf8(token_of(header)?).ok()?;
        self.identify(token).ok()
    }

    fn identify(&self, token: &str) -> Result<Arc<Identity>, Refusal> {
        let (digest, now) = (digest_of(token), self.now());
        let known = self.cache().find(&digest, now);
        known.map_or_else(|| self.judge(token, digest, now), Ok)
    }

    /// Looks whether a key that was not known is published by now, and decides.
    pub async fn admit_later(&self, access: Access, token: &str) -> Result<Arc<Identity>, Error> {
        if let Some(published) = &self.published {
            self.read_again(published).await;
            if published.keys().is_missing() {
                return Err(Error::KeysUnavailable);
            }
        }
        permit(self.judge(token, digest_of(token), self.now())?, access)
    }

    /// How long the token of this identity is still valid; `None` is for ever.
    pub fn remaining(&self, identity: &Identity) -> Option<Duration> {
        let left = Duration::try_from_secs_f64((identity.until? - self.now()).max(0.0)).ok()?;
        Some(left.min(REMAINING_MAX))
    }

    async fn read_again(&self, published: &Published) {
        if published.refresh().await {
            self.cache().clear();
        }
    }

    fn judge(&self, token: &str, digest: Digest, now: f64) -> Result<Arc<Identity>, Refusal> {
        let published = self.published.as_ref().map(Published::keys);
        let none = KeySet::default();
        let identity =
            self.rules.judge(token, &self.fixed, published.as_deref().unwrap_or(&none), now).map(Arc::new)?;
        self.cache().add(digest, Arc::clone(&identity));
        Ok(identity)
    }

    fn skips(&self, path: &str) -> bool {
        self.skip.iter().any(|skip| {
            path == skip || (skip.len() > 1 && skip.ends_with('/') && path.starts_with(skip.as_str()))
        })
    }

    fn now(&self) -> f64 {
        Duration::from_micros(u64::try_from(self.clock.now().micros()).unwrap_or(0)).as_secs_f64()
    }

    fn cache(&self) -> std::sync::MutexGuard<'_, TokenCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The token of an `Authorization` header, with or without the word before it.
fn token_of(header: Option<&[u8]>) -> Option<&[u8]> {
    let header = header?.trim_ascii();
    let token = match header.split_at_checked(7) {
        Some((word, rest)) if word.eq_ignore_ascii_case(b"bearer ") => rest.trim_ascii(),
        _ if header.eq_ignore_ascii_case(b"bearer") => b"",
        _ => header,
    };
    (!token.is_empty()).then_some(token)
}

fn permit(identity: Arc<Identity>, access: Access) -> Result<Arc<Identity>, Error> {
    if identity.may(access) { Ok(identity) } else { Err(Error::Forbidden) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_without_the_key_it_needs_does_not_start() {
        let refusal = |change: fn(&mut Options)| {
            let mut options = Options::default();
            change(&mut options);
            Auth::new(options).unwrap_err()
        };
        assert!(refusal(|_| ()).contains("jwt_secret"));
        assert!(refusal(|o| o.algorithm = Algorithm::Rs256).contains("jwt_public_key"));
        assert!(refusal(|o| o.algorithm = Algorithm::Auto).contains("jwt_public_key"));
        assert!(
            refusal(|o| (o.algorithm, o.public_key) = (Algorithm::EdDsa, "x".into()))
                .contains("jwt_public_key")
        );
    }

    #[test]
    fn a_token_may_stand_alone_or_after_its_word() {
        let of = |header: &'static str| token_of(Some(header.as_bytes()));
        assert_eq!(of("Bearer abc"), Some(&b"abc"[..]));
        assert_eq!(of("bEARER   abc "), Some(&b"abc"[..]));
        assert_eq!(of("abc"), Some(&b"abc"[..]));
        assert_eq!((of("Bearer "), of(" "), token_of(None)), (None, None, None));
    }
}
