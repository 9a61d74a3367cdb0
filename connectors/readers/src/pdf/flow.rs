//! Makes paragraphs, headings, lists and tables of the lines of all pages.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::layout::{Block, Line, is_to_left, median};
use super::shape::Bounds;
use crate::ReadError;
use crate::markup::Markdown;

/// Lines at more than this share of the height of the text are headers or footers, if they come again.
const MARGIN: f32 = 0.12;
/// Maximum number of lines of a header, and of a footer.
const MARGINAL: usize = 4;
/// Headers and footers are on at least so many pages, and on this share of them.
const REPEATED: (usize, f32) = (3, 0.3);
/// Fewer lines tell little of their usual distance.
const FEW_LINES: usize = 8;
/// Headings are larger than the text by this factor.
const LARGER: f32 = 1.13;
/// Maximum length of a heading, in letters, and of one that is only bold.
const HEADING: (usize, usize) = (200, 120);
/// Letters of these shares of the text's size are of one size.
const SAME_SIZE: f32 = 1.07;

/// A paragraph, before it is known which ones are headings.
#[derive(Debug)]
enum Part {
    Text(Paragraph),
    Table(Vec<Vec<String>>),
}

#[derive(Debug)]
struct Paragraph {
    text: String,
    /// The mark of an item of a list.
    mark: Option<String>,
    /// Number of lines.
    lines: usize,
    first: Bounds,
    last: Bounds,
    size: f32,
    is_bold: bool,
    /// What the last line leaves free of its column.
    rest: f32,
    /// Whether the last line ends well before the others do.
    is_short: bool,
}

/// Writes the pages of a document. Returns where each of them begins in what is written, in bytes.
pub(super) fn write(mut pages: Vec<Vec<Block>>, markdown: &mut Markdown) -> Result<Vec<usize>, ReadError> {
    remove_running(&mut pages);
    let (body, leading) = (body_size(&pages), leading(&pages));
    let words = Words::of(&pages);
    // The paragraphs and tables, and the number of the first one that begins on each page.
    let (mut parts, mut firsts) = (Vec::new(), Vec::new());
    for page in pages {
        firsts.push(parts.len());
        for block in page {
            match block {
                Block::Table(rows) => parts.push(Part::Table(rows)),
                Block::Line { line, left, right } => add(&mut parts, line, (left, right), leading, &words),
            }
        }
    }
    let levels = Levels::of(&parts, body);
    let mut starts = Vec::new();
    for (number, part) in parts.into_iter().enumerate() {
        let begun = firsts.iter().skip(starts.len()).take_while(|first| **first <= number).count();
        starts.extend(std::iter::repeat_n(markdown.len(), begun));
        match part {
            Part::Table(rows) => markdown.table(&rows)?,
            Part::Text(paragraph) => match (levels.level(&paragraph), &paragraph.mark) {
                (Some(level), mark) => {
                    let mark = mark.as_deref().filter(|mark| *mark != "-").unwrap_or_default();
                    markdown.heading(level, &format!("{mark} {}", paragraph.text))?;
                }
                (None, Some(mark)) => markdown.item(0, mark, &paragraph.text)?,
                (None, None) => markdown.paragraph(&paragraph.text)?,
            },
        }
    }
    starts.resize(firsts.len(), markdown.len());
    Ok(starts)
}

/// Adds a line to the last paragraph, or starts one.
fn add(parts: &mut Vec<Part>, line: Line, (left, right): (f32, f32), leading: f32, words: &Words) {
    let width = (right - left).max(1.0);
    let is_short = rest_of(&line.text, &line.bounds, (left, right)) > 0.3 * width;
    let free = rest_of(&line.text, &line.bounds, (left, right));
    let (mark, rest) = marked(&line.text);
    if let Some(Part::Text(paragraph)) = parts.last_mut()
        && mark.is_none()
        && goes_on(paragraph, &line, (left, right), leading)
    {
        join(&mut paragraph.text, rest, paragraph.is_short, words);
        paragraph.lines += 1;
        paragraph.is_bold &= line.is_bold;
        (paragraph.last, paragraph.is_short, paragraph.rest) = (line.bounds, is_short, free);
        return;
    }
    let (mark, text) = (mark.map(str::to_owned), rest.to_owned());
    let Line { bounds, size, is_bold, .. } = line;
    let (first, last) = (bounds, bounds);
    parts.push(Part::Text(Paragraph { text, mark, lines: 1, first, last, size, is_bold, rest: free, is_short }));
}

/// Whether a line goes on with a paragraph. `left` and `right` are those of its column, and `leading` is the distance of
/// lines in sizes of letters.
fn goes_on(paragraph: &Paragraph, line: &Line, (left, right): (f32, f32), leading: f32) -> bool {
    let (size, width) = (paragraph.size.max(line.size), (right - left).max(1.0));
    let is_alike = line.size < SAME_SIZE * paragraph.size && paragraph.size < SAME_SIZE * line.size;
    if !is_alike || paragraph.is_bold != line.is_bold {
        return false;
    }
    let is_ended = paragraph.text.ends_with(['.', '!', '?', ':', '。', '！', '？', '؟']);
    let drop = paragraph.last.y0 - line.bounds.y0;
    let is_lower = line.text.chars().next().is_some_and(|letter| letter.is_lowercase());
    if drop <= 0.3 * size || drop > 1.3 * leading * size {
        // In the next column, or on the next page.
        let is_elsewhere = drop <= 0.3 * size || drop > 6.0 * size;
        let is_unended = !is_ended && (is_lower || ends_with_hyphen(&paragraph.text));
        // The last line of a paragraph seldom reaches the edge.
        let is_full = paragraph.rest < 0.015 * width && paragraph.lines > 1 && !starts_apart(&line.text);
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

/// Whether a line begins as a heading or a caption does.
fn starts_apart(line: &str) -> bool {
    line.starts_with(|letter: char| letter.is_numeric()) || line.starts_with("Figure") || line.starts_with("Table")
}

/// What a line leaves free of its column at the end.
fn rest_of(text: &str, bounds: &Bounds, (left, right): (f32, f32)) -> f32 {
    match text.chars().find(|letter| letter.is_alphabetic()) {
        Some(letter) if is_to_left(letter) => bounds.x0 - left,
        _ => right - bounds.x1,
    }
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

/// The mark of an item of a list, and the rest of the line.
fn marked(line: &str) -> (Option<&str>, &str) {
    let Some((first, rest)) = line.split_once(' ') else { return (None, line) };
    let mut characters = first.chars();
    let is_bullet = matches!(
        (characters.next(), characters.next()),
        (Some('•' | '‣' | '◦' | '▪' | '■' | '□' | '●' | '○' | '–' | '·' | '*' | '-' | '\u{E000}'..='\u{F8FF}'), None)
    );
    let number = first.trim_end_matches(['.', ')']);
    let is_number = number.len() < first.len() && number.len() <= 3 && number.bytes().all(|byte| byte.is_ascii_digit());
    match (is_bullet, is_number && !number.is_empty()) {
        (true, _) => (Some("-"), rest),
        (_, true) => (Some(first), rest),
        _ => (None, line),
    }
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

/// The levels of headings.
struct Levels {
    body: f32,
    /// Sizes of larger headings, from the greatest on.
    sizes: Vec<f32>,
    /// Whether what is only bold is a heading.
    has_bold: bool,
}

impl Levels {
    fn of(parts: &[Part], body: f32) -> Self {
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
    fn level(&self, paragraph: &Paragraph) -> Option<usize> {
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

/// What a line at the margin says, and how high: a number of the page is told by its distance from the page's place.
type Running = (String, i32);

/// The lines at the margins of a page.
fn running(page: &[Block], number: usize, whole: &Bounds) -> Vec<(usize, Running)> {
    let margin = MARGIN * whole.height();
    let mut lines: Vec<(usize, &Line)> = page
        .iter()
        .enumerate()
        .filter_map(|(at, block)| if let Block::Line { line, .. } = block { Some((at, line)) } else { None })
        .collect();
    lines.sort_by(|(_, a), (_, b)| b.bounds.y1.total_cmp(&a.bounds.y1));
    let (top, bottom) = lines.split_at(lines.len().min(MARGINAL));
    let bottom = &bottom[bottom.len().saturating_sub(MARGINAL)..];
    let is_at_margin = |line: &Line| line.bounds.y1 > whole.y1 - margin || line.bounds.y0 < whole.y0 + margin;
    let at_margin = top.iter().chain(bottom).filter(|(_, line)| is_at_margin(line)).copied();
    let form = |text: &str| {
        let digits = |letter: char| !letter.is_ascii_digit();
        let mut form = String::new();
        for (at, part) in text.split(digits).filter(|part| !part.is_empty()).enumerate() {
            let distance = part.parse::<i64>().map_or(0, |found| found - number as i64);
            form.push_str(&format!("{at}:{distance} "));
        }
        let letters: String = text.chars().filter(|letter| !letter.is_ascii_digit()).collect();
        (letters, form)
    };
    let mut all = Vec::new();
    for (at, line) in at_margin {
        let height = (line.bounds.y0 / 6.0).round() as i32;
        // The same on each page, or with the number of the page.
        all.push((at, (line.text.clone(), height)));
        if line.text.contains(|letter: char| letter.is_ascii_digit()) {
            let (letters, numbers) = form(&line.text);
            all.push((at, (format!("{letters}\0{}", numbers.split(' ').next().unwrap_or_default()), height)));
            all.push((at, (format!("{letters}\0{}", numbers.trim().rsplit(' ').next().unwrap_or_default()), height)));
        }
    }
    all
}

/// Removes headers, footers and the numbers of pages: lines at the margin that come again on other pages. The first one is
/// kept, unless it is a number, and a page is not left empty.
fn remove_running(pages: &mut [Vec<Block>]) {
    let lines = pages.iter().flatten().filter_map(|block| match block {
        Block::Line { line, .. } => Some(line.bounds),
        Block::Table(_) => None,
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
        let mut removed: HashSet<usize> = HashSet::new();
        let mut kept = Vec::new();
        for (at, key) in running(page, number, &whole) {
            let count = pages_with.get(&key).copied().unwrap_or_default();
            let letters = key.0.chars().filter(|letter| letter.is_alphabetic()).count();
            let is_number = letters <= "page of".len() && key.0.contains('\0');
            if is_number && count >= 2 || count >= least && seen.contains(&key) {
                removed.insert(at);
            } else if count >= least {
                kept.push(key);
            }
        }
        seen.extend(kept);
        if removed.len() < page.len() {
            let mut at = 0;
            page.retain(|_| {
                at += 1;
                !removed.contains(&(at - 1))
            });
        }
    }
}
