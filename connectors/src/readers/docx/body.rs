//! Reads the body of a document: paragraphs, lists, tables and text boxes.

use std::collections::HashMap;

use quick_xml::events::BytesStart;

use super::styles::{Form, ListPlace, Numbering, Styles, outlined};
use super::{FORMAT, Notes};
use crate::readers::ReadError;
use crate::readers::markup::{Markdown, Table};
use crate::readers::xml::{Event, Xml, attribute, end_name, name};

/// Number of levels of a list.
const LEVELS: usize = 9;

/// A paragraph that is being read.
#[derive(Default)]
struct Paragraph {
    text: String,
    style: Option<String>,
    outline: Option<u32>,
    list: ListPlace,
}

/// Reads the body, and writes Markdown.
pub(super) struct Body<'a> {
    styles: &'a Styles,
    numbering: &'a Numbering,
    notes: &'a Notes,
    markdown: &'a mut Markdown,
    /// The open paragraphs: a text box in a paragraph contains others.
    paragraphs: Vec<Paragraph>,
    /// The open tables: a cell may contain others.
    tables: Vec<Table>,
    /// Number of cells so far.
    cells: usize,
    /// Forms of the styles so far.
    forms: HashMap<String, Form>,
    /// The last number at each level of each list.
    numbers: HashMap<String, [u32; LEVELS]>,
    /// Notes to write at the end.
    noted: Vec<&'a str>,
}

impl<'a> Body<'a> {
    pub(super) fn new(
        styles: &'a Styles,
        numbering: &'a Numbering,
        notes: &'a Notes,
        markdown: &'a mut Markdown,
    ) -> Self {
        let (paragraphs, tables, noted) = Default::default();
        let (forms, numbers) = Default::default();
        Self { styles, numbering, notes, markdown, paragraphs, tables, cells: 0, forms, numbers, noted }
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
            "del" | "moveFrom" | "Fallback" | "pPrChange" | "rPr" | "tabs" | "sectPr" | "rt" => return xml.skip(),
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
                match element {
                    "pStyle" => paragraph.style = value(),
                    "outlineLvl" => paragraph.outline = number(),
                    "numId" => paragraph.list.id = value(),
                    "ilvl" => paragraph.list.level = number(),
                    "t" => paragraph.text.push_str(&xml.text_inside()?),
                    "tab" => paragraph.text.push(' '),
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
            _ => Ok(()),
        }
    }

    fn end_paragraph(&mut self, paragraph: Paragraph) -> Result<(), ReadError> {
        if let Some(table) = self.tables.last_mut() {
            table.add(&paragraph.text);
            return Ok(());
        }
        let style = paragraph.style.unwrap_or_default();
        let form = self.forms.entry(style).or_insert_with_key(|style| self.styles.form(style));
        if form.is_contents {
            return Ok(());
        }
        let heading = match paragraph.outline {
            Some(outline) => outlined(outline),
            None => form.heading,
        };
        if let Some(level) = heading {
            return self.markdown.heading(level, &paragraph.text);
        }
        let list = paragraph.list.id.or_else(|| form.list.id.clone()).filter(|id| id != "0");
        let Some(list) = list else { return self.markdown.paragraph(&paragraph.text) };
        let level = paragraph.list.level.or(form.list.level).unwrap_or_default();
        if paragraph.text.trim().is_empty() {
            return Ok(());
        }
        let depth = (level as usize).min(LEVELS - 1);
        if !self.numbering.is_numbered(&list, level) {
            return self.markdown.item(depth, "-", &paragraph.text);
        }
        let numbers = self.numbers.entry(list).or_default();
        numbers[depth] += 1;
        numbers[depth + 1..].fill(0);
        let mark = format!("{}.", numbers[depth]);
        self.markdown.item(depth, &mark, &paragraph.text)
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
