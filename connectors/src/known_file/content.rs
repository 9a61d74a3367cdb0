//! Identifies what was read of a file up to a position.
//!
//! Logs often begin alike: each day's with the same questions of a monitor, or with the same header. So the first bytes
//! do not identify a log; all bytes up to the position do. They are hashed as they are read. Of a long log, the first
//! [`BODY_BYTES`] and the last [`TAIL_BYTES`] before the position count, so that a restart need not read all of it.

use std::fs::File;
use std::io;
#[cfg(not(unix))]
use std::io::{Read, Seek, SeekFrom};

use blake3::Hasher;

/// Maximum number of bytes from the start that are hashed.
pub(super) const BODY_BYTES: u64 = if cfg!(test) { 64 << 10 } else { 64 << 20 };
/// Number of bytes before the position that are hashed in addition, if it lies beyond.
const TAIL_BYTES: usize = 4096;

/// Number of bytes that are read at once.
const STEP: usize = 64 << 10;

/// Hashes of what was read up to a position, in hexadecimal digits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Digest {
    /// Of the bytes from the start, at most [`BODY_BYTES`].
    pub(super) body: String,
    /// Of the last bytes, if there are more.
    pub(super) tail: Option<String>,
}

impl Digest {
    /// It as a text.
    pub(crate) fn told(&self) -> String {
        let Self { body, tail } = self;
        tail.as_ref().map_or_else(|| body.clone(), |tail| format!("{body} {tail}"))
    }

    /// The digest that was told so.
    pub(crate) fn parse(told: &str) -> Self {
        match told.split_once(' ') {
            Some((body, tail)) => Self { body: body.to_owned(), tail: Some(tail.to_owned()) },
            None => Self { body: told.to_owned(), tail: None },
        }
    }
}

/// The bytes of a file that were read, as far as they are needed for a [`Digest`].
pub(crate) struct Content {
    hasher: Hasher,
    /// Number of bytes from the start that are read, and that are hashed.
    at: u64,
    hashed: u64,
    /// The bytes before `at`: those that are not hashed yet, and the last ones before them.
    recent: Vec<u8>,
}

impl Content {
    /// Nothing is read yet.
    pub(crate) fn new() -> Self {
        Self { hasher: Hasher::new(), at: 0, hashed: 0, recent: Vec::new() }
    }

    /// What a file has up to `position`. The file's own position does not change, because the handle may be a clone of one
    /// that is being read.
    ///
    /// # Errors
    ///
    /// The file is shorter, or cannot be read.
    pub(crate) fn of(file: &File, position: u64) -> io::Result<Self> {
        let mut hasher = Hasher::new();
        let (body, mut at) = (position.min(BODY_BYTES), 0);
        let mut bytes = vec![0; STEP.min(body as usize)];
        while at < body {
            let part = STEP.min((body - at) as usize);
            at += part as u64;
            read_exact_at(file, &mut bytes[..part], at)?;
            hasher.update(&bytes[..part]);
        }
        Ok(Self { hasher, at: position, hashed: body, recent: before(file, position)? })
    }

    /// Takes what a file has up to `position`, which may be before the bytes that were taken last.
    ///
    /// # Errors
    ///
    /// As for [`Content::of`].
    pub(crate) fn go_to(&mut self, file: &File, position: u64) -> io::Result<()> {
        let is_far = position < self.at || position - self.at > BODY_BYTES;
        if is_far || (self.at == 0 && position > 0) {
            *self = Self::of(file, position)?;
            return Ok(());
        }
        let mut bytes = vec![0; STEP.min((position - self.at) as usize)];
        while self.at < position {
            let part = STEP.min((position - self.at) as usize);
            read_exact_at(file, &mut bytes[..part], self.at + part as u64)?;
            self.read(&bytes[..part]);
        }
        Ok(())
    }

    /// Takes the bytes that follow. The caller has finished with all that came before them: no digest of an earlier
    /// position is asked for.
    pub(crate) fn read(&mut self, bytes: &[u8]) {
        self.hash_to(self.at);
        self.recent.drain(..self.recent.len().saturating_sub(TAIL_BYTES));
        self.recent.extend_from_slice(bytes);
        self.at += bytes.len() as u64;
    }

    fn hash_to(&mut self, position: u64) {
        let to = position.min(BODY_BYTES);
        if to > self.hashed {
            let start = self.at - self.recent.len() as u64;
            self.hasher.update(&self.recent[(self.hashed - start) as usize..(to - start) as usize]);
            self.hashed = to;
        }
    }

    /// The digest of what was read up to `position`, which is not before the last bytes that were taken.
    pub(crate) fn digest(&mut self, position: u64) -> Digest {
        self.hash_to(position);
        let tail = (position > BODY_BYTES).then(|| {
            let end = self.recent.len() - (self.at - position) as usize;
            blake3::hash(&self.recent[end.saturating_sub(TAIL_BYTES)..end]).to_hex().to_string()
        });
        Digest { body: self.hasher.finalize().to_hex().to_string(), tail }
    }

    /// Whether the file still has the last bytes that were read. If it cannot be read, nothing speaks against it.
    pub(crate) fn stands(&self, file: &File) -> bool {
        let last = &self.recent[self.recent.len().saturating_sub(TAIL_BYTES)..];
        match before(file, self.at) {
            Ok(now) => now.ends_with(last) || last.ends_with(&now),
            Err(error) => error.kind() != io::ErrorKind::UnexpectedEof,
        }
    }
}

/// The last bytes of a file before a position.
pub(super) fn before(file: &File, position: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; position.min(TAIL_BYTES as u64) as usize];
    read_exact_at(file, &mut bytes, position)?;
    Ok(bytes)
}

/// Reads the bytes before `end`. The file's own position does not change.
#[cfg(unix)]
pub(super) fn read_exact_at(file: &File, bytes: &mut [u8], end: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, end - bytes.len() as u64)
}

#[cfg(not(unix))]
pub(super) fn read_exact_at(mut file: &File, bytes: &mut [u8], end: u64) -> io::Result<()> {
    let at = file.stream_position()?;
    file.seek(SeekFrom::Start(end - bytes.len() as u64))?;
    let read = file.read_exact(bytes);
    file.seek(SeekFrom::Start(at))?;
    read
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, SeekFrom, Write};

    use super::*;

    #[test]
    fn a_digest_does_not_depend_on_how_it_was_read() {
        let bytes: Vec<u8> = (0..BODY_BYTES as u32 + 20_000).flat_map(|number| (number % 251).to_le_bytes()).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        for step in [1000, 4096, 70_000] {
            let mut content = Content::new();
            let mut position = 0_u64;
            for part in bytes.chunks(step) {
                content.read(part);
                for at in [position + 1, position + part.len() as u64 / 2 + 1, position + part.len() as u64] {
                    let of_file = Content::of(&file, at).unwrap().digest(at);
                    assert_eq!(content.digest(at), of_file, "{step} {at}");
                    assert_eq!(of_file.tail.is_some(), at > BODY_BYTES);
                    assert_eq!(Digest::parse(&of_file.told()), of_file);
                }
                position += part.len() as u64;
            }
            assert!(content.stands(&file));
            let end = bytes.len() as u64;
            for at in [end, 3, 0, 5000, BODY_BYTES + 9, end] {
                content.go_to(&file, at).unwrap();
                assert_eq!(content.digest(at), Content::of(&file, at).unwrap().digest(at), "{at}");
            }
            content.go_to(&file, end + 1).err().unwrap();
        }
        Content::of(&file, bytes.len() as u64 + 1).err().unwrap();
        file.seek(SeekFrom::Start(7)).unwrap();
        Content::of(&file, 5000).unwrap();
        assert_eq!(super::super::head_of(&file, 9000).unwrap(), bytes[..super::super::HEAD_BYTES]);
        assert_eq!(file.stream_position().unwrap(), 7, "a clone of the handle may be reading");
    }

    #[test]
    fn every_byte_up_to_the_limit_and_the_last_ones_count() {
        let bytes = vec![b'x'; 2 * BODY_BYTES as usize];
        let digest = |change: Option<usize>| {
            let mut bytes = bytes.clone();
            change.into_iter().for_each(|at| bytes[at] = b'y');
            let mut content = Content::new();
            content.read(&bytes);
            content.digest(bytes.len() as u64)
        };
        for change in [0, 5000, BODY_BYTES as usize - 1, bytes.len() - 4096, bytes.len() - 1] {
            assert_ne!(digest(Some(change)), digest(None), "{change}");
        }
    }
}
