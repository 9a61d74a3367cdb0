//! Restores an index from its copy: into a directory beside it, which gets its name when it is complete and on the disk.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::{StreamExt as _, TryStreamExt as _, stream};

use super::copy::{CopiedFile, Copy, description, object, objects};
use super::files::{blocking, is_complete, receive};
use super::store::{BackupStore, StoreError};
use super::write::{AT_ONCE, timed};
use crate::append::sync_directory;

/// The first and the longest pause after a failure.
const PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));
/// How often a copy is read anew because it has changed meanwhile.
const ATTEMPTS: u32 = 5;

/// Whether a directory holds nothing or does not exist.
pub(super) fn is_empty(directory: &Path) -> bool {
    match std::fs::read_dir(directory) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == ErrorKind::NotFound,
    }
}

/// Restores the copy at a place, if there is one; returns its size in bytes. Repeats what the store fails to do until
/// nothing has been read for the time of `patience`.
///
/// # Errors
///
/// [`StoreError::Damaged`] if the copy is damaged or incomplete; or the store fails or refuses, or the disk.
pub(super) async fn restore(
    store: &dyn BackupStore,
    place: &str,
    target: &Path,
    patience: Duration,
) -> Result<Option<u64>, StoreError> {
    let read = Arc::new(AtomicU64::new(0));
    let (mut before, mut since, mut pause) = (0, Instant::now(), PAUSES.0);
    loop {
        let error = match attempt(store, place, target, &read).await {
            Err(error @ StoreError::Failed(_)) => error,
            done => return done,
        };
        let now = read.load(Ordering::Relaxed);
        if now > before {
            (before, since, pause) = (now, Instant::now(), PAUSES.0);
        }
        if since.elapsed() + pause > patience {
            return Err(error);
        }
        tracing::debug!(store = store.address(), place, %error, "cannot read a copy; will retry");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

async fn attempt(
    store: &dyn BackupStore,
    place: &str,
    target: &Path,
    read: &Arc<AtomicU64>,
) -> Result<Option<u64>, StoreError> {
    let mut seen = None;
    for _ in 0..ATTEMPTS {
        let Some((bytes, tag)) = timed(0, store.read(&description(place))).await? else {
            // A bucket that does not exist has no object either, but cannot be listed: that must not pass for an empty one.
            timed(0, store.list(&objects(place))).await?;
            return Ok(None);
        };
        if seen.as_ref() == Some(&tag) {
            break;
        }
        let copy = Copy::parse(&bytes)?;
        if copy.files.is_empty() {
            return Ok(None);
        }
        if fetch(store, place, target, &copy, read).await? {
            put_in_place(target).await?;
            return Ok(Some(copy.bytes()));
        }
        // An object is gone. Another process may have written a newer copy.
        seen = Some(tag);
    }
    Err(StoreError::Damaged("objects of it are missing".to_owned()))
}

/// Where the files wait until all of them are there.
pub(super) fn beside(target: &Path) -> PathBuf {
    let mut name = target.file_name().unwrap_or_default().to_owned();
    name.push(".restoring");
    target.with_file_name(name)
}

/// Fetches the files of a copy that are not there from an earlier attempt. Returns false if an object is missing.
async fn fetch(
    store: &dyn BackupStore,
    place: &str,
    target: &Path,
    copy: &Copy,
    read: &Arc<AtomicU64>,
) -> Result<bool, StoreError> {
    let directory = beside(target);
    let (named, of) = (copy.files.iter().map(|file| directory.join(&file.path)).collect(), directory.clone());
    blocking(move || keep_only(&of, &named)).await?;
    let directory = &directory;
    let mut fetched = stream::iter(&copy.files)
        .map(|CopiedFile { path, bytes, hash, .. }| async move {
            let (path, bytes) = (directory.join(path), *bytes);
            let (there, of) = (path.clone(), hash.clone());
            if blocking(move || Ok(is_complete(&there, bytes, &of))).await? {
                return Ok(true);
            }
            let download = || async {
                let Some(body) = store.download(&object(place, hash)).await? else { return Ok(false) };
                let read = read.clone();
                let body = body.inspect_ok(move |_| {
                    read.fetch_add(1, Ordering::Relaxed);
                });
                receive(path.clone(), Box::pin(body), bytes, hash).await?;
                Ok(true)
            };
            match timed(bytes, download()).await {
                // What is damaged on the way is not damaged in the store.
                Err(StoreError::Damaged(_)) => timed(bytes, download()).await,
                done => done,
            }
        })
        .buffer_unordered(AT_ONCE);
    while let Some(is_there) = fetched.try_next().await? {
        if !is_there {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes all files of a directory but these. Blocks.
fn keep_only(directory: &Path, named: &BTreeSet<PathBuf>) -> Result<(), StoreError> {
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            keep_only(&path, named)?;
        } else if !named.contains(&path) {
            std::fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// Gives the restored directory its name, when it is on the disk.
async fn put_in_place(target: &Path) -> Result<(), StoreError> {
    let target = target.to_owned();
    blocking(move || {
        let from = beside(&target);
        // An attempt that was cancelled may have put it in place meanwhile, or do so now.
        let is_there = || std::fs::read_dir(&target).is_ok_and(|mut entries| entries.next().is_some());
        if !from.is_dir() && is_there() {
            return Ok(());
        }
        sync_below(&from)?;
        match std::fs::remove_dir(&target) {
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => return Ok(std::fs::remove_dir_all(&from)?),
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        std::fs::rename(&from, &target)?;
        Ok(target.parent().map_or(Ok(()), sync_directory)?)
    })
    .await
}

/// Waits until the names of all files below a directory are on the disk.
fn sync_below(directory: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            sync_below(&path)?;
        }
    }
    sync_directory(directory)
}
