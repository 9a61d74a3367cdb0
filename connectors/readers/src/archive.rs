//! Opens the zip archives that office files and books are. What is unpacked is counted while it is unpacked, whatever
//! the archive says about its sizes.

use std::collections::HashMap;
use std::io::{Cursor, Read};

use zip::ZipArchive;
use zip::result::ZipError;

use super::{ReadError, decode};

/// Maximum number of files in an archive.
const MOST_PARTS: u64 = 1 << 16;
/// Maximum number of bytes that may be unpacked: these, and for each packed byte so many more. Text in XML rarely packs
/// to less than a thirtieth of its size.
const FREE_BYTES: u64 = 16 << 20;
const MOST_RATIO: u64 = 64;
/// Maximum number of bytes that may be unpacked from any archive.
const MOST_BYTES: u64 = 256 << 20;

/// An open archive.
pub(super) struct Archive<'a> {
    zip: ZipArchive<Cursor<&'a [u8]>>,
    /// The position of each part. Names are in lower case, since office programs ignore it.
    parts: HashMap<String, usize>,
    pub(super) format: &'static str,
    limit: u64,
    /// Number of bytes that may still be unpacked.
    left: u64,
}

impl<'a> Archive<'a> {
    /// Opens an archive of a format, which errors name.
    ///
    /// # Errors
    ///
    /// The bytes are not a zip archive, or an encrypted office file, or have too many parts.
    pub(super) fn open(format: &'static str, bytes: &'a [u8]) -> Result<Self, ReadError> {
        const OLE: &[u8] = b"\xD0\xCF\x11\xE0\xA1\xB1\x1A\xE1";
        if bytes.starts_with(OLE) {
            // Programs put an encrypted file into a container of the older formats.
            let package: Vec<u8> = "EncryptedPackage".encode_utf16().flat_map(u16::to_le_bytes).collect();
            if bytes.windows(package.len()).any(|window| window == package) {
                return Err(ReadError::Encrypted { format });
            }
            return Err(ReadError::Broken { format, reason: "it is in an older format".to_owned() });
        }
        check_parts(bytes)?;
        let zip = ZipArchive::new(Cursor::new(bytes)).map_err(|error| broken(format, &error))?;
        let mut parts = HashMap::new();
        for at in 0..zip.len() {
            if let Some(name) = zip.name_for_index(at) {
                parts.entry(name.to_lowercase()).or_insert(at);
            }
        }
        let limit = (bytes.len() as u64).saturating_mul(MOST_RATIO).saturating_add(FREE_BYTES).min(MOST_BYTES);
        Ok(Self { zip, parts, format, limit, left: limit })
    }

    /// The text of a part; `None` if there is no such part. An absolute path may start with `/`.
    ///
    /// # Errors
    ///
    /// The part is damaged, encrypted or not text, or all parts so far unpack to too much.
    pub(super) fn part(&mut self, path: &str) -> Result<Option<String>, ReadError> {
        let Some(at) = self.parts.get(&path.trim_start_matches('/').to_lowercase()).copied() else { return Ok(None) };
        let format = self.format;
        let file = self.zip.by_index(at).map_err(|error| broken(format, &error))?;
        let mut bytes = Vec::new();
        let read = file.take(self.left + 1).read_to_end(&mut bytes);
        if bytes.len() as u64 > self.left {
            return Err(ReadError::TooMany { what: "bytes when it is unpacked", limit: self.limit });
        }
        self.left -= bytes.len() as u64;
        read.map_err(|error| ReadError::Broken { format, reason: format!("{path}: {error}") })?;
        decode(&bytes).map(Some)
    }

    /// The text of a part that must be there.
    pub(super) fn needed(&mut self, path: &str) -> Result<String, ReadError> {
        let format = self.format;
        self.part(path)?.ok_or_else(|| ReadError::Broken { format, reason: format!("it has no part `{path}`") })
    }
}

/// Counts the entries in the lists of parts, before the reader makes room for as many as the archive claims.
fn check_parts(bytes: &[u8]) -> Result<(), ReadError> {
    let mut entries = 0;
    for (at, window) in bytes.windows(4).enumerate() {
        match window {
            b"PK\x01\x02" => entries += 1,
            b"PK\x06\x06" => {
                let count = bytes.get(at + 32..at + 40).and_then(|count| count.try_into().ok()).map(u64::from_le_bytes);
                entries = entries.max(count.unwrap_or_default());
            }
            _ => {}
        }
        if entries > MOST_PARTS {
            return Err(ReadError::TooMany { what: "files in the archive", limit: MOST_PARTS });
        }
    }
    Ok(())
}

fn broken(format: &'static str, error: &ZipError) -> ReadError {
    match error {
        ZipError::UnsupportedArchive(ZipError::PASSWORD_REQUIRED) => ReadError::Encrypted { format },
        error => ReadError::Broken { format, reason: error.to_string() },
    }
}

/// Resolves the path of a part, or of a book's page, relative to the folder of another part.
pub(super) fn resolve(base: &str, target: &str) -> String {
    let mut parts: Vec<&str> = if target.starts_with('/') {
        Vec::new()
    } else {
        base.rsplit_once('/').map_or("", |(folder, _)| folder).split('/').collect()
    };
    for part in target.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." | "" => {}
            part => parts.push(part),
        }
    }
    parts.retain(|part| !part.is_empty());
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::zipped;

    #[test]
    fn parts_are_found_whatever_their_case() {
        let bytes = zipped(&[("Word/Document.xml", "text"), ("b", "\u{FEFF}marked")]);
        let mut archive = Archive::open("docx", &bytes).unwrap();
        assert_eq!(archive.part("/word/document.xml").unwrap().as_deref(), Some("text"));
        assert_eq!(archive.part("b").unwrap().as_deref(), Some("marked"));
        assert_eq!(archive.part("c").unwrap(), None);
        assert_eq!(archive.needed("c").unwrap_err().to_string(), "broken docx: it has no part `c`");
    }

    #[test]
    fn bombs_are_stopped_while_they_unpack() {
        let bomb = zipped(&[("a", &"0".repeat(40 << 20))]);
        assert!(bomb.len() < 100_000);
        let error = Archive::open("docx", &bomb).unwrap().part("a").unwrap_err().to_string();
        assert!(error.starts_with("more than ") && error.ends_with(" bytes when it is unpacked"), "{error}");
        // The parts share one limit, as those that overlap do.
        let some = zipped(&[("a", &"0".repeat(10 << 20)), ("b", "b")]);
        let mut archive = Archive::open("docx", &some).unwrap();
        let reads = (0..4).map(|_| archive.part("a").map(drop));
        assert!(reads.collect::<Result<Vec<_>, _>>().is_err());
    }

    #[test]
    fn sizes_that_the_archive_claims_are_not_trusted() {
        let mut bytes = zipped(&[("a", &"text ".repeat(1000))]);
        // The unpacked size is in the entry and in the list of entries.
        for at in 0..bytes.len() - 4 {
            let field = match &bytes[at..at + 4] {
                b"PK\x03\x04" => at + 22,
                b"PK\x01\x02" => at + 24,
                _ => continue,
            };
            bytes[field..field + 4].copy_from_slice(&1_u32.to_le_bytes());
        }
        let read = Archive::open("docx", &bytes).unwrap().part("a");
        assert!(read.is_err() || read.unwrap().unwrap().len() <= 5000);
    }

    #[test]
    fn what_is_encrypted_or_no_archive_says_so() {
        let mut ole = b"\xD0\xCF\x11\xE0\xA1\xB1\x1A\xE1".to_vec();
        let reason = |bytes: &[u8]| Archive::open("docx", bytes).err().unwrap().to_string();
        assert_eq!(reason(&ole), "broken docx: it is in an older format");
        ole.extend("EncryptedPackage".encode_utf16().flat_map(u16::to_le_bytes));
        assert_eq!(reason(&ole), "the docx file is encrypted");
        assert!(reason(b"no archive").starts_with("broken docx: "));
        let mut many = b"PK\x06\x06".to_vec();
        many.extend([0xFF; 60]);
        assert_eq!(reason(&many), "more than 65536 files in the archive");
        let mut secret = zipped(&[("a", "text")]);
        for at in 0..secret.len() - 4 {
            match &secret[at..at + 4] {
                b"PK\x03\x04" => secret[at + 6] |= 1,
                b"PK\x01\x02" => secret[at + 8] |= 1,
                _ => {}
            }
        }
        let error = Archive::open("docx", &secret).unwrap().part("a").unwrap_err().to_string();
        assert_eq!(error, "the docx file is encrypted");
    }

    #[test]
    fn paths_are_resolved() {
        for (base, target, path) in [
            ("ppt/slides/slide1.xml", "../notesSlides/n.xml", "ppt/notesSlides/n.xml"),
            ("ppt/presentation.xml", "slides/slide1.xml", "ppt/slides/slide1.xml"),
            ("ppt/presentation.xml", "/ppt/slides/slide1.xml", "ppt/slides/slide1.xml"),
            ("content.opf", "./a.xhtml", "a.xhtml"),
            ("", "word/document.xml", "word/document.xml"),
            ("a/b", "../../../c", "c"),
        ] {
            assert_eq!(resolve(base, target), path);
        }
    }
}
