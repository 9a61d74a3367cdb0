//! Marks in what is read of a file, which are no part of its text: where a page begins, how far it can be trusted, and
//! where a table begins.

use std::fmt::Write as _;
use std::ops::Range;

use serde_json::{Value as Json, json};
use turnflow_engine::document::{Document, Markup};
use turnflow_engine::wording::count;

/// A page of a document.
#[derive(Debug, PartialEq)]
pub(super) struct Page {
    /// From 1.
    pub number: usize,
    /// Its part of the text, in bytes.
    pub text: Range<usize>,
    /// Number of the tables that begin on it.
    pub tables: usize,
    /// How far its text can be trusted, from 0 to 1.
    pub confidence: f64,
}

impl Page {
    fn mark(&self) -> String {
        let mut mark = format!("page {}", self.number);
        if self.text.is_empty() {
            mark.push_str(": no text");
        }
        if self.confidence < 1.0 {
            let _ = write!(mark, ", confidence {}", self.confidence);
        }
        mark
    }

    pub fn to_json(&self) -> Json {
        let Self { number, text, tables, confidence } = self;
        json!({"page": number, "start": text.start, "end": text.end, "tables": tables, "confidence": confidence})
    }
}

/// A table in Markdown.
#[derive(Debug, PartialEq)]
struct Table {
    /// Where it begins in the text, in bytes.
    start: usize,
    columns: usize,
    /// Without its head.
    rows: usize,
}

/// The pages of a document; none if its format has no pages.
pub(super) fn pages(document: &Document) -> Vec<Page> {
    let starts = document.page_starts().unwrap_or_default();
    let starts: Vec<usize> = starts.into_iter().map(|start| begin(&document.text, start)).collect();
    let confidence = document.page_confidence().unwrap_or_default();
    let tables = tables(document);
    let end = document.text.len();
    let page = |(at, start): (usize, &usize)| {
        let text = (*start).min(end)..starts.get(at + 1).map_or(end, |next| (*next).min(end));
        let tables = tables.iter().filter(|table| text.contains(&table.start)).count();
        // The blank lines before the next page are no text.
        let has_text = document.text.get(text.clone()).is_some_and(|text| !text.trim().is_empty());
        let text = if has_text { text } else { text.start..text.start };
        Page { number: at + 1, text, tables, confidence: confidence.get(at).copied().unwrap_or(1.0) }
    };
    starts.iter().enumerate().map(page).collect()
}

/// Where a page begins: not with the blank lines that part it from the page before.
fn begin(text: &str, start: usize) -> usize {
    let start = text.floor_char_boundary(start);
    text.len() - text[start..].trim_start_matches('\n').len()
}

/// The text of a document, with marks as comments of HTML.
pub(super) fn marked(document: &Document) -> String {
    let pages = pages(document).into_iter().map(|page| (page.text.start, page.mark()));
    let tables = tables(document).into_iter().enumerate().map(|(at, table)| {
        let (columns, rows) = (count(table.columns as u64, "column"), count(table.rows as u64, "row"));
        (table.start, format!("table {}: {columns}, {rows}", at + 1))
    });
    let mut marks: Vec<(usize, String)> = pages.chain(tables).collect();
    // A page is told before the table with which it begins.
    marks.sort_by_key(|(at, _)| *at);
    let (mut marked, mut done) = (String::new(), 0);
    for (at, mark) in marks {
        let at = document.text.floor_char_boundary(at);
        marked.push_str(&document.text[done..at]);
        // A paragraph may go on on the next page.
        let is_inside = !(marked.is_empty() || marked.ends_with('\n'));
        let _ = write!(marked, "<!-- {mark} -->{}", if is_inside { ' ' } else { '\n' });
        done = at;
    }
    marked.push_str(&document.text[done..]);
    marked
}

/// The tables of a document.
fn tables(document: &Document) -> Vec<Table> {
    let mut tables: Vec<Table> = Vec::new();
    if document.markup != Markup::Markdown {
        return tables;
    }
    let (mut at, mut is_code, mut head, mut is_table) = (0, false, None, false);
    for line in document.text.split_inclusive('\n') {
        let cells = line.trim();
        is_code ^= cells.starts_with("```") || cells.starts_with("~~~");
        if is_code || !cells.starts_with('|') {
            (head, is_table) = (None, false);
        } else if is_table {
            tables.iter_mut().next_back().into_iter().for_each(|table| table.rows += 1);
        } else if let Some(start) = head.filter(|_| is_rule(cells)) {
            tables.push(Table {
                start,
                columns: cells.matches('-').count().min(cells.matches('|').count() - 1),
                rows: 0,
            });
            is_table = true;
        } else {
            head = Some(at);
        }
        at += line.len();
    }
    tables
}

/// Whether a line parts the head of a table from its rows.
fn is_rule(line: &str) -> bool {
    line.contains('-') && line.ends_with('|') && line.chars().all(|letter| matches!(letter, '|' | '-' | ':' | ' '))
}

#[cfg(test)]
mod tests {
    use turnflow_engine::document::{PAGE_CONFIDENCE, PAGE_OFFSETS};
    use turnflow_engine::metadata::Metadata;

    use super::*;

    const TEXT: &str = "# A\n\nIt goes on\n\n| a | b |\n| --- | --- |\n| 1 | 2 |\n\n```\n| x |\n| - |\n```\n";

    fn document(fields: &Json) -> Document {
        let metadata = Metadata::of(fields.as_object().unwrap()).0;
        Document { markup: Markup::Markdown, metadata, ..Document::new("a.pdf", TEXT) }
    }

    #[test]
    fn pages_and_tables_are_marked_where_they_begin() {
        let (on, table, end) = (TEXT.find("on").unwrap(), TEXT.find("\n\n| a").unwrap(), TEXT.find("```").unwrap());
        let fields =
            json!({PAGE_OFFSETS: format!("0 {on} {table} {end} {}", TEXT.len()), PAGE_CONFIDENCE: "1 0.5 1 1 1"});
        let document = document(&fields);
        assert_eq!(
            marked(&document),
            "<!-- page 1 -->\n# A\n\nIt goes <!-- page 2, confidence 0.5 --> on\n\n<!-- page 3 -->\n\
             <!-- table 1: 2 columns, 1 row -->\n| a | b |\n| --- | --- |\n| 1 | 2 |\n\n<!-- page 4 -->\n\
             ```\n| x |\n| - |\n```\n<!-- page 5: no text -->\n"
        );
        let told: Vec<_> = pages(&document).iter().map(|page| (page.number, page.tables, page.confidence)).collect();
        assert_eq!(told, [(1, 0, 1.0), (2, 0, 0.5), (3, 1, 1.0), (4, 0, 1.0), (5, 0, 1.0)]);
    }

    #[test]
    fn a_document_without_pages_has_tables_only() {
        let document = document(&json!({}));
        assert!(pages(&document).is_empty());
        assert_eq!(marked(&document).replace("<!-- table 1: 2 columns, 1 row -->\n", ""), TEXT);
        let plain = Document { markup: Markup::Plain, ..document };
        assert_eq!(marked(&plain), TEXT);
    }

    #[test]
    fn offsets_past_the_end_or_inside_a_letter_are_no_panic() {
        let metadata = Metadata::of(json!({PAGE_OFFSETS: "0 1 99"}).as_object().unwrap()).0;
        let document = Document { metadata, ..Document::new("a.pdf", "é") };
        assert_eq!(marked(&document), "<!-- page 1: no text -->\n<!-- page 2 -->\né<!-- page 3: no text --> ");
    }
}
