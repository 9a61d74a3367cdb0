//! Finds and removes headers, footers and the numbers of pages.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use super::layout::Block;
use super::shape::Bounds;

/// Lines at more than this share of the height of the text are headers or footers, if they come again.
const MARGIN: f32 = 0.12;
/// Maximum number of lines of a header, and of a footer.
const MARGINAL: usize = 4;
/// Headers and footers are on at least so many pages, and on this share of them.
const REPEATED: (usize, f32) = (3, 0.3);
/// Maximum number of blanks beside the number of a page, as in `- Page 3 of 12 -`.
const MOST_BLANKS: usize = 5;

/// What a line at the margin says, and how high: a number of the page is told by its distance from the page's place.
type Running = (String, i32);

/// A line at the margin, as a block of its page or as a row of a table there.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Place {
    block: usize,
    row: Option<usize>,
}

/// The lines at the margins of a page.
fn running(page: &[Block], number: usize, whole: &Bounds) -> Vec<(Place, Running)> {
    let margin = MARGIN * whole.height();
    let mut lines: Vec<(Place, Bounds, Cow<'_, str>)> = Vec::new();
    for (block, content) in page.iter().enumerate() {
        match content {
            Block::Line { line, .. } => {
                lines.push((Place { block, row: None }, line.bounds, Cow::Borrowed(&line.text)));
            }
            Block::Table { rows, places } => {
                // Only the last rows of a table without lines may be a footer.
                for (row, (cells, place)) in rows.iter().zip(places).enumerate().skip(rows.len().saturating_sub(2)) {
                    let cells: Vec<&str> = cells.iter().map(String::as_str).filter(|cell| !cell.is_empty()).collect();
                    lines.push((Place { block, row: Some(row) }, *place, Cow::Owned(cells.join(" "))));
                }
            }
        }
    }
    lines.sort_by(|a, b| b.1.y1.total_cmp(&a.1.y1));
    let (top, bottom) = lines.split_at(lines.len().min(MARGINAL));
    let bottom = &bottom[bottom.len().saturating_sub(MARGINAL)..];
    let is_at_margin = |(place, bounds, _): &&(Place, Bounds, Cow<'_, str>)| {
        bounds.y1 > whole.y1 - margin && place.row.is_none() || bounds.y0 < whole.y0 + margin
    };
    let mut all = Vec::new();
    for (place, bounds, text) in top.iter().chain(bottom).filter(is_at_margin) {
        let height = (bounds.y0 / 6.0).round() as i32;
        // The same on each page, or with the number of the page.
        all.push((*place, (text.to_string(), height)));
        if text.contains(|letter: char| letter.is_ascii_digit()) {
            let (letters, numbers) = form(text, number);
            all.push((*place, (format!("{letters}\0{}", numbers.split(' ').next().unwrap_or_default()), height)));
            all.push((
                *place,
                (format!("{letters}\0{}", numbers.trim().rsplit(' ').next().unwrap_or_default()), height),
            ));
        }
    }
    all
}

/// A line without its numbers, and how far each of them is from the number of the page.
fn form(text: &str, number: usize) -> (String, String) {
    let no_digit = |letter: char| !letter.is_ascii_digit();
    let mut form = String::new();
    for (at, part) in text.split(no_digit).filter(|part| !part.is_empty()).enumerate() {
        let distance = part.parse::<i64>().map_or(0, |found| found.saturating_sub(number as i64));
        form.push_str(&format!("{at}:{distance} "));
    }
    (text.chars().filter(|letter| no_digit(*letter)).collect(), form)
}

/// Removes headers, footers and the numbers of pages: lines at the margin that come again on other pages. The first one is
/// kept, unless it is a number, and a page is not left empty.
pub(super) fn remove_running(pages: &mut [Vec<Block>]) {
    let lines = pages.iter().flatten().filter_map(|block| match block {
        Block::Line { line, .. } => Some(line.bounds),
        Block::Table { .. } => None,
    });
    let whole = Bounds::all(lines);
    let mut pages_with: HashMap<Running, usize> = HashMap::new();
    for (number, page) in pages.iter().enumerate() {
        let keys: HashSet<Running> = running(page, number, &whole).into_iter().map(|(_, key)| key).collect();
        keys.into_iter().for_each(|key| *pages_with.entry(key).or_default() += 1);
    }
    let least = REPEATED.0.max((REPEATED.1 * pages.len() as f32).ceil() as usize);
    let mut seen: HashSet<Running> = HashSet::new();
    for (number, page) in pages.iter_mut().enumerate() {
        let mut removed: HashSet<Place> = HashSet::new();
        let mut kept = Vec::new();
        for (at, key) in running(page, number, &whole) {
            let count = pages_with.get(&key).copied().unwrap_or_default();
            let letters = key.0.chars().filter(|letter| letter.is_alphabetic()).count();
            // A row of numbers that ends with the page's is more than that.
            let is_short = key.0.matches(' ').count() <= MOST_BLANKS;
            let is_number = letters <= "page of".len() && is_short && key.0.contains('\0');
            if is_number && count >= 2 || count >= least && seen.contains(&key) {
                removed.insert(at);
            } else if count >= least {
                kept.push(key);
            }
        }
        seen.extend(kept);
        let blocks = removed.iter().filter(|place| place.row.is_none()).count();
        if blocks < page.len() {
            let mut block = 0;
            page.retain_mut(|content| {
                if let Block::Table { rows, .. } = content {
                    let mut row = 0;
                    rows.retain(|_| {
                        row += 1;
                        !removed.contains(&Place { block, row: Some(row - 1) })
                    });
                }
                block += 1;
                !removed.contains(&Place { block: block - 1, row: None })
            });
        }
    }
}
