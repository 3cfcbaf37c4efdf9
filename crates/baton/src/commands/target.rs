//! Which server a command talks to, and how it prints.

use std::path::PathBuf;

use baton_client::Client;
use clap::Args;

use crate::token::Token;

/// Common to all commands that talk to a server.
#[derive(Debug, Args)]
#[command(next_help_heading = "Server")]
pub struct Target {
    /// Address of the server; several, with commas between, when they share a store
    #[arg(long, env = "BATON_URL", default_value = "http://127.0.0.1:6632", value_delimiter = ',')]
    url: Vec<String>,

    /// Token that the server asks for
    #[arg(long, env = "BATON_TOKEN", hide_env_values = true)]
    token: Option<Token>,

    /// File with the certificates, in PEM, of the authorities to trust for https, instead of the system's
    #[arg(long, env = "BATON_CA", value_name = "FILE")]
    ca: Option<PathBuf>,

    /// Print JSON, one value on each line
    #[arg(long)]
    pub json: bool,
}

impl Target {
    /// A client of the server. Its log goes to stderr as far as RUST_LOG asks for it.
    pub fn client(&self) -> anyhow::Result<Client> {
        crate::log::start(tracing_subscriber::EnvFilter::from_default_env());
        let mut builder = self.url.iter().fold(Client::builder(), |builder, url| builder.url(url.trim()));
        if let Some(token) = &self.token {
            builder = builder.token(token.expose());
        }
        if let Some(ca) = &self.ca {
            builder = builder.ca(ca);
        }
        Ok(builder.build()?)
    }
}
