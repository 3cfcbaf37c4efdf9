//! A token: what it says, and whether to believe it.
//!
//! Always: the signature is checked before anything a token claims is looked at; the algorithm is the one that was
//! set, or with `auto` one that a key is there for. No clock and no network here. Start at [`Rules::judge`].

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::access::Access;
use super::key::{Key, KeySet, Signing};
use super::role::{Role, RoleNames};

/// Bytes of a token.
pub const TOKEN_BYTES_MAX: usize = 16 << 10;
/// Characters of a stranger's text that an error repeats.
const ECHO_CHARS_MAX: usize = 64;

/// Which signatures are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// HMAC with a shared secret.
    Hs256,
    /// RSA.
    Rs256,
    /// Ed25519.
    EdDsa,
    /// Whatever the token names and there is a key for.
    Auto,
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hs256 => "HS256",
            Self::Rs256 => "RS256",
            Self::EdDsa => "EdDSA",
            Self::Auto => "auto",
        })
    }
}

impl FromStr for Algorithm {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        [Self::Hs256, Self::Rs256, Self::EdDsa, Self::Auto]
            .into_iter()
            .find(|algorithm| algorithm.to_string().eq_ignore_ascii_case(text))
            .ok_or(())
    }
}

/// Why a token is not believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is none.
    #[error("Authentication required")]
    Missing,
    /// It cannot be read.
    #[error("Token decode error: {0}")]
    Malformed(String),
    /// It is signed in a way that is not understood.
    #[error("Unsupported algorithm: {0}")]
    Unsupported(String),
    /// It is signed in another way than was set.
    #[error("Token uses {0}, expected {1}")]
    Unexpected(String, Algorithm),
    /// Its key is not known.
    #[error("Unknown key ID: {0}")]
    UnknownKey(String),
    /// It was signed with another key, or changed.
    #[error("Invalid token signature")]
    Signature,
    /// Its time is over.
    #[error("Token has expired")]
    Expired,
    /// Its time has not come.
    #[error("Token is not valid yet")]
    Early,
    /// It comes from another issuer.
    #[error("Invalid token issuer")]
    Issuer,
    /// It is for another audience.
    #[error("Invalid token audience")]
    Audience,
}

/// Whom a token speaks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Identity {
    /// Its `sub`.
    pub subject: Option<Arc<str>>,
    /// Its roles, as far as they are known here.
    pub roles: Vec<Role>,
    /// The second since 1970 from which it is over.
    pub until: Option<f64>,
}

impl Identity {
    /// Whether one of its roles allows this.
    pub fn may(&self, access: Access) -> bool {
        self.roles.iter().any(|role| role.allows(access))
    }
}

/// What a token must be.
#[derive(Clone, Debug)]
pub struct Rules {
    /// How it must be signed.
    pub algorithm: Algorithm,
    /// Its `iss`, unless empty.
    pub issuer: String,
    /// Its `aud`, unless empty.
    pub audience: String,
    /// By how much clocks may differ.
    pub clock_skew: Duration,
    /// The claim with a role.
    pub roles_claim: String,
    /// The claim with a list of roles.
    pub roles_array_claim: String,
    /// What roles are called.
    pub roles: RoleNames,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    crit: Option<Value>,
}

impl Rules {
    /// Whom a token speaks for at this second since 1970, or why not. `fixed` keys have no id and fit any.
    pub fn judge(
        &self,
        token: &str,
        fixed: &[Key],
        published: &KeySet,
        now: f64,
    ) -> Result<Identity, Refusal> {
        let malformed = |problem: &str| Refusal::Malformed(problem.into());
        if token.len() > TOKEN_BYTES_MAX {
            return Err(Refusal::Malformed(format!("it has more than {TOKEN_BYTES_MAX} bytes")));
        }
        let (signed, signature) = token.rsplit_once('.').ok_or_else(|| malformed("it has no three parts"))?;
        let (header, claims) = signed.split_once('.').ok_or_else(|| malformed("it has no three parts"))?;
        let header: Header = serde_json::from_slice(&decode(header)?)
            .map_err(|_| malformed("its header is not what a header must be"))?;
        if header.crit.is_some() {
            return Err(malformed("it needs extensions that are not known here"));
        }
        let key = self.key(&header, fixed, published)?;
        if !key.1.verifies(key.0, signed.as_bytes(), &decode(signature)?) {
            return Err(Refusal::Signature);
        }
        let claims: Map<String, Value> = serde_json::from_slice(&decode(claims)?)
            .map_err(|_| malformed("its claims are not a JSON object"))?;
        self.believe(&claims, now)
    }

    fn key<'k>(
        &self,
        header: &Header,
        fixed: &'k [Key],
        published: &'k KeySet,
    ) -> Result<(Signing, &'k Key), Refusal> {
        let named = || echo(&header.alg);
        let signing = Signing::named(&header.alg);
        let expected = match self.algorithm {
            Algorithm::Hs256 => Some(Signing::Hs256),
            Algorithm::Rs256 => Some(Signing::Rs256),
            Algorithm::EdDsa => Some(Signing::EdDsa),
            Algorithm::Auto => signing,
        };
        let signing = match signing {
            None => return Err(Refusal::Unsupported(named())),
            Some(signing) if Some(signing) != expected => {
                return Err(Refusal::Unexpected(named(), self.algorithm));
            }
            Some(signing) => signing,
        };
        let id = header.kid.as_deref();
        let found =
            published.find(signing, id).or_else(|| fixed.iter().find(|candidate| candidate.fits(signing)));
        match found {
            Some(key) => Ok((signing, key)),
            // Secrets are never published: there is nothing to look for.
            None if signing == Signing::Hs256 => Err(Refusal::Unsupported(named())),
            None => Err(Refusal::UnknownKey(id.map_or_else(|| "(none)".into(), echo))),
        }
    }

    fn believe(&self, claims: &Map<String, Value>, now: f64) -> Result<Identity, Refusal> {
        let skew = self.clock_skew.as_secs_f64();
        let until = moment(claims, "exp")?.map(|until| until + skew);
        if until.is_some_and(|until| until <= now) {
            return Err(Refusal::Expired);
        }
        for name in ["nbf", "iat"] {
            if moment(claims, name)?.is_some_and(|from| from > now + skew) {
                return Err(Refusal::Early);
            }
        }
        if !self.issuer.is_empty() && claims.get("iss").and_then(Value::as_str) != Some(&self.issuer) {
            return Err(Refusal::Issuer);
        }
        if !self.audience.is_empty() && !texts(claims.get("aud")).any(|audience| audience == self.audience) {
            return Err(Refusal::Audience);
        }
        let names = texts(claims.get(&self.roles_claim)).chain(texts(claims.get(&self.roles_array_claim)));
        Ok(Identity {
            subject: claims.get("sub").and_then(Value::as_str).filter(|sub| !sub.is_empty()).map(Arc::from),
            roles: names.filter_map(|name| self.roles.role(name)).collect(),
            until,
        })
    }
}

fn decode(part: &str) -> Result<Vec<u8>, Refusal> {
    URL_SAFE_NO_PAD.decode(part).map_err(|_| Refusal::Malformed("a part is not base64url".into()))
}

fn moment(claims: &Map<String, Value>, name: &str) -> Result<Option<f64>, Refusal> {
    match claims.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_f64() {
            Some(seconds) => Ok(Some(seconds)),
            None => Err(Refusal::Malformed(format!("its {name} is not a number"))),
        },
    }
}

/// A text, or the texts of a list.
fn texts(value: Option<&Value>) -> impl Iterator<Item = &str> {
    let list = value.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    value.and_then(Value::as_str).into_iter().chain(list.iter().filter_map(Value::as_str))
}

/// The beginning of a stranger's text.
fn echo(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(ECHO_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ring::hmac;
    use ring::signature::{Ed25519KeyPair, KeyPair};
    use serde_json::json;

    use super::*;

    const NOW: f64 = 1_000_000.0;
    const SECRET: &str = "0123456789abcdef0123456789abcdef";

    fn rules(algorithm: Algorithm) -> Rules {
        Rules {
            algorithm,
            issuer: String::new(),
            audience: String::new(),
            clock_skew: Duration::from_secs(30),
            roles_claim: "role".into(),
            roles_array_claim: "roles".into(),
            roles: RoleNames::default(),
        }
    }

    fn part(value: &Value) -> String {
        URL_SAFE_NO_PAD.encode(value.to_string())
    }

    fn signed_with(secret: &[u8], header: &Value, claims: &Value) -> String {
        let signed = format!("{}.{}", part(header), part(claims));
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), signed.as_bytes());
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(tag))
    }

    fn hs256(claims: &Value) -> String {
        signed_with(SECRET.as_bytes(), &json!({"alg": "HS256", "typ": "JWT"}), claims)
    }

    fn judge(rules: &Rules, token: &str) -> Result<Identity, Refusal> {
        rules.judge(token, &[Key::secret(SECRET)], &KeySet::default(), NOW)
    }

    #[test]
    fn a_good_token_tells_whom_it_speaks_for() {
        let rules = rules(Algorithm::Hs256);
        let token =
            hs256(&json!({"sub": "ann", "role": "read-only", "roles": ["admin", "x", 7], "exp": NOW + 5.0}));
        let expected = Identity {
            subject: Some("ann".into()),
            roles: vec![Role::ReadOnly, Role::Admin],
            until: Some(NOW + 35.0),
        };
        assert_eq!(judge(&rules, &token), Ok(expected));
        let anonymous = judge(&rules, &hs256(&json!({"sub": ""}))).unwrap();
        assert_eq!(anonymous, Identity { subject: None, roles: vec![], until: None });
    }

    #[test]
    fn time_counts_with_the_skew_of_clocks() {
        let rules = rules(Algorithm::Hs256);
        let check = |claims: Value| judge(&rules, &hs256(&claims)).err();
        assert_eq!(check(json!({"exp": NOW - 29.0})), None);
        assert_eq!(check(json!({"exp": NOW - 30.0})), Some(Refusal::Expired));
        for name in ["nbf", "iat"] {
            assert_eq!(check(json!({name: NOW + 30.0})), None);
            assert_eq!(check(json!({name: NOW + 31.0})), Some(Refusal::Early));
        }
        assert_eq!(check(json!({"exp": "soon"})), Some(Refusal::Malformed("its exp is not a number".into())));
    }

    #[test]
    fn issuer_and_audience_count_when_they_are_set() {
        let rules = Rules { issuer: "us".into(), audience: "queues".into(), ..rules(Algorithm::Hs256) };
        let check = |claims: Value| judge(&rules, &hs256(&claims)).err();
        assert_eq!(check(json!({"iss": "us", "aud": "queues"})), None);
        assert_eq!(check(json!({"iss": "us", "aud": ["a", "queues"]})), None);
        assert_eq!(check(json!({"iss": "them", "aud": "queues"})), Some(Refusal::Issuer));
        assert_eq!(check(json!({"aud": "queues"})), Some(Refusal::Issuer));
        assert_eq!(check(json!({"iss": "us", "aud": ["a"]})), Some(Refusal::Audience));
        assert_eq!(check(json!({"iss": "us"})), Some(Refusal::Audience));
    }

    #[test]
    fn no_signature_is_no_signature() {
        let claims = part(&json!({"role": "admin"}));
        for algorithm in [Algorithm::Hs256, Algorithm::Auto, Algorithm::Rs256] {
            for name in ["none", "None", "nOnE", ""] {
                let token = format!("{}.{claims}.", part(&json!({"alg": name})));
                assert_eq!(judge(&rules(algorithm), &token), Err(Refusal::Unsupported(name.into())));
            }
        }
        let unsigned = format!("{}.{claims}.", part(&json!({"alg": "HS256"})));
        assert_eq!(judge(&rules(Algorithm::Hs256), &unsigned), Err(Refusal::Signature));
        let other = signed_with(b"other", &json!({"alg": "HS256"}), &json!({"role": "admin"}));
        assert_eq!(judge(&rules(Algorithm::Hs256), &other), Err(Refusal::Signature));
    }

    #[test]
    fn a_public_key_is_no_secret() {
        let pair = Ed25519KeyPair::from_seed_unchecked(&[5; 32]).unwrap();
        let public = pair.public_key().as_ref().to_vec();
        let keys = [Key::Ed25519(public.clone())];
        let confused = signed_with(&public, &json!({"alg": "HS256"}), &json!({"role": "admin"}));
        let judge = |algorithm, token: &str| rules(algorithm).judge(token, &keys, &KeySet::default(), NOW);
        assert_eq!(judge(Algorithm::Auto, &confused), Err(Refusal::Unsupported("HS256".into())));
        assert_eq!(
            judge(Algorithm::EdDsa, &confused),
            Err(Refusal::Unexpected("HS256".into(), Algorithm::EdDsa))
        );
        let signed = format!("{}.{}", part(&json!({"alg": "EdDSA", "kid": "k"})), part(&json!({"sub": "x"})));
        let token = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(pair.sign(signed.as_bytes())));
        for algorithm in [Algorithm::Auto, Algorithm::EdDsa] {
            assert!(judge(algorithm, &token).is_ok());
        }
        let published = rules(Algorithm::EdDsa).judge(&token, &[], &KeySet::default(), NOW);
        assert_eq!(published, Err(Refusal::UnknownKey("k".into())));
    }

    #[test]
    fn extensions_that_must_be_understood_are_not() {
        let token = signed_with(SECRET.as_bytes(), &json!({"alg": "HS256", "crit": ["b64"]}), &json!({}));
        assert!(matches!(judge(&rules(Algorithm::Hs256), &token), Err(Refusal::Malformed(_))));
    }

    proptest! {
        #[test]
        fn a_changed_token_is_refused(place in any::<prop::sample::Index>(), flip in 1u8..) {
            let token = hs256(&json!({"sub": "ann", "role": "admin"}));
            let mut bytes = token.clone().into_bytes();
            let place = place.index(bytes.len());
            bytes[place] ^= flip;
            if let Ok(changed) = String::from_utf8(bytes) {
                prop_assert!(judge(&rules(Algorithm::Hs256), &changed).is_err());
            }
        }

        #[test]
        fn no_text_makes_the_judge_panic(text in any::<String>(), header in any::<String>(), claims in any::<String>()) {
            let rules = rules(Algorithm::Auto);
            let _ = judge(&rules, &text);
            let signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(&header), URL_SAFE_NO_PAD.encode(&claims));
            let _ = judge(&rules, &format!("{signed}.AAAA"));
        }
    }
}
