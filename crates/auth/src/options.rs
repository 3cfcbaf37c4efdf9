//! What a token must be.

use std::time::Duration;

use baton_types::Secret;

use super::role::RoleNames;
use super::token::Algorithm;

/// What a token must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// How it must be signed.
    pub algorithm: Algorithm,
    /// The shared secret.
    pub secret: Secret,
    /// A public key in PEM.
    pub public_key: String,
    /// Where public keys are published.
    pub jwks_url: String,
    /// How often those are read again.
    pub jwks_refresh: Duration,
    /// How long that may take.
    pub jwks_timeout: Duration,
    /// Its `iss`, unless empty.
    pub issuer: String,
    /// Its `aud`, unless empty.
    pub audience: String,
    /// By how much clocks may differ.
    pub clock_skew: Duration,
    /// Paths that need none, with commas between.
    pub skip_paths: String,
    /// The claim with a role.
    pub roles_claim: String,
    /// The claim with a list of roles.
    pub roles_array_claim: String,
    /// What roles are called.
    pub roles: RoleNames,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            algorithm: Algorithm::Hs256,
            secret: Secret::default(),
            public_key: String::new(),
            jwks_url: String::new(),
            jwks_refresh: Duration::from_secs(3600),
            jwks_timeout: Duration::from_millis(5000),
            issuer: String::new(),
            audience: String::new(),
            clock_skew: Duration::from_secs(30),
            skip_paths: "/health,/metrics/prometheus,/metrics,/".into(),
            roles_claim: "role".into(),
            roles_array_claim: "roles".into(),
            roles: RoleNames::default(),
        }
    }
}
