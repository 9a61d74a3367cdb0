//! Reads a slide, or the notes of one: its title, and the texts of its shapes in order.

use std::rc::Rc;

use quick_xml::events::BytesStart;

use super::FORMAT;
use crate::ReadError;
use crate::markup::Table;
use crate::raised::{Height, Heights};
use crate::xml::{Event, Xml, attribute, end_name, is_on, name, prefixed};

/// A piece of a slide.
#[derive(Debug)]
pub(super) enum Block {
    Paragraph(String),
    Item {
        /// Level in the list; 0 is the outermost.
        level: usize,
        /// `-`, or a number.
        mark: String,
        text: String,
    },
    Table(Vec<Vec<Rc<str>>>),
    /// A drawing in another part, by the id of its relationship.
    Figure(String),
}

/// A slide.
#[derive(Debug, Default)]
pub(super) struct Slide {
    pub(super) title: String,
    pub(super) blocks: Vec<Block>,
    pub(super) is_hidden: bool,
}

/// What a shape holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Holds {
    /// Text without marks.
    #[default]
    Text,
    /// The slide's title.
    Title,
    /// The slide's content, which is a list unless it says otherwise.
    Content,
    /// A number, a date, a header or a footer, or a small picture of the slide.
    Nothing,
}

/// The mark of a paragraph, where it says something about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    None,
    Bullet,
    Number,
}

/// A paragraph that is being read.
#[derive(Default)]
struct Paragraph {
    text: String,
    heights: Heights,
    height: Height,
    level: usize,
    mark: Option<Mark>,
}

/// State while a slide is read.
#[derive(Default)]
struct Reading {
    slide: Slide,
    holds: Holds,
    paragraph: Option<Paragraph>,
    tables: Vec<Table>,
    /// The last number of the list.
    number: u32,
}

impl Slide {
    /// Reads a slide. `cells` is the number of cells of the file's tables so far.
    pub(super) fn read(text: &str, cells: &mut usize) -> Result<Self, ReadError> {
        let mut reading = Reading::default();
        let mut xml = Xml::new(FORMAT, text);
        while let Some(event) = xml.next()? {
            match event {
                Event::Open(start) => reading.open(&mut xml, &start)?,
                Event::Close(end) => reading.close(end_name(&end), cells)?,
                Event::Text(_) => {}
            }
        }
        Ok(reading.slide)
    }
}

impl Reading {
    fn open(&mut self, xml: &mut Xml<'_>, start: &BytesStart<'_>) -> Result<(), ReadError> {
        match name(start) {
            "Fallback" => return xml.skip(),
            "sld" => self.slide.is_hidden = attribute(start, "show").is_some_and(|show| !is_on(Some(&show))),
            "sp" => (self.holds, self.number) = (Holds::Text, 0),
            "ph" => {
                self.holds = match attribute(start, "type").as_deref() {
                    Some("title" | "ctrTitle") => Holds::Title,
                    Some("subTitle") => Holds::Text,
                    Some("dt" | "ftr" | "hdr" | "sldNum" | "sldImg") => Holds::Nothing,
                    _ => Holds::Content,
                }
            }
            "tbl" => self.tables.push(Table::default()),
            "tc" => {
                if let Some(table) = self.tables.last_mut() {
                    table.start_cell();
                    table.is_continued = is_on(attribute(start, "vMerge").as_deref());
                }
            }
            "p" => self.paragraph = Some(Paragraph::default()),
            "relIds" => self.slide.blocks.extend(prefixed(start, "dm").map(Block::Figure)),
            "chart" => self.slide.blocks.extend(prefixed(start, "id").map(Block::Figure)),
            element => {
                let Some(paragraph) = &mut self.paragraph else { return Ok(()) };
                match element {
                    "pPr" => {
                        let level = attribute(start, "lvl").and_then(|level| level.parse().ok());
                        paragraph.level = level.unwrap_or_default();
                    }
                    "buNone" => paragraph.mark = Some(Mark::None),
                    "buChar" | "buBlip" => paragraph.mark = Some(Mark::Bullet),
                    "buAutoNum" => paragraph.mark = Some(Mark::Number),
                    "r" | "fld" => paragraph.height = Height::Line,
                    "rPr" => {
                        // In thousandths of a percent of the letters' size.
                        let baseline = attribute(start, "baseline").and_then(|base| base.parse::<i64>().ok());
                        paragraph.height = match baseline.unwrap_or_default() {
                            1.. => Height::Raised,
                            0 => Height::Line,
                            _ => Height::Lowered,
                        };
                    }
                    "t" => paragraph.heights.push(&mut paragraph.text, paragraph.height, &xml.text_inside()?),
                    "br" => paragraph.text.push('\n'),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn close(&mut self, name: &str, cells: &mut usize) -> Result<(), ReadError> {
        match name {
            "p" => {
                if let Some(paragraph) = self.paragraph.take() {
                    self.end_paragraph(paragraph);
                }
            }
            "sp" => self.holds = Holds::Text,
            "tc" => {
                if let Some(table) = self.tables.last_mut() {
                    table.end_cell(cells)?;
                }
            }
            "tr" => {
                if let Some(table) = self.tables.last_mut() {
                    table.end_row();
                }
            }
            "tbl" => self.slide.blocks.extend(self.tables.pop().map(|table| Block::Table(table.rows))),
            _ => {}
        }
        Ok(())
    }

    fn end_paragraph(&mut self, paragraph: Paragraph) {
        let Paragraph { text, level, mark, .. } = paragraph;
        if let Some(table) = self.tables.last_mut() {
            return table.add(&text);
        }
        if text.trim().is_empty() {
            return;
        }
        let mark = match self.holds {
            Holds::Nothing => return,
            Holds::Title => {
                self.slide.title.push(' ');
                return self.slide.title.push_str(&text);
            }
            Holds::Content => mark.unwrap_or(Mark::Bullet),
            Holds::Text => mark.unwrap_or(Mark::None),
        };
        let mark = match mark {
            Mark::None => {
                self.number = 0;
                return self.slide.blocks.push(Block::Paragraph(text));
            }
            Mark::Bullet => "-".to_owned(),
            Mark::Number => {
                self.number += 1;
                format!("{}.", self.number)
            }
        };
        self.slide.blocks.push(Block::Item { level, mark, text });
    }
}
