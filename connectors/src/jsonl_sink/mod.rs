//! `JsonLinesSink`: writes answers to a file, one JSON object on each line.
//!
//! ```ron
//! JsonLinesSink(input: "final", path: "answers.jsonl", append: true)
//! ```
//!
//! Each line is passed to the operating system in one write. If that fails halfway (a full disk), the file is truncated
//! to its former length, so a retry leaves no torn line. If a file ends with an unfinished line, the next answer starts
//! on a new line.
//!
//! If the file is renamed or deleted (log rotation), the next answer goes to a new file at the path. After a restart,
//! answers that are already written are found by their keys and not written again, also those in files that were
//! renamed or copied in the meantime, as long as these are still in the directory. This holds too if the sink has
//! another path by now, unless another sink has the old one. If it is unknown which file was
//! written last, all files that carry the path's name are read (`answers.jsonl.1`, `answers.jsonl-20260102.gz`,
//! `answers.1.jsonl`). Otherwise only those are read that were written since: a log may begin with the same record every
//! day. An answer that a crash has cut off is removed and written again. With `append: false`, each run
//! starts with an empty file, and no answers are found; a reload that adds the sink continues the existing file.
//!
//! In a live pipeline, `mode: Once` passes only first answers to the sink; `mode: Live` also passes revisions, even if
//! the pipeline's mode does not.
//!
//! ```
//! # use turnflow_connectors::jsonl_sink::JsonLinesSinkConfig;
//! # let ron = r#"
//! (input: "answer", path: "answers.jsonl", append: true)
//! # "#;
//! # let config: JsonLinesSinkConfig = turnflow_engine::spec::from_str(ron).unwrap();
//! # assert_eq!(config.input, "answer");
//! ```

mod recover;
#[cfg(test)]
mod tests;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use serde::Deserialize;
use turnflow_engine::append::{Lines, sync_directory};
use turnflow_engine::claims::real;
use turnflow_engine::component::{Building, Check, ComponentContext, SinkConfig, SinkKind, SinkMode, built};
use turnflow_engine::connector::{
    AnswerSink, ConnectorError, Delivery, KeptAnswers, NoAnswers, Recovered, Search, SinkPosition, Syncing,
};
use turnflow_engine::record::AnswerRecord;
use turnflow_engine::spec::{FilePath, from_tree};

use self::recover::{Found, Torn, unpacked};
use crate::jsonl_corpus::directory_of;
use crate::known_file::{FileMark, HEAD_BYTES, MarkedFile, Older, find, head_of, is_same, open_rotated};
use crate::watch::{identity, identity_of};

/// Fields of the node.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JsonLinesSinkConfig {
    /// Node whose answers are written.
    pub input: String,
    /// Path of the file, relative to the pipeline file. The file and its directory are created if necessary.
    pub path: FilePath,
    /// Whether a run continues an existing file (true) or empties it (false). Default: true.
    #[serde(default = "yes")]
    pub append: bool,
    /// Whether the sink receives revisions: `Live` (yes) or `Once` (no). Default: the pipeline's `mode`.
    #[serde(default)]
    pub mode: Option<SinkMode>,
}

fn yes() -> bool {
    true
}

impl JsonLinesSinkConfig {
    /// Opens the file. With `append: false` it is emptied when a run starts.
    pub fn sink(&self, base: &Path) -> Result<JsonLinesSink, ConnectorError> {
        let path = base.join(&self.path.path);
        let output = Output::open(&path)?;
        Ok(JsonLinesSink { path, append: self.append, output })
    }
}

/// Entry in the connector table.
pub const KIND: SinkKind = SinkKind {
    name: "JsonLinesSink",
    summary: "one line an answer, in a file",
    parse: |tree, sources| Ok(Box::new(from_tree::<JsonLinesSinkConfig>(tree, sources)?)),
};

impl SinkConfig for JsonLinesSinkConfig {
    fn validate(&self, check: &mut Check<'_>) {
        if self.path.path.is_dir() {
            check.error("no-such-path", "path", format!("`{}` is a directory, not a file", self.path.written));
        }
    }

    fn file(&self) -> Option<&Path> {
        Some(&self.path.path)
    }

    fn explain(&self) -> String {
        let mode = self.mode.map(|mode| format!(", mode: {mode:?}")).unwrap_or_default();
        format!("path: {:?}, append: {}{mode}", self.path.written, self.append)
    }

    fn mode(&self) -> Option<SinkMode> {
        self.mode
    }

    fn build(&self, _: &ComponentContext) -> Building<'_, dyn AnswerSink> {
        built(self.sink(Path::new("")).map(|sink| Box::new(sink) as Box<dyn AnswerSink>))
    }
}

fn fault(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ConnectorError {
    let path = path.display().to_string();
    move |source| ConnectorError::Io { action, path, source }
}

/// The file that is being written.
struct Output {
    lines: Lines<File>,
    /// The file's own absolute path, without links.
    real: PathBuf,
    identity: (u64, u64),
    /// Whether it is a regular file, which keeps its content, and not a pipe or a device.
    is_file: bool,
    /// Whether the file's name may not be on the disk yet, whoever has created the file.
    is_new: Arc<AtomicBool>,
    /// A read handle for the same file, if it may be read.
    reader: Option<File>,
    /// The files that were rotated before this one was marked first.
    older: OnceLock<Older>,
    /// The file's mark, once all bytes that the mark covers are written.
    log: OnceLock<Arc<str>>,
    /// The file's length when it was last looked at, in bytes.
    length_seen: u64,
}

impl Output {
    fn open(path: &Path) -> Result<Self, ConnectorError> {
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
            length_seen: metadata.len(),
        })
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.lines.target.metadata()?.len())
    }

    fn unsynced(&self) -> io::Result<Unsynced> {
        Ok(Unsynced { file: self.lines.target.try_clone()?, is_new: self.is_new.clone() })
    }

    /// The mark up to `length`, if the file can be read.
    fn log(&self, length: u64) -> Option<Arc<str>> {
        if let Some(log) = self.log.get() {
            return Some(log.clone());
        }
        let head = head_of(self.reader.as_ref()?, length).ok()?;
        let mut mark = FileMark::new(&self.real.display().to_string(), self.identity, &head, length);
        mark.older = self.older.get_or_init(|| Older::of(&self.real, self.identity)).clone();
        let log = mark.to_log();
        if head.len() == HEAD_BYTES {
            let _ = self.log.set(log.clone());
        }
        Some(log)
    }
}

/// A file with lines that may not be on the disk yet.
struct Unsynced {
    file: File,
    is_new: Arc<AtomicBool>,
}

impl Unsynced {
    /// Returns once the lines are on the disk.
    fn sync(&self, path: &Path) -> Result<(), ConnectorError> {
        self.file.sync_data().map_err(fault("write to the disk what was appended to", path))?;
        if self.is_new.load(Ordering::Acquire) {
            let directory = directory_of(path);
            sync_directory(directory).map_err(fault("write to the disk", directory))?;
            self.is_new.store(false, Ordering::Release);
        }
        Ok(())
    }
}

/// Removes the start of an answer that a power loss has left at the end of a rotated file. Leaves the file alone if it is
/// not the one with this identity and length any more: it may have been rotated again meanwhile.
fn cut(path: &Path, identity: (u64, u64), torn: &Torn) {
    let shorten = |file: File| {
        let metadata = file.metadata()?;
        if identity_of(&metadata) != identity || metadata.len() != torn.start + torn.length {
            return Err(io::Error::other("it has been renamed or changed meanwhile"));
        }
        file.set_len(torn.start).and_then(|()| file.sync_data())
    };
    match OpenOptions::new().write(true).open(path).and_then(shorten) {
        Ok(()) => tracing::warn!(file = %path.display(), "an answer that was not written to its end is taken away"),
        Err(error) => tracing::warn!(%error, file = %path.display(), "an answer that was not written to its end stays"),
    }
}

fn last_byte(mut file: &File) -> io::Result<u8> {
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last[0])
}

/// Writes answers to a file.
pub struct JsonLinesSink {
    path: PathBuf,
    append: bool,
    output: Output,
}

impl JsonLinesSink {
    /// Switches to the file that is at the path now, if the open one was renamed or deleted. One that was copied and
    /// truncated counts as a new one.
    fn follow(&mut self) -> Result<(), ConnectorError> {
        if !self.output.is_file {
            return Ok(());
        }
        let there = fs::metadata(&self.path).ok().filter(|there| identity_of(there) == self.output.identity);
        let what = match there.map(|there| there.len()) {
            Some(length) if length >= self.output.length_seen => {
                self.output.length_seen = length;
                return Ok(());
            }
            Some(_) => "the file was truncated; continuing in it",
            None => "the file was renamed or deleted; continuing in a new one",
        };
        // Earlier answers must reach the disk before later ones. Otherwise a power loss could remove only the older of
        // two answers.
        self.output.unsynced().map_err(fault("keep open", &self.path))?.sync(&self.path)?;
        // The new file is not emptied, whoever has created it.
        self.output = Output::open(&self.path)?;
        tracing::info!(file = %self.path.display(), "{what}");
        Ok(())
    }

    fn append(&mut self, answer: &AnswerRecord) -> Result<(), ConnectorError> {
        self.follow()?;
        let line = serde_json::to_vec(answer).map_err(io::Error::from);
        line.and_then(|line| self.output.lines.append(line)).map_err(fault("append to", &self.path))?;
        // The answer is written, whatever happens here. A file that was truncated meanwhile is shorter.
        self.output.length_seen = self.output.length().unwrap_or_default().max(self.output.length_seen);
        Ok(())
    }

    /// Collects the answers after a position in a file that this sink had before a reload, or an edit of its path, gave it
    /// another one. Returns whether the file still has its contents.
    fn scan_former(&self, found: &mut Found, at: &SinkPosition, others: &[PathBuf]) -> Result<bool, ConnectorError> {
        let Some(path) = FileMark::path_of(&at.log) else { return Ok(false) };
        // A position without a mark is the beginning.
        let mark = FileMark::parse(&at.log, at.length);
        let standing = mark.as_ref().map(|mark| find(&path, mark, at.length));
        let is_found = !matches!(standing, None | Some(MarkedFile::Gone));
        let is_own = is_same(&path, &self.path);
        if !is_own && others.iter().any(|other| is_same(other, &path)) {
            tracing::warn!(file = %path.display(), "another sink writes this sink's former file now: if it contains \
                 answers that no checkpoint covers, these are written a second time");
            return Ok(is_found);
        }
        let mut is_there = is_found;
        let (file, from, but) = match standing {
            Some(MarkedFile::Here(_)) if at.length > 0 => (former_file(&path)?, at.length, None),
            Some(MarkedFile::Away(file, away)) => {
                let identity = identity_of(&file.metadata().map_err(fault("read", &away))?);
                sync(&file, &away)?;
                scan_one(&away, file, at.length, found)?;
                (former_file(&path)?, 0, Some(identity))
            }
            Some(MarkedFile::Here(_) | MarkedFile::Gone) | None => (former_file(&path)?, 0, None),
        };
        if from == 0 {
            // A position at the beginning stands for the whole file and those before it.
            let marked = mark.as_ref().filter(|_| at.length > 0);
            let marked = marked.map(|mark| Marked { mark, length: at.length, is_found });
            match scan_rotated(&path, found, but, others, marked) {
                Err(ConnectorError::Io { source, .. }) if is_gone(&source) => {
                    tracing::warn!(file = %path.display(), "the directory of this sink's former file is gone");
                    return Ok(is_found);
                }
                scanned => is_there |= scanned?,
            }
        }
        let Some(file) = file else { return Ok(is_there) };
        sync(&file, &path)?;
        let scanned = identity_of(&file.metadata().map_err(fault("read", &path))?);
        let torn = found.scan(file, from).map_err(fault("read", &path))?;
        if let Some(torn) = torn.filter(|torn| !is_own && torn.is_ours && !torn.is_whole) {
            cut(&path, scanned, &torn);
        }
        Ok(is_there)
    }
}

/// Opens a former file. `None` if it is gone, or if something else is at its path now.
fn former_file(path: &Path) -> Result<Option<File>, ConnectorError> {
    // Opening a pipe would wait for its writer, so the metadata is checked first.
    let file = match fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => File::open(path),
        Ok(_) => {
            tracing::warn!(file = %path.display(), "this sink's former file is not a file any more");
            return Ok(None);
        }
        Err(error) => Err(error),
    };
    match file {
        Err(error) if is_gone(&error) => Ok(None),
        file => file.map(Some).map_err(fault("read", path)),
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// The file that was written last, as a checkpoint names it.
#[derive(Clone, Copy)]
struct Marked<'a> {
    mark: &'a FileMark,
    /// Bytes up to which all its answers are known.
    length: u64,
    /// Whether it was found.
    is_found: bool,
}

/// Collects the answers in the files rotated from `path`, except in the file `but`, which was already read. It does not
/// matter which of them came after the mark, because an answer that is found twice is the same answer. Files that were
/// complete before the marked one are left out if that exists: a later record may have the key of an answer in them.
/// Returns whether the marked file exists: it may be one of these, compressed.
fn scan_rotated(
    path: &Path,
    found: &mut Found,
    but: Option<(u64, u64)>,
    others: &[PathBuf],
    marked: Option<Marked<'_>>,
) -> Result<bool, ConnectorError> {
    let mut is_found = marked.is_some_and(|marked| marked.is_found);
    let is_older = |file: &File| marked.is_some_and(|marked| marked.mark.older.has(file));
    let (mut older, mut copies) = (Vec::new(), Vec::new());
    let files = open_rotated(path, others, but).map_err(fault("read the files rotated from", path))?;
    for (sibling, file) in files {
        if is_older(&file) {
            older.push((sibling, file));
            continue;
        }
        sync(&file, &sibling)?;
        let Some(file) = unpacked(file).map_err(fault("read", &sibling))? else {
            tracing::warn!(file = %sibling.display(),
                    "this file has an unsupported compression format: if it contains answers, these may be \
                     written a second time");
            continue;
        };
        if is_older(&file) {
            older.push((sibling, file));
        } else if marked.is_some_and(|marked| !is_found && marked.mark.is_of(&file, marked.length)) {
            copies.push((sibling, file));
        } else {
            scan_one(&sibling, file, 0, found)?;
        }
    }
    // Of several copies, it is unknown which one the mark is of.
    let from = marked.filter(|_| copies.len() == 1).map_or(0, |marked| marked.length);
    is_found |= !copies.is_empty();
    for (sibling, file) in copies {
        scan_one(&sibling, file, from, found)?;
    }
    for (sibling, file) in if is_found { Vec::new() } else { older } {
        if let Some(file) = unpacked(file).map_err(fault("read", &sibling))? {
            scan_one(&sibling, file, 0, found)?;
        }
    }
    Ok(is_found)
}

/// Collects the answers in a rotated file after byte `from`.
fn scan_one(path: &Path, file: File, from: u64, found: &mut Found) -> Result<(), ConnectorError> {
    // An unpacked copy is another file than the one at the path.
    let scanned = identity_of(&file.metadata().map_err(fault("read", path))?);
    let torn = found.scan(file, from).map_err(fault("read", path))?;
    if let Some(torn) = torn.filter(|torn| identity(path) == Some(scanned) && torn.is_ours && !torn.is_whole) {
        cut(path, scanned, &torn);
    }
    Ok(())
}

/// Returns once the file's content is on the disk. The answers that are found in it count as written from now on.
fn sync(file: &File, path: &Path) -> Result<(), ConnectorError> {
    file.sync_data().map_err(fault("write to the disk", path))
}

impl AnswerSink for JsonLinesSink {
    fn begin(&mut self) -> Result<(), ConnectorError> {
        if self.append || !self.output.is_file {
            return Ok(());
        }
        self.output.lines.target.set_len(0).map_err(fault("empty", &self.path))?;
        self.output = Output::open(&self.path)?;
        self.output.is_new.store(true, Ordering::Release);
        Ok(())
    }

    fn deliver<'a>(&'a mut self, delivery: Delivery<'a>) -> BoxFuture<'a, Result<(), ConnectorError>> {
        ready(delivery.answers().iter().try_for_each(|answer| {
            self.append(answer)?;
            delivery.took(1);
            Ok(())
        }))
        .boxed()
    }

    fn kept(&mut self) -> Option<&mut dyn KeptAnswers> {
        if self.output.is_file { Some(self) } else { None }
    }
}

impl KeptAnswers for JsonLinesSink {
    fn mark(&self) -> SinkPosition {
        // If the file cannot be inspected, the mark matches no file after a restart, which is safe.
        let length = self.output.length().unwrap_or_default();
        SinkPosition { log: self.output.log(length).unwrap_or_default(), length }
    }

    fn syncing(&mut self) -> Syncing {
        let (path, file) = (self.path.clone(), self.output.unsynced());
        Box::new(move || file.map_err(fault("keep open", &path))?.sync(&path))
    }

    fn recover(&mut self, search: Search<'_>) -> Result<Recovered, ConnectorError> {
        let Search { since, former, others, others_had } = search;
        if !self.append || !self.output.is_file {
            return Ok(Recovered { is_there: false, answers: Box::new(NoAnswers) });
        }
        let mut found = Found::default();
        self.follow()?;
        for position in former {
            self.scan_former(&mut found, position, others)?;
        }
        // A file that another sink had may carry a name like a rotation's.
        let is_own = |path: &PathBuf| {
            let is_former = |of: &SinkPosition| FileMark::path_of(&of.log).is_some_and(|of| is_same(&of, path));
            is_same(path, &self.path) || former.iter().any(is_former)
        };
        let had = others_had.iter().filter_map(|position| FileMark::path_of(&position.log));
        let others: Vec<PathBuf> = others.iter().cloned().chain(had.filter(|path| !is_own(path))).collect();
        let others = &others[..];
        let mark = since.and_then(|since| Some((FileMark::parse(&since.log, since.length)?, since.length)));
        let marked = |is_found| mark.as_ref().map(|(mark, length)| Marked { mark, length: *length, is_found });
        let standing = mark.as_ref().map(|(mark, length)| (find(&self.path, mark, *length), *length));
        // The sink's path was another one, and the file has not come to the present one.
        let is_here = matches!(standing, Some((MarkedFile::Here(_), _)));
        let had_another =
            |since: &&SinkPosition| FileMark::path_of(&since.log).is_some_and(|path| !is_same(&path, &self.path));
        let is_elsewhere = match since.filter(had_another) {
            Some(since) if !is_here => self.scan_former(&mut found, since, others)?,
            _ => false,
        };
        let (is_there, from) = match standing {
            _ if is_elsewhere => (scan_rotated(&self.path, &mut found, None, others, marked(true))?, 0),
            // An empty file can only be identified by its inode, which may belong to another file by now.
            Some((MarkedFile::Here(_), 0)) => {
                scan_rotated(&self.path, &mut found, None, others, marked(true))?;
                (true, 0)
            }
            Some((MarkedFile::Here(_), length)) => (true, length),
            // The rest of the old file, under its new name, and all files that came after it.
            Some((MarkedFile::Away(file, path), length)) => {
                let identity = identity_of(&file.metadata().map_err(fault("read", &path))?);
                sync(&file, &path)?;
                scan_one(&path, file, length, &mut found)?;
                scan_rotated(&self.path, &mut found, Some(identity), others, marked(true))?;
                (true, 0)
            }
            // It had no answers that could be lost.
            Some((MarkedFile::Gone, 0)) => {
                scan_rotated(&self.path, &mut found, None, others, marked(true))?;
                (true, 0)
            }
            Some((MarkedFile::Gone, _)) | None => {
                let is_there = scan_rotated(&self.path, &mut found, None, others, marked(false))?;
                (is_there || since.is_none(), 0)
            }
        };
        // Uses the open handle, because the file may have been rotated since it was opened.
        let reader = self.output.reader.as_ref().map(File::try_clone);
        let file = reader.unwrap_or_else(|| File::open(&self.path)).map_err(fault("read", &self.path))?;
        let torn = found.scan(file, from).map_err(fault("read", &self.path))?;
        if let Some(torn) = torn {
            self.output.lines.torn = true;
            if torn.is_whole {
                // Only the newline is missing.
                self.output.lines.finish().map_err(fault("append to", &self.path))?;
            } else if torn.is_ours {
                tracing::warn!(
                    file = %self.path.display(), bytes = torn.length,
                    "removing the start of an answer that was not completely written"
                );
                self.output.lines.cut(torn.start).map_err(fault("cut", &self.path))?;
                self.output.length_seen = torn.start;
                // The truncation must reach the disk before anything is appended. Otherwise a power loss could restore
                // the removed part.
                self.output.lines.target.sync_data().map_err(fault("write to the disk", &self.path))?;
            }
        }
        Ok(Recovered { is_there, answers: Box::new(found) })
    }
}
