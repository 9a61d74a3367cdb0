//! The file that a sink is writing, and its mark.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use turnflow_engine::append::{Lines, sync_directory};
use turnflow_engine::claims::real;
use turnflow_engine::connector::ConnectorError;

use super::fault;
use crate::jsonl_corpus::directory_of;
use crate::known_file::{Content, FileMark, HEAD_BYTES, Older, head_of};
use crate::watch::identity_of;

/// The file that is being written.
pub(super) struct Output {
    pub lines: Lines<File>,
    /// The file's own absolute path, without links.
    pub real: PathBuf,
    pub identity: (u64, u64),
    /// Whether it is a regular file, which keeps its content, and not a pipe or a device.
    pub is_file: bool,
    /// Whether the file's name may not be on disk yet, whoever created the file.
    pub is_new: Arc<AtomicBool>,
    /// A read handle for the same file, if it may be read.
    pub reader: Option<File>,
    /// The files that were rotated before this one was first marked.
    pub older: OnceLock<Older>,
    /// The file's mark, once all bytes that the mark covers are written.
    pub log: OnceLock<Arc<str>>,
    /// What the file has up to the last mark.
    content: Mutex<Content>,
    /// The file's length at the last check, in bytes.
    pub length_seen: u64,
}

impl Output {
    pub fn open(path: &Path) -> Result<Self, ConnectorError> {
        let directory = directory_of(path);
        fs::create_dir_all(directory).map_err(fault("create", directory))?;
        let file = OpenOptions::new().append(true).create(true).open(path).map_err(fault("open", path))?;
        let metadata = file.metadata().map_err(fault("open", path))?;
        let of_same = |reader: &File| reader.metadata().is_ok_and(|own| identity_of(&own) == identity_of(&metadata));
        let reader = if metadata.is_file() { File::open(path).ok().filter(of_same) } else { None };
        let torn = match &reader {
            Some(reader) if metadata.len() > 0 => last_byte(reader).map_err(fault("read", path))? != b'\n',
            _ => false,
        };
        Ok(Self {
            lines: Lines { target: file, torn },
            real: real(path),
            identity: identity_of(&metadata),
            is_file: metadata.is_file(),
            is_new: Arc::new(AtomicBool::new(true)),
            reader,
            older: OnceLock::new(),
            log: OnceLock::new(),
            content: Mutex::new(Content::new()),
            length_seen: metadata.len(),
        })
    }

    pub fn length(&self) -> io::Result<u64> {
        Ok(self.lines.target.metadata()?.len())
    }

    /// Removes the unfinished last line, which begins at `start`.
    pub fn cut(&mut self, start: u64) -> io::Result<()> {
        self.lines.cut(start)?;
        self.length_seen = start;
        // A mark from before may cover bytes that are gone now.
        self.log = OnceLock::new();
        self.content = Mutex::new(Content::new());
        Ok(())
    }

    pub fn unsynced(&self) -> io::Result<Unsynced> {
        Ok(Unsynced { file: self.lines.target.try_clone()?, is_new: self.is_new.clone() })
    }

    /// The mark up to `length`, if the file can be read.
    pub fn log(&self, length: u64) -> Option<Arc<str>> {
        if let Some(log) = self.log.get() {
            return Some(log.clone());
        }
        let reader = self.reader.as_ref()?;
        let (head, metadata) = (head_of(reader, length).ok()?, reader.metadata().ok()?);
        let mut mark = FileMark::new(&self.real.display().to_string(), &metadata, &head, length);
        mark.older = self.older.get_or_init(|| Older::of(&self.real, self.identity)).clone();
        let log = mark.to_log();
        if head.len() == HEAD_BYTES {
            let _ = self.log.set(log.clone());
        }
        Some(log)
    }

    /// A hash of what the file has up to `length`, if it can be read.
    pub fn content(&self, length: u64) -> Option<Arc<str>> {
        let mut content = self.content.lock();
        content.go_to(self.reader.as_ref()?, length).ok()?;
        Some(content.digest(length).told().into())
    }
}

/// A file with lines that may not be on disk yet.
pub(super) struct Unsynced {
    file: File,
    is_new: Arc<AtomicBool>,
}

impl Unsynced {
    /// Returns when the lines are on disk.
    pub fn sync(&self, path: &Path) -> Result<(), ConnectorError> {
        self.file.sync_data().map_err(fault("write to the disk what was appended to", path))?;
        if self.is_new.load(Ordering::Acquire) {
            let directory = directory_of(path);
            sync_directory(directory).map_err(fault("write to the disk", directory))?;
            self.is_new.store(false, Ordering::Release);
        }
        Ok(())
    }
}

fn last_byte(mut file: &File) -> io::Result<u8> {
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last[0])
}
