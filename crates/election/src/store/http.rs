//! A Baton server over HTTP: the records of its elections, and notifications of their changes.

use std::time::Duration;

use baton_client::Client;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{BoxFuture, Error, Store, SwapOutcome, Version, VersionedValue};
use crate::record::PROCESSES_PREFIX;

/// Timeout of one long poll.
const WATCH_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause after a failed long poll.
const WATCH_RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Timeout of one call; the caller's own is usually shorter.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// The version of a group that does not exist yet.
const NO_GROUP: &str = "0";

/// The elections of a Baton server.
#[derive(Clone, Debug)]
pub struct HttpStore {
    client: Client,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct GroupResponse {
    version: String,
    record_version: Option<String>,
    record: Option<Value>,
    #[serde(default)]
    workers: Vec<Value>,
}

/// The lease of a process.
#[derive(Debug, Deserialize)]
struct ProcessResponse {
    version: Option<String>,
    record: Option<Value>,
}

#[derive(Debug, Deserialize)]
struct ProcessesResponse {
    processes: Vec<Value>,
}

#[derive(Debug, Deserialize)]
struct SwapResponse {
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

    async fn read_group(&self, group: &str) -> Result<GroupResponse, Error> {
        missing_as_empty(self.client.election(group).get().await).map_err(|e| Error(e.to_string()))
    }

    async fn post_action<T: DeserializeOwned>(
        &self,
        place: &RecordKey<'_>,
        action: Value,
    ) -> Result<T, Error> {
        let election = match *place {
            RecordKey::Group(group) | RecordKey::Worker(group, _) => self.client.election(group),
            RecordKey::Process(process) => self.client.election_process(process),
        };
        election.post_action(&action, CALL_TIMEOUT).await.map_err(|e| Error(e.to_string()))
    }
}

/// A group that does not exist yet reads as one without a record.
fn missing_as_empty(
    look: Result<GroupResponse, baton_client::Error>,
) -> Result<GroupResponse, baton_client::Error> {
    match look {
        Err(baton_client::Error::NotFound(_)) => {
            Ok(GroupResponse { version: NO_GROUP.into(), ..GroupResponse::default() })
        }
        look => look,
    }
}

/// What a key names.
enum RecordKey<'a> {
    /// The record of a group.
    Group(&'a str),
    /// That of a worker of a group.
    Worker(&'a str, &'a str),
    /// That of a process.
    Process(&'a str),
}

impl<'a> RecordKey<'a> {
    fn parse(key: &'a str) -> Result<Self, Error> {
        let mut parts = key.split('/');
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some("epochs"), Some(group), None, None) => Ok(Self::Group(group)),
            (Some("workers"), Some(group), Some(worker), None) => Ok(Self::Worker(group, worker)),
            (Some("processes"), Some(process), None, None) => Ok(Self::Process(process)),
            _ => Err(Error(format!("a Baton server keeps no {key:?}"))),
        }
    }
}

fn to_json(value: Value) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(&value).map_err(|e| Error(e.to_string()))
}

fn from_json(value: &[u8]) -> Result<Value, Error> {
    serde_json::from_slice(value).map_err(|e| Error(e.to_string()))
}

impl Store for HttpStore {
    fn read<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<VersionedValue>, Error>> {
        Box::pin(async move {
            let (version, record) = match RecordKey::parse(key)? {
                RecordKey::Group(group) => {
                    let look = self.read_group(group).await?;
                    (look.record_version, look.record)
                }
                RecordKey::Worker(group, worker) => {
                    let workers = self.read_group(group).await?.workers;
                    let found = workers.into_iter().find(|found| found["workerId"] == worker);
                    (found.as_ref().map(|found| found["version"].to_string()), found)
                }
                RecordKey::Process(process) => {
                    let lease: ProcessResponse = self
                        .client
                        .election_process(process)
                        .get()
                        .await
                        .map_err(|e| Error(e.to_string()))?;
                    (lease.version, lease.record)
                }
            };
            version.zip(record).map(|(version, record)| Ok((Version(version), to_json(record)?))).transpose()
        })
    }

    fn swap<'a>(
        &'a self,
        key: &'a str,
        expected: Option<&'a Version>,
        value: Vec<u8>,
    ) -> BoxFuture<'a, Result<SwapOutcome, Error>> {
        Box::pin(async move {
            let version = expected.map(|version| version.0.as_str());
            let action = json!({"action": "swap", "version": version, "record": from_json(&value)?});
            let swapped: SwapResponse = self.post_action(&RecordKey::parse(key)?, action).await?;
            Ok(swapped.version.map_or(SwapOutcome::Conflict, |version| SwapOutcome::Done(Version(version))))
        })
    }

    fn put<'a>(&'a self, key: &'a str, value: Vec<u8>) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let action = json!({"action": "beat", "record": from_json(&value)?});
            self.post_action::<Value>(&RecordKey::parse(key)?, action).await.map(|_| ())
        })
    }

    fn list<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<Vec<(String, String)>, Error>> {
        Box::pin(async move {
            let (rows, name) = if prefix == PROCESSES_PREFIX {
                let leases: ProcessesResponse =
                    self.client.election_processes().await.map_err(|e| Error(e.to_string()))?;
                (leases.processes, "process")
            } else {
                let group = prefix.strip_prefix("workers/").map(|rest| rest.trim_end_matches('/'));
                let group = group.ok_or_else(|| Error(format!("a Baton server lists no {prefix:?}")))?;
                (self.read_group(group).await?.workers, "workerId")
            };
            let entry =
                |row: &Value| Some((format!("{prefix}{}", row[name].as_str()?), row["version"].to_string()));
            Ok(rows.iter().filter_map(entry).collect())
        })
    }

    fn remove<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let place = RecordKey::parse(key)?;
            let action = match place {
                RecordKey::Worker(_, worker) => json!({"action": "leave", "workerId": worker}),
                RecordKey::Process(_) => json!({"action": "remove"}),
                RecordKey::Group(_) => return Err(Error("an epoch record is never removed".into())),
            };
            self.post_action::<Value>(&place, action).await.map(|_| ())
        })
    }

    fn wait_for_change<'a>(&'a self, key: &'a str, seen: Option<&'a Version>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let Ok(RecordKey::Group(group)) = RecordKey::parse(key) else {
                return std::future::pending().await;
            };
            let election = self.client.election(group);
            let mut after = seen.map_or(NO_GROUP.to_owned(), |version| version.0.clone());
            loop {
                match missing_as_empty(election.watch(&after, WATCH_TIMEOUT).await) {
                    Ok(look) if look.record_version.as_deref() != seen.map(|version| version.0.as_str()) => {
                        return;
                    }
                    // A process has renewed its lease, or one has run out by the server's time; participants have
                    // their own.
                    Ok(look) => after = look.version,
                    Err(_) => baton_env::sleep(WATCH_RETRY_PAUSE).await,
                }
            }
        })
    }

    /// The server decides in one commit.
    fn is_trusted(&self) -> bool {
        true
    }
}
