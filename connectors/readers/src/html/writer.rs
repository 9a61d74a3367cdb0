//! Writes a page's elements and texts as Markdown.

use turnflow_engine::document::Markup;

use super::list::List;
use super::table::Table;
use crate::Content;
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
                self.table = self.table.another();
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
