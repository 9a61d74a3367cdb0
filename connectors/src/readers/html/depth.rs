//! Whether a page is nested too deep to be parsed: the parser takes time with the square
//! of the depth, so that a hostile megabyte would take it minutes.

use std::collections::HashMap;

/// No honest page comes near this; browsers stop at 512.
pub(super) const DEEPEST: usize = 2000;

/// Elements that end by themselves where the next one begins, or have no content.
const ENDLESS: &[&str] = &[
    "a", "area", "base", "br", "col", "colgroup", "dd", "dt", "embed", "hr", "img", "input", "li", "link", "meta",
    "optgroup", "option", "p", "param", "rp", "rt", "source", "tbody", "td", "tfoot", "th", "thead", "tr", "track",
    "wbr",
];

/// Estimates from the tags alone whether more than [`DEEPEST`] elements are ever open.
pub(super) fn is_too_deep(html: &str) -> bool {
    let mut open: HashMap<String, usize> = HashMap::new();
    let mut depth = 0;
    for tag in html.split('<').skip(1) {
        let name = tag.strip_prefix('/').unwrap_or(tag);
        let name = name[..name.bytes().take_while(u8::is_ascii_alphanumeric).count()].to_ascii_lowercase();
        if name.is_empty() || ENDLESS.contains(&name.as_str()) {
            continue;
        }
        let count = open.entry(name).or_default();
        if !tag.starts_with('/') {
            *count += 1;
            depth += 1;
        } else if *count > 0 {
            // An end tag of what is not open ends nothing.
            *count -= 1;
            depth -= 1;
        }
        if depth > DEEPEST {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
