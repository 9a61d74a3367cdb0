//! Tests of parsing: the tree equals the parser's, and no page takes long.

use html5ever::tendril::TendrilSink;
use scraper::Node;

use super::*;

/// All attributes of the page's elements, and its text.
fn parsed(html: &str) -> (usize, String) {
    let page = parse(html).unwrap();
    let elements = page.tree.values().filter_map(|node| node.as_element());
    let text = page.tree.values().filter_map(|node| node.as_text()).map(|text| &**text).collect();
    (elements.map(|element| element.attrs().count()).sum(), text)
}

fn error(html: &str) -> String {
    parse(html).map(drop).unwrap_err().to_string()
}

/// The depths, names and texts of the tree, in order.
fn outline(page: &Html) -> Vec<(usize, String)> {
    let mut outline: Vec<(usize, String)> = Vec::new();
    for node in page.tree.root().descendants() {
        let depth = node.ancestors().count();
        match node.value() {
            Node::Element(element) => outline.push((depth, element.name().to_owned())),
            Node::Text(text) => match outline.last_mut().filter(|last| last.0 == depth && last.1.starts_with('"')) {
                Some(last) => last.1.push_str(text),
                None => outline.push((depth, format!("\"{}", &**text))),
            },
            _ => {}
        }
    }
    outline
}

/// The parser's result for the whole page. It discards byte order marks also after scripts, unless told not to.
fn whole(html: &str) -> Html {
    let tokenizer = TokenizerOpts { discard_bom: false, ..TokenizerOpts::default() };
    let options = html5ever::ParseOpts { tokenizer, ..html5ever::ParseOpts::default() };
    let html = html.strip_prefix('\u{feff}').unwrap_or(html);
    html5ever::parse_document(HtmlTreeSink::new(Html::new_document()), options).one(html)
}

/// Pieces of pages that change the meaning of a `<`.
const PARTS: &[&str] = &[
    "<p>",
    "</p>",
    "<b a=1 b='>' c=\">\">",
    "</b x>",
    "<br/>",
    "<br / >",
    "<p/a=b/>",
    "<script>",
    "</script>",
    "</script x='>'>",
    "</script/>",
    "</scr",
    "<style>",
    "</style>",
    "<textarea>",
    "</textarea\n>",
    "<title>",
    "</title>",
    "<svg>",
    "</svg>",
    "<math>",
    "<![CDATA[",
    "]]>",
    "<!--",
    "-->",
    "--!>",
    "<!",
    "<?",
    "</",
    "<",
    ">",
    "/",
    "=",
    "\"",
    "'",
    " ",
    "\n",
    "\r\n",
    "text",
    "&amp",
    "&am",
    "i<n",
    "a<b>c",
    "<x<y z>",
    "<!doctype html>",
    "<template>",
    "</template>",
    "<table><td>",
    "<select><option>",
    "<noscript>",
    "</noscript>",
    "<plaintext",
    "\0",
    "é",
    "<é",
    "</é>",
    "<a href=x/>",
    "<?--x>",
    "</---x>",
    "</ [CDATA[>",
    "<p title=\"a->b<c d\">",
    "<input type='hidden'/>",
    "<frameset>",
    "<font color=red>",
    "</font>",
    "<font>",
    "<input TYPE='hidden' b>",
    "<input type=text>",
    "<annotation-xml encoding=\"text/html\">",
    "</annotation-xml>",
    "\u{feff}",
    "<\u{feff}p a=1>",
    "</\u{feff}p>",
    "<mi>",
    "<a href>",
    "<a =x>",
    "<a b = >",
    "<i",
    "<!-->",
    "<iframe>",
    "</iframe>",
    "<pre>",
    "</>",
    "&#",
    "<object>",
    "</object>",
    "<tr>",
    "<col>",
];

/// For any combination, the tree equals the parser's for the whole page, apart from attributes.
#[test]
fn the_tree_is_that_of_the_whole_page() {
    let mut state = 7_u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for _ in 0..20_000 {
        let html: String = (0..random(14)).map(|_| PARTS[random(PARTS.len())]).collect();
        let (page, whole) = (parse(&html).unwrap(), whole(&html));
        assert_eq!(outline(&page), outline(&whole), "{html:?}");
    }
}

#[test]
fn attributes_cost_nothing() {
    let many: String = (0..200_000).map(|number| format!(" a{number}=1")).collect();
    for html in [
        format!("<p{many}>x</p{many}>"),
        format!("<!-- <b x=\" --><a{many}>x"),
        format!("<svg><style><a{many}>x"),
        format!("<script>i<n</script{many}>x"),
        format!("<script><!--<script></script><!-- </script> <p{many}>--> x"),
        format!("&am<p{many}>x"),
        format!("<p>{}{}", "<b".repeat(3) + &many + ">", "<p>x"),
    ] {
        let (attributes, text) = parsed(&html);
        assert_eq!(attributes, 0, "{:.40}", html);
        assert!(text.ends_with('x'), "{:.40}", html);
    }
}

#[test]
fn only_elements_count_as_elements() {
    // As in minified scripts and in search indexes.
    let script = "for(i<n;a<b;c<d)x<y&&".repeat(10_000);
    for html in [
        format!("<script>{script}</script>x"),
        format!("<!--{script}-->x"),
        format!("<textarea>{script}</textarea>x"),
        format!("<p data-x='{script}'>x"),
        format!("<pre>&lt;y {}</pre>x", "word ".repeat(30_000)),
    ] {
        assert!(parsed(&html).1.ends_with('x'), "{:.40}", html);
    }
}

/// Beyond the maximum depth a tag is left out, and its text is kept.
#[test]
fn deep_tags_are_left_out() {
    for html in [
        "<div>x",
        "<DIV class=x>x</b></li>",
        "<font>x<br>",
        "<blockquote><p>x",
        "<ul><li>x",
        "<li><dd>x",
        "<table><tr><td>x",
        "<svg><g>x",
        "<a1><object>x",
        "<b><i><u><marquee>x",
        "<button>x",
        "<template><p>x",
        "<math><title>x",
        "<svg><td>x",
    ] {
        let page = parse(&html.repeat(3000)).unwrap();
        let outline = outline(&page);
        let deepest = outline.iter().map(|(depth, _)| *depth).max().unwrap();
        // The content of a template is a separate level.
        assert!(deepest < 2 * DEEPEST, "{html} {deepest}");
        let texts = outline.iter().filter(|(_, name)| name.starts_with('"'));
        assert_eq!(texts.map(|(_, text)| text.matches('x').count()).sum::<usize>(), 3000, "{html}");
    }
    // Later content still has its form, and the content of a script is not text.
    let deep = "<div>".repeat(3000);
    let page = parse(&format!("{deep}<h2>a</h2><table><td>b</table><script>c<d</script><title>e<f</title>")).unwrap();
    let names: Vec<String> = outline(&page).into_iter().map(|(_, name)| name).filter(|name| name != "div").collect();
    assert!(names.join(" ").contains("h2 \"a table tbody tr td \"b script \"c<d title \"e<f"), "{names:?}");
    // The end tags of elements that were left out do not close others.
    let page = parse(&format!("<main>{deep}x{}y", "</div>".repeat(3000))).unwrap();
    assert!(outline(&page).ends_with(&[(4, "\"y".to_owned())]));
}

/// Large pages with unclosed elements, as people wrote them.
#[test]
fn pages_with_unclosed_elements_are_read() {
    for (open, html) in [
        ("<table>", "<tr><td><font size=2>x</td><td><font size=2>y</td></tr>"),
        ("", "<p><a name=z>x"),
        ("<ul>", "<li><font color=red>x"),
        ("<table>", "<tr><td><object>x</object></td><td><b>y</b></td></tr>"),
        ("", "<object></object><template><b>y</b></template><i>x</i>"),
    ] {
        let (_, text) = parsed(&format!("{open}{}", html.repeat(24_000)));
        assert_eq!(text.matches('x').count(), 24_000, "{html}");
    }
}

#[test]
fn elements_that_are_opened_again_are_counted() {
    let formatting = ["b", "big", "code", "em", "font", "i", "s", "small", "strike", "strong", "tt", "u"];
    // Elements that are open within a paragraph are reopened in the next one.
    let open = format!("<p>{}", formatting.map(|name| format!("<{name}>").repeat(10)).concat());
    assert!(error(&format!("{open}{}", "<p>x".repeat(100_000))).contains("nested"));
    assert!(parse(&format!("{open}{}", "<p>x".repeat(10_000))).is_ok());
    let closed = formatting.map(|name| format!("</{name}>").repeat(10)).concat();
    assert!(parse(&format!("{open}{closed}{}", "<p>x".repeat(100_000))).is_ok());
    assert!(parse(&format!("<b><font><table>{}", "<tr><td>x</td></tr>".repeat(100_000))).is_ok());
}

/// For each tag, the parser searches the open elements.
#[test]
fn elements_that_end_by_themselves_are_counted_where_they_do_not() {
    for (open, then) in [
        ("<svg><g>", "</x>"),
        ("<rt>", "</x>"),
        ("<x>", "</y>"),
        ("<li><dd>", "<div></div>"),
        ("<div>", "<p>"),
        ("<x>", "<!>"),
        ("<x>", "a\0"),
    ] {
        let page = parse(&format!("{}{}", open.repeat(DEEPEST), then.repeat(600_000)));
        assert!(page.is_err_and(|error| error.to_string().contains("nested")), "{open}{then}");
    }
}

#[test]
fn every_node_is_counted() {
    for html in ["<p>", "<!>"] {
        assert!(error(&html.repeat(NODES + 1)).contains("2000000 elements"), "{html}");
    }
    // Rows outside a table create no elements.
    assert!(parse(&"<tr><td>ferry</td><td>b</td><td>c</td></tr>".repeat(60_000)).is_ok());
}

/// Cells, objects and templates leave marks in the list of elements to reopen if they are not closed in order.
#[test]
fn marks_are_counted() {
    for (open, html) in [
        ("<table><tr>", "<td><b><object></td></u>"),
        ("<table>", "<object><tr>"),
        ("<table><tr>", "<td><object></td><table><colgroup></object></table>"),
        ("", "<template><td></template>"),
    ] {
        assert!(error(&format!("{open}{}<td>{}", html.repeat(50_000), "<i></i>".repeat(50_000))).contains("nested"));
    }
}

/// The tokenizer makes a piece of text of each `&`. The parser receives one piece.
#[test]
fn pieces_of_text_are_joined() {
    let many = "&".repeat(1_000_000);
    for open in ["<b>".to_owned() + &"<div>".repeat(400), "<table>".to_owned(), "<svg>".to_owned()] {
        assert_eq!(parsed(&format!("{open}{many}")).1, many, "{open:.20}");
    }
    for html in ["&", "<"] {
        assert!(error(&html.repeat(usize::try_from(PIECES).unwrap() + 1)).contains("pieces"), "{html}");
    }
}

#[test]
fn a_byte_order_mark_is_left_out_only_at_the_start() {
    assert_eq!(parsed("\u{feff}<p>x").1, "x");
    assert_eq!(parsed("<p>\u{feff}x").1, "\u{feff}x");
}

#[test]
fn sections_of_foreign_text_end_where_they_end() {
    let html = "<math><mi><![CDATA[a\0> <b x=\"</a> ]]></mi></math><p>REST";
    assert_eq!(outline(&parse(html).unwrap()), outline(&Html::parse_document(html)));
    assert!(parsed(html).1.ends_with("REST"));
    assert!(parsed("<svg><font color=red>text</font></svg>").1.contains("text"));
}
