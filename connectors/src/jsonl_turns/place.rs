//! An open log with its offsets: its identity, the end of each line, and where to resume after an offset of an earlier
//! process.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use turnflow_engine::connector::SourceOffset;

use crate::known_file::{Content, Digest, FileMark, HEAD_BYTES, MarkedFile, Past, find, head_of};
use crate::lines::LineReader;
use crate::watch::identity_of;

/// Maximum number of bytes to search for the start of an unfinished line.
const LONGEST_LINE: u64 = 16 << 20;

/// The last line that was delivered.
#[derive(Default)]
struct Last {
    /// Where it ends, and its number.
    end: u64,
    line: u64,
    /// Whether it was unfinished.
    unfinished: bool,
    /// What was read up to its end; `None` before the first line.
    digest: Option<Digest>,
}

/// An open log.
pub(super) struct Log {
    pub(super) lines: LineReader<Headed>,
    /// Identifies the log while it is open.
    pub(super) identity: (u64, u64),
    /// The log's name in positions.
    pub(super) name: String,
    /// Whether the log has a different name than the source's path: it was renamed or copied.
    pub(super) is_away: bool,
    /// The last line that was delivered.
    last: Last,
    /// Whether it is a regular file. A pipe has no offsets.
    is_file: bool,
}

impl Log {
    /// Opens a log at its beginning.
    pub(super) fn open(path: &Path, limit: usize) -> io::Result<Self> {
        let mut file = File::open(path)?;
        let metadata = file.metadata()?;
        let mut head = Vec::new();
        if metadata.is_file() {
            head = head_of(&file, u64::MAX)?;
            file.rewind()?;
        }
        Ok(Self {
            lines: LineReader::new(Headed { file, head, at: 0, content: Content::new() }, limit),
            identity: identity_of(&metadata),
            name: path.display().to_string(),
            is_away: false,
            last: Last::default(),
            is_file: metadata.is_file(),
        })
    }

    /// Opens a log that has been renamed.
    pub(super) fn open_away(path: &Path, limit: usize) -> io::Result<Self> {
        Ok(Self { is_away: true, ..Self::open(path, limit)? })
    }

    /// Opens the log of the offset `place`, positioned after it. `None` if the log cannot be found or was rewritten.
    pub(super) fn resume(path: &Path, place: &SourceOffset, limit: usize) -> io::Result<Option<Self>> {
        // Every line has at least one byte for its newline, and an unfinished last line is not empty.
        let mark = match place.end {
            0 => FileMark::parse_beginning(&place.log),
            end => FileMark::parse(&place.log, end),
        };
        let Some(mark) = mark.filter(|_| place.line <= place.end) else { return Ok(None) };
        let (mut file, name, is_away) = match find(path, &mark, place.end) {
            MarkedFile::Here(file) => (file, path.to_owned(), false),
            MarkedFile::Away(file, path) => (file, path, true),
            MarkedFile::Gone => return Ok(None),
        };
        let Some((offset, lines)) = behind(&mut file, place, mark.unfinished, limit)? else { return Ok(None) };
        let metadata = file.metadata()?;
        let head = head_of(&file, u64::MAX)?;
        let mut content = Content::of(&file, offset)?;
        file.seek(SeekFrom::Start(offset))?;
        let unfinished = mark.unfinished && offset == place.end;
        let line = if unfinished { place.line } else { lines };
        let digest = (offset > 0).then(|| content.digest(offset));
        Ok(Some(Self {
            lines: LineReader::starting_at(Headed { file, head, at: offset, content }, limit, offset, lines),
            identity: identity_of(&metadata),
            name: name.display().to_string(),
            is_away,
            last: Last { end: offset, line, unfinished, digest },
            is_file: true,
        }))
    }

    /// The known first bytes.
    pub(super) fn head(&self) -> &[u8] {
        &self.lines.stream().head
    }

    /// The data for recognising later logs.
    pub(super) fn past(&self) -> Option<Past> {
        let Headed { file, head, .. } = self.lines.stream();
        if self.is_file { Past::of(file, head.clone()).ok() } else { None }
    }

    /// Whether the file still has what was read last. If not, it was rewritten, and what follows is not its rest.
    pub(super) fn stands(&self) -> bool {
        let Headed { file, at, content, .. } = self.lines.stream();
        !self.is_file || self.lines.position() != *at || content.stands(file)
    }

    /// The offset at the end of the present line, which is being delivered.
    pub(super) fn place(&mut self, generation: u64, unfinished: bool) -> Option<SourceOffset> {
        let (end, line) = (self.lines.position(), self.lines.number());
        let digest = if self.is_file { Some(self.lines.stream_mut().content.digest(end)) } else { None };
        self.last = Last { end, line, unfinished, digest };
        self.last_place(generation)
    }

    /// The offset at the end of the last delivered line. Before the first line, its mark covers the present content.
    pub(super) fn last_place(&self, generation: u64) -> Option<SourceOffset> {
        if !self.is_file {
            return None;
        }
        let Last { end, line, unfinished, digest } = &self.last;
        let length = if *end == 0 { u64::MAX } else { *end };
        let metadata = self.lines.stream().file.metadata().ok()?;
        let mut mark = FileMark::new(&self.name, &metadata, self.head(), length).read(digest.as_ref(), &metadata);
        mark.unfinished = *unfinished;
        Some(SourceOffset { log: mark.to_log(), generation, end: *end, line: *line, ..SourceOffset::default() })
    }
}

/// The byte offset, and the number of lines before it, at which to resume after `place`. `None` if no line ends there:
/// the file was rewritten.
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
    // The unfinished line was delivered as it was. If only its line end was added since, that is skipped as the empty
    // rest of the same line. Otherwise the line has changed.
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

/// A file whose first bytes are kept while it is read, and whose content is hashed.
pub(super) struct Headed {
    file: File,
    head: Vec<u8>,
    /// Offset in the file of the next byte.
    at: u64,
    content: Content,
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
        // The reader of lines reads on when it has taken all that came before.
        self.content.read(&buffer[..read]);
        Ok(read)
    }
}
