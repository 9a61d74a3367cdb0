//! Records at the ends of files that are not complete, such as a line of a container of which a part is there. They wait for
//! the rest, which is read with the file. If nothing more will come, they are given as they are.

use std::path::Path;
use std::time::Duration;

use turnflow_engine::connector::Stopped;
use turnflow_records::decode;

use super::Run;
use super::whole::Chain;
use crate::files::entry::Entry;
use crate::files::identify::logs_of;

/// Maximum size of records that are kept in case their files go, in bytes. More are in their files only.
const MOST: usize = 32 << 20;

/// What waits of a file.
pub(super) struct Held {
    /// The records before it.
    pub chain: Chain,
    /// The records and their places.
    pub records: Vec<(String, String)>,
}

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
fn next_of(path: &Path) -> Option<std::path::PathBuf> {
    let number = path.file_stem()?.to_str()?.parse::<u32>().ok()?;
    let next = path.with_file_name(format!("{}.log", number.checked_add(1)?));
    path.extension().filter(|ending| *ending == "log").map(|_| next)
}

impl Run<'_> {
    /// Keeps what waits, if that is not too much.
    pub(super) fn hold(&mut self, id: u64, held: Held) {
        self.held.remove(&id);
        let size = |held: &Held| held.records.iter().map(|(record, _)| record.len()).sum::<usize>();
        if !held.records.is_empty() && self.held.values().map(size).sum::<usize>() + size(&held) <= MOST {
            self.held.insert(id, held);
        }
    }

    /// Gives what waits of a file that is gone.
    pub(super) fn give_held(&mut self, id: u64) -> Result<(), Stopped> {
        let held = self.held.remove(&id);
        let Some(entry) = self.entries.get_mut(&id).filter(|entry| entry.waits) else { return Ok(()) };
        (entry.waits, entry.is_over) = (false, true);
        let Some(Held { mut chain, records }) = held else {
            tracing::warn!(file = %entry.path.display(), "the file is gone, and its last line had no end: it is not read");
            return Ok(());
        };
        tracing::warn!(file = %entry.path.display(), "the file is gone, and its last line has no end: it is given as it is");
        for (record, position) in records {
            chain.add(record.as_bytes());
            (entry.line, entry.records) = (chain.count, Some(chain.hashes()));
            self.output.line(record.as_bytes(), &position, Some(entry.place(id)))?;
        }
        Ok(())
    }
}
