//! `Parquet`: recorded turns, one in each row of Parquet or Arrow files.
//!
//! ```ron
//! Parquet(path: "turns.parquet", conversation_id: "session", text: "utterance")
//! ```
//!
//! The path is a file or a directory. Of a directory, the files with the extensions `.parquet`, `.arrow` and `.feather`
//! are read in the order of their names, except those whose names begin with `_` or `.`; directories within are not
//! read. The rows are read in their order.
//!
//! The columns of a turn have the names of the fields of a turn record, or those that the configuration gives. All other
//! columns are passed through to the answer. The conversation's id is text or a whole number, the turn's number a whole
//! number, and the timestamp a number of seconds since the Unix epoch, or a date with time. A null is a field that is
//! missing. A file without a required column, or with a column of another type, cannot be read.
//!
//! Every turn carries its source offset: the file (its length and a hash of its ends) and the number of its row. After a
//! restart, the source resumes in each file after the given row. A file that has changed since is read from its
//! beginning, with a warning. With `follow: true`, the source looks for new and changed files once a second.
//!
//! Positions are `path:row`; the first row has the number 1. Rows that are not valid turns become dead letters. A file
//! that cannot be read ends the source with an error, if it is the only one and is not followed; otherwise it becomes a
//! dead letter, and is read again when it has changed.
//!
//! ```
//! # use turnflow_connectors::parquet::source::ParquetConfig;
//! # let ron = r#"
//! (path: "turns.parquet", text: "utterance")
//! # "#;
//! # let config: ParquetConfig = turnflow_engine::spec::from_str(ron).unwrap();
//! # assert_eq!(config.conversation_id, "conversation_id");
//! ```

mod table;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use turnflow_engine::component::{Building, Check, ComponentContext, TurnSourceConfig, TurnSourceKind, built, config};
use turnflow_engine::connector::{ConnectorError, Mode, SourceOffset, Stopped, TurnOutput, TurnSource};
use turnflow_engine::spec::FilePath;

use self::table::{Columns, Table};
use crate::jsonl_corpus::directory_of;
use crate::lines::Line;
use crate::mapped::{ConversationsConfig, MapConfig, MapFields, Reads, mapped};
use crate::readers::Format;
use crate::watch::FileStamp;

/// How often new and changed files are looked for.
const POLL: Duration = Duration::from_secs(1);

/// Fields of `Parquet`.
#[config]
pub struct ParquetConfig {
    /// Path of the file or of the directory with the files, relative to the pipeline file.
    pub path: FilePath,
    /// Whether to look for new and changed files (true) or to stop after those that exist (false).
    #[field(default)]
    pub follow: bool,
    /// Column that holds the conversation's id: text or whole numbers.
    #[field(default = "conversation_id")]
    pub conversation_id: String,
    /// Column that holds the turn's number: whole numbers, from 1.
    #[field(default = "turn")]
    pub turn: String,
    /// Column that holds the speaker: `user` or `agent`.
    #[field(default = "speaker")]
    pub speaker: String,
    /// Column that holds the text.
    #[field(default = "text")]
    pub text: String,
    /// Column that holds the corpus for retrievers with `corpus: FromTurn`; may be missing.
    #[field(default = "collection")]
    pub collection: String,
    /// Column that holds when the turn was: seconds since the Unix epoch, or a date with time, in UTC if the column has no
    /// time zone; may be missing.
    #[field(default = "timestamp")]
    pub timestamp: String,
    /// Maximum size of a row as JSON, in bytes. A larger row becomes a dead letter.
    #[field(default = 1 << 20, range = 1..)]
    pub max_row_bytes: usize,
    /// What makes messages of rows in another form: `Preset("NAME")`, `Jq("PROGRAM")` or `JqFile("PATH")`. The columns above
    /// are not looked at then. Default: rows are turn records.
    pub map: Option<MapConfig>,
    /// With `map`: how messages become turns.
    #[field(default, within, hidden)]
    pub conversations: ConversationsConfig,
}

/// Entry in the connector table.
pub const KIND: TurnSourceKind =
    TurnSourceKind::of::<ParquetConfig>("Parquet", "recorded turns in Parquet or Arrow files, one in each row");

impl ParquetConfig {
    /// Builds the source. It accesses no file until it runs.
    pub fn source(&self, base: &Path) -> Parquet {
        let columns = Columns {
            conversation_id: self.conversation_id.clone(),
            turn: self.turn.clone(),
            speaker: self.speaker.clone(),
            text: self.text.clone(),
            collection: self.collection.clone(),
            timestamp: self.timestamp.clone(),
        };
        let path = base.join(&self.path.path);
        Parquet { path, follow: self.follow, columns, max_row_bytes: self.max_row_bytes }
    }
}

impl ParquetConfig {
    fn map_fields(&self) -> MapFields<'_> {
        let Self { map, conversations, .. } = self;
        MapFields { map: map.as_ref(), conversations, file: Some(&self.path.path), reads: Reads::Records, lasts: true }
    }
}

impl TurnSourceConfig for ParquetConfig {
    fn validate(&self, check: &mut Check<'_>) {
        match self.follow && !self.path.path.exists() {
            // It may be created later, in a directory that exists.
            true => check.exists("path", &FilePath::from(directory_of(&self.path.path))),
            false => check.exists("path", &self.path),
        }
        let columns = [&self.conversation_id, &self.turn, &self.speaker, &self.text, &self.collection, &self.timestamp];
        let names = ["conversation_id", "turn", "speaker", "text", "collection", "timestamp"];
        for (at, (name, column)) in names.iter().zip(columns).enumerate() {
            if let Some(other) = columns[..at].iter().position(|other| *other == column) {
                let message = format!("`{name}` and `{}` are both the column `{column}`", names[other]);
                check.error("wrong-value", name, message);
            }
        }
        self.map_fields().validate(check);
    }

    fn file(&self) -> Option<&Path> {
        Some(&self.path.path)
    }

    fn build(&self, context: &ComponentContext) -> Building<'_, dyn TurnSource> {
        mapped(&self.map_fields(), context, built(Ok(Box::new(self.source(Path::new(""))))))
    }
}

/// Reads recorded turns.
#[derive(Debug)]
pub struct Parquet {
    path: PathBuf,
    follow: bool,
    columns: Columns,
    max_row_bytes: usize,
}

/// What is known about a file that was read.
#[derive(Default)]
struct Known {
    /// The file's stamp before it was read.
    stamp: Option<FileStamp>,
    /// The offset of the last row that was sent.
    last: Option<SourceOffset>,
}

impl TurnSource for Parquet {
    fn run(self: Box<Self>, mode: Mode, output: TurnOutput) -> Result<(), ConnectorError> {
        let follows = self.follow && mode == Mode::Follow;
        let mut known: BTreeMap<PathBuf, Known> = BTreeMap::new();
        loop {
            let is_directory = self.path.is_dir();
            let files = match is_directory {
                true => files_of(&self.path),
                false if follows && !self.path.exists() => Ok(Vec::new()),
                false => Ok(vec![self.path.clone()]),
            };
            let failed = |source| ConnectorError::Io { action: "read", path: self.path.display().to_string(), source };
            for path in files.map_err(failed)? {
                let stamp = FileStamp::of(&path);
                let file = known.entry(path.clone()).or_default();
                if stamp.is_some() && stamp == file.stamp {
                    continue;
                }
                file.stamp = stamp;
                let partition = path.file_name().filter(|_| is_directory).unwrap_or_default().to_string_lossy();
                match self.read(&path, &partition, file, &output) {
                    Ok(()) => {}
                    Err(Fault::Stopped(stopped)) => return Err(stopped.into()),
                    Err(Fault::File { position, reason }) if is_directory || follows => {
                        output.dead_letter(&position, &reason, b"");
                    }
                    Err(Fault::File { position, reason }) => {
                        return Err(ConnectorError::Io {
                            action: "read",
                            path: position,
                            source: io::Error::new(io::ErrorKind::InvalidData, reason),
                        });
                    }
                }
            }
            output.caught_up();
            if !follows {
                return Ok(());
            }
            if output.stop().wait(POLL) {
                return Err(Stopped.into());
            }
        }
    }
}

/// Why a file was not read to its end.
enum Fault {
    Stopped(Stopped),
    File { position: String, reason: String },
}

impl From<Stopped> for Fault {
    fn from(stopped: Stopped) -> Self {
        Self::Stopped(stopped)
    }
}

impl Parquet {
    /// Reads the rows of a file after those that were answered or sent.
    fn read(&self, path: &Path, partition: &str, known: &mut Known, output: &TurnOutput) -> Result<(), Fault> {
        let name = path.display().to_string();
        let fault = |reason: String| Fault::File { position: name.clone(), reason };
        let log = table::mark(path).map_err(|error| fault(error.to_string()))?;
        let before = known.last.clone().or_else(|| output.resume_partitions().get(partition).cloned());
        let (generation, from) = match &before {
            None => (0, 0),
            Some(place) if *place.log == *log => (place.generation, place.end),
            Some(place) => {
                tracing::warn!(
                    file = name,
                    row = place.end,
                    "the file that was read up to this row has changed; reading it from its beginning"
                );
                (place.generation.saturating_add(1), 0)
            }
        };
        if from > 0 && known.last.is_none() {
            tracing::info!(file = name, row = from, "resuming after the last answered row");
        }
        // A mapping reads the columns that it names.
        let columns = (!output.is_mapped()).then_some(&self.columns);
        let mut table = Table::open(path, columns, from, self.max_row_bytes).map_err(fault)?;
        loop {
            let broken = |row: u64, error: io::Error| Fault::File {
                position: format!("{name}:{row}"),
                reason: format!("the rest of the file cannot be read: {error}"),
            };
            let row = table.rows.number() + 1;
            if !table.rows.advance().map_err(|error| broken(row, error))? {
                return Ok(());
            }
            let position = format!("{name}:{row}");
            let place = SourceOffset { partition: partition.into(), log: log.clone(), generation, end: row, line: row };
            match table.rows.line() {
                Line::Whole(line) if columns.is_none() => output.line(line, &position, Some(place.clone()))?,
                Line::Whole(line) => match self.columns.turn(line) {
                    Ok(turn) => output.line(&turn, &position, Some(place.clone()))?,
                    Err(reason) => output.dead_letter(&position, &reason, line),
                },
                Line::TooLong { start, bytes } => {
                    let reason = format!("the row has {bytes} bytes as JSON, more than {}", self.max_row_bytes);
                    output.dead_beginning(&position, &reason, start);
                }
            }
            known.last = Some(place);
        }
    }
}

/// The tables in a directory, by name.
fn files_of(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let is_hidden =
            path.file_name().is_some_and(|name| matches!(name.as_encoded_bytes().first(), Some(b'_' | b'.')));
        if !is_hidden && matches!(Format::of(&path), Some(Format::Parquet | Format::Arrow)) && path.is_file() {
            files.push(path);
        }
    }
    files.sort_unstable();
    Ok(files)
}
