//! Keeps the engine's backups in object stores: S3 and what speaks its protocol, Google Cloud Storage, Azure Blob Storage,
//! and directories.
//!
//! The credentials come from the environment, as for the stores' own tools (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL` and
//! others, the roles of machines and containers).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt};
use object_store::local::LocalFileSystem;
use object_store::path::Path as Key;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutPayload, PutResult, UpdateVersion, WriteMultipart};
use reqwest::Url;
use turnflow_engine::backup::{BackupStore, Body, StoreError, Tag, Tagged};

use crate::bucket::store;

/// Size of a part of a large object, in bytes: the smallest that S3 accepts, so that little is in memory.
const PART: u64 = 5 << 20;
/// The largest number of parts, below S3's limit of 10,000.
const PARTS: u64 = 9_000;
/// Parts of an object that are sent at the same time.
const AT_ONCE: usize = 2;

/// Where a backup cannot be.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BackupUrlError(String);

/// A store of backups below a URL.
#[derive(Debug)]
pub struct ObjectBackup {
    address: String,
    store: Arc<dyn ObjectStore>,
    prefix: Key,
}

impl ObjectBackup {
    /// Opens the store at a URL: `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `az://CONTAINER/PREFIX` or `file:///DIRECTORY`.
    /// A directory must exist: otherwise a disk that is not mounted would pass for an empty backup.
    ///
    /// # Errors
    ///
    /// The URL is not one of these or has a secret, the environment has settings that are not valid, or the directory does
    /// not exist.
    pub fn open(url: &str) -> Result<Self, BackupUrlError> {
        if let Ok(parsed) = Url::parse(url)
            && (!parsed.username().is_empty() || parsed.password().is_some() || parsed.query().is_some())
        {
            let told = "a backup's URL has no user, password or query: credentials come from the environment, such as \
                        AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY";
            return Err(BackupUrlError(told.to_owned()));
        }
        let failed = |error: &dyn std::fmt::Display| BackupUrlError(format!("`{url}` cannot keep a backup: {error}"));
        let (store, prefix) = match directory(url).map_err(|error| failed(&error))? {
            Some(directory) => {
                if !directory.is_dir() {
                    return Err(failed(&"there is no such directory; create it, or mount its disk"));
                }
                let store = LocalFileSystem::new_with_prefix(&directory).map_err(|error| failed(&error))?;
                // What is reported as written survives a power loss.
                (Arc::new(store.with_fsync(true)) as Arc<dyn ObjectStore>, Key::default())
            }
            None => store::open(url, &BTreeMap::new(), &BTreeMap::new()).map_err(|error| failed(&error))?,
        };
        Ok(Self { address: url.to_owned(), store, prefix })
    }

    fn key(&self, key: &str) -> Key {
        key.split('/').fold(self.prefix.clone(), |above, part| above.join(part))
    }

    async fn put(&self, key: &Key, bytes: Vec<u8>, mode: PutMode) -> object_store::Result<PutResult> {
        self.store.put_opts(key, PutPayload::from(bytes), mode.into()).await
    }

    /// Replaces an object in a store that cannot compare it in the same step.
    async fn compare_and_put(&self, key: &Key, bytes: Vec<u8>, tag: &Tag) -> Result<Tag, StoreError> {
        let now = match self.store.head(key).await {
            Ok(meta) => Tag { etag: meta.e_tag, version: meta.version },
            Err(Error::NotFound { .. }) => return Err(StoreError::Changed),
            Err(error) => return Err(fault(error)),
        };
        if now != *tag {
            return Err(StoreError::Changed);
        }
        Ok(tag_of(self.put(key, bytes, PutMode::Overwrite).await.map_err(fault)?))
    }

    async fn upload_parts(&self, key: &Key, bytes: u64, mut body: Body) -> Result<(), StoreError> {
        let upload = self.store.put_multipart(key).await.map_err(fault)?;
        let part = PART.max(bytes.div_ceil(PARTS));
        let mut writer = WriteMultipart::new_with_chunk_size(upload, usize::try_from(part).unwrap_or(usize::MAX));
        let sent = async {
            while let Some(piece) = body.try_next().await? {
                writer.wait_for_capacity(AT_ONCE).await.map_err(fault)?;
                writer.put(Bytes::from(piece));
            }
            Ok(())
        };
        match sent.await {
            Ok(()) => writer.finish().await.map(drop).map_err(fault),
            Err(error) => {
                // If this fails too, a rule of the bucket removes the parts.
                let _ = writer.abort().await;
                Err(error)
            }
        }
    }
}

/// The directory that a URL of the scheme `file` names.
fn directory(url: &str) -> Result<Option<PathBuf>, String> {
    let Ok(parsed) = Url::parse(url) else { return Ok(None) };
    if parsed.scheme() != "file" {
        return Ok(None);
    }
    let path = parsed.to_file_path().map_err(|()| "write `file:///` and an absolute path".to_owned())?;
    Ok(Some(path))
}

fn tag_of(put: PutResult) -> Tag {
    Tag { etag: put.e_tag, version: put.version }
}

/// The fault for an error of the store.
fn fault(error: Error) -> StoreError {
    let shown = store::shown(&error);
    match error {
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } | Error::InvalidPath { .. } => {
            StoreError::Refused(shown)
        }
        // A missing object is no error where it is expected, so it is the bucket that is missing.
        Error::NotFound { .. } | Error::NotSupported { .. } | Error::NotImplemented { .. } => {
            StoreError::Refused(shown)
        }
        _ if is_refusal(&shown) => StoreError::Refused(shown),
        _ => StoreError::Failed(shown),
    }
}

/// Whether a text has the status of a refusal. A listing that is refused has no error of its own, only this text.
fn is_refusal(shown: &str) -> bool {
    let status = shown.split_once("status code: ").map(|(_, status)| status);
    status.is_some_and(|status| ["401", "403", "404"].iter().any(|refusal| status.starts_with(refusal)))
}

impl BackupStore for ObjectBackup {
    fn address(&self) -> &str {
        &self.address
    }

    fn read<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Tagged>, StoreError>> {
        async move {
            let found = match self.store.get(&self.key(key)).await {
                Ok(found) => found,
                Err(Error::NotFound { .. }) => return Ok(None),
                Err(error) => return Err(fault(error)),
            };
            let tag = Tag { etag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
            Ok(Some((found.bytes().await.map_err(fault)?.into(), tag)))
        }
        .boxed()
    }

    fn replace<'a>(
        &'a self,
        key: &'a str,
        bytes: Vec<u8>,
        tag: Option<&'a Tag>,
    ) -> BoxFuture<'a, Result<Tag, StoreError>> {
        async move {
            let key = self.key(key);
            let mode = match tag {
                None => PutMode::Create,
                Some(Tag { etag, version }) => {
                    PutMode::Update(UpdateVersion { e_tag: etag.clone(), version: version.clone() })
                }
            };
            match (self.put(&key, bytes.clone(), mode).await, tag) {
                (Ok(put), _) => Ok(tag_of(put)),
                (Err(Error::AlreadyExists { .. } | Error::Precondition { .. }), _) => Err(StoreError::Changed),
                (Err(Error::NotFound { .. }), Some(_)) => Err(StoreError::Changed),
                (Err(Error::NotImplemented { .. }), Some(tag)) => self.compare_and_put(&key, bytes, tag).await,
                (Err(Error::NotImplemented { .. }), None) => {
                    Ok(tag_of(self.put(&key, bytes, PutMode::Overwrite).await.map_err(fault)?))
                }
                (Err(error), _) => Err(fault(error)),
            }
        }
        .boxed()
    }

    fn upload<'a>(&'a self, key: &'a str, bytes: u64, body: Body) -> BoxFuture<'a, Result<(), StoreError>> {
        async move {
            let key = self.key(key);
            if bytes > PART {
                return self.upload_parts(&key, bytes, body).await;
            }
            let pieces: Vec<Bytes> = body.map_ok(Bytes::from).try_collect().await?;
            let put = self.store.put(&key, PutPayload::from_iter(pieces)).await;
            put.map(drop).map_err(fault)
        }
        .boxed()
    }

    fn download<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Body>, StoreError>> {
        async move {
            match self.store.get(&self.key(key)).await {
                Ok(found) => Ok(Some(found.into_stream().map(|piece| piece.map(Vec::from).map_err(fault)).boxed())),
                Err(Error::NotFound { .. }) => Ok(None),
                Err(error) => Err(fault(error)),
            }
        }
        .boxed()
    }

    fn list<'a>(&'a self, below: &'a str) -> BoxFuture<'a, Result<Vec<String>, StoreError>> {
        async move {
            let objects: Vec<_> = self.store.list(Some(&self.key(below))).try_collect().await.map_err(fault)?;
            let relative = |key: &Key| {
                let parts = key.prefix_match(&self.prefix)?;
                Some(parts.map(|part| part.as_ref().to_owned()).collect::<Vec<_>>().join("/"))
            };
            Ok(objects.iter().filter_map(|object| relative(&object.location)).collect())
        }
        .boxed()
    }

    fn remove<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), StoreError>> {
        async move {
            match self.store.delete(&self.key(key)).await {
                Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
                Err(error) => Err(fault(error)),
            }
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests;
