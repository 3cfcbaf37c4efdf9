//! Who may call, and what is encrypted. Start at [`Security`].

use std::path::PathBuf;

use baton_queue::Keyring;

/// What to serve HTTPS with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The file with the certificate and those between it and its authority.
    pub chain: PathBuf,
    /// The file with its private key.
    pub key: PathBuf,
}

/// Who may call, and what is encrypted.
#[derive(Clone, Debug, PartialEq)]
pub struct Security {
    /// Whether callers need a token.
    pub jwt_enabled: bool,
    /// What a token says when it is right.
    pub jwt: baton_auth::Options,
    /// Sites whose pages may call.
    pub cors_origins: Vec<String>,
    /// Names that the server goes by.
    pub allowed_hosts: Vec<String>,
    /// The certificate chain to serve HTTPS with.
    pub tls_cert: PathBuf,
    /// Its private key.
    pub tls_key: PathBuf,
    /// The keys of encrypted payloads.
    pub encryption_keys: Keyring,
}

impl Default for Security {
    fn default() -> Self {
        Self {
            jwt_enabled: false,
            jwt: baton_auth::Options::default(),
            cors_origins: Vec::new(),
            allowed_hosts: Vec::new(),
            tls_cert: PathBuf::new(),
            tls_key: PathBuf::new(),
            encryption_keys: Keyring::default(),
        }
    }
}

impl Security {
    /// How tokens are judged, if they are.
    pub fn auth(&self) -> Option<baton_auth::Options> {
        self.jwt_enabled.then(|| self.jwt.clone())
    }

    /// The certificate to serve with, if there is one.
    pub fn certificate(&self) -> Option<Certificate> {
        let given = !self.tls_cert.as_os_str().is_empty() || !self.tls_key.as_os_str().is_empty();
        given.then(|| Certificate { chain: self.tls_cert.clone(), key: self.tls_key.clone() })
    }
}
