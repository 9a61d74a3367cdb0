//! Reads the cells of a sheet, and writes them as a table.

use quick_xml::events::BytesStart;

use super::formats::Formats;
use super::{FORMAT, unescaped};
use crate::ReadError;
use crate::markup::{MOST_CELLS, MOST_COLUMNS, MOST_TEXT, Markdown};
use crate::package::texts;
use crate::xml::{Event, Xml, attribute, end_name, name};

/// Maximum number of rows of a sheet in any program.
const MOST_ROWS: u32 = 1 << 20;
/// Maximum number of merged ranges that are filled.
const MOST_MERGED: usize = 1 << 16;

/// The texts that cells share: one after another, and where each ends.
#[derive(Default)]
pub(super) struct Shared {
    text: String,
    ends: Vec<u32>,
}

impl Shared {
    pub(super) fn push(&mut self, text: &str) {
        // The limit on what is unpacked is far below 4 GiB.
        self.text.push_str(text);
        self.ends.push(self.text.len() as u32);
    }

    fn get(&self, at: usize) -> Option<&str> {
        let end = *self.ends.get(at)? as usize;
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        self.text.get(start..end)
    }
}

/// A cell that is not empty. Its text is a range of the sheet's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cell {
    row: u32,
    column: u32,
    start: u32,
    end: u32,
}

/// The cells of a sheet, sorted by row and column.
#[derive(Default)]
pub(super) struct Sheet {
    text: String,
    cells: Vec<Cell>,
}

/// A merged range: the first cell, and the last row.
struct Merged {
    row: u32,
    column: u32,
    last: u32,
}

impl Sheet {
    /// Reads a sheet. `count` is the number of cells of the file so far.
    ///
    /// # Errors
    ///
    /// The sheet is damaged, or the file has too many cells or too long texts.
    pub(super) fn read(
        text: &str,
        strings: &Shared,
        formats: &Formats,
        since_1904: bool,
        count: &mut usize,
    ) -> Result<Self, ReadError> {
        let mut sheet = Self::default();
        let mut merged = Vec::new();
        let (mut row, mut column) = (0, 0);
        let mut xml = Xml::new(FORMAT, text);
        while let Some(event) = xml.next()? {
            let start = match event {
                Event::Open(start) => start,
                Event::Close(end) => {
                    if end_name(&end) == "row" {
                        (row, column) = (row + 1, 0);
                    }
                    continue;
                }
                Event::Text(_) => continue,
            };
            match name(&start) {
                "row" => {
                    let number = attribute(&start, "r").and_then(|number| number.parse::<u32>().ok());
                    row = number.filter(|number| (1..=MOST_ROWS).contains(number)).map_or(row, |number| number - 1);
                }
                "c" => {
                    (row, column) = attribute(&start, "r").and_then(|name| place(&name)).unwrap_or((row, column));
                    let style = attribute(&start, "s").and_then(|style| style.parse().ok()).unwrap_or_default();
                    let value = match raw(&mut xml, &start)? {
                        Raw::Shared(at) => strings.get(at).unwrap_or_default().into(),
                        Raw::Text(text) => text,
                        Raw::Number(number) => formats.written(&number, style, since_1904),
                    };
                    sheet.push(row, column, &value, count)?;
                    column += 1;
                }
                "mergeCell" if merged.len() < MOST_MERGED => {
                    merged.extend(attribute(&start, "ref").and_then(|range| vertical(&range)));
                }
                _ => {}
            }
        }
        sheet.cells.sort_unstable();
        sheet.cells.dedup_by_key(|cell| (cell.row, cell.column));
        sheet.fill(&merged, count)?;
        Ok(sheet)
    }

    fn push(&mut self, row: u32, column: u32, value: &str, count: &mut usize) -> Result<(), ReadError> {
        if value.trim().is_empty() {
            return Ok(());
        }
        counted(count, 1)?;
        let start = self.text.len();
        if start + value.len() > MOST_TEXT {
            return Err(ReadError::TooMany { what: "bytes of text", limit: MOST_TEXT as u64 });
        }
        self.text.push_str(value);
        self.cells.push(Cell { row, column, start: start as u32, end: self.text.len() as u32 });
        Ok(())
    }

    /// Repeats the text of a merged range in each of its rows that has cells, so that each row can be read by itself.
    fn fill(&mut self, merged: &[Merged], count: &mut usize) -> Result<(), ReadError> {
        let mut rows: Vec<u32> = self.cells.iter().map(|cell| cell.row).collect();
        rows.dedup();
        let mut filled = Vec::new();
        for Merged { row, column, last } in merged {
            let find = |row: u32| self.cells.binary_search_by_key(&(row, *column), |cell| (cell.row, cell.column)).ok();
            let Some(first) = find(*row).map(|at| self.cells[at]) else { continue };
            let start = rows.partition_point(|one| one <= row);
            for row in rows[start..].iter().take_while(|row| *row <= last) {
                counted(count, 1)?;
                if find(*row).is_none() {
                    filled.push(Cell { row: *row, ..first });
                }
            }
        }
        self.cells.append(&mut filled);
        self.cells.sort_unstable();
        self.cells.dedup_by_key(|cell| (cell.row, cell.column));
        Ok(())
    }

    /// Writes the sheet, unless it is empty.
    pub(super) fn write(&self, name: &str, markdown: &mut Markdown) -> Result<(), ReadError> {
        if self.cells.is_empty() {
            return Ok(());
        }
        markdown.heading(2, name)?;
        let mut columns: Vec<u32> = self.cells.iter().map(|cell| cell.column).collect();
        columns.sort_unstable();
        columns.dedup();
        markdown.start_table(columns.len())?;
        for row in self.cells.chunk_by(|one, other| one.row == other.row) {
            let mut next = 0;
            for cell in row {
                while columns.get(next).is_some_and(|column| *column < cell.column) {
                    markdown.cell("");
                    next += 1;
                }
                markdown.cell(&self.text[cell.start as usize..cell.end as usize]);
                next += 1;
            }
            markdown.end_row()?;
        }
        Ok(())
    }
}

fn counted(count: &mut usize, more: usize) -> Result<(), ReadError> {
    *count += more;
    if *count > MOST_CELLS {
        return Err(ReadError::TooMany { what: "cells", limit: MOST_CELLS as u64 });
    }
    Ok(())
}

/// The content of a cell.
enum Raw {
    /// Position in the shared texts.
    Shared(usize),
    Text(String),
    /// A number, as it is written in the file.
    Number(String),
}

/// Reads a cell up to its end.
fn raw(xml: &mut Xml<'_>, start: &BytesStart<'_>) -> Result<Raw, ReadError> {
    let kind = attribute(start, "t");
    let mut value = String::new();
    loop {
        match xml.next()? {
            Some(Event::Open(start)) => match name(&start) {
                "v" => value = xml.text_inside()?,
                "is" => value = unescaped(&texts(xml, "is")?).into_owned(),
                _ => xml.skip()?,
            },
            Some(Event::Close(end)) if end_name(&end) == "c" => break,
            Some(_) => {}
            None => break,
        }
    }
    Ok(match kind.as_deref() {
        Some("s") => value.trim().parse().map_or_else(|_| Raw::Text(String::new()), Raw::Shared),
        Some("b") => Raw::Text(if value.trim() == "1" { "TRUE" } else { "FALSE" }.to_owned()),
        Some("n") | None => Raw::Number(value),
        Some("str") => Raw::Text(unescaped(&value).into_owned()),
        Some(_) => Raw::Text(value),
    })
}

/// Row and column of a cell such as `B3`, from 0.
fn place(name: &str) -> Option<(u32, u32)> {
    let name = name.trim_start_matches('$');
    let letters = name.bytes().take_while(u8::is_ascii_alphabetic).count();
    let (letters, digits) = name.split_at_checked(letters).filter(|(letters, _)| (1..=3).contains(&letters.len()))?;
    let column =
        letters.bytes().fold(0, |column, letter| column * 26 + u32::from(letter.to_ascii_uppercase() - b'A') + 1);
    let row: u32 = digits.trim_start_matches('$').parse().ok()?;
    let is_inside = (1..=MOST_ROWS).contains(&row) && column <= MOST_COLUMNS as u32;
    is_inside.then(|| (row - 1, column - 1))
}

/// A merged range with more than one row.
fn vertical(range: &str) -> Option<Merged> {
    let (first, last) = range.split_once(':')?;
    let ((row, column), (last, _)) = (place(first)?, place(last)?);
    (last > row).then_some(Merged { row, column, last })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        assert_eq!(place("A1"), Some((0, 0)));
        assert_eq!(place("$B$3"), Some((2, 1)));
        assert_eq!(place("XFD1048576"), Some((1_048_575, 16_383)));
        for bad in ["", "1", "A", "XFE1", "A0", "A1048577", "ABCD1", "A-1"] {
            assert_eq!(place(bad), None, "{bad}");
        }
    }

    #[test]
    fn shared_texts_are_found_by_number() {
        let mut shared = Shared::default();
        ["a", "", "cd"].iter().for_each(|text| shared.push(text));
        let found: Vec<_> = (0..4).map(|at| shared.get(at)).collect();
        assert_eq!(found, [Some("a"), Some(""), Some("cd"), None]);
    }
}
