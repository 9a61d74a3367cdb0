//! Reads `.docx` files as Markdown: headings, paragraphs, lists, tables and notes. The title is that of the properties,
//! or else the first heading.
//!
//! Deleted text, tables of contents, headers, footers and comments are left out. Text boxes come before the paragraph
//! that holds them.

mod body;
mod styles;

use std::collections::HashMap;

use self::body::Body;
use self::styles::{Numbering, Styles};
use super::archive::Archive;
use super::markup::Markdown;
use super::package::{Package, texts};
use super::xml::{Event, Xml, attribute, name};
use super::{Content, ReadError};

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
    let text = archive.needed(&package.main)?;
    let mut markdown = Markdown::default();
    Body::new(&styles, &numbering, &notes, &mut markdown).read(&text)?;
    Ok(markdown.finish(package.title, package.metadata))
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
