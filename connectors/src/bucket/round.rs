//! One round over the objects of a bucket.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use futures::{StreamExt, TryStreamExt, stream};
use object_store::Error::{NotFound, PermissionDenied, Unauthenticated};
use object_store::path::Path as Key;
use object_store::{Attribute, ObjectMeta, ObjectStore, ObjectStoreExt};
use serde::{Deserialize, Serialize};
use turnflow_engine::connector::{ConnectorError, CorpusOutput};

use super::{Bucket, BucketConfig, store};
use crate::fetched::{Fetched, File};
use crate::kept_files::KeptFiles;
use crate::ocr;
use crate::readers::{Format, ReadError};
use crate::remote::{passing, wait};

/// Objects that are read at the same time.
const AT_ONCE: usize = 8;

/// How often the first round is tried again because of objects that cannot be read.
const AGAIN: u32 = 4;

/// An object to read.
struct Wanted {
    path: String,
    version: String,
    format: Format,
    meta: ObjectMeta,
    /// Nothing was sent for it in this run.
    is_new: bool,
}

/// What was read of an object.
pub(super) enum Read {
    Content(Bytes),
    TooLarge,
    /// It is packed in a way that is not known.
    Packed(String),
    /// It could not be read. An earlier run has kept this version of it.
    Earlier {
        object: KeptObject,
        content: Bytes,
        error: object_store::Error,
    },
}

/// What is kept of an object, beside its content.
#[derive(Deserialize, Serialize)]
pub(super) struct KeptObject {
    version: String,
    modified: String,
}

impl KeptObject {
    fn of(meta: &ObjectMeta) -> Self {
        // Azure quotes it in the header of an object, and not in a listing.
        let tag = meta.e_tag.as_ref().map(|tag| tag.trim_start_matches("W/").trim_matches('"').to_owned());
        let tag = tag.or_else(|| meta.version.clone());
        Self {
            version: tag.unwrap_or_else(|| format!("{} {}", meta.last_modified, meta.size)),
            modified: meta.last_modified.to_rfc3339_opts(chrono::SecondsFormat::Secs, true),
        }
    }
}

/// Reads an object, from what an earlier run has kept if that is the same version. `may_be_kept`: this run has not read it.
async fn read(
    store: Arc<dyn ObjectStore>,
    kept: KeptFiles,
    (path, meta): (String, ObjectMeta),
    limit: u64,
    may_be_kept: bool,
) -> Result<Read, object_store::Error> {
    if meta.size > limit {
        return Ok(Read::TooLarge);
    }
    let listed = KeptObject::of(&meta);
    let off_the_runtime = |error| object_store::Error::JoinError { source: error };
    let mut earlier = None;
    if may_be_kept {
        let (kept, path) = (kept.clone(), path.clone());
        let reading = tokio::task::spawn_blocking(move || {
            kept.read::<KeptObject>(&path).filter(|(_, content)| content.len() as u64 <= limit)
        });
        earlier = reading.await.map_err(off_the_runtime)?;
    }
    if let Some((_, content)) = earlier.take_if(|(earlier, _)| earlier.version == listed.version) {
        return Ok(Read::Content(content.into()));
    }
    let fetched = async {
        let found = store.get(&meta.location).await?;
        let now = KeptObject::of(&found.meta);
        let packed =
            found.attributes.get(&Attribute::ContentEncoding).map(|packed| packed.as_ref().to_ascii_lowercase());
        // It may have grown since it was listed, and the header may not be true.
        let mut content = Vec::new();
        let mut parts = found.into_stream();
        while let Some(part) = parts.try_next().await? {
            content.extend_from_slice(&part);
            if content.len() as u64 > limit {
                return Ok(Err(Read::TooLarge));
            }
        }
        Ok(unpacked(content, packed.as_deref(), limit).map(|content| (now, Bytes::from(content))))
    };
    match (fetched.await, earlier) {
        (Ok(Ok((now, content))), _) => {
            let written = content.clone();
            let writing = move || kept.write(&path, &now, &written);
            tokio::task::spawn_blocking(writing).await.map_err(off_the_runtime)?;
            Ok(Read::Content(content))
        }
        (Ok(Err(unread)), _) => Ok(unread),
        // Who may no longer read it gets no copy.
        (Err(error @ (NotFound { .. } | PermissionDenied { .. } | Unauthenticated { .. })), _) => Err(error),
        (Err(error), None) => Err(error),
        (Err(error), Some((object, content))) => Ok(Read::Earlier { object, content: content.into(), error }),
    }
}

/// The content of an object without its `Content-Encoding`.
pub(super) fn unpacked(content: Vec<u8>, packed: Option<&str>, limit: u64) -> Result<Vec<u8>, Read> {
    let stream: Box<dyn std::io::Read + '_> = match packed {
        // Some programs set the header for files that are not packed.
        Some("gzip" | "x-gzip") if content.starts_with(b"\x1f\x8b") => Box::new(MultiGzDecoder::new(&content[..])),
        Some("deflate") => Box::new(ZlibDecoder::new(&content[..])),
        None | Some("" | "identity" | "aws-chunked" | "gzip" | "x-gzip") => return Ok(content),
        Some(other) => return Err(Read::Packed(other.to_owned())),
    };
    let mut unpacked = Vec::new();
    match std::io::Read::read_to_end(&mut std::io::Read::take(stream, limit.saturating_add(1)), &mut unpacked) {
        Ok(bytes) if bytes as u64 > limit => Err(Read::TooLarge),
        Ok(_) => Ok(unpacked),
        Err(error) => Err(Read::Packed(format!("{}, which is damaged: {error}", packed.unwrap_or_default()))),
    }
}

/// A source that runs.
pub(super) struct Following<'a> {
    source: &'a Bucket,
    output: &'a CorpusOutput,
    fetched: Fetched,
    kept: KeptFiles,
    /// Objects that could not be read in the last round.
    failing: BTreeSet<String>,
    /// How often the first round is tried again because of them.
    again: u32,
    /// Changes that were sent since the last commit.
    uncommitted: usize,
}

impl<'a> Following<'a> {
    pub(super) fn new(source: &'a Bucket, output: &'a CorpusOutput) -> Result<Self, ConnectorError> {
        let kept = KeptFiles::open(&source.context, &source.config.place(), source.config.keep);
        let BucketConfig { ocr, ocr_min_confidence, ocr_model, passwords, .. } = &source.config;
        let how = (*ocr, *ocr_min_confidence);
        let fetched = Fetched::new(ocr::of(&source.context, ocr_model.as_deref(), how, passwords)?);
        let failing = BTreeSet::new();
        Ok(Self { source, output, fetched, kept, failing, again: AGAIN, uncommitted: 0 })
    }

    fn wait<T>(&self, future: impl Future<Output = Result<T, ConnectorError>>) -> Result<T, ConnectorError> {
        wait(self.source.context.runtime(), self.output.stop(), future)?
    }

    /// Lists the objects, reads those that have changed, and commits. `always` commits in any case.
    pub(super) fn round(&mut self, always: bool) -> Result<(), ConnectorError> {
        let config = &self.source.config;
        let (store, prefix) = store::open(&config.url, &config.options, &config.secrets)?;
        let (wanted, there) = self.wait(self.list(&store, &prefix))?;
        let gone: Vec<Arc<str>> = self.fetched.paths().filter(|path| !there.contains(&***path)).cloned().collect();
        for path in gone {
            self.uncommitted += self.remove(&path)?;
        }
        self.failing.retain(|path| there.contains(path));
        let (files, runtime) = (wanted.len(), self.source.context.runtime());
        let (limit, kept) = (config.max_bytes, self.kept.clone());
        let mut reads = stream::iter(wanted)
            .map(|object| {
                let what = (object.path.clone(), object.meta.clone());
                // A task goes on while the engine makes the source wait.
                let read = runtime.spawn(read(store.clone(), kept.clone(), what, limit, object.is_new));
                async move { (object, read.await) }
            })
            .buffered(AT_ONCE);
        while let Some((object, read)) = self.wait(async { Ok(reads.next().await) })? {
            let read = read.map_err(|error| passing(error.to_string()))?;
            self.uncommitted += self.take(&object, read)?;
        }
        drop(reads);
        // The first documents should be complete. An object that stays unreadable does not hold them up for ever.
        if always && !self.failing.is_empty() && self.again > 0 {
            self.again -= 1;
            let first = self.failing.first().map(String::as_str).unwrap_or_default();
            return Err(passing(format!("{} objects cannot be read, the first is `{first}`", self.failing.len())));
        }
        if always {
            self.kept.keep_only(there.iter().map(String::as_str));
        }
        let changes = std::mem::take(&mut self.uncommitted);
        if changes > 0 || always {
            tracing::info!(corpus = self.source.context.id(), files, changes, "read the bucket");
            self.output.commit()?;
        }
        Ok(())
    }

    /// The objects to read, and the paths of all that belong to the corpus.
    async fn list(
        &self,
        store: &Arc<dyn ObjectStore>,
        prefix: &Key,
    ) -> Result<(Vec<Wanted>, BTreeSet<String>), ConnectorError> {
        let (mut wanted, mut there) = (Vec::new(), BTreeSet::new());
        let mut objects = store.list(Some(prefix));
        while let Some(meta) = objects.try_next().await.map_err(store::failed)? {
            let Some(parts) = meta.location.prefix_match(prefix) else { continue };
            let parts: Vec<String> = parts.map(|part| part.as_ref().to_owned()).collect();
            let path = parts.join("/");
            if parts.iter().any(|part| part.starts_with('.')) || !self.source.pattern.is_match(&path) {
                continue;
            }
            let Some(format) =
                Format::of(Path::new(&path)).filter(|format| ocr::reads(self.source.config.ocr, *format))
            else {
                continue;
            };
            let version = KeptObject::of(&meta).version;
            there.insert(path.clone());
            if !self.fetched.has(&path, &version) {
                let is_new = !self.fetched.knows(&path);
                wanted.push(Wanted { path, version, format, meta, is_new });
            }
        }
        Ok((wanted, there))
    }

    /// Sends an object that was read. Returns the number of changes.
    fn take(&mut self, object: &Wanted, read: Result<Read, object_store::Error>) -> Result<usize, ConnectorError> {
        let Wanted { path, version, format, meta, is_new: _ } = object;
        let (bytes, version, modified) = match read {
            Ok(Read::Content(bytes)) => {
                self.failing.remove(path);
                (bytes, version.clone(), KeptObject::of(meta).modified)
            }
            Ok(Read::Earlier { object, content, error }) => {
                self.fails(path, &error);
                (content, object.version, object.modified)
            }
            Ok(Read::TooLarge) => {
                self.kept.remove(path);
                let error = ReadError::TooLarge { limit: self.source.config.max_bytes };
                return Ok(self.fetched.fault(path, version, &error, b"", self.output)?);
            }
            Ok(Read::Packed(how)) => {
                self.kept.remove(path);
                let error = ReadError::Broken { format: "object", reason: format!("its content is packed as {how}") };
                return Ok(self.fetched.fault(path, version, &error, b"", self.output)?);
            }
            // It was deleted after it was listed.
            Err(NotFound { .. }) => return self.remove(path),
            Err(error) => {
                if matches!(error, PermissionDenied { .. } | Unauthenticated { .. }) {
                    self.kept.remove(path);
                }
                self.fails(path, &error);
                return Ok(0);
            }
        };
        let mut facts = vec![("path", path.clone()), ("modified", modified)];
        let link = self.source.config.link.as_ref();
        facts.extend(link.map(|link| ("url", link.replace("{path}", path))));
        Ok(self.fetched.put(&File { path, version: &version, format: *format, facts: &facts }, &bytes, self.output)?)
    }

    fn remove(&mut self, path: &str) -> Result<usize, ConnectorError> {
        self.kept.remove(path);
        Ok(self.fetched.remove(path, self.output)?)
    }

    /// An object cannot be read, and is tried again in the next round.
    fn fails(&mut self, path: &str, error: &object_store::Error) {
        if self.failing.insert(path.to_owned()) {
            let error = store::shown(error);
            tracing::warn!(path, error, "cannot read an object; it is left as it was");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn objects_are_unpacked_within_the_limit() {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        packed.write_all(&[b'x'; 1000]).unwrap();
        let packed = packed.finish().unwrap();
        let read = |how: Option<&str>, bytes: &[u8], limit| match unpacked(bytes.to_vec(), how, limit) {
            Ok(content) => content.len().to_string(),
            Err(Read::TooLarge) => "too large".to_owned(),
            Err(Read::Packed(how)) => how,
            Err(_) => "another".to_owned(),
        };
        assert_eq!(read(Some("gzip"), &packed, 1000), "1000");
        assert_eq!(read(Some("gzip"), &packed, 999), "too large");
        assert_eq!(read(Some("gzip"), b"plain", 999), "5");
        assert_eq!(read(None, &packed, 1000), packed.len().to_string());
        assert_eq!(read(Some("br"), b"x", 1000), "br");
        assert!(read(Some("gzip"), &packed[..20], 1000).starts_with("gzip, which is damaged"));
    }
}
