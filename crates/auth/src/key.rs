//! Keys that signatures are checked with.
//!
//! Always: a key belongs to one family of algorithms, so a public key can never serve as a shared secret; secrets
//! are compared in constant time. Start at [`Key::verifies`].

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::signature::{
    ED25519, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512,
    RsaPublicKeyComponents, UnparsedPublicKey,
};
use ring::{digest, hmac};
use serde::Deserialize;

/// Keys of one document that are looked at.
const KEYS_MAX: usize = 200;
/// Bytes of the smallest modulus of RSA that is safe.
const MODULUS_BYTES_MIN: usize = 256;

/// How a token is signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signing {
    /// HMAC with SHA-256.
    Hs256,
    /// RSA with SHA-256.
    Rs256,
    /// RSA with SHA-384.
    Rs384,
    /// RSA with SHA-512.
    Rs512,
    /// Ed25519.
    EdDsa,
}

impl Signing {
    /// The algorithm of that name; `none` is none.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "HS256" => Some(Self::Hs256),
            "RS256" => Some(Self::Rs256),
            "RS384" => Some(Self::Rs384),
            "RS512" => Some(Self::Rs512),
            "EdDSA" => Some(Self::EdDsa),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Hs256 => "HS256",
            Self::Rs256 => "RS256",
            Self::Rs384 => "RS384",
            Self::Rs512 => "RS512",
            Self::EdDsa => "EdDSA",
        }
    }
}

/// A key that signatures are checked with.
#[derive(Clone)]
pub enum Key {
    /// A shared secret.
    Secret(hmac::Key),
    /// The modulus and the exponent.
    Rsa(RsaPublicKeyComponents<Vec<u8>>),
    /// The point.
    Ed25519(Vec<u8>),
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Secret(_) => "Secret",
            Self::Rsa(_) => "Rsa",
            Self::Ed25519(_) => "Ed25519",
        })
    }
}

impl Key {
    /// A shared secret.
    pub fn secret(secret: &str) -> Self {
        Self::Secret(hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()))
    }

    /// The public key in a PEM text.
    pub fn from_pem(text: &str) -> Result<Self, String> {
        // In an environment variable line breaks are often written as two characters.
        let text = text.replace("\\n", "\n");
        let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let (first, last) = (lines.first().copied().unwrap_or_default(), lines.last().copied());
        let body: String = lines.iter().filter(|line| !line.starts_with("-----")).copied().collect();
        let der = STANDARD.decode(body).map_err(|e| format!("its PEM text is malformed: {e}"))?;
        let key = match (first, last) {
            ("-----BEGIN PUBLIC KEY-----", Some("-----END PUBLIC KEY-----")) => subject_key(&der),
            ("-----BEGIN RSA PUBLIC KEY-----", Some("-----END RSA PUBLIC KEY-----")) => rsa_key(&der),
            _ => return Err("it must be a PUBLIC KEY in PEM".into()),
        };
        key.ok_or_else(|| "it must be an RSA key of 2048 bits or more, or an Ed25519 key".into())
    }

    /// Whether the key is made for this algorithm.
    pub fn fits(&self, signing: Signing) -> bool {
        match self {
            Self::Secret(_) => signing == Signing::Hs256,
            Self::Rsa(_) => matches!(signing, Signing::Rs256 | Signing::Rs384 | Signing::Rs512),
            Self::Ed25519(_) => signing == Signing::EdDsa,
        }
    }

    /// Whether `signature` is this key's over `text`.
    pub fn verifies(&self, signing: Signing, text: &[u8], signature: &[u8]) -> bool {
        match (self, signing) {
            (Self::Secret(key), Signing::Hs256) => hmac::verify(key, text, signature).is_ok(),
            (Self::Rsa(key), Signing::Rs256) => {
                key.verify(&RSA_PKCS1_2048_8192_SHA256, text, signature).is_ok()
            }
            (Self::Rsa(key), Signing::Rs384) => {
                key.verify(&RSA_PKCS1_2048_8192_SHA384, text, signature).is_ok()
            }
            (Self::Rsa(key), Signing::Rs512) => {
                key.verify(&RSA_PKCS1_2048_8192_SHA512, text, signature).is_ok()
            }
            (Self::Ed25519(point), Signing::EdDsa) => {
                UnparsedPublicKey::new(&ED25519, point).verify(text, signature).is_ok()
            }
            _ => false,
        }
    }

    fn rsa(n: &[u8], e: &[u8]) -> Option<Self> {
        let [n, e] = [n, e].map(|number| {
            let zeros = number.iter().take_while(|byte| **byte == 0).count();
            number.get(zeros..).unwrap_or_default().to_vec()
        });
        (n.len() >= MODULUS_BYTES_MIN && !e.is_empty()).then_some(Self::Rsa(RsaPublicKeyComponents { n, e }))
    }
}

/// Splits one DER value with this tag from what follows it.
fn der(tag: u8, bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&[found, length], rest) = bytes.split_first_chunk::<2>()?;
    let (length, rest) = match length {
        0..=0x7f => (usize::from(length), rest),
        0x81..=0x83 => {
            let (digits, rest) = rest.split_at_checked(usize::from(length - 0x80))?;
            (digits.iter().fold(0, |number, digit| number << 8 | usize::from(*digit)), rest)
        }
        _ => return None,
    };
    if found == tag { rest.split_at_checked(length) } else { None }
}

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OBJECT: u8 = 0x06;
const OF_RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
const OF_ED25519: &[u8] = &[0x2b, 0x65, 0x70];

/// A key with the name of its kind before it.
fn subject_key(bytes: &[u8]) -> Option<Key> {
    let (whole, _) = der(SEQUENCE, bytes)?;
    let (kind, rest) = der(SEQUENCE, whole)?;
    let (object, _) = der(OBJECT, kind)?;
    let (bits, _) = der(BIT_STRING, rest)?;
    let (0, key) = bits.split_first().map(|(unused, key)| (*unused, key))? else { return None };
    match object {
        OF_RSA => rsa_key(key),
        OF_ED25519 if key.len() == 32 => Some(Key::Ed25519(key.to_vec())),
        _ => None,
    }
}

fn rsa_key(bytes: &[u8]) -> Option<Key> {
    let (whole, _) = der(SEQUENCE, bytes)?;
    let (n, rest) = der(INTEGER, whole)?;
    let (e, _) = der(INTEGER, rest)?;
    Key::rsa(n, e)
}

/// Published keys by their id.
#[derive(Clone, Debug, Default)]
pub struct KeySet {
    keys: Vec<Published>,
    /// Of the document; another one means other keys.
    digest: Option<[u8; 32]>,
}

#[derive(Clone, Debug)]
struct Published {
    id: Option<String>,
    /// The only algorithm that the key is for, when it names one.
    only: Option<String>,
    key: Key,
}

#[derive(Deserialize)]
struct Document {
    keys: Vec<serde_json::Value>,
}

#[derive(Deserialize)]
struct Entry {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    n: Option<String>,
    e: Option<String>,
    crv: Option<String>,
    x: Option<String>,
}

impl Entry {
    /// Shared secrets have no place in a published document, so those are passed over with all that is not known.
    fn key(&self) -> Option<Key> {
        let bytes = |text: &Option<String>| URL_SAFE_NO_PAD.decode(text.as_ref()?.trim_end_matches('=')).ok();
        if self.purpose.as_deref().is_some_and(|purpose| purpose != "sig") {
            return None;
        }
        match (self.kty.as_str(), self.crv.as_deref()) {
            ("RSA", _) => Key::rsa(&bytes(&self.n)?, &bytes(&self.e)?),
            ("OKP", Some("Ed25519")) => bytes(&self.x).filter(|x| x.len() == 32).map(Key::Ed25519),
            _ => None,
        }
    }
}

impl KeySet {
    /// The keys of a JWKS document that can be used here; those that cannot are skipped. A document without any
    /// withdraws all keys.
    pub fn read(document: &[u8]) -> Result<Self, String> {
        let parsed: Document =
            serde_json::from_slice(document).map_err(|e| format!("it is no JWKS document: {e}"))?;
        let keys = parsed.keys.into_iter().take(KEYS_MAX).filter_map(|value| {
            let entry: Entry = serde_json::from_value(value).ok()?;
            let key = entry.key()?;
            Some(Published { id: entry.kid, only: entry.alg, key })
        });
        let keys: Vec<_> = keys.collect();
        let digest = digest::digest(&digest::SHA256, document).as_ref().try_into().ok();
        Ok(Self { keys, digest })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether it was read from the same document.
    pub fn is_same(&self, other: &Self) -> bool {
        self.digest == other.digest
    }

    /// Whether it was never read.
    pub fn is_missing(&self) -> bool {
        self.digest.is_none()
    }

    /// The key with this id; for a token that names none, the only key that fits.
    pub fn find(&self, signing: Signing, id: Option<&str>) -> Option<&Key> {
        let mut fitting = self.keys.iter().filter(|published| {
            published.key.fits(signing)
                && published.only.as_deref().is_none_or(|only| only == signing.name())
                && (id.is_none() || published.id.as_deref() == id)
        });
        let found = fitting.next()?;
        (id.is_some() || fitting.next().is_none()).then_some(&found.key)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_public_keys_are_taken_from_a_document() {
        let x = URL_SAFE_NO_PAD.encode([7; 32]);
        let n = URL_SAFE_NO_PAD.encode([0xc3; 256]);
        let document = format!(
            r#"{{"keys":[{{"kty":"oct","kid":"s","k":"AAAA"}},{{"kty":"OKP","crv":"Ed25519","kid":"e","x":"{x}"}},
                {{"kty":"RSA","kid":"r","n":"{n}","e":"AQAB","alg":"RS256"}},{{"kty":"RSA","kid":"short","n":"AQAB","e":"AQAB"}},
                {{"kty":"RSA","kid":"enc","use":"enc","n":"{n}","e":"AQAB"}},7,{{"kty":"EC"}}]}}"#
        );
        let keys = KeySet::read(document.as_bytes()).unwrap();
        assert_eq!(keys.len(), 2);
        assert!(keys.find(Signing::EdDsa, Some("e")).is_some() && keys.find(Signing::EdDsa, None).is_some());
        assert!(
            keys.find(Signing::Rs256, Some("r")).is_some() && keys.find(Signing::Rs384, Some("r")).is_none()
        );
        assert!(
            keys.find(Signing::Hs256, Some("s")).is_none() && keys.find(Signing::EdDsa, Some("r")).is_none()
        );
        let withdrawn = KeySet::read(br#"{"keys":[]}"#).unwrap();
        assert!(withdrawn.len() == 0 && !withdrawn.is_missing());
        assert!(KeySet::read(b"<html>").is_err() && KeySet::read(b"{}").is_err());
    }

    #[test]
    fn a_pem_text_may_have_escaped_line_breaks() {
        let mut der = vec![0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
        der.extend([9; 32]);
        let body = STANDARD.encode(&der);
        for line_break in ["\n", "\\n"] {
            let pem = ["-----BEGIN PUBLIC KEY-----", &body, "-----END PUBLIC KEY-----"].join(line_break);
            assert!(matches!(Key::from_pem(&pem), Ok(Key::Ed25519(point)) if point == [9; 32]));
        }
        for wrong in ["", "secret", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----"] {
            assert!(Key::from_pem(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_readers_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = subject_key(&bytes);
            let _ = rsa_key(&bytes);
            let _ = KeySet::read(&bytes);
        }
    }
}
