//! `JsonLines`: turns from a conversation log, one JSON object a line.
//!
//! ```ron
//! JsonLines(path: "turns.jsonl", follow: true)
//! ```
//!
//! Followed like `tail -F` does, from the beginning of the file: what is appended is read
//! as it comes, a line counts when its newline is there, and a file that is not there yet
//! is waited for. When the file is renamed away and a new one is made (rotation), the old
//! one is read to its end first; an unfinished line at its end counts as a line. A file
//! that is shorter than what was read of it has been truncated and is read from its
//! beginning; one that has outgrown that length before it was looked at cannot be told
//! from one that was appended to.
//!
//! Every turn carries its place: which file it stood in (see `known_file`) and where it ended.
//! After a restart the source goes on behind the place that it is told, if the file is still
//! the one that the place was in. If the file has been renamed or copied away meanwhile and is
//! still in the directory, the rest of it is read first, and then the new one from its
//! beginning. Logs that were made and rotated away between the two are read in their order, if
//! they are named after the log, with a number (`turns.jsonl.1`, `turns.jsonl-20260102`), and are
//! not compressed; others that may be such are warned of. If the file of the place is nowhere, or
//! has been truncated or rewritten, that is warned of, and what is there now is read from its
//! beginning.
//!
//! Positions are `path:line`. Lines that are no turns become dead letters, as do lines
//! longer than the limit, which are read past without being kept.
//!
//! ```
//! # use turnflow_connectors::jsonl_turns::JsonLinesConfig;
//! # let ron = r#"
//! (path: "turns.jsonl", follow: true)
//! # "#;
//! # let config: JsonLinesConfig = turnflow_engine::spec::from_str(ron).unwrap();
//! # assert_eq!(config.max_line_bytes, 1 << 20);
//! ```

mod place;
mod tail;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use turnflow_engine::component::{Building, Check, ComponentContext, TurnSourceConfig, TurnSourceKind, built};
use turnflow_engine::connector::{ConnectorError, Mode, Stopped, TurnOutput, TurnSource};
use turnflow_engine::spec::{FilePath, from_tree};

use self::tail::Tail;
use crate::jsonl_corpus::directory_of;
use crate::watch::Watch;

/// How often the file is looked at when no event tells of anything.
const POLL: Duration = Duration::from_millis(250);

/// The node's fields.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JsonLinesConfig {
    /// The file; relative to the pipeline file.
    pub path: FilePath,
    /// Whether to follow the file as it grows, or to end at its end. Default: true.
    #[serde(default = "yes")]
    pub follow: bool,
    /// The most bytes of a line; a longer one becomes a dead letter. Default: 1 MiB.
    #[serde(default = "max_line_bytes")]
    pub max_line_bytes: usize,
}

fn yes() -> bool {
    true
}
fn max_line_bytes() -> usize {
    1 << 20
}

impl JsonLinesConfig {
    /// The source. It touches no file until it runs.
    pub fn source(&self, base: &Path) -> JsonLines {
        JsonLines { path: base.join(&self.path.path), follow: self.follow, max_line_bytes: self.max_line_bytes }
    }
}

/// Entry in the connector table.
pub const KIND: TurnSourceKind = TurnSourceKind {
    name: "JsonLines",
    summary: "a conversation log, followed as it grows and is rotated",
    parse: |tree, sources| Ok(Box::new(from_tree::<JsonLinesConfig>(tree, sources)?)),
};

impl TurnSourceConfig for JsonLinesConfig {
    fn validate(&self, check: &mut Check<'_>) {
        // The file itself may come later; the directory that is to be watched may not.
        if !self.path.path.exists() {
            let directory = directory_of(&self.path.path);
            check.exists("path", &FilePath::from(directory));
        }
        check.range("max_line_bytes", self.max_line_bytes, 1, usize::MAX);
    }

    fn explain(&self) -> String {
        format!("path: {:?}, follow: {}", self.path.written, self.follow)
    }

    fn file(&self) -> Option<&Path> {
        Some(&self.path.path)
    }

    fn build(&self, _: &ComponentContext) -> Building<'_, dyn TurnSource> {
        built(Ok(Box::new(self.source(Path::new("")))))
    }
}

/// Reads and follows one conversation log.
#[derive(Debug)]
pub struct JsonLines {
    path: PathBuf,
    follow: bool,
    max_line_bytes: usize,
}

impl TurnSource for JsonLines {
    fn run(self: Box<Self>, mode: Mode, output: TurnOutput) -> Result<(), ConnectorError> {
        let mut tail = Tail::new(&self, &output, mode);
        if !tail.follows() {
            tail.read_to_the_end()?;
            output.caught_up();
            return Ok(());
        }
        // Without a watch, for want of the directory or of watches, there is still the poll.
        let directory = directory_of(&self.path);
        let mut watch = Watch::new(directory)?;
        let mut watching = watch.add(directory).is_ok();
        loop {
            tail.catch_up()?;
            crossbeam_channel::select! {
                recv(watch.signals()) -> signal => match signal {
                    // One look answers all of them.
                    Ok(_) => watch.signals().try_iter().for_each(drop),
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
