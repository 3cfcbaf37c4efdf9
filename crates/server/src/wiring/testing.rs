//! A whole server for a test: a free port, a temporary directory, gone when dropped.

use std::sync::Arc;

use baton_config::Settings;
use baton_queue::Broker;
use baton_store::Store;
use baton_store_embedded::EmbeddedStore;
use tokio_util::sync::CancellationToken;

use super::server::Server;
use crate::options::Options;

/// A running server. Dropping it stops it.
pub struct Testing {
    url: String,
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<()>,
    store: Arc<EmbeddedStore>,
    /// Removed with the last use of it.
    _directory: tempfile::TempDir,
}

impl Testing {
    /// Where it is, without a slash at the end.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// What it keeps everything in.
    pub fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store) as Arc<dyn Store>
    }

    /// Stops it as a signal would and waits until it has stopped.
    pub async fn stop(mut self) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        self.shutdown.cancel();
        (&mut self.task).await?;
        self.store.close().await?;
        Ok(())
    }
}

impl Drop for Testing {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// Starts a server on a free port of 127.0.0.1 with an empty temporary store.
pub async fn testing() -> Result<Testing, Box<dyn std::error::Error + Send + Sync>> {
    let settings = Settings { listen: "127.0.0.1:0".into(), ..Settings::default() };
    testing_with(&settings).await
}

/// The same with other settings; where they say to keep data is not used.
pub async fn testing_with(settings: &Settings) -> Result<Testing, Box<dyn std::error::Error + Send + Sync>> {
    let directory = tempfile::tempdir()?;
    let store = Arc::new(EmbeddedStore::open(baton_store_embedded::Options {
        min_free_disk: settings.min_free_disk,
        ..baton_store_embedded::Options::new(directory.path())
    })?);
    let broker = Broker::start(Arc::clone(&store) as Arc<dyn Store>, settings.broker());
    let server = Server::bind(Options::from(settings), broker).await?;
    let url = format!("http://{}", server.local_addr());
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(server.run(shutdown.clone()));
    Ok(Testing { url, shutdown, task, store, _directory: directory })
}
