//! The transport to PostgreSQL: connecting, authenticating, and messages in both directions.
//!
//! Built on the codec of `postgres-protocol`, so that the statements of a whole batch share one flush and one
//! Sync. A client library syncs after each statement, which costs both sides a system call and a wake-up per
//! statement.

use std::io;
use std::path::Path;
use std::time::Duration;

use baton_tls::TlsClient;
use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256};
use postgres_protocol::message::backend::Message;
use postgres_protocol::message::frontend;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio_postgres::config::{Host, TargetSessionAttrs};

use crate::client::address::{CLEAR_TEXT, DatabaseAddress};
use crate::client::error::DatabaseError;

/// How long connecting and authenticating may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const KEEPALIVE_AFTER: Duration = Duration::from_secs(10);
const PORT: u16 = 5432;
/// The database's answer to an SSLRequest when it supports TLS.
const TLS_ACCEPTED: u8 = b'S';
/// Bytes per read.
const READ_BYTES: usize = 16 << 10;

trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}

/// An authenticated connection.
pub struct PgTransport {
    stream: Box<dyn ByteStream>,
    incoming: BytesMut,
    /// Messages that the next flush sends.
    pub outgoing: BytesMut,
}

impl PgTransport {
    /// Connects to the first host of an address that answers and has the requested session attributes.
    pub async fn connect(address: &DatabaseAddress) -> Result<Self, DatabaseError> {
        let config = &address.config;
        let (hosts, addresses, ports) = (config.get_hosts(), config.get_hostaddrs(), config.get_ports());
        let mut last = DatabaseError::ConnectionLost("the address of the store names no host".into());
        for index in 0..hosts.len().max(addresses.len()) {
            let port = ports.get(index).or(ports.first()).copied().unwrap_or(PORT);
            let name = hosts.get(index);
            let host = addresses.get(index).map(|ip| Host::Tcp(ip.to_string())).or(name.cloned());
            let Some(host) = host else { continue };
            let connecting = Self::connect_to(&host, name, port, address);
            match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
                Ok(Ok(transport)) => return Ok(transport),
                Ok(Err(failure)) => last = failure,
                Err(_) => {
                    last = DatabaseError::ConnectionLost(format!(
                        "no answer within {} s",
                        CONNECT_TIMEOUT.as_secs()
                    ))
                }
            }
        }
        Err(last)
    }

    async fn connect_to(
        host: &Host,
        name: Option<&Host>,
        port: u16,
        address: &DatabaseAddress,
    ) -> Result<Self, DatabaseError> {
        let stream: Box<dyn ByteStream> = match host {
            Host::Tcp(host) => {
                let stream = connect_tcp(host, port).await?;
                match (&address.tls, name) {
                    (None, _) => Box::new(stream),
                    (Some(trust), Some(Host::Tcp(name))) => start_tls(stream, trust, name).await?,
                    (Some(_), _) => {
                        return Err(DatabaseError::ConnectionLost(
                            "TLS needs a host by name in the address".into(),
                        ));
                    }
                }
            }
            Host::Unix(_) if address.tls.is_some() => {
                return Err(DatabaseError::ConnectionLost(
                    "a Unix socket needs no TLS: give no sslmode".into(),
                ));
            }
            Host::Unix(directory) => Box::new(connect_unix(directory, port).await?),
        };
        let is_private = address.tls.is_some() || matches!(host, Host::Unix(_));
        let mut transport = Self { stream, incoming: BytesMut::new(), outgoing: BytesMut::new() };
        transport.authenticate(address, is_private).await?;
        transport.check_session_attributes(address.config.get_target_session_attrs()).await?;
        Ok(transport)
    }

    /// Starts the session, authenticates, and waits until the database is ready.
    async fn authenticate(
        &mut self,
        address: &DatabaseAddress,
        is_private: bool,
    ) -> Result<(), DatabaseError> {
        let config = &address.config;
        // As in libpq, the default user is the operating system's user.
        let unnamed = || {
            whoami::username()
                .map_err(|e| DatabaseError::ConnectionLost(format!("the address names no user: {e}")))
        };
        let user = &*config.get_user().map_or_else(unnamed, |user| Ok(user.to_owned()))?;
        let mut parameters = vec![("user", user), ("client_encoding", "UTF8")];
        parameters.extend(config.get_dbname().map(|name| ("database", name)));
        parameters.extend(config.get_options().map(|options| ("options", options)));
        parameters.extend(config.get_application_name().map(|name| ("application_name", name)));
        frontend::startup_message(parameters, &mut self.outgoing)?;
        let password = || {
            let missing = || {
                DatabaseError::ConnectionLost(
                    "the database asks for a password, and the address has none".into(),
                )
            };
            config.get_password().ok_or_else(missing)
        };
        let allow = |method: &str| match (address.allows_auth_method(method, is_private), method) {
            (true, _) => Ok(()),
            (false, CLEAR_TEXT) => Err(DatabaseError::ConnectionLost(
                "the database asks for the password in clear text: give sslmode=verify-full, or \
                 require_auth=password if no third party can read the connection"
                    .into(),
            )),
            (false, _) => Err(DatabaseError::ConnectionLost(format!(
                "the database asks for {method}, which require_auth does not name"
            ))),
        };
        let mut is_proved = false;
        loop {
            self.flush().await?;
            match self.next_message().await? {
                Message::AuthenticationOk if is_proved => break,
                Message::AuthenticationOk => {
                    allow("none")?;
                    break;
                }
                Message::AuthenticationCleartextPassword => {
                    allow(CLEAR_TEXT)?;
                    frontend::password_message(password()?, &mut self.outgoing)?;
                }
                Message::AuthenticationMd5Password(body) => {
                    allow("md5")?;
                    let hash = md5_hash(user.as_bytes(), password()?, body.salt());
                    frontend::password_message(hash.as_bytes(), &mut self.outgoing)?;
                }
                Message::AuthenticationSasl(body) => {
                    allow("scram-sha-256")?;
                    if !body.mechanisms().any(|mechanism| Ok(mechanism == SCRAM_SHA_256))? {
                        return Err(DatabaseError::ConnectionLost(format!(
                            "the database does not support {SCRAM_SHA_256}"
                        )));
                    }
                    self.authenticate_scram(password()?).await?;
                }
                Message::ErrorResponse(body) => return Err(DatabaseError::from_response(&body)),
                _ => {
                    return Err(DatabaseError::ConnectionLost(
                        "the database asks for an authentication method that is not supported".into(),
                    ));
                }
            }
            is_proved = true;
        }
        self.wait_ready().await
    }

    /// SCRAM: proves knowledge of the password and verifies the server's proof.
    async fn authenticate_scram(&mut self, password: &[u8]) -> Result<(), DatabaseError> {
        let mut scram = ScramSha256::new(password, ChannelBinding::unsupported());
        frontend::sasl_initial_response(SCRAM_SHA_256, scram.message(), &mut self.outgoing)?;
        self.flush().await?;
        match self.next_message().await? {
            Message::AuthenticationSaslContinue(body) => scram.update(body.data())?,
            other => return Err(unexpected_message(other)),
        }
        frontend::sasl_response(scram.message(), &mut self.outgoing)?;
        self.flush().await?;
        match self.next_message().await? {
            Message::AuthenticationSaslFinal(body) => scram.finish(body.data())?,
            other => return Err(unexpected_message(other)),
        }
        Ok(())
    }

    /// Checks `target_session_attrs`: whether the database is read-write or read-only.
    async fn check_session_attributes(&mut self, wanted: TargetSessionAttrs) -> Result<(), DatabaseError> {
        let is_wrong = match wanted {
            TargetSessionAttrs::ReadWrite => "on",
            TargetSessionAttrs::ReadOnly => "off",
            _ => return Ok(()),
        };
        frontend::query("SHOW transaction_read_only", &mut self.outgoing)?;
        self.flush().await?;
        let mut found = false;
        loop {
            match self.next_message().await? {
                Message::DataRow(body) => found |= body.buffer().ends_with(is_wrong.as_bytes()),
                Message::ErrorResponse(body) => return Err(DatabaseError::from_response(&body)),
                Message::ReadyForQuery(_) if found => {
                    let reason = format!("the database's transaction_read_only is {is_wrong:?}");
                    return Err(DatabaseError::ConnectionLost(reason));
                }
                Message::ReadyForQuery(_) => return Ok(()),
                _ => {}
            }
        }
    }

    async fn wait_ready(&mut self) -> Result<(), DatabaseError> {
        loop {
            match self.next_message().await? {
                Message::ReadyForQuery(_) => return Ok(()),
                Message::ErrorResponse(body) => return Err(DatabaseError::from_response(&body)),
                _ => {}
            }
        }
    }

    /// Sends everything in `outgoing`. It reads meanwhile; otherwise both sides could block on full buffers.
    pub async fn flush(&mut self) -> io::Result<()> {
        let (mut reader, mut writer) = tokio::io::split(&mut self.stream);
        self.incoming.reserve(READ_BYTES);
        while !self.outgoing.is_empty() {
            tokio::select! {
                biased;
                sent = writer.write_buf(&mut self.outgoing) => {
                    if sent? == 0 {
                        return Err(io::ErrorKind::WriteZero.into());
                    }
                }
                read = reader.read_buf(&mut self.incoming) => {
                    if read? == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
            }
        }
        writer.flush().await
    }

    /// The next message, without notices and parameter changes. Cancel-safe.
    pub async fn next_message(&mut self) -> Result<Message, DatabaseError> {
        loop {
            match Message::parse(&mut self.incoming)? {
                Some(
                    Message::NoticeResponse(_)
                    | Message::ParameterStatus(_)
                    | Message::NotificationResponse(_),
                ) => {}
                Some(message) => return Ok(message),
                None => {
                    self.incoming.reserve(READ_BYTES);
                    if self.stream.read_buf(&mut self.incoming).await? == 0 {
                        return Err(DatabaseError::ConnectionLost("the database closed it".into()));
                    }
                }
            }
        }
    }
}

fn unexpected_message(message: Message) -> DatabaseError {
    match message {
        Message::ErrorResponse(body) => DatabaseError::from_response(&body),
        _ => DatabaseError::ConnectionLost("the database sent an unexpected message".into()),
    }
}

async fn connect_tcp(host: &str, port: u16) -> Result<TcpStream, DatabaseError> {
    let mut last = DatabaseError::ConnectionLost(format!("{host:?} has no address"));
    for address in lookup_host((host, port))
        .await
        .map_err(|e| DatabaseError::ConnectionLost(format!("{host:?}: {e}")))?
    {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                SockRef::from(&stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE_AFTER))?;
                return Ok(stream);
            }
            Err(error) => last = DatabaseError::ConnectionLost(format!("{address}: {error}")),
        }
    }
    Err(last)
}

async fn connect_unix(directory: &Path, port: u16) -> Result<UnixStream, DatabaseError> {
    let path = directory.join(format!(".s.PGSQL.{port}"));
    UnixStream::connect(&path)
        .await
        .map_err(|e| DatabaseError::ConnectionLost(format!("{}: {e}", path.display())))
}

/// Requests TLS and does the handshake.
async fn start_tls(
    mut stream: TcpStream,
    trust: &TlsClient,
    host: &str,
) -> Result<Box<dyn ByteStream>, DatabaseError> {
    let mut request = BytesMut::new();
    frontend::ssl_request(&mut request);
    stream.write_all(&request).await?;
    // Reads exactly one byte: plain-text bytes after it would otherwise count as part of the encrypted
    // stream.
    if stream.read_u8().await? != TLS_ACCEPTED {
        return Err(DatabaseError::ConnectionLost(
            "the database does not support TLS, which sslmode requires".into(),
        ));
    }
    Ok(Box::new(trust.connect(host, stream).await?))
}
