//! Writes the copy of one index: first the contents that are new, then the description, and only then it removes what the
//! description does not name. Wherever this stops, the description that is there names only objects that are there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _, stream};

use super::copy::{CopiedFile, Copy, Place, Writer, description, object, objects};
use super::files::{Found, blocking, snapshot};
use super::store::{BackupStore, StoreError, Tag};
use crate::component::BackedUp;
use crate::metrics::Counter;

/// Files that are read, written or removed at the same time.
pub(super) const AT_ONCE: usize = 4;
/// How often a description is written anew because someone else has written it meanwhile.
const ATTEMPTS: u32 = 3;
/// After this time, what is in the store is looked at again: someone may have removed objects, or write the same copy. The
/// first time is soon: the writer before this run may still have been removing objects.
const LOOK_AGAIN: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(3600));
/// A transfer that takes longer than this, and a second for each of these bytes, has failed.
const LONGEST: (Duration, u64) = (Duration::from_secs(120), 50_000);

/// Why a copy could not be written.
#[derive(Debug, thiserror::Error)]
pub(super) enum WriteError {
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Another run has written the copy after this one had.
    #[error("another run writes the same backup")]
    Taken,
}

/// What a round needs.
pub(super) struct Round<'a> {
    pub store: &'a dyn BackupStore,
    pub pipeline: &'a str,
    pub writer: &'a Writer,
    pub sent: &'a Counter,
}

/// What is in the store.
struct Remote {
    tag: Option<Tag>,
    /// Keys of the objects.
    objects: BTreeSet<String>,
}

/// The copy of an index that this run writes.
pub(super) struct IndexCopy {
    pub place: Place,
    directory: PathBuf,
    part: BackedUp,
    remote: Option<Remote>,
    /// When that is read again.
    look_again: Option<Instant>,
    /// Whether this run has written the description.
    is_ours: bool,
    /// Whether objects that are in the store may be damaged.
    distrusts: bool,
    /// The files of the last complete copy.
    copied: Option<Vec<Found>>,
    /// Hashes of files by path, with the values that the file had.
    hashes: BTreeMap<String, (Found, String)>,
    /// What an earlier run with the same state directory has described.
    earlier: BTreeMap<String, CopiedFile>,
}

impl IndexCopy {
    pub fn new(place: Place, directory: PathBuf, part: BackedUp) -> Self {
        Self {
            place,
            directory,
            part,
            remote: None,
            look_again: None,
            is_ours: false,
            distrusts: false,
            copied: None,
            hashes: BTreeMap::new(),
            earlier: BTreeMap::new(),
        }
    }

    /// The copy was found to be damaged: the first round uploads everything, also what seems to be there.
    pub fn distrust(&mut self) {
        self.distrusts = true;
    }

    /// Copies what has changed since the last round. Returns false if nothing is stored: there is no passage yet, or the
    /// index is being replaced.
    ///
    /// # Errors
    ///
    /// [`StoreError::Moved`]: a file went meanwhile, so the round must begin again. Whatever the error, the copy in the store
    /// is one of an earlier round, and the next round goes on with what this one has uploaded.
    pub async fn round(&mut self, round: &Round<'_>) -> Result<bool, WriteError> {
        let (directory, part) = (self.directory.clone(), self.part);
        let found = blocking(move || snapshot(&directory, part)).await?;
        if self.look_again.is_some_and(|at| at <= Instant::now()) {
            (self.remote, self.copied) = (None, None);
        }
        if found.is_empty() || self.is_ours && self.copied.as_ref() == Some(&found) {
            return Ok(!found.is_empty());
        }
        let copied = self.copy(round, found).await;
        if copied.is_err() {
            // What was being written or removed may be there or not.
            self.remote = None;
        }
        copied.map(|()| true)
    }

    /// Brings the copy to these files.
    async fn copy(&mut self, round: &Round<'_>, found: Vec<Found>) -> Result<(), WriteError> {
        for _ in 0..ATTEMPTS {
            self.look(round).await?;
            let files = self.describe(&found).await?;
            let copy = Copy::new(round.writer.clone(), files);
            self.upload(round, &found, &copy).await?;
            if self.commit(round, &copy).await? {
                self.copied = Some(found);
                self.hashes.retain(|path, _| copy.files.iter().any(|file| file.path == *path));
                return Ok(self.collect(round, &copy).await?);
            }
        }
        Err(WriteError::Store(StoreError::Failed("someone else writes the same copy all the time".to_owned())))
    }

    /// Reads what is in the store, once.
    async fn look(&mut self, round: &Round<'_>) -> Result<(), WriteError> {
        if self.remote.is_some() {
            return Ok(());
        }
        let place = self.place.key(round.pipeline);
        let read = timed(0, round.store.read(&description(&place))).await?;
        let (copy, tag) = match read {
            Some((bytes, tag)) => match Copy::parse(&bytes) {
                Ok(copy) => (Some(copy), Some(tag)),
                // Another version has written it.
                Err(error @ StoreError::Refused(_)) => return Err(error.into()),
                // A description that cannot be read is replaced.
                Err(_) => (None, Some(tag)),
            },
            None => (None, None),
        };
        // A write of this run that was reported as failed may have arrived, and a copy that someone has removed is made again.
        if self.is_ours && copy.as_ref().is_some_and(|copy| copy.writer.run != round.writer.run) {
            return Err(WriteError::Taken);
        }
        if let Some(copy) = copy.filter(|copy| copy.writer.state == round.writer.state) {
            self.earlier = copy.files.into_iter().map(|file| (file.path.clone(), file)).collect();
        }
        // Listed after the description was read: who replaces it removes objects afterwards.
        let objects = timed(0, round.store.list(&objects(&place))).await?.into_iter().collect();
        self.remote = Some(Remote { tag, objects });
        self.look_again = Some(Instant::now() + if self.is_ours { LOOK_AGAIN.1 } else { LOOK_AGAIN.0 });
        Ok(())
    }

    /// Computes the hashes of files that are new.
    async fn describe(&mut self, found: &[Found]) -> Result<Vec<CopiedFile>, WriteError> {
        let mut files = Vec::with_capacity(found.len());
        for found in found {
            let Found { path, bytes, modified_ns, inode } = found.clone();
            let known = self.hashes.get(&path).filter(|(of, _)| of == found).map(|(_, hash)| hash.clone());
            let same = |file: &&CopiedFile| (file.bytes, file.modified_ns, file.inode) == (bytes, modified_ns, inode);
            let known = known.or_else(|| self.earlier.get(&path).filter(same).map(|file| file.hash.clone()));
            let hash = match known {
                Some(hash) => hash,
                None => {
                    let (found, directory) = (found.clone(), self.directory.clone());
                    blocking(move || found.hash(&directory)).await?
                }
            };
            self.hashes.insert(path.clone(), (found.clone(), hash.clone()));
            files.push(CopiedFile { path, bytes, hash, modified_ns, inode });
        }
        Ok(files)
    }

    /// Uploads the contents that are not in the store.
    async fn upload(&mut self, round: &Round<'_>, found: &[Found], copy: &Copy) -> Result<(), WriteError> {
        let Some(Remote { objects, .. }) = &mut self.remote else { return Ok(()) };
        let place = self.place.key(round.pipeline);
        let mut missing: BTreeMap<String, (Found, String)> = BTreeMap::new();
        for (found, file) in found.iter().zip(&copy.files) {
            let key = object(&place, &file.hash);
            if self.distrusts || !objects.contains(&key) {
                missing.insert(key, (found.clone(), file.hash.clone()));
            }
        }
        let uploads: Vec<_> = missing
            .into_iter()
            .map(|(key, (found, hash))| {
                let (bytes, body) = (found.bytes, found.body(self.directory.clone(), hash));
                async move {
                    timed(bytes, round.store.upload(&key, bytes, body)).await?;
                    Ok::<_, StoreError>((key, bytes))
                }
                .boxed()
            })
            .collect();
        let mut uploads = stream::iter(uploads).buffer_unordered(AT_ONCE);
        while let Some((key, bytes)) = uploads.try_next().await? {
            round.sent.inc_by(bytes);
            objects.insert(key);
        }
        Ok(())
    }

    /// Writes the description. Returns false if someone else has written another one: then all must be looked at again.
    async fn commit(&mut self, round: &Round<'_>, copy: &Copy) -> Result<bool, WriteError> {
        let tag = self.remote.as_ref().and_then(|remote| remote.tag.clone());
        let (key, bytes) = (description(&self.place.key(round.pipeline)), copy.to_bytes()?);
        match timed(0, round.store.replace(&key, bytes, tag.as_ref())).await {
            Ok(tag) => {
                (self.is_ours, self.distrusts) = (true, false);
                self.remote.iter_mut().for_each(|remote| remote.tag = Some(tag.clone()));
                Ok(true)
            }
            Err(StoreError::Changed) => {
                self.remote = None;
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Removes the objects that the description does not name.
    async fn collect(&mut self, round: &Round<'_>, copy: &Copy) -> Result<(), StoreError> {
        let Some(Remote { objects, .. }) = &mut self.remote else { return Ok(()) };
        let place = self.place.key(round.pipeline);
        let named: BTreeSet<String> = copy.files.iter().map(|file| object(&place, &file.hash)).collect();
        let gone: Vec<String> = objects.difference(&named).cloned().collect();
        remove_all(round.store, &gone).await?;
        objects.retain(|key| named.contains(key));
        Ok(())
    }
}

/// Removes objects. One that fails does not cut off the others: a removal that arrives later could hit a new object.
pub(super) async fn remove_all(store: &dyn BackupStore, keys: &[String]) -> Result<(), StoreError> {
    let removals: Vec<_> = keys.iter().map(|key| timed(0, store.remove(key)).boxed()).collect();
    let removed: Vec<_> = stream::iter(removals).buffer_unordered(AT_ONCE).collect().await;
    removed.into_iter().collect()
}

/// Removes the copy at a place: first its description, so that nobody reads a part of it.
pub(super) async fn remove_copy(store: &dyn BackupStore, place: &str) -> Result<(), StoreError> {
    timed(0, store.remove(&description(place))).await?;
    let keys = timed(0, store.list(place)).await?;
    remove_all(store, &keys).await
}

/// An operation that moves this many bytes, with a limit of time: a store may stop answering.
pub(super) async fn timed<T>(
    bytes: u64,
    operation: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let limit = LONGEST.0 + Duration::from_secs(bytes / LONGEST.1);
    match tokio::time::timeout(limit, operation).await {
        Ok(done) => done,
        Err(_) => Err(StoreError::Failed(format!("no answer for {} s", limit.as_secs()))),
    }
}
