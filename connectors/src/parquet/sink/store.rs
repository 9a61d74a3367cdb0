//! The directory of a sink: the open file of JSON Lines, and the closed Parquet files.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};
use turnflow_engine::append::{Lines, replace, sync_directory};
use turnflow_engine::claims::real;
use turnflow_engine::connector::{ConnectorError, SinkPosition};
use turnflow_engine::record::AnswerRecord;

use super::rows;
use crate::open_once::{OpenOnce, Opened, Place};

/// The file that says which directory it is.
pub(super) const ABOUT: &str = "_answers.json";
/// The pause before a file that could not be closed is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// The directories that this process has open.
static OPEN: OpenOnce<Store> = OpenOnce::new();

/// Opens a directory, or shares the open one.
pub(super) fn open(directory: &Path) -> Result<Arc<Opened<Store>>, ConnectorError> {
    fs::create_dir_all(directory).map_err(fault("create", directory))?;
    OPEN.open(Place::File(real(directory)), |_| Store::open(real(directory)))
}

fn fault(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ConnectorError {
    let path = path.display().to_string();
    move |source| ConnectorError::Io { action, path, source }
}

/// When a file is closed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) answers: u64,
    pub(super) bytes: u64,
    pub(super) age: Duration,
}

/// What is stored about a directory.
#[derive(Serialize, Deserialize)]
struct About {
    id: String,
    /// The number of the first answer that may be in no closed file.
    next: u64,
}

/// A position as it is stored in checkpoints.
#[derive(Serialize, Deserialize)]
pub(super) struct Position {
    pub(super) directory: PathBuf,
    pub(super) id: String,
    /// Number of answers before it.
    #[serde(skip)]
    pub(super) answers: u64,
}

impl Position {
    pub(super) fn parse(position: &SinkPosition) -> Option<Self> {
        let parsed: Self = serde_json::from_str(&position.log).ok()?;
        Some(Self { answers: position.length, ..parsed })
    }
}

/// Whether the directory of a position is still at its path.
pub(super) fn is_at(position: &Position) -> bool {
    matches!(about(&position.directory), Ok(Some(about)) if about.id == position.id)
}

/// `None` if the directory is new.
fn about(directory: &Path) -> io::Result<Option<About>> {
    match fs::read(directory.join(ABOUT)) {
        // A claim creates an empty file.
        Ok(bytes) if bytes.is_empty() => Ok(None),
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The files with this beginning and this end of the name, and a number between them, by number.
fn numbered(directory: &Path, beginning: &str, end: &str) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let number = name.and_then(|name| name.strip_prefix(beginning)?.strip_suffix(end)?.parse().ok());
        files.extend(number.map(|number| (number, path.clone())));
    }
    files.sort_unstable();
    Ok(files)
}

/// The closed files of a directory, each with the number of its first answer.
pub(super) fn closed(directory: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    numbered(directory, "answers-", ".parquet")
}

/// The open file.
struct Open {
    first: u64,
    path: PathBuf,
    lines: Lines<File>,
    /// Size of the answers, in bytes.
    bytes: u64,
    since: Instant,
    /// When to close it.
    until: Instant,
    /// Whether its name may not be on disk yet.
    is_new: Arc<AtomicBool>,
}

struct State {
    directory: PathBuf,
    id: Arc<str>,
    /// The number of the next answer.
    next: u64,
    open: Option<Open>,
    /// Whether the name of a closed file may not be on disk yet.
    is_unsynced: bool,
    is_ending: bool,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// The directory. Dropping it closes the open file.
pub(super) struct Store {
    directory: PathBuf,
    id: Arc<str>,
    log: Arc<str>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Store {
    fn open(directory: PathBuf) -> Result<Self, ConnectorError> {
        let failed = || fault("read", &directory);
        let known = about(&directory).map_err(fault("read", &directory.join(ABOUT)))?;
        let (id, mut next) = match known {
            Some(about) => (about.id, about.next.max(1)),
            None => (new_id(&directory), 1),
        };
        if let Some((first, path)) = closed(&directory).map_err(failed())?.pop() {
            next = next.max(first + rows::count(&path).map_err(fault("read", &path))?);
        }
        for (_, path) in numbered(&directory, "_answers-", ".parquet.new").map_err(failed())? {
            fs::remove_file(&path).map_err(fault("remove", &path))?;
        }
        let id: Arc<str> = id.into();
        let mut state = State {
            directory: directory.clone(),
            id: id.clone(),
            next,
            open: None,
            is_unsynced: false,
            is_ending: false,
        };
        for (first, path) in numbered(&directory, "_open-", ".jsonl").map_err(failed())? {
            match first < next {
                // It was closed, and only its removal is missing.
                true => fs::remove_file(&path).map_err(fault("remove", &path))?,
                false => state.close_file(first, &path)?,
            }
        }
        state.write_about()?;
        let log = serde_json::json!({"directory": directory, "id": &*id}).to_string().into();
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let of_thread = shared.clone();
        let thread = std::thread::Builder::new()
            .name("parquet".to_owned())
            .spawn(move || of_thread.close_in_time())
            .map_err(fault("start a thread for", &directory))?;
        Ok(Self { directory, id, log, shared, thread: Some(thread) })
    }

    pub(super) fn id(&self) -> &Arc<str> {
        &self.id
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The position after the last answer.
    pub(super) fn mark(&self) -> SinkPosition {
        SinkPosition { log: self.log.clone(), length: self.shared.state.lock().next - 1, content: None }
    }

    /// Writes an answer to the open file.
    ///
    /// # Errors
    ///
    /// The answer cannot be written, or the full file before it cannot be closed.
    pub(super) fn append(&self, answer: &AnswerRecord, limits: &Limits) -> Result<(), ConnectorError> {
        let line = serde_json::to_vec(answer);
        let line = line.map_err(|error| ConnectorError::Refused { reason: error.to_string() })?;
        let mut state = self.shared.state.lock();
        if state.is_full(limits) {
            state.close()?;
        }
        let next = state.next;
        let open = match &mut state.open {
            Some(open) => open,
            none => {
                let open = Open::create(&self.directory, next, limits.age)
                    .map_err(fault("create a file in", &self.directory))?;
                self.shared.changed.notify_all();
                none.insert(open)
            }
        };
        open.cut_torn().map_err(fault("cut", &open.path))?;
        // Another sink of a reload may have opened it, with a longer age.
        let until = open.since + limits.age;
        if until < open.until {
            open.until = until;
            self.shared.changed.notify_all();
        }
        let bytes = line.len() as u64 + 1;
        open.lines.append(line).map_err(fault("append to", &open.path))?;
        open.bytes += bytes;
        state.next += 1;
        if state.is_full(limits)
            && let Err(error) = state.close()
        {
            tracing::warn!(%error, "cannot close a file of answers; trying again before the next answer");
        }
        Ok(())
    }

    /// Closes the open file, if there is one.
    ///
    /// # Errors
    ///
    /// It cannot be closed.
    pub(super) fn close(&self) -> Result<(), ConnectorError> {
        self.shared.state.lock().close()
    }

    /// Returns when all answers are on disk.
    ///
    /// # Errors
    ///
    /// They cannot be written to the disk.
    pub(super) fn sync(&self) -> Result<(), ConnectorError> {
        let mut state = self.shared.state.lock();
        if state.is_unsynced {
            state.sync_names()?;
        }
        let Some(open) = &state.open else { return Ok(()) };
        let (path, file, is_new) = (open.path.clone(), open.lines.target.try_clone(), open.is_new.clone());
        drop(state);
        file.map_err(fault("keep open", &path))?
            .sync_data()
            .map_err(fault("write to the disk what was appended to", &path))?;
        if is_new.load(Ordering::Acquire) {
            sync_directory(&self.directory).map_err(fault("write to the disk", &self.directory))?;
            is_new.store(false, Ordering::Release);
        }
        Ok(())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let closed = {
            let mut state = self.shared.state.lock();
            state.is_ending = true;
            state.close()
        };
        self.shared.changed.notify_all();
        if let Err(error) = closed {
            tracing::warn!(%error, "cannot close the last file of answers; the next run closes it");
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn new_id(directory: &Path) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
    let of = format!("{} {now} {}", directory.display(), std::process::id());
    blake3::hash(of.as_bytes()).to_hex()[..32].to_owned()
}

impl Shared {
    /// Closes the open file when it is old enough, until the store is dropped.
    fn close_in_time(&self) {
        let mut state = self.state.lock();
        while !state.is_ending {
            match state.open.as_ref().map(|open| open.until) {
                None => self.changed.wait(&mut state),
                Some(until) if Instant::now() < until => drop(self.changed.wait_until(&mut state, until)),
                Some(_) => {
                    if let Err(error) = state.close() {
                        tracing::warn!(%error, "cannot close a file of answers; trying again");
                        state.open.iter_mut().for_each(|open| open.until = Instant::now() + RETRY);
                    }
                }
            }
        }
    }
}

impl Open {
    fn create(directory: &Path, first: u64, age: Duration) -> io::Result<Self> {
        let path = directory.join(format!("_open-{first:012}.jsonl"));
        let file = OpenOptions::new().append(true).create(true).open(&path)?;
        // Of a file that an attempt before has left.
        file.set_len(0)?;
        let since = Instant::now();
        Ok(Self {
            first,
            path,
            lines: Lines { target: file, torn: false },
            bytes: 0,
            since,
            until: since + age,
            is_new: Arc::new(AtomicBool::new(true)),
        })
    }

    /// Removes the part of an answer that could not be written as a whole.
    fn cut_torn(&mut self) -> io::Result<()> {
        if self.lines.torn { self.lines.cut(self.bytes) } else { Ok(()) }
    }
}

impl State {
    fn is_full(&self, limits: &Limits) -> bool {
        let is_full = |open: &Open| self.next - open.first >= limits.answers || open.bytes >= limits.bytes;
        self.open.as_ref().is_some_and(is_full)
    }

    fn close(&mut self) -> Result<(), ConnectorError> {
        let Some(open) = &mut self.open else { return Ok(()) };
        open.cut_torn().map_err(fault("cut", &open.path))?;
        let (first, path) = (open.first, open.path.clone());
        self.close_file(first, &path)?;
        self.open = None;
        Ok(())
    }

    fn sync_names(&mut self) -> Result<(), ConnectorError> {
        sync_directory(&self.directory).map_err(fault("write to the disk", &self.directory))?;
        self.is_unsynced = false;
        Ok(())
    }

    /// Writes the Parquet file of a file of JSON Lines, and removes that. A crash at any point leaves the answers in one
    /// of them.
    fn close_file(&mut self, first: u64, staged: &Path) -> Result<(), ConnectorError> {
        let name = format!("answers-{first:012}.parquet");
        let (beside, path) = (self.directory.join(format!("_{name}.new")), self.directory.join(name));
        let rows = rows::write(staged, &beside).map_err(fault("write", &beside))?;
        match rows {
            0 => fs::remove_file(&beside).map_err(fault("remove", &beside))?,
            _ => fs::rename(&beside, &path).map_err(fault("write", &path))?,
        }
        // The file is closed now, whatever fails below: no answer may be added to the other one.
        self.next = self.next.max(first + rows);
        self.is_unsynced = true;
        let removed = self.sync_names().and_then(|()| self.write_about());
        if let Err(error) = removed.and_then(|()| fs::remove_file(staged).map_err(fault("remove", staged))) {
            tracing::warn!(%error, "cannot remove what a closed file of answers replaces; the next run does");
        }
        Ok(())
    }

    fn write_about(&self) -> Result<(), ConnectorError> {
        let about = About { id: self.id.to_string(), next: self.next };
        let path = self.directory.join(ABOUT);
        let bytes = serde_json::to_vec(&about).map_err(io::Error::from);
        bytes.and_then(|bytes| replace(&path, &bytes)).map_err(fault("write", &path))
    }
}
