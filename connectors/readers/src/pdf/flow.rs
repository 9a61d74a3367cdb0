//! Makes paragraphs, headings, lists and tables of the lines of all pages.

use std::collections::{BTreeMap, HashSet};

use super::headings::{Levels, levels_of_titles};
use super::items::{is_unsure, marked};
use super::layout::{Block, Line, median};
use super::outline::Titles;
use super::running::remove_running;
use super::shape::Bounds;
use super::to_left::{are_to_left, is_to_left};
use crate::ReadError;
use crate::markup::Markdown;

/// Fewer lines tell little of their usual distance.
const FEW_LINES: usize = 8;
/// Maximum number of notes and tables that a paragraph goes on after.
const MOST_FLOATS: usize = 12;
/// Letters of these shares of the text's size are of one size.
pub(super) const SAME_SIZE: f32 = 1.07;

/// A paragraph, before it is known which ones are headings.
#[derive(Debug)]
pub(super) enum Part {
    Text(Paragraph),
    Table(Vec<Vec<String>>),
}

#[derive(Debug)]
pub(super) struct Paragraph {
    pub text: String,
    /// The mark of an item of a list.
    pub mark: Option<String>,
    /// Number of lines.
    pub lines: usize,
    pub first: Bounds,
    pub last: Bounds,
    /// What the first line leaves free of its column at the left.
    pub indent: f32,
    pub size: f32,
    pub is_bold: bool,
    /// What the last line leaves free of its column.
    pub rest: f32,
    /// Whether the last line ends well before the others do.
    pub is_short: bool,
}

/// Writes the pages of a document. Returns where each of them begins in what is written, in bytes.
pub(super) fn write(
    mut pages: Vec<Vec<Block>>,
    titles: &Titles<'_>,
    markdown: &mut Markdown,
) -> Result<Vec<usize>, ReadError> {
    remove_running(&mut pages);
    let (body, leading) = (body_size(&pages), leading(&pages));
    let words = Words::of(&pages);
    // The paragraphs and tables, and the number of the first one that begins on each page.
    let (mut parts, mut firsts) = (Vec::new(), Vec::new());
    for page in pages {
        firsts.push(parts.len());
        for block in page {
            match block {
                Block::Table { mut rows, .. } => {
                    rows.iter_mut().flatten().for_each(|cell| {
                        shorten_leaders(cell);
                    });
                    // The first column of a table in Hebrew or Arabic is at the right.
                    if are_to_left(rows.iter().flatten()) {
                        rows.iter_mut().for_each(|row| row.reverse());
                    }
                    parts.push(Part::Table(rows));
                }
                Block::Line { line, left, right } => add(&mut parts, line, (left, right), leading, &words),
            }
        }
    }
    let levels = Levels::of(&parts, body);
    let titles = levels_of_titles(&parts, &firsts, titles, &levels);
    let mut starts = Vec::new();
    // How far the marks of the list and of those that it is in are from the edge.
    let mut indents: Vec<f32> = Vec::new();
    for (number, part) in parts.into_iter().enumerate() {
        let begun = firsts.iter().skip(starts.len()).take_while(|first| **first <= number).count();
        starts.extend(std::iter::repeat_n(markdown.len(), begun));
        match &part {
            Part::Text(Paragraph { mark: Some(_), indent, size, .. }) => {
                indents.retain(|outer| *outer < indent - 0.5 * size);
                indents.push(*indent);
            }
            _ => indents.clear(),
        }
        match part {
            Part::Table(rows) => markdown.table(&rows)?,
            Part::Text(paragraph) => match (titles[number].or(levels.level(&paragraph)), &paragraph.mark) {
                (Some(level), mark) => {
                    let mark = mark.as_deref().filter(|mark| *mark != "-").unwrap_or_default();
                    markdown.heading(level, &format!("{mark} {}", paragraph.text))?;
                }
                (None, Some(mark)) => markdown.item(indents.len().saturating_sub(1), mark, &paragraph.text)?,
                (None, None) => markdown.paragraph(&paragraph.text)?,
            },
        }
    }
    starts.resize(firsts.len(), markdown.len());
    Ok(starts)
}

/// Adds a line to the last paragraph, or starts one.
fn add(parts: &mut Vec<Part>, mut line: Line, (left, right): (f32, f32), leading: f32, words: &Words) {
    let width = (right - left).max(1.0);
    let rest = rest_of(&line.text, &line.bounds, (left, right));
    let has_leader = shorten_leaders(&mut line.text);
    let is_short = rest > 0.3 * width || has_leader;
    let (mut mark, mut text) = marked(&line.text);
    if let Some(Part::Text(paragraph)) = parts.last()
        && mark.is_some()
        && is_amid(paragraph, &line, (left, right), leading)
    {
        (mark, text) = (None, &line.text);
    }
    let goes_on = |paragraph: &Paragraph| goes_on(paragraph, &line, (left, right), leading);
    let found = match parts.last_mut() {
        Some(Part::Text(paragraph)) if mark.is_none() && goes_on(paragraph) => Some(parts.len() - 1),
        _ if mark.is_none() => before_floats(parts, &line, width),
        _ => None,
    };
    if let Some(Part::Text(paragraph)) = found.and_then(|at| parts.get_mut(at)) {
        let is_apart = paragraph.is_short || is_at_right(&paragraph.last, &line, left + 0.3 * width);
        join(&mut paragraph.text, text, is_apart, words);
        paragraph.lines += 1;
        paragraph.is_bold &= line.is_bold;
        (paragraph.last, paragraph.is_short, paragraph.rest) = (line.bounds, is_short, rest);
        return;
    }
    let (mark, text) = (mark.map(str::to_owned), text.to_owned());
    let Line { bounds, size, is_bold, .. } = line;
    let (first, last, indent) = (bounds, bounds, bounds.x0 - left);
    parts.push(Part::Text(Paragraph { text, mark, lines: 1, first, last, indent, size, is_bold, rest, is_short }));
}

/// The paragraph that goes on after notes, tables and captions, which are at the end of a page or a column.
fn before_floats(parts: &[Part], line: &Line, width: f32) -> Option<usize> {
    let is_float = |part: &Part| match part {
        Part::Table(_) => true,
        Part::Text(text) => SAME_SIZE * text.size < line.size || starts_apart(&text.text),
    };
    let floats = parts.iter().rev().take_while(|part| is_float(part)).take(MOST_FLOATS).count();
    let at = parts.len().checked_sub(floats + 1).filter(|_| floats > 0)?;
    let Part::Text(paragraph) = &parts[at] else { return None };
    let is_alike = line.size < SAME_SIZE * paragraph.size && paragraph.size < SAME_SIZE * line.size;
    let is_full = paragraph.rest < 0.03 * width && paragraph.lines > 1 && !paragraph.is_short;
    let is_unended = ends_with_hyphen(&paragraph.text) || !is_ended(&paragraph.text);
    (is_alike && is_full && is_unended && is_lower(&line.text)).then_some(at)
}

/// Whether what looks like the mark of an item is a dash or a number within a paragraph.
fn is_amid(paragraph: &Paragraph, line: &Line, (left, right): (f32, f32), leading: f32) -> bool {
    let drop = paragraph.last.y0 - line.bounds.y0;
    let is_level = (line.bounds.x0 - paragraph.last.x0).abs() < 0.3 * line.size
        || (line.bounds.x0 - left).abs() < 0.3 * line.size && paragraph.lines == 1;
    let is_near = drop > 0.3 * line.size && drop <= 1.3 * leading * line.size;
    let is_full = !paragraph.is_short && paragraph.rest < 0.06 * (right - left);
    paragraph.mark.is_none() && is_unsure(&line.text) && is_full && is_level && is_near && !is_ended(&paragraph.text)
}

/// Whether two lines end at the same place but begin at others, as those of an address at the right.
fn is_at_right(last: &Bounds, line: &Line, from: f32) -> bool {
    let differs = (last.x0 - line.bounds.x0).abs() > line.size;
    differs && (last.x1 - line.bounds.x1).abs() < 0.3 * line.size && line.bounds.x0.min(last.x0) > from
}

fn is_ended(text: &str) -> bool {
    text.ends_with(['.', '!', '?', ':', '。', '！', '？', '؟'])
}

fn is_lower(line: &str) -> bool {
    line.starts_with(char::is_lowercase)
}

/// Shortens rows of dots, such as those between a title and its page in a table of contents.
fn shorten_leaders(text: &mut String) -> bool {
    let is_leader = |part: &str| part.bytes().filter(|byte| *byte == b'.').count() >= 4;
    if !is_leader(text) {
        return false;
    }
    let mut short = String::new();
    let mut has_leader = false;
    let mut rest = text.as_str();
    while let Some(from) = rest.find('.') {
        let to = rest[from..].find(|letter| !matches!(letter, '.' | ' ')).map_or(rest.len(), |length| from + length);
        short.push_str(&rest[..from]);
        if is_leader(&rest[from..to]) {
            short.truncate(short.trim_end().len());
            short.push_str(" … ");
            has_leader = true;
        } else {
            short.push_str(&rest[from..to]);
        }
        rest = &rest[to..];
    }
    short.push_str(rest);
    short.truncate(short.trim_end().len());
    *text = short;
    has_leader
}

/// Whether a line goes on with a paragraph. `left` and `right` are those of its column, and `leading` is the distance of
/// lines in sizes of letters.
fn goes_on(paragraph: &Paragraph, line: &Line, (left, right): (f32, f32), leading: f32) -> bool {
    let (size, width) = (paragraph.size.max(line.size), (right - left).max(1.0));
    let is_alike = line.size < SAME_SIZE * paragraph.size && paragraph.size < SAME_SIZE * line.size;
    let (is_ended, is_lower) = (is_ended(&paragraph.text), is_lower(&line.text));
    let drop = paragraph.last.y0 - line.bounds.y0;
    // Some words of a paragraph may be bold, and fill a line.
    let is_within = !is_ended && is_lower && paragraph.rest < 0.1 * width;
    if !is_alike || paragraph.is_bold != line.is_bold && !is_within {
        return false;
    }
    // A row of stars parts two sections.
    if is_ornament(&paragraph.text) || is_ornament(&line.text) {
        return false;
    }
    if drop <= 0.3 * size || drop > 1.3 * leading * size {
        // In the next column, or on the next page.
        let is_elsewhere = drop <= 0.3 * size || drop > 6.0 * size;
        let is_unended = !is_ended && (is_lower || ends_with_hyphen(&paragraph.text));
        // The last line of a paragraph seldom reaches the edge.
        let is_at_edge = line.bounds.x0 - left < 0.5 * size || is_to_left_line(&line.text);
        let is_full = paragraph.rest < 0.015 * width && paragraph.lines > 1 && !starts_apart(&line.text) && is_at_edge;
        return is_elsewhere && !paragraph.is_short && (is_unended || is_full);
    }
    if paragraph.mark.is_some() {
        return line.bounds.x0 > paragraph.first.x0 + 0.3 * size || !is_ended && (is_lower || !paragraph.is_short);
    }
    let is_indented = line.bounds.x0 > left + 0.8 * size && line.bounds.x0 > paragraph.last.x0 + 0.8 * size;
    let is_centered = (line.bounds.center().0 - paragraph.last.center().0).abs() < 0.02 * width;
    if is_indented && !is_centered && paragraph.lines > 1 {
        return false;
    }
    !(is_ended && paragraph.rest > 0.15 * width)
}

fn is_ornament(text: &str) -> bool {
    text.chars().all(|letter| matches!(letter, '*' | '⁂' | '•' | '·' | '—' | '–' | '-' | '_' | '~' | ' '))
}

/// Whether a line begins as a heading or a caption does.
fn starts_apart(line: &str) -> bool {
    line.starts_with(|letter: char| letter.is_numeric()) || line.starts_with("Figure") || line.starts_with("Table")
}

/// What a line leaves free of its column at the end.
fn rest_of(text: &str, bounds: &Bounds, (left, right): (f32, f32)) -> f32 {
    if is_to_left_line(text) { bounds.x0 - left } else { right - bounds.x1 }
}

fn is_to_left_line(text: &str) -> bool {
    text.chars().find(|letter| letter.is_alphabetic()).is_some_and(is_to_left)
}

fn ends_with_hyphen(text: &str) -> bool {
    text.ends_with(['\u{AD}', '-', '\u{2010}'])
}

/// Appends a line to a text. A word that is parted at the end of a line is one word again.
fn join(text: &mut String, line: &str, is_short: bool, words: &Words) {
    let next = line.chars().next();
    let is_lower = next.is_some_and(char::is_lowercase);
    if let Some(whole) = text.strip_suffix(['\u{AD}', '-', '\u{2010}']) {
        let is_word = whole.chars().next_back().is_some_and(char::is_alphabetic);
        // Addresses have hyphens of their own.
        let word = whole.rsplit(' ').next().unwrap_or_default();
        if is_word && is_lower && !word.contains("://") && !word.contains("www.") {
            let has_hyphen = words.have_hyphen(word, line);
            text.truncate(whole.len());
            text.push_str(if has_hyphen { "-" } else { "" });
            text.push_str(line);
            return;
        }
        if !whole.ends_with(' ') && !whole.is_empty() {
            if text.ends_with('\u{AD}') {
                text.truncate(whole.len());
                text.push('-');
            }
            text.push_str(line);
            return;
        }
    }
    let are_dense = text.chars().next_back().is_some_and(is_dense) && next.is_some_and(is_dense);
    match (is_short, are_dense) {
        (true, _) => text.push('\n'),
        (false, false) => text.push(' '),
        (false, true) => {}
    }
    text.push_str(line);
}

/// The words of a document, to know whether a word at the end of a line has a hyphen of its own.
struct Words(HashSet<String>);

impl Words {
    fn of(pages: &[Vec<Block>]) -> Self {
        let mut words = HashSet::new();
        for block in pages.iter().flatten() {
            if let Block::Line { line, .. } = block {
                // The first and the last one may be parts of words.
                let all: Vec<&str> = line.text.split_whitespace().collect();
                let inner = all.get(1..all.len().saturating_sub(1)).unwrap_or_default();
                words.extend(inner.iter().map(|word| letters(word).to_lowercase()).filter(|word| !word.is_empty()));
            }
        }
        Self(words)
    }

    /// Whether a word that ends a line and one that begins the next are one with a hyphen.
    fn have_hyphen(&self, last: &str, line: &str) -> bool {
        let (one, other) =
            (letters(last).to_lowercase(), line.split_whitespace().next().map(letters).unwrap_or_default());
        let other = other.to_lowercase();
        if self.0.contains(&format!("{one}-{other}")) {
            return true;
        }
        let are_words = one.len() > 3 && other.len() > 3 && self.0.contains(&one) && self.0.contains(&other);
        are_words && !self.0.contains(&format!("{one}{other}"))
    }
}

/// A word without what is around it.
fn letters(word: &str) -> &str {
    word.trim_matches(|letter: char| !letter.is_alphanumeric())
}

/// Whether a character is of a script without blanks between words.
fn is_dense(character: char) -> bool {
    matches!(character, '\u{2E80}'..='\u{A4CF}' | '\u{F900}'..='\u{FAFF}' | '\u{FF00}'..='\u{FF0F}' | '\u{FF5B}'..='\u{FF65}')
}

/// The size of most letters.
fn body_size(pages: &[Vec<Block>]) -> f32 {
    let mut sizes: BTreeMap<u32, usize> = BTreeMap::new();
    for block in pages.iter().flatten() {
        if let Block::Line { line, .. } = block {
            *sizes.entry((line.size * 2.0).round() as u32).or_default() += line.text.len();
        }
    }
    sizes.iter().max_by_key(|(_, letters)| **letters).map_or(0.0, |(size, _)| *size as f32 / 2.0)
}

/// The usual distance of two lines, in sizes of their letters.
fn leading(pages: &[Vec<Block>]) -> f32 {
    let mut drops = Vec::new();
    for pair in pages.iter().flat_map(|page| page.windows(2)) {
        if let [Block::Line { line: above, .. }, Block::Line { line: below, .. }] = pair {
            let drop = (above.bounds.y0 - below.bounds.y0) / above.size.max(below.size).max(1.0);
            let is_near = (above.size - below.size).abs() < 0.1 * above.size && (0.8..3.0).contains(&drop);
            drops.extend(is_near.then_some(drop));
        }
    }
    let most = if drops.len() < FEW_LINES { 1.5 } else { 2.4 };
    median(drops.into_iter()).clamp(1.2, most)
}
