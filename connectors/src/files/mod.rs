//! `Files`: turns from many files, of any form that a mapping reads.
//!
//! ```ron
//! Files(glob: "logs/**/*.jsonl*", map: Preset("openai-chat"))
//! ```
//!
//! All files that match the pattern are read, the oldest first, and then followed as they grow. Lines of JSON are read as
//! they come; a file of another form (one document, a table, a transcript, a text, an archive) is read as a whole when it
//! has not changed for `quiet_s`, and again when it changes: what comes after the records that were read is new. A packed
//! file (gzip, Zstandard) counts as what is in it.
//!
//! Lines of a container runtime are only appended, and are read as they come, too. A line of which a part is there waits for
//! its end; if its file is over, it is given as it is (`run/held.rs`).
//!
//! A file is known by its device, inode and time of creation, and else by its content: by all that was read of it
//! (`entry.rs`, `identify.rs`). So a file that was renamed, copied or packed, also while nothing ran, is read on where it
//! was, under whatever name, and a file that only begins like another one is another one. A copy counts as the same file
//! if its name is made of the other's, as logs are rotated, or if it has the time of its last change.
//!
//! What was read of each file is stored with the turns, in one step (see `mapped`), so a restart reads each record once.
//! At most `OPEN` files are open.
//!
//! ```
//! # use turnflow_connectors::files::FilesConfig;
//! # let ron = r#"
//! (glob: "logs/**/*.jsonl*")
//! # "#;
//! # let config: FilesConfig = turnflow_engine::spec::from_str(ron).unwrap();
//! # assert_eq!(config.quiet_s, 1.0);
//! ```

mod entry;
mod identify;
mod listing;
mod order;
mod reader;
mod run;
#[cfg(test)]
pub(crate) mod tests;

use std::path::{Path, PathBuf};

use turnflow_engine::component::{Building, Check, ComponentContext, TurnSourceConfig, TurnSourceKind, built, config};
use turnflow_engine::connector::{ConnectorError, Mode, TurnOutput, TurnSource};
use turnflow_engine::spec::FilePath;
use turnflow_records::Options;

use self::listing::Glob;
pub use self::listing::escaped;
use self::run::Run;
use crate::mapped::{ConversationsConfig, MapConfig, MapFields, Reads, with_places};

/// Maximum number of files that are open.
const OPEN: usize = 64;
/// Maximum number of files that are kept open between two looks. Others are open while they are compared.
const KEPT: usize = OPEN - 2;

/// Fields of `Files`.
#[config]
pub struct FilesConfig {
    /// Pattern of the paths of the files, relative to the pipeline file: `*` and `?` within a name, `**` for any folders,
    /// `{a,b}` for either. A letter of these in a name is written in brackets, as in `[[]2026[]]`. Names that begin with a
    /// dot do not match.
    pub glob: FilePath,
    /// Whether to follow the files, and read new ones (true), or to stop when all are read (false).
    #[field(default = true)]
    pub follow: bool,
    /// Seconds between two looks for new files. Files that are written are looked at more often.
    #[field(default = 1.0, range = 0.01..=3600.0)]
    pub every_s: f64,
    /// How long a file that is read as a whole, or a line without its end, must not have changed, in seconds.
    #[field(default = 1.0, range = 0.0..=3600.0)]
    pub quiet_s: f64,
    /// Maximum length of a line, in bytes. A longer line becomes a dead letter.
    #[field(default = 1 << 20, range = 1..)]
    pub max_line_bytes: usize,
    /// What makes messages of records in another form: `Preset("NAME")`, `Jq("PROGRAM")` or `JqFile("PATH")`. It also says
    /// which form the files have. Default: records are turn records.
    pub map: Option<MapConfig>,
    /// With `map`: how messages become turns.
    #[field(default, within, hidden)]
    pub conversations: ConversationsConfig,
}

impl FilesConfig {
    fn map_fields(&self) -> MapFields<'_> {
        let Self { map, conversations, .. } = self;
        MapFields { map: map.as_ref(), conversations, file: None, reads: Reads::Files, lasts: true }
    }

    /// The folder of the pipeline file, whose name is no pattern, and the pattern in it.
    fn pattern(&self) -> (PathBuf, String) {
        let path = self.glob.path.to_string_lossy();
        match path.strip_suffix(&*self.glob.written) {
            Some(folder) => (PathBuf::from(folder), self.glob.written.clone()),
            None => (PathBuf::new(), path.into_owned()),
        }
    }

    /// Builds the source without its mapping. It accesses no file until it runs.
    ///
    /// # Errors
    ///
    /// The pattern is wrong.
    pub(crate) fn source(&self, base: &Path) -> Result<Files, ConnectorError> {
        // A file has one path, wherever the program is started.
        let (folder, pattern) = self.pattern();
        let folder = base.join(folder);
        let here = if folder.as_os_str().is_empty() { Path::new(".") } else { &folder };
        let folder = std::path::absolute(here).unwrap_or(folder);
        let glob = Glob::new(&folder, &pattern).map_err(|reason| ConnectorError::Refused { reason })?;
        let mapping = self.map_fields().mapping().transpose();
        let mapping = mapping.map_err(|reason| ConnectorError::Refused { reason })?;
        let options = mapping.map(|(mapping, _)| mapping.options().clone()).unwrap_or_default();
        Ok(Files { config: self.clone(), glob, options })
    }
}

/// Entry in the connector table.
pub const KIND: TurnSourceKind =
    TurnSourceKind::of::<FilesConfig>("Files", "conversation logs in many files, followed across rotation and packing");

impl TurnSourceConfig for FilesConfig {
    fn validate(&self, check: &mut Check<'_>) {
        let (folder, pattern) = self.pattern();
        match Glob::new(&folder, &pattern) {
            Ok(glob) => check.exists("glob", &FilePath::from(glob.root())),
            Err(reason) => check.error("wrong-value", "glob", reason),
        }
        self.map_fields().validate(check);
    }

    fn build(&self, context: &ComponentContext) -> Building<'_, dyn TurnSource> {
        let source = self.source(Path::new("")).map(|files| Box::new(files) as Box<dyn TurnSource>);
        with_places(&self.map_fields(), context, built(source))
    }
}

/// Reads files and follows them.
#[derive(Debug)]
pub(crate) struct Files {
    config: FilesConfig,
    glob: Glob,
    options: Options,
}

impl TurnSource for Files {
    fn run(self: Box<Self>, mode: Mode, output: TurnOutput) -> Result<(), ConnectorError> {
        let follows = self.config.follow && mode == Mode::Follow;
        let mut run = Run::new(&self, &output, follows);
        match follows {
            true => run.follow(),
            false => run.once(),
        }
    }
}

/// A path for people, and for the places of records.
fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// A table of columns as lines of JSON.
#[cfg(feature = "parquet")]
fn columns(path: &Path) -> std::io::Result<Box<dyn std::io::Read>> {
    use crate::readers::columnar;
    let file = std::fs::File::open(path)?;
    let is_parquet = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("parquet"));
    let lines = if is_parquet { columnar::parquet(file) } else { columnar::arrow(file) };
    Ok(Box::new(lines.map_err(std::io::Error::other)?))
}

#[cfg(not(feature = "parquet"))]
fn columns(_: &Path) -> std::io::Result<Box<dyn std::io::Read>> {
    Err(std::io::Error::other("tables of columns need the feature `parquet`"))
}

/// Where a file is listed.
type Identity = (u64, u64);

/// The name of a path without its folders.
fn name_of(path: &Path) -> PathBuf {
    path.file_name().map_or_else(|| path.to_owned(), PathBuf::from)
}
