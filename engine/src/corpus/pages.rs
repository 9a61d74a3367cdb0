//! The pages of a document, such as a PDF file: a passage knows the page on which it begins.

use crate::document::{Document, PAGE_CONFIDENCE, PAGE_OFFSETS};
use crate::metadata::{FieldValue, Metadata, Numeric};

/// The field of a passage that has its page.
const PAGE: &str = "page";
/// The beginning of a passage that is looked for in the document, in bytes.
const BEGINNING: usize = 160;

/// The pages of a document whose passages are looked for in their order.
pub(super) struct Pages<'a> {
    text: &'a str,
    /// Where each page begins in the text.
    starts: Vec<usize>,
    /// The document's fields, without those of its pages.
    fields: Metadata,
    /// Where the last passage begins.
    from: usize,
    /// The last page, and the fields of its passages.
    last: Option<(usize, Metadata)>,
}

impl<'a> Pages<'a> {
    /// `None` if the document does not say where its pages begin.
    pub fn of(document: &'a Document) -> Option<Self> {
        let starts = document.page_starts()?;
        let fields =
            document.metadata.fields().filter(|(name, _)| ![PAGE_OFFSETS, PAGE_CONFIDENCE].contains(&&***name));
        let fields: std::collections::BTreeMap<_, _> =
            fields.map(|(name, value)| (name.clone(), value.clone())).collect();
        Some(Self { text: &document.text, starts, fields: fields.into(), from: 0, last: None })
    }

    /// The fields of the next passage, with its page if it is found.
    pub fn fields(&mut self, passage: &str) -> Metadata {
        let Some(at) = self.find(passage) else { return self.fields.clone() };
        self.from = at;
        let page = self.starts.partition_point(|start| *start <= at);
        match &self.last {
            Some((last, fields)) if *last == page => fields.clone(),
            _ => {
                let number = FieldValue::Number(Numeric::whole(page.max(1) as u64));
                let fields = self.fields.with_default(PAGE, number);
                self.last = Some((page, fields.clone()));
                fields
            }
        }
    }

    /// Where a passage begins. It is not before the last one, unless a chunker gives them in another order.
    fn find(&self, passage: &str) -> Option<usize> {
        let passage = passage.trim_start();
        let line = passage.lines().next().unwrap_or_default().trim_end();
        for beginning in [cut(passage), cut(line)] {
            if beginning.is_empty() {
                continue;
            }
            let after = self.text.get(self.from..)?.find(beginning).map(|at| self.from + at);
            if let Some(at) = after.or_else(|| self.text.find(beginning)) {
                return Some(at);
            }
        }
        None
    }
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(BEGINNING)]
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn document(offsets: &str, text: &str) -> Document {
        let fields = json!({"author": "Ada", PAGE_OFFSETS: offsets, PAGE_CONFIDENCE: "1 0.5 1"});
        Document { metadata: Metadata::of(fields.as_object().unwrap()).0, ..Document::new("a.pdf", text) }
    }

    #[test]
    fn passages_know_the_pages_on_which_they_begin() {
        // The second page has no text, and "Same" is on two pages.
        let text = "# First\n\nSame words.\n\nThird page.\n\nSame words.";
        let third = text.find("Third").unwrap();
        let document = document(&format!("0 {third} {third}"), text);
        let mut pages = Pages::of(&document).unwrap();
        let mut page = |passage: &str| Value::Object(pages.fields(passage).to_json());
        assert_eq!(page("# First\n\nSame words."), json!({"author": "Ada", "page": 1}));
        assert_eq!(page("Same words."), json!({"author": "Ada", "page": 1}));
        assert_eq!(page("Third page.\n\nSame words."), json!({"author": "Ada", "page": 3}));
        assert_eq!(page("Same words."), json!({"author": "Ada", "page": 3}));
        assert_eq!(page("Third page.   changed"), json!({"author": "Ada"}), "a cleaned passage");
        assert_eq!(page("  Third page.\nchanged"), json!({"author": "Ada", "page": 3}), "its first line is found");
    }

    #[test]
    fn what_is_no_list_of_offsets_is_a_field_like_others() {
        for offsets in ["", "0 x", "9 3", "-1"] {
            assert!(Pages::of(&document(offsets, "text")).is_none(), "{offsets}");
        }
        assert!(Pages::of(&Document::new("a", "text")).is_none());
        let document = document("0 99999", "é");
        assert_eq!(Pages::of(&document).unwrap().fields("é").values("page").len(), 1);
    }
}
