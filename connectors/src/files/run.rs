//! Reads the files, and follows them.

mod held;
mod known;
mod lines;
mod list;
#[cfg(test)]
mod tests;
mod whole;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use turnflow_engine::connector::{ConnectorError, Stopped, TurnOutput};
use turnflow_records::decode;

use self::held::{Held, is_over};
use self::known::Known;
use super::entry::{Entry, Form};
use super::listing::Found;
use super::reader::Open;
use super::{Files, Identity, KEPT, order, shown};

/// How often open files are looked at.
const LOOK: Duration = Duration::from_millis(50);
/// A look for new files takes at most this share of the time.
const SHARE: u32 = 10;
/// After files were read as a whole, the next look waits as long as that took, and at most so long.
const LONGEST_REST: Duration = Duration::from_secs(10);
/// How often files are looked at again because some were renamed meanwhile, if they are read once.
const AGAIN: usize = 10;
/// Maximum number of lost files that others may go on with.
const LOST: usize = 10_000;

pub(super) struct Run<'a> {
    files: &'a Files,
    output: &'a TurnOutput,
    follows: bool,
    entries: BTreeMap<u64, Entry>,
    /// Those that are not lost, where they are. An inode may have belonged to another one before.
    by_identity: HashMap<(Identity, Option<u64>), u64>,
    /// Open files, those used last at the end.
    open: Vec<(u64, Open)>,
    next: u64,
    /// The files that are not lost, by their paths.
    by_path: HashMap<PathBuf, u64>,
    /// All files, lost ones too, by their paths without the ending of a packing.
    by_plain: HashMap<PathBuf, Vec<u64>>,
    /// A file was renamed while it was looked at.
    has_missed: bool,
    /// What a warning has told.
    told: HashSet<PathBuf>,
    /// What was said of the dates of files.
    said: HashSet<(PathBuf, String)>,
    /// Open logs of containers, those read last at the end.
    held: Vec<Held>,
    /// How long it took last to list the files.
    listing: Duration,
}

/// Why a file is not read now.
enum Fault {
    Stopped(Stopped),
    Io(io::Error),
}

impl From<Stopped> for Fault {
    fn from(stopped: Stopped) -> Self {
        Self::Stopped(stopped)
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Now, in nanoseconds since 1970.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

impl<'a> Run<'a> {
    pub fn new(files: &'a Files, output: &'a TurnOutput, follows: bool) -> Self {
        let stored = output.resume_partitions().iter();
        let stored = stored.filter_map(|place| Some((place.partition.parse().ok()?, Entry::of(place)?)));
        let mut entries: BTreeMap<u64, Entry> = stored.collect();
        if follows {
            // What waits is read again, in case its file goes.
            entries.values_mut().for_each(|entry| entry.is_pending = entry.waits);
        }
        let by_identity = entries.iter().map(|(id, entry)| (entry.at(), *id)).collect();
        let next = entries.last_key_value().map_or(1, |(last, _)| last + 1);
        let (open, by_path, by_plain) = (Vec::new(), HashMap::new(), HashMap::new());
        let (told, said, held, has_missed) = (HashSet::new(), HashSet::new(), Vec::new(), false);
        Self {
            files,
            output,
            follows,
            entries,
            by_identity,
            open,
            next,
            by_path,
            by_plain,
            has_missed,
            told,
            said,
            held,
            listing: Duration::ZERO,
        }
    }

    /// Reads all files to their ends.
    pub fn once(&mut self) -> Result<(), ConnectorError> {
        for _ in 0..AGAIN {
            self.has_missed = false;
            self.pass()?;
            if !self.has_missed {
                break;
            }
        }
        self.output.caught_up();
        Ok(())
    }

    /// Reads the files as they come and grow.
    pub fn follow(&mut self) -> Result<(), ConnectorError> {
        let every = Duration::from_secs_f64(self.files.config.every_s);
        loop {
            let begun = Instant::now();
            self.pass()?;
            if !self.entries.values().any(|entry| entry.is_pending && !entry.is_lost && entry.form == Form::Whole) {
                self.output.caught_up();
            }
            // Reading waits for the turns that it gives.
            let rest = (self.listing * SHARE).max(begun.elapsed().min(LONGEST_REST));
            let next = Instant::now() + every.max(rest);
            while Instant::now() < next {
                if self.output.stop().wait(LOOK.min(next.saturating_duration_since(Instant::now()))) {
                    return Err(Stopped.into());
                }
                self.look()?;
            }
        }
    }

    /// Reads on in open files.
    fn look(&mut self) -> Result<(), ConnectorError> {
        let open: Vec<u64> = self.open.iter().map(|(id, _)| *id).collect();
        for id in open {
            let Some((_, open)) = self.open.iter().find(|(of, _)| *of == id) else { continue };
            // What is not the same any more is for the next pass.
            let Ok((size, true)) = open.stands() else { continue };
            let Some(entry) = self.entries.get(&id) else { continue };
            // What a copy has more is compared with its original.
            if entry.seen.is_some_and(|(seen, _)| size == seen) || entry.copy_of.is_some() {
                continue;
            }
            let state = open.file().metadata().map(|metadata| Found::of(PathBuf::new(), &metadata, true).state());
            if let Ok(state) = state {
                self.read(id, state, false)?;
            }
        }
        Ok(())
    }

    /// Looks at all files once.
    fn pass(&mut self) -> Result<(), ConnectorError> {
        let begun = Instant::now();
        let found = self.list();
        self.listing = begun.elapsed();
        let by_identity: HashMap<Identity, &Found> = found.iter().map(|file| (file.identity, file)).collect();
        // What is not where it was is read to its end, if it is open, because another file follows.
        let ids: Vec<u64> = self.entries.iter().filter(|(_, entry)| !entry.is_lost).map(|(id, _)| *id).collect();
        for id in ids {
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            match by_identity.get(&entry.identity).filter(|found| entry.is_at(found)) {
                Some(found) => {
                    if entry.path != found.path {
                        entry.path.clone_from(&found.path);
                    }
                    if entry.seen != Some(found.state()) {
                        self.verify(id);
                    }
                }
                None => self.gone(id)?,
            }
        }
        let live = self.entries.iter().filter(|(_, entry)| !entry.is_lost);
        self.by_path = live.map(|(id, entry)| (entry.path.clone(), *id)).collect();
        self.by_plain = HashMap::new();
        for (id, entry) in &self.entries {
            self.by_plain.entry(decode::plain(&entry.path)).or_default().push(*id);
        }
        let mut changed: Vec<&Found> = found.iter().filter(|file| self.is_to_be_read(file)).collect();
        changed.sort_by_cached_key(|file| order::key(file));
        // What goes on with a lost file is older than what is new.
        let mut rest: Vec<(&Found, Option<Known>)> = Vec::new();
        for file in changed {
            let known = if self.live(file).is_none() { self.known_or_told(file) } else { None };
            match known {
                Some(Known::Lost(id)) => self.take(file, Known::Lost(id))?,
                known => rest.push((file, known)),
            }
        }
        for (file, known) in rest {
            match self.live(file) {
                Some(id) => self.go_on(file, id)?,
                None => known.map_or(Ok(()), |known| self.take(file, known))?,
            }
        }
        self.forget();
        Ok(())
    }

    /// The file that is known by the inode of this one.
    fn live(&self, file: &Found) -> Option<u64> {
        // What an older version has stored may lack when the file was made.
        let at = [(file.identity, file.created), (file.identity, None)];
        let id = at.iter().find_map(|at| self.by_identity.get(at).copied())?;
        self.entries.get(&id).filter(|entry| !entry.is_lost && entry.is_at(file)).map(|_| id)
    }

    /// Whether a file is new, or has changed.
    fn is_to_be_read(&self, file: &Found) -> bool {
        match self.live(file).and_then(|id| self.entries.get(&id)) {
            Some(entry) => {
                entry.seen != Some(file.state()) || entry.is_pending || entry.waits && is_over(&file.path, entry)
            }
            None => file.size > 0,
        }
    }

    /// A file whose lines were read and that does not have them any more is lost: copies of it come before what it has now.
    fn verify(&mut self, id: u64) {
        if self.is_appended() && self.is_rewritten(id).unwrap_or_default() {
            return self.rewritten(id);
        }
        let Some(entry) = self.entries.get(&id).filter(|entry| entry.form == Form::Lines).cloned() else { return };
        match self.opened(id, &entry) {
            Ok(Some(open)) if entry.copy_of.is_none() => self.keep(id, open),
            Ok(Some(_)) => {}
            Ok(None) => self.rewritten(id),
            // Reading it says so.
            Err(_) => {}
        }
    }

    /// Keeps a file open. The one that was not used for longest is closed, if there are too many.
    fn keep(&mut self, id: u64, open: Open) {
        self.open.push((id, open));
    }

    /// A file is no more where it was. What is left of it is read, if it is open.
    fn gone(&mut self, id: u64) -> Result<(), ConnectorError> {
        let state = self.open.iter().find(|(of, _)| *of == id).and_then(|(_, open)| {
            let is_same = open.stands().is_ok_and(|(_, stands)| stands);
            let metadata = open.file().metadata().ok().filter(|_| is_same)?;
            Some(Found::of(PathBuf::new(), &metadata, true).state())
        });
        if let Some(state) = state {
            self.read(id, state, true)?;
        }
        self.finish(id)?;
        self.lost(id);
        Ok(())
    }

    fn lost(&mut self, id: u64) {
        self.open.retain(|(of, _)| *of != id);
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.is_lost = true;
        }
    }

    /// Drops those that were lost first, if they are too many.
    fn forget(&mut self) {
        let lost: Vec<u64> = self.entries.iter().filter(|(_, entry)| entry.is_lost).map(|(id, _)| *id).collect();
        for id in lost.iter().take(lost.len().saturating_sub(LOST)) {
            if let Some(entry) = self.entries.remove(id)
                && self.by_identity.get(&entry.at()) == Some(id)
            {
                self.by_identity.remove(&entry.at());
            }
        }
    }

    fn tell(&mut self, path: &Path, error: &io::Error) {
        self.has_missed |= error.kind() == io::ErrorKind::NotFound;
        if error.kind() != io::ErrorKind::NotFound && self.told.insert(path.to_owned()) {
            tracing::warn!(file = %path.display(), %error, "a log cannot be read; will retry");
        }
    }

    /// Reads on in a file that was in this state before. `is_end`: what it has now is all of it.
    fn read(&mut self, id: u64, state: (u64, u64), is_end: bool) -> Result<(), ConnectorError> {
        let Some(form) = self.entries.get(&id).map(|entry| entry.form) else { return Ok(()) };
        let done = match form {
            Form::Lines => self.lines(id, state, is_end),
            Form::Whole => self.whole(id, state, is_end),
        };
        match done {
            Ok(()) => Ok(()),
            Err(Fault::Stopped(stopped)) => Err(stopped.into()),
            Err(Fault::Io(error)) => {
                self.open.retain(|(of, _)| *of != id);
                let path = self.entries.get(&id).map(|entry| entry.path.clone()).unwrap_or_default();
                if self.follows || error.kind() == io::ErrorKind::NotFound {
                    self.tell(&path, &error);
                    return Ok(());
                }
                Err(ConnectorError::Io { action: "read", path: shown(&path), source: error })
            }
        }
    }

    /// Whether a file in this state has not changed for a while. A time that is still to come says nothing.
    fn is_quiet(&self, (_, modified): (u64, u64)) -> bool {
        let now = now();
        modified > now || now - modified >= (self.files.config.quiet_s * 1e9) as u64
    }

    /// The open file of an entry, taken from the list. `None` if the file does not have what was read.
    fn opened(&mut self, id: u64, entry: &Entry) -> io::Result<Option<Open>> {
        if let Some(at) = self.open.iter().position(|(of, _)| *of == id) {
            let (_, open) = self.open.remove(at);
            return Ok(open.stands()?.1.then_some(open));
        }
        if self.open.len() >= KEPT {
            self.open.remove(0);
        }
        let file = File::open(&entry.path)?;
        if !entry.is_at(&Found::of(PathBuf::new(), &file.metadata()?, true)) {
            // It was renamed since it was found.
            return Err(io::ErrorKind::NotFound.into());
        }
        Open::of(entry, file, self.files.config.max_line_bytes)
    }
}
