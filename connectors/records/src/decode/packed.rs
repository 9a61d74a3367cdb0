//! Packed files (gzip, zstd): what is in them.

use std::io::{self, BufRead as _, BufReader, Read};
use std::path::{Path, PathBuf};

/// The endings of packed files.
const ENDINGS: [&str; 5] = ["gz", "gzip", "zst", "zstd", "z"];

/// How a file is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// gzip (RFC 1952), perhaps in several members.
    Gzip,
    /// Zstandard (RFC 8878), perhaps in several frames.
    Zstd,
}

impl Packing {
    /// How a file that begins with these bytes is packed.
    #[must_use]
    pub fn of(beginning: &[u8]) -> Option<Self> {
        match beginning {
            [0x1f, 0x8b, 8, ..] => Some(Self::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Self::Zstd),
            _ => None,
        }
    }

    /// A reader of what is in a packed file.
    ///
    /// # Errors
    ///
    /// There is no memory for it.
    pub fn reader<'a>(self, packed: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
        Ok(match self {
            Self::Gzip => Box::new(flate2::read::MultiGzDecoder::new(packed)),
            Self::Zstd => Box::new(zstd::stream::read::Decoder::new(packed)?),
        })
    }
}

/// A reader of what is in a file, if it is packed, and else of the file.
pub(super) fn unpacked<'a>(file: Box<dyn Read + 'a>) -> io::Result<Box<dyn Read + 'a>> {
    let mut file = BufReader::with_capacity(1 << 16, file);
    match Packing::of(file.fill_buf()?) {
        Some(packing) => packing.reader(file),
        None => Ok(Box::new(file)),
    }
}

/// The path without the ending of a packed file.
#[must_use]
pub fn plain(path: &Path) -> PathBuf {
    let is_packed = path.extension().is_some_and(|ending| {
        let ending = ending.to_string_lossy().to_ascii_lowercase();
        ENDINGS.contains(&&*ending)
    });
    if is_packed { path.with_extension("") } else { path.to_owned() }
}
