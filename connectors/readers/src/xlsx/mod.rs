//! Reads `.xlsx` and `.xlsm` files as Markdown: each sheet is a heading with its name, and a table whose first row is
//! the header. The title is that of the properties, or else the name of the first sheet with cells.
//!
//! Cells have the values that were last computed. Dates, times and percentages are written as such; other numbers are
//! written without their format. Hidden sheets, charts and empty rows and columns are left out.
//!
//! The file is read cell by cell, so that a sheet with a single cell at its far end is small.

mod cells;
mod formats;

use std::borrow::Cow;

use std::collections::HashSet;

use self::cells::{Shared, Sheet};
use self::formats::Formats;
use super::archive::Archive;
use super::markup::Markdown;
use super::package::{Package, texts};
use super::xml::{Event, Xml, attribute, is_on, name, prefixed};
use super::{Content, ReadError};

const FORMAT: &str = "xlsx";

/// Reads a workbook.
///
/// # Errors
///
/// The file is damaged or encrypted, unpacks to too much, or has too many cells.
pub fn read(bytes: &[u8]) -> Result<Content, ReadError> {
    let mut archive = Archive::open(FORMAT, bytes)?;
    let package = Package::open(&mut archive, "xl/workbook.xml")?;
    let workbook = Workbook::read(&archive.needed(&package.main)?)?;
    let mut part = |kind: &str| match package.relations.first(kind) {
        Some(path) => archive.part(path),
        None => Ok(None),
    };
    let formats = part("styles")?.map_or_else(|| Ok(Formats::default()), |text| Formats::read(&text))?;
    let strings = part("sharedStrings")?.map_or_else(|| Ok(Shared::default()), |text| shared(&text))?;
    let paths = package.relations.by_id("worksheet");
    let mut markdown = Markdown::default();
    let (mut cells, mut seen) = (0, HashSet::new());
    for (name, id) in &workbook.sheets {
        let Some(path) = paths.get(id.as_str()).filter(|path| seen.insert(**path)) else { continue };
        let text = archive.needed(path)?;
        let sheet = Sheet::read(&text, &strings, &formats, workbook.since_1904, &mut cells)?;
        sheet.write(name, &mut markdown)?;
    }
    Ok(markdown.finish(package.title, package.metadata))
}

/// The list of sheets.
#[derive(Default)]
struct Workbook {
    /// Name and id of each sheet that is not hidden.
    sheets: Vec<(String, String)>,
    /// Whether days are counted from 1904.
    since_1904: bool,
}

impl Workbook {
    fn read(text: &str) -> Result<Self, ReadError> {
        let mut workbook = Self::default();
        let mut xml = Xml::new(FORMAT, text);
        while let Some(event) = xml.next()? {
            let Event::Open(start) = event else { continue };
            match name(&start) {
                "workbookPr" => workbook.since_1904 = is_on(attribute(&start, "date1904").as_deref()),
                "sheet" if attribute(&start, "state").is_none_or(|state| state == "visible") => {
                    let name = attribute(&start, "name").unwrap_or_default();
                    workbook.sheets.push((name, prefixed(&start, "id").unwrap_or_default()));
                }
                _ => {}
            }
        }
        Ok(workbook)
    }
}

/// Reads the texts that cells share.
fn shared(text: &str) -> Result<Shared, ReadError> {
    let mut strings = Shared::default();
    let mut xml = Xml::new(FORMAT, text);
    while let Some(event) = xml.next()? {
        if let Event::Open(start) = event
            && name(&start) == "si"
        {
            strings.push(&unescaped(&texts(&mut xml, "si")?));
        }
    }
    Ok(strings)
}

/// A text without the escapes of Excel: `_x000D_` is the character with this number (ECMA-376-1, 22.9.2.19). Control
/// characters become blanks.
fn unescaped(text: &str) -> Cow<'_, str> {
    /// Length of an escape.
    const LENGTH: usize = 7;
    if !text.contains("_x") {
        return text.into();
    }
    let unit = |rest: &str| -> Option<u16> {
        let digits = rest.get(..LENGTH)?.strip_prefix("_x")?.strip_suffix('_')?;
        digits.bytes().all(|digit| digit.is_ascii_hexdigit()).then(|| u16::from_str_radix(digits, 16).ok())?
    };
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find("_x") {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        // A character beyond the first plane is two numbers of UTF-16.
        let units: Vec<u16> = (0..2).map_while(|half| unit(rest.get(half * LENGTH..)?)).collect();
        let found = char::decode_utf16(units.iter().copied()).next().and_then(Result::ok);
        match (units.first(), found) {
            (Some(_), Some(character)) => {
                out.push(if character.is_control() { ' ' } else { character });
                rest = &rest[LENGTH * character.len_utf16()..];
            }
            _ => {
                out.push('_');
                rest = &rest[1..];
            }
        }
    }
    out.push_str(rest);
    out.into()
}

#[cfg(test)]
mod tests;
