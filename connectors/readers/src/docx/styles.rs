//! The styles and lists of a document: which paragraphs are headings or items.

use std::collections::HashMap;

use quick_xml::events::BytesStart;

use super::FORMAT;
use crate::ReadError;
use crate::raised::Height;
use crate::xml::{Event, Xml, attribute, end_name, is_on, name};

/// Maximum number of styles that a style is based on, one after the other.
const MOST_BASES: usize = 32;

/// A style, as it is written.
#[derive(Default)]
struct Style {
    name: String,
    based_on: Option<String>,
    outline: Option<u32>,
    list: ListPlace,
}

/// The list and the level of an item.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ListPlace {
    /// The list's id; `0` for none.
    pub(super) id: Option<String>,
    /// The level; 0 is the outermost.
    pub(super) level: Option<u32>,
}

/// What a style makes of its paragraphs.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Form {
    /// Level of the heading, from 1 to 6.
    pub(super) heading: Option<usize>,
    /// Whether the paragraphs are a table of contents.
    pub(super) is_contents: bool,
    /// The list of the items.
    pub(super) list: ListPlace,
}

/// How a style shows its letters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Letters {
    /// Whether they are raised or lowered.
    pub(super) height: Option<Height>,
    /// Whether they are hidden.
    pub(super) is_hidden: Option<bool>,
}

impl Letters {
    /// Reads a property of a run of letters.
    pub(super) fn property(&mut self, start: &BytesStart<'_>) {
        match name(start) {
            "vertAlign" => self.height = attribute(start, "val").map(|height| Height::named(&height)),
            "vanish" => self.is_hidden = Some(attribute(start, "val").is_none_or(|on| is_on(Some(&on)))),
            _ => {}
        }
    }
}

/// The paragraph styles by id, and how the styles of letters show them.
#[derive(Default)]
pub(super) struct Styles {
    paragraphs: HashMap<String, Style>,
    letters: HashMap<String, Letters>,
}

impl Styles {
    pub(super) fn read(text: &str) -> Result<Self, ReadError> {
        let mut styles = Self::default();
        let mut current: Option<(String, Style)> = None;
        let mut letters: Option<(String, Letters)> = None;
        let mut xml = Xml::new(FORMAT, text);
        while let Some(event) = xml.next()? {
            match event {
                Event::Open(start) if name(&start) == "style" => {
                    let kind = attribute(&start, "type").unwrap_or_else(|| "paragraph".to_owned());
                    let id = attribute(&start, "styleId");
                    letters = id.clone().filter(|_| kind == "character").map(|id| (id, Letters::default()));
                    current = id.filter(|_| kind == "paragraph").map(|id| (id, Style::default()));
                }
                Event::Open(start) => {
                    if let Some((_, letters)) = &mut letters {
                        letters.property(&start);
                    }
                    let Some((_, style)) = &mut current else { continue };
                    let value = || attribute(&start, "val");
                    match name(&start) {
                        "name" => style.name = value().unwrap_or_default().to_lowercase(),
                        "basedOn" => style.based_on = value(),
                        "outlineLvl" => style.outline = value().and_then(|level| level.parse().ok()),
                        "numId" => style.list.id = value(),
                        "ilvl" => style.list.level = value().and_then(|level| level.parse().ok()),
                        _ => {}
                    }
                }
                Event::Close(end) if end_name(&end) == "style" => {
                    styles.paragraphs.extend(current.take());
                    styles.letters.extend(letters.take());
                }
                Event::Close(_) | Event::Text(_) => {}
            }
        }
        Ok(styles)
    }

    /// How a style of letters shows them.
    pub(super) fn letters(&self, id: &str) -> Letters {
        self.letters.get(id).copied().unwrap_or_default()
    }

    /// The form of paragraphs with a style. What a style does not say, the style that it is based on says.
    pub(super) fn form(&self, id: &str) -> Form {
        let mut form = Form::default();
        let mut is_decided = false;
        let mut next = Some(id);
        for _ in 0..MOST_BASES {
            let Some(id) = next else { break };
            let Some(style) = self.paragraphs.get(id) else {
                // A file without styles, or one that uses a built-in style without containing it.
                if !is_decided {
                    form.heading = heading(&id.to_lowercase());
                }
                break;
            };
            form.is_contents |= style.name.starts_with("toc ");
            if !is_decided {
                form.heading = heading(&style.name).or_else(|| style.outline.and_then(outlined));
                is_decided = form.heading.is_some() || style.outline.is_some();
            }
            form.list.id = form.list.id.or_else(|| style.list.id.clone());
            form.list.level = form.list.level.or(style.list.level);
            next = style.based_on.as_deref();
        }
        form
    }
}

/// The level of a heading with a built-in style. Its name is English in every language, but its id is not.
fn heading(name: &str) -> Option<usize> {
    if name == "title" {
        return Some(1);
    }
    let level = name.strip_prefix("heading")?.trim_start().parse::<usize>().ok()?;
    (1..=9).contains(&level).then_some(level.min(6))
}

/// The level of a heading with an outline level, which starts at 0. Level 9 is body text.
pub(super) fn outlined(outline: u32) -> Option<usize> {
    (outline < 9).then_some((outline as usize + 1).min(6))
}
