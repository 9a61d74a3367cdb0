//! Readers turn the bytes of a file into a document.
//!
//! [`Format`] lists the readable formats, by file extension; [`Format::read`] builds the document. Files of rows, of which
//! each is a document, are read by the crate of connectors.
//!
//! [`worker`] reads files in child processes, which a hostile file may end.
//!
//! The formats that are archives share `archive` (unpacks with a limit), [`xml`], `package` (what office files have in
//! common), `markup` (writes Markdown) and `fields` (collects metadata).
//!
//! # The modules
//!
//! A crate by itself, which depends on the engine: Markdown, text, HTML, PDF, mail and the files of office programs
//! become documents with their metadata. All but text and tables are read in child processes of the program
//! (`worker/`): a pool of at most as many as there are cores, each a `turnflow read --worker` with limits of memory and
//! of the processor's time, which gets files and returns documents over a socket. The binary registers itself at its
//! start; a program that does not reads in its own process.
//!
//! - `pdf/` reads PDF with pdfium, which `library.rs` finds and loads: `page.rs` reads letters with `codes.rs`,
//!   `drawn.rs` drawn lines and bullets, and `marks.rs` filled fields; `grid.rs` and `level.rs` find tables by their lines, `cells.rs` those
//!   without, `layout.rs` the order in which a page is read, `to_left.rs` that of words in Hebrew and Arabic,
//!   `running.rs` headers and footers, and `flow.rs` makes Markdown of the lines of all pages. `tests/pdf/make.py`
//!   makes the files whose text is known.
//! - `docx/`, `pptx/`, `xlsx/`, `csv.rs`, `epub/` and `eml/` read the files of office programs, books and mails.
//!   `drawing.rs` reads SmartArt and charts, and `raised.rs` keeps raised digits apart.
//! - `pictures/` decodes pictures, and `ocr/` says who reads the text in them and in scanned pages of a PDF: a model of
//!   the main process, to which a child sends its pictures. `pdf/render.rs` draws such pages, and `pdf/seen.rs` makes a
//!   page of the lines that the model has read.
//! - `html/` parses a page in bounded time and memory (`parse.rs`) and writes it as Markdown (`writer.rs`); `markup.rs`
//!   writes the other formats.
//! - Beyond the limits of the child processes, `archive.rs` counts what an archive unpacks to, `xml.rs` the depth and
//!   the number of elements, and `eml/disarm.rs` strikes out messages that are coded within messages.

mod archive;
pub mod charset;
pub mod csv;
pub mod docx;
mod drawing;
pub mod eml;
pub mod epub;
mod error;
mod fields;
mod format;
mod front_matter;
pub mod html;
pub mod markdown;
mod markup;
mod notes;
pub mod ocr;
mod options;
mod package;
pub mod pdf;
mod pictures;
pub mod pptx;
#[cfg(test)]
mod programs;
mod raised;
#[doc(hidden)]
pub mod samples;
pub mod text;
#[cfg(unix)]
pub mod worker;
pub mod xlsx;
pub mod xml;

use std::sync::Arc;

use turnflow_engine::document::{Document, Markup};
use turnflow_engine::inference::Picture;
use turnflow_engine::metadata::Metadata;
use turnflow_engine::panics::caught;

pub use self::error::ReadError;
pub use self::format::Format;
use self::ocr::{Eyes, OcrMode};
pub use self::options::ReadOptions;

/// The content of a file: title and text, and the markup of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// The title; may be empty.
    pub title: String,
    /// The readable text.
    pub text: String,
    /// The markup of `text`.
    pub markup: Markup,
    /// Fields that the file itself has, such as the front matter of Markdown.
    pub metadata: Metadata,
}

impl Format {
    /// Builds the document with the default settings; see [`Format::read_with`].
    ///
    /// # Errors
    ///
    /// The file is no document.
    pub fn read(self, id: Arc<str>, bytes: &[u8]) -> Result<Document, ReadError> {
        self.read_with(id, bytes, &ReadOptions::default())
    }

    /// Builds the document, in a child process if this program has them (see [`worker`]). A `.jsonl` file that is read as
    /// a whole is plain text. If the reader panics on a file, or ends, the file is unreadable, and its source continues.
    ///
    /// # Errors
    ///
    /// The file is no document.
    pub fn read_with(self, id: Arc<str>, bytes: &[u8], reading: &ReadOptions) -> Result<Document, ReadError> {
        #[cfg(unix)]
        if let Some(read) = worker::read(self, &id, bytes, reading) {
            return read;
        }
        let mut look = |picture| ocr::look(reading, picture);
        let mut eyes = Eyes::new(reading.when, reading.least, &mut look);
        eyes.passwords = reading.passwords.to_vec();
        let read = self.read_seeing(id.clone(), bytes, &mut eyes);
        notes::log(&id, &notes::take());
        read
    }

    /// Builds the document in this process, on this thread, without OCR.
    ///
    /// # Errors
    ///
    /// The file is no document.
    pub fn read_here(self, id: Arc<str>, bytes: &[u8]) -> Result<Document, ReadError> {
        let mut look = |_| Err("no pictures are read".to_owned());
        self.read_seeing(id, bytes, &mut Eyes::new(OcrMode::Auto, 0.0, &mut look))
    }

    /// Builds the document in this process, on this thread.
    fn read_seeing(self, id: Arc<str>, bytes: &[u8], eyes: &mut Eyes<'_>) -> Result<Document, ReadError> {
        guarded(|| {
            let content = match self {
                Self::Markdown => markdown::read(&decode(bytes)?),
                Self::Text | Self::JsonLines => text::read(decode(bytes)?),
                Self::Parquet | Self::Arrow => {
                    return Err(ReadError::Broken { format: "document", reason: "it is a table of rows".to_owned() });
                }
                Self::Html => html::read(&decode(bytes)?)?,
                Self::Pdf => pdf::read(bytes, eyes)?,
                Self::Docx => docx::read(bytes)?,
                Self::Pptx => pptx::read(bytes)?,
                Self::Xlsx => xlsx::read(bytes)?,
                Self::Csv => csv::read(&decode(bytes)?, None)?,
                Self::Tsv => csv::read(&decode(bytes)?, Some(b'\t'))?,
                Self::Epub => epub::read(bytes)?,
                Self::Eml => eml::read(bytes)?,
                Self::Png | Self::Jpeg | Self::Tiff | Self::Webp => pictures::read(self, bytes, eyes)?,
            };
            let Content { title, text, markup, metadata } = content;
            Ok(Document { id, title: title.into(), text: text.into(), markup, metadata })
        })
    }
}

/// Draws a page of a PDF as a PNG file, with a passage marked where its text is found, in a child process if this program has
/// them (see [`worker`]). Pages count from 1. A page that is a scan has no text to mark.
///
/// # Errors
///
/// The file is no PDF, has no such page, or is encrypted with another password.
pub fn page_png(bytes: &[u8], page: u32, passage: &str, reading: &ReadOptions) -> Result<Vec<u8>, ReadError> {
    #[cfg(unix)]
    let aside = worker::draw(bytes, (page, passage), reading);
    #[cfg(not(unix))]
    let aside = None;
    let picture = aside.unwrap_or_else(|| drawn_here(bytes, page, passage, &reading.passwords))?;
    pictures::png(&picture)
}

fn drawn_here(bytes: &[u8], page: u32, passage: &str, passwords: &[String]) -> Result<Picture, ReadError> {
    guarded(|| pdf::picture(bytes, page, passage, passwords))
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
