//! TLS for servers and clients.
//!
//! One cryptography provider for all of Baton, and errors that name the file and what to do. Always: only versions
//! 1.2 and 1.3; certificates are verified. Deliberately absent: client certificates (clients send tokens) and a
//! switch that turns verification off. Start at [`Identity`] for a server, [`TlsClient`] for a client.

pub mod database;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// A TLS stream accepted by a server.
pub type ServerStream = tokio_rustls::server::TlsStream<TcpStream>;
/// A TLS stream to a server.
pub type ClientStream = SecureStream<TcpStream>;
/// A TLS stream to a server over another stream.
pub type SecureStream<S> = tokio_rustls::client::TlsStream<S>;

/// Why TLS cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be used.
    #[error("cannot use {}: {problem}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// An address asks for TLS without verification.
    #[error(
        "sslmode {0:?} is not known: give verify-full for TLS with a certificate that is checked, or disable for none"
    )]
    Mode(String),
    /// The TLS library failed.
    #[error("TLS cannot be used: {0}")]
    Library(#[from] rustls::Error),
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The certificates in a PEM file.
fn load_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let refused = |problem: String| Error::File { path: path.into(), problem };
    let found = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|e| refused(e.to_string()))?;
    if found.is_empty() { Err(refused("it holds no certificate in PEM".into())) } else { Ok(found) }
}

/// A server's certificate and key, which can be reloaded while it serves.
#[derive(Clone)]
pub struct Identity {
    files: Arc<IdentityFiles>,
    acceptor: TlsAcceptor,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("chain", &self.files.chain).finish_non_exhaustive()
    }
}

/// The files, and their content at the last load.
#[derive(Debug)]
struct IdentityFiles {
    chain: PathBuf,
    key: PathBuf,
    current: RwLock<Arc<CertifiedKey>>,
}

impl ResolvesServerCert for IdentityFiles {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

fn load_certified_key(chain: &Path, key: &Path) -> Result<Arc<CertifiedKey>, Error> {
    let certificates = load_certificates(chain)?;
    let private = PrivateKeyDer::from_pem_file(key)
        .map_err(|e| Error::File { path: key.into(), problem: format!("it holds no private key: {e}") })?;
    let certified = CertifiedKey::from_der(certificates, private, &provider()).map_err(|e| {
        let problem = format!("it does not fit the certificate in {}: {e}", chain.display());
        Error::File { path: key.into(), problem }
    })?;
    Ok(Arc::new(certified))
}

impl Identity {
    /// Loads a certificate chain and its private key.
    pub fn load(chain: &Path, key: &Path) -> Result<Self, Error> {
        let current = RwLock::new(load_certified_key(chain, key)?);
        let files = Arc::new(IdentityFiles { chain: chain.into(), key: key.into(), current });
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(&files) as Arc<dyn ResolvesServerCert>);
        Ok(Self { files, acceptor: TlsAcceptor::from(Arc::new(config)) })
    }

    /// Reloads the files for new connections. On an error nothing changes.
    pub fn reload(&self) -> Result<(), Error> {
        let fresh = load_certified_key(&self.files.chain, &self.files.key)?;
        *self.files.current.write().unwrap_or_else(PoisonError::into_inner) = fresh;
        Ok(())
    }

    /// Performs the handshake with a client.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<ServerStream> {
        self.acceptor.accept(stream).await
    }
}

/// The servers that a client trusts.
#[derive(Clone)]
pub struct TlsClient(TlsConnector);

impl fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Trust")
    }
}

impl TlsClient {
    /// Trusts the operating system's certificate authorities.
    pub fn with_system_roots() -> Result<Self, Error> {
        let mut roots = RootCertStore::empty();
        let found = rustls_native_certs::load_native_certs();
        for error in &found.errors {
            tracing::debug!(%error, "cannot read an authority of the system");
        }
        roots.add_parsable_certificates(found.certs);
        Self::from_roots(roots)
    }

    /// Trusts only the certificate authorities in a PEM file.
    pub fn with_roots_from(path: &Path) -> Result<Self, Error> {
        let mut roots = RootCertStore::empty();
        for certificate in load_certificates(path)? {
            roots.add(certificate).map_err(|e| Error::File { path: path.into(), problem: e.to_string() })?;
        }
        Self::from_roots(roots)
    }

    fn from_roots(roots: RootCertStore) -> Result<Self, Error> {
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }

    /// Performs the handshake with the server `host` on `stream`.
    pub async fn connect<S>(&self, host: &str, stream: S) -> io::Result<SecureStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, format!("{host:?} is no host name")))?;
        self.0.connect(name, stream).await
    }
}
