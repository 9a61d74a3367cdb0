//! Reads `.docx` files as Markdown: headings, paragraphs, lists, tables and notes. The title is that of the properties,
//! or else the first heading.
//!
//! Items and headings have the numbers that Word shows. SmartArt, charts, and pages of HTML within the text are read.
//! Deleted text, hidden text, tables of contents, headers, footers and comments are left out. Text boxes come before the paragraph
//! that holds them.

mod body;
mod formula;
mod numbering;
mod styles;
mod symbols;

use std::collections::HashMap;

use self::body::{Beside, Body};
use self::numbering::Numbering;
pub(super) use self::numbering::roman;
use self::styles::Styles;
use super::archive::Archive;
use super::drawing::figures;
use super::markup::Markdown;
use super::package::{Package, Relations, texts};
use super::xml::{Event, Xml, attribute, name};
use super::{Content, ReadError, html, notes};

const FORMAT: &str = "docx";

/// Reads a document.
///
/// # Errors
///
/// The file is damaged or encrypted, or unpacks to too much.
pub fn read(bytes: &[u8]) -> Result<Content, ReadError> {
    let mut archive = Archive::open(FORMAT, bytes)?;
    let package = Package::open(&mut archive, "word/document.xml")?;
    let mut part = |kind: &str| match package.relations.first(kind) {
        Some(path) => archive.part(path),
        None => Ok(None),
    };
    let styles = part("styles")?.map_or_else(|| Ok(Styles::default()), |text| Styles::read(&text))?;
    let numbering = part("numbering")?.map_or_else(|| Ok(Numbering::default()), |text| Numbering::read(&text))?;
    let mut notes = HashMap::new();
    for kind in ["footnotes", "endnotes"] {
        if let Some(text) = part(kind)? {
            read_notes(&text, kind, &mut notes)?;
        }
    }
    let figures = figures(&mut archive, &package.relations)?;
    let chunks = chunks(&mut archive, &package.relations)?;
    let beside = Beside { figures, chunks };
    let text = archive.needed(&package.main)?;
    let mut markdown = Markdown::default();
    Body::new(&styles, &numbering, &notes, &beside, &mut markdown).read(&text)?;
    Ok(markdown.finish(package.title, package.metadata))
}

/// The pages that are shown within the text, by the ids of their relationships. Only HTML and plain text are read.
fn chunks(archive: &mut Archive<'_>, relations: &Relations) -> Result<HashMap<String, String>, ReadError> {
    let mut chunks = HashMap::new();
    for (id, path) in relations.by_id("aFChunk") {
        let lower = path.to_ascii_lowercase();
        let is_text = [".html", ".htm", ".xhtml", ".txt"].iter().any(|ending| lower.ends_with(ending));
        if !is_text {
            notes::add(format!("the part `{path}` of a text is in another format, and is not read"));
            continue;
        }
        let Some(text) = archive.part(path)? else { continue };
        let text = if lower.ends_with(".txt") { text } else { html::read(&text)?.text };
        chunks.insert(id.to_owned(), text);
    }
    Ok(chunks)
}

/// Notes by kind and id.
type Notes = HashMap<(&'static str, String), String>;

fn read_notes(text: &str, kind: &'static str, notes: &mut Notes) -> Result<(), ReadError> {
    let mut xml = Xml::new(FORMAT, text);
    while let Some(event) = xml.next()? {
        let Event::Open(start) = event else { continue };
        let element = match name(&start) {
            "footnote" => "footnote",
            "endnote" => "endnote",
            _ => continue,
        };
        let id = attribute(&start, "id").unwrap_or_default();
        notes.insert((kind, id), texts(&mut xml, element)?);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
