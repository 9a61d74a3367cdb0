//! Detects pages that are nested too deeply to be parsed. The parser takes time quadratic in the depth, so a hostile
//! megabyte would take minutes. Formatting elements that are not closed are reopened in every paragraph, so they could
//! use up all memory.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

/// Maximum depth. No honest page comes near it; browsers stop at 512.
pub(super) const DEEPEST: usize = 2000;

/// Elements that end by themselves where the next one starts, or that have no content.
const ENDLESS: &[&str] = &[
    "a", "area", "base", "br", "col", "colgroup", "dd", "dt", "embed", "hr", "img", "input", "li", "link", "meta",
    "optgroup", "option", "p", "param", "rp", "rt", "source", "tbody", "td", "tfoot", "th", "thead", "tr", "track",
    "wbr",
];

/// Elements that are reopened after a block has closed them.
const FORMATTING: &[&str] =
    &["b", "big", "code", "em", "font", "i", "nobr", "s", "small", "strike", "strong", "tt", "u"];

/// Maximum number of equal elements that are reopened.
const SAME: usize = 3;

/// Maximum total number of reopened elements.
const MOST_REOPENED: usize = 1_000_000;

/// The formatting elements that are open.
#[derive(Default)]
struct Formatting {
    hasher: RandomState,
    /// Hashes of the open tags, by element name.
    open: HashMap<String, Vec<u64>>,
    /// How often each tag is open.
    counts: HashMap<u64, usize>,
    /// Number of elements that a block reopens.
    reopened: usize,
}

impl Formatting {
    fn start(&mut self, name: &str, tag: &str) {
        let hash = self.hasher.hash_one(tag.split('>').next());
        self.open.entry(name.to_owned()).or_default().push(hash);
        let count = self.counts.entry(hash).or_default();
        *count += 1;
        self.reopened += usize::from(*count <= SAME);
    }

    fn end(&mut self, name: &str) {
        let Some(hash) = self.open.get_mut(name).and_then(Vec::pop) else { return };
        let Some(count) = self.counts.get_mut(&hash) else { return };
        self.reopened -= usize::from(*count <= SAME);
        *count -= 1;
    }
}

/// Estimates from the tags alone whether more than [`DEEPEST`] elements are ever open, or more than [`MOST_REOPENED`]
/// are reopened.
pub(super) fn is_too_deep(html: &str) -> bool {
    let mut open: HashMap<String, usize> = HashMap::new();
    let mut depth = 0;
    let (mut formatting, mut reopened) = (Formatting::default(), 0);
    for tag in html.split('<').skip(1) {
        let name = tag.strip_prefix('/').unwrap_or(tag);
        let name = name[..name.bytes().take_while(u8::is_ascii_alphanumeric).count()].to_ascii_lowercase();
        reopened += formatting.reopened;
        if reopened > MOST_REOPENED {
            return true;
        }
        if FORMATTING.contains(&name.as_str()) {
            if tag.starts_with('/') { formatting.end(&name) } else { formatting.start(&name, tag) }
        }
        if name.is_empty() || ENDLESS.contains(&name.as_str()) {
            continue;
        }
        let count = open.entry(name).or_default();
        if !tag.starts_with('/') {
            *count += 1;
            depth += 1;
        } else if *count > 0 {
            // An end tag without an open element ends nothing.
            *count -= 1;
            depth -= 1;
        }
        if depth > DEEPEST {
            return true;
        }
    }
    false
}

/// Maximum number of attributes of a tag. The parser compares each with all others of its tag.
pub(super) const ATTRIBUTES: usize = 20_000;

/// Whether a tag may have more than [`ATTRIBUTES`] attributes, or all tags that the parser joins together. Each `<` is
/// taken for the start of a tag, also in scripts and comments, so that nothing can be hidden from this count.
pub(super) fn has_many_attributes(html: &str) -> bool {
    let bytes = html.as_bytes();
    // Text in quotation marks is read again where it contains tags.
    let most_work = bytes.len().saturating_mul(16).saturating_add(1 << 20);
    let (mut work, mut joined) = (0, 0);
    for (at, _) in html.match_indices('<') {
        let tag = &bytes[at + 1..];
        if !tag.first().is_some_and(u8::is_ascii_alphabetic) {
            continue;
        }
        let name = tag.iter().take_while(|byte| byte.is_ascii_alphanumeric()).count();
        let (count, read) = attributes(&tag[name..]);
        work += read;
        if ["html", "body"].iter().any(|joins| tag[..name].eq_ignore_ascii_case(joins.as_bytes())) {
            joined += count;
        }
        if count > ATTRIBUTES || joined > ATTRIBUTES || work > most_work {
            return true;
        }
    }
    false
}

/// Counts the attributes up to the end of a tag, or until there are too many. Returns the number of bytes read too.
fn attributes(tag: &[u8]) -> (usize, usize) {
    let is_gap = |byte: u8| byte.is_ascii_whitespace() || byte == b'/';
    let (mut at, mut count) = (0, 0);
    loop {
        at += tag[at..].iter().take_while(|byte| is_gap(**byte)).count();
        match tag.get(at) {
            None | Some(b'>') => return (count, at),
            Some(_) => count += 1,
        }
        if count > ATTRIBUTES {
            return (count, at);
        }
        // An `=` at the start belongs to the name.
        at += 1;
        at += tag[at..].iter().take_while(|byte| !is_gap(**byte) && !b"=>".contains(byte)).count();
        let value = at + tag[at..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        if tag.get(value) != Some(&b'=') {
            continue;
        }
        at = value + 1;
        at += tag[at..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        match tag.get(at) {
            Some(quote @ (b'"' | b'\'')) => {
                at += 1;
                at = tag[at..].iter().position(|byte| byte == quote).map_or(tag.len(), |end| at + end + 1);
            }
            _ => at += tag[at..].iter().take_while(|byte| !byte.is_ascii_whitespace() && **byte != b'>').count(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_counted_wherever_they_are() {
        let many = |number: usize| (0..number).map(|number| format!(" a{number}=1")).collect::<String>();
        let (few, most) = (many(ATTRIBUTES), many(ATTRIBUTES + 1));
        for (html, is_many) in [
            (format!("<p><a{few}>x</a><b{few}>"), false),
            (format!("<a{most}>"), true),
            (format!("<A {}>", most.replace('=', " = ")), true),
            (format!("<a{}>", most.replace(' ', "/").replace("=1", "=\"1\"")), true),
            (format!("<a x='>' y=\">\"{most}"), true),
            // What seems to be in a comment or a value may be outside of it.
            (format!("<!-- <b x=\" --> <a{most}>\""), true),
            (format!("<svg><style><a{most}>"), true),
            (format!("<html{few}><html a>"), true),
            (format!("<p>{}", " a=1".repeat(ATTRIBUTES * 2)), false),
            (format!("<img src=\"data:{}\">", "x/y ".repeat(ATTRIBUTES * 2)), false),
        ] {
            assert_eq!(has_many_attributes(&html), is_many, "{:.60}", html);
        }
    }

    #[test]
    fn open_elements_are_counted() {
        for (html, deep) in [
            ("<div>", true),
            ("<DIV class=x>text", true),
            ("<div></b></li>", true),
            ("<div>x</div>", false),
            ("<p><a name=x>y<li><br>", false),
            ("1 < 2 </ <!-- <", false),
        ] {
            assert_eq!(is_too_deep(&html.repeat(DEEPEST + 1)), deep, "{html}");
        }
    }

    #[test]
    fn formatting_that_is_opened_again_is_counted() {
        let open = |number: usize| (0..number).map(|number| format!("<b id={number}>")).collect::<String>();
        assert!(is_too_deep(&format!("{}{}", open(1000), "<p>x".repeat(2000))));
        assert!(!is_too_deep(&format!("{}{}", open(100), "<p>x".repeat(2000))));
        // Equal elements are reopened three times at most, and closed ones are not reopened.
        assert!(!is_too_deep(&format!("{}{}", "<b>".repeat(1000), "<p>x".repeat(2000))));
        assert!(!is_too_deep(&format!("{}{}{}", open(1000), "</b>".repeat(1000), "<p>x".repeat(2000))));
    }
}
