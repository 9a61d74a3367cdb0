//! Reads PDF files with pdfium, the PDF library of Chromium.
//!
//! `library` finds pdfium. `page` reads the letters of a page, `drawn` its lines and bullets, and `marks` its filled
//! fields and remarks. `grid` and `level` find tables by their lines, `cells` those without, `layout` the order in which a
//! page is read, and `to_left` that of words in Hebrew and Arabic. `running` leaves out headers, footers and numbers of
//! pages, and `flow` makes Markdown of the lines of all pages, with the help of `headings`: words that are parted at the end of a line are joined. The
//! titles of the `outline` are headings with its levels, and words that lead to an address are `links` of Markdown. The
//! title is that of the first heading, because the title in a PDF's metadata is more often a file name. The author, the
//! subject, the keywords and the dates are metadata (see `info`), and so is where each page begins in the text, and, if some
//! letters are not known, which share of them is on each page.

mod cells;
mod drawn;
mod flow;
mod grid;
mod headings;
mod info;
mod items;
mod layout;
mod level;
pub(crate) mod library;
mod links;
mod marks;
mod outline;
mod page;
mod rows;
mod running;
mod shape;
mod to_left;

use pdfium_render::prelude::{Pdfium, PdfiumError, PdfiumInternalError};

use turnflow_engine::document::{PAGE_CONFIDENCE, PAGE_OFFSETS};
use turnflow_engine::metadata::{FIELD_BYTES, FieldValue, Metadata};

use self::outline::{Outline, Titles};
use super::{Content, ReadError};
use crate::markup::Markdown;
use crate::notes;

/// Maximum number of pages.
const MOST_PAGES: i32 = 20_000;
/// A page with a smaller share of known letters is in doubt.
const DOUBTFUL: f64 = 0.98;

/// Reads the text of all pages.
///
/// # Errors
///
/// There is no pdfium, or the file is no PDF, is encrypted, or has no text.
pub fn read(bytes: &[u8]) -> Result<Content, ReadError> {
    library::with(|pdfium| read_with(pdfium, bytes))
}

fn read_with(pdfium: &Pdfium, bytes: &[u8]) -> Result<Content, ReadError> {
    let pdf = pdfium.load_pdf_from_byte_slice(bytes, None).map_err(failed)?;
    let metadata = info::info(pdf.metadata());
    let count = pdf.pages().len();
    if count > MOST_PAGES {
        return Err(ReadError::TooMany { what: "pages", limit: MOST_PAGES as u64 });
    }
    let (mut pages, mut numbers, mut confidence, mut unread) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for number in 0..count {
        match pdf.pages().get(number) {
            Ok(page) => {
                let mut read = page::read(&page)?;
                confidence.push(read.confidence());
                grid::find(&mut read);
                let mut blocks = layout::blocks(read.segments);
                read.turned.into_iter().for_each(|turned| blocks.extend(layout::blocks(turned)));
                pages.push(blocks);
                numbers.push(usize::try_from(number).unwrap_or_default());
            }
            Err(_) => unread += 1,
        }
    }
    if pages.is_empty() {
        return Err(ReadError::Broken { format: "PDF", reason: "none of its pages can be read".to_owned() });
    }
    if unread > 0 {
        notes::add(format!("{unread} of {count} pages of a PDF could not be read"));
    }
    let outline = Outline::of(&pdf);
    let titles = Titles { outline: &outline, pages: &numbers };
    let mut markdown = Markdown::default();
    let starts: Vec<String> = flow::write(pages, &titles, &mut markdown)?.iter().map(usize::to_string).collect();
    let mut metadata = with_pages(metadata, PAGE_OFFSETS, &starts);
    let doubtful = confidence.iter().filter(|share| **share < DOUBTFUL).count();
    if doubtful > 0 {
        notes::add(format!(
            "on {doubtful} of {count} pages of a PDF, letters are missing: the file does not say which they are"
        ));
        let shares: Vec<String> =
            confidence.iter().map(|share| ((share * 100.0).floor() / 100.0).to_string()).collect();
        metadata = with_pages(metadata, PAGE_CONFIDENCE, &shares);
    }
    let content = markdown.finish(String::new(), metadata);
    if content.text.trim().is_empty() {
        return Err(ReadError::PdfWithoutText);
    }
    Ok(content)
}

/// Adds a field with a value for each page, unless it has more than any field may have: that of a thousand pages or two.
fn with_pages(metadata: Metadata, field: &str, values: &[String]) -> Metadata {
    let values = values.join(" ");
    match values.len() + field.len() + 32 <= FIELD_BYTES {
        true => metadata.with_default(field, FieldValue::from(values.as_str())),
        false => metadata,
    }
}

fn failed(error: PdfiumError) -> ReadError {
    match error {
        PdfiumError::PdfiumLibraryInternalError(PdfiumInternalError::PasswordError) => ReadError::PdfEncrypted,
        PdfiumError::PdfiumLibraryInternalError(PdfiumInternalError::SecurityError) => ReadError::PdfEncrypted,
        PdfiumError::PdfiumLibraryInternalError(PdfiumInternalError::FormatError) => {
            ReadError::Broken { format: "PDF", reason: "it is no PDF, or it is damaged".to_owned() }
        }
        error => ReadError::Broken { format: "PDF", reason: error.to_string() },
    }
}

#[cfg(test)]
mod tests;
