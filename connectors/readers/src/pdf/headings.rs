//! Which paragraphs are headings, and their levels.

use super::flow::{Paragraph, Part, SAME_SIZE};
use super::outline::Titles;

/// Headings are larger than the text by this factor.
const LARGER: f32 = 1.13;
/// Maximum length of a heading, in letters, and of one that is only bold.
const HEADING: (usize, usize) = (200, 120);
/// Maximum number of lines of a title of the outline, and its deepest level.
const MOST_TITLE_LINES: usize = 3;
const DEEPEST: usize = 5;

/// The levels of the parts that are titles of the outline. The first level of the outline may be below a larger heading, such
/// as the title of the whole.
pub(super) fn levels_of_titles(
    parts: &[Part],
    firsts: &[usize],
    titles: &Titles<'_>,
    levels: &Levels,
) -> Vec<Option<usize>> {
    let title = |(number, part): (usize, &Part)| match part {
        Part::Text(paragraph) if paragraph.lines <= MOST_TITLE_LINES => {
            let mark = paragraph.mark.as_deref().unwrap_or_default();
            let page = firsts.partition_point(|first| *first <= number).checked_sub(1)?;
            Some((titles.level(page, &format!("{mark} {}", paragraph.text))?, levels.level(paragraph)))
        }
        _ => None,
    };
    let found: Vec<Option<(usize, Option<usize>)>> = parts.iter().enumerate().map(title).collect();
    let firsts = found.iter().flatten().filter(|(level, _)| *level == 1);
    let below = firsts.filter_map(|(_, by_size)| *by_size).min().unwrap_or(1) - 1;
    found.into_iter().map(|found| found.map(|(level, _)| (level + below).min(DEEPEST))).collect()
}

/// The levels of headings.
pub(super) struct Levels {
    body: f32,
    /// Sizes of larger headings, from the greatest on.
    sizes: Vec<f32>,
    /// Whether what is only bold is a heading.
    has_bold: bool,
}

impl Levels {
    pub fn of(parts: &[Part], body: f32) -> Self {
        let paragraphs = || parts.iter().filter_map(|part| if let Part::Text(text) = part { Some(text) } else { None });
        let letters = |some: &dyn Fn(&Paragraph) -> bool| -> usize {
            paragraphs().filter(|paragraph| some(paragraph)).map(|paragraph| paragraph.text.len()).sum()
        };
        let all = letters(&|_| true).max(1);
        let mut levels = Self { body, sizes: Vec::new(), has_bold: letters(&|paragraph| paragraph.is_bold) * 4 < all };
        let mut sizes: Vec<f32> =
            paragraphs().filter(|paragraph| levels.is_larger(paragraph)).map(|paragraph| paragraph.size).collect();
        sizes.sort_by(|a, b| b.total_cmp(a));
        sizes.dedup_by(|next, kept| *kept < SAME_SIZE * *next);
        levels.sizes = sizes;
        levels
    }

    fn is_larger(&self, paragraph: &Paragraph) -> bool {
        paragraph.size >= LARGER * self.body && is_title(paragraph, HEADING.0)
    }

    /// The level of a heading; `None` for other paragraphs.
    pub fn level(&self, paragraph: &Paragraph) -> Option<usize> {
        if self.is_larger(paragraph) {
            let at = self.sizes.iter().position(|size| *size < SAME_SIZE * paragraph.size).unwrap_or_default();
            return Some((at + 1).min(4));
        }
        let is_bold = self.has_bold && paragraph.is_bold && paragraph.size >= 0.95 * self.body;
        let is_heading = is_bold && is_title(paragraph, HEADING.1) && !paragraph.text.ends_with(['.', ',', ';', ':']);
        is_heading.then(|| (self.sizes.len() + 1).min(5))
    }
}

/// Whether a paragraph is short enough for a heading, and has letters.
fn is_title(paragraph: &Paragraph, most: usize) -> bool {
    let letters = paragraph.text.chars().filter(|character| character.is_alphabetic()).count();
    paragraph.lines <= 3 && letters >= 2 && paragraph.text.chars().count() <= most
}
