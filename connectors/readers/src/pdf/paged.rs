//! The pages of a document as they are read, some of them by OCR, and the document that they become.

use turnflow_engine::document::{OCR_CONFIDENCE, PAGE_CONFIDENCE, PAGE_OFFSETS};
use turnflow_engine::inference::Picture;
use turnflow_engine::metadata::{FieldValue, Metadata, Numeric, PAGES_BYTES};

use super::layout::Block;
use super::outline::{Outline, Titles};
use super::shape::Page;
use super::{flow, grid, layout, seen};
use crate::markup::Markdown;
use crate::ocr::{Eyes, OcrMode, Sureness};
use crate::{Content, Format, ReadError, notes};

/// A page with a smaller share of known letters is in doubt.
const DOUBTFUL: f64 = 0.98;

/// The pages that were read.
#[derive(Default)]
pub(crate) struct Paged {
    pages: Vec<Vec<Block>>,
    /// Their numbers, from 0.
    numbers: Vec<usize>,
    /// How far the text of each can be trusted.
    confidence: Vec<f64>,
    /// How sure OCR is of the pages that it has read.
    sureness: Sureness,
    /// Pages that were read by OCR, that it was asked for, of which it is not sure, and that it could not look at.
    seen: usize,
    looked: usize,
    unsure: usize,
    unseen: usize,
    /// How sure it is of the least sure page.
    least: f64,
    /// Pages of which letters are missing.
    doubtful: usize,
}

/// What was seen in the picture of a page.
pub(super) enum Sight {
    /// Its text, and how sure OCR is of it.
    Text(Page, f64),
    /// Text of which OCR is only so sure.
    Unsure(f64),
    /// Nothing, or there is no OCR.
    Nothing,
}

impl Paged {
    /// Whether there are no pages.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Notes that a page is not looked at, because there is no OCR.
    pub(super) fn miss(&mut self) -> Sight {
        self.looked += 1;
        self.unseen += 1;
        Sight::Nothing
    }

    /// Looks at the picture of a page, of which a pixel is so many points wide.
    pub(super) fn look(&mut self, picture: Picture, scale: f32, eyes: &mut Eyes<'_>) -> Sight {
        let height = picture.height;
        let Ok(lines) = eyes.see(picture) else { return self.miss() };
        self.looked += 1;
        let sure = Sureness::of(&lines);
        match sure.share() {
            None => Sight::Nothing,
            Some(share) if share < eyes.least => {
                self.least = if self.unsure == 0 { share } else { self.least.min(share) };
                self.unsure += 1;
                Sight::Unsure(share)
            }
            Some(share) => {
                self.seen += 1;
                self.sureness.add(sure);
                Sight::Text(seen::page(&lines, scale, height), share)
            }
        }
    }

    /// Adds a page with a picture only.
    pub fn add_picture(&mut self, picture: Picture, scale: f32, eyes: &mut Eyes<'_>) {
        let number = self.pages.len();
        let (page, confidence) = match self.look(picture, scale, eyes) {
            Sight::Text(page, share) => (page, share),
            Sight::Unsure(share) => (Page::default(), share),
            Sight::Nothing => (Page::default(), 1.0),
        };
        self.add(number, page, confidence);
    }

    /// Adds a page with its number, from 0, and how far its text can be trusted.
    pub(super) fn add(&mut self, number: usize, mut page: Page, confidence: f64) {
        grid::find(&mut page);
        self.doubtful += usize::from(page.confidence() < DOUBTFUL);
        let mut blocks = layout::blocks(page.segments);
        page.turned.into_iter().for_each(|turned| blocks.extend(layout::blocks(turned)));
        self.pages.push(blocks);
        self.numbers.push(number);
        self.confidence.push(confidence);
    }

    /// Makes the document.
    ///
    /// # Errors
    ///
    /// There is no text.
    pub fn finish(
        mut self,
        format: Format,
        outline: &Outline,
        metadata: Metadata,
        eyes: &Eyes<'_>,
    ) -> Result<Content, ReadError> {
        let pages = std::mem::take(&mut self.pages);
        let all = pages.len();
        let Self { numbers, confidence, sureness, seen, doubtful, .. } = &self;
        let titles = Titles { outline, pages: numbers };
        let mut markdown = Markdown::default();
        let starts: Vec<String> = flow::write(pages, &titles, &mut markdown)?.iter().map(usize::to_string).collect();
        let mut metadata = with_pages(metadata, PAGE_OFFSETS, &starts);
        if doubtful + seen + self.unsure > 0 {
            let shares: Vec<String> =
                confidence.iter().map(|share| ((share * 100.0).floor() / 100.0).to_string()).collect();
            metadata = with_pages(metadata, PAGE_CONFIDENCE, &shares);
        }
        if let Some(share) = sureness.share().and_then(Numeric::new).map(FieldValue::Number) {
            metadata = metadata.with_default(OCR_CONFIDENCE, share);
        }
        let content = markdown.finish(String::new(), metadata);
        match content.text.trim().is_empty() {
            true => Err(self.without_text(format, eyes)),
            false => {
                self.note(all, format, eyes);
                Ok(content)
            }
        }
    }

    /// Says which pages are not read, or only in part.
    fn note(&self, all: usize, format: Format, eyes: &Eyes<'_>) {
        let name = format.name();
        if self.doubtful > 0 {
            notes::add(format!(
                "on {} of {all} pages of a {name}, letters are missing: the file does not say which they are",
                self.doubtful
            ));
        }
        if self.unsure > 0 {
            notes::add(format!(
                "{} of {all} pages of a {name} are left out: OCR is not sure of them (its confidence is {} or more, \
                 and `ocr_min_confidence` is {})",
                self.unsure, self.least, eyes.least
            ));
        }
        if let (1.., Some(reason)) = (self.unseen, eyes.is_blind()) {
            notes::add(format!(
                "{} of {all} pages of a {name} have no text, or letters that are not known, and are not read by OCR: {reason}",
                self.unseen
            ));
        }
    }

    /// Why there is no text.
    fn without_text(&self, format: Format, eyes: &Eyes<'_>) -> ReadError {
        if self.unsure > 0 {
            return ReadError::Unsure { found: self.least, least: eyes.least, knows: eyes.knows().to_owned() };
        }
        let reason = eyes.is_blind().filter(|_| self.unseen > 0);
        match (format, reason) {
            (Format::Pdf, Some(reason)) => ReadError::PdfWithoutText { hint: format!(": {reason}") },
            (Format::Pdf, None) if eyes.when == OcrMode::Never => {
                ReadError::PdfWithoutText { hint: "; `ocr: Auto` reads scans".to_owned() }
            }
            (Format::Pdf, None) if self.looked > 0 => {
                ReadError::PdfWithoutText { hint: ", and OCR sees none on its pages".to_owned() }
            }
            (Format::Pdf, None) => ReadError::PdfWithoutText { hint: String::new() },
            (_, Some(reason)) => ReadError::NoOcr { reason: reason.to_owned() },
            (_, None) => ReadError::PictureWithoutText,
        }
    }
}

/// Adds a field with a value for each page, unless it has more than such a field may have: that of some 100,000 pages.
fn with_pages(metadata: Metadata, field: &str, values: &[String]) -> Metadata {
    let values = values.join(" ");
    match values.len() + field.len() + 32 <= PAGES_BYTES {
        true => metadata.with_default(field, FieldValue::from(values.as_str())),
        false => metadata,
    }
}
