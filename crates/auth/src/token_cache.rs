//! Tokens that were found good, so that the same one is not judged with every request.
//!
//! Always: at most twice [`GENERATION`] of them; a token is known by its digest, so none is kept and none can be
//! guessed byte by byte; one that is over is not found. Start at [`TokenCache::find`].

use std::collections::HashMap;
use std::sync::Arc;

use ring::digest;

use super::token::Identity;

/// Tokens after which those not used since are forgotten.
const GENERATION: usize = 4096;

/// What a token is known by.
pub type Digest = [u8; 32];

/// The digest of a token.
pub fn digest_of(token: &str) -> Digest {
    let mut bytes = Digest::default();
    bytes.copy_from_slice(digest::digest(&digest::SHA256, token.as_bytes()).as_ref());
    bytes
}

/// Tokens that were found good.
#[derive(Debug, Default)]
pub struct TokenCache {
    young: HashMap<Digest, Arc<Identity>>,
    old: HashMap<Digest, Arc<Identity>>,
}

impl TokenCache {
    /// Whom the token speaks for, if it was seen and is not over.
    pub fn find(&mut self, token: &Digest, now: f64) -> Option<Arc<Identity>> {
        let found = match self.young.get(token) {
            Some(identity) => Arc::clone(identity),
            None => {
                let identity = self.old.remove(token)?;
                self.add(*token, Arc::clone(&identity));
                identity
            }
        };
        found.until.is_none_or(|until| now < until).then_some(found)
    }

    /// Remembers a token.
    pub fn add(&mut self, token: Digest, identity: Arc<Identity>) {
        if self.young.len() >= GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(token, identity);
    }

    /// Forgets all, as the keys are others now.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(until: f64) -> Arc<Identity> {
        Arc::new(Identity { subject: None, roles: Vec::new(), until: Some(until) })
    }

    #[test]
    fn a_token_is_found_until_it_is_over() {
        let mut cache = TokenCache::default();
        cache.add(digest_of("a"), identity(10.0));
        assert!(cache.find(&digest_of("a"), 9.0).is_some() && cache.find(&digest_of("b"), 9.0).is_none());
        assert!(cache.find(&digest_of("a"), 10.0).is_none());
    }

    #[test]
    fn the_number_of_tokens_is_bounded_and_those_in_use_stay() {
        let mut cache = TokenCache::default();
        cache.add(digest_of("used"), identity(10.0));
        for i in 0..3 * GENERATION {
            cache.add(digest_of(&i.to_string()), identity(10.0));
            assert!(cache.find(&digest_of("used"), 1.0).is_some());
        }
        assert!(cache.young.len() + cache.old.len() <= 2 * GENERATION + 1);
        assert!(cache.find(&digest_of("0"), 1.0).is_none());
    }
}
