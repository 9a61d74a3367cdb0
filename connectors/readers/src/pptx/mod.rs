//! Reads `.pptx` files as Markdown: each slide is a heading with its title, followed by its texts, lists and tables,
//! and its notes. The title is that of the properties, or else the title of the first slide.
//!
//! Hidden slides, and numbers, dates, headers and footers of slides, are left out.

mod slide;

use std::collections::{HashMap, HashSet};

use self::slide::{Block, Slide};
use super::archive::Archive;
use super::drawing::{Figure, figures};
use super::markup::Markdown;
use super::package::{Package, Relations};
use super::xml::{Event, Xml, name, prefixed};
use super::{Content, ReadError};

const FORMAT: &str = "pptx";

/// Reads a presentation.
///
/// # Errors
///
/// The file is damaged or encrypted, or unpacks to too much.
pub fn read(bytes: &[u8]) -> Result<Content, ReadError> {
    let mut archive = Archive::open(FORMAT, bytes)?;
    let package = Package::open(&mut archive, "ppt/presentation.xml")?;
    let presentation = archive.needed(&package.main)?;
    let paths = package.relations.by_id("slide");
    let mut markdown = Markdown::default();
    let mut cells = 0;
    let mut seen = HashSet::new();
    for (number, id) in slide_ids(&presentation)?.iter().enumerate() {
        // A slide that is listed again and again is read once.
        let Some(path) = paths.get(id.as_str()).filter(|path| seen.insert(**path)) else { continue };
        let slide = Slide::read(&archive.needed(path)?, &mut cells)?;
        if slide.is_hidden {
            continue;
        }
        let relations = Relations::of(&mut archive, path)?;
        let figures = figures(&mut archive, &relations)?;
        let notes = relations.first("notesSlide").map(str::to_owned);
        let notes = match notes {
            Some(notes) => archive.part(&notes)?.map(|notes| Slide::read(&notes, &mut cells)).transpose()?,
            None => None,
        };
        write(&slide, &figures, notes.as_ref(), number + 1, &mut markdown)?;
    }
    Ok(markdown.finish(package.title, package.metadata))
}

/// The ids of the slides, in order.
fn slide_ids(presentation: &str) -> Result<Vec<String>, ReadError> {
    let mut ids = Vec::new();
    let mut xml = Xml::new(FORMAT, presentation);
    while let Some(event) = xml.next()? {
        if let Event::Open(start) = event
            && name(&start) == "sldId"
        {
            ids.extend(prefixed(&start, "id"));
        }
    }
    Ok(ids)
}

fn write(
    slide: &Slide,
    figures: &HashMap<String, Figure>,
    notes: Option<&Slide>,
    number: usize,
    markdown: &mut Markdown,
) -> Result<(), ReadError> {
    let notes = notes.filter(|notes| !notes.blocks.is_empty());
    if slide.title.trim().is_empty() && slide.blocks.is_empty() && notes.is_none() {
        return Ok(());
    }
    match slide.title.trim() {
        "" => markdown.untitled(2, &format!("Slide {number}"))?,
        title => markdown.heading(2, title)?,
    }
    for block in &slide.blocks {
        match block {
            Block::Paragraph(text) => markdown.paragraph(text)?,
            Block::Item { level, mark, text } => markdown.item(*level, mark, text)?,
            Block::Table(rows) => markdown.table(rows)?,
            Block::Figure(id) => figures.get(id).map_or(Ok(()), |figure| figure.write(markdown))?,
        }
    }
    if let Some(notes) = notes {
        markdown.untitled(3, "Notes")?;
        for block in &notes.blocks {
            match block {
                Block::Paragraph(text) | Block::Item { text, .. } => markdown.paragraph(text)?,
                Block::Table(rows) => markdown.table(rows)?,
                Block::Figure(_) => {}
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
