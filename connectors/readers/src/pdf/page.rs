//! Reads the letters of a page, and what `drawn` and `marks` find on it.

use std::collections::BTreeMap;

use pdfium_render::prelude::{PdfPage, PdfPageTextChar, PdfRect};

use super::clusters::Clusters;
use super::codes::{Kind, kind, whole};
use super::drawn::{drawn, mark_items};
use super::links::link;
use super::marks::add_marks;
use super::shape::{Bounds, Page, Segment, Word};
use super::to_left::{is_to_left, read_word};
use crate::ReadError;

/// Maximum number of letters that are read of a page.
const MOST_LETTERS: usize = 1_000_000;
/// Maximum number of sizes of letters of a segment that are told apart.
const MOST_SIZES: usize = 16;
/// A gap of more of this share of the letters' size parts two segments. They are one line again if they are neither in two
/// columns nor in a table.
const GAP: f32 = 0.85;
/// A letter goes on with the last one if it begins so near to where that one ends, as shares of its size: one on the same
/// line, and a smaller one that is raised or lowered.
const NEXT: (f32, f32) = (0.05, 0.2);
/// Texts that are turned by less than this beyond whole quarters are not oblique, in degrees.
const ASKEW: f32 = 8.0;

/// The direction of a text, in degrees to the left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Direction(i16);

impl Direction {
    fn of(degrees: f32) -> Self {
        let degrees = degrees.rem_euclid(360.0);
        // Level and upright texts are often a little askew.
        let quarter = (degrees / 90.0).round() * 90.0;
        let degrees = if (degrees - quarter).abs() < ASKEW { quarter } else { degrees.round() };
        Self(degrees.rem_euclid(360.0) as i16)
    }

    /// A point as this text sees it.
    pub(super) fn turned(self, (x, y): (f32, f32)) -> (f32, f32) {
        match self.0 {
            0 => (x, y),
            90 => (y, -x),
            180 => (-x, -y),
            270 => (-y, x),
            degrees => {
                let (sin, cos) = f32::from(degrees).to_radians().sin_cos();
                (x * cos + y * sin, y * cos - x * sin)
            }
        }
    }

    /// Where a point of this text is on the page.
    pub(super) fn on_page(self, point: (f32, f32)) -> (f32, f32) {
        Self((360 - self.0) % 360).turned(point)
    }

    fn is_oblique(self) -> bool {
        self.0 % 90 != 0
    }

    pub(super) fn bounds(self, rect: &PdfRect) -> Bounds {
        let (a, b) = (
            self.turned((rect.left().value, rect.bottom().value)),
            self.turned((rect.right().value, rect.top().value)),
        );
        Bounds { x0: a.0.min(b.0), x1: a.0.max(b.0), y0: a.1.min(b.1), y1: a.1.max(b.1) }
    }
}

/// A letter.
struct Letter {
    character: char,
    direction: Direction,
    bounds: Bounds,
    /// Where it begins.
    from: f32,
    base: f32,
    size: f32,
}

impl Letter {
    fn of(char: &PdfPageTextChar<'_>, character: char) -> Option<Self> {
        // pdfium counts to the right. Letters of a size below zero stand on their heads.
        let half = if char.unscaled_font_size().value < 0.0 { 180.0 } else { 0.0 };
        let direction = Direction::of(half - char.angle_degrees().unwrap_or_default());
        let (x, y) = char.origin().ok()?;
        let tight = direction.bounds(&char.tight_bounds().ok()?);
        let (from, base) = direction.turned((x.value, y.value));
        let size = char.scaled_font_size().value.abs();
        // Some files have letters of size 1 that are drawn larger.
        let is_size = size.is_finite() && size > 0.1 && tight.height() < 2.0 * size;
        let size = if is_size { size } else { (1.2 * tight.height()).max(1.0) };
        // The box of an oblique letter tells little of its width.
        let (x0, x1) = if direction.is_oblique() { (from, from + 0.5 * size) } else { (tight.x0, tight.x1) };
        let bounds = Bounds { x0, x1, y0: base - 0.2 * size, y1: base + 0.8 * size };
        let is_placed = [bounds.x0, bounds.x1, bounds.y0, bounds.y1].iter().all(|place| place.is_finite());
        is_placed.then_some(Self { character, direction, bounds, from, base, size })
    }
}

/// Makes segments of letters in the order of the file.
#[derive(Default)]
struct Segments {
    done: Vec<(Direction, Segment)>,
    words: Vec<Word>,
    word: Option<Word>,
    /// Where the letters of the word are.
    places: Vec<f32>,
    last: Option<Letter>,
    /// Where pdfium has ended the line.
    ended: Option<(f32, f32)>,
    /// Sizes of the segment's letters, in tenths of a point, and how many letters have them.
    sizes: Vec<(i32, usize)>,
    /// Number of its words that are bold.
    bold: usize,
}

impl Segments {
    fn end_word(&mut self) {
        let places = std::mem::take(&mut self.places);
        let Some(mut word) = self.word.take().filter(|word| !word.text.is_empty()) else { return };
        let letters: Vec<char> = word.text.chars().collect();
        if letters.len() == places.len() && letters.iter().any(|letter| is_to_left(*letter)) {
            word.text = read_word(letters, &places);
        }
        self.words.push(word);
    }

    /// Ends a line, unless the next letter goes on there.
    fn end_at(&mut self, char: &PdfPageTextChar<'_>) {
        match char.origin() {
            Ok((x, y)) => self.ended = self.ended.or(Some((x.value, y.value))),
            Err(_) => self.end(),
        }
    }

    fn blank(&mut self) {
        match self.ended {
            Some(_) => self.end(),
            None => self.end_word(),
        }
    }

    /// Whether a letter goes on with a word at whose end pdfium has ended the line: text in small pieces, or an exponent.
    fn goes_on(&self, place: (f32, f32), next: &Letter) -> bool {
        let (Some(last), Some(word)) = (&self.last, &self.word) else { return false };
        let gap = (next.from - last.direction.turned(place).0).abs();
        let drop = (next.base - last.base).abs();
        let is_level = drop < 0.02 * last.size && (next.size - last.size).abs() < 0.02 * last.size;
        // The number of a note after a word is no part of it.
        let is_symbol = word.text.chars().count() <= 2 && last.character.is_alphanumeric();
        let is_other_word = last.character.is_lowercase() && next.character.is_uppercase();
        let is_script = is_symbol && !is_other_word && next.size < 0.85 * last.size && drop < 0.6 * last.size;
        next.direction == last.direction
            && (is_level && gap < NEXT.0 * last.size || is_script && gap < NEXT.1 * last.size)
    }

    fn end(&mut self) {
        self.ended = None;
        self.end_word();
        let words = std::mem::take(&mut self.words);
        if let Some(last) = self.last.take()
            && !words.is_empty()
        {
            let (at, is_bold) = (self.done.len(), 2 * self.bold > words.len());
            self.done.push((last.direction, Segment::of(words, self.size(), is_bold, at)));
        }
        self.sizes.clear();
        self.bold = 0;
    }

    /// The size of most letters. Where sizes are guessed from the letters' heights, that of the highest one.
    fn size(&self) -> f32 {
        let all: usize = self.sizes.iter().map(|(_, letters)| letters).sum();
        let most = self.sizes.iter().find(|(_, letters)| 2 * letters >= all);
        let size = most.or(self.sizes.iter().max_by_key(|(size, _)| size));
        size.map_or(0.0, |(size, _)| *size as f32 / 10.0)
    }

    fn add(&mut self, letter: Letter, is_bold: impl FnOnce() -> bool) {
        if let Some(place) = self.ended.take()
            && !self.goes_on(place, &letter)
        {
            self.end();
        }
        if let Some(last) = self.last.take() {
            let is_apart = is_apart(&last, &letter, self.word.is_some());
            // The number of a note stands before its text.
            let is_note = last.character.is_ascii_digit() && letter.character.is_alphabetic();
            // Ten to the fifth is not one hundred and five.
            let is_power = is_raised(&last, &letter);
            let is_lowered = is_smaller(&last, &letter);
            self.last = Some(last);
            match self.word.as_mut() {
                _ if is_apart => self.end(),
                Some(word) if is_power => word.text.push('^'),
                _ if is_note && is_lowered => self.end_word(),
                _ => {}
            }
        }
        if self.word.is_none() {
            self.bold += usize::from(is_bold());
        }
        let word = self.word.get_or_insert_with(|| Word { text: String::new(), bounds: Bounds::NONE });
        push(&mut word.text, letter.character);
        word.bounds = word.bounds.with(letter.bounds);
        self.places.push(letter.bounds.x0);
        let size = (letter.size * 10.0).round() as i32;
        match self.sizes.iter().position(|(known, _)| *known == size) {
            Some(at) => self.sizes[at].1 += 1,
            None if self.sizes.len() < MOST_SIZES => self.sizes.push((size, 1)),
            None => {}
        }
        self.last = Some(letter);
    }
}

/// Whether a letter does not go on with the line of the last one. Letters of one word may be far from each other.
fn is_apart(last: &Letter, next: &Letter, is_one_word: bool) -> bool {
    let size = last.size.max(next.size);
    let gap = (next.bounds.x0 - last.bounds.x1).max(last.bounds.x0 - next.bounds.x1);
    let drop = (next.base - last.base).abs();
    // In vertical writing, letters are below each other.
    let is_below = gap < 0.0 && next.base < last.base && drop < 2.0 * size && is_wide(last.character);
    last.direction != next.direction || (!is_below && (gap > GAP * size && !is_one_word || drop > 0.6 * size))
}

/// Whether a character fills a square.
fn is_wide(character: char) -> bool {
    matches!(character, '\u{2E80}'..='\u{9FFF}' | '\u{AC00}'..='\u{D7A3}' | '\u{F900}'..='\u{FAFF}' | '\u{FF00}'..='\u{FF60}')
}

/// Whether a letter is smaller than the next one, and higher.
fn is_smaller(last: &Letter, next: &Letter) -> bool {
    last.size < 0.85 * next.size && last.base > next.base + 0.15 * next.size
}

/// Whether a digit is an exponent of the digit before it.
fn is_raised(last: &Letter, next: &Letter) -> bool {
    let are_digits = last.character.is_ascii_digit() && matches!(next.character, '0'..='9' | '-' | '−');
    are_digits && is_smaller(next, last)
}

/// Appends a character; ligatures become letters.
fn push(text: &mut String, character: char) {
    match character {
        '\u{FB00}' => text.push_str("ff"),
        '\u{FB01}' => text.push_str("fi"),
        '\u{FB02}' => text.push_str("fl"),
        '\u{FB03}' => text.push_str("ffi"),
        '\u{FB04}' => text.push_str("ffl"),
        '\u{FB05}' | '\u{FB06}' => text.push_str("st"),
        // pdfium's mark of a hyphen at the end of a line.
        '\u{2}' => text.push('\u{AD}'),
        _ => text.push(character),
    }
}

/// The text of a page in the order of the file, with its direction.
pub(super) struct Text {
    pub segments: Vec<(Direction, Segment)>,
    /// Number of its letters, and of those of them of which the file does not say what they are.
    letters: (usize, usize),
}

/// Reads the text of a page.
///
/// # Errors
///
/// The page has more letters than any real one.
pub(super) fn text_of(page: &PdfPage<'_>) -> Result<Text, ReadError> {
    let mut segments = Segments::default();
    let (mut known, mut unknown) = (0, 0);
    if let Ok(text) = page.text() {
        let shown = page.boundaries().bounding().map(|boundary| Direction::default().bounds(&boundary.bounds)).ok();
        let mut half = None;
        let letters = text.chars();
        if letters.len() > MOST_LETTERS {
            return Err(ReadError::TooMany { what: "letters on a page", limit: MOST_LETTERS as u64 });
        }
        let clusters = Clusters::of(page, &letters);
        for (number, char) in letters.iter().enumerate().filter(|(number, _)| clusters.has(*number)) {
            let Some(character) = whole(char.unicode_value(), &mut half) else { continue };
            let (kind, is_unknown) = kind(&char, character);
            unknown += usize::from(is_unknown);
            known += usize::from(!is_unknown && !character.is_whitespace());
            if clusters.is_after_blank(number) {
                segments.blank();
            }
            match kind {
                Kind::End => segments.end_at(&char),
                Kind::Blank => segments.blank(),
                Kind::Nothing => {}
                Kind::Letter if shown.is_some_and(|shown| !is_within(&shown, &char)) => {}
                Kind::Letter => {
                    if let Some(mut letter) = Letter::of(&char, character) {
                        letter.bounds.x1 =
                            clusters.end(number).map_or(letter.bounds.x1, |end| end.max(letter.bounds.x1));
                        segments.add(letter, || is_bold(&char));
                    }
                }
            }
        }
        segments.end();
    }
    Ok(Text { segments: segments.done, letters: (known + unknown, unknown) })
}

/// Reads a page.
///
/// # Errors
///
/// The page has more letters than any real one.
pub(super) fn read(page: &PdfPage<'_>) -> Result<Page, ReadError> {
    let Text { segments, letters } = text_of(page)?;
    let main = main_direction(&segments);
    let mut read = Page { letters, ..Page::default() };
    let mut turned = BTreeMap::<Direction, Vec<Segment>>::new();
    for (direction, segment) in segments {
        match direction == main {
            true => read.segments.push(segment),
            false => turned.entry(direction).or_default().push(segment),
        }
    }
    link(page, main, &mut read.segments);
    add_marks(page, main, &mut read.segments);
    read.turned = turned.into_values().collect();
    let drawn = drawn(page, main);
    mark_items(&mut read.segments, &drawn.bullets);
    read.rules = drawn.rules;
    Ok(read)
}

/// Whether a part of a letter is in the part of a page that is shown.
fn is_within(shown: &Bounds, char: &PdfPageTextChar<'_>) -> bool {
    let Ok(place) = char.tight_bounds() else { return true };
    let place = Direction::default().bounds(&place);
    place.x0 <= shown.x1 && place.x1 >= shown.x0 && place.y0 <= shown.y1 && place.y1 >= shown.y0
}

fn is_bold(char: &PdfPageTextChar<'_>) -> bool {
    let name = char.font_name().to_ascii_lowercase();
    ["bold", "black", "heavy", "semibold", "demi"].iter().any(|word| name.contains(word))
        || char.font_is_bold_reenforced()
}

/// The direction of most letters.
fn main_direction(segments: &[(Direction, Segment)]) -> Direction {
    let mut letters: BTreeMap<Direction, usize> = BTreeMap::new();
    for (direction, segment) in segments {
        *letters.entry(*direction).or_default() += segment.words.iter().map(|word| word.text.len()).sum::<usize>();
    }
    letters.into_iter().rev().max_by_key(|(_, letters)| *letters).map(|(direction, _)| direction).unwrap_or_default()
}
