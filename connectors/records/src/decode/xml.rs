//! XML: the root element is one record. An element is an object: its attributes are `@name`, its elements are lists by
//! their names, and its text is `#text`. An element with a text only is that text.

use jaq_json::Val;
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use super::Records;
use super::json::DEEPEST;

/// An element that is open.
#[derive(Default)]
struct Element {
    name: String,
    attributes: Vec<(String, String)>,
    /// Elements in it, by name, in their order.
    elements: Vec<(String, Vec<Val>)>,
    text: String,
}

pub(super) fn read(text: &str, records: &mut Records<'_>) {
    let value = root(text);
    records.take(1, value);
}

fn root(text: &str) -> Result<Val, String> {
    let mut reader = Reader::from_str(text);
    let mut open: Vec<Element> = Vec::new();
    loop {
        let event = reader.read_event();
        let fails = |reason: &dyn std::fmt::Display| format!("not XML at byte {}: {reason}", reader.buffer_position());
        match event.map_err(|error| fails(&error))? {
            Event::Start(start) if open.len() > DEEPEST => {
                return Err(fails(&format!("`{}` is nested too deeply", name(&start))));
            }
            Event::Start(start) => open.push(element(&start)),
            Event::Empty(start) => {
                if let Some(root) = close(element(&start), &mut open) {
                    return Ok(root);
                }
            }
            Event::End(_) => {
                let Some(last) = open.pop() else { return Err(fails(&"an element ends that did not begin")) };
                if let Some(root) = close(last, &mut open) {
                    return Ok(root);
                }
            }
            Event::Text(part) => {
                if let Some(last) = open.last_mut() {
                    last.text.push_str(&part);
                }
            }
            Event::CData(part) => {
                if let Some(last) = open.last_mut() {
                    last.text.push_str(&part);
                }
            }
            Event::GeneralRef(entity) => {
                if let Some(last) = open.last_mut() {
                    let written = format!("&{};", &*entity);
                    last.text.push_str(&unescaped(&written));
                }
            }
            Event::Eof => return Err(fails(&"it does not end")),
            _ => {}
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

fn element(start: &BytesStart<'_>) -> Element {
    let mut attributes = start.attributes();
    let attributes = attributes.with_checks(false).flatten();
    let attribute = |of: quick_xml::events::attributes::Attribute<'_>| {
        (format!("@{}", AsRef::<str>::as_ref(&of.key)), unescaped(&of.value))
    };
    Element { name: name(start), attributes: attributes.map(attribute).collect(), ..Element::default() }
}

/// Puts a complete element into the one around it; gives the root.
fn close(element: Element, open: &mut [Element]) -> Option<Val> {
    let Element { name, attributes, elements, text } = element;
    let text = if elements.is_empty() { text } else { text.trim().to_owned() };
    let value = match attributes.is_empty() && elements.is_empty() {
        true => Val::from(text),
        false => {
            let mut fields: Vec<(Val, Val)> =
                attributes.into_iter().map(|(name, value)| (Val::from(name), Val::from(value))).collect();
            fields.extend(elements.into_iter().map(|(name, list)| (Val::from(name), list.into_iter().collect())));
            if !text.is_empty() {
                fields.push((Val::from("#text".to_owned()), Val::from(text)));
            }
            Val::obj(fields.into_iter().collect())
        }
    };
    let Some(around) = open.last_mut() else { return Some(value) };
    match around.elements.iter_mut().find(|(known, _)| *known == name) {
        Some((_, list)) => list.push(value),
        None => around.elements.push((name, vec![value])),
    }
    None
}
