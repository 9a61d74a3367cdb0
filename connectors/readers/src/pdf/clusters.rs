//! Letters of scripts whose signs stand above, below and around the letter that they belong to, such as Devanagari, Tamil and
//! Thai. Browsers draw such a letter and its signs as several glyphs, and the file says which characters they are together.
//! pdfium gives all characters the place of the first glyph, so it sees a gap where the other glyphs are, and puts a blank
//! there. It also gives them once more where a sign is drawn later.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use pdfium_render::prelude::{PdfPage, PdfPageObject, PdfPageObjectCommon, PdfPageObjectsCommon, PdfPageTextChars};

use super::page::Direction;
use super::shape::Bounds;

/// Maximum number of drawn objects that are looked at.
const MOST_OBJECTS: usize = 50_000;
/// A letter with its signs is looked for among so many before it.
const BEFORE: usize = 6;
/// Between two words is more than this share of the letters' size.
const GAP: f32 = 0.2;
/// More than this share is between two words, also where blanks are drawn.
const WIDE: f32 = 0.6;
/// Glyphs of one letter are not farther from each other than this share of their size.
const NEAR: f32 = 0.19;

/// What is known of the characters of a page by their numbers.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Clusters {
    /// Those that are not there: they come a second time, or are blanks within a word.
    left_out: BTreeSet<usize>,
    /// Those before which a blank is drawn that pdfium does not see.
    after_blanks: BTreeSet<usize>,
    /// Where the last glyph of a letter ends, by its last character.
    ends: BTreeMap<usize, f32>,
}

/// A character as pdfium gives it.
#[derive(Clone, Copy, Debug)]
struct Given {
    character: char,
    is_generated: bool,
    origin: (f32, f32),
    x0: f32,
    x1: f32,
    size: f32,
}

/// A letter with its signs: the characters of one place.
#[derive(Clone, Debug)]
struct Cluster {
    text: String,
    base: f32,
    x0: f32,
    x1: f32,
}

impl Clusters {
    /// What is known of a page. A page without such letters costs a look at their codes.
    pub fn of(page: &PdfPage<'_>, letters: &PdfPageTextChars<'_>) -> Self {
        let has_signs = letters.iter().any(|letter| letter.unicode_char().is_some_and(has_signs));
        if !has_signs {
            return Self::default();
        }
        let level = Direction::default();
        let given = letters.iter().map(|letter| {
            let bounds = letter.tight_bounds().map_or(Bounds::NONE, |bounds| level.bounds(&bounds));
            let origin = letter.origin().map_or((f32::NAN, f32::NAN), |(x, y)| (x.value, y.value));
            let is_level = letter.angle_degrees().is_ok_and(|angle| angle.abs() < 1.0);
            Given {
                character: letter.unicode_char().unwrap_or_default(),
                is_generated: letter.is_generated().unwrap_or_default(),
                // What is turned is left as it is.
                origin: if is_level { origin } else { (f32::NAN, f32::NAN) },
                x0: bounds.x0,
                x1: bounds.x1,
                size: letter.scaled_font_size().value.abs(),
            }
        });
        let given: Vec<Given> = given.collect();
        let objects = page.objects();
        let texts = objects.iter().take(MOST_OBJECTS).filter_map(|object| match &object {
            PdfPageObject::Text(text) => Some(level.bounds(&text.bounds().ok()?.to_rect())),
            _ => None,
        });
        Self::found(&given, &Glyphs::of(texts))
    }

    fn found(given: &[Given], glyphs: &Glyphs) -> Self {
        let mut found = Self::default();
        let mut last: VecDeque<Cluster> = VecDeque::new();
        let mut at = 0;
        // The last letter that counts, if a blank behind it may be none.
        let mut end: Option<Cluster> = None;
        while at < given.len() {
            let one = given[at];
            if one.is_generated {
                let next = given[at + 1..].iter().find(|next| !next.is_generated);
                if let (Some(end), Some(next), ' ') = (&end, next, one.character)
                    && (next.origin.1 - end.base).abs() < 0.3 * next.size
                    && !glyphs.is_blank(end, next)
                {
                    found.left_out.insert(at);
                }
                at += 1;
                continue;
            }
            if at > 0 && !given[at - 1].is_generated && end.as_ref().is_some_and(|end| glyphs.draws_blank(end, &one)) {
                found.after_blanks.insert(at);
            }
            let of_one_place = |next: &&Given| !next.is_generated && next.origin == one.origin;
            let length = given[at..].iter().take_while(of_one_place).count().max(1);
            let all = &given[at..at + length];
            let mut cluster = Cluster {
                text: all.iter().map(|given| given.character).collect(),
                base: one.origin.1,
                x0: all.iter().map(|given| given.x0).fold(f32::INFINITY, f32::min),
                x1: all.iter().map(|given| given.x1).fold(f32::NEG_INFINITY, f32::max),
            };
            if length > 1 && all.iter().any(|given| has_signs(given.character)) {
                if last.iter().any(|before| before.is_same(&cluster, one.size)) {
                    // The end of the letter before it counts.
                    found.left_out.extend(at..at + length);
                    at += length;
                    continue;
                }
                let right = glyphs.end(&cluster, one.size);
                // What follows may touch it.
                let next = given[at + length..].iter().find(|next| !next.is_generated);
                let next = next.filter(|next| (next.origin.1 - one.origin.1).abs() < 0.3 * one.size);
                let right = next.map_or(right, |next| right.min(next.x0)).max(cluster.x1);
                found.ends.insert(at + length - 1, right);
                last.push_back(cluster.clone());
                cluster.x1 = right;
                end = Some(cluster);
                if last.len() > BEFORE {
                    last.pop_front();
                }
            } else if end.is_some() && last.iter().any(|before| (before.base - one.origin.1).abs() < 0.1 * one.size) {
                end = has_signs(one.character).then_some(cluster);
            } else {
                end = None;
            }
            at += length;
        }
        found
    }

    /// Whether a character is there.
    pub fn has(&self, number: usize) -> bool {
        !self.left_out.contains(&number)
    }

    /// Whether a blank comes before a character.
    pub fn is_after_blank(&self, number: usize) -> bool {
        self.after_blanks.contains(&number)
    }

    /// Where the glyphs of a letter end whose last character this is.
    pub fn end(&self, number: usize) -> Option<f32> {
        self.ends.get(&number).copied()
    }
}

impl Given {
    /// Whether a blank is on its line.
    fn is_level(&self, blank: &Bounds) -> bool {
        (blank.y0 - self.origin.1).abs() < 0.3 * self.size
    }
}

impl Cluster {
    /// Whether these are the same characters in the same place.
    fn is_same(&self, other: &Self, size: f32) -> bool {
        let common = self.x1.min(other.x1) - self.x0.max(other.x0);
        let least = (self.x1 - self.x0).min(other.x1 - other.x0);
        self.text == other.text && (self.base - other.base).abs() < size && common > 0.6 * least
    }
}

/// The texts that are drawn on a page, by where they begin. Blanks have no width.
struct Glyphs {
    drawn: Vec<Bounds>,
    blank: Vec<Bounds>,
}

impl Glyphs {
    fn of(texts: impl Iterator<Item = Bounds>) -> Self {
        let (mut drawn, mut blank): (Vec<Bounds>, Vec<Bounds>) = texts.partition(|bounds| bounds.x1 - bounds.x0 > 0.01);
        for all in [&mut drawn, &mut blank] {
            all.sort_unstable_by(|a, b| a.x0.total_cmp(&b.x0));
        }
        Self { drawn, blank }
    }

    /// Where the glyphs end that begin within a letter, or where one of them ends.
    fn end(&self, cluster: &Cluster, size: f32) -> f32 {
        let mut end = cluster.x1;
        let first = self.drawn.partition_point(|bounds| bounds.x0 < cluster.x0 - 0.01);
        for bounds in &self.drawn[first..] {
            if bounds.x0 > end + NEAR * size {
                break;
            }
            let is_level = bounds.y0 < cluster.base + size && bounds.y1 > cluster.base - 0.5 * size;
            if is_level {
                end = end.max(bounds.x1);
            }
        }
        end
    }

    /// Whether there is a blank between a letter and the next one. Browsers draw blanks; other programs leave a gap.
    fn is_blank(&self, last: &Cluster, next: &Given) -> bool {
        let are_drawn = self.blank.iter().any(|bounds| next.is_level(bounds));
        let least = if are_drawn { WIDE } else { GAP };
        self.draws_blank(last, next) || next.x0 - last.x1 > least * next.size
    }

    /// Whether a blank is drawn between a letter and the next one. Signs may stand above and below the blank.
    fn draws_blank(&self, last: &Cluster, next: &Given) -> bool {
        let first = self.blank.partition_point(|bounds| bounds.x0 <= last.x0);
        let mut between = self.blank[first..].iter().take_while(|bounds| bounds.x0 <= next.origin.0);
        between.any(|bounds| next.is_level(bounds))
    }
}

/// Whether a character is of a script with such signs.
fn has_signs(character: char) -> bool {
    matches!(character, '\u{900}'..='\u{DFF}' | '\u{E00}'..='\u{EFF}' | '\u{F00}'..='\u{109F}' | '\u{1700}'..='\u{17FF}'
        | '\u{1900}'..='\u{1AAF}' | '\u{1B00}'..='\u{1C4F}' | '\u{A8E0}'..='\u{A8FF}' | '\u{A980}'..='\u{AADF}')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Characters of one place, one after the other in its width, as pdfium gives them.
    fn place(text: &str, origin: f32, x0: f32, x1: f32) -> Vec<Given> {
        let width = (x1 - x0) / text.chars().count() as f32;
        let given = |(at, character): (usize, char)| Given {
            character,
            is_generated: character == ' ',
            origin: (origin, 100.0),
            x0: x0 + at as f32 * width,
            x1: x0 + (at + 1) as f32 * width,
            size: 12.0,
        };
        text.chars().enumerate().map(given).collect()
    }

    fn glyphs(drawn: &[(f32, f32)]) -> Glyphs {
        let bounds =
            |(x0, x1): &(f32, f32)| Bounds { x0: *x0, x1: *x1, y0: 100.0, y1: if x0 < x1 { 108.0 } else { 100.0 } };
        Glyphs::of(drawn.iter().map(bounds))
    }

    fn read(given: &[Given], glyphs: &Glyphs) -> String {
        let found = Clusters::found(given, glyphs);
        let blank = |number| if found.is_after_blank(number) { "_" } else { "" };
        let there = given.iter().enumerate().filter(|(number, _)| found.has(*number));
        there.map(|(number, given)| format!("{}{}", blank(number), given.character)).collect()
    }

    #[test]
    fn a_blank_is_where_one_is_drawn() {
        let given = [
            place("कि", 55.8, 55.8, 64.3),
            place(" ", 55.8, 55.8, 55.8),
            place("सी", 68.1, 68.1, 76.4),
            place(" ", 68.1, 68.1, 68.1),
            place("व", 82.3, 82.3, 89.2),
        ]
        .concat();
        let drawn = [(55.8, 64.3), (59.0, 68.3), (68.1, 76.4), (73.6, 79.5), (79.3, 79.3), (82.3, 89.2)];
        assert_eq!(read(&given, &glyphs(&drawn)), "किसी व");
        // Without drawn blanks, gaps tell.
        let drawn: Vec<(f32, f32)> = drawn.into_iter().filter(|(x0, x1)| x0 < x1).collect();
        assert_eq!(read(&given, &glyphs(&drawn)), "किसी व");
        assert_eq!(Clusters::found(&given, &glyphs(&drawn)).end(1), Some(68.1));
        // A blank that pdfium does not see.
        let given = [place("कि", 55.8, 55.8, 64.3), place("व", 72.3, 72.3, 80.0)].concat();
        assert_eq!(read(&given, &glyphs(&[(55.8, 64.3), (59.0, 68.3), (69.0, 69.0), (72.3, 80.0)])), "कि_व");
    }

    #[test]
    fn a_letter_comes_once() {
        let given = [
            place("วั", 192.0, 192.4, 197.1),
            place("น", 197.9, 198.9, 204.2),
            place("วั", 198.0, 194.0, 198.5),
            place(" ", 198.0, 198.0, 198.0),
            place("นั", 205.2, 206.2, 211.5),
        ]
        .concat();
        let drawn = [(192.4, 197.1), (198.9, 204.2), (194.0, 198.5), (206.2, 211.5)];
        assert_eq!(read(&given, &glyphs(&drawn)), "วันนั");
        // The same letter in another place is another one.
        let given = [place("วั", 10.0, 10.0, 15.0), place("วั", 16.0, 16.0, 21.0)].concat();
        assert_eq!(read(&given, &glyphs(&[(10.0, 15.0), (16.0, 21.0)])), "วัวั");
    }

    #[test]
    fn other_scripts_stay_as_they_are() {
        let given = [place("a", 0.0, 0.0, 5.0), place(" ", 5.0, 5.0, 5.0), place("b", 5.5, 5.5, 9.0)].concat();
        assert_eq!(Clusters::found(&given, &glyphs(&[(0.0, 5.0), (5.5, 9.0)])), Clusters::default());
    }
}
