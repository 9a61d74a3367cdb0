//! An open log with its places: what it is told from others by, where each of its lines ends,
//! and where to go on behind a place of an earlier process.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use turnflow_engine::connector::SourceOffset;

use crate::known_file::{FileMark, HEAD_BYTES, MarkedFile, Past, find, head_of};
use crate::lines::LineReader;
use crate::watch::identity_of;

/// The most bytes that are looked through for the beginning of an unfinished line.
const LONGEST_LINE: u64 = 16 << 20;

/// An open log.
pub(super) struct Log {
    pub(super) lines: LineReader<Headed>,
    /// What tells it from others while it is open.
    pub(super) identity: (u64, u64),
    /// How it is called in positions.
    pub(super) name: String,
    /// Under another name than the source's: it has been renamed or copied.
    pub(super) is_away: bool,
    /// Its mark, once no more of its beginning can come.
    mark: Option<Arc<str>>,
    /// A pipe has no places.
    is_file: bool,
}

impl Log {
    /// A log from its beginning.
    pub(super) fn open(path: &Path, limit: usize) -> io::Result<Self> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        Ok(Self {
            lines: LineReader::new(Headed { file, head: Vec::new(), at: 0 }, limit),
            identity: identity_of(&metadata),
            name: path.display().to_string(),
            is_away: false,
            mark: None,
            is_file: metadata.is_file(),
        })
    }

    /// The same, of one that has another name by now.
    pub(super) fn open_away(path: &Path, limit: usize) -> io::Result<Self> {
        Ok(Self { is_away: true, ..Self::open(path, limit)? })
    }

    /// The log that `place` is in, behind that place; `None` if it is not to be found, or is
    /// not any more what it was.
    pub(super) fn resume(path: &Path, place: &SourceOffset, limit: usize) -> io::Result<Option<Self>> {
        // No line is shorter than its end, but the last, and that is not empty.
        let mark = FileMark::parse(&place.log, place.end).filter(|_| place.line <= place.end);
        let Some(mark) = mark else { return Ok(None) };
        let (mut file, name, is_away) = match find(path, &mark, place.end) {
            MarkedFile::Here(file) => (file, path.to_owned(), false),
            MarkedFile::Away(file, path) => (file, path, true),
            MarkedFile::Gone => return Ok(None),
        };
        let Some((offset, lines)) = behind(&mut file, place, mark.unfinished, limit)? else { return Ok(None) };
        let metadata = file.metadata()?;
        let head = head_of(&file, u64::MAX)?;
        file.seek(SeekFrom::Start(offset))?;
        Ok(Some(Self {
            lines: LineReader::starting_at(Headed { file, head, at: offset }, limit, offset, lines),
            identity: identity_of(&metadata),
            name: name.display().to_string(),
            is_away,
            mark: None,
            is_file: true,
        }))
    }

    /// Before all of its lines.
    pub(super) fn beginning(&self) -> Option<SourceOffset> {
        let log = FileMark::new(&self.name, self.identity, &[], 0).to_log();
        self.is_file.then_some(SourceOffset { log, ..SourceOffset::default() })
    }

    /// What those that came after it are told by.
    pub(super) fn past(&self) -> Option<Past> {
        let Headed { file, head, .. } = self.lines.stream();
        if self.is_file { Past::of(file, head.clone()).ok() } else { None }
    }

    /// Where the present line ends.
    pub(super) fn place(&mut self, generation: u64, unfinished: bool) -> Option<SourceOffset> {
        if !self.is_file {
            return None;
        }
        let (end, line) = (self.lines.position(), self.lines.number());
        let known = self.mark.clone().filter(|_| !unfinished);
        let log = known.unwrap_or_else(|| {
            let head = &self.lines.stream().head;
            let mut mark = FileMark::new(&self.name, self.identity, head, end);
            mark.unfinished = unfinished;
            let log = mark.to_log();
            if !unfinished && end >= HEAD_BYTES as u64 {
                self.mark = Some(log.clone());
            }
            log
        });
        Some(SourceOffset { log, generation, end, line, ..SourceOffset::default() })
    }
}

/// From which byte, behind how many lines, to go on behind `place`; `None` if no line ends
/// there, so that the file has been rewritten.
fn behind(file: &mut File, place: &SourceOffset, unfinished: bool, limit: usize) -> io::Result<Option<(u64, u64)>> {
    if place.end == 0 {
        return Ok(Some((0, 0)));
    }
    if !unfinished {
        file.seek(SeekFrom::Start(place.end - 1))?;
        let mut last = [0];
        file.read_exact(&mut last)?;
        return Ok((last == *b"\n").then_some((place.end, place.line)));
    }
    // The line was handed over as it stood. If nothing but its end has come since, that end
    // is passed over as a blank rest of the same line; else it is another line by now.
    let lines = place.line.saturating_sub(1);
    let mut rest = Vec::new();
    file.seek(SeekFrom::Start(place.end))?;
    Read::by_ref(file).take(2).read_to_end(&mut rest)?;
    if rest.is_empty() || rest == b"\r" || rest.starts_with(b"\n") || rest == b"\r\n" {
        return Ok(Some((place.end, lines)));
    }
    let most = (limit as u64).saturating_add(1).min(LONGEST_LINE).min(place.end);
    let mut before = Vec::new();
    file.seek(SeekFrom::Start(place.end - most))?;
    Read::by_ref(file).take(most).read_to_end(&mut before)?;
    let start = match before.iter().rposition(|byte| *byte == b'\n') {
        Some(newline) => place.end - most + newline as u64 + 1,
        None if most == place.end => 0,
        None => place.end,
    };
    Ok(Some((start, lines)))
}

/// A file whose beginning is kept while it is read.
pub(super) struct Headed {
    file: File,
    head: Vec<u8>,
    /// Where in the file the next byte is read.
    at: u64,
}

impl Read for Headed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        if self.head.len() < HEAD_BYTES
            && let Some(new) = (self.head.len() as u64).checked_sub(self.at)
        {
            let new = buffer[..read].iter().skip(new as usize);
            self.head.extend(new.take(HEAD_BYTES - self.head.len()));
        }
        self.at += read as u64;
        Ok(read)
    }
}
