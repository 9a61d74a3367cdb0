//! Draws a page as a picture for people, with a passage marked.
//!
//! A passage is text that was made of the page: joined words, marks of Markdown, cells of tables. It is found again by its
//! letters and digits alone, in runs, so that what the reader has added or left out does not matter.

use std::collections::HashSet;

use pdfium_render::prelude::{PdfPage, PdfPoints, PdfRenderConfig, Pdfium};
use turnflow_engine::inference::Picture;
use unicode_normalization::UnicodeNormalization as _;

use super::page::{self, Direction};
use super::shape::{Segment, Word};
use super::to_left::{is_to_left, words_of};
use super::{library, opened};
use crate::ReadError;

/// Resolution, in pixels for each point: 130 to an inch.
const RESOLUTION: f32 = 130.0 / 72.0;
/// Largest area, in pixels, and longest side. Long pages, as browsers save them, stay readable.
const LARGEST: f32 = 6_000_000.0;
const LONGEST: f32 = 16_000.0;
/// Maximum number of letters that are looked at on the page, and in the passage.
const MOST_LETTERS: usize = 200_000;
/// Letters in a row that are the passage's, if they are in it in this order.
const RUN: usize = 12;
/// A shorter stretch is chance, unless the passage is short or a longer one is near.
const SURE: usize = 40;
/// Letters between two stretches of which the shorter one belongs to the longer one.
const NEAR: usize = 60;

/// Draws a page, whose number counts from 1.
///
/// # Errors
///
/// The file cannot be opened, has no such page, or the page cannot be drawn.
pub(crate) fn picture(bytes: &[u8], page: u32, passage: &str, passwords: &[String]) -> Result<Picture, ReadError> {
    library::with(|pdfium| drawn(pdfium, bytes, page, passage, passwords))
}

fn drawn(
    pdfium: &Pdfium,
    bytes: &[u8],
    number: u32,
    passage: &str,
    passwords: &[String],
) -> Result<Picture, ReadError> {
    let broken = |reason: String| ReadError::Broken { format: "PDF", reason };
    let pdf = opened(pdfium, bytes, passwords)?;
    let count = pdf.pages().len();
    let index = number.checked_sub(1).and_then(|index| i32::try_from(index).ok()).filter(|index| *index < count);
    let index = index.ok_or_else(|| broken(format!("it has {count} pages, and no page {number}")))?;
    let page = pdf.pages().get(index).map_err(|error| broken(error.to_string()))?;
    let (width, height) = (page.width().value, page.height().value);
    if !(width > 0.0 && height > 0.0) {
        return Err(broken(format!("page {number} has no size")));
    }
    let scale = scale_of(width, height);
    let side = |length: f32| ((length * scale).round() as i32).max(1);
    let config = PdfRenderConfig::new().set_fixed_size(side(width), side(height));
    let bitmap = page.render_with_config(&config).map_err(|error| broken(error.to_string()))?;
    let size = (usize::try_from(bitmap.width()).unwrap_or(0), usize::try_from(bitmap.height()).unwrap_or(0));
    let mut rgb: Vec<u8> =
        bitmap.as_rgba_bytes().chunks_exact(4).flat_map(|pixel| [pixel[0], pixel[1], pixel[2]]).collect();
    mark(&mut rgb, size, &places(&page, passage, &config));
    Picture::of(size.0, size.1, rgb).ok_or_else(|| broken(format!("page {number} cannot be drawn")))
}

/// Pixels for each point of a page of this size, in points.
fn scale_of(width: f32, height: f32) -> f32 {
    RESOLUTION.min((LARGEST / (width * height)).sqrt()).min(LONGEST / width.max(height))
}

/// A rectangle in pixels: left, top, right and below.
type Place = (f32, f32, f32, f32);

/// Where the passage's letters are in the picture.
fn places(page: &PdfPage<'_>, passage: &str, config: &PdfRenderConfig) -> Vec<Place> {
    let wanted = letters(passage.chars()).take(MOST_LETTERS).collect::<Vec<_>>();
    let (there, bounds) = letters_of(page);
    let pixels = |[a, b]: &[(f32, f32); 2]| {
        let corner = |(x, y): &(f32, f32)| page.points_to_pixels(PdfPoints::new(*x), PdfPoints::new(*y), config).ok();
        let (a, b) = (corner(a)?, corner(b)?);
        let (a, b) = ((a.0 as f32, a.1 as f32), (b.0 as f32, b.1 as f32));
        Some((a.0.min(b.0), a.1.min(b.1), a.0.max(b.0), a.1.max(b.1)))
    };
    let mut places = Vec::<Place>::new();
    for stretch in stretches(&there, &wanted) {
        let mut last = None;
        for place in bounds[stretch.0..stretch.1].iter().filter_map(pixels) {
            // The blank between two words of a line is marked, too.
            if let Some(gap) = last.and_then(|last| between(last, place)) {
                places.push(gap);
            }
            last = Some(place);
            places.push(place);
        }
    }
    places
}

/// The letters of a page as they are read, and where they are: the corners of a rectangle, in points.
fn letters_of(page: &PdfPage<'_>) -> (Vec<char>, Vec<[(f32, f32); 2]>) {
    let Ok(text) = page::text_of(page) else { return (Vec::new(), Vec::new()) };
    let (directions, segments): (Vec<Direction>, Vec<Segment>) = text.segments.into_iter().unzip();
    let mut found = Vec::new();
    let mut directions = directions.into_iter();
    for row in segments.chunk_by(|a, b| a.bounds.level_with(&b.bounds) > 0.5) {
        let direction = directions.by_ref().take(row.len()).last().unwrap_or_default();
        for Word { text, bounds } in words_of(row) {
            // A word is marked evenly, since its letters may be in another order than they look.
            let count = text.chars().count() as f32;
            // What is around its letters belongs to the first and the last one.
            let first = text.chars().position(char::is_alphanumeric).unwrap_or_default();
            let last = text.chars().count() - text.chars().rev().position(char::is_alphanumeric).unwrap_or_default();
            let part = |at: f32| bounds.x0 + bounds.width() * at / count;
            for (at, character) in text.chars().enumerate() {
                let (from, to) = match character {
                    letter if is_to_left(letter) => (0.0, count),
                    _ => (
                        if at == first { 0.0 } else { at as f32 },
                        if at + 1 == last { count } else { at as f32 + 1.0 },
                    ),
                };
                let corners = [(part(from), bounds.y1), (part(to), bounds.y0)].map(|corner| direction.on_page(corner));
                found.extend(letters(std::iter::once(character)).map(|letter| (letter, corners)));
            }
        }
    }
    found.into_iter().take(MOST_LETTERS).unzip()
}

/// The gap between two letters beside each other.
fn between(a: Place, b: Place) -> Option<Place> {
    let (a, b) = if a.0 <= b.0 { (a, b) } else { (b, a) };
    let height = (a.3 - a.1).max(b.3 - b.1);
    let is_level = (a.1.max(b.1) < a.3.min(b.3)) && b.0 > a.2 && b.0 - a.2 < height;
    is_level.then(|| (a.2, a.1.max(b.1), b.0, a.3.min(b.3)))
}

/// Letters and digits, small, without forms that are only for looks.
fn letters(text: impl Iterator<Item = char>) -> impl Iterator<Item = char> {
    text.nfkc().flat_map(char::to_lowercase).filter(|character| character.is_alphanumeric())
}

/// From where to where a page's letters are those of a passage.
fn stretches(there: &[char], wanted: &[char]) -> Vec<(usize, usize)> {
    let run = RUN.min(wanted.len());
    if run == 0 || there.len() < run {
        return Vec::new();
    }
    // A word or two are somewhere else, too.
    if wanted.len() < RUN && there.windows(run).filter(|window| *window == wanted).count() > 1 {
        return Vec::new();
    }
    let runs: HashSet<&[char]> = wanted.windows(run).collect();
    let mut found = Vec::<(usize, usize)>::new();
    for (from, window) in there.windows(run).enumerate() {
        if runs.contains(window) {
            match found.last_mut().filter(|last| from <= last.1 + 2) {
                Some(last) => last.1 = from + run,
                None => found.push((from, from + run)),
            }
        }
    }
    let sure = SURE.min(wanted.len() / 2);
    let is_sure = |(from, to): &(usize, usize)| to - from >= sure;
    let long: Vec<(usize, usize)> = found.iter().filter(|stretch| is_sure(stretch)).copied().collect();
    // They are in order and apart, so that the first one that ends late enough is the nearest.
    let is_near = |(from, to): &(usize, usize)| {
        let at = long.partition_point(|near| near.1 + NEAR < *from);
        long.get(at).is_some_and(|near| near.0 <= to + NEAR)
    };
    found.retain(is_near);
    found
}

/// Colours places as a marker does: what is dark stays so.
fn mark(rgb: &mut [u8], (width, height): (usize, usize), places: &[Place]) {
    let mut marked = vec![false; width * height];
    for (left, top, right, below) in places {
        let within = |from: f32, to: f32, most: usize| {
            (from.floor().max(0.0) as usize).min(most)..(to.ceil().max(0.0) as usize).min(most)
        };
        for row in within(*top, *below, height) {
            let columns = within(*left, *right, width);
            marked[row * width + columns.start..row * width + columns.end.max(columns.start)].fill(true);
        }
    }
    for (pixel, _) in rgb.chunks_exact_mut(3).zip(marked).filter(|(_, marked)| *marked) {
        pixel[1] = (u16::from(pixel[1]) * 230 / 255) as u8;
        pixel[2] = (u16::from(pixel[2]) * 90 / 255) as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(there: &str, wanted: &str) -> Vec<String> {
        let there: Vec<char> = letters(there.chars()).collect();
        let wanted: Vec<char> = letters(wanted.chars()).collect();
        stretches(&there, &wanted).iter().map(|(from, to)| there[*from..*to].iter().collect()).collect()
    }

    #[test]
    fn a_passage_is_found_over_hyphens_and_marks() {
        let page = "Header of the page. The refund is paid with-\nin thirty days of the return. Footer 12";
        let passage = "## Refunds\n\nThe **refund** is paid within thirty days of the [return](https://example.org).";
        assert_eq!(found(page, passage), ["therefundispaidwithinthirtydaysofthereturn"]);
    }

    #[test]
    fn a_common_phrase_elsewhere_is_not_marked() {
        let passage = "In the event of a delay the carrier pays for the hotel, the meals and two telephone calls.";
        let page = format!("{} {} {passage}", "In the event of rain we stay.", "x".repeat(200));
        assert_eq!(found(&page, passage).len(), 1);
        assert_eq!(found("Nothing of it is here", passage), [""; 0]);
        assert_eq!((found("", passage), found(&page, "")), (Vec::new(), Vec::new()));
        assert_eq!((found("Short: yes", "yes"), found("yes, eyes", "yes")), (vec!["yes".to_owned()], Vec::new()));
    }

    #[test]
    fn long_pages_stay_readable_and_large_ones_small() {
        assert_eq!(scale_of(612.0, 792.0), RESOLUTION);
        // A page as long as a format allows, as browsers save them.
        assert!(scale_of(612.0, 14_400.0) > 0.8);
        for (width, height) in [(14_400.0, 14_400.0), (14_400.0, 1.0), (1e30, 1e30), (0.1, 1e9)] {
            let scale: f32 = scale_of(width, height);
            assert!(width * height * scale * scale <= 1.01 * LARGEST || scale == 0.0);
            assert!(width.max(height) * scale <= 1.01 * LONGEST);
        }
    }

    #[test]
    fn stretches_near_a_long_one_belong_to_it() {
        let long = "the refund is paid within thirty days of the return of the goods";
        let passage = format!("abcdefghijklm. {long}. nopqrstuvwxyz0.");
        let blank = |letters: usize| "#".repeat(letters).replace('#', "0");
        let near = format!("abcdefghijklm {} {long} {} nopqrstuvwxyz0", blank(NEAR - 1), blank(NEAR - 1));
        assert_eq!(found(&near, &passage).len(), 3);
        let far = format!("abcdefghijklm {} {long} {} nopqrstuvwxyz0", blank(NEAR + 1), blank(NEAR + 1));
        assert_eq!(found(&far, &passage).len(), 1);
    }

    #[test]
    fn marks_stay_within_the_picture() {
        let mut rgb = vec![255; 3 * 4 * 3];
        mark(&mut rgb, (4, 3), &[(-5.0, -5.0, 1.5, 0.5), (3.0, 2.0, 90.0, 90.0), (9.0, 9.0, 8.0, 8.0)]);
        let marked: Vec<usize> = rgb.chunks(3).enumerate().filter(|(_, p)| p[2] == 90).map(|(n, _)| n).collect();
        assert_eq!(marked, [0, 1, 11]);
    }

    /// The share of a passage's letters that are found on one page of a file.
    fn share(bytes: &[u8], passage: &str) -> f32 {
        let wanted: Vec<char> = letters(passage.chars()).collect();
        let found = library::with(|pdfium| {
            let pdf = opened(pdfium, bytes, &[])?;
            let on_page = |page: PdfPage<'_>| {
                let (there, _) = letters_of(&page);
                stretches(&there, &wanted).iter().map(|(from, to)| to - from).sum::<usize>()
            };
            Ok(pdf.pages().iter().map(on_page).max().unwrap_or_default())
        });
        found.unwrap() as f32 / wanted.len() as f32
    }

    #[test]
    fn the_paragraphs_of_all_samples_are_found() {
        if !super::super::tests::has_pdfium() {
            return;
        }
        let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pdf");
        for file in std::fs::read_dir(directory).unwrap().map(|file| file.unwrap().path()) {
            if file.extension().is_none_or(|extension| extension != "pdf") {
                continue;
            }
            let bytes = std::fs::read(&file).unwrap();
            let parts = std::fs::read(file.with_extension("json")).unwrap();
            let parts: Vec<Vec<serde_json::Value>> = serde_json::from_slice(&parts).unwrap();
            for part in parts.iter().filter(|part| part[0] == "p") {
                let text = part[1].as_str().unwrap();
                let share = share(&bytes, text);
                // One goes on in the next column, behind a table.
                assert!(share > 0.7, "{}: {share} of {text}", file.display());
            }
        }
    }
}
