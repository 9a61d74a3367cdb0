//! Which of the known files an unknown one is, and what was read of it under another name.

use std::fs::File;
use std::io;
use std::path::Path;

use turnflow_engine::connector::ConnectorError;
use turnflow_records::decode;

use super::Run;
use super::whole::content;
use crate::files::entry::{Entry, Form};
use crate::files::identify::{compared, is_beginning, is_utf_16, logs_of, may_be};
use crate::files::listing::Found;
use crate::known_file::Digest;

/// Which file an unknown one is.
pub(super) enum Known {
    /// It goes on with a lost one.
    Lost(u64),
    /// It is a copy of one that is still there.
    Copy(u64),
    New,
}

impl Run<'_> {
    /// Which file one is that is not known by its inode; none if it cannot be read, which is told.
    pub(super) fn known_or_told(&mut self, file: &Found) -> Option<Known> {
        if file.size == 0 {
            return None;
        }
        match self.known(file) {
            Ok(known) => Some(known),
            Err(error) => {
                self.tell(&file.path, &error);
                None
            }
        }
    }

    pub(super) fn known(&mut self, file: &Found) -> io::Result<Known> {
        // A document that is put in the place of another one goes on with that, if its records do. A log that is only appended
        // to is another one then, unless it has what was read.
        let plain = decode::plain(&file.path);
        let is_there =
            |entry: &Entry| entry.is_lost && entry.form == Form::Whole && decode::plain(&entry.path) == plain;
        let there = self.entries.iter().filter(|(_, entry)| !self.is_appended() && is_there(entry));
        // Of a copy in another packing, less may be known.
        if let Some((id, _)) = there.max_by_key(|(_, entry)| (entry.path == file.path, entry.line)) {
            return Ok(Known::Lost(*id));
        }
        // Of the lost ones that it may be, the one of which it has most.
        let mut lost: Vec<(u64, u64, Digest)> = Vec::new();
        for (id, entry) in self.entries.iter().filter(|(_, entry)| entry.is_lost && entry.length > 0) {
            if may_be(entry, file) {
                lost.push((*id, entry.length, entry.digest.clone()));
            }
        }
        lost.sort_by_key(|(id, length, _)| (*length, *id));
        if !lost.is_empty() {
            let lengths: Vec<(u64, Digest)> =
                lost.iter().map(|(_, length, digest)| (*length, digest.clone())).collect();
            let equal = compared(File::open(&file.path)?, &lengths)?;
            if let Some((id, ..)) =
                lost.iter().zip(equal).filter(|(_, is_equal)| *is_equal).map(|(one, _)| one).next_back()
            {
                return Ok(Known::Lost(*id));
            }
        }
        // A copy of one that is still there, as before it is truncated.
        for path in logs_of(&file.path) {
            let Some(id) = self.by_path.get(&path) else { continue };
            if self.entries.get(id).is_some_and(|entry| !entry.is_lost)
                && is_beginning(File::open(&file.path)?, File::open(&path)?)?
            {
                return Ok(Known::Copy(*id));
            }
        }
        Ok(Known::New)
    }

    /// A copy of a file that is there has nothing new, once it is complete and that file is read so far.
    pub(super) fn copied(&mut self, file: &Found, of: u64) -> io::Result<()> {
        if self.follows && !self.is_quiet(file.state()) {
            return Ok(());
        }
        let (length, digest) = content(File::open(&file.path)?)?;
        let Some(original) = self.entries.get(&of).filter(|original| length <= original.length) else { return Ok(()) };
        let mut entry = Entry::new(file, original.form);
        (entry.seen, entry.copy_of) = (Some(file.state()), Some(of));
        if length == original.length {
            (entry.line, entry.records) = (original.line, original.records.clone());
        }
        (entry.length, entry.digest) = (length, digest);
        let id = self.live(file).unwrap_or(self.next);
        self.next = self.next.max(id + 1);
        self.output.begins(entry.place(id));
        self.entries.insert(id, entry);
        self.by_identity.insert((file.identity, file.created), id);
        self.by_path.insert(file.path.clone(), id);
        Ok(())
    }

    /// Reads a file that was read before, or is a copy of one that was.
    pub(super) fn go_on(&mut self, file: &Found, id: u64) -> Result<(), ConnectorError> {
        let copy = self.entries.get(&id).map_or(Ok(None), |entry| self.is_copy(id, entry));
        if let Some(of) = copy.unwrap_or_default() {
            return self.take(file, Known::Copy(of));
        }
        match self.parts(id, file.state()) {
            Ok(false) => self.adopt(id),
            Ok(true) => return Ok(()),
            Err(error) => {
                self.tell(&file.path, &error);
                return Ok(());
            }
        }
        self.read(id, file.state(), !self.follows)?;
        // It was rewritten, and may be a new one.
        if self.entries.get(&id).is_some_and(|entry| entry.is_lost)
            && let Some(known) = self.known_or_told(file)
        {
            self.take(file, known)?;
        }
        Ok(())
    }

    /// Reads a file that is not known by its inode: it goes on with a lost one, or copies another one, or is new.
    pub(super) fn take(&mut self, file: &Found, known: Known) -> Result<(), ConnectorError> {
        match known {
            // Another file has gone on with it since.
            Known::Lost(id) if self.entries.get(&id).is_none_or(|entry| !entry.is_lost) => Ok(()),
            Known::Copy(of) => {
                if let Err(error) = self.copied(file, of) {
                    self.tell(&file.path, &error);
                }
                Ok(())
            }
            Known::Lost(id) => {
                if let Some(entry) = self.entries.get_mut(&id) {
                    if entry.path != file.path {
                        tracing::info!(file = %file.path.display(), was = %entry.path.display(), "going on in this file");
                    }
                    entry.moved(file);
                }
                self.by_identity.insert((file.identity, file.created), id);
                self.by_path.insert(file.path.clone(), id);
                // A copy that is written once more may have been truncated first.
                match self.entries.get(&id).is_some_and(|entry| entry.copy_of.is_some()) {
                    true => self.go_on(file, id),
                    false => self.read(id, file.state(), !self.follows),
                }
            }
            Known::New if file.matches => {
                let form = match self.files.options.form() {
                    Some(form) => form.to_owned(),
                    None => decode::form_of(&file.path).to_owned(),
                };
                // Lines of UTF-16 are not read one by one.
                let is_lines = form == "jsonl" && !is_utf_16(&file.path).unwrap_or(false);
                let form = if is_lines { Form::Lines } else { Form::Whole };
                let id = self.next;
                self.next += 1;
                self.entries.insert(id, Entry::new(file, form));
                self.by_path.insert(file.path.clone(), id);
                self.by_plain.entry(decode::plain(&file.path)).or_default().push(id);
                self.by_identity.insert((file.identity, file.created), id);
                self.adopt(id);
                self.read(id, file.state(), !self.follows)
            }
            Known::New => Ok(()),
        }
    }

    /// The file of which this one is a copy: it was one before, or it is the same in another packing.
    pub(super) fn is_copy(&self, id: u64, entry: &Entry) -> io::Result<Option<u64>> {
        let twins = self.twins(id, entry).filter(|(_, twin)| entry.form == Form::Lines && twin.copy_of != Some(id));
        for of in entry.copy_of.into_iter().chain(twins.map(|(of, _)| of)) {
            if let Some(original) = self.entries.get(&of).filter(|original| !original.is_lost)
                && is_beginning(File::open(&entry.path)?, File::open(&original.path)?)?
            {
                return Ok(Some(of));
            }
        }
        Ok(None)
    }

    /// What a copy has that its original does not have goes on with it, once that is lost; what goes on in another way is a
    /// file of its own. Returns whether this cannot be told yet, as while less is copied than was read: a copy may be
    /// written slowly, and must not be read from where it ended.
    pub(super) fn parts(&mut self, id: u64, state: (u64, u64)) -> io::Result<bool> {
        let Some(entry) = self.entries.get(&id) else { return Ok(false) };
        let Some(original) = entry.copy_of.and_then(|of| self.entries.get(&of)).cloned() else { return Ok(false) };
        let has_it = |path: &Path| compared(File::open(path)?, &[(original.length, original.digest.clone())]);
        let goes_on = match original.is_lost {
            true => has_it(&entry.path)?.first().copied(),
            // It may have been truncated since it was looked at: the next look finds that.
            false => (has_it(&original.path).ok().as_deref() == Some(&[true])).then_some(false),
        };
        let Some(entry) = self.entries.get_mut(&id) else { return Ok(false) };
        let Some(goes_on) = goes_on else {
            if original.is_lost {
                entry.seen = Some(state);
            }
            return Ok(true);
        };
        let Entry { length, digest, line, records, .. } = match goes_on {
            true => original,
            false => Entry { length: 0, digest: Digest::default(), line: 0, records: None, ..original },
        };
        (entry.length, entry.digest, entry.line, entry.records, entry.copy_of) = (length, digest, line, records, None);
        self.open.retain(|(of, _)| *of != id);
        Ok(false)
    }

    /// The files that have the path of this one, but for the packing.
    pub(super) fn twins(&self, id: u64, entry: &Entry) -> impl Iterator<Item = (u64, &Entry)> {
        let ids = self.by_plain.get(&decode::plain(&entry.path));
        let ids = ids.into_iter().flatten().filter(move |of| **of != id);
        let form = entry.form;
        ids.filter_map(|of| Some((*of, self.entries.get(of)?))).filter(move |(_, of)| of.form == form)
    }

    /// A log that was packed and is written unpacked again, or packed once more, has what was read of it in the other form.
    pub(super) fn adopt(&mut self, id: u64) {
        let Some(entry) = self.entries.get(&id).filter(|entry| entry.form == Form::Lines) else { return };
        let mut read: Vec<(u64, Digest, u64)> = self
            .twins(id, entry)
            .filter(|(_, twin)| twin.length > entry.length)
            .map(|(_, twin)| (twin.length, twin.digest.clone(), twin.line))
            .collect();
        if read.is_empty() {
            return;
        }
        read.sort_by_key(|(length, ..)| *length);
        let lengths: Vec<(u64, Digest)> = read.iter().map(|(length, digest, _)| (*length, digest.clone())).collect();
        // Reading it says what is wrong with it.
        let equal = File::open(&entry.path).and_then(|file| compared(file, &lengths)).unwrap_or_default();
        let most = read.into_iter().zip(equal).filter(|(_, is_equal)| *is_equal).map(|(one, _)| one).next_back();
        if let (Some((length, digest, line)), Some(entry)) = (most, self.entries.get_mut(&id)) {
            (entry.length, entry.digest, entry.line) = (length, digest, line);
            self.open.retain(|(of, _)| *of != id);
        }
    }
}
