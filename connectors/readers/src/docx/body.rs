//! Reads the body of a document: paragraphs, lists, tables and text boxes.

use std::collections::HashMap;

use quick_xml::events::BytesStart;

use super::formula::Formula;
use super::numbering::{Counters, LEVELS, Mark, Numbering};
use super::styles::{Form, Letters, ListPlace, Styles, outlined};
use super::symbols::symbol;
use super::{FORMAT, Notes};
use crate::ReadError;
use crate::drawing::Figure;
use crate::markup::{Markdown, Table};
use crate::raised::Heights;
use crate::xml::{Event, Xml, attribute, end_name, name, prefixed};

/// Maximum number of cells that a row leaves free at its left.
const MOST_FREE: usize = 64;

/// A paragraph that is being read.
#[derive(Default)]
struct Paragraph {
    text: String,
    heights: Heights,
    formula: Formula,
    /// The drawings in it.
    figures: Vec<String>,
    style: Option<String>,
    outline: Option<u32>,
    list: ListPlace,
}

/// What other parts of the file have, by the ids of their relationships.
#[derive(Default)]
pub(super) struct Beside {
    /// The drawings.
    pub(super) figures: HashMap<String, Figure>,
    /// Pages that are shown within the text, as Markdown.
    pub(super) chunks: HashMap<String, String>,
}

/// Reads the body, and writes Markdown.
pub(super) struct Body<'a> {
    styles: &'a Styles,
    numbering: &'a Numbering,
    notes: &'a Notes,
    beside: &'a Beside,
    markdown: &'a mut Markdown,
    /// Whether the properties of a paragraph are open.
    is_in_properties: bool,
    /// How the open runs of letters are shown: a text box in a run contains others.
    runs: Vec<Letters>,
    /// The open paragraphs: a text box in a paragraph contains others.
    paragraphs: Vec<Paragraph>,
    /// The open tables: a cell may contain others.
    tables: Vec<Table>,
    /// Number of cells so far.
    cells: usize,
    /// Forms of the styles so far.
    forms: HashMap<String, Form>,
    /// The numbers of the lists so far.
    counters: Counters,
    /// Notes to write at the end.
    noted: Vec<&'a str>,
}

impl<'a> Body<'a> {
    pub(super) fn new(
        styles: &'a Styles,
        numbering: &'a Numbering,
        notes: &'a Notes,
        beside: &'a Beside,
        markdown: &'a mut Markdown,
    ) -> Self {
        let (paragraphs, tables, noted, runs) = Default::default();
        let (forms, counters, is_in_properties) = Default::default();
        let cells = 0;
        Self {
            styles,
            numbering,
            notes,
            beside,
            markdown,
            is_in_properties,
            runs,
            paragraphs,
            tables,
            cells,
            forms,
            counters,
            noted,
        }
    }

    /// Reads the main part.
    pub(super) fn read(mut self, text: &str) -> Result<(), ReadError> {
        let mut xml = Xml::new(FORMAT, text);
        while let Some(event) = xml.next()? {
            match event {
                Event::Open(start) => self.open(&mut xml, &start)?,
                Event::Close(end) => self.close(end_name(&end))?,
                Event::Text(_) => {}
            }
        }
        for (number, note) in self.noted.iter().enumerate() {
            self.markdown.paragraph(&format!("[{}] {note}", number + 1))?;
        }
        Ok(())
    }

    fn open(&mut self, xml: &mut Xml<'_>, start: &BytesStart<'_>) -> Result<(), ReadError> {
        let value = || attribute(start, "val");
        let number = || value().and_then(|value| value.parse().ok());
        match name(start) {
            // Deleted text, former properties, what another program reads instead, and reading aids.
            "del" | "moveFrom" | "Fallback" | "pPrChange" | "tabs" | "sectPr" | "rt" => return xml.skip(),
            "rPr" if self.is_in_properties => return xml.skip(),
            "rPr" => return self.letters(xml),
            "pPr" => self.is_in_properties = true,
            // The cells that a row leaves free at its left, and a row that was deleted.
            "trPr" => return self.row(xml),
            "r" => self.runs.push(Letters::default()),
            "altChunk" => {
                let chunk = prefixed(start, "id").and_then(|id| self.beside.chunks.get(&id));
                return chunk.map_or(Ok(()), |chunk| self.markdown.markdown(chunk));
            }
            "p" => self.paragraphs.push(Paragraph::default()),
            "tbl" => self.tables.push(Table::default()),
            "tc" => {
                if let Some(table) = self.tables.last_mut() {
                    table.start_cell();
                }
            }
            "gridSpan" => {
                if let Some(table) = self.tables.last_mut() {
                    table.span = number().unwrap_or(1) as usize;
                }
            }
            "vMerge" => {
                if let Some(table) = self.tables.last_mut() {
                    table.is_continued = value().as_deref() != Some("restart");
                }
            }
            element => {
                let Some(paragraph) = self.paragraphs.last_mut() else { return Ok(()) };
                let letters = self.runs.last().copied().unwrap_or_default();
                let is_hidden = letters.is_hidden == Some(true);
                paragraph.formula.open(start, &mut paragraph.text);
                match element {
                    "pStyle" => paragraph.style = value(),
                    "outlineLvl" => paragraph.outline = number(),
                    "numId" => paragraph.list.id = value(),
                    "ilvl" => paragraph.list.level = number(),
                    "t" => {
                        let piece = xml.text_inside()?.replace('\u{AD}', "");
                        if !is_hidden {
                            paragraph.heights.push(&mut paragraph.text, letters.height.unwrap_or_default(), &piece);
                        }
                    }
                    _ if is_hidden => {}
                    "sym" => paragraph.text.extend(symbol(
                        &attribute(start, "font").unwrap_or_default(),
                        &attribute(start, "char").unwrap_or_default(),
                    )),
                    "relIds" => paragraph.figures.extend(prefixed(start, "dm")),
                    "chart" => paragraph.figures.extend(prefixed(start, "id")),
                    "tab" | "ptab" => paragraph.text.push(' '),
                    "br" | "cr" => paragraph.text.push('\n'),
                    "noBreakHyphen" => paragraph.text.push('-'),
                    "footnoteReference" => self.note("footnotes", start),
                    "endnoteReference" => self.note("endnotes", start),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Reads how a row of a table is shown.
    fn row(&mut self, xml: &mut Xml<'_>) -> Result<(), ReadError> {
        while let Some(event) = xml.next()? {
            match event {
                Event::Open(start) => match (name(&start), self.tables.last_mut()) {
                    ("del", Some(table)) => table.is_deleted = true,
                    ("gridBefore", Some(table)) => {
                        let free = attribute(&start, "val").and_then(|value| value.parse().ok()).unwrap_or(0);
                        for _ in 0..free.min(MOST_FREE) {
                            table.start_cell();
                            table.end_cell(&mut self.cells)?;
                        }
                    }
                    ("trPrChange", _) => xml.skip()?,
                    _ => {}
                },
                Event::Close(end) if end_name(&end) == "trPr" => break,
                _ => {}
            }
        }
        Ok(())
    }

    /// Reads how the letters of a run are shown.
    fn letters(&mut self, xml: &mut Xml<'_>) -> Result<(), ReadError> {
        let mut letters = Letters::default();
        loop {
            match xml.next()? {
                Some(Event::Open(start)) => match name(&start) {
                    // What they were before a change.
                    "rPrChange" => xml.skip()?,
                    "rStyle" => {
                        let style = self.styles.letters(&attribute(&start, "val").unwrap_or_default());
                        letters.height = letters.height.or(style.height);
                        letters.is_hidden = letters.is_hidden.or(style.is_hidden);
                    }
                    _ => letters.property(&start),
                },
                Some(Event::Close(end)) if end_name(&end) == "rPr" => break,
                Some(_) => {}
                None => break,
            }
        }
        if let Some(run) = self.runs.last_mut() {
            *run = letters;
        }
        Ok(())
    }

    /// Writes the number of a note, which is written at the end.
    fn note(&mut self, kind: &'static str, start: &BytesStart<'_>) {
        let Some(id) = attribute(start, "id") else { return };
        let note = self.notes.get(&(kind, id)).filter(|note| !note.trim().is_empty());
        if let (Some(note), Some(paragraph)) = (note, self.paragraphs.last_mut()) {
            self.noted.push(note);
            paragraph.text.push_str(&format!("[{}]", self.noted.len()));
        }
    }

    fn close(&mut self, name: &str) -> Result<(), ReadError> {
        match name {
            "p" => {
                let Some(paragraph) = self.paragraphs.pop() else { return Ok(()) };
                self.end_paragraph(paragraph)
            }
            "tc" => {
                let Some(table) = self.tables.last_mut() else { return Ok(()) };
                table.end_cell(&mut self.cells)
            }
            "tr" => {
                if let Some(table) = self.tables.last_mut() {
                    table.end_row();
                }
                Ok(())
            }
            "tbl" => self.end_table(),
            "r" => {
                self.runs.pop();
                Ok(())
            }
            "pPr" => {
                self.is_in_properties = false;
                Ok(())
            }
            element => {
                if let Some(paragraph) = self.paragraphs.last_mut() {
                    paragraph.formula.close(element, &mut paragraph.text);
                }
                Ok(())
            }
        }
    }

    fn end_paragraph(&mut self, paragraph: Paragraph) -> Result<(), ReadError> {
        let figures: Vec<&Figure> = paragraph.figures.iter().filter_map(|id| self.beside.figures.get(id)).collect();
        let style = paragraph.style.unwrap_or_default();
        let form = self.forms.entry(style.clone()).or_insert_with_key(|style| self.styles.form(style));
        if form.is_contents {
            return Ok(());
        }
        let heading = match paragraph.outline {
            Some(outline) => outlined(outline),
            None => form.heading,
        };
        let list = paragraph.list.id.or_else(|| form.list.id.clone()).filter(|id| id != "0");
        let level = paragraph.list.level.or(form.list.level);
        let mut depth = 0;
        let mark = list.map(|list| {
            let level = level.or_else(|| self.numbering.level_of(&list, &style)).unwrap_or_default();
            depth = (level as usize).min(LEVELS - 1);
            let mark = self.numbering.next(&list, depth, &mut self.counters);
            // A list that is not described.
            mark.unwrap_or(Mark::Bullet)
        });
        let is_empty = paragraph.text.trim().is_empty();
        let numbered = match &mark {
            Some(Mark::Number(number)) if !is_empty => format!("{number} {}", paragraph.text),
            _ => paragraph.text.clone(),
        };
        if let Some(table) = self.tables.last_mut() {
            table.add(&numbered);
            return Ok(());
        }
        match (heading, mark) {
            (Some(level), _) => self.markdown.heading(level, &numbered)?,
            (None, None) => self.markdown.paragraph(&paragraph.text)?,
            (None, Some(Mark::Bullet)) => self.markdown.item(depth, "-", &paragraph.text)?,
            (None, Some(Mark::Number(number))) => match of_markdown(&number) {
                Some(mark) => self.markdown.item(depth, &mark, &paragraph.text)?,
                None => self.markdown.item(depth, "-", &numbered)?,
            },
        }
        figures.into_iter().try_for_each(|figure| figure.write(self.markdown))
    }

    fn end_table(&mut self) -> Result<(), ReadError> {
        let Some(table) = self.tables.pop() else { return Ok(()) };
        let Some(outer) = self.tables.last_mut() else { return self.markdown.table(&table.rows) };
        // A table in a cell becomes a part of the cell's text.
        for cell in table.rows.iter().flatten() {
            outer.add(cell);
        }
        Ok(())
    }
}

/// The number of an item as Markdown has it; `None` if it is written in another way.
fn of_markdown(number: &str) -> Option<String> {
    let digits = number.strip_suffix(['.', ')']).unwrap_or(number);
    let is_plain = (1..=9).contains(&digits.len()) && digits.bytes().all(|digit| digit.is_ascii_digit());
    is_plain.then(|| format!("{digits}."))
}
