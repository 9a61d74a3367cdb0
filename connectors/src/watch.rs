//! The operating system's file events, grouped into bursts.
//!
//! An event only indicates *where* something happened; the caller then checks the path. Events are therefore reduced to
//! touched paths, and a burst of them (an editor's write-and-rename, an unpacked archive) is returned as one. The
//! number of waiting paths is limited; beyond it, the caller is asked to check everything.
//!
//! On Linux each directory has its own watch, and the caller watches a directory *before* reading it, so that a new
//! entry is seen by either the watch or the read. The recursive mode of the `notify` crate adds the watch of a new
//! directory some time after its event, and misses what happens in between. Other operating systems watch whole trees.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use notify::event::{AccessKind, AccessMode, CreateKind, ModifyKind};
use notify::{Config, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use parking_lot::Mutex;
use turnflow_engine::connector::{ConnectorError, Stop, Stopped};

/// A burst ends when nothing has happened for this long …
const QUIET: Duration = Duration::from_millis(5);
/// … or when it has lasted this long.
const LONGEST_BURST: Duration = Duration::from_millis(50);
/// How long a file may be written before it is read even if its writer has not closed it. Most writers close it sooner,
/// and a half-written file is not worth reading.
pub(crate) const WRITING: Duration = Duration::from_secs(1);
/// How often to check what no event reports: a moved root, the targets of links.
pub(crate) const TICK: Duration = Duration::from_secs(1);

/// Maximum number of touched paths that wait for the caller.
const WAITING: usize = 16_384;

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

/// Events within a short time.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Burst {
    /// The touched paths, each with its last event.
    pub(crate) touched: BTreeMap<PathBuf, Touch>,
    /// Events were lost: anything may have happened.
    pub(crate) rescan: bool,
    /// The watcher has died.
    pub(crate) dead: bool,
}

/// A file watcher.
pub(crate) struct Watch {
    watcher: RecommendedWatcher,
    /// What has happened since the last burst.
    waiting: Arc<Mutex<Burst>>,
    /// Contains an entry if something has happened.
    signals: Receiver<()>,
}

impl Watch {
    /// Creates a watcher that watches nothing yet.
    pub(crate) fn new(path: &Path) -> Result<Self, ConnectorError> {
        Self::with_room(path, WAITING)
    }

    /// The same, with a limit on the number of waiting paths. Further paths are dropped, and the next burst reports it.
    /// With a limit of 0, there are only signals.
    pub(crate) fn with_room(path: &Path, room: usize) -> Result<Self, ConnectorError> {
        let (sender, signals) = crossbeam_channel::bounded(1);
        let waiting = Arc::new(Mutex::new(Burst::default()));
        let burst = waiting.clone();
        let handler = move |event: notify::Result<notify::Event>| {
            let mut burst = burst.lock();
            match event {
                Ok(event) if event.need_rescan() => burst.rescan = true,
                Ok(event) => {
                    let Some(touch) = touch_of(&event.kind) else { return };
                    event.paths.into_iter().for_each(|path| burst.add(path, touch, room));
                }
                Err(error) => {
                    tracing::warn!(%error, "the file watcher has lost events");
                    burst.rescan = true;
                }
            }
            // The caller may be busy, and one entry is enough.
            let _ = sender.try_send(());
        };
        let config = Config::default().with_follow_symlinks(false);
        let watcher = RecommendedWatcher::new(handler, config).map_err(|error| watch_error(path, &error))?;
        Ok(Self { watcher, waiting, signals })
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

    /// A channel that contains an entry if something has happened, for `select!`.
    pub(crate) fn signals(&self) -> &Receiver<()> {
        &self.signals
    }

    /// Waits for a burst. Returns an empty one if nothing happens until `until`.
    pub(crate) fn burst(&self, stop: &Stop, until: Instant) -> Result<Burst, Stopped> {
        let mut dead = crossbeam_channel::select! {
            recv(self.signals) -> signal => signal.is_err(),
            recv(stop.receiver()) -> _ => return Err(Stopped),
            default(until.saturating_duration_since(Instant::now())) => return Ok(Burst::default()),
        };
        let end = Instant::now() + LONGEST_BURST;
        while !dead && Instant::now() < end {
            let wait = QUIET.min(end.saturating_duration_since(Instant::now()));
            match self.signals.recv_timeout(wait) {
                Ok(()) => {}
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => dead = true,
            }
        }
        if stop.is_set() { Err(Stopped) } else { Ok(Burst { dead, ..self.take() }) }
    }

    /// What has happened since the last call.
    fn take(&self) -> Burst {
        let mut waiting = self.waiting.lock();
        self.signals.try_iter().for_each(drop);
        std::mem::take(&mut *waiting)
    }
}

impl Burst {
    fn add(&mut self, path: PathBuf, touch: Touch, room: usize) {
        if self.touched.len() < room || self.touched.contains_key(&path) {
            self.touched.insert(path, touch);
        } else {
            self.rescan = true;
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
            "the system's limit of watches has been reached (fs.inotify.max_user_watches)".to_owned()
        }
        // The system has one error for two limits. Whether another file can be opened tells them apart.
        notify::ErrorKind::Io(ref error) if error.raw_os_error() == Some(libc::EMFILE) => match File::open(path) {
            Ok(_) => "the system's limit of watchers has been reached (fs.inotify.max_user_instances)".to_owned(),
            Err(_) => "this process has too many open files (ulimit -n)".to_owned(),
        },
        _ => error.to_string(),
    };
    ConnectorError::Watch { path: path.display().to_string(), reason }
}

/// Identifies a file, independent of its name; `None` if nothing exists there.
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

    /// When the file was modified, as far as the file system tells.
    pub(crate) fn modified(&self) -> Option<std::time::SystemTime> {
        self.modified
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

    /// The caller is busy, and the system keeps reporting.
    #[test]
    fn paths_that_find_no_room_lead_to_a_look_at_everything() {
        let directory = tempfile::tempdir().unwrap();
        let mut watch = Watch::with_room(directory.path(), 4).unwrap();
        watch.add(directory.path()).unwrap();
        let (_handle, stop) = Stop::new();
        for number in 0..1000 {
            fs::write(directory.path().join((number % 100).to_string()), "x").unwrap();
        }
        let far = || Instant::now() + Duration::from_secs(60);
        let end = far();
        while !watch.waiting.lock().rescan && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!((watch.signals().len(), watch.waiting.lock().touched.len()), (1, 4));
        assert!(watch.burst(&stop, far()).unwrap().rescan);
        // Nothing is lost once the queue has room again.
        while watch.burst(&stop, Instant::now() + Duration::from_millis(200)).unwrap() != Burst::default() {}
        let file = directory.path().join("0");
        fs::remove_file(&file).unwrap();
        let burst = watch.burst(&stop, far()).unwrap();
        assert!(burst.touched.contains_key(&file) && !burst.rescan, "{burst:?}");
    }

    #[test]
    fn what_is_not_there_cannot_be_watched() {
        let directory = tempfile::tempdir().unwrap();
        let mut watch = Watch::new(directory.path()).unwrap();
        let error = watch.add(&directory.path().join("missing")).unwrap_err();
        assert!(error.to_string().starts_with("cannot watch"), "{error}");
    }
}
