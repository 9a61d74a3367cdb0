//! Readers turn the bytes of a file into a document.
//!
//! [`Format`] lists the readable formats, by file extension; [`Format::read`] builds the document. Rows of a `.jsonl`
//! file are many documents and are read by [`jsonl`].

#[cfg(feature = "html")]
pub mod html;
pub mod jsonl;
pub mod markdown;
#[cfg(feature = "pdf")]
pub mod pdf;
pub mod text;

use std::path::Path;
use std::sync::Arc;

use turnflow_engine::document::{Document, Markup};
use turnflow_engine::panics::{Panicked, caught};

/// Format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `.md`: Markdown.
    Markdown,
    /// `.txt`: text without markup.
    Text,
    /// `.html`, `.htm`: HTML.
    Html,
    /// `.pdf`: PDF.
    Pdf,
    /// `.jsonl`: one document on each line.
    JsonLines,
}

/// Why the bytes of a file are not a document.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The operating system could not read the file.
    #[error("cannot be read: {0}")]
    Io(#[from] std::io::Error),
    /// Larger than the limit.
    #[error("larger than {limit} bytes")]
    TooLarge {
        /// The limit, in bytes.
        limit: u64,
    },
    /// Not UTF-8, and without a byte order mark of another encoding.
    #[error("not UTF-8: invalid byte at offset {offset}")]
    Utf8 {
        /// Offset in the file, in bytes.
        offset: usize,
    },
    /// Has a byte order mark of UTF-16, but is not valid UTF-16.
    #[error("not UTF-16, although marked as such: invalid at offset {offset}")]
    Utf16 {
        /// Offset in the file, in bytes.
        offset: usize,
    },
    /// HTML with too many tags and texts nested deeply. For each, parsing takes time proportional to the number of open
    /// elements.
    #[error("elements are nested too deeply: the sum of the depths is above {limit}")]
    TooDeep {
        /// Maximum sum of the depths.
        limit: usize,
    },
    /// HTML with more elements than the limit, including those that the parser reopens.
    #[error("more than {limit} elements and texts, including reopened elements that are never closed")]
    ManyElements {
        /// Maximum number of elements.
        limit: usize,
    },
    /// HTML with more tags, character references and other uses of `<` than the limit.
    #[error("more than {limit} pieces of tags, character references and texts")]
    ManyPieces {
        /// Maximum number of pieces that are passed to the parser.
        limit: u64,
    },
    /// This build of turnflow does not include the format's reader.
    #[error("this build of turnflow cannot read {format}: it was built without the cargo feature `{feature}`")]
    NotBuilt {
        /// The format's name.
        format: &'static str,
        /// The cargo feature with its reader.
        feature: &'static str,
    },
    /// The PDF reader returned an error.
    #[cfg(feature = "pdf")]
    #[error("broken PDF: {0}")]
    Pdf(#[from] pdf_extract::OutputError),
    /// The PDF reader panicked.
    #[error("broken PDF: the reader failed on it")]
    PdfPanic,
    /// The PDF asks for more memory than any document needs.
    #[error("broken PDF: its tables would need too much memory")]
    PdfTooLarge,
    /// The PDF cannot be opened without its password.
    #[error("the PDF is encrypted")]
    PdfEncrypted,
    /// A reader panicked.
    #[error("cannot be read: the reader {0}")]
    Panicked(#[from] Panicked),
    /// The PDF has pages, but no text on them.
    #[error("no text in this PDF (scanned?)")]
    PdfWithoutText,
}

/// The content of a file: title and text, and the markup of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// The title; may be empty.
    pub title: String,
    /// The readable text.
    pub text: String,
    /// The markup of `text`.
    pub markup: Markup,
}

impl Format {
    /// The format of a file with this name, if there is a reader for it.
    pub fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "md" => Some(Self::Markdown),
            "txt" => Some(Self::Text),
            "html" | "htm" => Some(Self::Html),
            "pdf" => Some(Self::Pdf),
            "jsonl" => Some(Self::JsonLines),
            _ => None,
        }
    }

    /// Builds the document. A `.jsonl` file that is read as a whole is plain text. If the reader panics on a file, the
    /// file is unreadable, and its source continues.
    pub fn read(self, id: Arc<str>, bytes: &[u8]) -> Result<Document, ReadError> {
        guarded(|| {
            let content = match self {
                Self::Markdown => markdown::read(&decode(bytes)?),
                Self::Text | Self::JsonLines => text::read(decode(bytes)?),
                #[cfg(feature = "html")]
                Self::Html => html::read(&decode(bytes)?)?,
                #[cfg(feature = "pdf")]
                Self::Pdf => pdf::read(&id, bytes)?,
                #[cfg(not(feature = "html"))]
                Self::Html => return Err(ReadError::NotBuilt { format: "HTML", feature: "html" }),
                #[cfg(not(feature = "pdf"))]
                Self::Pdf => return Err(ReadError::NotBuilt { format: "PDF", feature: "pdf" }),
            };
            let Content { title, text, markup } = content;
            Ok(Document { id, title: title.into(), text: text.into(), markup })
        })
    }
}

fn guarded<T>(read: impl FnOnce() -> Result<T, ReadError>) -> Result<T, ReadError> {
    caught(read)?
}

/// Decodes bytes to text. A byte order mark selects the encoding (UTF-8, UTF-16) and is removed; everything else is
/// UTF-8. Line ends become `\n`.
pub fn decode(bytes: &[u8]) -> Result<String, ReadError> {
    let text = if let Some(rest) = bytes.strip_prefix(b"\xFF\xFE") {
        decode_utf16(rest, u16::from_le_bytes)?
    } else if let Some(rest) = bytes.strip_prefix(b"\xFE\xFF") {
        decode_utf16(rest, u16::from_be_bytes)?
    } else {
        let rest = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
        let mark = bytes.len() - rest.len();
        let text = std::str::from_utf8(rest).map_err(|error| ReadError::Utf8 { offset: mark + error.valid_up_to() })?;
        text.to_owned()
    };
    if text.contains('\r') { Ok(text.replace("\r\n", "\n").replace('\r', "\n")) } else { Ok(text) }
}

fn decode_utf16(bytes: &[u8], unit: fn([u8; 2]) -> u16) -> Result<String, ReadError> {
    const MARK: usize = 2;
    let pairs = bytes.chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return Err(ReadError::Utf16 { offset: MARK + bytes.len() - 1 });
    }
    let mut text = String::with_capacity(bytes.len() / 2);
    let mut offset = MARK;
    for character in char::decode_utf16(pairs.map(|pair| unit([pair[0], pair[1]]))) {
        let character = character.map_err(|_| ReadError::Utf16 { offset })?;
        offset += 2 * character.len_utf16();
        text.push(character);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_go_by_the_extension() {
        for (name, format) in [
            ("a/b.md", Some(Format::Markdown)),
            ("README.MD", Some(Format::Markdown)),
            ("a.txt", Some(Format::Text)),
            ("a.htm", Some(Format::Html)),
            ("a.tar.html", Some(Format::Html)),
            ("a.pdf", Some(Format::Pdf)),
            ("a.jsonl", Some(Format::JsonLines)),
            ("a.json", None),
            ("a.md~", None),
            (".a.md.swp", None),
            ("#a.md#", None),
            ("4913", None),
            ("md", None),
        ] {
            assert_eq!(Format::of(Path::new(name)), format, "{name}");
        }
    }

    #[test]
    fn encodings() {
        for (bytes, text) in [
            (&b"plain\r\nlines\rold"[..], "plain\nlines\nold"),
            (b"\xEF\xBB\xBFmarked", "marked"),
            (b"\xFF\xFEh\0i\0=\xD8\x00\xDE", "hi\u{1F600}"),
            (b"\xFE\xFF\0h\0i", "hi"),
            (b"", ""),
        ] {
            assert_eq!(decode(bytes).unwrap(), text);
        }
    }

    #[test]
    fn broken_encodings_say_where() {
        for (bytes, reason) in [
            (&b"ab\xFFcd"[..], "not UTF-8: invalid byte at offset 2"),
            (b"\xEF\xBB\xBFab\xC3", "not UTF-8: invalid byte at offset 5"),
            (b"\xFF\xFEa\0b", "not UTF-16, although marked as such: invalid at offset 4"),
            (b"\xFF\xFEa\0\x00\xDE", "not UTF-16, although marked as such: invalid at offset 4"),
        ] {
            assert_eq!(decode(bytes).unwrap_err().to_string(), reason);
        }
    }

    #[test]
    fn a_reader_that_panics_is_an_error_of_the_file() {
        let failed = guarded(|| -> Result<(), ReadError> { panic!("as a fault in the code would") });
        assert_eq!(
            failed.unwrap_err().to_string(),
            "cannot be read: the reader panicked: as a fault in the code would"
        );
    }

    #[test]
    fn documents_carry_their_id() {
        let document = Format::Text.read("a/b.txt".into(), b"hello").unwrap();
        assert_eq!((&*document.id, &*document.title, &*document.text), ("a/b.txt", "", "hello"));
    }
}
