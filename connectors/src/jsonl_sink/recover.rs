//! Finds the answers in a file with a scan in bounded memory: of each answer it keeps the hash of the key and its
//! position.

mod fields;

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::sync::Arc;

use turnflow_engine::connector::RecoveredAnswers;
use turnflow_engine::record::AnswerRecord;

use self::fields::fields_of;
use crate::lines::{Line, LineReader};

/// Maximum length of a line, in bytes. A longer line is not an answer of this sink.
const LONGEST_LINE: usize = 64 << 20;
/// The start of every line of this sink.
const BEGINNING: &[u8] = b"{\"conversation_id\":";

type KeyHash = [u8; 16];

fn hash_of(key: &str) -> KeyHash {
    let mut hash = [0; 16];
    hash.copy_from_slice(&blake3::hash(key.as_bytes()).as_bytes()[..16]);
    hash
}

/// Position of a line.
struct At {
    /// Index of the file.
    file: usize,
    start: u64,
    length: u64,
}

/// The answers that were found.
#[derive(Default)]
pub(super) struct Found {
    files: Vec<File>,
    answers: HashMap<KeyHash, At>,
}

/// A last line without a newline.
pub(super) struct Torn {
    pub(super) start: u64,
    pub(super) length: u64,
    /// It is a complete JSON object, so only the newline is missing.
    pub(super) is_whole: bool,
    /// It starts like a line of this sink.
    pub(super) is_ours: bool,
}

/// First bytes of compressed files: bzip2, xz, zstd, LZ4, ZIP.
const PACKED: [&[u8]; 5] = [b"BZh", b"\xFD7zXZ\0", b"\x28\xB5\x2F\xFD", b"\x04\x22\x4D\x18", b"PK\x03\x04"];

/// A readable form of the file: content compressed by gzip is unpacked into an unnamed temporary file. `None` for other
/// compression formats.
pub(super) fn unpacked(mut file: File) -> io::Result<Option<File>> {
    let mut start = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    Read::by_ref(&mut file).take(8).read_to_end(&mut start)?;
    file.seek(SeekFrom::Start(0))?;
    if PACKED.iter().any(|magic| start.starts_with(magic)) {
        return Ok(None);
    }
    if !start.starts_with(b"\x1F\x8B") {
        return Ok(Some(file));
    }
    let mut plain = tempfile::tempfile()?;
    let mut packed = flate2::read::MultiGzDecoder::new(BufReader::new(file));
    // If the file is damaged or still being written, the part before that is used.
    if let Err(error) = io::copy(&mut packed, &mut plain) {
        if !matches!(
            error.kind(),
            io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof
        ) {
            return Err(error);
        }
        tracing::warn!(%error, "a compressed file of answers is damaged; reading the part before the damage");
    }
    Ok(Some(plain))
}

impl Found {
    /// Collects the answers after byte `from`. Returns the last line, if it has no newline.
    pub(super) fn scan(&mut self, mut file: File, from: u64) -> io::Result<Option<Torn>> {
        file.seek(SeekFrom::Start(from))?;
        let mut lines = LineReader::starting_at(&file, LONGEST_LINE, from, 0);
        let mut start = from;
        let torn = loop {
            let finished = lines.advance()?;
            if !finished && !lines.is_inside() {
                break None;
            }
            let length = lines.position() - start;
            let (bytes, fields) = match lines.line() {
                Line::Whole(line) => (line, fields_of(line, false)),
                Line::TooLong { start, .. } => (start, None),
            };
            let is_whole = fields.is_some();
            if let Some(key) = fields.and_then(|fields| fields.delivery_key()) {
                self.answers.insert(hash_of(&key), At { file: self.files.len(), start, length });
            }
            if !finished {
                // A power loss may leave zeros in place of the rest of the line. After one while a torn line was being
                // removed, they may be in place of its start: up to the end of its first block.
                let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
                let is_ours =
                    bytes.first() == Some(&0) || BEGINNING.starts_with(&bytes[..end]) || bytes.starts_with(BEGINNING);
                break Some(Torn { start, length, is_whole, is_ours });
            }
            start = lines.position();
        };
        drop(lines);
        self.files.push(file);
        Ok(torn)
    }

    /// The line of the answer with this key.
    fn line(&mut self, key: &str) -> Option<Vec<u8>> {
        let at = self.answers.get(&hash_of(key))?;
        let line = read(self.files.get_mut(at.file)?, at).ok()?;
        (fields_of(&line, false)?.delivery_key().as_deref() == Some(key)).then_some(line)
    }
}

impl RecoveredAnswers for Found {
    fn count(&self) -> usize {
        self.answers.len()
    }

    fn record(&mut self, key: &str) -> Option<AnswerRecord> {
        serde_json::from_slice(&self.line(key)?).ok()
    }

    fn found(&mut self, key: &str) -> Option<Arc<str>> {
        let at = self.answers.get(&hash_of(key))?;
        let file = self.files.get_mut(at.file)?;
        match read(file, at) {
            Ok(line) => {
                let fields = fields_of(&line, true)?;
                (fields.delivery_key().as_deref() == Some(key)).then(|| fields.answer.unwrap_or_default().into())
            }
            // The answer exists anyway, and must not be written again.
            Err(error) => {
                tracing::warn!(%error, key, "cannot read back an existing answer");
                Some(Arc::default())
            }
        }
    }
}

fn read(file: &mut File, at: &At) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    file.seek(SeekFrom::Start(at.start))?;
    file.take(at.length).read_to_end(&mut line)?;
    Ok(line)
}
