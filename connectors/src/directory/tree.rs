//! The known state of a directory's files, and how it is synchronised with the disk.

mod foreign;
mod open;
mod poll;
mod read;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::ops::Bound;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use turnflow_engine::connector::{CorpusOutput, Stop, Stopped};

use self::foreign::{Foreign, Found};
pub(super) use self::open::open_inside;
pub(super) use self::poll::Polls;
use super::Directory;
use crate::readers::jsonl::{Fields, Rows};
use crate::readers::{Format, ReadError};
use crate::watch::{Burst, FileStamp, Watch, identity};

/// What was last sent for a file.
enum Known {
    /// One document; the hash of the file's bytes, and when the file was modified, as it was sent.
    Document(blake3::Hash, Option<String>),
    /// Rows of a `.jsonl` file.
    Rows(Rows),
    /// A dead letter; the hash of its reason and the file's bytes.
    Broken(blake3::Hash),
}

/// The watched tree.
struct Watched {
    root: PathBuf,
    identity: Option<(u64, u64)>,
    watch: Watch,
}

/// The files of a directory. Paths are relative to it. A path sorts directly before everything below it.
pub(super) struct Tree<'a> {
    source: &'a Directory,
    output: &'a CorpusOutput,
    fields: Fields,
    watched: Option<Watched>,
    known: BTreeMap<PathBuf, Known>,
    /// The real path of the directory.
    real: PathBuf,
    /// Links to files, and files with several names, with the stamps of their targets.
    links: BTreeMap<PathBuf, Option<FileStamp>>,
    /// The stamps of all files, as they were before they were read.
    stamps: HashMap<PathBuf, Option<FileStamp>>,
    /// Paths to check again, after how long, and whether that is the last check of a file that seems unfinished.
    again: Vec<(PathBuf, Duration, bool)>,
    /// Paths that cannot be read at the moment.
    failing: BTreeSet<PathBuf>,
    /// Files that no reader knows.
    foreign: Foreign,
    /// Whether what cannot be read at the moment is read again later.
    waits: bool,
    /// Number of changes since the last commit.
    changes: usize,
}

impl<'a> Tree<'a> {
    pub(super) fn new(source: &'a Directory, output: &'a CorpusOutput) -> Self {
        Self {
            source,
            output,
            fields: Fields::default(),
            watched: None,
            known: BTreeMap::new(),
            real: source.root.clone(),
            links: BTreeMap::new(),
            stamps: HashMap::new(),
            again: Vec::new(),
            failing: BTreeSet::new(),
            foreign: Foreign::default(),
            waits: true,
            changes: 0,
        }
    }

    /// Starts watching: from now on, each directory is watched before it is read.
    pub(super) fn watch_with(&mut self, root: PathBuf, identity: Option<(u64, u64)>, watch: Watch) {
        self.real.clone_from(&root);
        self.watched = Some(Watched { root, identity, watch });
    }

    /// Names the real path of a directory that is not watched.
    pub(super) fn at(&mut self, real: PathBuf) {
        self.real = real;
    }

    pub(super) fn root(&self) -> &Path {
        self.watched.as_ref().map_or(&self.source.root, |watched| &watched.root)
    }

    /// Whether the path still leads to the watched directory.
    pub(super) fn root_stands(&self) -> bool {
        // A drive that does not respond proves nothing.
        let is_silent = || fs::metadata(&self.source.root).is_err_and(|error| may_pass(&error));
        self.watched.as_ref().is_some_and(|watched| identity(&self.source.root) == watched.identity || is_silent())
    }

    /// Waits for a burst of events; `None` if nothing is watched.
    pub(super) fn burst(&self, stop: &Stop, until: Instant) -> Result<Option<Burst>, Stopped> {
        self.watched.as_ref().map(|watched| watched.watch.burst(stop, until)).transpose()
    }

    /// The path relative to the root; `None` if this source ignores it.
    pub(super) fn relative(&self, path: &Path) -> Option<PathBuf> {
        let path = path.strip_prefix(self.root()).ok()?;
        (!path.components().any(|part| is_hidden(part.as_os_str()))).then(|| path.to_owned())
    }

    pub(super) fn is_empty(&self, path: &Path) -> bool {
        fs::symlink_metadata(self.root().join(path)).is_ok_and(|metadata| metadata.is_file() && metadata.len() == 0)
    }

    pub(super) fn take_again(&mut self) -> Vec<(PathBuf, Duration, bool)> {
        std::mem::take(&mut self.again)
    }

    /// Links whose targets have changed since they were read.
    pub(super) fn moved_links(&self) -> Vec<PathBuf> {
        let moved = self.links.iter().filter(|(path, stamp)| FileStamp::of(&self.root().join(path)) != **stamp);
        moved.map(|(path, _)| path.clone()).collect()
    }

    /// Commits the changes, even if there are none.
    pub(super) fn publish(&mut self) -> Result<(), Stopped> {
        self.changes = 0;
        self.output.commit().map(drop)
    }

    /// Commits the changes, if there are any.
    pub(super) fn commit(&mut self) -> Result<(), Stopped> {
        if self.changes > 0 { self.publish() } else { Ok(()) }
    }

    /// Compares what is at and below `path` with the known state. With `last`, files that look unfinished are read as
    /// they are.
    pub(super) fn look(&mut self, path: &Path, last: bool) -> Result<(), Stopped> {
        let place = self.root().join(path);
        // The root may be a link.
        let metadata = if path.as_os_str().is_empty() { fs::metadata(&place) } else { fs::symlink_metadata(&place) };
        match metadata {
            Ok(metadata) if metadata.is_dir() => {
                let (files, unread) = self.walk(path)?;
                self.forget_others(path, &files, &unread)?;
                for (file, is_link) in files {
                    self.look_at_file(&file, is_link, last)?;
                }
            }
            Ok(metadata) => {
                let gone: Vec<PathBuf> = self.below(path).filter(|known| *known != path).map(Path::to_owned).collect();
                for path in gone {
                    self.forget_one(&path)?;
                }
                self.look_at_file(path, metadata.is_symlink(), last)?;
            }
            Err(error) if self.passes(path, &error) => {}
            Err(error) => {
                self.forget(path)?;
                if !is_gone(&error) {
                    self.output.dead_letter(&shown(path), &ReadError::Io(error).to_string(), b"");
                }
            }
        }
        Ok(())
    }

    /// Deletes the known files below a directory that are not among those that were found there.
    fn forget_others(&mut self, top: &Path, files: &Files, unread: &[PathBuf]) -> Result<(), Stopped> {
        let gone: Vec<PathBuf> = self
            .below(top)
            .filter(|known| files.binary_search_by(|(file, _)| file.as_path().cmp(known)).is_err())
            .filter(|known| !unread.iter().any(|unread| known.starts_with(unread)))
            .map(Path::to_owned)
            .collect();
        gone.iter().try_for_each(|path| self.forget_one(path))
    }

    /// Deletes all known files at and below `path`. Returns their number.
    pub(super) fn forget(&mut self, path: &Path) -> Result<usize, Stopped> {
        self.failing.retain(|failing| !failing.starts_with(path));
        let gone: Vec<PathBuf> = self.below(path).map(Path::to_owned).collect();
        for path in &gone {
            self.forget_one(path)?;
        }
        Ok(gone.len())
    }

    /// All known files at and below `path`, links included.
    fn below<'b>(&'b self, path: &'b Path) -> impl Iterator<Item = &'b Path> {
        let from = (Bound::Included(path), Bound::Unbounded);
        let known = self.known.range::<Path, _>(from).map(|(known, _)| known.as_path());
        let links = self.links.range::<Path, _>(from).map(|(link, _)| link.as_path());
        known
            .take_while(move |known| known.starts_with(path))
            .chain(links.take_while(move |link| link.starts_with(path)))
    }

    fn forget_one(&mut self, path: &Path) -> Result<(), Stopped> {
        self.links.remove(path);
        self.stamps.remove(path);
        self.failing.remove(path);
        let shown_path = shown(path);
        self.output.settled(&shown_path);
        self.output.settled_rows(&shown_path, &[]);
        match self.known.remove(path) {
            Some(Known::Document(..)) => {
                self.changes += 1;
                self.output.change(shown_path, None)
            }
            Some(Known::Rows(mut rows)) => {
                self.changes += rows.withdraw(self.output)?;
                Ok(())
            }
            Some(Known::Broken(_)) | None => Ok(()),
        }
    }

    /// The files to read below a directory, sorted, and whether each is a link. Each directory is watched before it is
    /// read, so that no new file is missed. Also returns the directories that cannot be read at the moment.
    fn walk(&mut self, top: &Path) -> Result<(Files, Vec<PathBuf>), Stopped> {
        let mut unread = Vec::new();
        let mut files = Vec::new();
        let mut directories = vec![top.to_owned()];
        while let Some(directory) = directories.pop() {
            let place = self.root().join(&directory);
            if let Some(watched) = &mut self.watched
                && let Err(error) = watched.watch.add_below(&place)
                && place.is_dir()
            {
                self.output.dead_letter(&shown(&directory), &error.to_string(), b"");
            }
            let entries = match fs::read_dir(&place) {
                Ok(entries) => entries,
                Err(error) if self.passes(&directory, &error) => {
                    unread.push(directory);
                    continue;
                }
                Err(error) => {
                    if !is_gone(&error) {
                        self.output.dead_letter(&shown(&directory), &ReadError::Io(error).to_string(), b"");
                    }
                    continue;
                }
            };
            self.output.settled(&shown(&directory));
            let mut failed = None;
            for entry in entries {
                let entry = match entry {
                    Ok(entry) if is_hidden(&entry.file_name()) => continue,
                    Ok(entry) => entry,
                    Err(error) => {
                        failed = Some(error);
                        continue;
                    }
                };
                let path = directory.join(entry.file_name());
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() => directories.push(path),
                    Ok(kind) if self.wants(&path).is_some() => files.push((path, kind.is_symlink())),
                    Ok(kind) if kind.is_file() && self.source.pattern.matches(&path) => self.foreign.count(&path),
                    Ok(_) => {}
                    Err(error) => failed = Some(error),
                }
                if failed.as_ref().is_some_and(may_pass) {
                    break;
                }
            }
            match failed {
                Some(error) if self.passes(&directory, &error) => unread.push(directory),
                // An entry that cannot be read for another reason is being deleted.
                _ => drop(self.failing.remove(&directory)),
            }
            if self.output.stop().is_set() {
                return Err(Stopped);
            }
        }
        for (kind, Found { count, example }) in self.foreign.take() {
            tracing::warn!(directory = %self.root().display(), kind, files = count, example = %example.display(),
                "no reader knows this kind of file: such files are left out");
        }
        files.sort();
        Ok((files, unread))
    }

    /// Whether something cannot be read at the moment.
    pub(super) fn is_failing(&self) -> bool {
        !self.failing.is_empty()
    }

    /// Writes dead letters for paths that cannot be read at the moment. They are retried nevertheless.
    pub(super) fn tell_failing(&self) {
        for path in &self.failing {
            self.output.dead_letter(&shown(path), "cannot be read at the moment; will retry", b"");
        }
    }

    /// Whether the error may be temporary. If so, the path is checked again, and its known state is kept until then.
    fn passes(&mut self, path: &Path, error: &io::Error) -> bool {
        if !self.waits || !may_pass(error) {
            return false;
        }
        if self.failing.insert(path.to_owned()) {
            tracing::warn!(path = %self.root().join(path).display(), %error, "cannot be read; will retry");
        }
        // In a directory that is read once, nothing is waited for but the error.
        self.again.push((path.to_owned(), self.source.passing, self.watched.is_none()));
        true
    }

    /// Reads for the last time what cannot be read at the moment: what still cannot becomes a dead letter.
    pub(super) fn read_whatever_fails(&mut self) -> Result<(), Stopped> {
        self.waits = false;
        for (path, _, last) in self.take_again() {
            self.look(&path, last)?;
        }
        self.failing.clear();
        Ok(())
    }

    fn wants(&self, path: &Path) -> Option<Format> {
        let is_read = |format: &Format| crate::ocr::reads(self.source.reading.when, *format);
        Format::of(path).filter(is_read).filter(|_| self.source.pattern.matches(path))
    }
}

/// Files, and whether each is a link.
type Files = Vec<(PathBuf, bool)>;

/// Pause after an error that may be temporary.
pub(crate) const PASSING: Duration = Duration::from_secs(2);

/// Whether an error says nothing about the file: too many open files, or a disk or network that does not respond.
pub(crate) fn may_pass(error: &io::Error) -> bool {
    const CODES: &[i32] = &[
        libc::EMFILE,
        libc::ENFILE,
        libc::EIO,
        libc::ESTALE,
        libc::ENOMEM,
        libc::EAGAIN,
        libc::EINTR,
        libc::EBUSY,
        libc::ETIMEDOUT,
        libc::ENOTCONN,
        libc::EHOSTDOWN,
        libc::EHOSTUNREACH,
        libc::ENETDOWN,
        libc::ENETUNREACH,
        libc::ECONNABORTED,
        libc::ECONNRESET,
        libc::ENXIO,
        libc::ENODEV,
    ];
    error.raw_os_error().is_some_and(|code| CODES.contains(&code))
}

/// Whether the error says that nothing is there, rather than something unreadable.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

fn is_hidden(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}

/// A relative path as an id: with `/` on all operating systems.
fn shown(path: &Path) -> String {
    let parts = path.components().filter_map(|part| match part {
        Component::Normal(part) => Some(part.to_string_lossy()),
        _ => None,
    });
    let parts: Vec<_> = parts.collect();
    if parts.is_empty() { ".".to_owned() } else { parts.join("/") }
}
