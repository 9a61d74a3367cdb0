//! The styles and lists of a document: which paragraphs are headings or items.

use std::collections::HashMap;

use super::FORMAT;
use crate::readers::ReadError;
use crate::readers::xml::{Event, Xml, attribute, end_name, name};

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

/// The paragraph styles by id.
#[derive(Default)]
pub(super) struct Styles(HashMap<String, Style>);

impl Styles {
    pub(super) fn read(text: &str) -> Result<Self, ReadError> {
        let mut styles = HashMap::new();
        let mut current: Option<(String, Style)> = None;
        let mut xml = Xml::new(FORMAT, text);
        while let Some(event) = xml.next()? {
            match event {
                Event::Open(start) if name(&start) == "style" => {
                    let is_paragraph = attribute(&start, "type").is_none_or(|kind| kind == "paragraph");
                    current = attribute(&start, "styleId").filter(|_| is_paragraph).map(|id| (id, Style::default()));
                }
                Event::Open(start) => {
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
                Event::Close(end) if end_name(&end) == "style" => styles.extend(current.take()),
                Event::Close(_) | Event::Text(_) => {}
            }
        }
        Ok(Self(styles))
    }

    /// The form of paragraphs with a style. What a style does not say, the style that it is based on says.
    pub(super) fn form(&self, id: &str) -> Form {
        let mut form = Form::default();
        let mut is_decided = false;
        let mut next = Some(id);
        for _ in 0..MOST_BASES {
            let Some(id) = next else { break };
            let Some(style) = self.0.get(id) else {
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

/// The kinds of lists: which of them have numbers.
#[derive(Default)]
pub(super) struct Numbering {
    /// The abstract list of each list.
    lists: HashMap<String, String>,
    /// The levels of abstract lists that have numbers.
    numbered: HashMap<String, Vec<u32>>,
}

impl Numbering {
    pub(super) fn read(text: &str) -> Result<Self, ReadError> {
        let mut numbering = Self::default();
        let mut abstract_list = String::new();
        let mut list = String::new();
        let mut level = 0;
        let mut xml = Xml::new(FORMAT, text);
        while let Some(event) = xml.next()? {
            let Event::Open(start) = event else { continue };
            let value = || attribute(&start, "val").unwrap_or_default();
            match name(&start) {
                "abstractNum" => abstract_list = attribute(&start, "abstractNumId").unwrap_or_default(),
                "lvl" => level = attribute(&start, "ilvl").and_then(|level| level.parse().ok()).unwrap_or_default(),
                "numFmt" if !matches!(value().as_str(), "bullet" | "none" | "") => {
                    numbering.numbered.entry(abstract_list.clone()).or_default().push(level);
                }
                "num" => {
                    list = attribute(&start, "numId").unwrap_or_default();
                    // Levels that a list overrides are not looked at.
                    abstract_list.clear();
                }
                "abstractNumId" => drop(numbering.lists.insert(std::mem::take(&mut list), value())),
                _ => {}
            }
        }
        Ok(numbering)
    }

    /// Whether the items at a level of a list have numbers.
    pub(super) fn is_numbered(&self, list: &str, level: u32) -> bool {
        let levels = self.lists.get(list).and_then(|list| self.numbered.get(list));
        levels.is_some_and(|levels| levels.iter().take(16).any(|numbered| *numbered == level))
    }
}
