//! A Baton server over HTTP: the records of its elections, and news of them.

use std::time::Duration;

use baton_client::{Client, Election};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{BoxFuture, Entry, Error, Store, Swap, Version};

/// How long one wait for news is.
const WAIT: Duration = Duration::from_secs(30);
/// The rest before a server that failed is asked again for news.
const REST: Duration = Duration::from_secs(1);
/// How long one call may take; its caller is usually less patient.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The elections of a Baton server.
#[derive(Clone, Debug)]
pub struct HttpStore {
    client: Client,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Look {
    version: String,
    record_version: Option<String>,
    record: Option<Value>,
    #[serde(default)]
    workers: Vec<Value>,
}

#[derive(Debug, Deserialize)]
struct Swapped {
    version: Option<String>,
}

impl HttpStore {
    /// Takes part through `client`, which should not repeat calls by itself.
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// Takes part through the server at `url`.
    pub fn connect(url: &str) -> Result<Self, Error> {
        let client = Client::builder().url(url).retries(0).build().map_err(|e| Error(e.to_string()))?;
        Ok(Self { client })
    }

    fn election(&self, group: &str) -> Election {
        self.client.election(group)
    }

    async fn act<T: serde::de::DeserializeOwned>(&self, group: &str, action: Value) -> Result<T, Error> {
        self.election(group).act(&action, TIMEOUT).await.map_err(|e| Error(e.to_string()))
    }

    async fn look(&self, group: &str) -> Result<Look, Error> {
        self.election(group).look().await.map_err(|e| Error(e.to_string()))
    }
}

/// A key taken apart: the group, and the worker if it is that of one.
fn parts(key: &str) -> Result<(&str, Option<&str>), Error> {
    let mut parts = key.split('/');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some("epochs"), Some(group), None, None) => Ok((group, None)),
        (Some("workers"), Some(group), Some(worker), None) => Ok((group, Some(worker))),
        _ => Err(Error(format!("a Baton server keeps no {key:?}"))),
    }
}

fn text(value: Value) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(&value).map_err(|e| Error(e.to_string()))
}

impl Store for HttpStore {
    fn read<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Entry>, Error>> {
        Box::pin(async move {
            let (group, worker) = parts(key)?;
            let look = self.look(group).await?;
            let Some(worker) = worker else {
                let Some((version, record)) = look.record_version.zip(look.record) else { return Ok(None) };
                return Ok(Some((Version(version), text(record)?)));
            };
            let found = look.workers.into_iter().find(|found| found["workerId"] == worker);
            found.map(|found| Ok((Version(found["version"].to_string()), text(found)?))).transpose()
        })
    }

    fn swap<'a>(
        &'a self,
        key: &'a str,
        expected: Option<&'a Version>,
        value: Vec<u8>,
    ) -> BoxFuture<'a, Result<Swap, Error>> {
        Box::pin(async move {
            let (group, _) = parts(key)?;
            let record: Value = serde_json::from_slice(&value).map_err(|e| Error(e.to_string()))?;
            let version = expected.map(|version| version.0.as_str());
            let action = json!({"action": "swap", "version": version, "record": record});
            let swapped: Swapped = self.act(group, action).await?;
            Ok(swapped.version.map_or(Swap::Conflict, |version| Swap::Done(Version(version))))
        })
    }

    fn put<'a>(&'a self, key: &'a str, value: Vec<u8>) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let (group, _) = parts(key)?;
            let record: Value = serde_json::from_slice(&value).map_err(|e| Error(e.to_string()))?;
            self.act::<Value>(group, json!({"action": "beat", "record": record})).await.map(|_| ())
        })
    }

    fn list<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<Vec<(String, String)>, Error>> {
        Box::pin(async move {
            // The server knows of them, and tells of what they hold as if it were held by the groups' own records.
            if prefix == crate::record::PROCESSES {
                return Ok(Vec::new());
            }
            let group = prefix.strip_prefix("workers/").map(|rest| rest.trim_end_matches('/'));
            let group = group.ok_or_else(|| Error(format!("a Baton server lists no {prefix:?}")))?;
            let entry = |worker: &Value| {
                Some((format!("{prefix}{}", worker["workerId"].as_str()?), worker["version"].to_string()))
            };
            Ok(self.look(group).await?.workers.iter().filter_map(entry).collect())
        })
    }

    fn remove<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let (group, worker) = parts(key)?;
            let worker = worker.ok_or_else(|| Error("an epoch record is never removed".into()))?;
            self.act::<Value>(group, json!({"action": "leave", "workerId": worker})).await.map(|_| ())
        })
    }

    fn changed<'a>(&'a self, key: &'a str, seen: Option<&'a Version>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let Ok((group, None)) = parts(key) else { return std::future::pending().await };
            let election = self.election(group);
            let mut after = seen.map_or("0".to_owned(), |version| version.0.clone());
            loop {
                match election.watch::<Look>(&after, WAIT).await {
                    Ok(look) if look.record_version.as_deref() != seen.map(|version| version.0.as_str()) => {
                        return;
                    }
                    // Only the lease has run out by the server's time; participants have their own.
                    Ok(look) => after = look.version,
                    Err(_) => baton_env::sleep(REST).await,
                }
            }
        })
    }

    /// The server decides in one commit.
    fn is_trusted(&self) -> bool {
        true
    }
}
