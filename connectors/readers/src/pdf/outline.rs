//! Reads the outline of a PDF, which names its headings, their levels and their pages.

use std::collections::HashMap;

use pdfium_render::prelude::PdfDocument;

/// Maximum number of titles that are read. An outline may lead in circles.
const MOST_TITLES: usize = 5_000;
/// Deepest level of a title.
const DEEPEST: usize = 5;

/// The titles of an outline.
#[derive(Debug, Default)]
pub(crate) struct Outline {
    /// The levels, from 1, by the number of the page, from 0, and the letters of the title.
    levels: HashMap<(usize, String), usize>,
}

impl Outline {
    pub fn of(pdf: &PdfDocument<'_>) -> Self {
        let mut outline = Self::default();
        let mut next: Vec<_> = pdf.bookmarks().root().map(|first| (first, 1)).into_iter().collect();
        for _ in 0..MOST_TITLES {
            let Some((bookmark, level)) = next.pop() else { break };
            next.extend(bookmark.next_sibling().map(|sibling| (sibling, level)));
            if level < DEEPEST {
                next.extend(bookmark.first_child().map(|child| (child, level + 1)));
            }
            let page = bookmark.destination().and_then(|destination| destination.page_index().ok());
            let page = page.and_then(|page| usize::try_from(page).ok());
            if let (Some(page), Some(title)) = (page, bookmark.title()) {
                outline.add(page, &title, level);
            }
        }
        outline
    }

    fn add(&mut self, page: usize, title: &str, level: usize) {
        // The number of a section is often in only one of both.
        for key in [letters(title), letters(without_number(title))] {
            if !key.is_empty() {
                self.levels.entry((page, key)).or_insert(level);
            }
        }
    }

    /// The level of a text on a page, if it is one of the titles.
    pub fn level(&self, page: usize, text: &str) -> Option<usize> {
        if self.levels.is_empty() {
            return None;
        }
        let mut keys = [letters(text), letters(without_number(text))].into_iter();
        keys.find_map(|key| self.levels.get(&(page, key)).copied())
    }
}

/// The titles of an outline, by the places of the pages that were read.
pub(super) struct Titles<'a> {
    pub outline: &'a Outline,
    /// The numbers of these pages.
    pub pages: &'a [usize],
}

impl Titles<'_> {
    /// The level of a text on the page at this place.
    pub fn level(&self, at: usize, text: &str) -> Option<usize> {
        self.outline.level(*self.pages.get(at)?, text)
    }
}

/// The letters and digits of a text, which is what a title and its heading have in common.
fn letters(text: &str) -> String {
    text.chars().filter(|letter| letter.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// A title without the number of its section.
fn without_number(text: &str) -> &str {
    text.trim_start().trim_start_matches(|letter: char| letter.is_ascii_digit() || matches!(letter, '.' | ' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heading_is_known_by_its_letters_and_its_page() {
        let mut outline = Outline::default();
        outline.add(0, "1.2 The Keeper’s lamp", 2);
        outline.add(3, "Tides", 1);
        for (page, text, level) in [
            (0, "1.2 The Keeper's Lamp", Some(2)),
            (0, "The keeper's lamp", Some(2)),
            (0, "The keeper", None),
            (1, "The keeper's lamp", None),
            (3, "4 Tides", Some(1)),
            (3, "4", None),
            (3, "", None),
        ] {
            assert_eq!(outline.level(page, text), level, "{page} {text}");
        }
    }
}
