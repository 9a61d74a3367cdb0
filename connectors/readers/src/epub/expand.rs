//! Pages of books are XHTML, in which any element may be empty: `<title/>`. For the parser of HTML, such a tag opens an
//! element, and what follows would be its content.

use std::borrow::Cow;

/// Elements without content in HTML, too.
const EMPTY: &[&str] =
    &["area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr"];

/// The page with an end tag for each empty element.
pub(super) fn expanded(page: &str) -> Cow<'_, str> {
    if !page.contains("/>") {
        return page.into();
    }
    let (mut out, mut rest) = (String::with_capacity(page.len()), page);
    while let Some(at) = rest.find('<') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let end = match () {
            () if rest.starts_with("<!--") => rest.find("-->").map(|end| end + 3),
            () if rest.starts_with("<![CDATA[") => rest.find("]]>").map(|end| end + 3),
            () => end_of_tag(rest),
        };
        let Some(end) = end else { break };
        let (tag, after) = rest.split_at(end);
        rest = after;
        let name = tag[1..].split(|letter: char| letter.is_whitespace() || matches!(letter, '/' | '>')).next();
        let name = name.filter(|name| name.starts_with(|letter: char| letter.is_ascii_alphabetic()));
        match (tag.strip_suffix("/>"), name) {
            (Some(start), Some(name)) if !EMPTY.contains(&name.to_ascii_lowercase().as_str()) => {
                out.extend([start.trim_end(), "></", name, ">"]);
            }
            _ => out.push_str(tag),
        }
    }
    out.push_str(rest);
    out.into()
}

/// The end of a tag, beyond the values of its attributes.
fn end_of_tag(text: &str) -> Option<usize> {
    let mut quote = None;
    for (at, byte) in text.bytes().enumerate() {
        match (quote, byte) {
            (None, b'>') => return Some(at + 1),
            (None, b'"' | b'\'') => quote = Some(byte),
            (Some(open), _) if open == byte => quote = None,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_elements_that_may_have_content_get_an_end() {
        for (page, expected) in [
            ("<title/>a", "<title></title>a"),
            ("<a href='x>y' id=\"1/\" />b<br/>c<IMG src='d'/>", "<a href='x>y' id=\"1/\"></a>b<br/>c<IMG src='d'/>"),
            ("<!-- <p/> --><p/>", "<!-- <p/> --><p></p>"),
            ("<![CDATA[<p/>]]><svg:g/>", "<![CDATA[<p/>]]><svg:g></svg:g>"),
            ("1 < 2 /> 3 <p", "1 < 2 /> 3 <p"),
            ("<p>plain</p>", "<p>plain</p>"),
        ] {
            assert_eq!(expanded(page), expected);
        }
    }
}
