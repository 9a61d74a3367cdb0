//! Splits a byte stream into lines with bounded memory: of a line longer than the limit, only the start is kept, and
//! the rest is skipped.
//!
//! At the end of the stream, an unfinished line is kept, so that a reader of a growing file can continue where it
//! stopped.

use std::io::{self, BufRead, BufReader, ErrorKind, Read};

const BUFFER_BYTES: usize = 64 * 1024;
const BOM: &[u8] = b"\xEF\xBB\xBF";

/// A line without its line end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line<'a> {
    /// The whole line.
    Whole(&'a [u8]),
    /// A line longer than the limit: its start, and its length in bytes.
    TooLong { start: &'a [u8], bytes: u64 },
}

/// Splits a stream into lines.
pub(crate) struct LineReader<R> {
    reader: BufReader<R>,
    limit: usize,
    line: Vec<u8>,
    bytes: u64,
    number: u64,
    finished: bool,
    position: u64,
    /// Number of NUL characters before lines, if they are dropped.
    nuls: Option<u64>,
}

impl<R: Read> LineReader<R> {
    /// Keeps at most `limit` bytes of a line.
    pub(crate) fn new(stream: R, limit: usize) -> Self {
        Self::starting_at(stream, limit, 0, 0)
    }

    /// Like [`Self::new`], for a stream at the byte `position`, after `lines` lines.
    pub(crate) fn starting_at(stream: R, limit: usize, position: u64, lines: u64) -> Self {
        Self {
            reader: BufReader::with_capacity(BUFFER_BYTES, stream),
            limit,
            line: Vec::new(),
            bytes: 0,
            number: lines,
            finished: true,
            position,
            nuls: None,
        }
    }

    /// The underlying stream.
    pub(crate) fn stream(&self) -> &R {
        self.reader.get_ref()
    }

    /// The same, to change it.
    pub(crate) fn stream_mut(&mut self) -> &mut R {
        self.reader.get_mut()
    }

    /// Reads on. Returns true when a line is complete, false at the (present) end of the stream, where [`Self::line`]
    /// is the available part of an unfinished line.
    pub(crate) fn advance(&mut self) -> io::Result<bool> {
        if self.finished {
            self.line.clear();
            self.bytes = 0;
            self.number += 1;
            self.finished = false;
        }
        if let Some(nuls) = self.nuls.filter(|_| self.bytes == 0) {
            self.nuls = Some(nuls + self.pass_nuls()?);
        }
        loop {
            let room = self.limit.saturating_sub(self.line.len());
            let read = if room > 0 && self.bytes == self.line.len() as u64 {
                // The standard library's search for the newline is fast.
                let before = self.line.len();
                let result = (&mut self.reader).take(room as u64).read_until(b'\n', &mut self.line);
                let read = self.line.len() - before;
                self.bytes += read as u64;
                result?;
                if self.line.last() == Some(&b'\n') && read > 0 {
                    self.line.pop();
                    self.bytes -= 1;
                    self.finished = true;
                } else if read < room {
                    self.position += read as u64;
                    return Ok(false);
                }
                read
            } else {
                self.pass_over()?
            };
            self.position += read as u64;
            if self.finished {
                return Ok(true);
            }
            if read == 0 {
                return Ok(false);
            }
        }
    }

    /// Drops NUL characters before lines: a program that writes on where it was in a log that was truncated leaves a hole, as
    /// a disk that lost its power does.
    pub(crate) fn without_nuls(self) -> Self {
        Self { nuls: Some(0), ..self }
    }

    /// Passes over NUL characters; returns their number.
    fn pass_nuls(&mut self) -> io::Result<u64> {
        let mut passed = 0;
        loop {
            let buffer = match self.reader.fill_buf() {
                Ok(buffer) => buffer,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let count = buffer.iter().position(|byte| *byte != 0).unwrap_or(buffer.len());
            if count == 0 {
                return Ok(passed);
            }
            self.reader.consume(count);
            self.position += count as u64;
            passed += count as u64;
        }
    }

    /// Number of NUL characters before lines since the last call.
    pub(crate) fn take_nuls(&mut self) -> u64 {
        self.nuls.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Skips bytes of an overlong line, up to its end or the end of the buffer.
    fn pass_over(&mut self) -> io::Result<usize> {
        let buffer = loop {
            match self.reader.fill_buf() {
                Ok(_) => break self.reader.buffer(),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        };
        let end = buffer.iter().position(|byte| *byte == b'\n');
        let read = end.map_or(buffer.len(), |end| end + 1);
        self.bytes += end.unwrap_or(read) as u64;
        self.finished = end.is_some();
        self.reader.consume(read);
        Ok(read)
    }

    /// The line that the last [`Self::advance`] has read, complete or not.
    pub(crate) fn line(&self) -> Line<'_> {
        if self.bytes > self.line.len() as u64 {
            return Line::TooLong { start: &self.line, bytes: self.bytes };
        }
        let mut line = self.line.as_slice();
        if self.number == 1 {
            line = line.strip_prefix(BOM).unwrap_or(line);
        }
        Line::Whole(line.strip_suffix(b"\r").unwrap_or(line))
    }

    /// The number of that line, from 1.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Whether the stream is in the middle of a line.
    pub(crate) fn is_inside(&self) -> bool {
        !self.finished && self.bytes > 0
    }

    /// Number of bytes that were read, from the start of the stream.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[u8], limit: usize) -> Vec<(u64, Vec<u8>, Option<u64>)> {
        let mut reader = LineReader::new(bytes, limit);
        let mut lines = Vec::new();
        loop {
            let finished = reader.advance().unwrap();
            if !finished && !reader.is_inside() {
                return lines;
            }
            lines.push(match reader.line() {
                Line::Whole(line) => (reader.number(), line.to_vec(), None),
                Line::TooLong { start, bytes } => (reader.number(), start.to_vec(), Some(bytes)),
            });
            if !finished {
                return lines;
            }
        }
    }

    #[test]
    fn splits_and_numbers() {
        assert_eq!(
            all(b"\xEF\xBB\xBFa\r\n\nbc", 10),
            [(1, b"a".to_vec(), None), (2, vec![], None), (3, b"bc".to_vec(), None)]
        );
        assert_eq!(all(b"", 10), []);
        assert_eq!(all(b"a\n", 10), [(1, b"a".to_vec(), None)]);
    }

    #[test]
    fn long_lines_are_cut_and_read_past() {
        assert_eq!(
            all(b"abc\nabcd\nabcdefgh\nxyz\nabcdef", 3),
            [
                (1, b"abc".to_vec(), None),
                (2, b"abc".to_vec(), Some(4)),
                (3, b"abc".to_vec(), Some(8)),
                (4, b"xyz".to_vec(), None),
                (5, b"abc".to_vec(), Some(6)),
            ]
        );
    }

    #[test]
    fn nul_characters_before_a_line_are_dropped_and_counted() {
        let bytes = [&[0; 200_000][..], b"a\nb\0c\n\0\0d\n\0\0"].concat();
        let mut reader = LineReader::new(&bytes[..], 3).without_nuls();
        for line in [b"a".as_slice(), b"b\0c", b"d"] {
            assert!(reader.advance().unwrap());
            assert_eq!(reader.line(), Line::Whole(line));
        }
        assert!(!reader.advance().unwrap() && !reader.is_inside());
        assert_eq!((reader.position(), reader.take_nuls(), reader.take_nuls()), (bytes.len() as u64, 200_004, 0));
        assert_eq!(all(b"\0a\n", 3), [(1, b"\0a".to_vec(), None)]);
    }

    #[test]
    fn starts_where_it_is_told() {
        let mut reader = LineReader::starting_at(&b"\xEF\xBB\xBFc\nd"[..], 10, 4, 2);
        assert!(reader.advance().unwrap());
        assert_eq!((reader.number(), reader.position()), (3, 9));
        // A byte order mark that is not at the start of the stream is kept.
        assert_eq!(reader.line(), Line::Whole(b"\xEF\xBB\xBFc"));
    }

    #[test]
    fn an_unfinished_line_is_gone_on_with() {
        struct Pieces(Vec<&'static [u8]>);
        impl Read for Pieces {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                // An empty piece is a temporary end of file.
                let piece = if self.0.is_empty() { b"" } else { self.0.remove(0) };
                buffer[..piece.len()].copy_from_slice(piece);
                Ok(piece.len())
            }
        }
        let mut reader = LineReader::new(Pieces(vec![b"ab", b"", b"c\nd", b"", b"ef", b"", b"gh\n"]), 3);
        assert!(!reader.advance().unwrap());
        assert_eq!(reader.line(), Line::Whole(b"ab"));
        assert!(reader.is_inside());
        assert!(reader.advance().unwrap());
        assert_eq!((reader.number(), reader.line()), (1, Line::Whole(b"abc")));
        assert!(!reader.advance().unwrap());
        assert!(!reader.advance().unwrap());
        assert_eq!(reader.line(), Line::Whole(b"def"));
        assert!(reader.advance().unwrap());
        assert_eq!(reader.line(), Line::TooLong { start: b"def", bytes: 5 });
    }
}
