//! Logs of containers, which are open while they grow: what a file has when it goes is read to its end. A record at its end
//! that is not complete waits for the rest. If nothing more will come, it is given as it is.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use turnflow_engine::connector::Stopped;
use turnflow_records::decode;

use super::Run;
use super::whole::Chain;
use crate::files::KEPT;
use crate::files::entry::Entry;
use crate::files::identify::{compared, logs_of};
use crate::files::listing::Found;

/// How long a file must not have changed to be over because another one has the name of the next.
const OLD: Duration = Duration::from_secs(60);

/// Whether nothing more is written to a file at this path: it was renamed or packed, as logs are rotated, or has not changed
/// for a while, and there is a log of which it is a rotated one by its name, or that of its container that was started again.
pub(super) fn is_over(path: &Path, entry: &Entry) -> bool {
    let is_packed = || decode::plain(path) != path;
    let has_next = || logs_of(path).iter().any(|log| log.exists()) || next_of(path).is_some_and(|path| path.exists());
    let is_old = || {
        let modified = path.metadata().and_then(|metadata| metadata.modified());
        modified.is_ok_and(|modified| modified.elapsed().is_ok_and(|age| age >= OLD))
    };
    entry.is_over || path != entry.first || is_packed() || has_next() && is_old()
}

/// `1.log` of `0.log`, as Kubernetes names the logs of a container.
fn next_of(path: &Path) -> Option<PathBuf> {
    let number = path.file_stem()?.to_str()?.parse::<u32>().ok()?;
    let next = path.with_file_name(format!("{}.log", number.checked_add(1)?));
    path.extension().filter(|ending| *ending == "log").map(|_| next)
}

/// An open log of a container.
pub(super) struct Held {
    id: u64,
    file: File,
    /// Where it can be read on.
    rest: Option<Rest>,
}

/// A place in a file behind which it can be read on: what was read up to there, and the hashes of all that was read then.
#[derive(Clone)]
pub(super) struct Rest {
    pub place: decode::Place,
    pub chain: Chain,
    pub records: Option<(String, String)>,
}

impl Run<'_> {
    /// Where a file can be read on, of which this was read and is still there.
    pub(super) fn rest(&self, id: u64, entry: &Entry) -> Option<Rest> {
        let rest = self.held.iter().find(|held| held.id == id)?.rest.as_ref()?;
        let is_it = rest.records.is_some() && rest.records == entry.records && self.twins(id, entry).next().is_none();
        is_it.then(|| rest.clone())
    }

    /// Whether lines are only appended to the files, though these are read as a whole.
    pub(super) fn is_appended(&self) -> bool {
        self.files.options.form() == Some("container")
    }

    /// Whether a file does not begin with what was read of it any more, as one that was copied and truncated.
    pub(super) fn is_rewritten(&self, id: u64) -> io::Result<bool> {
        let is_read = |entry: &&Entry| entry.length > 0 && decode::plain(&entry.path) == entry.path;
        let Some(entry) = self.entries.get(&id).filter(is_read) else { return Ok(false) };
        let file = File::open(&entry.path)?;
        if !entry.is_at(&Found::of(PathBuf::new(), &file.metadata()?, true)) {
            // It was renamed since it was found.
            return Ok(false);
        }
        Ok(compared(file, &[(entry.length, entry.digest.clone())])? != [true])
    }

    /// A file does not have what was read of it any more: it is lost.
    pub(super) fn rewritten(&mut self, id: u64) {
        if let Some(entry) = self.entries.get(&id) {
            tracing::info!(file = %entry.path.display(), "the file was truncated or rewritten");
        }
        self.held.retain(|held| held.id != id);
        self.lost(id);
    }

    /// Keeps a file open that grows. The one that was read first is closed, if there are too many.
    pub(super) fn hold(&mut self, id: u64, file: File, rest: Option<Rest>) {
        self.held.retain(|held| held.id != id);
        if self.held.len() >= KEPT {
            self.held.remove(0);
        }
        self.held.push(Held { id, file, rest });
    }

    /// Reads what is left of a file that is gone, if it is open.
    pub(super) fn finish(&mut self, id: u64) -> Result<(), Stopped> {
        let at = self.held.iter().position(|held| held.id == id);
        let file = at.map(|at| self.held.remove(at).file);
        let Some(entry) = self.entries.get_mut(&id) else { return Ok(()) };
        let (path, waited) = (entry.path.clone(), std::mem::take(&mut entry.waits));
        let Some(file) = file else {
            if waited {
                tracing::warn!(file = %path.display(), "the file is gone, and its last line had no end: it is not read");
            }
            return Ok(());
        };
        entry.is_over = true;
        let read = (entry.line, entry.records.clone());
        let (mut chain, mut is_it, mut stopped) = (Chain::default(), read.0 == 0, None);
        let output = self.output;
        let each = &mut |found: decode::Found| {
            let record = chain.take(&found);
            if chain.count == read.0 {
                is_it = read.1.as_ref().is_some_and(|(all, _)| *all == chain.hash());
            } else if chain.count > read.0 && is_it && stopped.is_none() {
                stopped = chain.give(output, id, entry, &found, &record).err();
            }
        };
        let odd = decode::read_open(&file, &path, &self.files.options, each, decode::Growing::default());
        if let Some(stopped) = stopped {
            return Err(stopped);
        }
        match odd {
            Ok(odd) if odd.unfinished > 0 && is_it => {
                tracing::warn!(file = %path.display(), "the file is gone, and its last line has no end: it is given as it is");
            }
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(file = %path.display(), %error, "what is left of a file that is gone cannot be read")
            }
        }
        Ok(())
    }
}
