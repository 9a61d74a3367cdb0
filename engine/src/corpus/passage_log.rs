//! The published passages of a corpus, in a file of the state directory. A start serves them before it has read the source.
//!
//! The file has a header and then *frames*. A frame has passages that a publication added, or the ids of those that it
//! removed, and a hash of itself. Frames are only appended; after much has changed, the file is written anew. The version
//! of the log is its length, with a number of the file, and `epoch.json` names the version that an epoch has. Nothing is
//! synced: after a power loss, a hash does not match, and the start reads the source first, as it does without the file.

mod frame;

use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::frame::{Frame, Passages, Place};
use crate::component::Delta;
use crate::document::Chunk;
use crate::keyed::Keyed;
use crate::mapped::has_room;
use crate::state::PASSAGE_LOG;

/// The name of the file that takes the place of the log.
const NEW: &str = "passages.log.new";

/// What a file begins with. The number changes with the format.
const MAGIC: &[u8; 24] = b"turnflow passage log 1\n\0";
/// Length of the header: the beginning, a hash of the corpus's definition, and the number of the file.
const BEGINNING: usize = 24 + 32 + 8;
/// Bits of a version that are a length.
const LENGTH: u32 = 40;

/// The log is written anew when what is not needed exceeds what is needed by this many bytes.
const GARBAGE: u64 = if cfg!(test) { 4 << 10 } else { 16 << 20 };
/// It is also written anew when it has this many frames more than it needs.
const FRAMES: usize = if cfg!(test) { 200 } else { 20_000 };

/// The log of a corpus.
#[derive(Debug)]
pub(crate) struct PassageLog {
    path: PathBuf,
    /// Hash of the corpus's definition: passages of another definition are not served.
    definition: [u8; 32],
    open: Option<Open>,
}

/// A file that has the published passages.
#[derive(Debug)]
struct Open {
    file: File,
    number: u64,
    end: u64,
    /// Bytes of the frames that the passages need.
    live: u64,
    frames: usize,
}

impl Open {
    fn version(&self) -> u64 {
        self.number << LENGTH | self.end
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl PassageLog {
    /// The log in the directory of a corpus. Nothing is read or written yet.
    pub fn new(directory: &Path, definition: &str) -> Self {
        Self {
            path: directory.join(PASSAGE_LOG),
            definition: *blake3::hash(definition.as_bytes()).as_bytes(),
            open: None,
        }
    }

    /// The passages are those of another definition from now on.
    pub fn define(&mut self, definition: &str) {
        self.definition = *blake3::hash(definition.as_bytes()).as_bytes();
        self.drop_file();
    }

    /// The version; `None` if the log does not have the published passages.
    pub fn version(&self) -> Option<u64> {
        self.open.as_ref().map(Open::version)
    }

    /// Removes the file, and what a killed process has left of a new one.
    pub fn drop_file(&mut self) {
        self.open = None;
        for path in [&self.path, &self.path.with_file_name(NEW)] {
            if let Err(error) = std::fs::remove_file(path)
                && error.kind() != io::ErrorKind::NotFound
                && error.kind() != io::ErrorKind::NotADirectory
            {
                tracing::warn!(%error, path = %path.display(), "cannot remove the log of passages");
            }
        }
    }

    /// Reads the passages at a version, and continues after it.
    ///
    /// # Errors
    ///
    /// The file cannot be read, is damaged, is shorter than the version says, or is that of another definition.
    pub fn read(&mut self, version: u64) -> io::Result<Keyed<Arc<Chunk>>> {
        let (number, end) = (version >> LENGTH, version & ((1 << LENGTH) - 1));
        let file = File::options().read(true).write(true).open(&self.path)?;
        if file.metadata()?.len() < end {
            return Err(invalid("the log is too short"));
        }
        let mut beginning = [0; BEGINNING];
        frame::read_at(&file, &mut beginning, 0)?;
        if beginning[..] != self.beginning(number) {
            return Err(invalid("the log is another one"));
        }
        let places = Place::all(&file, BEGINNING, end as usize)?;
        let frames = frame::read_all(&file, number, &places)?;
        let added = frames.iter().map(Frame::added).sum();
        let mut chunks = Keyed::with_capacity(added);
        let mut live = 0;
        for (frame, place) in frames.into_iter().zip(&places) {
            let gone: u64 = match frame {
                Frame::Added(added) => {
                    live += place.bytes();
                    added.into_iter().filter_map(|chunk| chunks.insert(chunk)).map(|old| frame::bytes(&old)).sum()
                }
                Frame::Removed(ids) => {
                    ids.iter().filter_map(|id| chunks.remove(id)).map(|old| frame::bytes(&old)).sum()
                }
            };
            live = live.saturating_sub(gone);
        }
        // What was written after this epoch.
        file.set_len(end)?;
        self.open = Some(Open { file, number, end, live, frames: places.len() });
        Ok(chunks)
    }

    fn beginning(&self, number: u64) -> Vec<u8> {
        [&MAGIC[..], &self.definition, &number.to_le_bytes()].concat()
    }

    /// Writes the log anew, with these passages.
    ///
    /// # Errors
    ///
    /// It cannot be written. Then there is none.
    pub fn rewrite(&mut self, chunks: &[Arc<Chunk>]) -> io::Result<()> {
        let new = self.path.with_file_name(NEW);
        match self.write(&new, chunks) {
            Ok(open) => self.open = Some(open),
            Err(error) => {
                let _ = std::fs::remove_file(&new);
                self.drop_file();
                return Err(error);
            }
        }
        Ok(())
    }

    fn write(&self, new: &Path, chunks: &[Arc<Chunk>]) -> io::Result<Open> {
        let directory = self.path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(directory)?;
        if !has_room(directory, chunks.iter().map(|chunk| frame::bytes(chunk)).sum())? {
            return Err(io::Error::other("the disk is nearly full"));
        }
        // A file that a version names is never taken for another one.
        let number = RandomState::new().hash_one(0) >> LENGTH;
        let mut file = File::options().read(true).write(true).create(true).truncate(true).open(new)?;
        file.write_all(&self.beginning(number))?;
        let mut open = Open { file, number, end: BEGINNING as u64, live: 0, frames: 0 };
        open.append(Passages::Added(chunks))?;
        std::fs::rename(new, &self.path)?;
        Ok(open)
    }

    /// Appends a change, if the log has the passages before it.
    ///
    /// # Errors
    ///
    /// It cannot be written. Then there is no log.
    pub fn append(&mut self, delta: &Delta) -> io::Result<()> {
        let Some(open) = &mut self.open else { return Ok(()) };
        let appended = open.append(Passages::Removed(&delta.removed));
        let appended = appended.and_then(|()| open.append(Passages::Added(&delta.added)));
        if appended.is_err() {
            self.drop_file();
        }
        appended
    }

    /// Whether most of the log is not needed any more.
    pub fn is_wasteful(&self) -> bool {
        self.open
            .as_ref()
            .is_some_and(|open| open.end > 2 * open.live + GARBAGE || open.frames > FRAMES + frame::needed(open.live))
    }
}

impl Open {
    /// Appends frames with all of the passages.
    fn append(&mut self, passages: Passages<'_>) -> io::Result<()> {
        let before = self.end;
        self.write(passages)?;
        match passages {
            Passages::Added(_) => self.live += self.end - before,
            Passages::Removed(chunks) => {
                let gone = chunks.iter().map(|chunk| frame::bytes(chunk)).sum();
                self.live = self.live.saturating_sub(gone);
            }
        }
        Ok(())
    }

    fn write(&mut self, passages: Passages<'_>) -> io::Result<()> {
        let mut rest = passages;
        let mut buffer = Vec::new();
        while !rest.is_empty() {
            buffer.clear();
            rest = rest.write_frame(self.number, self.end, &mut buffer)?;
            if self.end + buffer.len() as u64 >= 1 << LENGTH {
                return Err(io::Error::other("the log is too long"));
            }
            self.file.seek(SeekFrom::Start(self.end))?;
            self.file.write_all(&buffer)?;
            self.end += buffer.len() as u64;
            self.frames += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
