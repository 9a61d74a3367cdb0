//! Files that are read as a whole.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{self, Seek as _};
use std::path::{Path, PathBuf};

use turnflow_engine::connector::{Stopped, TurnOutput};
use turnflow_records::decode;

use super::held::{Rest, is_over};
use super::{Fault, Run};
use crate::files::columns;
use crate::files::entry::Entry;
use crate::files::identify::unpacked;
use crate::files::listing::Found;
use crate::known_file::{Content, Digest};

/// Number of bytes that are read at once.
const STEP: usize = 64 << 10;

impl Run<'_> {
    /// Reads a file as a whole. What comes after the records that were read is new; if these have changed, all is.
    pub(super) fn whole(&mut self, id: u64, state: (u64, u64), is_end: bool) -> Result<(), Fault> {
        let Some(mut entry) = self.entries.get(&id).cloned() else { return Ok(()) };
        let is_quiet = self.is_quiet(state);
        // Lines that are only appended are read as they come.
        let is_appended = self.is_appended();
        // So are those of one that was renamed just now, before those of the next one. Its end may still be written.
        let is_open = !entry.is_over && !is_end && !is_quiet && decode::plain(&entry.path) == entry.path;
        let grows = is_appended && (is_open || !is_over(&entry.path, &entry));
        entry.is_over = is_appended && !grows;
        if !is_end && !is_quiet && !grows {
            entry.is_pending = true;
            self.entries.insert(id, entry);
            return Ok(());
        }
        let rest = if grows { self.rest(id, &entry) } else { None };
        let known = if rest.is_some() { entry.line } else { self.same(id, &entry)? };
        // A program that writes it anew empties it first.
        let is_changed = |path: &Path| {
            let now = fs::metadata(path).map(|metadata| Found::of(PathBuf::new(), &metadata, true).state());
            now.is_ok_and(|now| now != state)
        };
        if self.follows && !grows && is_changed(&entry.path) {
            entry.is_pending = true;
            self.entries.insert(id, entry);
            return Ok(());
        }
        let file = File::open(&entry.path)?;
        if !entry.is_at(&Found::of(PathBuf::new(), &file.metadata()?, true)) {
            // It was renamed since it was found.
            return Err(Fault::Io(io::ErrorKind::NotFound.into()));
        }
        // It may have been truncated since it was looked at, while others were read: the next look finds that.
        let Some(read) = (if grows { grown(&file, &entry)? } else { Some(Default::default()) }) else {
            self.has_missed = true;
            entry.is_pending = true;
            self.entries.insert(id, entry);
            return Ok(());
        };
        let (from, chain) = rest.map(|rest| (rest.place, rest.chain)).unwrap_or_default();
        let (chain, rest) = (RefCell::new(chain.clone()), RefCell::new((from, chain)));
        let (mut stopped, mut open) = (None, Vec::new());
        let (output, path) = (self.output, entry.path.clone());
        let each = &mut |found: decode::Found| {
            let chain = &mut *chain.borrow_mut();
            let record = chain.take(&found);
            if chain.count > known && stopped.is_none() {
                stopped = chain.give(output, id, &mut entry, &found, &record).err();
            }
        };
        let rests = &mut |place| *rest.borrow_mut() = (place, chain.borrow().clone());
        let waiting = &mut |record: decode::Record| open.push((record.value.to_string(), record.source.to_string()));
        let options = &self.files.options;
        let odd = match grows {
            true => {
                let growing = decode::Growing { open: Some(waiting), rests: Some(rests), from };
                decode::read_open(&file, &path, options, each, growing)?
            }
            false => decode::read(&path, options, true, Some(&columns), each)?,
        };
        if let Some(stopped) = stopped {
            return Err(stopped.into());
        }
        let chain = chain.into_inner();
        if chain.count < known {
            if let Some(entry) = self.entries.get_mut(&id) {
                entry.is_pending = true;
            }
            return Ok(());
        }
        if odd.unread > 0 && self.told.insert(path.clone()) {
            tracing::warn!(file = %path.display(), files = odd.unread, "files without text in an archive are not read");
        }
        if odd.before > 0 && self.told.insert(path.clone()) {
            tracing::warn!(file = %path.display(), lines = odd.before, "lines before the first message are not read");
        }
        for told in odd.remarks() {
            // Of a file that grows, the numbers do, too.
            let kind = told.chars().filter(|letter| !letter.is_ascii_digit()).collect();
            if self.said.insert((path.clone(), kind)) {
                tracing::warn!(file = %path.display(), "{told}");
            }
        }
        entry.waits = !open.is_empty();
        if let Some((record, position)) = open.first().filter(|_| !self.follows) {
            let reason = "the file ends within this line, which is read when it is complete";
            self.output.dead_beginning(position, reason, record.as_bytes());
        }
        // One that grows may be another one at its path by now.
        (entry.length, entry.digest) = if grows { read } else { content(File::open(&path)?)? };
        (entry.seen, entry.is_pending) = (Some(state), !grows && is_changed(&path));
        (entry.line, entry.records) = (chain.count, Some(chain.hashes()));
        self.output.begins(entry.place(id));
        self.entries.insert(id, entry);
        if grows && self.follows {
            let ((place, chain), records) = (rest.into_inner(), Some(chain.hashes()));
            self.hold(id, file, Some(Rest { place, chain, records }));
        }
        Ok(())
    }

    /// The chain of the records of a file; `each` sees it after each of them.
    fn chain(&self, entry: &Entry, each: &mut dyn FnMut(&Chain)) -> io::Result<Chain> {
        let mut chain = Chain::default();
        let add = &mut |found: decode::Found| {
            chain.take(&found);
            each(&chain);
        };
        let options = &self.files.options;
        match self.is_appended() && !entry.is_over {
            true => {
                let growing = decode::Growing { open: Some(&mut |_| {}), ..decode::Growing::default() };
                decode::read_open(&File::open(&entry.path)?, &entry.path, options, add, growing)?
            }
            false => decode::read(&entry.path, options, true, Some(&columns), add)?,
        };
        Ok(chain)
    }

    /// How many of the records of a file were read before: all, all but the last, which has grown, or none. They may have
    /// been read of the file in another packing.
    fn same(&self, id: u64, entry: &Entry) -> io::Result<u64> {
        let read: Vec<(u64, &(String, String))> = std::iter::once(entry)
            .chain(self.twins(id, entry).map(|(_, twin)| twin))
            .filter_map(|of| Some((of.line, of.records.as_ref().filter(|_| of.line > 0)?)))
            .collect();
        if read.is_empty() {
            return Ok(0);
        }
        let mut same = 0;
        let chain = self.chain(entry, &mut |chain| {
            let hash = chain.hash();
            let is_read = |(line, (all, before)): &(u64, &(String, String))| {
                chain.count == *line && hash == *all || chain.count + 1 == *line && hash == *before
            };
            if read.iter().any(is_read) {
                same = chain.count;
            }
        })?;
        // Of the other one more may have been read than this one has.
        for (_, twin) in self.twins(id, entry) {
            let Some((all, _)) = twin.records.as_ref().filter(|_| same < chain.count && twin.line > chain.count) else {
                continue;
            };
            // What is at its path may be newer, if it has what was read.
            let (mut is_beginning, mut is_it) = (false, false);
            let is_here = &mut |of: &Chain| {
                is_beginning |= of.count == chain.count && of.last == chain.last;
                is_it |= of.count == twin.line && of.hash() == *all;
            };
            if self.chain(twin, is_here).is_ok() && is_beginning && is_it {
                same = chain.count;
            }
        }
        if same == 0 && entry.line > 0 {
            tracing::info!(file = %entry.path.display(), "the file was rewritten; its records are read again");
        }
        Ok(same)
    }
}

/// Hashes of records, one after another.
#[derive(Clone, Default)]
pub(super) struct Chain {
    pub count: u64,
    last: [u8; 32],
    before: [u8; 32],
}

impl Chain {
    /// Adds a record, or why it cannot be read; gives its text.
    pub fn take(&mut self, found: &decode::Found) -> String {
        let text = match found {
            Ok(record) => record.value.to_string(),
            Err((_, error)) => error.to_string(),
        };
        self.add(text.as_bytes());
        text
    }

    /// Delivers the last record, which is the last one that was read of this file.
    pub fn give(
        &self,
        output: &TurnOutput,
        id: u64,
        entry: &mut Entry,
        found: &decode::Found,
        text: &str,
    ) -> Result<(), Stopped> {
        (entry.line, entry.records, entry.seen) = (self.count, Some(self.hashes()), None);
        match found {
            Ok(record) => output.line(text.as_bytes(), &record.source.to_string(), Some(entry.place(id))),
            Err((source, _)) => {
                output.dead_letter(&source.to_string(), &format!("not read: {text}"), b"");
                Ok(())
            }
        }
    }

    fn add(&mut self, record: &[u8]) {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.last).update(record);
        (self.before, self.last) = (self.last, *hasher.finalize().as_bytes());
        self.count += 1;
    }

    pub fn hash(&self) -> String {
        blake3::Hash::from(self.last).to_hex().to_string()
    }

    /// The hashes of all, and of all but the last.
    fn hashes(&self) -> (String, String) {
        (self.hash(), blake3::Hash::from(self.before).to_hex().to_string())
    }
}

/// The length and the digest of what is in a file that grows, if it begins with what was read of it.
fn grown(file: &File, entry: &Entry) -> io::Result<Option<(u64, Digest)>> {
    let mut file = file.try_clone()?;
    file.rewind()?;
    content_behind(file, (entry.length, &entry.digest))
}

/// The length and the digest of what is in a file, unpacked.
pub(super) fn content(file: File) -> io::Result<(u64, Digest)> {
    Ok(content_behind(file, (0, &Digest::default()))?.unwrap_or_default())
}

/// The same, if it begins with so many bytes of this digest.
fn content_behind(file: File, (known, digest): (u64, &Digest)) -> io::Result<Option<(u64, Digest)>> {
    use std::io::Read as _;
    let (mut stream, _) = unpacked(file)?;
    let (mut content, mut length) = (Content::new(), 0);
    let mut bytes = vec![0; STEP];
    loop {
        let before = known.checked_sub(length).filter(|before| *before > 0);
        let most = before.map_or(STEP, |before| STEP.min(usize::try_from(before).unwrap_or(STEP)));
        let is_end = match stream.read(&mut bytes[..most]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => true,
            Err(error) => return Err(error),
            Ok(read) => {
                content.read(&bytes[..read]);
                length += read as u64;
                read == 0
            }
        };
        if is_end {
            return Ok((length >= known).then(|| (length, content.digest(length))));
        }
        if length == known && content.digest(known) != *digest {
            return Ok(None);
        }
    }
}
