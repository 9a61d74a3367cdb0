//! Writes Markdown: headings, paragraphs, lists and tables, with a limit on the length.

use std::rc::Rc;

use turnflow_engine::document::Markup;
use turnflow_engine::metadata::Metadata;

use super::{Content, ReadError};

/// Maximum length of a document's text, in bytes.
pub(super) const MOST_TEXT: usize = 64 << 20;
/// Maximum number of columns of a table. No spreadsheet program has more.
pub(super) const MOST_COLUMNS: usize = 1 << 14;
/// Maximum number of cells of all tables of a file.
pub(super) const MOST_CELLS: usize = 4_000_000;
/// Maximum number of columns of a table that a cell spans.
const MOST_SPANNED: usize = 64;
/// Deepest level of a list that is indented.
const MOST_INDENTED: usize = 8;

/// Kind of the last block: items of a list follow each other without an empty line.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Block,
    Item,
}

/// A table that is being read. Merged cells share their text.
#[derive(Default)]
pub(super) struct Table {
    pub(super) rows: Vec<Vec<Rc<str>>>,
    row: Vec<Rc<str>>,
    cell: String,
    /// Number of columns of the cell.
    pub(super) span: usize,
    /// Whether the cell continues the one above it.
    pub(super) is_continued: bool,
    /// Whether the row was deleted.
    pub(super) is_deleted: bool,
}

impl Table {
    /// Starts a cell.
    pub(super) fn start_cell(&mut self) {
        (self.span, self.is_continued) = (1, false);
    }

    /// Adds a paragraph to the cell.
    pub(super) fn add(&mut self, text: &str) {
        let text = text.trim();
        if !self.cell.is_empty() && !text.is_empty() {
            self.cell.push('\n');
        }
        self.cell.push_str(text);
    }

    /// Ends a cell. A cell that continues the one above has its text, so that each row can be read by itself. `cells`
    /// is the number of cells of the file so far.
    pub(super) fn end_cell(&mut self, cells: &mut usize) -> Result<(), ReadError> {
        let span = self.span.clamp(1, MOST_SPANNED);
        *cells += span;
        if *cells > MOST_CELLS {
            return Err(ReadError::TooMany { what: "cells", limit: MOST_CELLS as u64 });
        }
        let text: Rc<str> = std::mem::take(&mut self.cell).into();
        let above = self.rows.last().and_then(|row| row.get(self.row.len()));
        let text = above.filter(|_| self.is_continued && text.is_empty()).cloned().unwrap_or(text);
        self.row.push(text);
        if span > 1 {
            let empty: Rc<str> = "".into();
            self.row.extend((1..span).map(|_| empty.clone()));
        }
        self.start_cell();
        Ok(())
    }

    /// Ends a row.
    pub(super) fn end_row(&mut self) {
        let row = std::mem::take(&mut self.row);
        if !std::mem::take(&mut self.is_deleted) {
            self.rows.push(row);
        }
    }
}

/// Writes the blocks of a document one after another.
#[derive(Default)]
pub(super) struct Markdown {
    out: String,
    last: Kind,
    /// Level of the last item of a list.
    level: usize,
    first_heading: String,
    row: Option<Row>,
}

/// The row of a table that is being written.
struct Row {
    /// Number of columns of the table.
    columns: usize,
    is_header: bool,
    /// Number of cells so far.
    written: usize,
}

impl Markdown {
    /// The length of what is written so far, in bytes.
    pub(super) fn len(&self) -> usize {
        self.out.len()
    }

    /// Writes a heading that the document does not have itself, so that it is no title.
    pub(super) fn untitled(&mut self, level: usize, text: &str) -> Result<(), ReadError> {
        let first = std::mem::take(&mut self.first_heading);
        let written = self.heading(level, text);
        self.first_heading = first;
        written
    }

    /// Writes a heading of level 1 to 6, unless it is empty.
    pub(super) fn heading(&mut self, level: usize, text: &str) -> Result<(), ReadError> {
        let text: Vec<&str> = text.split_whitespace().collect();
        if text.is_empty() {
            return Ok(());
        }
        let text = text.join(" ");
        self.separate(Kind::Block);
        self.out.extend(std::iter::repeat_n('#', level.clamp(1, 6)));
        self.out.push(' ');
        self.out.push_str(&text);
        if self.first_heading.is_empty() {
            self.first_heading = text;
        }
        self.check()
    }

    /// Writes a paragraph, unless it is empty. Its line breaks are kept.
    pub(super) fn paragraph(&mut self, text: &str) -> Result<(), ReadError> {
        if text.trim().is_empty() {
            return Ok(());
        }
        self.separate(Kind::Block);
        self.lines(text, 0);
        self.check()
    }

    /// Writes an item of a list, unless it is empty. Level 0 is the outermost; `mark` is `-` or a number.
    pub(super) fn item(&mut self, level: usize, mark: &str, text: &str) -> Result<(), ReadError> {
        // Of more than four blanks, Markdown makes code.
        const INDENT: usize = 4;
        if text.trim().is_empty() {
            return Ok(());
        }
        let deepest = if self.last == Kind::Item { self.level + 1 } else { 0 };
        self.separate(Kind::Item);
        self.level = level.min(deepest).min(MOST_INDENTED);
        let indent = INDENT * self.level;
        self.out.extend(std::iter::repeat_n(' ', indent));
        self.out.push_str(mark);
        self.out.push(' ');
        self.lines(text, indent + mark.len() + 1);
        self.check()
    }

    /// Writes a table. Its first row is the header. Empty rows are left out.
    pub(super) fn table<S: AsRef<str>>(&mut self, rows: &[Vec<S>]) -> Result<(), ReadError> {
        let is_filled = |row: &&Vec<S>| row.iter().any(|cell| !cell.as_ref().trim().is_empty());
        let columns = rows.iter().filter(is_filled).map(Vec::len).max().unwrap_or_default();
        if columns == 0 {
            return Ok(());
        }
        self.start_table(columns)?;
        for row in rows.iter().filter(is_filled) {
            for cell in row {
                self.cell(cell.as_ref());
            }
            self.end_row()?;
        }
        Ok(())
    }

    /// Starts a table; its cells and the ends of its rows follow. `columns` is the length of its longest row.
    pub(super) fn start_table(&mut self, columns: usize) -> Result<(), ReadError> {
        if columns > MOST_COLUMNS {
            return Err(ReadError::TooMany { what: "columns", limit: MOST_COLUMNS as u64 });
        }
        self.separate(Kind::Block);
        self.row = Some(Row { columns, is_header: true, written: 0 });
        Ok(())
    }

    /// Writes the next cell of a row. Line breaks become blanks, and bars are escaped.
    pub(super) fn cell(&mut self, text: &str) {
        let Some(row) = &mut self.row else { return };
        row.written += 1;
        self.out.push_str(if row.written == 1 { "|" } else { " |" });
        for word in text.split_whitespace() {
            self.out.push(' ');
            for (number, part) in word.split('|').enumerate() {
                if number > 0 {
                    self.out.push_str("\\|");
                }
                self.out.push_str(part);
            }
        }
    }

    /// Ends a row of a table. A short header is filled up, because Markdown ignores longer rows otherwise.
    pub(super) fn end_row(&mut self) -> Result<(), ReadError> {
        let Some(row) = &mut self.row else { return Ok(()) };
        let written = std::mem::take(&mut row.written);
        let (columns, is_header) = (row.columns, std::mem::take(&mut row.is_header));
        if is_header {
            let missing = columns.saturating_sub(written);
            self.out.push_str(if written == 0 { "|" } else { "" });
            self.out.extend(std::iter::repeat_n(" |", missing.saturating_sub(usize::from(written == 0))));
        }
        self.out.push_str(" |\n");
        if is_header {
            self.out.push('|');
            self.out.extend(std::iter::repeat_n(" --- |", columns));
            self.out.push('\n');
        }
        self.check()
    }

    /// Writes text that is Markdown already.
    pub(super) fn markdown(&mut self, text: &str) -> Result<(), ReadError> {
        let text = text.trim_matches('\n');
        if !text.trim().is_empty() {
            self.separate(Kind::Block);
            self.out.push_str(text);
        }
        self.check()
    }

    /// The document. Without a title, the first heading is the title.
    pub(super) fn finish(mut self, title: String, metadata: Metadata) -> Content {
        self.out.truncate(self.out.trim_end().len());
        let title = if title.is_empty() { self.first_heading } else { title };
        Content { title, text: self.out, markup: Markup::Markdown, metadata }
    }

    fn separate(&mut self, kind: Kind) {
        if !self.out.is_empty() {
            // A table ends with a line break.
            let is_ended = self.out.ends_with('\n');
            let is_close = kind == Kind::Item && self.last == Kind::Item;
            self.out.push_str(if is_ended || is_close { "\n" } else { "\n\n" });
        }
        self.last = kind;
        self.row = None;
    }

    /// Writes lines, all but the first with an indent. What reads as a heading or as the start of code is escaped.
    fn lines(&mut self, text: &str, indent: usize) {
        let mut is_first = true;
        for line in text.split('\n') {
            let words = line.split_whitespace();
            let mut is_start = true;
            for word in words {
                if !is_start {
                    self.out.push(' ');
                } else {
                    if !is_first {
                        self.out.push('\n');
                        self.out.extend(std::iter::repeat_n(' ', indent));
                    }
                    let is_heading = (1..=6).contains(&word.len()) && word.bytes().all(|byte| byte == b'#');
                    if is_heading || word.starts_with("```") || word.starts_with("~~~") {
                        self.out.push('\\');
                    }
                }
                (is_start, is_first) = (false, false);
                self.out.push_str(word);
            }
        }
    }

    fn check(&self) -> Result<(), ReadError> {
        if self.out.len() > MOST_TEXT {
            return Err(ReadError::TooMany { what: "bytes of text", limit: MOST_TEXT as u64 });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rows: &[&[&str]]) -> Vec<Vec<String>> {
        rows.iter().map(|row| row.iter().map(|cell| (*cell).to_owned()).collect()).collect()
    }

    fn written(write: impl FnOnce(&mut Markdown) -> Result<(), ReadError>) -> String {
        let mut markdown = Markdown::default();
        write(&mut markdown).unwrap();
        markdown.finish(String::new(), Metadata::default()).text
    }

    #[test]
    fn blocks_are_apart_and_items_are_not() {
        let mut markdown = Markdown::default();
        markdown.heading(1, " A\n b ").unwrap();
        markdown.item(3, "-", "one").unwrap();
        markdown.item(3, "-", "two\nlines").unwrap();
        markdown.item(0, "10.", "ten\nlines").unwrap();
        markdown.paragraph("text  with\n\n# no heading\n```").unwrap();
        markdown.paragraph(" ").unwrap();
        markdown.table(&rows(&[&["a"], &["b"]])).unwrap();
        markdown.item(1, "-", "three").unwrap();
        let content = markdown.finish(String::new(), Metadata::default());
        assert_eq!(content.title, "A b");
        assert_eq!(
            content.text,
            "# A b\n\n- one\n    - two\n      lines\n10. ten\n    lines\n\ntext with\n\\# no heading\n\\```\n\n\
             | a |\n| --- |\n| b |\n\n- three"
        );
    }

    #[test]
    fn tables_have_a_header_as_wide_as_their_longest_row() {
        let table = rows(&[&["", " "], &["a|b", "two\nlines"], &["1", "", "3"], &[]]);
        let expected = "| a\\|b | two lines | |\n| --- | --- | --- |\n| 1 | | 3 |";
        assert_eq!(written(|markdown| markdown.table(&table)), expected);
        assert_eq!(written(|markdown| markdown.table(&rows(&[&[""]]))), "");
        let mut empty_header = Markdown::default();
        empty_header.start_table(2).unwrap();
        empty_header.end_row().unwrap();
        assert_eq!(empty_header.out, "| | |\n| --- | --- |\n");
    }

    #[test]
    fn long_texts_and_wide_tables_are_errors() {
        let mut markdown = Markdown::default();
        let error = markdown.paragraph(&"x".repeat(MOST_TEXT + 1)).unwrap_err();
        assert_eq!(error.to_string(), "more than 67108864 bytes of text");
        let error = Markdown::default().start_table(MOST_COLUMNS + 1).unwrap_err();
        assert_eq!(error.to_string(), "more than 16384 columns");
    }
}
