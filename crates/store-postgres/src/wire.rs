//! The conversation with a PostgreSQL: connecting, telling who we are, and messages both ways.
//!
//! Spoken by ourselves, on the codec of `postgres-protocol`, so that the statements of a whole group go out together
//! and are answered together: a client library asks the database to answer each of them by itself, which costs
//! both sides a system call and a wake-up per statement.

use std::io;
use std::path::Path;
use std::time::Duration;

use baton_tls::Trust;
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

use crate::address::{Address, CLEAR_TEXT};
use crate::failure::Failure;

/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const KEEPALIVE_AFTER: Duration = Duration::from_secs(10);
const PORT: u16 = 5432;
/// What a database answers that speaks TLS.
const SPEAKS_TLS: u8 = b'S';
/// How much is read at once.
const READ_BYTES: usize = 16 << 10;

trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}

/// A connection on which the database knows who we are.
pub struct Wire {
    stream: Box<dyn Duplex>,
    incoming: BytesMut,
    /// What is to be sent next.
    pub outgoing: BytesMut,
}

impl Wire {
    /// Connects to the first host of an address that answers, and is what the address asks for.
    pub async fn connect(address: &Address) -> Result<Self, Failure> {
        let config = &address.config;
        let (hosts, addresses, ports) = (config.get_hosts(), config.get_hostaddrs(), config.get_ports());
        let mut last = Failure::Lost("the address of the store names no host".into());
        for index in 0..hosts.len().max(addresses.len()) {
            let port = ports.get(index).or(ports.first()).copied().unwrap_or(PORT);
            let name = hosts.get(index);
            let host = addresses.get(index).map(|ip| Host::Tcp(ip.to_string())).or(name.cloned());
            let Some(host) = host else { continue };
            let connecting = Self::connect_to(&host, name, port, address);
            match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
                Ok(Ok(wire)) => return Ok(wire),
                Ok(Err(failure)) => last = failure,
                Err(_) => last = Failure::Lost(format!("no answer within {} s", CONNECT_TIMEOUT.as_secs())),
            }
        }
        Err(last)
    }

    async fn connect_to(
        host: &Host,
        name: Option<&Host>,
        port: u16,
        address: &Address,
    ) -> Result<Self, Failure> {
        let stream: Box<dyn Duplex> = match host {
            Host::Tcp(host) => {
                let stream = connect_tcp(host, port).await?;
                match (&address.trust, name) {
                    (None, _) => Box::new(stream),
                    (Some(trust), Some(Host::Tcp(name))) => secure(stream, trust, name).await?,
                    (Some(_), _) => {
                        return Err(Failure::Lost("TLS needs a host by name in the address".into()));
                    }
                }
            }
            Host::Unix(_) if address.trust.is_some() => {
                return Err(Failure::Lost("a socket of this machine needs no TLS: give no sslmode".into()));
            }
            Host::Unix(directory) => Box::new(connect_unix(directory, port).await?),
        };
        let is_private = address.trust.is_some() || matches!(host, Host::Unix(_));
        let mut wire = Self { stream, incoming: BytesMut::new(), outgoing: BytesMut::new() };
        wire.introduce(address, is_private).await?;
        wire.check_attributes(address.config.get_target_session_attrs()).await?;
        Ok(wire)
    }

    /// Says who we are, proves it, and waits until the database is ready.
    async fn introduce(&mut self, address: &Address, is_private: bool) -> Result<(), Failure> {
        let config = &address.config;
        // As every client of PostgreSQL has it: without a name in the address, whoever runs this.
        let unnamed =
            || whoami::username().map_err(|e| Failure::Lost(format!("the address names no user: {e}")));
        let user = &*config.get_user().map_or_else(unnamed, |user| Ok(user.to_owned()))?;
        let mut parameters = vec![("user", user), ("client_encoding", "UTF8")];
        parameters.extend(config.get_dbname().map(|name| ("database", name)));
        parameters.extend(config.get_options().map(|options| ("options", options)));
        parameters.extend(config.get_application_name().map(|name| ("application_name", name)));
        frontend::startup_message(parameters, &mut self.outgoing)?;
        let password = || {
            let missing =
                || Failure::Lost("the database asks for a password, and the address has none".into());
            config.get_password().ok_or_else(missing)
        };
        let allow = |method: &str| match (address.allows(method, is_private), method) {
            (true, _) => Ok(()),
            (false, CLEAR_TEXT) => Err(Failure::Lost(
                "the database asks for the password in clear text: give sslmode=verify-full, or \
                 require_auth=password if nobody can listen on the way"
                    .into(),
            )),
            (false, _) => Err(Failure::Lost(format!(
                "the database asks for {method}, which require_auth does not name"
            ))),
        };
        let mut is_proved = false;
        loop {
            self.send().await?;
            match self.message().await? {
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
                        return Err(Failure::Lost(format!("the database does not know {SCRAM_SHA_256}")));
                    }
                    self.prove(password()?).await?;
                }
                Message::ErrorResponse(body) => return Err(Failure::read(&body)),
                _ => {
                    return Err(Failure::Lost("the database asks for a proof that is not known here".into()));
                }
            }
            is_proved = true;
        }
        self.ready().await
    }

    /// Proves that we know the password, and sees that the database does.
    async fn prove(&mut self, password: &[u8]) -> Result<(), Failure> {
        let mut scram = ScramSha256::new(password, ChannelBinding::unsupported());
        frontend::sasl_initial_response(SCRAM_SHA_256, scram.message(), &mut self.outgoing)?;
        self.send().await?;
        match self.message().await? {
            Message::AuthenticationSaslContinue(body) => scram.update(body.data())?,
            other => return Err(unexpected(other)),
        }
        frontend::sasl_response(scram.message(), &mut self.outgoing)?;
        self.send().await?;
        match self.message().await? {
            Message::AuthenticationSaslFinal(body) => scram.finish(body.data())?,
            other => return Err(unexpected(other)),
        }
        Ok(())
    }

    /// Whether the database takes writes, if the address asks for that.
    async fn check_attributes(&mut self, wanted: TargetSessionAttrs) -> Result<(), Failure> {
        let is_wrong = match wanted {
            TargetSessionAttrs::ReadWrite => "on",
            TargetSessionAttrs::ReadOnly => "off",
            _ => return Ok(()),
        };
        frontend::query("SHOW transaction_read_only", &mut self.outgoing)?;
        self.send().await?;
        let mut found = false;
        loop {
            match self.message().await? {
                Message::DataRow(body) => found |= body.buffer().ends_with(is_wrong.as_bytes()),
                Message::ErrorResponse(body) => return Err(Failure::read(&body)),
                Message::ReadyForQuery(_) if found => {
                    let reason = format!("the database's transaction_read_only is {is_wrong:?}");
                    return Err(Failure::Lost(reason));
                }
                Message::ReadyForQuery(_) => return Ok(()),
                _ => {}
            }
        }
    }

    async fn ready(&mut self) -> Result<(), Failure> {
        loop {
            match self.message().await? {
                Message::ReadyForQuery(_) => return Ok(()),
                Message::ErrorResponse(body) => return Err(Failure::read(&body)),
                _ => {}
            }
        }
    }

    /// Sends everything in `outgoing`. What comes meanwhile is taken in, or both sides could wait for each other.
    pub async fn send(&mut self) -> io::Result<()> {
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

    /// The next message that is an answer. May be given up at any time.
    pub async fn message(&mut self) -> Result<Message, Failure> {
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
                        return Err(Failure::Lost("the database closed it".into()));
                    }
                }
            }
        }
    }
}

fn unexpected(message: Message) -> Failure {
    match message {
        Message::ErrorResponse(body) => Failure::read(&body),
        _ => Failure::Lost("the database answered something else than was asked".into()),
    }
}

async fn connect_tcp(host: &str, port: u16) -> Result<TcpStream, Failure> {
    let mut last = Failure::Lost(format!("{host:?} has no address"));
    for address in lookup_host((host, port)).await.map_err(|e| Failure::Lost(format!("{host:?}: {e}")))? {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                SockRef::from(&stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE_AFTER))?;
                return Ok(stream);
            }
            Err(error) => last = Failure::Lost(format!("{address}: {error}")),
        }
    }
    Err(last)
}

async fn connect_unix(directory: &Path, port: u16) -> Result<UnixStream, Failure> {
    let path = directory.join(format!(".s.PGSQL.{port}"));
    UnixStream::connect(&path).await.map_err(|e| Failure::Lost(format!("{}: {e}", path.display())))
}

/// Asks for TLS and greets.
async fn secure(mut stream: TcpStream, trust: &Trust, host: &str) -> Result<Box<dyn Duplex>, Failure> {
    let mut request = BytesMut::new();
    frontend::ssl_request(&mut request);
    stream.write_all(&request).await?;
    // One byte and no more: what came behind it in the clear would be taken for a part of what is secured.
    if stream.read_u8().await? != SPEAKS_TLS {
        return Err(Failure::Lost("the database does not speak TLS; sslmode asks for it".into()));
    }
    Ok(Box::new(trust.connect(host, stream).await?))
}
