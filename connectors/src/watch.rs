//! The operating system's file events, grouped into bursts.
//!
//! An event only says *where* something happened; the caller looks at what is there. Events are therefore reduced to
//! touched paths, and a burst of them (an editor's write-and-rename, an unpacked archive) is returned as one.
//!
//! On Linux each directory has its own watch, and the caller watches a directory *before* reading it, so that a new
//! entry is seen by either the watch or the read. The recursive mode of the `notify` crate adds the watch of a new
//! directory some time after its event, and misses what happens in between. Other operating systems watch whole trees.

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
/// How long a file may be written before it is read although its writer has not closed it. Most writers close it
/// sooner, and a half-written file is not worth reading.
pub(crate) const WRITING: Duration = Duration::from_secs(1);
/// How often to check what no event reports: a moved root, the targets of links.
pub(crate) const TICK: Duration = Duration::from_secs(1);

/// Whether a watch covers one directory (inotify) or the whole tree below it.
const BY_DIRECTORY: bool = cfg!(any(target_os = "linux", target_os = "android"));

/// The last event of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Touch {
    /// The path can be read now.
    Settled,
    /// The file was just created, and may still be written.
    Created,
    /// The file is being written and is not closed yet.
    Writing,
}

/// A reduced event.
pub(crate) enum Signal {
    /// An event at this path.
    Touched(PathBuf, Touch),
    /// Events were lost: anything may have happened.
    Rescan,
}

/// Events within a short time.
#[derive(Debug, Default)]
pub(crate) struct Burst {
    /// The touched paths, each with its last event.
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
    /// Creates a watcher that watches nothing yet.
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

    /// Watches the entries of a directory. Watching it again is harmless.
    pub(crate) fn add(&mut self, directory: &Path) -> Result<(), ConnectorError> {
        self.watcher.watch(directory, RecursiveMode::NonRecursive).map_err(|error| watch_error(directory, &error))
    }

    /// Watches the root of a tree.
    pub(crate) fn add_root(&mut self, directory: &Path) -> Result<(), ConnectorError> {
        let mode = if BY_DIRECTORY { RecursiveMode::NonRecursive } else { RecursiveMode::Recursive };
        self.watcher.watch(directory, mode).map_err(|error| watch_error(directory, &error))
    }

    /// Watches a directory below the root, unless the root's watch covers it.
    pub(crate) fn add_below(&mut self, directory: &Path) -> Result<(), ConnectorError> {
        if BY_DIRECTORY { self.add(directory) } else { Ok(()) }
    }

    /// The channel of events, for `select!`.
    pub(crate) fn signals(&self) -> &Receiver<Signal> {
        &self.signals
    }

    /// Waits for a burst. Returns an empty one if nothing happens until `until`.
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
        // Ignores access events, because this process's own reads cause them.
        EventKind::Access(_) => None,
        // Waiting for the file to be closed requires that the system reports closing.
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

/// Identifies a file, independent of its name; `None` if nothing is there.
pub(crate) fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|metadata| identity_of(&metadata))
}

/// Device and inode.
#[cfg(unix)]
pub(crate) fn identity_of(metadata: &std::fs::Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    (metadata.dev(), metadata.ino())
}

/// The creation time, because there is no inode.
#[cfg(not(unix))]
pub(crate) fn identity_of(metadata: &std::fs::Metadata) -> (u64, u64) {
    let since = metadata.created().ok().and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    since.map_or((0, 0), |since| (since.as_secs(), u64::from(since.subsec_nanos())))
}

/// A cheap check whether a file's content may have changed, for changes that no event reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileStamp {
    identity: (u64, u64),
    bytes: u64,
    modified: Option<std::time::SystemTime>,
}

impl FileStamp {
    /// The stamp of the file that `path` leads to; `None` if there is none.
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
        // An event of the read would arrive before that of the second file.
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
