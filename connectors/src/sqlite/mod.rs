//! `Sqlite`: turns in the rows of a query of an SQLite database, which another program writes.
//!
//! ```ron
//! Sqlite(path: "webui.db", query: "SELECT id, chat, updated_at FROM chat", cursor: "updated_at", map: JqFile("chat.jq"))
//! ```
//!
//! A row is a record: an object by the names of the columns, without those that are null. If a column `record` has a text
//! and there is no `conversation_id`, that text is the record. Binary values are null.
//!
//! `cursor` is a column of the query with whole numbers that increase, such as `rowid`, or with times as texts, which count
//! as milliseconds. Rows without one are counted and not read. The source reads the rows with a
//! larger number than the last one, and looks for further ones every `every_s` seconds; a restart goes on after the last
//! number. With `map`, rows may be rewritten if `cursor` then increases, as a time of the last change does: several rows
//! may have one number, and a row is read again when it has changed; messages are known by their ids.
//!
//! The database is opened for reading only, and each page of rows is read at once and released before its turns are
//! answered, so a writer waits for milliseconds at most. A database that is locked, or not there yet, is tried again. A
//! database that was put in place of another one is read from its beginning.
//!
//! ```
//! # use turnflow_connectors::sqlite::SqliteConfig;
//! # let ron = r#"
//! (path: "log.db", query: "SELECT rowid AS n, * FROM turns", cursor: "n")
//! # "#;
//! # let config: SqliteConfig = turnflow_engine::spec::from_str(ron).unwrap();
//! # assert_eq!(config.every_s, 1.0);
//! ```

pub mod corpus;
mod rows;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use turnflow_engine::component::{Building, Check, ComponentContext, TurnSourceConfig, TurnSourceKind, built, config};
use turnflow_engine::connector::{ConnectorError, Mode, SourceOffset, Stopped, TurnOutput, TurnSource};
use turnflow_engine::spec::FilePath;

use self::rows::{Database, Fault, Numbers, Row};
use crate::jsonl_corpus::directory_of;
use crate::mapped::{ConversationsConfig, MapConfig, MapFields, Reads, mapped};
use crate::remote::{Retry, passing};

/// How often the rows without a number are counted while another program writes.
const COUNTED: Duration = Duration::from_secs(60);

/// Fields of `Sqlite`.
#[config]
pub struct SqliteConfig {
    /// Path of the database, relative to the pipeline file.
    pub path: FilePath,
    /// The query whose rows are records, a `SELECT` without a semicolon at its end. Default: that of the mapping.
    pub query: Option<String>,
    /// The column of the query with whole numbers that increase, or with times as texts, such as `2026-03-05 11:23:40`.
    /// Default: that of the mapping.
    pub cursor: Option<String>,
    /// Whether to look for further rows (true) or to stop after those that exist (false).
    #[field(default = true)]
    pub follow: bool,
    /// Seconds between two looks.
    #[field(default = 1.0, range = 0.01..=3600.0)]
    pub every_s: f64,
    /// Maximum size of a row as JSON, in bytes. A larger row becomes a dead letter.
    #[field(default = 16 << 20, range = 1..=1 << 30)]
    pub max_row_bytes: usize,
    /// What makes messages of rows in another form: `Preset("NAME")`, `Jq("PROGRAM")` or `JqFile("PATH")`. Default: rows are
    /// turn records.
    pub map: Option<MapConfig>,
    /// With `map`: how messages become turns.
    #[field(default, within, hidden)]
    pub conversations: ConversationsConfig,
}

/// Entry in the connector table.
pub const KIND: TurnSourceKind =
    TurnSourceKind::of::<SqliteConfig>("Sqlite", "turns in the rows of an SQLite database");

impl SqliteConfig {
    fn map_fields(&self) -> MapFields<'_> {
        let Self { map, conversations, .. } = self;
        MapFields { map: map.as_ref(), conversations, file: Some(&self.path.path), reads: Reads::Rows, lasts: true }
    }

    /// The query and the cursor, or the field that is missing.
    fn rows(&self) -> Result<(String, String), &'static str> {
        let (mut query, mut cursor) = (self.query.clone(), self.cursor.clone());
        if (query.is_none() || cursor.is_none())
            && let Some(Ok((mapping, _))) = self.map_fields().mapping()
        {
            query = query.or_else(|| mapping.options().query.clone());
            cursor = cursor.or_else(|| mapping.options().cursor.clone());
        }
        Ok((query.ok_or("query")?, cursor.ok_or("cursor")?))
    }

    /// Builds the source. It opens the database when it runs.
    pub fn source(&self, base: &Path, context: &ComponentContext) -> Sqlite {
        // The check of the pipeline has told what is missing.
        let (query, cursor) = self.rows().unwrap_or_default();
        let (path, config, context) = (base.join(&self.path.path), self.clone(), context.clone());
        Sqlite { path, query, cursor, config, context }
    }
}

impl TurnSourceConfig for SqliteConfig {
    fn validate(&self, check: &mut Check<'_>) {
        match self.follow {
            // It may be created later, in a directory that exists.
            true => check.exists("path", &FilePath::from(directory_of(&self.path.path))),
            false => check.exists("path", &self.path),
        }
        match self.rows() {
            Err(field) => {
                let message = format!("`{field}` is missing, and no mapping has it");
                check.error("missing-field", field, message);
            }
            Ok((_, cursor)) if cursor.is_empty() => {
                check.error("wrong-value", "cursor", "`cursor` is empty".to_owned());
            }
            // A database that is not there yet cannot say what is wrong.
            Ok((query, cursor)) => {
                if self.path.path.is_file()
                    && let Err(fault) = Database::open(&self.path.path, &query, Some(&cursor))
                    && let Some(reason) = fault.of_the_query()
                {
                    check.error("wrong-value", "query", reason);
                }
            }
        }
        self.map_fields().validate(check);
    }

    fn explain(&self) -> String {
        let Self { path, follow, every_s, .. } = self;
        let cursor = self.rows().map(|(_, cursor)| cursor).unwrap_or_default();
        let map = self.map_fields().explain();
        format!("path: {:?}, cursor: {cursor:?}, follow: {follow}, every_s: {every_s}{map}", path.written)
    }

    fn file(&self) -> Option<&Path> {
        Some(&self.path.path)
    }

    fn build(&self, context: &ComponentContext) -> Building<'_, dyn TurnSource> {
        mapped(&self.map_fields(), context, built(Ok(Box::new(self.source(Path::new(""), context)))))
    }
}

/// Reads turns of a database.
#[derive(Debug)]
pub struct Sqlite {
    path: PathBuf,
    query: String,
    cursor: String,
    config: SqliteConfig,
    context: ComponentContext,
}

/// Where the reader is.
struct Place {
    log: String,
    generation: u64,
    /// The number of the last row; `None` before the first one.
    last: Option<i64>,
    /// The rows with this number, by the hash of their records.
    known: HashSet<[u8; 32]>,
}

impl TurnSource for Sqlite {
    fn run(self: Box<Self>, mode: Mode, output: TurnOutput) -> Result<(), ConnectorError> {
        let follows = self.config.follow && mode == Mode::Follow;
        let mode = if follows { Mode::Follow } else { Mode::Once };
        let mut retry = Retry::new(self.path.display().to_string(), mode, &self.context);
        let mut place: Option<Place> = None;
        loop {
            match self.look(follows, &mut place, &mut retry, &output) {
                Ok(()) => return Ok(()),
                Err(Fault::Stopped(stopped)) => return Err(stopped.into()),
                Err(Fault::Lasting(reason)) => return Err(ConnectorError::Refused { reason }),
                Err(Fault::Passing(reason)) => {
                    retry.failed(&passing(reason), output.stop())?;
                }
            }
        }
    }
}

impl Sqlite {
    /// Reads rows as they come. `Ok` if it does not follow.
    fn look(
        &self,
        follows: bool,
        place: &mut Option<Place>,
        retry: &mut Retry,
        output: &TurnOutput,
    ) -> Result<(), Fault> {
        let database = Database::open(&self.path, &self.query, Some(&self.cursor))?;
        let place =
            place.get_or_insert_with(|| Place { log: String::new(), generation: 0, last: None, known: HashSet::new() });
        self.resume(place, &database, output);
        let (mut seen, mut numbers) = (None, None);
        let mut counted: Option<(Instant, u64)> = None;
        loop {
            let version = database.version()?;
            if seen != Some(version) {
                if numbers.is_none() || counted.is_none_or(|(at, _)| at.elapsed() >= COUNTED) {
                    let now = database.counted()?;
                    if now.without > 0 && counted.is_none_or(|(_, before)| now.without > before) {
                        let rows = now.without;
                        tracing::warn!(file = %self.path.display(), rows, cursor = self.cursor,
                            "rows without a number in the column of `cursor` are not read");
                    }
                    numbers = numbers.or(now.numbers);
                    counted = Some((Instant::now(), now.without));
                }
                let numbers = numbers.unwrap_or(Numbers::Whole);
                while self.page(&database, numbers, place, output)? {}
                seen = Some(version);
            }
            retry.worked();
            output.caught_up();
            if !follows {
                return Ok(());
            }
            if output.stop().wait(Duration::from_secs_f64(self.config.every_s)) {
                return Err(Stopped.into());
            }
            if !database.is_at(&self.path) {
                return Err(Fault::Passing("the database was replaced".to_owned()));
            }
        }
    }

    /// Finds the place where an earlier process, or the last connection, has stopped.
    fn resume(&self, place: &mut Place, database: &Database, output: &TurnOutput) {
        let log = database.log();
        if place.log.is_empty()
            && let Some(offset) = output.resume()
        {
            (place.log, place.generation) = (offset.log.to_string(), offset.generation);
            place.last = Some(offset.end.cast_signed());
        }
        if place.log == log {
            return;
        }
        let generation = match place.log.is_empty() {
            true => {
                output.begins(SourceOffset { log: log.as_str().into(), ..SourceOffset::default() });
                0
            }
            false => {
                tracing::warn!(
                    file = %self.path.display(),
                    "the database was replaced by another one; reading that from its beginning"
                );
                place.generation + 1
            }
        };
        *place = Place { log, generation, last: None, known: HashSet::new() };
    }

    /// Sends the next rows. Returns whether there may be more.
    fn page(
        &self,
        database: &Database,
        numbers: Numbers,
        place: &mut Place,
        output: &TurnOutput,
    ) -> Result<bool, Fault> {
        // Rows with a number that was read may have changed since.
        let again = output.is_mapped();
        let rows = database.page(numbers, place.last, again, self.config.max_row_bytes)?;
        let mut any_new = false;
        for Row { number, record } in &rows {
            if place.last != Some(*number) {
                place.known.clear();
            }
            place.last = Some(*number);
            let position = format!("{}: {number}", self.path.display());
            match record {
                Ok(record) => {
                    if again && !place.known.insert(*blake3::hash(record).as_bytes()) {
                        continue;
                    }
                    let end = number.cast_unsigned();
                    let (log, generation) = (place.log.as_str().into(), place.generation);
                    let offset = SourceOffset { log, generation, end, line: end, ..SourceOffset::default() };
                    output.line(record, &position, Some(offset))?;
                }
                Err((reason, beginning)) => {
                    let key = blake3::hash(&[reason.as_bytes(), beginning].concat());
                    if again && !place.known.insert(*key.as_bytes()) {
                        continue;
                    }
                    output.dead_beginning(&position, reason, beginning);
                }
            }
            any_new = true;
        }
        Ok(any_new)
    }
}
