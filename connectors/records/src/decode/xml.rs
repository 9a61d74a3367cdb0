//! XML: the root element is one record. An element is an object: its attributes are `@name`, its elements are lists by
//! their names, and its text is `#text`. An element with a text only is that text. Of an element with texts between elements,
//! `#content` is all text in it, and `#markup` all that is in it as HTML, in their order.

use std::collections::HashMap;

use jaq_json::Val;
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use super::Records;
use super::json::DEEPEST;

/// How much larger than a document the markup and the texts of its elements may be in all: each level has them again.
const LARGER: usize = 8;
/// What they may have in any case, in bytes.
const LEAST: usize = 1 << 20;

/// An element that is open.
#[derive(Default)]
struct Element {
    name: String,
    attributes: Vec<(String, String)>,
    /// Elements in it, by name, in their order, and the places of the names.
    elements: Vec<(String, Vec<Val>)>,
    places: HashMap<String, usize>,
    text: String,
    /// Where its content begins in the markup and in the text of the document.
    begins: (usize, usize),
}

/// What was read of a document.
#[derive(Default)]
struct Document {
    open: Vec<Element>,
    /// All of it as markup, and its text.
    markup: String,
    text: String,
    /// Sizes of the markup and the texts that elements have.
    copied: usize,
}

pub(super) fn read(text: &str, records: &mut Records<'_>) {
    let value = root(text);
    records.take(1, value);
}

fn root(text: &str) -> Result<Val, String> {
    let mut reader = Reader::from_str(text);
    let mut document = Document::default();
    loop {
        let event = reader.read_event();
        let fails = |reason: &dyn std::fmt::Display| format!("not XML at byte {}: {reason}", reader.buffer_position());
        let root = match event.map_err(|error| fails(&error))? {
            Event::Start(start) if document.open.len() > DEEPEST => {
                return Err(fails(&format!("`{}` is nested too deeply", name(&start))));
            }
            Event::Start(start) => {
                document.begin(&start);
                None
            }
            Event::Empty(start) => {
                document.begin(&start);
                document.end()
            }
            Event::End(_) if document.open.is_empty() => {
                return Err(fails(&"an element ends that did not begin"));
            }
            Event::End(_) => document.end(),
            Event::Text(part) => document.take(&part),
            Event::CData(part) => document.take(&part),
            Event::GeneralRef(entity) => document.take(&unescaped(&format!("&{};", &*entity))),
            Event::Eof => return Err(fails(&"it does not end")),
            _ => None,
        };
        if document.copied > text.len().saturating_mul(LARGER).max(LEAST) {
            return Err(fails(&"elements with texts between elements are nested too deeply"));
        }
        if let Some(root) = root {
            return Ok(root);
        }
    }
}

/// The text with its entities as letters; those of HTML, too.
fn unescaped(written: &str) -> String {
    let entity = |name: &str| match name {
        "nbsp" => Some("\u{a0}"),
        name => quick_xml::escape::resolve_predefined_entity(name),
    };
    quick_xml::escape::unescape_with(written, entity).map_or_else(|_| written.to_owned(), std::borrow::Cow::into_owned)
}

fn name(start: &BytesStart<'_>) -> String {
    start.name().as_ref().to_owned()
}

/// Elements of HTML that have no end.
const VOID: [&str; 6] = ["br", "hr", "img", "input", "wbr", "col"];

impl Document {
    fn begin(&mut self, start: &BytesStart<'_>) {
        let mut attributes = start.attributes();
        let attributes = attributes.with_checks(false).flatten();
        let attribute = |of: quick_xml::events::attributes::Attribute<'_>| {
            (format!("@{}", AsRef::<str>::as_ref(&of.key)), unescaped(&of.value))
        };
        let (name, attributes): (_, Vec<_>) = (name(start), attributes.map(attribute).collect());
        self.markup.push('<');
        self.markup.push_str(&name);
        for (name, value) in &attributes {
            self.markup.extend([" ", &name[1..], "=\"", &quick_xml::escape::escape(value), "\""]);
        }
        self.markup.push('>');
        let begins = (self.markup.len(), self.text.len());
        self.open.push(Element { name, attributes, begins, ..Element::default() });
    }

    fn take(&mut self, text: &str) -> Option<Val> {
        if let Some(last) = self.open.last_mut() {
            last.text.push_str(text);
            self.text.push_str(text);
            self.markup.push_str(&quick_xml::escape::partial_escape(text));
        }
        None
    }

    /// Puts the last element into the one around it; gives the root.
    fn end(&mut self) -> Option<Val> {
        let Element { name, attributes, elements, text, begins, .. } = self.open.pop()?;
        let text = if elements.is_empty() { text } else { text.trim().to_owned() };
        let value = match attributes.is_empty() && elements.is_empty() {
            true => Val::from(text),
            false => {
                let is_mixed = !elements.is_empty() && !text.is_empty();
                let mut fields: Vec<(String, Val)> =
                    attributes.into_iter().map(|(name, value)| (name, Val::from(value))).collect();
                fields.extend(elements.into_iter().map(|(name, list)| (name, list.into_iter().collect())));
                if !text.is_empty() {
                    fields.push(("#text".to_owned(), Val::from(text)));
                }
                if is_mixed {
                    let (markup, text) = (self.markup[begins.0..].trim(), self.text[begins.1..].trim());
                    self.copied += markup.len() + text.len();
                    fields.push(("#content".to_owned(), Val::from(text.to_owned())));
                    fields.push(("#markup".to_owned(), Val::from(markup.to_owned())));
                }
                Val::obj(fields.into_iter().map(|(name, value)| (Val::from(name), value)).collect())
            }
        };
        if !VOID.contains(&&*name) {
            self.markup.extend(["</", &name, ">"]);
        }
        let Some(around) = self.open.last_mut() else { return Some(value) };
        match around.places.get(&name) {
            Some(at) => around.elements[*at].1.push(value),
            None => {
                around.places.insert(name.clone(), around.elements.len());
                around.elements.push((name, vec![value]));
            }
        }
        None
    }
}
