//! Tests of parsing: the tree is the parser's own, and no page takes long.

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

/// What the parser makes of the whole page. It discards byte order marks also after scripts, unless told not to.
fn whole(html: &str) -> Html {
    let tokenizer = TokenizerOpts { discard_bom: false, ..TokenizerOpts::default() };
    let options = html5ever::ParseOpts { tokenizer, ..html5ever::ParseOpts::default() };
    let html = html.strip_prefix('\u{feff}').unwrap_or(html);
    html5ever::parse_document(HtmlTreeSink::new(Html::new_document()), options).one(html)
}

/// Pieces of pages that change what a `<` means.
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
];

/// Whatever comes together, the tree is what the parser makes of the whole page, apart from attributes.
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
    assert!(error(&format!("<script>{script}</script>{}", "<div>".repeat(DEEPEST + 1))).contains("nested"));
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
        assert_eq!(parse(&html.repeat(DEEPEST + 1)).is_err(), deep, "{html}");
    }
}

#[test]
fn elements_that_are_opened_again_are_counted() {
    let formatting = ["b", "big", "code", "em", "font", "i", "s", "small", "strike", "strong", "tt", "u"];
    // What is open within a paragraph is opened again in the next one.
    let open = format!("<p>{}", formatting.map(|name| format!("<{name}>").repeat(10)).concat());
    assert!(error(&format!("{open}{}", "<p>x".repeat(100_000))).contains("3000000 elements"));
    assert!(parse(&format!("{open}{}", "<p>x".repeat(10_000))).is_ok());
    let closed = formatting.map(|name| format!("</{name}>").repeat(10)).concat();
    assert!(parse(&format!("{open}{closed}{}", "<p>x".repeat(100_000))).is_ok());
    assert!(parse(&format!("<b><font><table>{}", "<tr><td>x</td></tr>".repeat(100_000))).is_ok());
}

/// For each tag, the parser looks through the open elements.
#[test]
fn elements_that_end_by_themselves_are_counted_where_they_do_not() {
    for (open, then) in [("<svg><td>", "</x>"), ("<rt>", "</x>"), ("<li><dd>", "<div></div>"), ("<div>", "<p>")] {
        assert!(error(&format!("{}{}", open.repeat(40_000), then.repeat(40_000))).contains("nested"), "{open}");
    }
    let html = format!("{}{}", "<div>".repeat(DEEPEST - 10), "<p>".repeat(1_000_000));
    assert!(error(&html).contains("nested"));
    assert!(error(&"<p>".repeat(NODES + 1)).contains("elements"));
    let cells = "<td><b><object></td>".repeat(50_000);
    assert!(error(&format!("<table><tr>{cells}<td>{}", "<i></i>".repeat(50_000))).contains("nested"));
    // Rows without a table make no elements.
    assert!(parse(&"<tr><td>ferry</td><td>b</td><td>c</td></tr>".repeat(60_000)).is_ok());
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
