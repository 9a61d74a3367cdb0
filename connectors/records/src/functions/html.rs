//! Texts and parts of HTML.

use jaq_json::Val;
use scraper::{Html, Node, Selector};

use crate::decode::object;
use crate::jq;

/// The text of HTML. A tag may look at all that are open.
pub(super) fn metered(html: &str) -> String {
    let tags = html.bytes().filter(|byte| *byte == b'<').count() as u64;
    jq::steps(tags.saturating_mul(tags) / 50 + html.len() as u64 / 16);
    text(html)
}

/// Elements that begin on a line of their own.
const BLOCKS: &[&str] = &[
    "p",
    "div",
    "br",
    "li",
    "ul",
    "ol",
    "tr",
    "table",
    "blockquote",
    "pre",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "section",
    "article",
    "header",
    "footer",
    "hr",
];

/// The text of HTML: blocks are on lines of their own, and white space is one blank.
pub(super) fn text(html: &str) -> String {
    text_in(*Html::parse_fragment(html).root_element())
}

/// The text of a node.
fn text_in(node: ego_tree::NodeRef<'_, Node>) -> String {
    let mut lines = vec![String::new()];
    for edge in node.traverse() {
        let (node, is_open) = match &edge {
            ego_tree::iter::Edge::Open(node) => (node, true),
            ego_tree::iter::Edge::Close(node) => (node, false),
        };
        match node.value() {
            Node::Text(text) if is_open => {
                let is_hidden = node.parent().is_some_and(|parent| {
                    parent.value().as_element().is_some_and(|of| ["script", "style"].contains(&of.name()))
                });
                if let Some(line) = lines.last_mut().filter(|_| !is_hidden) {
                    line.push_str(text);
                }
            }
            Node::Element(element) if BLOCKS.contains(&element.name()) => lines.push(String::new()),
            _ => {}
        }
    }
    let lines = lines.iter().map(|line| line.split([' ', '\t', '\n', '\r']).filter(|word| !word.is_empty()));
    let lines = lines.map(|words| words.collect::<Vec<_>>().join(" ")).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join("\n")
}

/// A selector of CSS.
pub(crate) fn selector(text: &str) -> Result<Selector, String> {
    let hint = "such as `div.message`, `#log > p` or `[data-id]`";
    Selector::parse(text).map_err(|_| format!("{text:?} is no selector of CSS, {hint}"))
}

/// The elements that a selector of CSS finds: of each its text, its HTML, and its attributes as `@name`.
pub(super) fn find(html: &str, selector: &str) -> Result<Val, String> {
    let parsed = self::selector(selector)?;
    let tags = html.bytes().filter(|byte| *byte == b'<').count() as u64;
    jq::steps(tags.saturating_mul(tags) / 50 + html.len() as u64 / 16);
    let page = Html::parse_document(html);
    let found = page.select(&parsed).map(|element| {
        let (text, html) = (text_in(*element), element.inner_html());
        jq::steps((text.len() + html.len()) as u64 / 16 + 1);
        jq::bytes((text.len() + html.len()) as u64);
        let attributes = element.value().attrs();
        let attributes = attributes.map(|(name, value)| (Val::from(format!("@{name}")), Val::from(value.to_owned())));
        let own = object([("text", Val::from(text)), ("html", Val::from(html))]);
        match own {
            Val::Obj(fields) => {
                let fields = fields.iter().map(|(name, value)| (name.clone(), value.clone()));
                Val::obj(fields.chain(attributes).collect())
            }
            other => other,
        }
    });
    Ok(found.collect())
}
