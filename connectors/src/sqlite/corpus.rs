//! `Sqlite`: a corpus of the rows of a query of an SQLite database, one document for each row.
//!
//! ```ron
//! Sqlite(path: "kb.db", query: "SELECT id AS _id, title, body AS text, updated FROM articles")
//! ```
//!
//! When another program has written, the query is run again, and only the rows that differ change. Columns other than the
//! id, the title and the text are metadata; those that are null are left out. With `map`, a program makes documents of
//! each row, and ids of those that are deleted. The database is only read; all rows are read at once, to a temporary file,
//! so a writer is not held up while documents are prepared. While the database is locked or missing, its rows are kept.
//!
//! ```
//! # use turnflow_connectors::sqlite::corpus::SqliteConfig;
//! # let ron = r#"
//! (path: "kb.db", query: "SELECT * FROM articles", id: "slug", text: "body")
//! # "#;
//! # let config: SqliteConfig = turnflow_engine::spec::from_str(ron).unwrap();
//! # assert_eq!(config.title, "title");
//! ```

use std::collections::HashSet;
use std::io::{Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use turnflow_engine::component::{
    Building, Check, ComponentContext, CorpusSourceConfig, CorpusSourceKind, built, config,
};
use turnflow_engine::connector::{ConnectorError, CorpusOutput, CorpusSource, Mode, Stopped};
use turnflow_engine::spec::FilePath;

use super::rows::{Database, Fault};
use crate::mapped::{MapConfig, RowMap};
use crate::readers::jsonl::{Fields, Reading, Rows};
use crate::remote::{Retry, passing};

/// Fields of `Sqlite` for documents.
#[config]
pub struct SqliteConfig {
    /// Path of the database, relative to the pipeline file.
    pub path: FilePath,
    /// The query whose rows are documents, a `SELECT`.
    pub query: String,
    /// Whether to follow changes of the database.
    #[field(default = true)]
    pub watch: bool,
    /// Seconds between two looks whether it has changed.
    #[field(default = 1.0, range = 0.01..=3600.0)]
    pub every_s: f64,
    /// Column that holds a row's id.
    #[field(default = Fields::default().id)]
    pub id: String,
    /// Column that holds a row's title; may be missing.
    #[field(default = Fields::default().title)]
    pub title: String,
    /// Column that holds a row's text.
    #[field(default = Fields::default().text)]
    pub text: String,
    /// Maximum size of a row as JSON, in bytes. A larger row becomes a dead letter.
    #[field(default = 16 << 20, range = 1..=1 << 30)]
    pub max_row_bytes: usize,
    /// What makes documents of rows in another form: `Jq("PROGRAM")` or `JqFile("PATH")`. Default: rows are documents.
    pub map: Option<MapConfig>,
}

/// Entry in the connector table.
pub const KIND: CorpusSourceKind =
    CorpusSourceKind::of::<SqliteConfig>("Sqlite", "the rows of an SQLite database, one document for each");

impl SqliteConfig {
    /// Builds the source. It opens the database when it runs.
    ///
    /// # Errors
    ///
    /// The mapping is wrong.
    pub(crate) fn source(&self, base: &Path, context: &ComponentContext) -> Result<Sqlite, ConnectorError> {
        let path = base.join(&self.path.path);
        let map = self.map.as_ref().map(|map| RowMap::of(map, &path.display().to_string())).transpose();
        let map = map.map_err(|reason| ConnectorError::Refused { reason })?;
        Ok(Sqlite { path, config: self.clone(), map, context: context.clone() })
    }
}

impl CorpusSourceConfig for SqliteConfig {
    fn validate(&self, check: &mut Check<'_>) {
        check.exists("path", &self.path);
        if self.path.path.is_file()
            && let Err(fault) = Database::open(&self.path.path, &self.query, None)
            && let Some(reason) = fault.of_the_query()
        {
            check.error("wrong-value", "query", reason);
        }
        RowMap::validate(self.map.as_ref(), check);
    }

    fn explain(&self) -> String {
        let Self { path, watch, every_s, id, title, text, .. } = self;
        let map = if self.map.is_some() { ", map" } else { "" };
        format!(
            "path: {:?}, watch: {watch}, every_s: {every_s}, id: {id:?}, title: {title:?}, text: {text:?}{map}",
            path.written
        )
    }

    fn reads(&self, file: &Path) -> bool {
        self.path.path.canonicalize().is_ok_and(|path| path == file)
    }

    fn build(&self, context: &ComponentContext) -> Building<'_, dyn CorpusSource> {
        let source = self.source(Path::new(""), context);
        built(source.map(|source| Box::new(source) as Box<dyn CorpusSource>))
    }
}

/// Reads the rows of a database, and follows its changes.
#[derive(Debug)]
pub(crate) struct Sqlite {
    path: PathBuf,
    config: SqliteConfig,
    map: Option<RowMap>,
    context: ComponentContext,
}

impl CorpusSource for Sqlite {
    fn run(self: Box<Self>, mode: Mode, output: CorpusOutput) -> Result<(), ConnectorError> {
        let follows = self.config.watch && mode == Mode::Follow;
        let mode = if follows { Mode::Follow } else { Mode::Once };
        let mut retry = Retry::new(self.path.display().to_string(), mode, &self.context);
        let mut known = Known { rows: Rows::default(), told: HashSet::new(), is_ready: false };
        loop {
            match self.look(follows, &mut known, &mut retry, &output) {
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

/// What was sent.
struct Known {
    rows: Rows,
    /// Rows that gave no document, each told once.
    told: HashSet<[u8; 32]>,
    is_ready: bool,
}

impl Sqlite {
    /// Reads the rows as they change. `Ok` if it does not follow.
    fn look(&self, follows: bool, known: &mut Known, retry: &mut Retry, output: &CorpusOutput) -> Result<(), Fault> {
        let database = Database::open(&self.path, &self.config.query, None)?;
        let mut seen = None;
        loop {
            let version = database.version()?;
            if seen != Some(version) {
                let changes = self.read(&database, known, output)?;
                if !known.is_ready || changes > 0 {
                    output.commit()?;
                }
                if !std::mem::replace(&mut known.is_ready, true) {
                    output.ready()?;
                }
                seen = Some(version);
            }
            retry.worked();
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

    /// Sends the rows that differ from those that were sent. Returns their number.
    fn read(&self, database: &Database, known: &mut Known, output: &CorpusOutput) -> Result<usize, Fault> {
        let passing = |error: std::io::Error| Fault::Passing(error.to_string());
        let mut file = tempfile::tempfile().map_err(passing)?;
        let mut writer = std::io::BufWriter::new(&mut file);
        database.all(&mut |row| {
            writer.write_all(row)?;
            writer.write_all(b"\n")
        })?;
        writer.flush().map_err(passing)?;
        drop(writer);
        file.rewind().map_err(passing)?;
        let name = self.path.display().to_string();
        let Self { config: SqliteConfig { id, title, text, max_row_bytes, .. }, map, .. } = self;
        let own = Fields { id: id.clone(), title: title.clone(), text: text.clone() };
        let fields = if map.is_some() { Fields::default() } else { own };
        let how = Reading { fields: &fields, prefix: "", file: &name, limit: *max_row_bytes, last: true };
        let outcome = match map {
            None => known.rows.update(file, &how, output)?,
            Some(map) => {
                let (latest, refused) = map.look(&file, *max_row_bytes, true).map_err(passing)?;
                let mut bad = Vec::new();
                for (number, reason, row) in refused {
                    bad.push((format!("{name}:{number}"), reason.clone()));
                    if known.told.insert(*blake3::hash(&[reason.as_bytes(), &row].concat()).as_bytes()) {
                        output.dead_letter(&format!("{name}:{number}"), &reason, &row);
                    }
                }
                file.rewind().map_err(passing)?;
                let outcome = known.rows.update(map.rows(file, *max_row_bytes, latest), &how, output)?;
                bad.iter().for_each(|(place, reason)| output.still_unreadable(place, reason));
                outcome
            }
        };
        match outcome.error {
            Some(error) => Err(passing(error)),
            None => Ok(outcome.changes),
        }
    }
}
