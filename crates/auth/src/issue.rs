//! Issuing tokens with the shared secret, for operators who have no identity provider.
//!
//! An issued token is what [`Rules`](super::token::Rules) of the same settings accept: it carries their `iss` and `aud`, and
//! its role under their names. Start at [`Options::issue`].

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use baton_types::Timestamp;
use ring::hmac;
use serde_json::{Map, Value, json};

use super::options::Options;
use super::token::Algorithm;

impl Options {
    /// A token signed with HS256. Without a `lifetime` it is valid for ever.
    pub fn issue(
        &self,
        subject: Option<&str>,
        role: &str,
        now: Timestamp,
        lifetime: Option<Duration>,
    ) -> Result<String, String> {
        let secret = self.secret.expose();
        if secret.is_empty() {
            return Err("there is no secret to sign with; give the server's jwt_secret".into());
        }
        if !matches!(self.algorithm, Algorithm::Hs256 | Algorithm::Auto) {
            return Err(format!("jwt_algorithm is {}: its issuer makes the tokens", self.algorithm));
        }
        let names = &self.roles;
        if names.role(role).is_none() {
            let known = [&names.admin, &names.read_write, &names.read_only, &names.write_only];
            return Err(format!("{role:?} is no role; there are {}", known.map(String::as_str).join(", ")));
        }
        let now = now.millis() / 1000;
        let mut claims = Map::new();
        claims.insert(self.roles_claim.clone(), role.into());
        claims.insert("iat".into(), now.into());
        for (name, value) in [("sub", subject.unwrap_or("")), ("iss", &self.issuer), ("aud", &self.audience)]
        {
            if !value.is_empty() {
                claims.insert(name.into(), value.into());
            }
        }
        if let Some(lifetime) = lifetime {
            claims.insert("exp".into(), now.saturating_add_unsigned(lifetime.as_secs()).into());
        }
        let encode = |part: &Value| URL_SAFE_NO_PAD.encode(part.to_string());
        let signed = format!("{}.{}", encode(&json!({"alg": "HS256", "typ": "JWT"})), encode(&claims.into()));
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()), signed.as_bytes());
        Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(tag)))
    }
}
