//! An open file that is read line by line.

use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom};
use std::sync::Arc;

use super::entry::Entry;
use super::identify::unpacked;
use crate::known_file::{Content, Digest};
use crate::lines::{Line, LineReader};

/// Number of bytes that are read at once.
const STEP: usize = 64 << 10;

/// A file whose lines are read.
pub(super) struct Open {
    lines: LineReader<Hashed>,
    /// The stream reads the same handle.
    file: Arc<File>,
    pub is_packed: bool,
}

/// What became of a step.
pub(super) enum Step {
    /// A line is there.
    Line,
    /// The present end; perhaps within a line.
    End,
    /// A packed file ends too soon: it may be written still.
    Short,
}

impl Open {
    /// Opens the file of an entry behind what was read. `None` if it does not have that.
    pub fn of(entry: &Entry, file: File, limit: usize) -> io::Result<Option<Self>> {
        let file = Arc::new(file);
        let handle = file.clone();
        if !is_packed(&file)? {
            if file.metadata()?.len() < entry.length {
                return Ok(None);
            }
            let mut content = Content::of(&file, entry.length)?;
            if entry.length > 0 && content.digest(entry.length) != entry.digest {
                return Ok(None);
            }
            (&*file).seek(SeekFrom::Start(entry.length))?;
            let stream = Hashed { stream: Box::new(Shared(file)), content, at: entry.length };
            return Ok(Some(Self::starting(stream, handle, false, entry, limit)));
        }
        let (mut stream, is_packed) = unpacked(Shared(file))?;
        let mut content = Content::new();
        let mut at = 0;
        let mut bytes = vec![0; STEP];
        while at < entry.length {
            let most = STEP.min(usize::try_from(entry.length - at).unwrap_or(STEP));
            match stream.read(&mut bytes[..most]) {
                Ok(0) => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
                Ok(read) => {
                    content.read(&bytes[..read]);
                    at += read as u64;
                }
            }
        }
        if entry.length > 0 && content.digest(entry.length) != entry.digest {
            return Ok(None);
        }
        let stream = Hashed { stream, content, at };
        Ok(Some(Self::starting(stream, handle, is_packed, entry, limit)))
    }

    fn starting(stream: Hashed, file: Arc<File>, is_packed: bool, entry: &Entry, limit: usize) -> Self {
        let lines = LineReader::starting_at(stream, limit, entry.length, entry.line).without_nuls();
        Self { lines, file, is_packed }
    }

    /// Reads on.
    pub fn step(&mut self) -> io::Result<Step> {
        match self.lines.advance() {
            Ok(true) => Ok(Step::Line),
            Ok(false) => Ok(Step::End),
            Err(error) if self.is_packed && error.kind() == io::ErrorKind::UnexpectedEof => Ok(Step::Short),
            Err(error) => Err(error),
        }
    }

    /// The present line.
    pub fn line(&self) -> Line<'_> {
        self.lines.line()
    }

    /// Number of NUL characters before lines since the last call.
    pub fn take_nuls(&mut self) -> u64 {
        self.lines.take_nuls()
    }

    /// Its number.
    pub fn number(&self) -> u64 {
        self.lines.number()
    }

    /// Whether the end is within a line.
    pub fn is_inside(&self) -> bool {
        self.lines.is_inside()
    }

    /// Where the present line ends, and the digest of what was read up to there.
    pub fn place(&mut self) -> (u64, Digest) {
        let end = self.lines.position();
        (end, self.lines.stream_mut().content.digest(end))
    }

    /// Size of the file, and whether it still has what was read last.
    pub fn stands(&self) -> io::Result<(u64, bool)> {
        let size = self.file.metadata()?.len();
        if self.is_packed {
            return Ok((size, true));
        }
        let Hashed { content, at, .. } = self.lines.stream();
        Ok((size, size >= *at && content.stands(&self.file)))
    }

    /// The handle.
    pub fn file(&self) -> &File {
        &self.file
    }
}

/// Whether a file is packed. Its position does not change.
fn is_packed(file: &File) -> io::Result<bool> {
    let head = crate::known_file::head_of(file, 4)?;
    Ok(turnflow_records::decode::Packing::of(&head).is_some())
}

/// A handle that is also looked at while it is read.
struct Shared(Arc<File>);

impl Read for Shared {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self.0).read(buffer)
    }
}

/// A stream whose content is hashed.
struct Hashed {
    stream: Box<dyn Read>,
    content: Content,
    /// Number of bytes that were read.
    at: u64,
}

impl Read for Hashed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.stream.read(buffer)?;
        self.at += read as u64;
        // The reader of lines reads on when it has taken all that came before.
        self.content.read(&buffer[..read]);
        Ok(read)
    }
}
