//! `JsonLines`: a corpus of one file in BEIR's format, one document for each row.
//!
//! ```ron
//! JsonLines(path: "corpus.jsonl")
//! ```
//!
//! Editing, adding or removing a row changes only that document: when the file changes, the source reads it again and
//! compares rows by the hash of their content. The file's directory is watched, so the file may be rewritten in place,
//! replaced by renaming a new file over it, or deleted and recreated. A deleted file has no rows. The file is also
//! checked once a second without an event, for links and network file systems.
//!
//! Lines that are not valid rows become dead letters `file:line`, once each, and the other rows are kept. If several
//! rows have the same id, the first one counts. An unfinished last line means that the file is still being written:
//! rows that were not found are kept until the file changes again or has been unchanged for five seconds; for an
//! emptied file, one second. If a file exists but cannot be read, its rows are kept, and the error becomes a dead
//! letter; if the error may be temporary (too many open files, a drive that does not respond), the file is read again
//! after two seconds.
//!
//! ```
//! # use turnflow_connectors::jsonl_corpus::JsonLinesConfig;
//! # let ron = r#"
//! (path: "corpus.jsonl", watch: true)
//! # "#;
//! # let config: JsonLinesConfig = turnflow_engine::spec::from_str(ron).unwrap();
//! # assert_eq!(config.id, "_id");
//! ```

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read, Seek as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use turnflow_engine::component::{
    Building, Check, ComponentContext, CorpusSourceConfig, CorpusSourceKind, built, config,
};
use turnflow_engine::connector::{ConnectorError, CorpusOutput, CorpusSource, Mode, Stopped};
use turnflow_engine::spec::FilePath;

use crate::directory::{PASSING, PASSING_TRIES, may_pass};
use crate::mapped::{MapConfig, RowMap};
use crate::readers::jsonl::{Fields, Reading, Rows};
use crate::readers::{self, Format};
use crate::watch::{Burst, FileStamp, TICK, Touch, WRITING, Watch, identity};

/// How long to wait for the rest of an unfinished last line.
pub(crate) const TORN: Duration = Duration::from_secs(5);

/// Fields of `JsonLines`.
#[config]
pub struct JsonLinesConfig {
    /// Path of the file, relative to the pipeline file.
    pub path: FilePath,
    /// Whether to follow changes of the file.
    #[field(default = true)]
    pub watch: bool,
    /// Field that holds a row's id.
    #[field(default = Fields::default().id)]
    pub id: String,
    /// Field that holds a row's title; may be missing in a row.
    #[field(default = Fields::default().title)]
    pub title: String,
    /// Field that holds a row's text.
    #[field(default = Fields::default().text)]
    pub text: String,
    /// Maximum length of a line, in bytes. A longer line becomes a dead letter.
    #[field(default = 16 << 20, range = 1..)]
    pub max_line_bytes: usize,
    /// What makes documents of rows in another form: `Jq("PROGRAM")` or `JqFile("PATH")`. Default: rows are documents.
    pub map: Option<MapConfig>,
}

impl JsonLinesConfig {
    /// Builds the source. It accesses no file until it runs.
    pub fn source(&self, base: &Path) -> JsonLines {
        let path = base.join(&self.path.path);
        let map = self.map.as_ref().map(|map| RowMap::of(map, &path.display().to_string()));
        JsonLines {
            map: map.transpose(),
            path,
            watch: self.watch,
            fields: Fields { id: self.id.clone(), title: self.title.clone(), text: self.text.clone() },
            max_line_bytes: self.max_line_bytes,
            torn: TORN,
            format: Format::JsonLines,
        }
    }

    /// Reports a path that is not a file.
    pub(crate) fn check_path(&self, check: &mut Check<'_>) {
        check.exists("path", &self.path);
        if self.path.path.is_dir() {
            check.error("no-such-path", "path", format!("`{}` is a directory, not a file", self.path.written));
        }
    }
}

/// Entry in the connector table.
pub const KIND: CorpusSourceKind =
    CorpusSourceKind::of::<JsonLinesConfig>("JsonLines", "a file with one document for each row, watched for changes");

impl CorpusSourceConfig for JsonLinesConfig {
    fn validate(&self, check: &mut Check<'_>) {
        self.check_path(check);
        RowMap::validate(self.map.as_ref(), check);
    }

    fn explain(&self) -> String {
        let map = if self.map.is_some() { ", map" } else { "" };
        format!(
            "path: {:?}, watch: {}, id: {:?}, title: {:?}, text: {:?}{map}",
            self.path.written, self.watch, self.id, self.title, self.text
        )
    }

    fn reads(&self, file: &Path) -> bool {
        self.path.path.canonicalize().is_ok_and(|path| path == file)
    }

    fn build(&self, _: &ComponentContext) -> Building<'_, dyn CorpusSource> {
        built(Ok(Box::new(self.source(Path::new("")))))
    }
}

/// Reads a file of rows and follows its changes.
#[derive(Debug)]
pub struct JsonLines {
    path: PathBuf,
    watch: bool,
    fields: Fields,
    max_line_bytes: usize,
    torn: Duration,
    /// The format of the rows.
    format: Format,
    map: Result<Option<RowMap>, String>,
}

impl CorpusSource for JsonLines {
    fn run(self: Box<Self>, mode: Mode, output: CorpusOutput) -> Result<(), ConnectorError> {
        if let Err(reason) = &self.map {
            return Err(ConnectorError::Refused { reason: reason.clone() });
        }
        let metadata = fs::metadata(&self.path).map_err(|source| self.error(source))?;
        if metadata.is_dir() {
            return Err(self.error(io::ErrorKind::IsADirectory.into()));
        }
        let mut file = Followed::new(&self, &output);
        // Starts watching before reading, so that no change is missed in between.
        let mut watch = None;
        if self.watch && mode == Mode::Follow {
            let directory = directory_of(&self.path);
            watch = Some(Watched::new(directory)?);
        }
        let stream = File::open(&self.path).map_err(|source| self.error(source))?;
        file.waits = watch.is_none();
        file.read(stream, watch.is_none())?;
        if watch.is_none() {
            // Later, nothing reads the file again.
            for left in (0..PASSING_TRIES).rev() {
                if file.due.is_none() {
                    break;
                }
                if output.stop().wait(PASSING) {
                    return Err(Stopped.into());
                }
                file.waits = left > 0;
                file.look_again(true)?;
            }
        }
        output.commit()?;
        output.ready()?;
        let Some(mut watch) = watch else { return Ok(()) };
        loop {
            let until = file.due.unwrap_or_else(|| Instant::now() + TICK).min(Instant::now() + TICK);
            let burst = watch.watch.burst(output.stop(), until)?;
            let renewed = watch.renew(burst.dead);
            if burst.dead && !renewed && output.stop().wait(TICK) {
                return Err(Stopped.into());
            }
            let look = file.look(&burst) || renewed;
            if let Some(last) = look.then_some(false).or_else(|| file.is_due())
                && file.look_again(last)? > 0
            {
                output.commit()?;
            }
        }
    }
}

impl JsonLines {
    /// The same, for rows in another format.
    #[cfg(feature = "parquet")]
    pub(crate) fn of(self, format: Format) -> Self {
        Self { format, ..self }
    }

    fn error(&self, source: io::Error) -> ConnectorError {
        ConnectorError::Io { action: "read", path: self.path.display().to_string(), source }
    }
}

/// The parent directory of `path`.
pub(crate) fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// A watched directory. The watch is renewed if another directory takes its place.
struct Watched {
    directory: PathBuf,
    identity: Option<(u64, u64)>,
    watch: Watch,
}

impl Watched {
    fn new(directory: &Path) -> Result<Self, ConnectorError> {
        let mut watch = Watch::new(directory)?;
        let identity = identity(directory);
        watch.add(directory)?;
        Ok(Self { directory: directory.to_owned(), identity, watch })
    }

    /// Renews the watch if necessary. True if it was renewed, so that events may have been missed.
    fn renew(&mut self, dead: bool) -> bool {
        let now = identity(&self.directory);
        if !dead && (now.is_none() || now == self.identity) {
            return false;
        }
        match Self::new(&self.directory) {
            Ok(watched) => {
                *self = watched;
                true
            }
            Err(error) => {
                tracing::warn!(%error, "cannot watch the directory; polling once a second instead");
                false
            }
        }
    }
}

/// The known state of the file.
struct Followed<'a> {
    source: &'a JsonLines,
    output: &'a CorpusOutput,
    /// The file's name in dead letters.
    file: String,
    rows: Rows,
    /// The file's stamp before it was last read.
    stamp: Option<FileStamp>,
    /// When the stamp was last compared.
    checked: Instant,
    /// When to check the file again without an event.
    due: Option<Instant>,
    /// Why `due` is set: true if the file is empty or has an unfinished last line, which is then read as it is; false
    /// if the file is being written.
    torn: bool,
    /// The last reason why the file could not be read.
    fault: Option<String>,
    /// Whether an error that may pass is not told yet, because the file is read again.
    waits: bool,
    /// Rows that gave no document, each told once.
    told: HashSet<[u8; 32]>,
    /// The rows that give no document, with the reasons, as of the last read.
    refused: Vec<(String, String)>,
}

impl<'a> Followed<'a> {
    fn new(source: &'a JsonLines, output: &'a CorpusOutput) -> Self {
        let stamp = FileStamp::of(&source.path);
        let file = source.path.display().to_string();
        let (rows, checked) = (Rows::default(), Instant::now());
        let told = HashSet::new();
        let refused = Vec::new();
        Self {
            source,
            output,
            file,
            rows,
            stamp,
            checked,
            due: None,
            torn: false,
            fault: None,
            waits: false,
            told,
            refused,
        }
    }

    /// Whether the file should be read now, because of a burst.
    fn look(&mut self, burst: &Burst) -> bool {
        if burst.rescan || burst.dead {
            return true;
        }
        let name = self.source.path.file_name();
        match burst.touched.iter().find(|(path, _)| path.file_name() == name) {
            Some((_, Touch::Settled)) => true,
            Some((_, Touch::Created | Touch::Writing)) => {
                self.wait(WRITING, false);
                false
            }
            // Waits while the file is being written.
            // Others may write into the directory without end, so the time counts, and not that nothing happens.
            None if self.checked.elapsed() < TICK => false,
            None => {
                self.checked = Instant::now();
                self.due.is_none() && FileStamp::of(&self.source.path) != self.stamp
            }
        }
    }

    /// If `due` has passed, whether this is the last check.
    fn is_due(&self) -> Option<bool> {
        self.due.filter(|due| *due <= Instant::now()).map(|_| self.torn)
    }

    fn wait(&mut self, time: Duration, torn: bool) {
        // `due` is not moved, so a file that is written continuously is still read regularly.
        if self.due.is_none() || self.torn != torn {
            self.due = Some(Instant::now() + time);
            self.torn = torn;
        }
    }

    /// Reads the file that is now at the path. Returns the number of changes.
    fn look_again(&mut self, last: bool) -> Result<usize, Stopped> {
        self.due = None;
        self.torn = false;
        self.stamp = FileStamp::of(&self.source.path);
        tracing::debug!(file = self.file, "reading again");
        match File::open(&self.source.path) {
            // Most likely the file was truncated to be rewritten.
            Ok(stream) if !last && !self.rows.is_empty() && stream.metadata().is_ok_and(|now| now.len() == 0) => {
                self.wait(WRITING, true);
                Ok(0)
            }
            Ok(stream) => self.read(stream, last),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let rows = self.rows.withdraw(self.output)?;
                tracing::info!(file = self.file, rows, "the corpus file no longer exists");
                Ok(rows)
            }
            Err(error) => {
                self.fault(&error);
                Ok(0)
            }
        }
    }

    fn read(&mut self, stream: File, last: bool) -> Result<usize, Stopped> {
        let map = self.source.map.as_ref().ok().and_then(Option::as_ref);
        let rows = match map {
            None => readers::rows(self.source.format, stream).map_err(|error| error.to_string()),
            Some(map) => self.mapped(map, stream, last).map_err(|error| error.to_string()),
        };
        let own = Fields::default();
        let how = Reading {
            fields: if map.is_some() { &own } else { &self.source.fields },
            prefix: "",
            file: &self.file,
            limit: self.source.max_line_bytes,
            last,
        };
        let rows = match rows {
            Ok(rows) => rows,
            // As while it is being written.
            Err(error) => {
                self.fault(&io::Error::other(error));
                return Ok(0);
            }
        };
        let outcome = self.rows.update(rows, &how, self.output)?;
        if outcome.torn {
            self.wait(self.source.torn, true);
        }
        match &outcome.error {
            Some(error) => self.fault(error),
            None => {
                self.fault = None;
                self.output.settled(&self.file);
            }
        }
        for (place, reason) in &self.refused {
            self.output.still_unreadable(place, reason);
        }
        Ok(outcome.changes)
    }

    /// The documents of the rows. Rows that give none are told once.
    fn mapped<'m>(&mut self, map: &'m RowMap, stream: File, last: bool) -> io::Result<Box<dyn Read + 'm>> {
        let limit = self.source.max_line_bytes;
        let open = |file: &File| {
            let mut file = file.try_clone()?;
            file.rewind()?;
            readers::rows(self.source.format, file).map_err(io::Error::other)
        };
        let (latest, refused) = map.look(open(&stream)?, limit, last)?;
        self.refused.clear();
        for (number, reason, row) in refused {
            self.refused.push((format!("{}:{number}", self.file), reason.clone()));
            if self.told.insert(*blake3::hash(&[reason.as_bytes(), &row].concat()).as_bytes()) {
                self.output.dead_letter(&format!("{}:{number}", self.file), &reason, &row);
            }
        }
        Ok(Box::new(map.rows(open(&stream)?, limit, latest)))
    }

    fn fault(&mut self, error: &io::Error) {
        let reason = format!("cannot be read: {error}");
        if self.waits && may_pass(error) {
            tracing::warn!(file = self.file, %error, "cannot be read; will retry");
        } else if self.fault.as_ref() != Some(&reason) {
            self.output.dead_letter(&self.file, &reason, b"");
            self.fault = Some(reason);
        }
        // The stamp is the file's, although it was not read.
        if may_pass(error) {
            self.wait(PASSING, false);
        }
    }
}

#[cfg(test)]
#[path = "jsonl_corpus_tests.rs"]
mod tests;
