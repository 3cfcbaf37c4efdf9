//! Opens a store by its URL.

use std::sync::Arc;

use super::Store;

/// Why a URL leads to no store.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The URL is of no known kind, or the kind was not compiled in.
    #[error("{0}")]
    Unknown(String),
    /// The store cannot be opened as the URL and the environment describe it.
    #[error("cannot open {url}: {problem}")]
    Failed {
        /// The URL, without anything secret.
        url: String,
        /// What is wrong.
        problem: String,
    },
}

impl OpenError {
    fn failed(url: &str, problem: impl ToString) -> Self {
        Self::Failed { url: without_credentials(url), problem: problem.to_string() }
    }
}

/// The URL without what may be secret: user, password and parameters. Of what is no URL only the first word is shown.
fn without_credentials(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        let word = url.split(['=', ' ']).next().unwrap_or_default();
        return if word.len() < url.len() { format!("{word}…") } else { url.to_owned() };
    };
    let before = rest.split('?').next().unwrap_or_default();
    match before.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}://…@{host}"),
        // A password may hold a question mark, and a parameter the sign that ends a password.
        None if rest.contains('@') => format!("{scheme}://…"),
        None => format!("{scheme}://{before}"),
    }
}

/// Opens the store that `url` names: `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix` (with
/// credentials and endpoint from the environment), `file:///directory`, `memory:`.
pub async fn open(url: &str) -> Result<Arc<dyn Store>, OpenError> {
    let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
    match scheme {
        "memory" => Ok(Arc::new(super::MemoryStore::new())),
        #[cfg(feature = "file")]
        "file" => {
            let path = url.trim_start_matches("file:");
            let path = path.strip_prefix("//").unwrap_or(path);
            super::FileStore::new(path)
                .map(|store| Arc::new(store) as Arc<dyn Store>)
                .map_err(|e| OpenError::failed(url, e))
        }
        #[cfg(feature = "aws")]
        "s3" => {
            let mut builder =
                object_store::aws::AmazonS3Builder::from_env().with_url(url).with_retry(no_retries());
            if endpoint_is_http(&["AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"]) {
                builder = builder.with_allow_http(true);
            }
            open_object_store(url, || builder.build())
        }
        #[cfg(feature = "gcp")]
        "gs" => {
            let builder = object_store::gcp::GoogleCloudStorageBuilder::from_env()
                .with_url(url)
                .with_retry(no_retries());
            open_object_store(url, || builder.build())
        }
        #[cfg(feature = "azure")]
        "az" | "azure" => {
            let mut builder =
                object_store::azure::MicrosoftAzureBuilder::from_env().with_url(url).with_retry(no_retries());
            if endpoint_is_http(&["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"]) {
                builder = builder.with_allow_http(true);
            }
            open_object_store(url, || builder.build())
        }
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => super::PostgresStore::connect(url)
            .await
            .map(|store| Arc::new(store) as Arc<dyn Store>)
            .map_err(|e| OpenError::failed(url, e)),
        #[cfg(feature = "http")]
        "http" | "https" => super::HttpStore::connect(url)
            .map(|store| Arc::new(store) as Arc<dyn Store>)
            .map_err(|e| OpenError::failed(url, e)),
        _ => Err(OpenError::Unknown(format!(
            "{} names no store that this program was built with: {}",
            without_credentials(url),
            SCHEMES.join(", ")
        ))),
    }
}

/// The URL schemes that were compiled in.
const SCHEMES: &[&str] = &[
    "memory:",
    #[cfg(feature = "file")]
    "file:///directory",
    #[cfg(feature = "aws")]
    "s3://bucket/prefix",
    #[cfg(feature = "gcp")]
    "gs://bucket/prefix",
    #[cfg(feature = "azure")]
    "az://container/prefix",
    #[cfg(feature = "postgres")]
    "postgres://user@host/database",
    #[cfg(feature = "http")]
    "http://host:port or https://host:port (a Baton server)",
];

#[cfg(feature = "objects")]
fn no_retries() -> object_store::RetryConfig {
    object_store::RetryConfig { max_retries: 0, ..object_store::RetryConfig::default() }
}

/// Whether the environment names an endpoint without TLS, which then is intended.
#[cfg(any(feature = "aws", feature = "azure"))]
fn endpoint_is_http(names: &[&str]) -> bool {
    names.iter().any(|name| std::env::var(name).is_ok_and(|value| value.starts_with("http://")))
}

#[cfg(feature = "objects")]
fn open_object_store<T: object_store::ObjectStore>(
    url: &str,
    build: impl FnOnce() -> object_store::Result<T>,
) -> Result<Arc<dyn Store>, OpenError> {
    // Their client takes the provider of cryptography that the process has; it may have one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let objects = build().map_err(|e| OpenError::failed(url, e))?;
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
    let prefix = rest.split_once('/').map_or("", |(_, prefix)| prefix);
    Ok(Arc::new(super::ObjectStore::new(Arc::new(objects), prefix)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_url_of_no_known_kind_is_refused_without_its_password() {
        let error = open("ftp://user:secret@host/x").await.err().unwrap().to_string();
        assert!(
            error.contains("ftp://…@host/x") && !error.contains("secret") && error.contains("memory:"),
            "{error}"
        );
        assert!(open("memory:").await.is_ok());
    }

    #[test]
    fn no_way_to_write_a_password_shows_it() {
        for url in [
            "ftp://user:secret@host/x",
            "ftp://user:a/secret@host/x",
            "ftp://user:a?secret@host/x",
            "ftp://user:a@secret@host/x",
            "ftp://host/x?user=u&password=secret",
            "ftp://host/x?user=u&password=a@secret",
            "host=host password=secret",
            "password=secret",
        ] {
            assert!(!without_credentials(url).contains("secret"), "{url}: {}", without_credentials(url));
        }
        assert_eq!(without_credentials("file:///a/b"), "file:///a/b");
        assert_eq!(without_credentials("memory"), "memory");
    }
}
