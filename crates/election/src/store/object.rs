//! Object stores: S3 and what speaks its protocol, Google Cloud Storage, Azure Blob Storage.
//!
//! Always: the client library repeats nothing by itself, for a repeated conditional write can meet its own first
//! try; a refused condition is a conflict and everything else a failure after which the record is read.

use std::sync::Arc;

use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectStore as Objects, ObjectStoreExt, PutMode, PutOptions, UpdateVersion};

use super::{BoxFuture, Error, Store, SwapOutcome, Version, VersionedValue};

/// Separates the two parts of a version; neither can hold it.
const SEPARATOR: char = '\n';

/// Records as objects under a prefix.
#[derive(Clone, Debug)]
pub struct ObjectStore {
    objects: Arc<dyn Objects>,
    prefix: Path,
}

impl ObjectStore {
    /// Keeps records in `objects`, whose own retries should be switched off, under `prefix`.
    pub fn new(objects: Arc<dyn Objects>, prefix: &str) -> Self {
        Self { objects, prefix: Path::from(prefix) }
    }

    fn path(&self, key: &str) -> Path {
        key.split('/').fold(self.prefix.clone(), |path, part| path.join(part))
    }
}

/// Stores use different ones of the two, so both are kept.
fn version(e_tag: Option<String>, version: Option<String>) -> Version {
    Version(format!("{}{SEPARATOR}{}", e_tag.unwrap_or_default(), version.unwrap_or_default()))
}

fn update_version(version: &Version) -> UpdateVersion {
    let (e_tag, version) = version.0.split_once(SEPARATOR).unwrap_or((&version.0, ""));
    let part = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    UpdateVersion { e_tag: part(e_tag), version: part(version) }
}

fn failed(error: object_store::Error) -> Error {
    Error::from_error(&error)
}

impl Store for ObjectStore {
    fn read<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<VersionedValue>, Error>> {
        Box::pin(async move {
            let found = match self.objects.get(&self.path(key)).await {
                Ok(found) => found,
                Err(object_store::Error::NotFound { .. }) => return Ok(None),
                Err(error) => return Err(failed(error)),
            };
            let version = version(found.meta.e_tag.clone(), found.meta.version.clone());
            let value = found.bytes().await.map_err(failed)?;
            Ok(Some((version, value.to_vec())))
        })
    }

    fn swap<'a>(
        &'a self,
        key: &'a str,
        expected: Option<&'a Version>,
        value: Vec<u8>,
    ) -> BoxFuture<'a, Result<SwapOutcome, Error>> {
        Box::pin(async move {
            let mode = match expected {
                Some(version) => PutMode::Update(update_version(version)),
                None => PutMode::Create,
            };
            let options = PutOptions { mode, ..PutOptions::default() };
            match self.objects.put_opts(&self.path(key), value.into(), options).await {
                Ok(put) => Ok(SwapOutcome::Done(version(put.e_tag, put.version))),
                Err(
                    object_store::Error::AlreadyExists { .. }
                    | object_store::Error::Precondition { .. }
                    | object_store::Error::NotFound { .. },
                ) => Ok(SwapOutcome::Conflict),
                Err(error) => Err(failed(error)),
            }
        })
    }

    fn put<'a>(&'a self, key: &'a str, value: Vec<u8>) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            self.objects.put(&self.path(key), value.into()).await.map_err(failed)?;
            Ok(())
        })
    }

    fn list<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<Vec<(String, String)>, Error>> {
        Box::pin(async move {
            let base = self.prefix.as_ref();
            let under = self.path(prefix.trim_end_matches('/'));
            let objects: Vec<_> = self.objects.list(Some(&under)).try_collect().await.map_err(failed)?;
            let entry = |object: object_store::ObjectMeta| {
                let path = object.location.as_ref();
                let key = path.strip_prefix(base).unwrap_or(path).trim_start_matches('/').to_owned();
                let mark = object.e_tag.unwrap_or_else(|| object.last_modified.to_rfc3339());
                key.starts_with(prefix).then_some((key, mark))
            };
            Ok(objects.into_iter().filter_map(entry).collect())
        })
    }

    fn remove<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            match self.objects.delete(&self.path(key)).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
                Err(error) => Err(failed(error)),
            }
        })
    }
}
