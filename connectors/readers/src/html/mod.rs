//! Converts HTML files to Markdown: headings, lists, tables and code keep their structure, and everything else becomes
//! paragraphs. Scripts, styles, navigation and templates are dropped. The metadata is what the page says about itself:
//! its author, description, keywords, date and language.
//!
//! The tree is walked without recursion, so deep nesting needs no stack.

mod list;
mod parse;
mod table;
mod writer;

use scraper::Node;

use self::writer::Writer;
use super::{Content, ReadError};

/// Renders a page. HTML has no syntax errors, so the only errors are pages that would take the parser too long.
pub fn read(html: &str) -> Result<Content, ReadError> {
    let (page, meta) = parse::parse_with_meta(html)?;
    let mut writer = Writer::default();
    let mut node = page.tree.root();
    'walk: loop {
        let descend = match node.value() {
            Node::Text(text) => {
                writer.text(text);
                false
            }
            Node::Element(element) => writer.open(element.name(), |name| element.attr(name)),
            Node::Document | Node::Fragment => true,
            _ => false,
        };
        if let Some(child) = node.first_child().filter(|_| descend) {
            node = child;
            continue;
        }
        // This node has no children, or they are done: close elements up to one that has a next sibling.
        let mut closes = descend;
        loop {
            if let Some(element) = node.value().as_element().filter(|_| closes) {
                writer.close(element.name());
            }
            if let Some(next) = node.next_sibling() {
                node = next;
                continue 'walk;
            }
            let Some(parent) = node.parent() else { break 'walk };
            node = parent;
            closes = true;
        }
    }
    Ok(Content { metadata: meta.finish(resolved), ..writer.finish() })
}

/// The text of an attribute, with its character references resolved.
fn resolved(value: &str) -> String {
    let Ok(page) = parse::parse(&value.replace('<', "&lt;")) else { return value.to_owned() };
    page.tree.values().filter_map(|node| node.as_text()).map(|text| &**text).collect()
}

#[cfg(test)]
mod tests {
    use super::parse::DEEPEST;
    use super::*;

    fn read(html: &str) -> Content {
        super::read(html).unwrap()
    }

    fn text(html: &str) -> String {
        read(html).text
    }

    #[test]
    fn a_page() {
        let content = read(
            "<!doctype html><html><head><title> The\n page </title><style>p{}</style></head><body>\
             <nav><a href=x>Home</a></nav><script>if (a<b) {}</script><!-- note -->\
             <h1>Top <em>one</em></h1>\n<p>First&nbsp;&amp; <b>bold</b>,\n text.</p><p>Second<br>line &lt;3</p>\
             <h2>Lists</h2><ul><li>one</li><li><p>two</p><ol><li>deep</ol></li></ul>after\
             <table><tr><th>a</th><th>b</th></tr><tr><td><p>1</p></td><td>2<br>3</td></tr></table>\
             <pre># comment\n  code</pre><template><p>no</p></template><p># no heading</p></body></html>",
        );
        assert_eq!(content.title, "The page");
        assert_eq!(
            content.text,
            "# Top one\n\nFirst & bold, text.\n\nSecond\nline <3\n\n## Lists\n\n- one\n- two\n  1. deep\n\n\
             after\n\na | b\n1 | 2 3\n\n```\n# comment\n  code\n```\n\n\\# no heading"
        );
    }

    #[test]
    fn cells_stand_in_their_columns() {
        for (rows, expected) in [
            (
                "<tr><td rowspan=2>North<td>Pier<td>5<tr><td>Hub<td>7<tr><td>South<td>Quay<td>9",
                "North | Pier | 5\nNorth | Hub | 7\nSouth | Quay | 9",
            ),
            (
                "<tr><td><th>2023<th>2024<tr><th>Rent<td>500<td>600<tr><td><td>510<td>620",
                "| 2023 | 2024\nRent | 500 | 600\n| 510 | 620",
            ),
            (
                "<tr><th colspan=2>Adults<th>Children<tr><td>one way<td>return<td>any",
                "Adults |  | Children\none way | return | any",
            ),
            ("<tr><td rowspan='2' colspan='2'>a<td>b<tr><td>c<tr><td>d<td>e<td>f", "a |  | b\na |  | c\nd | e | f"),
            ("<tr><td>a<td rowspan=3>b<tr><tr><td>c", "a | b\n| b\nc | b"),
            ("<tr><td>a<td>1<table><tr><td>x<td>y</table><tr><td colspan=0 rowspan=zz>c", "a | 1 x y\nc"),
            ("<tr><td colspan=99999999>a<td>b", &format!("a{}b", " | ".repeat(64))),
        ] {
            assert_eq!(text(&format!("<table>{rows}</table>")), expected, "{rows}");
        }
        let many = format!("<table>{}</table>", "<tr><td rowspan=1000 colspan=64>x".repeat(2000));
        assert!(text(&many).len() < 1 << 20);
    }

    #[test]
    fn items_keep_their_numbers() {
        for (list, expected) in [
            ("<ol><li>a<li>b<li value=7>c<li>d</ol>", "1. a\n2. b\n7. c\n8. d"),
            ("<ol start=3><li>a<ul><li>b</ul><li>c</ol>", "3. a\n   - b\n4. c"),
            ("<ol type=a><li>a<li>b</ol>", "- a. a\n- b. b"),
            ("<ol type=I start=4><li>a</ol>", "- IV. a"),
            ("<ol reversed start=2><li>a<li>b</ol>", "2. a\n1. b"),
            ("<ol reversed><li>a<li>b</ol>", "- a\n- b"),
            ("<ol start=9><li>a<p>more<li>b</ol>", "9. a\n   more\n10. b"),
            ("<ol start=x><li>a</ol>", "1. a"),
        ] {
            assert_eq!(text(list), expected, "{list}");
        }
    }

    #[test]
    fn raised_digits_are_kept_apart() {
        let page = "<p>105 is not 10<sup>5</sup> litres on 25 m<sup>2</sup>, as of 1990<sup><a href=x>3</a></sup>. \
                    H<sub>2</sub>O, the 1<sup>st</sup>, 2<sub>10</sub> and 10<sup>-3</sup>.<p>2<sup></sup>3 10 <sup>5</sup>";
        let expected = "105 is not 10^5 litres on 25 m2, as of 1990^3. H2O, the 1st, 2_10 and 10^-3.\n\n23 10 5";
        assert_eq!(text(page), expected);
    }

    #[test]
    fn the_first_top_heading_is_the_title_where_there_is_none() {
        assert_eq!(read("<title></title><h2>x</h2><h1>A <i>b</i></h1><h1>c</h1>").title, "A b");
        assert_eq!(read("<svg><title>icon</title></svg><p>x").title, "");
    }

    #[test]
    fn a_page_says_who_wrote_it_and_when() {
        let content = read(
            "<!doctype html><html class=a lang=en-GB><head><meta charset=utf-8><META NAME='Author' content='Ada &amp; Co'>\
             <!-- <meta name=author content=no> --><script>'<meta name=description content=no>'</script>\
             <meta name=author content=Second /><meta content=\"Ferries &lt;b> and boats\" name=description>\
             <meta property='article:published_time' content=2026-01-02><meta name=keywords content='a, b;c'>\
             <meta name=viewport content=x><meta name=date></head><p>Text",
        );
        let expected = serde_json::json!({
            "author": "Ada & Co", "date": "2026-01-02", "description": "Ferries <b> and boats",
            "keywords": ["a", "b", "c"], "lang": "en-GB",
        });
        assert_eq!(serde_json::Value::Object(content.metadata.to_json()), expected);
        assert_eq!(content.text, "Text");
        let many = "<meta name=author content=''>".repeat(100_000) + "<meta name=date content=2026>";
        assert!(read(&many).metadata.is_empty());
        let long = format!("<meta name=author content='{}'>", "é".repeat(100_000));
        assert_eq!(read(&long).metadata.values("author")[0].to_string().len(), 2048);
    }

    #[test]
    fn tag_soup_is_read() {
        for (html, text) in [
            ("just text", "just text"),
            ("<p>a<p>b</i></div><li>c", "a\n\nb\n\n- c"),
            ("<b><p>x</b>y</p", "xy"),
            ("a &unknown; &#x41;&#66 &copy", "a &unknown; AB \u{a9}"),
            ("<h1>t<p>in</h1>", "# t\n\n# in"),
            ("<table>stray<td>c", "stray\n\nc"),
            ("soft\u{AD}ware <p", "software"),
            ("", ""),
        ] {
            assert_eq!(read(html).text, text, "{html:?}");
        }
    }

    #[test]
    fn depth_costs_no_stack() {
        assert_eq!(text(&format!("{}deep", "<div>".repeat(DEEPEST / 2))), "deep");
        assert_eq!(text(&format!("{}deep", "<div>".repeat(100_000))), "deep");
    }

    #[test]
    fn deep_text_keeps_its_form() {
        let deep = "<font>".repeat(3000);
        assert_eq!(
            text(&format!("{deep}a<div>b</div>c<h2>d</h2><ul><li>e<li>f</ul><table><td>g<td>h</table>")),
            "a\nb\nc\n\n## d\n\n- e\n- f\n\ng | h"
        );
        assert_eq!(text(&format!("{}a<nav>b</nav>", "<li><dd>".repeat(110))), "- a");
    }

    #[test]
    fn a_title_does_not_take_the_text_before_it() {
        let content = read("<table><td>The ferry leaves at ten.<p>Daily.</p><title>Included</title>Then more.");
        assert_eq!(content.title, "Included");
        assert_eq!(content.text, "The ferry leaves at ten. Daily. Then more.");
        let content = read("<math><title>a<title>b</title>c</title></math><p>d");
        assert_eq!((&*content.title, &*content.text), ("ab", "c\n\nd"));
    }

    #[test]
    fn zero_width_spaces_are_blanks_in_scripts_without_blanks() {
        for (html, expected) in [
            ("ភាសា\u{200B}ខ្មែរ", "ភាសា ខ្មែរ"),
            ("မြန်မာ&#8203;<b>\u{200B}စကား</b>", "မြန်မာ စကား"),
            ("ภาษา\u{200B}\u{AD}ไทย", "ภาษา ไทย"),
            ("ພາສາ\u{200B} \u{200B}ລາວ\u{200B}", "ພາສາ ລາວ"),
            ("ខ្មែរ\u{200B}abc\u{200B}ខ្មែរ", "ខ្មែរabcខ្មែរ"),
            ("soft\u{200B}ware", "software"),
            ("<p>ខ្មែរ\u{200B}<p>ខ្មែរ", "ខ្មែរ\n\nខ្មែរ"),
        ] {
            assert_eq!(text(html), expected, "{html}");
        }
    }

    #[test]
    fn what_browsers_hide_is_dropped() {
        for name in ["audio", "canvas", "datalist", "iframe", "noembed", "noframes", "noscript", "object", "video"] {
            assert_eq!(text(&format!("<p>a<{name}>hidden <b>text</b></{name}>b")), "ab", "{name}");
        }
        assert_eq!(text("<button>Save</button><button>Send</button>now"), "Save Send now");
    }
}
