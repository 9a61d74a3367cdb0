//! Reads XML with bounds, as the parts of office files and books need it.
//!
//! Names are compared without their prefix. No entity is expanded except the predefined ones, and document type
//! declarations are skipped, so that nothing outside the text can be read, and no text grows.

use std::borrow::Cow;

use quick_xml::Reader;
use quick_xml::XmlVersion;
use quick_xml::events::{BytesEnd, BytesStart, Event as Read};

use super::ReadError;

/// Maximum depth of nested elements. Real documents have less than a hundred levels.
const DEEPEST: usize = 512;
/// Maximum number of elements of a part.
const MOST_ELEMENTS: usize = 16_000_000;

/// A piece of XML.
pub enum Event<'a> {
    /// A start tag. An empty element has a start and an end.
    Open(BytesStart<'a>),
    /// An end tag.
    Close(BytesEnd<'a>),
    /// Text, or a part of it.
    Text(Cow<'a, str>),
}

/// Reads a part piece by piece.
pub struct Xml<'a> {
    reader: Reader<&'a [u8]>,
    format: &'static str,
    depth: usize,
    elements: usize,
}

impl<'a> Xml<'a> {
    /// Starts to read a part of a file in this format.
    pub fn new(format: &'static str, text: &'a str) -> Self {
        let mut reader = Reader::from_str(text.strip_prefix('\u{FEFF}').unwrap_or(text));
        reader.config_mut().expand_empty_elements = true;
        Self { reader, format, depth: 0, elements: 0 }
    }

    /// The next piece; `None` at the end.
    ///
    /// # Errors
    ///
    /// The text is not XML, ends within an element, or has too many or too deeply nested elements.
    #[allow(clippy::should_implement_trait, reason = "reading may fail")]
    pub fn next(&mut self) -> Result<Option<Event<'a>>, ReadError> {
        loop {
            let event = match self.reader.read_event() {
                Ok(event) => event,
                Err(error) => return Err(self.broken(&error.to_string())),
            };
            match event {
                Read::Start(start) => {
                    self.depth += 1;
                    self.elements += 1;
                    if self.depth > DEEPEST {
                        return Err(ReadError::TooMany { what: "levels of nested elements", limit: DEEPEST as u64 });
                    }
                    if self.elements > MOST_ELEMENTS {
                        return Err(ReadError::TooMany { what: "elements", limit: MOST_ELEMENTS as u64 });
                    }
                    return Ok(Some(Event::Open(start)));
                }
                Read::End(end) => {
                    self.depth = self.depth.saturating_sub(1);
                    return Ok(Some(Event::Close(end)));
                }
                Read::Text(text) => return Ok(Some(Event::Text(text.into_inner()))),
                Read::CData(text) => return Ok(Some(Event::Text(text.into_inner()))),
                Read::GeneralRef(reference) => {
                    let character = match &*reference {
                        "amp" => Some('&'),
                        "lt" => Some('<'),
                        "gt" => Some('>'),
                        "quot" => Some('"'),
                        "apos" => Some('\''),
                        _ => reference.resolve_char_ref().ok().flatten(),
                    };
                    if let Some(character) = character {
                        return Ok(Some(Event::Text(character.to_string().into())));
                    }
                }
                Read::Eof if self.depth > 0 => return Err(self.broken("the XML ends within an element")),
                Read::Eof => return Ok(None),
                Read::Empty(_) | Read::Comment(_) | Read::Decl(_) | Read::PI(_) | Read::DocType(_) => {}
            }
        }
    }

    /// Skips the content and the end of the element whose start was read last.
    pub fn skip(&mut self) -> Result<(), ReadError> {
        self.text_inside().map(drop)
    }

    /// The text inside the element whose start was read last, up to its end.
    pub fn text_inside(&mut self) -> Result<String, ReadError> {
        let mut text = String::new();
        let outside = self.depth.saturating_sub(1);
        while self.depth > outside {
            match self.next()? {
                Some(Event::Text(piece)) => text.push_str(&piece),
                Some(_) => {}
                None => break,
            }
        }
        Ok(text)
    }

    fn broken(&self, reason: &str) -> ReadError {
        ReadError::Broken { format: self.format, reason: reason.to_owned() }
    }
}

/// The name without its prefix.
pub fn name<'e>(start: &'e BytesStart<'_>) -> &'e str {
    local(start.name().0)
}

/// The same, of an end tag.
pub fn end_name<'e>(end: &'e BytesEnd<'_>) -> &'e str {
    local(end.name().0)
}

fn local(name: &str) -> &str {
    name.rsplit_once(':').map_or(name, |(_, local)| local)
}

/// The value of the first attribute with this name, with any prefix.
pub fn attribute(start: &BytesStart<'_>, name: &str) -> Option<String> {
    find(start, |key| local(key) == name)
}

/// The value of the attribute with this name and some prefix, as in `r:id`.
pub fn prefixed(start: &BytesStart<'_>, name: &str) -> Option<String> {
    find(start, |key| key.rsplit_once(':').is_some_and(|(_, local)| local == name))
}

fn find(start: &BytesStart<'_>, is_one: impl Fn(&str) -> bool) -> Option<String> {
    // The check for duplicates would compare each attribute with all others.
    let mut attributes = start.attributes();
    let mut found = attributes.with_checks(false).flatten();
    let attribute = found.find(|attribute| is_one(attribute.key.0))?;
    // A value with an unknown entity is kept as it is written.
    let value = attribute.normalized_value(XmlVersion::Implicit1_0).ok();
    Some(value.unwrap_or(attribute.value).into_owned())
}

/// Whether the value of an attribute means yes. Without a value, an element such as `<w:vanish/>` does.
pub fn is_on(value: Option<&str>) -> bool {
    matches!(value, Some("1" | "true" | "on"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<String, ReadError> {
        let mut xml = Xml::new("XML", text);
        let mut read = String::new();
        while let Some(event) = xml.next()? {
            match event {
                Event::Open(start) => read += &format!("<{}>", name(&start)),
                Event::Close(end) => read += &format!("</{}>", end_name(&end)),
                Event::Text(text) => read += &text,
            }
        }
        Ok(read)
    }

    #[test]
    fn names_lose_their_prefix_and_entities_are_not_expanded() {
        let text = "<?xml version='1.0'?><!DOCTYPE a [<!ENTITY e SYSTEM 'file:///etc/passwd'><!ENTITY b 'bbb'>]>\
                    <w:a>1 &lt; 2 &#x41;&e;&b;<!-- no --><![CDATA[<c>]]><b/></w:a>";
        assert_eq!(read(text).unwrap(), "<a>1 < 2 A<c><b></b></a>");
    }

    #[test]
    fn attributes_are_found_with_any_prefix() {
        let text = "<a w:val='x &amp; y' other='2' r:id='z' id='5'/>";
        let Ok(Some(Event::Open(start))) = Xml::new("XML", text).next() else { panic!("no element") };
        assert_eq!(attribute(&start, "val").as_deref(), Some("x & y"));
        assert_eq!(attribute(&start, "none"), None);
    }

    #[test]
    fn what_is_not_xml_says_so() {
        for text in ["<a>", "<a></b>", "<a", "<a><b></a></b>", "</a>"] {
            assert!(read(text).unwrap_err().to_string().starts_with("broken XML: "), "{text}");
        }
        let deep = read(&"<a>".repeat(DEEPEST + 1)).unwrap_err().to_string();
        assert_eq!(deep, "more than 512 levels of nested elements");
    }
}
