//! The operating system's file events, gathered into bursts.
//!
//! An event says only *where* something happened; what is there now is for the caller to
//! look at. So events are reduced to touched paths, and a burst of them (an editor's
//! write-and-rename, an unpacked archive) is handed over as one.
//!
//! On Linux each directory is watched by itself, and the caller watches a directory
//! *before* reading it: what appears in between is then seen by one or the other. The
//! `notify` crate's own recursion adds the watch of a new directory some time after its
//! event, and what happens in it meanwhile is told by nobody. Elsewhere the systems watch
//! whole trees.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use notify::event::{AccessKind, AccessMode, CreateKind, ModifyKind};
use notify::{Config, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use turnflow_engine::connector::{ConnectorError, Stop, Stopped};

/// A burst ends when nothing has happened for this long …
const QUIET: Duration = Duration::from_millis(5);
/// … or when it has lasted this long.
const LONGEST_BURST: Duration = Duration::from_millis(50);
/// How long a file may be written to before it is read although its writer has not closed
/// it: most writers close sooner, and what is half written is not worth reading.
pub(crate) const WRITING: Duration = Duration::from_secs(1);
/// How often what no event tells is looked for: a moved root, the targets of links.
pub(crate) const TICK: Duration = Duration::from_secs(1);

/// Whether a watch covers one directory (inotify) or the tree below it.
const BY_DIRECTORY: bool = cfg!(any(target_os = "linux", target_os = "android"));

/// What was last seen to happen to a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Touch {
    /// Worth looking at now.
    Settled,
    /// Made just now, perhaps to be written to.
    Created,
    /// Written to by someone who has not closed it yet.
    Writing,
}

/// An event, reduced.
pub(crate) enum Signal {
    /// This path.
    Touched(PathBuf, Touch),
    /// Events were lost: anything may have happened.
    Rescan,
}

/// What happened in a short while.
#[derive(Debug, Default)]
pub(crate) struct Burst {
    /// Where; the last word on each path counts.
    pub(crate) touched: BTreeMap<PathBuf, Touch>,
    /// Events were lost.
    pub(crate) rescan: bool,
    /// The watcher has died.
    pub(crate) dead: bool,
}

/// A file watcher.
pub(crate) struct Watch {
    watcher: RecommendedWatcher,
    signals: Receiver<Signal>,
}

impl Watch {
    /// Watches nothing yet.
    pub(crate) fn new(path: &Path) -> Result<Self, ConnectorError> {
        let (sender, signals) = crossbeam_channel::unbounded();
        let handler = move |event: notify::Result<notify::Event>| match event {
            Ok(event) if event.need_rescan() => drop(sender.send(Signal::Rescan)),
            Ok(event) => {
                if let Some(touch) = touch_of(&event.kind) {
                    for path in event.paths {
                        let _ = sender.send(Signal::Touched(path, touch));
                    }
                }
            }
            Err(error) => {
                tracing::warn!(%error, "the file watcher has lost events");
                let _ = sender.send(Signal::Rescan);
            }
        };
        let config = Config::default().with_follow_symlinks(false);
        let watcher = RecommendedWatcher::new(handler, config).map_err(|error| watch_error(path, &error))?;
        Ok(Self { watcher, signals })
    }

    /// Watches the entries of a directory; watching it again does no harm.
    pub(crate) fn add(&mut self, directory: &Path) -> Result<(), ConnectorError> {
        self.watcher.watch(directory, RecursiveMode::NonRecursive).map_err(|error| watch_error(directory, &error))
    }

    /// Watches the root of a tree.
    pub(crate) fn add_root(&mut self, directory: &Path) -> Result<(), ConnectorError> {
        let mode = if BY_DIRECTORY { RecursiveMode::NonRecursive } else { RecursiveMode::Recursive };
        self.watcher.watch(directory, mode).map_err(|error| watch_error(directory, &error))
    }

    /// Watches a directory below the root, where the root's watch does not cover it.
    pub(crate) fn add_below(&mut self, directory: &Path) -> Result<(), ConnectorError> {
        if BY_DIRECTORY { self.add(directory) } else { Ok(()) }
    }

    /// The events, for `select!`.
    pub(crate) fn signals(&self) -> &Receiver<Signal> {
        &self.signals
    }

    /// Waits for a burst; an empty one when nothing happens until `until`.
    pub(crate) fn burst(&self, stop: &Stop, until: Instant) -> Result<Burst, Stopped> {
        let mut burst = Burst::default();
        crossbeam_channel::select! {
            recv(self.signals) -> signal => match signal {
                Ok(signal) => burst.add(signal),
                Err(_) => burst.dead = true,
            },
            recv(stop.receiver()) -> _ => return Err(Stopped),
            default(until.saturating_duration_since(Instant::now())) => return Ok(burst),
        }
        let end = Instant::now() + LONGEST_BURST;
        while !burst.dead {
            let wait = QUIET.min(end.saturating_duration_since(Instant::now()));
            match self.signals.recv_timeout(wait) {
                Ok(signal) => burst.add(signal),
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => burst.dead = true,
            }
            if Instant::now() >= end {
                break;
            }
        }
        if stop.is_set() { Err(Stopped) } else { Ok(burst) }
    }
}

impl Burst {
    fn add(&mut self, signal: Signal) {
        match signal {
            Signal::Touched(path, touch) => {
                self.touched.insert(path, touch);
            }
            Signal::Rescan => self.rescan = true,
        }
    }
}

fn touch_of(kind: &EventKind) -> Option<Touch> {
    match kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => Some(Touch::Settled),
        // Our own reading must not wake us.
        EventKind::Access(_) => None,
        // Only where the system also tells of closing can one wait for it.
        EventKind::Modify(ModifyKind::Data(_)) if BY_DIRECTORY => Some(Touch::Writing),
        EventKind::Create(CreateKind::File) if BY_DIRECTORY => Some(Touch::Created),
        _ => Some(Touch::Settled),
    }
}

fn watch_error(path: &Path, error: &notify::Error) -> ConnectorError {
    let reason = match error.kind {
        notify::ErrorKind::MaxFilesWatch => {
            "the system's limit of watches is reached (fs.inotify.max_user_watches)".to_owned()
        }
        _ => error.to_string(),
    };
    ConnectorError::Watch { path: path.display().to_string(), reason }
}

/// What tells one file from another under the same name; `None` if nothing is there.
pub(crate) fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|metadata| identity_of(&metadata))
}

/// Device and inode.
#[cfg(unix)]
pub(crate) fn identity_of(metadata: &std::fs::Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    (metadata.dev(), metadata.ino())
}

/// The time of creation, for want of an inode.
#[cfg(not(unix))]
pub(crate) fn identity_of(metadata: &std::fs::Metadata) -> (u64, u64) {
    let since = metadata.created().ok().and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    since.map_or((0, 0), |since| (since.as_secs(), u64::from(since.subsec_nanos())))
}

/// A cheap sign that a file's content may have changed, for what no event tells of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileStamp {
    identity: (u64, u64),
    bytes: u64,
    modified: Option<std::time::SystemTime>,
}

impl FileStamp {
    /// Of what `path` leads to; `None` if it leads nowhere.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let metadata = std::fs::metadata(path).ok()?;
        Some(Self { identity: identity_of(&metadata), bytes: metadata.len(), modified: metadata.modified().ok() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_closed_file_is_settled_and_reading_is_no_event() {
        let directory = tempfile::tempdir().unwrap();
        let mut watch = Watch::new(directory.path()).unwrap();
        watch.add(directory.path()).unwrap();
        let (handle, stop) = Stop::new();
        let file = directory.path().join("a");
        fs::write(&file, "one").unwrap();
        let far = Instant::now() + Duration::from_secs(60);
        let mut last = None;
        while last != Some(Touch::Settled) {
            last = watch.burst(&stop, far).unwrap().touched.remove(&file).or(last);
        }
        assert_eq!(fs::read(&file).unwrap(), b"one");
        // The event of the second file would come after that of the reading.
        let other = directory.path().join("b");
        fs::write(&other, "two").unwrap();
        let mut last = None;
        while last != Some(Touch::Settled) {
            let mut burst = watch.burst(&stop, far).unwrap();
            last = burst.touched.remove(&other).or(last);
            assert!(!burst.touched.contains_key(&file), "{burst:?}");
        }
        drop(handle);
        assert!(watch.burst(&stop, far).is_err());
    }

    #[test]
    fn what_is_not_there_cannot_be_watched() {
        let directory = tempfile::tempdir().unwrap();
        let mut watch = Watch::new(directory.path()).unwrap();
        let error = watch.add(&directory.path().join("missing")).unwrap_err();
        assert!(error.to_string().starts_with("cannot watch"), "{error}");
    }
}
