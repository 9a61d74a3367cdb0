//! Collects what the tags of a page say about it: `<meta name="author" content="...">` and `<html lang="...">`.

use turnflow_engine::metadata::Metadata;

use crate::fields::Fields;

/// Maximum number of attributes that are kept, and maximum length of each in bytes.
const MOST_ATTRIBUTES: usize = 256;
const MOST_BYTES: usize = 4096;

/// The tag that is being read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Tag {
    Html,
    Meta,
    #[default]
    Other,
}

/// What the tags so far say.
#[derive(Debug, Default)]
pub(in super::super) struct Meta {
    tag: Tag,
    name: Option<String>,
    content: Option<String>,
    /// Names of fields with their values, and the number of them.
    found: Vec<(&'static str, String)>,
}

/// The field for a name in a page.
fn field(name: &str) -> Option<&'static str> {
    Some(match name.trim().to_ascii_lowercase().as_str() {
        "author" | "article:author" | "dc.creator" | "dcterms.creator" => "author",
        "description" | "og:description" | "dc.description" => "description",
        "keywords" | "news_keywords" => "keywords",
        "date" | "article:published_time" | "dc.date" | "dcterms.date" | "dcterms.created" | "pubdate" => "date",
        "article:modified_time" | "dcterms.modified" | "last-modified" => "updated",
        _ => return None,
    })
}

impl Meta {
    /// Starts a tag with this name; end tags have an empty name.
    pub(super) fn start(&mut self, name: &str) {
        self.tag = match name {
            name if name.eq_ignore_ascii_case("meta") => Tag::Meta,
            name if name.eq_ignore_ascii_case("html") => Tag::Html,
            _ => Tag::Other,
        };
        (self.name, self.content) = (None, None);
    }

    /// Takes an attribute of the tag.
    pub(super) fn attribute(&mut self, name: &str, value: &str) {
        if self.tag == Tag::Other || self.found.len() >= MOST_ATTRIBUTES {
            return;
        }
        let is = |other: &str| name.eq_ignore_ascii_case(other);
        let value = &value[..value.floor_char_boundary(MOST_BYTES)];
        match self.tag {
            Tag::Html if is("lang") || is("xml:lang") => self.found.push(("lang", value.to_owned())),
            Tag::Meta if is("name") || is("property") => {
                self.name.get_or_insert_with(|| value.to_owned());
            }
            Tag::Meta if is("content") => {
                self.content.get_or_insert_with(|| value.to_owned());
            }
            _ => {}
        }
    }

    /// Ends the tag.
    pub(super) fn end(&mut self) {
        if self.tag == Tag::Meta
            && let (Some(name), Some(content)) = (self.name.take(), self.content.take())
            && let Some(field) = field(&name)
        {
            self.found.push((field, content));
        }
        self.tag = Tag::Other;
    }

    /// The fields. The first value of each is kept; `text` resolves character references.
    pub(in super::super) fn finish(self, text: impl Fn(&str) -> String) -> Metadata {
        let mut fields = Fields::default();
        for (name, value) in self.found {
            let value = if value.contains('&') { text(&value) } else { value };
            match name {
                "keywords" => fields.keywords(&value),
                name => fields.text(name, &value),
            }
        }
        fields.finish()
    }
}
