//! Computes how much work a PDF demands: a form may be drawn a thousand times by a form that is itself drawn a thousand
//! times, a page may list the same content over and over, and each saved graphics state takes a kilobyte. All work is
//! counted before any is done.

use std::collections::{HashMap, HashSet};

use pdf_extract::{Document as Pdf, Object, ObjectId, Stream};

use super::bounds::is_too_large;

/// Maximum number of graphics states that are saved at once; the format's own limit is 28.
const MOST_SAVED: u64 = 1024;
/// Maximum bytes of instructions of all pages, including what they draw, and of one form.
const MOST_BYTES: u64 = 256 << 20;
const MOST_FORM_BYTES: u64 = 32 << 20;
/// Cost of drawing a form, even an empty one, in bytes of instructions.
const DRAWING: u64 = 64;

/// Cost of executing a stream.
#[derive(Clone, Copy, Default)]
pub(super) struct Work {
    bytes: u64,
    saved: u64,
    draws: u64,
}

impl Work {
    /// The cost of a stream by itself; `None` if it is too much.
    pub(super) fn of(stream: &Stream) -> Option<Self> {
        if is_too_large(stream) {
            return None;
        }
        let content = stream.get_plain_content().unwrap_or_default();
        let mut work = Self { bytes: content.len() as u64, ..Self::default() };
        let mut depth = 0_u64;
        let is_between = |byte: &u8| byte.is_ascii_whitespace() || b"\0()<>[]{}/%".contains(byte);
        for word in content.split(is_between) {
            match word {
                b"q" => depth += 1,
                b"Q" => depth = depth.saturating_sub(1),
                b"Do" => work.draws += 1,
                _ => {}
            }
            work.saved = work.saved.max(depth);
        }
        (work.saved <= MOST_SAVED).then_some(work)
    }

    /// Whether the stream draws forms or images.
    pub(super) fn draws(&self) -> bool {
        self.draws > 0
    }

    /// Cost in bytes including the forms that it draws, the greatest of which costs `drawn` bytes.
    pub(super) fn bytes_with(&self, drawn: u64) -> u64 {
        self.bytes.saturating_add(self.draws.saturating_mul(drawn.saturating_add(DRAWING)))
    }
}

/// Whether a form costs too much.
pub(super) fn is_too_much(bytes: u64) -> bool {
    bytes > MOST_FORM_BYTES
}

/// The pages that cost too much, by themselves or in addition to earlier pages. `forms` is the cost of the greatest
/// form.
pub(super) fn excessive(pdf: &Pdf, works: &HashMap<ObjectId, Work>, forms: u64) -> HashSet<ObjectId> {
    let mut excessive = HashSet::new();
    let mut bytes = 0_u64;
    for (_, page) in pdf.get_pages() {
        let mut sum = Work::default();
        for content in pdf.get_page_contents(page) {
            let work = works.get(&content).copied().unwrap_or_default();
            sum.bytes = sum.bytes.saturating_add(work.bytes);
            sum.saved += work.saved;
            sum.draws += work.draws;
        }
        let with_forms = bytes.saturating_add(sum.bytes_with(forms));
        if sum.saved > MOST_SAVED || with_forms > MOST_BYTES {
            excessive.insert(page);
        } else {
            bytes = with_forms;
        }
    }
    excessive
}

/// Removes the contents of pages.
pub(super) fn empty(pdf: &mut Pdf, pages: &HashSet<ObjectId>) {
    for page in pages {
        if let Some(Object::Dictionary(page)) = pdf.objects.get_mut(page) {
            page.remove(b"Contents");
        }
    }
}
