//! Reads PDF files with pdfium, the PDF library of Chromium.
//!
//! `library` finds pdfium. `page` reads the letters of a page with the help of `codes`, `drawn` its lines and bullets, and
//! `marks` its filled fields and remarks. `grid` and `level` find tables by their lines, `cells` those without, `layout` the order in which a
//! page is read, and `to_left` that of words in Hebrew and Arabic. `running` leaves out headers, footers and numbers of
//! pages, and `flow` makes Markdown of the lines of all pages, with the help of `headings`: words that are parted at the end of a line are joined. The
//! titles of the `outline` are headings with its levels, and words that lead to an address are `links` of Markdown. The
//! title is that of the first heading, because the title in a PDF's metadata is more often a file name. The author, the
//! subject, the keywords and the dates are metadata (see `info`), and so is where each page begins in the text, and, if some
//! letters are not known, which share of them is on each page. A page without text, or with letters that are not known, is
//! drawn by `render` and read by OCR, and `seen` makes a page of what OCR has read. `paged` collects the pages. `picture` draws a page
//! for people, with a passage marked.

mod cells;
mod clusters;
mod codes;
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
mod paged;
mod picture;
mod render;
mod rows;
mod running;
mod seen;
mod shape;
mod to_left;

use pdfium_render::prelude::{PdfDocument, PdfPage, Pdfium, PdfiumError, PdfiumInternalError};

pub(crate) use self::outline::Outline;
pub(crate) use self::paged::Paged;
use self::paged::Sight;
pub(crate) use self::picture::picture;
use super::{Content, Format, ReadError};
use crate::notes;
use crate::ocr::Eyes;

/// Maximum number of pages.
const MOST_PAGES: i32 = 20_000;

/// Reads the text of all pages.
///
/// # Errors
///
/// There is no pdfium, or the file is no PDF, is encrypted, or has no text.
pub(crate) fn read(bytes: &[u8], eyes: &mut Eyes<'_>) -> Result<Content, ReadError> {
    library::with(|pdfium| read_with(pdfium, bytes, eyes))
}

fn read_with(pdfium: &Pdfium, bytes: &[u8], eyes: &mut Eyes<'_>) -> Result<Content, ReadError> {
    let passwords = std::mem::take(&mut eyes.passwords);
    let pdf = opened(pdfium, bytes, &passwords)?;
    let metadata = info::info(pdf.metadata());
    let count = pdf.pages().len();
    if count > MOST_PAGES {
        return Err(ReadError::TooMany { what: "pages", limit: MOST_PAGES as u64 });
    }
    let (mut paged, mut unread) = (Paged::default(), 0);
    for number in 0..count {
        match pdf.pages().get(number) {
            Ok(page) => read_page(&page, usize::try_from(number).unwrap_or_default(), &mut paged, eyes)?,
            Err(_) => unread += 1,
        }
    }
    if paged.is_empty() {
        return Err(ReadError::Broken { format: "PDF", reason: "none of its pages can be read".to_owned() });
    }
    if unread > 0 {
        notes::add(format!("{unread} of {count} pages of a PDF could not be read"));
    }
    paged.finish(Format::Pdf, &Outline::of(&pdf), metadata, eyes)
}

/// Opens a file, an encrypted one with the password that fits.
fn opened<'a>(pdfium: &'a Pdfium, bytes: &'a [u8], passwords: &'a [String]) -> Result<PdfDocument<'a>, ReadError> {
    let mut opened = pdfium.load_pdf_from_byte_slice(bytes, None).map_err(failed);
    for password in passwords {
        if !matches!(opened, Err(ReadError::PdfEncrypted { .. })) {
            break;
        }
        opened = pdfium.load_pdf_from_byte_slice(bytes, Some(password)).map_err(failed);
    }
    opened.map_err(|error| match error {
        ReadError::PdfEncrypted { .. } => ReadError::PdfEncrypted { tried: passwords.len() },
        other => other,
    })
}

/// Reads the text of a page, or what it looks like if that is better.
fn read_page(page: &PdfPage<'_>, number: usize, paged: &mut Paged, eyes: &mut Eyes<'_>) -> Result<(), ReadError> {
    let read = page::read(page)?;
    let known = read.confidence();
    let sight = match render::is_wanted(page, &read, eyes.when) {
        true if eyes.is_blind().is_some() => paged.miss(),
        true => match render::render(page) {
            Some((picture, scale)) => paged.look(picture, scale, eyes),
            None => Sight::Nothing,
        },
        false => Sight::Nothing,
    };
    let (letters, _) = read.letters;
    match sight {
        Sight::Text(seen, share) => paged.add(number, seen, share),
        Sight::Unsure(share) if letters == 0 => paged.add(number, read, share),
        _ => paged.add(number, read, known),
    }
    Ok(())
}

fn failed(error: PdfiumError) -> ReadError {
    match error {
        PdfiumError::PdfiumLibraryInternalError(
            PdfiumInternalError::PasswordError | PdfiumInternalError::SecurityError,
        ) => ReadError::PdfEncrypted { tried: 0 },
        PdfiumError::PdfiumLibraryInternalError(PdfiumInternalError::FormatError) => {
            ReadError::Broken { format: "PDF", reason: "it is no PDF, or it is damaged".to_owned() }
        }
        error => ReadError::Broken { format: "PDF", reason: error.to_string() },
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_of_pages;
