//! `JsonLines`: turns from a conversation log, one JSON object on each line.
//!
//! ```ron
//! JsonLines(path: "turns.jsonl", follow: true)
//! ```
//!
//! Follows the file like `tail -F`, from its beginning: appended lines are read as they arrive, a line counts once its
//! newline exists, and the source waits for a file that does not exist yet. If the file is renamed and a new one is
//! created (rotation), the old one is first read to its end; an unfinished line at its end counts as a line. If the
//! file was replaced (as `rsync` does) or rewritten, and starts with what was already read, the source continues after
//! that part; it waits a few seconds for a file that is still being written. If the file was copied and truncated, the
//! rest of the copy is read first, if it is in the directory. Otherwise a new file, or one that is shorter than what
//! was already read, or that no longer has the last bytes that were read, is read from its beginning.
//!
//! Every turn carries its source offset: the file (see `known_file`) and the end of its line. After a restart, the
//! source resumes after the given offset, if the file is still the same: it has what was read up to there. A log that
//! only begins like it is another log. If the file was renamed or copied in the meantime and is still in the directory,
//! the rest of it is read first, and then the new file from its beginning. Logs that were created and rotated away in
//! between are read in order, if they have the log's name with a number or a date behind it, before the extension or
//! before the name (`turns.jsonl.1`, `turns-20260102.jsonl`, `20260102-turns.jsonl`) and are not compressed; a warning
//! reports other files that may be such logs. Logs that other sources of the process read are none of them. If the file
//! of the offset cannot be found, or was truncated or rewritten, the source logs a warning and reads what came after it,
//! and the present file from its beginning.
//!
//! Positions are `path:line`. Lines that are not valid turns become dead letters. So do lines longer than the limit,
//! which are skipped without being kept in memory.
//!
//! ```
//! # use turnflow_connectors::jsonl_turns::JsonLinesConfig;
//! # let ron = r#"
//! (path: "turns.jsonl", follow: true)
//! # "#;
//! # let config: JsonLinesConfig = turnflow_engine::spec::from_str(ron).unwrap();
//! # assert_eq!(config.max_line_bytes, 1 << 20);
//! ```

mod listed;
mod place;
mod tail;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::time::Duration;

use turnflow_engine::component::{Building, Check, ComponentContext, TurnSourceConfig, TurnSourceKind, built, config};
use turnflow_engine::connector::{ConnectorError, Mode, Stopped, TurnOutput, TurnSource};
use turnflow_engine::spec::FilePath;

use self::listed::Listed;
use self::tail::Tail;
use crate::jsonl_corpus::directory_of;
use crate::mapped::{ConversationsConfig, MapConfig, MapFields, Reads, fitting, mapped};
use crate::watch::Watch;

/// How often the file is checked without an event.
const POLL: Duration = Duration::from_millis(250);

/// Fields of `JsonLines`.
#[config]
pub struct JsonLinesConfig {
    /// Path of the file, relative to the pipeline file.
    pub path: FilePath,
    /// Whether to follow the file as it grows (true) or to stop at its end (false).
    #[field(default = true)]
    pub follow: bool,
    /// Maximum length of a line, in bytes. A longer line becomes a dead letter.
    #[field(default = 1 << 20, range = 1..)]
    pub max_line_bytes: usize,
    /// What makes messages of lines in another form: `Preset("NAME")`, `Jq("PROGRAM")` or `JqFile("PATH")`. Default: lines
    /// are turn records.
    pub map: Option<MapConfig>,
    /// With `map`: how messages become turns.
    #[field(default, within, hidden)]
    pub conversations: ConversationsConfig,
}

impl JsonLinesConfig {
    fn map_fields(&self) -> MapFields<'_> {
        let Self { map, conversations, .. } = self;
        MapFields { map: map.as_ref(), conversations, file: Some(&self.path.path), reads: Reads::Records, lasts: true }
    }

    /// Builds the source without its mapping. It accesses no file until it runs.
    pub fn source(&self, base: &Path) -> JsonLines {
        let path = base.join(&self.path.path);
        let listed = Listed::new(&path);
        JsonLines { path, follow: self.follow, max_line_bytes: self.max_line_bytes, listed }
    }
}

/// Entry in the connector table.
pub const KIND: TurnSourceKind =
    TurnSourceKind::of::<JsonLinesConfig>("JsonLines", "a conversation log, followed as it grows and across rotation");

impl TurnSourceConfig for JsonLinesConfig {
    fn validate(&self, check: &mut Check<'_>) {
        // The file may be created later, but the directory to watch must exist.
        if !self.path.path.exists() {
            let directory = directory_of(&self.path.path);
            check.exists("path", &FilePath::from(directory));
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

/// Reads a conversation log and follows it.
#[derive(Debug)]
pub struct JsonLines {
    path: PathBuf,
    follow: bool,
    max_line_bytes: usize,
    listed: Listed,
}

impl JsonLines {
    /// The logs of the other sources of this process.
    fn others(&self) -> Vec<PathBuf> {
        self.listed.others()
    }
}

impl TurnSource for JsonLines {
    fn run(self: Box<Self>, mode: Mode, output: TurnOutput) -> Result<(), ConnectorError> {
        let output = output.hinting(fitting);
        let mut tail = Tail::new(&self, &output, mode);
        if !tail.follows() {
            tail.read_to_the_end()?;
            output.caught_up();
            return Ok(());
        }
        // If the directory does not exist or no watch is available, the source still polls.
        let directory = directory_of(&self.path);
        let mut watch = Watch::with_room(directory, 0)?;
        let mut watching = watch.add(directory).is_ok();
        loop {
            tail.catch_up()?;
            crossbeam_channel::select! {
                recv(watch.signals()) -> signal => match signal {
                    // One check covers everything that has happened until now.
                    Ok(()) => {}
                    // The watcher has died: wait as if there were no events.
                    Err(_) if output.stop().wait(POLL) => return Err(Stopped.into()),
                    Err(_) => {}
                },
                recv(output.stop().receiver()) -> _ => return Err(Stopped.into()),
                default(POLL) => watching = watching || watch.add(directory).is_ok(),
            }
        }
    }
}
