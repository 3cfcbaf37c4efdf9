//! The settings about who may call, and about what is secret.
//!
//! Always: a secret is never printed, neither in an error nor by `Debug`. The names without our prefix are those of
//! older servers.

use std::time::Duration;

use baton_auth::Algorithm;
use baton_queue::Keyring;
use baton_types::Secret;

use super::values::{filled, number, positive, positive_millis, set, show_millis};
use crate::setting::{Setting, setting};

/// A secret, or the file that it is in.
pub(super) fn secret(text: &str) -> Result<Secret, String> {
    text_or_file(text).map(Secret::new)
}

pub(super) const JWT_ENABLED: Setting = setting(
    ["jwt_enabled", "jwt-enabled", "BATON_JWT_ENABLED"],
    &["JWT_ENABLED"],
    "BOOL",
    "Whether callers need a token (a JWT) whose role allows what they ask for.",
    |s, text| set(&mut s.security.jwt_enabled, text, boolean),
    |s| s.security.jwt_enabled.to_string(),
);
pub(super) const JWT_ALGORITHM: Setting = setting(
    ["jwt_algorithm", "jwt-algorithm", "BATON_JWT_ALGORITHM"],
    &["JWT_ALGORITHM"],
    "NAME",
    "HS256, RS256 or EdDSA; or auto, which uses the token's algorithm if there is a key for it.",
    |s, text| set(&mut s.security.jwt.algorithm, text, algorithm),
    |s| s.security.jwt.algorithm.to_string(),
);
pub(super) const JWT_SECRET: Setting = setting(
    ["jwt_secret", "jwt-secret", "BATON_JWT_SECRET"],
    &["JWT_SECRET"],
    "SECRET",
    "The secret of HS256, best 32 random bytes or more. `@FILE` reads it from a file, which the list of processes \
     does not show.",
    |s, text| set(&mut s.security.jwt.secret, text, secret),
    |_| String::new(),
);
pub(super) const JWT_PUBLIC_KEY: Setting = setting(
    ["jwt_public_key", "jwt-public-key", "BATON_JWT_PUBLIC_KEY"],
    &["JWT_PUBLIC_KEY"],
    "PEM",
    "The public key of RS256 or EdDSA, in PEM. `@FILE` reads it from a file.",
    |s, text| set(&mut s.security.jwt.public_key, text, text_or_file),
    |_| String::new(),
);
pub(super) const JWT_JWKS_URL: Setting = setting(
    ["jwt_jwks_url", "jwt-jwks-url", "BATON_JWT_JWKS_URL"],
    &["JWT_JWKS_URL"],
    "URL",
    "Where the public keys are published (a JWKS document); https, or http on this machine.",
    |s, text| set(&mut s.security.jwt.jwks_url, text, any),
    |s| s.security.jwt.jwks_url.clone(),
);
pub(super) const JWT_JWKS_REFRESH_INTERVAL: Setting = setting(
    ["jwt_jwks_refresh_interval", "jwt-jwks-refresh-interval", "BATON_JWT_JWKS_REFRESH_INTERVAL"],
    &["JWT_JWKS_REFRESH_INTERVAL"],
    "SECONDS",
    "How often they are read again. An unknown key id triggers a read at once, every ten seconds at most.",
    |s, text| set(&mut s.security.jwt.jwks_refresh, text, |text| positive(text).map(Duration::from_secs)),
    |s| s.security.jwt.jwks_refresh.as_secs().to_string(),
);
pub(super) const JWT_JWKS_TIMEOUT_MS: Setting = setting(
    ["jwt_jwks_timeout_ms", "jwt-jwks-timeout-ms", "BATON_JWT_JWKS_TIMEOUT_MS"],
    &["JWT_JWKS_TIMEOUT_MS"],
    "MS",
    "How long reading them may take.",
    |s, text| set(&mut s.security.jwt.jwks_timeout, text, positive_millis),
    |s| show_millis(s.security.jwt.jwks_timeout),
);
pub(super) const JWT_ISSUER: Setting = setting(
    ["jwt_issuer", "jwt-issuer", "BATON_JWT_ISSUER"],
    &["JWT_ISSUER"],
    "NAME",
    "The required `iss` of tokens; empty accepts any.",
    |s, text| set(&mut s.security.jwt.issuer, text, any),
    |s| s.security.jwt.issuer.clone(),
);
pub(super) const JWT_AUDIENCE: Setting = setting(
    ["jwt_audience", "jwt-audience", "BATON_JWT_AUDIENCE"],
    &["JWT_AUDIENCE"],
    "NAME",
    "The required `aud` of tokens; empty accepts any.",
    |s, text| set(&mut s.security.jwt.audience, text, any),
    |s| s.security.jwt.audience.clone(),
);
pub(super) const JWT_CLOCK_SKEW: Setting = setting(
    ["jwt_clock_skew", "jwt-clock-skew", "BATON_JWT_CLOCK_SKEW"],
    &["JWT_CLOCK_SKEW"],
    "SECONDS",
    "By how much the clocks of issuer and server may differ.",
    |s, text| set(&mut s.security.jwt.clock_skew, text, skew),
    |s| s.security.jwt.clock_skew.as_secs().to_string(),
);
pub(super) const JWT_SKIP_PATHS: Setting = setting(
    ["jwt_skip_paths", "jwt-skip-paths", "BATON_JWT_SKIP_PATHS"],
    &["JWT_SKIP_PATHS"],
    "PATHS",
    "Paths that need no token, with commas between; one that ends in a slash stands for all below it.",
    |s, text| set(&mut s.security.jwt.skip_paths, text, any),
    |s| s.security.jwt.skip_paths.clone(),
);
pub(super) const JWT_ROLES_CLAIM: Setting = setting(
    ["jwt_roles_claim", "jwt-roles-claim", "BATON_JWT_ROLES_CLAIM"],
    &["JWT_ROLES_CLAIM"],
    "NAME",
    "The member of a token that holds its role.",
    |s, text| set(&mut s.security.jwt.roles_claim, text, filled),
    |s| s.security.jwt.roles_claim.clone(),
);
pub(super) const JWT_ROLES_ARRAY_CLAIM: Setting = setting(
    ["jwt_roles_array_claim", "jwt-roles-array-claim", "BATON_JWT_ROLES_ARRAY_CLAIM"],
    &["JWT_ROLES_ARRAY_CLAIM"],
    "NAME",
    "The member of a token that holds a list of roles.",
    |s, text| set(&mut s.security.jwt.roles_array_claim, text, filled),
    |s| s.security.jwt.roles_array_claim.clone(),
);
pub(super) const JWT_ROLE_ADMIN: Setting = setting(
    ["jwt_role_admin", "jwt-role-admin", "BATON_JWT_ROLE_ADMIN"],
    &["JWT_ROLE_ADMIN"],
    "NAME",
    "The role that may do everything.",
    |s, text| set(&mut s.security.jwt.roles.admin, text, filled),
    |s| s.security.jwt.roles.admin.clone(),
);
pub(super) const JWT_ROLE_READ_WRITE: Setting = setting(
    ["jwt_role_read_write", "jwt-role-read-write", "BATON_JWT_ROLE_READ_WRITE"],
    &["JWT_ROLE_READ_WRITE"],
    "NAME",
    "The role that may read and write.",
    |s, text| set(&mut s.security.jwt.roles.read_write, text, filled),
    |s| s.security.jwt.roles.read_write.clone(),
);
pub(super) const JWT_ROLE_READ_ONLY: Setting = setting(
    ["jwt_role_read_only", "jwt-role-read-only", "BATON_JWT_ROLE_READ_ONLY"],
    &["JWT_ROLE_READ_ONLY"],
    "NAME",
    "The role that may read everything and change nothing.",
    |s, text| set(&mut s.security.jwt.roles.read_only, text, filled),
    |s| s.security.jwt.roles.read_only.clone(),
);
pub(super) const JWT_ROLE_WRITE_ONLY: Setting = setting(
    ["jwt_role_write_only", "jwt-role-write-only", "BATON_JWT_ROLE_WRITE_ONLY"],
    &["JWT_ROLE_WRITE_ONLY"],
    "NAME",
    "The role that may push and nothing else.",
    |s, text| set(&mut s.security.jwt.roles.write_only, text, filled),
    |s| s.security.jwt.roles.write_only.clone(),
);
pub(super) const CORS_ORIGINS: Setting = setting(
    ["cors_origins", "cors-origins", "BATON_CORS_ORIGINS"],
    &[],
    "ORIGINS",
    "Sites whose pages may call from a browser, separated by commas: `https://console.example.com`, or `*` for every \
     site. A request of another site is refused, whether tokens are needed or not.",
    |s, text| set(&mut s.security.cors_origins, text, origins),
    |s| s.security.cors_origins.join(","),
);
pub(super) const ALLOWED_HOSTS: Setting = setting(
    ["allowed_hosts", "allowed-hosts", "BATON_ALLOWED_HOSTS"],
    &[],
    "HOSTS",
    "Names in `Host` that the server goes by, separated by commas, with or without a port; requests to another are \
     refused. Empty takes any, but on a loopback address without tokens only loopback names.",
    |s, text| set(&mut s.security.allowed_hosts, text, hosts),
    |s| s.security.allowed_hosts.join(","),
);
pub(super) const TLS_CERT: Setting = setting(
    ["tls_cert", "tls-cert", "BATON_TLS_CERT"],
    &[],
    "FILE",
    "The certificate to serve HTTPS with, in PEM, followed by those between it and its authority. Read again on \
     SIGHUP.",
    |s, text| set(&mut s.security.tls_cert, text, |text| Ok(text.into())),
    |s| s.security.tls_cert.display().to_string(),
);
pub(super) const TLS_KEY: Setting = setting(
    ["tls_key", "tls-key", "BATON_TLS_KEY"],
    &[],
    "FILE",
    "Its private key, in PEM.",
    |s, text| set(&mut s.security.tls_key, text, |text| Ok(text.into())),
    |s| s.security.tls_key.display().to_string(),
);
pub(super) const ENCRYPTION_KEYS: Setting = setting(
    ["encryption_keys", "encryption-keys", "BATON_ENCRYPTION_KEYS"],
    &["QUEEN_ENCRYPTION_KEY"],
    "SECRET",
    "Keys of payloads at rest, each 64 hexadecimal digits, with commas or line breaks between. The first encrypts, \
     all decrypt. `@FILE` reads them from a file.",
    |s, text| set(&mut s.security.encryption_keys, text, keys),
    |_| String::new(),
);

fn any(text: &str) -> Result<String, String> {
    Ok(text.into())
}

pub(super) fn text_or_file(text: &str) -> Result<String, String> {
    let Some(path) = text.strip_prefix('@') else { return Ok(text.into()) };
    let read = std::fs::read_to_string(path).map_err(|e| format!("cannot read {path}: {e}"))?;
    Ok(read.trim().into())
}

fn listed(text: &str) -> impl Iterator<Item = String> + '_ {
    text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned)
}

fn origins(text: &str) -> Result<Vec<String>, String> {
    let is_origin = |origin: &str| {
        let rest = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
        let is_host =
            |host: &str| !host.is_empty() && host.bytes().all(|b| b.is_ascii_graphic() && b != b'/');
        origin == "*" || origin == "null" || rest.is_some_and(is_host)
    };
    let origins: Vec<_> = listed(text).collect();
    match origins.iter().find(|origin| !is_origin(origin)) {
        Some(wrong) => Err(format!("{wrong:?} is no origin; give SCHEME://HOST without a path, or *")),
        None => Ok(origins),
    }
}

fn hosts(text: &str) -> Result<Vec<String>, String> {
    let hosts: Vec<_> = listed(text).collect();
    match hosts.iter().find(|host| host.contains('/')) {
        Some(wrong) => Err(format!("{wrong:?} is no host; give a name or an address, perhaps with a port")),
        None => Ok(hosts),
    }
}

pub(super) fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "true" | "1" | "yes" | "on" => Ok(true),
        "false" | "0" | "no" | "off" | "" => Ok(false),
        _ => Err("give true or false".into()),
    }
}

fn algorithm(text: &str) -> Result<Algorithm, String> {
    text.parse().map_err(|()| "give HS256, RS256, EdDSA or auto".into())
}

fn skew(text: &str) -> Result<Duration, String> {
    let seconds: u32 = number(text)?;
    Ok(Duration::from_secs(seconds.into()))
}

fn keys(text: &str) -> Result<Keyring, String> {
    text_or_file(text)?.parse().map_err(|error: baton_queue::KeyError| error.to_string())
}
