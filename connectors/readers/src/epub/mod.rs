//! Reads `.epub` books: their pages, in reading order, are converted by the reader of HTML. The title is that of the
//! book, or else that of its first page.

mod expand;

use std::collections::{HashMap, HashSet};

use turnflow_engine::metadata::Metadata;

use self::expand::expanded;
use super::archive::{Archive, resolve};
use super::fields::{Fields, tidy};
use super::markup::Markdown;
use super::xml::{Event, Xml, attribute, name};
use super::{Content, ReadError, html};

const FORMAT: &str = "epub";

/// Reads a book.
///
/// # Errors
///
/// The file is damaged or encrypted, unpacks to too much, or has a page that would take the parser too long.
pub fn read(bytes: &[u8]) -> Result<Content, ReadError> {
    let mut archive = Archive::open(FORMAT, bytes)?;
    let encrypted = match archive.part("META-INF/encryption.xml")? {
        Some(text) => encrypted(&text)?,
        None => HashSet::new(),
    };
    let path = package_path(&archive.needed("META-INF/container.xml")?)?;
    let book = Book::read(&archive.needed(&path)?)?;
    let mut markdown = Markdown::default();
    let mut title = book.title;
    let mut seen = HashSet::new();
    for id in &book.order {
        let Some(href) = book.pages.get(id) else { continue };
        let page = resolve(&path, &decoded(href));
        // A page that is listed again and again is read once.
        if !seen.insert(page.clone()) {
            continue;
        }
        if encrypted.contains(&page) {
            return Err(ReadError::Encrypted { format: FORMAT });
        }
        let Some(text) = archive.part(&page)? else { continue };
        let content = html::read(&expanded(&text))?;
        if title.is_empty() {
            title = content.title;
        }
        markdown.markdown(&content.text)?;
    }
    Ok(markdown.finish(title, book.metadata))
}

/// The paths of encrypted parts. Fonts are often only disguised, which does not matter.
fn encrypted(text: &str) -> Result<HashSet<String>, ReadError> {
    let mut paths = HashSet::new();
    let mut xml = Xml::new(FORMAT, text);
    while let Some(event) = xml.next()? {
        if let Event::Open(start) = event
            && name(&start) == "CipherReference"
        {
            paths.extend(attribute(&start, "URI").map(|path| resolve("", &decoded(&path))));
        }
    }
    Ok(paths)
}

/// The path of the book's description.
fn package_path(container: &str) -> Result<String, ReadError> {
    let mut xml = Xml::new(FORMAT, container);
    while let Some(event) = xml.next()? {
        if let Event::Open(start) = event
            && name(&start) == "rootfile"
            && let Some(path) = attribute(&start, "full-path")
        {
            return Ok(path);
        }
    }
    Err(ReadError::Broken { format: FORMAT, reason: "it does not say where its contents are".to_owned() })
}

/// What the book says about itself.
struct Book {
    title: String,
    metadata: Metadata,
    /// Paths of the pages by id.
    pages: HashMap<String, String>,
    /// Ids of the pages in reading order.
    order: Vec<String>,
}

impl Book {
    fn read(text: &str) -> Result<Self, ReadError> {
        let mut fields = Fields::default();
        let (mut titles, mut authors, mut subjects) = (Vec::new(), Vec::new(), Vec::new());
        let mut main = None;
        let (mut pages, mut order) = (HashMap::new(), Vec::new());
        let mut xml = Xml::new(FORMAT, text);
        while let Some(event) = xml.next()? {
            let Event::Open(start) = event else { continue };
            let element = name(&start);
            match element {
                "title" => {
                    let id = attribute(&start, "id").map(|id| format!("#{id}"));
                    titles.push((id, tidy(&xml.text_inside()?)));
                }
                // Of several titles, one may be marked as the main one.
                "meta" if attribute(&start, "property").as_deref() == Some("title-type") => {
                    let refined = attribute(&start, "refines");
                    if xml.text_inside()?.trim() == "main" {
                        main = refined;
                    }
                }
                "creator" => authors.push(tidy(&xml.text_inside()?)),
                "subject" => subjects.push(tidy(&xml.text_inside()?)),
                "language" | "publisher" | "description" | "date" => fields.text(element, &xml.text_inside()?),
                "meta" if attribute(&start, "property").as_deref() == Some("dcterms:modified") => {
                    fields.text("updated", &xml.text_inside()?);
                }
                "item" => {
                    let kind = attribute(&start, "media-type").unwrap_or_default();
                    if matches!(kind.as_str(), "application/xhtml+xml" | "text/html" | "text/x-oeb1-document")
                        && let (Some(id), Some(href)) = (attribute(&start, "id"), attribute(&start, "href"))
                    {
                        pages.insert(id, href);
                    }
                }
                "itemref" => order.extend(attribute(&start, "idref")),
                _ => {}
            }
        }
        let is_main = |(id, _): &&(Option<String>, String)| id.is_some() && *id == main;
        let title = titles.iter().find(is_main).or(titles.iter().find(|(_, title)| !title.is_empty()));
        let title = title.map(|(_, title)| title.clone()).unwrap_or_default();
        fields.one_or_more("author", &authors);
        fields.one_or_more("subject", &subjects);
        Ok(Self { title, metadata: fields.finish(), pages, order })
    }
}

/// A path without its fragment and without `%` escapes.
fn decoded(href: &str) -> String {
    let path = href.split('#').next().unwrap_or_default();
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((byte, behind)) = rest.split_first() {
        let digit = |at: usize| behind.get(at).and_then(|digit| char::from(*digit).to_digit(16));
        match (byte, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push((high << 4 | low) as u8);
                rest = &behind[2..];
            }
            _ => {
                bytes.push(*byte);
                rest = behind;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests;
