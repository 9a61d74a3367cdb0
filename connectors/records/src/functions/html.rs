//! Texts and parts of HTML.

use jaq_json::Val;
use scraper::node::Element;
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

/// Classes of elements that mail programs put around what they quote, or around the line before that.
const QUOTES: &[&str] = &[
    "gmail_quote",
    "gmail_attr",
    "moz-cite-prefix",
    "moz-signature-quote",
    "yahoo_quoted",
    "protonmail_quote",
    "tutanota_quote",
    "zmail_extra",
    "ms-outlook-mobile-reference-message",
    "outlookmessageheader",
];
/// The ends of ids of the elements with which Outlook begins what it quotes, up to the end of the mail.
const DIVIDERS: &[&str] = &["divRplyFwdMsg", "mail-editor-reference-message-container"];

/// The text of HTML: blocks are on lines of their own, and white space is one blank. Lines of what is quoted begin with `> `,
/// as in plain mails.
pub(super) fn text(html: &str) -> String {
    text_in(*Html::parse_fragment(html).root_element())
}

fn is_quote(element: &Element) -> bool {
    element.name() == "blockquote" || element.classes().any(|class| QUOTES.contains(&&*class.to_ascii_lowercase()))
}

/// Whether all that follows is quoted, as Outlook does.
fn is_divider(element: &Element) -> bool {
    let is_named = || element.id().is_some_and(|id| DIVIDERS.iter().any(|divider| id.ends_with(divider)));
    let style = || {
        let style: String = element.attr("style")?.chars().filter(|letter| !letter.is_whitespace()).collect();
        Some(style.to_ascii_lowercase())
    };
    let has_line = |style: String| style.contains("border:none;border-top:solid") && style.contains("padding:3.0pt");
    is_named() || style().is_some_and(has_line)
}

/// The lines of a text, so far.
struct Lines {
    /// Each, and whether it is quoted.
    lines: Vec<(bool, String)>,
    /// Number of quotes that are open.
    open: usize,
    /// All that follows is quoted.
    is_rest: bool,
}

impl Lines {
    fn next(&mut self) {
        self.lines.push((self.open > 0 || self.is_rest, String::new()));
    }

    /// The text. A blank line is before a quote, and before the line that says who is quoted.
    fn text(self) -> String {
        let words = |line: &str| {
            line.split([' ', '\t', '\n', '\r']).filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
        };
        let lines = self.lines.into_iter().map(|(is_quoted, line)| (is_quoted, words(&line)));
        let mut text: Vec<String> = Vec::new();
        let mut was_quoted = false;
        for (is_quoted, line) in lines.filter(|(_, line)| !line.is_empty()) {
            if is_quoted && !was_quoted && !text.is_empty() {
                let before = text.len() - 1;
                if before > 0 && text[before].ends_with(':') {
                    text.insert(before, String::new());
                }
                text.push(String::new());
            }
            text.push(if is_quoted { format!("> {line}") } else { line });
            was_quoted = is_quoted;
        }
        text.join("\n")
    }
}

/// The text of a node.
fn text_in(root: ego_tree::NodeRef<'_, Node>) -> String {
    let mut lines = Lines { lines: vec![(false, String::new())], open: 0, is_rest: false };
    for edge in root.traverse() {
        let (node, is_open) = match &edge {
            ego_tree::iter::Edge::Open(node) => (node, true),
            ego_tree::iter::Edge::Close(node) => (node, false),
        };
        match node.value() {
            Node::Text(text) if is_open => {
                let is_hidden = node.parent().is_some_and(|parent| {
                    parent.value().as_element().is_some_and(|of| ["script", "style"].contains(&of.name()))
                });
                if let Some((_, line)) = lines.lines.last_mut().filter(|_| !is_hidden) {
                    line.push_str(text);
                }
            }
            Node::Element(element) => {
                let is_quote = *node != root && is_quote(element);
                let is_divider = is_open && *node != root && is_divider(element);
                lines.is_rest |= is_divider;
                match (is_quote, is_open) {
                    (true, true) => lines.open += 1,
                    (true, false) => lines.open -= 1,
                    (false, _) => {}
                }
                if is_quote || is_divider || BLOCKS.contains(&element.name()) {
                    lines.next();
                }
            }
            _ => {}
        }
    }
    lines.text()
}

/// A selector of CSS.
pub(crate) fn selector(text: &str) -> Result<Selector, String> {
    if text.len() > super::LONGEST {
        return Err(format!("a selector of CSS has at most {} bytes", super::LONGEST));
    }
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

#[cfg(test)]
mod tests {
    use super::text;
    use crate::functions::mail_text;

    #[test]
    fn what_a_mail_quotes_goes_as_in_plain_mails() {
        for mail in [
            // Gmail, Thunderbird, Apple's Mail, Yahoo, and one that says it in a paragraph.
            "<div dir=ltr>Yes.<div>At <b>ten</b>.</div></div><br><div class=\"gmail_quote gmail_quote_container\"><div dir=ltr \
             class=gmail_attr>On Mon, 2 Mar 2026, Ann &lt;ann@x.example&gt; wrote:<br></div><blockquote class=gmail_quote>Is it \
             open?<blockquote>No.</blockquote></blockquote></div>",
            "<p>Yes.</p><p>At ten.</p><div class=moz-cite-prefix>Am 02.03.26 um 10:00 schrieb Ann:<br></div><blockquote \
             type=cite><p>Is it open?</p></blockquote>",
            "<div>Yes.</div><div>At ten.</div><div><br><blockquote type=cite><div>On 2 Mar 2026, Ann wrote:</div><br><div>Is it \
             open?</div></blockquote></div><br>",
            "<div>Yes.</div><div>At ten.</div><div class=yahoo_quoted><div>On Monday, Ann wrote:</div><div>Is it \
             open?</div></div>",
            "<p>Yes.</p><p>At ten.</p><p>On Monday, Ann wrote:</p><blockquote>Is it open?</blockquote>",
            // Outlook on the web, in a reply that went through Gmail, and as a program.
            "<div>Yes.</div><div>At ten.</div><div id=appendonsend></div><hr><div id=divRplyFwdMsg><b>From:</b> Ann<br><b>Sent:\
             </b> Monday</div><div>Is it open?</div>",
            "<div>Yes.</div><div>At ten.</div><div id=\"m_-1divRplyFwdMsg\"><b>From:</b> Ann</div><div>Is it open?</div>",
            "<p class=MsoNormal>Yes.</p><p>At ten.</p><div><div style='border:none; border-top:solid #E1E1E1 1.0pt;padding:3.0pt \
             0cm 0cm 0cm'><p><b>From:</b> Ann<br><b>Subject:</b> Open</p></div></div><p>Is it open?</p>",
        ] {
            assert_eq!(mail_text(&text(mail)), "Yes.\nAt ten.", "{}", text(mail));
            assert!(text(mail).contains("> Is it open?"), "{}", text(mail));
        }
        assert_eq!(text("<blockquote>a<br>b</blockquote>c"), "> a\n> b\nc");
        let deep = "<blockquote>x".repeat(300);
        assert_eq!(text(&deep).len(), 300 * 4 - 1);
    }
}
