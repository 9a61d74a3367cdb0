//! Files that are read as a whole.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use turnflow_records::decode;

use super::{Fault, Run};
use crate::files::columns;
use crate::files::entry::Entry;
use crate::files::identify::unpacked;
use crate::files::listing::Found;
use crate::known_file::{Content, Digest};

impl Run<'_> {
    /// Reads a file as a whole. What comes after the records that were read is new; if these have changed, all is.
    pub(super) fn whole(&mut self, id: u64, state: (u64, u64), is_end: bool) -> Result<(), Fault> {
        let Some(mut entry) = self.entries.get(&id).cloned() else { return Ok(()) };
        let is_quiet = self.is_quiet(state);
        if !is_end && !is_quiet {
            entry.is_pending = true;
            self.entries.insert(id, entry);
            return Ok(());
        }
        let known = self.same(id, &entry)?;
        // A program that writes it anew empties it first.
        let is_changed = |path: &Path| {
            let now = fs::metadata(path).map(|metadata| Found::of(PathBuf::new(), &metadata, true).state());
            now.is_ok_and(|now| now != state)
        };
        if self.follows && is_changed(&entry.path) {
            entry.is_pending = true;
            self.entries.insert(id, entry);
            return Ok(());
        }
        let mut chain = Chain::default();
        let mut stopped = None;
        let (output, path) = (self.output, entry.path.clone());
        let each = &mut |found: Result<decode::Record, (decode::Source, decode::DecodeError)>| {
            let (record, position) = match &found {
                Ok(record) => (record.value.to_string(), record.source.to_string()),
                Err((source, error)) => (error.to_string(), source.to_string()),
            };
            chain.add(record.as_bytes());
            if chain.count <= known || stopped.is_some() {
                return;
            }
            (entry.line, entry.records, entry.seen) = (chain.count, Some(chain.hashes()), None);
            match found {
                Ok(_) => stopped = output.line(record.as_bytes(), &position, Some(entry.place(id))).err(),
                Err(_) => output.dead_letter(&position, &format!("not read: {record}"), b""),
            }
        };
        let odd = decode::read(&path, &self.files.options, true, Some(&columns), each)?;
        if let Some(stopped) = stopped {
            return Err(stopped.into());
        }
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
        for told in odd.of_dates() {
            if self.said.insert((path.clone(), told.clone())) {
                tracing::warn!(file = %path.display(), "{told}");
            }
        }
        let metadata = fs::metadata(&path)?;
        let file = File::open(&path)?;
        (entry.length, entry.digest) = content(file)?;
        let now = Found::of(PathBuf::new(), &metadata, true).state();
        (entry.seen, entry.is_pending) = (Some(state), now != state);
        (entry.line, entry.records) = (chain.count, Some(chain.hashes()));
        self.output.begins(entry.place(id));
        self.entries.insert(id, entry);
        Ok(())
    }

    /// The chain of the records of a file; `each` sees it after each of them.
    fn chain(&self, path: &Path, each: &mut dyn FnMut(&Chain)) -> io::Result<Chain> {
        let mut chain = Chain::default();
        let add = &mut |found: Result<decode::Record, (decode::Source, decode::DecodeError)>| {
            match found {
                Ok(record) => chain.add(record.value.to_string().as_bytes()),
                Err((_, error)) => chain.add(error.to_string().as_bytes()),
            }
            each(&chain);
        };
        decode::read(path, &self.files.options, true, Some(&columns), add)?;
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
        let chain = self.chain(&entry.path, &mut |chain| {
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
            if self.chain(&twin.path, is_here).is_ok() && is_beginning && is_it {
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
#[derive(Default)]
pub(super) struct Chain {
    count: u64,
    last: [u8; 32],
    before: [u8; 32],
}

impl Chain {
    fn add(&mut self, record: &[u8]) {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.last).update(record);
        (self.before, self.last) = (self.last, *hasher.finalize().as_bytes());
        self.count += 1;
    }

    fn hash(&self) -> String {
        blake3::Hash::from(self.last).to_hex().to_string()
    }

    /// The hashes of all, and of all but the last.
    fn hashes(&self) -> (String, String) {
        (self.hash(), blake3::Hash::from(self.before).to_hex().to_string())
    }
}

/// The length and the digest of what is in a file, unpacked.
pub(super) fn content(file: File) -> io::Result<(u64, Digest)> {
    use std::io::Read as _;
    let (mut stream, _) = unpacked(file)?;
    let (mut content, mut length) = (Content::new(), 0);
    let mut bytes = vec![0; 64 << 10];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return Ok((length, content.digest(length))),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok((length, content.digest(length))),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
            Ok(read) => {
                content.read(&bytes[..read]);
                length += read as u64;
            }
        }
    }
}
