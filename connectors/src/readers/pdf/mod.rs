//! Reads PDF files: the text of the pages in file order, without a title, because the title in a PDF's metadata is more
//! often a file name. Its author, subject, keywords and dates are metadata (see `info`).
//!
//! The underlying reader (`pdf-extract`) panics on many unusual files, and recurses without end or uses up all memory
//! on hostile ones. Panics are caught: a page that makes the reader fail is left out, with a warning, if other pages
//! can be read. Endless recursion is cut beforehand (see `disarm`). Streams that unpack to too much are cut, or the
//! file is rejected (see `bounds`). Endless drawing is cut too (see `work`).

mod bounds;
mod disarm;
mod info;
mod work;

use std::panic::{AssertUnwindSafe, catch_unwind};

use pdf_extract::{Document as Pdf, LoadOptions, OutputError, PlainTextOutput, output_doc, output_doc_page};
use turnflow_engine::document::Markup;

use self::disarm::disarm;
use super::{Content, ReadError};

/// Reads the text of all pages. `id` names the document in warnings.
pub fn read(id: &str, bytes: &[u8]) -> Result<Content, ReadError> {
    if bounds::is_hostile(bytes) {
        return Err(ReadError::PdfTooLarge);
    }
    let options = LoadOptions::with_filter(bounds::keep);
    let mut pdf = guarded(|| Ok(Pdf::load_mem_with_options(bytes, options)?))?;
    if pdf.is_encrypted() {
        // Many files are encrypted with an empty password, only to forbid printing.
        guarded(|| Ok(pdf.decrypt("")?)).map_err(|_| ReadError::PdfEncrypted)?;
    }
    let metadata = guarded(|| {
        disarm(&mut pdf);
        Ok(info::info(&pdf))
    })?;
    let text = all_pages(&pdf).or_else(|error| page_by_page(id, &pdf).ok_or(error))?;
    let text = tidy(&text);
    if text.is_empty() {
        return Err(ReadError::PdfWithoutText);
    }
    Ok(Content { title: String::new(), text, markup: Markup::Plain, metadata })
}

fn guarded<T>(read: impl FnOnce() -> Result<T, OutputError>) -> Result<T, ReadError> {
    // The state that a panic leaves behind is never used again.
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(result) => Ok(result?),
        Err(_) => Err(ReadError::PdfPanic),
    }
}

fn all_pages(pdf: &Pdf) -> Result<String, ReadError> {
    guarded(|| {
        let mut text = String::new();
        output_doc(pdf, &mut PlainTextOutput::new(&mut text))?;
        Ok(text)
    })
}

/// The text of the pages that can be read one by one; `None` if there are none.
fn page_by_page(id: &str, pdf: &Pdf) -> Option<String> {
    let pages = guarded(|| Ok(pdf.get_pages())).ok()?;
    let mut read = Vec::new();
    let mut failed = 0usize;
    for number in pages.keys() {
        let page = guarded(|| {
            let mut text = String::new();
            output_doc_page(pdf, &mut PlainTextOutput::new(&mut text), *number)?;
            Ok(text)
        });
        match page {
            Ok(text) => read.push(text),
            Err(_) => failed += 1,
        }
    }
    if read.is_empty() {
        return None;
    }
    tracing::warn!(document = id, failed, read = read.len(), "some pages of a PDF could not be read");
    Some(read.join("\n\n"))
}

/// Splits ligatures, and removes trailing blanks and repeated empty lines.
fn tidy(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut empty = 0;
    for line in text.lines() {
        let line = line.trim_end();
        if line.is_empty() {
            empty += 1;
            continue;
        }
        if !out.is_empty() {
            out.push_str(if empty > 0 { "\n\n" } else { "\n" });
        }
        empty = 0;
        for character in line.chars() {
            match character {
                '\u{FB00}' => out.push_str("ff"),
                '\u{FB01}' => out.push_str("fi"),
                '\u{FB02}' => out.push_str("fl"),
                '\u{FB03}' => out.push_str("ffi"),
                '\u{FB04}' => out.push_str("ffl"),
                '\u{FB05}' | '\u{FB06}' => out.push_str("st"),
                '\0' => {}
                _ => out.push(character),
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{pdf, pdf_of_pages};

    #[test]
    fn text_of_all_pages() {
        let content = read(
            "a.pdf",
            &pdf_of_pages(&["BT /F1 12 Tf 72 700 Td (Hello first) Tj ET", "BT /F1 12 Tf 72 700 Td (And second) Tj ET"]),
        )
        .unwrap();
        let (first, second) = (content.text.find("Hello first"), content.text.find("And second"));
        assert!(first.is_some() && first < second, "{content:?}");
        assert_eq!((content.title.as_str(), content.markup), ("", Markup::Plain));
    }

    #[test]
    fn what_cannot_be_read_says_why() {
        let whole = pdf("some words");
        for (bytes, reason) in [
            (&b""[..], "broken PDF"),
            (b"%PDF-1.4\n%%EOF", "broken PDF"),
            (b"no PDF at all", "broken PDF"),
            (&whole[..whole.len() / 2], "broken PDF"),
            (&pdf_of_pages(&["0 0 m 10 10 l S"]), "no text in this PDF (scanned?)"),
        ] {
            let error = read("a.pdf", bytes).unwrap_err().to_string();
            assert!(error.starts_with(reason), "{error}");
        }
    }

    #[test]
    fn a_page_that_fails_does_not_take_the_others_with_it() {
        let content =
            read("a.pdf", &pdf_of_pages(&["BT /F1 12 Tf 72 700 Td (Good page) Tj ET", "/Missing Do"])).unwrap();
        assert!(content.text.contains("Good page"));
    }

    #[test]
    fn a_form_that_draws_itself_ends() {
        // Object 3 is the form. The page's resources contain it, and so do its own.
        let content = read("a.pdf", &pdf_of_pages(&["/X Do BT /F1 12 Tf 72 700 Td (Still here) Tj ET"])).unwrap();
        assert!(content.text.contains("Still here"), "{content:?}");
    }

    #[test]
    fn lines_are_tidied() {
        assert_eq!(tidy("\n\n \u{FB01}rst  \n\n\n\nsecond\nthird\n\n"), " first\n\nsecond\nthird");
    }
}
