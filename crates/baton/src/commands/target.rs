//! The server of a command, and how it prints.

use std::env::VarError;
use std::path::PathBuf;

use anyhow::bail;
use baton_client::Client;
use clap::Args;

use crate::token::Token;

const DEFAULT_URL: &str = "http://127.0.0.1:6632";
/// The default log filter of commands: warnings that the server ignored something must be visible.
const LOG: &str = "error,baton_client::ignored=warn";

/// Arguments of all commands that talk to a server.
#[derive(Debug, Args)]
#[command(next_help_heading = "Server")]
pub struct Target {
    /// Address of the server; several, separated by commas, when they share a store [env: BATON_URL] [default:
    /// http://127.0.0.1:6632]
    #[arg(long, value_delimiter = ',')]
    url: Vec<String>,

    /// Token for the server [env: BATON_TOKEN]
    #[arg(long)]
    token: Option<Token>,

    /// PEM file of the certificate authorities to trust for https, instead of the system's [env: BATON_CA]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,

    /// Print JSON, one value on each line
    #[arg(long)]
    pub json: bool,
}

impl Target {
    /// A client of the server. Its log goes to stderr, filtered by RUST_LOG.
    pub fn client(&self) -> anyhow::Result<Client> {
        // Other programs read this variable too, so what it names need not exist here.
        let wanted = environment("RUST_LOG")?.and_then(|text| text.parse().ok());
        crate::log::start(wanted.map_or_else(|| crate::log::filter(LOG), Ok)?);
        // Read here and not by clap, whose usage line shows every flag that the environment sets as required.
        let urls = if self.url.is_empty() { split(&environment("BATON_URL")?) } else { self.url.clone() };
        let mut builder = urls.iter().fold(Client::builder(), |builder, url| builder.url(url.trim()));
        let token = environment("BATON_TOKEN")?.map(|token| token.parse::<Token>()).transpose()?;
        if let Some(token) = self.token.as_ref().or(token.as_ref()) {
            builder = builder.token(token.expose());
        }
        let ca = environment("BATON_CA")?.map(PathBuf::from);
        if let Some(ca) = self.ca.as_ref().or(ca.as_ref()) {
            builder = builder.ca(ca);
        }
        Ok(builder.build()?)
    }
}

fn split(urls: &Option<String>) -> Vec<String> {
    urls.as_deref().unwrap_or(DEFAULT_URL).split(',').map(str::to_owned).collect()
}

/// An environment variable, unless it is empty.
fn environment(name: &str) -> anyhow::Result<Option<String>> {
    match std::env::var(name) {
        Ok(value) => Ok(Some(value).filter(|value| !value.is_empty())),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => bail!("{name} is no UTF-8"),
    }
}
