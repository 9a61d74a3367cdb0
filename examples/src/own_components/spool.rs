//! Reads turns from the files of a directory, called `1.json`, `2.json` and so on, with one turn per
//! file. A file is deleted when its answer is safe: then no restart needs it again.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use turnflow_engine::component::{Building, Check, ComponentContext, TurnSourceConfig, TurnSourceKind, built, config};
use turnflow_engine::connector::{ConnectorError, Mode, SourceOffset, TurnOutput, TurnSource};
use turnflow_engine::metrics::Counter;
use turnflow_engine::spec::FilePath;

/// The interval between scans of the directory.
const POLL: Duration = Duration::from_millis(200);

/// The entry for the catalog.
pub const KIND: TurnSourceKind =
    TurnSourceKind::of::<SpoolConfig>("Spool", "the files of a directory, one turn each, deleted once answered");

/// Fields of `Spool`.
#[config]
pub struct SpoolConfig {
    /// The directory.
    path: FilePath,
}

impl TurnSourceConfig for SpoolConfig {
    fn validate(&self, check: &mut Check<'_>) {
        check.exists("path", &self.path);
    }

    fn build(&self, context: &ComponentContext) -> Building<'_, dyn TurnSource> {
        let deleted = context.counter("spool_deleted", "Files whose answers are safe");
        built(Ok(Box::new(Spool { path: self.path.path.clone(), deleted })))
    }
}

struct Spool {
    path: PathBuf,
    deleted: Counter,
}

impl TurnSource for Spool {
    fn run(self: Box<Self>, mode: Mode, output: TurnOutput) -> Result<(), ConnectorError> {
        // An earlier process answered all files up to here, but may not have deleted them.
        let mut last = output.resume().map_or(0, |offset| offset.end);
        self.delete(last)?;
        loop {
            let files = self.files()?;
            for (number, path) in files.range(last + 1..) {
                let line = fs::read(path).map_err(fault("read", path))?;
                // The directory is the log; nothing is known of files that moved to another one.
                let log = self.path.display().to_string().into();
                let offset = SourceOffset { log, end: *number, line: *number, ..SourceOffset::default() };
                output.line(&line, &path.display().to_string(), Some(offset))?;
                last = *number;
            }
            output.caught_up();
            if mode == Mode::Once {
                return Ok(());
            }
            // Wait for the first of: an acknowledgement, the end, or the next scan.
            crossbeam_channel::select! {
                recv(output.acknowledgements().changed()) -> _ => {
                    let safe = output.acknowledgements().offsets();
                    self.delete(safe.get("").map_or(0, |offset| offset.end))?;
                }
                recv(output.stop().receiver()) -> _ => return Ok(()),
                default(POLL) => {}
            }
        }
    }
}

impl Spool {
    /// The files by number.
    fn files(&self) -> Result<BTreeMap<u64, PathBuf>, ConnectorError> {
        let entries = fs::read_dir(&self.path).map_err(fault("list", &self.path))?;
        let paths = entries.flatten().map(|entry| entry.path());
        let number = |path: &Path| path.file_name()?.to_str()?.strip_suffix(".json")?.parse().ok();
        Ok(paths.filter_map(|path| Some((number(&path)?, path))).collect())
    }

    fn delete(&self, up_to: u64) -> Result<(), ConnectorError> {
        for path in self.files()?.range(..=up_to).map(|(_, path)| path) {
            fs::remove_file(path).map_err(fault("delete", path))?;
            self.deleted.inc();
        }
        Ok(())
    }
}

fn fault(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ConnectorError {
    let path = path.display().to_string();
    move |source| ConnectorError::Io { action, path, source }
}
