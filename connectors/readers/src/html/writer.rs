//! Writes a page's elements and texts as Markdown.

use turnflow_engine::document::Markup;

use crate::Content;
use crate::docx::roman;
use crate::raised::{Height, between};

/// Whether an element and its content are dropped. `svg` contains other title elements.
fn is_dropped(name: &str) -> bool {
    const DROPPED: &[&str] = &[
        "audio", "canvas", "datalist", "iframe", "nav", "noembed", "noframes", "noscript", "object", "script", "style",
        "svg", "template", "video",
    ];
    DROPPED.contains(&name)
}

/// Whether an element affects the form of the text beyond a break.
pub(super) fn has_form(name: &str) -> bool {
    const FORMS: &[&str] = &[
        "caption", "dd", "dt", "li", "menu", "ol", "option", "p", "pre", "table", "tbody", "td", "tfoot", "th",
        "thead", "tr", "ul",
    ];
    FORMS.contains(&name) || heading_level(name).is_some() || is_dropped(name)
}

/// Whether an element starts and ends a block of text.
pub(super) fn is_block(name: &str) -> bool {
    const BLOCKS: &[&str] = &[
        "address",
        "article",
        "aside",
        "blockquote",
        "body",
        "caption",
        "center",
        "dd",
        "details",
        "dialog",
        "div",
        "dl",
        "dt",
        "fieldset",
        "figcaption",
        "figure",
        "footer",
        "form",
        "header",
        "hgroup",
        "hr",
        "html",
        "legend",
        "li",
        "main",
        "menu",
        "ol",
        "option",
        "p",
        "section",
        "select",
        "summary",
        "table",
        "tbody",
        "textarea",
        "tfoot",
        "thead",
        "tr",
        "ul",
    ];
    BLOCKS.contains(&name)
}

fn heading_level(name: &str) -> Option<usize> {
    match name.as_bytes() {
        [b'h', level @ b'1'..=b'6'] => Some(usize::from(level - b'0')),
        _ => None,
    }
}

/// Whether a character is of a script that puts zero-width spaces between words: Thai, Lao, Burmese or Khmer.
fn is_unspaced(character: char) -> bool {
    matches!(
        character,
        '\u{E00}'..='\u{EFF}'
            | '\u{1000}'..='\u{109F}'
            | '\u{1780}'..='\u{17FF}'
            | '\u{A9E0}'..='\u{A9FF}'
            | '\u{AA60}'..='\u{AA7F}'
    )
}

/// Kind of the last block: lines of a list or a table follow each other without an empty line.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Paragraph,
    Item,
    Row,
}

/// Deepest level of a list that is indented.
const DEEPEST_INDENTED: usize = 8;

/// An open list.
struct List {
    /// How its numbers are written; `None` for a list with signs.
    numbers: Option<char>,
    next: i64,
    step: i64,
    /// Length of the last mark, with a blank.
    width: usize,
}

impl List {
    fn of<'e>(name: &str, attribute: impl Fn(&str) -> Option<&'e str>) -> Self {
        let kind = attribute("type").and_then(|kind| kind.chars().next()).unwrap_or('1');
        let is_reversed = attribute("reversed").is_some();
        Self {
            // Without its start, the end of a reversed list is not known here.
            numbers: (name == "ol" && !(is_reversed && attribute("start").is_none())).then_some(kind),
            next: attribute("start").and_then(|start| start.parse().ok()).unwrap_or(1),
            step: if is_reversed { -1 } else { 1 },
            width: 2,
        }
    }

    /// The mark of the next item.
    fn mark(&mut self) -> String {
        let number = self.next;
        self.next = self.next.saturating_add(self.step);
        let letters = u32::try_from(number).ok().filter(|number| (1..=26).contains(number));
        let letter = letters.and_then(|number| char::from_digit(number + 9, 36));
        let mark = match (self.numbers, letter) {
            (None, _) => "- ".to_owned(),
            (Some('a'), Some(letter)) => format!("- {letter}. "),
            (Some('A'), Some(letter)) => format!("- {}. ", letter.to_ascii_uppercase()),
            (Some(kind @ ('i' | 'I')), _) if (1..5000).contains(&number) => {
                let roman = roman(number as u32);
                format!("- {}. ", if kind == 'I' { roman.to_uppercase() } else { roman })
            }
            _ => format!("{number}. "),
        };
        self.width = if mark.starts_with('-') { 2 } else { mark.len() };
        mark
    }
}

/// Maximum number of columns and of rows that a cell takes.
const MOST_SPANNED: (usize, usize) = (64, 1000);
/// Maximum number of columns of a row.
const MOST_COLUMNS: usize = 1 << 10;
/// Maximum number of cells of a page that repeat others.
const MOST_REPEATED: usize = 100_000;
/// The longest text that is repeated in the rows that its cell takes, in bytes.
const LONGEST: usize = 1 << 10;

/// The rows of the open table.
#[derive(Default)]
struct Table {
    cells: Vec<String>,
    /// Number of columns and rows that the open cell takes.
    span: (usize, usize),
    /// What cells of earlier rows have in the next ones, by column: the number of rows, and the text.
    above: Vec<(usize, String)>,
    /// Number of cells of the page so far that repeat others.
    repeated: usize,
}

impl Table {
    fn start(&mut self, columns: Option<usize>, rows: Option<usize>) {
        self.take_above();
        self.span = (columns.unwrap_or(1).clamp(1, MOST_SPANNED.0), rows.unwrap_or(1).clamp(1, MOST_SPANNED.1));
    }

    /// Takes the cells that go on from earlier rows.
    fn take_above(&mut self) {
        while let Some((rows, text)) = self.above.get_mut(self.cells.len()).filter(|(rows, _)| *rows > 0) {
            *rows -= 1;
            self.repeated += 1;
            self.cells.push(text.clone());
            if self.repeated > MOST_REPEATED {
                self.above.clear();
            }
        }
    }

    fn end(&mut self, text: &str) {
        for column in 0..self.span.0 {
            if self.cells.len() >= MOST_COLUMNS {
                return;
            }
            let text = if column == 0 { text } else { "" };
            if self.span.1 > 1 {
                let kept = if text.len() <= LONGEST { text } else { "" };
                self.above.resize(self.above.len().max(self.cells.len() + 1), (0, String::new()));
                self.above[self.cells.len()] = (self.span.1 - 1, kept.to_owned());
            }
            self.cells.push(text.to_owned());
        }
    }

    /// The row, if any of its cells has a text.
    fn row(&mut self) -> String {
        self.take_above();
        // Columns that earlier cells take after a gap.
        while self.above.iter().skip(self.cells.len()).any(|(rows, _)| *rows > 0) {
            self.cells.push(String::new());
            self.take_above();
        }
        let cells = std::mem::take(&mut self.cells);
        let last = cells.iter().rposition(|cell| !cell.is_empty()).map_or(0, |last| last + 1);
        cells[..last].join(" | ")
    }
}

/// Writes Markdown while the elements and texts of a page are walked in order.
#[derive(Default)]
pub(super) struct Writer {
    out: String,
    /// The block that is being collected, with collapsed white space.
    block: String,
    /// Whether a zero-width space came after the last character.
    zero_width: bool,
    last: Kind,
    /// `Some` inside `<title>`: the block that continues after it.
    interrupted: Option<String>,
    title: Option<String>,
    first_h1: Option<String>,
    heading: Option<usize>,
    /// The open lists, and whether an item's mark must still be written.
    lists: Vec<List>,
    item: bool,
    /// Number of open table cells. Blocks within a cell do not break the row.
    cells: usize,
    table: Table,
    pre: usize,
    /// Whether the text is raised or lowered.
    heights: Vec<Height>,
    last_height: Height,
}

impl Writer {
    /// Starts an element. Returns false if its content is dropped.
    pub(super) fn open<'e>(&mut self, name: &str, attribute: impl Fn(&str) -> Option<&'e str>) -> bool {
        if is_dropped(name) {
            return false;
        }
        if let Some(level) = heading_level(name) {
            self.flush();
            self.heading = Some(level);
            return true;
        }
        match name {
            "title" if self.interrupted.is_none() => {
                self.flush();
                self.interrupted = Some(std::mem::take(&mut self.block));
            }
            "br" => self.line_break(),
            "button" => self.text(" "),
            "ul" | "ol" | "menu" => {
                self.flush();
                self.lists.push(List::of(name, attribute));
            }
            "li" => {
                self.flush();
                self.item = true;
                if let (Some(list), Some(value)) = (self.lists.last_mut(), attribute("value")) {
                    list.next = value.parse().unwrap_or(list.next);
                }
            }
            "sup" => self.heights.push(Height::Raised),
            "sub" => self.heights.push(Height::Lowered),
            "table" if self.cells == 0 => {
                self.flush();
                self.table = Table { repeated: self.table.repeated, ..Table::default() };
            }
            "td" | "th" => {
                if self.cells == 0 {
                    self.flush();
                    let span = |name: &str| attribute(name).and_then(|span| span.parse().ok());
                    self.table.start(span("colspan"), span("rowspan"));
                } else if !self.block.is_empty() {
                    // A table in a cell.
                    self.text(" ");
                }
                self.cells += 1;
            }
            "pre" => {
                self.flush();
                self.pre += 1;
            }
            _ if is_block(name) => self.flush(),
            _ => {}
        }
        true
    }

    pub(super) fn close(&mut self, name: &str) {
        if heading_level(name).is_some() {
            self.flush();
            self.heading = None;
            return;
        }
        match name {
            "title" => {
                if let Some(interrupted) = self.interrupted.take() {
                    let title = std::mem::replace(&mut self.block, interrupted);
                    self.title.get_or_insert(title);
                }
            }
            "ul" | "ol" | "menu" => {
                self.flush();
                self.lists.pop();
            }
            "li" => {
                self.flush();
                self.item = false;
            }
            "sup" | "sub" => drop(self.heights.pop()),
            "td" | "th" => {
                self.cells = self.cells.saturating_sub(1);
                if self.cells == 0 {
                    let cell = std::mem::take(&mut self.block);
                    self.table.end(cell.trim());
                }
            }
            "tr" => {
                if self.cells == 0 {
                    self.flush();
                    self.block = self.table.row();
                }
                // Inside a cell, a row of a nested table ends like any other block.
                self.flush_as(Kind::Row);
            }
            "button" => self.text(" "),
            "pre" => {
                self.flush();
                self.pre = self.pre.saturating_sub(1);
            }
            _ if is_block(name) => self.flush(),
            _ => {}
        }
    }

    pub(super) fn text(&mut self, text: &str) {
        if self.pre > 0 && self.cells == 0 && self.heading.is_none() {
            self.block.push_str(text);
            return;
        }
        let height = self.heights.last().copied().unwrap_or_default();
        if height != self.last_height && !text.trim().is_empty() {
            // Blanks keep digits apart already.
            let gap = between(&self.block, self.last_height, height, text);
            self.block.push_str(gap);
            self.last_height = height;
        }
        for character in text.chars() {
            match character {
                '\u{200B}' => self.zero_width = true,
                // These would only split words.
                '\u{AD}' | '\u{FEFF}' => {}
                _ if character.is_whitespace() => {
                    if !self.block.is_empty() && !self.block.ends_with([' ', '\n']) {
                        self.block.push(' ');
                    }
                }
                _ => {
                    let is_between = std::mem::take(&mut self.zero_width) && is_unspaced(character);
                    if is_between && self.block.ends_with(is_unspaced) {
                        self.block.push(' ');
                    }
                    self.block.push(character);
                }
            }
        }
    }

    fn line_break(&mut self) {
        if self.cells > 0 || self.heading.is_some() || self.interrupted.is_some() {
            self.text(" ");
        } else if !self.block.is_empty() || self.pre > 0 {
            if self.pre == 0 {
                self.block.truncate(self.block.trim_end_matches(' ').len());
            }
            self.block.push('\n');
        }
    }

    fn flush(&mut self) {
        self.flush_as(Kind::Paragraph);
    }

    /// Ends the block.
    fn flush_as(&mut self, kind: Kind) {
        if self.cells > 0 {
            self.text(" ");
            return;
        }
        let block = std::mem::take(&mut self.block);
        if self.pre > 0 {
            self.code(block.trim_matches('\n'));
            return;
        }
        let text = block.trim();
        if text.is_empty() {
            return;
        }
        let kind = if self.item || (!self.lists.is_empty() && self.last == Kind::Item) { Kind::Item } else { kind };
        self.separate(if self.heading.is_some() { Kind::Paragraph } else { kind });
        if let Some(level) = self.heading {
            if level == 1 {
                self.first_h1.get_or_insert_with(|| text.to_owned());
            }
            self.out.extend(std::iter::repeat_n('#', level));
            self.out.push(' ');
            self.out.push_str(text);
            return;
        }
        // What is within an item begins where its text does.
        let outer = self.lists.len().saturating_sub(1).min(DEEPEST_INDENTED);
        let mut indent: usize = self.lists[..outer].iter().map(|list| list.width).sum();
        if kind == Kind::Item {
            self.out.extend(std::iter::repeat_n(' ', indent));
            let mark = match self.lists.last_mut() {
                Some(list) if self.item => list.mark(),
                Some(list) => " ".repeat(list.width),
                None => "- ".to_owned(),
            };
            self.item = false;
            indent += mark.len();
            self.out.push_str(&mark);
        }
        for (number, line) in text.split('\n').enumerate() {
            if number > 0 {
                self.out.push('\n');
                if kind == Kind::Item {
                    self.out.extend(std::iter::repeat_n(' ', indent));
                }
            }
            // Text that looks like a heading is escaped.
            let hashes = line.bytes().take_while(|byte| *byte == b'#').count();
            if (1..=6).contains(&hashes) && matches!(line.as_bytes().get(hashes), None | Some(b' ')) {
                self.out.push('\\');
            }
            self.out.push_str(line);
        }
    }

    /// Writes fenced code, so that the `#` of a comment does not read as a heading.
    fn code(&mut self, code: &str) {
        if code.trim().is_empty() {
            return;
        }
        self.separate(Kind::Paragraph);
        let fence = if code.contains("```") { "~~~~" } else { "```" };
        for part in [fence, "\n", code, "\n", fence] {
            self.out.push_str(part);
        }
    }

    fn separate(&mut self, kind: Kind) {
        if !self.out.is_empty() {
            let close = kind != Kind::Paragraph && kind == self.last;
            self.out.push_str(if close { "\n" } else { "\n\n" });
        }
        self.last = kind;
    }

    pub(super) fn finish(mut self) -> Content {
        self.flush();
        let title = self.title.map(|title| title.trim().to_owned()).filter(|title| !title.is_empty());
        Content {
            title: title.or(self.first_h1).unwrap_or_default(),
            text: self.out,
            markup: Markup::Markdown,
            metadata: Default::default(),
        }
    }
}
