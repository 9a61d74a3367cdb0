//! Reads `.csv` and `.tsv` files as a Markdown table. The first row is the header.
//!
//! The separator of a `.csv` file is the one of comma, semicolon, tab and bar that splits its first rows best, or the
//! one in a first line such as `sep=;`.

use ::csv::{ReaderBuilder, StringRecord};

use super::markup::Markdown;
use super::{Content, ReadError};

/// Separators, the most common ones first.
const SEPARATORS: &[u8] = b",;\t|";
/// Number of rows by which the separator is chosen, and maximum length of them in bytes.
const ROWS: usize = 20;
const SAMPLE: usize = 1 << 16;

/// Reads a table. Without a separator, it is chosen.
///
/// # Errors
///
/// The table has too many columns, or its text is too long.
pub fn read(text: &str, separator: Option<u8>) -> Result<Content, ReadError> {
    let (declared, text) = declared(text);
    let separator = separator.or(declared).unwrap_or_else(|| chosen(text));
    let columns = records(text, separator).map(|record| record.len()).max().unwrap_or_default();
    let mut markdown = Markdown::default();
    if columns > 0 {
        markdown.start_table(columns)?;
    }
    for record in records(text, separator) {
        record.iter().for_each(|cell| markdown.cell(cell));
        markdown.end_row()?;
    }
    Ok(markdown.finish(String::new(), Default::default()))
}

/// The rows that have text.
fn records(text: &str, separator: u8) -> impl Iterator<Item = StringRecord> {
    let mut reader = ReaderBuilder::new();
    reader.has_headers(false).flexible(true).delimiter(separator);
    let records = reader.from_reader(text.as_bytes()).into_records();
    records.flatten().filter(|record| record.iter().any(|cell| !cell.trim().is_empty()))
}

/// The separator that a first line names, and the rest.
fn declared(text: &str) -> (Option<u8>, &str) {
    let (line, rest) = text.split_once('\n').unwrap_or((text, ""));
    match line.strip_prefix("sep=").map(str::as_bytes) {
        Some([separator]) if SEPARATORS.contains(separator) => (Some(*separator), rest),
        _ => (None, text),
    }
}

/// The separator that splits most of the first rows into as many cells as the first one, or else into most cells.
fn chosen(text: &str) -> u8 {
    let sample = &text[..text.floor_char_boundary(SAMPLE)];
    let score = |separator: &u8| {
        let lengths: Vec<usize> = records(sample, *separator).take(ROWS).map(|record| record.len()).collect();
        let first = lengths.first().copied().unwrap_or_default();
        let same = lengths.iter().filter(|length| first > 1 && **length == first).count();
        (same, if first > 1 { first } else { 0 })
    };
    // The first of equals.
    SEPARATORS.iter().rev().copied().max_by_key(score).unwrap_or(b',')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(csv: &str) -> String {
        read(csv, None).unwrap().text
    }

    #[test]
    fn rows_become_a_table() {
        let content = read("port,boats\n\"Oban, Scotland\",3\n\n\"two\nlines\",\"a \"\"b\"\" | c\"\n", None).unwrap();
        assert_eq!(
            content.text,
            "| port | boats |\n| --- | --- |\n| Oban, Scotland | 3 |\n| two lines | a \"b\" \\| c |"
        );
        assert_eq!(content.title, "");
    }

    #[test]
    fn the_separator_is_found() {
        let table = "| a | b |\n| --- | --- |\n| 1,5 | 2 |";
        assert_eq!(text("a;b\n1,5;2"), table);
        assert_eq!(text("a\tb\n1,5\t2"), table);
        assert_eq!(text("a|b\n1,5|2"), table);
        assert_eq!(text("sep=;\na;b\n1,5;2"), table);
        assert_eq!(read("a\tb\n1,5\t2", Some(b'\t')).unwrap().text, table);
        assert_eq!(text("one\ntwo"), "| one |\n| --- |\n| two |");
    }

    #[test]
    fn rows_of_any_length_are_kept() {
        assert_eq!(text("a\n1,2,3\n"), "| a | | |\n| --- | --- | --- |\n| 1 | 2 | 3 |");
        assert_eq!(text("\"never closed\n1,2"), "| never closed 1,2 |\n| --- |");
        assert_eq!(text(" , \n\n"), "");
        assert_eq!(text(""), "");
    }

    #[test]
    fn a_row_of_separators_is_not_a_table_of_millions_of_columns() {
        let error = read(&format!("a{}", ",".repeat(100_000)), None).unwrap_err();
        assert_eq!(error.to_string(), "more than 16384 columns");
    }
}
