//! TLS for connections to PostgreSQL, with a certificate that is checked.

use std::io;

use baton_tls::{SecureStream, TlsClient};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};

use super::proof::{Allowed, Guarded};
use crate::store::BoxFuture;

/// Makes connections to servers whose certificates it believes.
pub struct TlsConnector(pub TlsClient, pub Allowed);

/// The same for the server called by this name.
pub struct HostTlsConnector(TlsClient, Allowed, String);

impl<S> MakeTlsConnect<S> for TlsConnector
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Guarded<SecureStream<S>>;
    type TlsConnect = HostTlsConnector;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<HostTlsConnector> {
        Ok(HostTlsConnector(self.0.clone(), self.1.clone(), host.to_owned()))
    }
}

impl<S> TlsConnect<S> for HostTlsConnector
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Guarded<SecureStream<S>>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Stream>>;

    fn connect(self, stream: S) -> Self::Future {
        let Self(trust, allowed, host) = self;
        Box::pin(async move { Ok(Guarded::new(trust.connect(&host, stream).await?, allowed)) })
    }
}
