//! Parses a page in bounded time and memory.
//!
//! html5ever parses; it compares each attribute with all others of its tag, copies the attributes of formatting elements
//! that it opens again, and looks through all open elements for many tags. So a hostile megabyte could take minutes and
//! all memory. The reader needs no attributes, so they are cut out before the parser sees them. What is left is counted
//! by the parser's own tokens, so that the text of a script does not count as elements.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use html5ever::buffer_queue::BufferQueue;
use html5ever::tendril::StrTendril;
use html5ever::tokenizer::{Tag, TagKind, Token, TokenSink, TokenSinkResult, Tokenizer, TokenizerOpts};
use html5ever::tree_builder::{TreeBuilder, TreeBuilderOpts, TreeSink};
use html5ever::{LocalName, TokenizerResult};
use scraper::{Html, HtmlTreeSink};

use crate::readers::ReadError;

/// Maximum depth. No honest page comes near it; browsers stop at 512.
pub(super) const DEEPEST: usize = 2000;
/// Maximum number of elements, with those that the parser opens again. The largest known pages have some 500,000.
pub(super) const ELEMENTS: usize = 2_000_000;
/// Maximum sum of the depths at all tags: the parser may look through all open elements at each.
const DEPTHS: usize = 1_000_000_000;

/// Elements that end by themselves where the next one starts, or that have no content.
const ENDLESS: &[&str] = &[
    "a", "area", "base", "br", "col", "colgroup", "dd", "dt", "embed", "hr", "img", "input", "li", "link", "meta",
    "optgroup", "option", "p", "param", "rp", "rt", "source", "tbody", "td", "tfoot", "th", "thead", "tr", "track",
    "wbr",
];
/// Elements that are opened again after a block has closed them.
const FORMATTING: &[&str] =
    &["a", "b", "big", "code", "em", "font", "i", "nobr", "s", "small", "strike", "strong", "tt", "u"];
/// Maximum number of equal elements that are opened again. Without attributes, those of one name are equal.
const SAME: usize = 3;

/// Parses a page.
///
/// # Errors
///
/// It has too many elements, or they are nested too deeply.
pub(super) fn parse(html: &str) -> Result<Html, ReadError> {
    let tree = TreeBuilder::new(HtmlTreeSink::new(Html::new_document()), TreeBuilderOpts::default());
    let sink = Bounded { tree, tokens: Cell::default(), counts: RefCell::default() };
    let tokenizer = Tokenizer::new(sink, TokenizerOpts::default());
    let mut feeder = Feeder { html, at: 0, queue: BufferQueue::default(), tokenizer };
    feeder.run();
    let Feeder { tokenizer, .. } = feeder;
    tokenizer.end();
    let Bounded { tree, counts, .. } = tokenizer.sink;
    counts.into_inner().error.map_or_else(|| Ok(tree.sink.finish()), Err)
}

/// Counts the tokens before they reach the tree.
struct Bounded<T: TokenSink> {
    tree: T,
    /// Number of tokens so far.
    tokens: Cell<u64>,
    counts: RefCell<Counts>,
}

/// What the tags so far may have led to.
#[derive(Default)]
struct Counts {
    /// Number of open elements by name.
    open: HashMap<LocalName, usize>,
    depth: usize,
    depths: usize,
    /// Number of formatting elements that the next block opens again.
    again: usize,
    elements: usize,
    error: Option<ReadError>,
}

impl Counts {
    fn tag(&mut self, tag: &Tag) {
        let is_formatting = FORMATTING.contains(&&*tag.name);
        let is_counted = is_formatting || !ENDLESS.contains(&&*tag.name);
        let count = self.open.entry(tag.name.clone()).or_default();
        let before = *count;
        match tag.kind {
            _ if !is_counted => {}
            TagKind::StartTag => *count += 1,
            // An end tag without an open element ends nothing.
            TagKind::EndTag => *count = count.saturating_sub(1),
        }
        if is_formatting {
            self.again = self.again + (*count).min(SAME) - before.min(SAME);
        }
        if !ENDLESS.contains(&&*tag.name) {
            self.depth = self.depth + *count - before;
        }
        self.elements += usize::from(tag.kind == TagKind::StartTag) + self.again;
        self.depths += self.depth;
        if self.depth > DEEPEST || self.depths > DEPTHS {
            self.error = Some(ReadError::TooDeep { limit: DEEPEST });
        } else if self.elements > ELEMENTS {
            self.error = Some(ReadError::ManyElements { limit: ELEMENTS });
        }
    }
}

impl<T: TokenSink> TokenSink for Bounded<T> {
    type Handle = T::Handle;

    fn process_token(&self, token: Token, line_number: u64) -> TokenSinkResult<T::Handle> {
        if !matches!(token, Token::ParseError(_)) {
            self.tokens.set(self.tokens.get() + 1);
        }
        let mut counts = self.counts.borrow_mut();
        if let Token::TagToken(tag) = &token {
            counts.tag(tag);
        }
        let is_over = counts.error.is_some();
        drop(counts);
        if is_over { TokenSinkResult::Continue } else { self.tree.process_token(token, line_number) }
    }

    fn end(&self) {
        if self.counts.borrow().error.is_none() {
            self.tree.end();
        }
    }

    fn adjusted_current_node_present_but_not_in_html_namespace(&self) -> bool {
        self.tree.adjusted_current_node_present_but_not_in_html_namespace()
    }
}

/// Whether a tag's name ends before this byte, if it is not `>`.
fn is_gap(byte: u8) -> bool {
    matches!(byte, b'\t' | b'\n' | b'\r' | b'\x0C' | b' ' | b'/')
}

/// Gives the page to the tokenizer, without attributes.
///
/// Only the tokenizer knows whether a `<` is in a script or a comment. It shows it: within a tag it emits no token, and
/// within text it emits one for each character.
struct Feeder<'a, S: TokenSink> {
    html: &'a str,
    at: usize,
    queue: BufferQueue,
    tokenizer: Tokenizer<Bounded<S>>,
}

impl<S: TokenSink> Feeder<'_, S> {
    fn run(&mut self) {
        while let Some(next) = self.rest().find('<') {
            self.feed(next);
            self.feed(1);
            while self.opened() {}
            if self.tokenizer.sink.counts.borrow().error.is_some() {
                return;
            }
        }
        self.feed(self.rest().len());
    }

    fn rest(&self) -> &str {
        &self.html[self.at..]
    }

    fn byte(&self) -> Option<u8> {
        self.html.as_bytes().get(self.at).copied()
    }

    /// Gives the tokenizer the next `length` bytes. Returns whether it emits a token.
    fn feed(&mut self, length: usize) -> bool {
        let end = self.at + length;
        let text = StrTendril::from_slice(&self.html[self.at..end]);
        self.at = end;
        self.give(text)
    }

    fn give(&self, text: StrTendril) -> bool {
        let before = self.tokenizer.sink.tokens.get();
        if !text.is_empty() {
            self.queue.push_back(text);
        }
        // Stops after each script, which a browser would run.
        while let TokenizerResult::Script(_) = self.tokenizer.feed(&self.queue) {}
        self.tokenizer.sink.tokens.get() > before
    }

    /// Gives the next character.
    fn character(&mut self) -> bool {
        let length = self.rest().chars().next().map_or(0, char::len_utf8);
        self.feed(length)
    }

    /// Goes on after a `<`. Returns whether another `<` was given, so that it must be called again.
    fn opened(&mut self) -> bool {
        let Some(byte) = self.byte() else { return false };
        match byte {
            b'/' => {
                self.feed(1);
                return self.closes();
            }
            b'!' | b'?' => {
                if !self.feed(1) {
                    self.markup();
                }
            }
            _ if byte.is_ascii_alphabetic() => {
                if !self.feed(1) {
                    self.name();
                }
            }
            // The first `<` was text.
            _ => {
                self.character();
                return byte == b'<';
            }
        }
        false
    }

    /// Goes on after `</`. Returns the same as [`Self::opened`].
    fn closes(&mut self) -> bool {
        let letters = self.rest().bytes().take_while(u8::is_ascii_alphabetic).count();
        self.feed(letters);
        let Some(byte) = self.byte() else { return false };
        let emits = self.character();
        if byte == b'>' {
            return false;
        }
        match (letters > 0, emits) {
            // Text of a script or the like.
            (_, true) => return byte == b'<',
            (false, false) => self.markup(),
            (true, false) if is_gap(byte) => self.attributes(byte),
            (true, false) => self.name(),
        }
        false
    }

    /// Goes on within a comment, or what is treated as one: it ends with a `>`.
    fn markup(&mut self) {
        while let Some(end) = self.rest().find('>') {
            if self.feed(end + 1) {
                return;
            }
        }
        self.feed(self.rest().len());
    }

    /// Goes on within the name of a tag.
    fn name(&mut self) {
        let length = self.rest().bytes().take_while(|byte| *byte != b'>' && !is_gap(*byte)).count();
        self.feed(length);
        let Some(byte) = self.byte() else { return };
        self.feed(1);
        if byte != b'>' {
            self.attributes(byte);
        }
    }

    /// Cuts out the attributes after the name of a tag and this byte, and ends the tag. A tag that does not end is left
    /// out, as the parser does it.
    fn attributes(&mut self, after: u8) {
        if after == b'/' {
            if self.byte() == Some(b'>') {
                self.feed(1);
                return;
            }
            // Not the end of the tag.
            self.give(" ".into());
        }
        let bytes = self.html.as_bytes();
        let skip = |at: &mut usize, is: &dyn Fn(u8) -> bool| {
            *at += bytes[*at..].iter().take_while(|byte| is(**byte)).count();
        };
        let is_blank = |byte: u8| is_gap(byte) && byte != b'/';
        let mut at = self.at;
        loop {
            skip(&mut at, &is_blank);
            match bytes.get(at) {
                None => break,
                Some(b'>') => {
                    self.at = at;
                    self.feed(1);
                    return;
                }
                Some(b'/') if bytes.get(at + 1) == Some(&b'>') => {
                    self.at = at;
                    self.feed(2);
                    return;
                }
                Some(b'/') => {
                    at += 1;
                    continue;
                }
                // An `=` at the start belongs to the name.
                Some(_) => at += 1,
            }
            skip(&mut at, &|byte| !is_gap(byte) && !b"=>".contains(&byte));
            skip(&mut at, &is_blank);
            if bytes.get(at) != Some(&b'=') {
                continue;
            }
            at += 1;
            skip(&mut at, &is_blank);
            match bytes.get(at) {
                Some(quote @ (b'"' | b'\'')) => {
                    at += 1;
                    skip(&mut at, &|byte| byte != *quote);
                    at = (at + 1).min(bytes.len());
                }
                // An empty value ends the tag.
                Some(b'>') | None => {}
                Some(_) => skip(&mut at, &|byte| !is_blank(byte) && byte != b'>'),
            }
        }
        self.at = bytes.len();
    }
}

#[cfg(test)]
mod tests {
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
        parse(html).unwrap_err().to_string()
    }

    /// The depths, names and texts of the tree, in order.
    fn outline(page: &Html) -> Vec<(usize, String)> {
        let mut outline: Vec<(usize, String)> = Vec::new();
        for node in page.tree.root().descendants() {
            let depth = node.ancestors().count();
            match node.value() {
                Node::Element(element) => outline.push((depth, element.name().to_owned())),
                Node::Text(text) => {
                    match outline.last_mut().filter(|last| last.0 == depth && last.1.starts_with('"')) {
                        Some(last) => last.1.push_str(text),
                        None => outline.push((depth, format!("\"{}", &**text))),
                    }
                }
                _ => {}
            }
        }
        outline
    }

    /// Pieces of pages that change what a `<` means.
    const PIECES: &[&str] = &[
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
            let html: String = (0..random(14)).map(|_| PIECES[random(PIECES.len())]).collect();
            let (page, whole) = (parse(&html).unwrap(), Html::parse_document(&html));
            assert_eq!(outline(&page), outline(&whole), "{html:?}");
            assert_eq!(parsed(&html).0, 0, "{html:?}");
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
    fn formatting_that_is_opened_again_is_counted() {
        let formatting = FORMATTING.iter().map(|name| format!("<{name}>").repeat(10)).collect::<String>();
        assert!(error(&format!("{formatting}{}", "<p>x".repeat(100_000))).contains("2000000 elements"));
        assert!(parse(&format!("{formatting}{}", "<p>x".repeat(10_000))).is_ok());
        let closed = FORMATTING.iter().map(|name| format!("</{name}>").repeat(10)).collect::<String>();
        assert!(parse(&format!("{formatting}{closed}{}", "<p>x".repeat(100_000))).is_ok());
    }

    #[test]
    fn many_elements_below_many_are_refused() {
        let html = format!("{}{}", "<div>".repeat(DEEPEST), "<p>".repeat(1_000_000));
        assert!(error(&html).contains("nested"));
        assert!(error(&"<p>".repeat(ELEMENTS + 1)).contains("elements"));
    }
}
