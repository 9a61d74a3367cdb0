//! Parses a page in bounded time and memory.
//!
//! html5ever parses; it compares each attribute with all others of its tag, copies the attributes of formatting
//! elements that it opens again, and looks through all open elements for many tags. So a hostile megabyte could take
//! minutes and all memory. The reader needs no attributes, so they are cut out before the parser sees them, and tags
//! that are too deep are left out. What is left is counted by the parser's own tokens, so that the text of a script
//! does not count as elements.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::Range;

use html5ever::buffer_queue::BufferQueue;
use html5ever::tendril::StrTendril;
use html5ever::tokenizer::{Tag, TagKind, Token, TokenSink, TokenSinkResult, Tokenizer, TokenizerOpts};
use html5ever::tree_builder::{Tracer, TreeBuilder, TreeBuilderOpts, TreeSink};
use html5ever::{LocalName, TokenizerResult};
use scraper::{Html, HtmlTreeSink};

use crate::readers::ReadError;

type NodeId = <HtmlTreeSink as TreeSink>::Handle;

/// Maximum number of elements that are open, or opened again in the next block. Browsers stop at 512; only pages whose
/// elements are not closed come near it.
pub(super) const DEEPEST: usize = 256;
/// The last levels are kept for elements that give the text its form.
const KEPT: usize = 64;
/// Maximum number of nodes, with the elements that the parser opens again. The largest known pages have about a
/// million.
pub(super) const NODES: usize = 2_000_000;
/// Maximum number of pieces in which a page is given to the parser, and of tokens that the parser makes of them.
pub(super) const PIECES: u64 = 16_000_000;
/// Maximum sum of the depths at all tokens: the parser may look through all open elements at each.
const DEPTHS: usize = 100_000_000;
/// Maximum length of a text that is given to the parser at once, in bytes.
const PIECE: usize = 1 << 20;

/// Whether nothing can be nested in an element: it has no content, or only text.
fn is_flat(name: &str) -> bool {
    const FLAT: &[&str] = &[
        "area",
        "base",
        "basefont",
        "bgsound",
        "br",
        "col",
        "embed",
        "frame",
        "hr",
        "iframe",
        "image",
        "img",
        "input",
        "keygen",
        "link",
        "meta",
        "noembed",
        "noframes",
        "noscript",
        "param",
        "plaintext",
        "script",
        "source",
        "style",
        "textarea",
        "title",
        "track",
        "wbr",
        "xmp",
    ];
    FLAT.contains(&name)
}

/// Parses a page.
///
/// # Errors
///
/// It has too many elements, or too many of them are deep in others.
pub(super) fn parse(html: &str) -> Result<Html, ReadError> {
    // The tokenizer would discard each byte order mark at the start of a piece.
    let html = html.strip_prefix('\u{FEFF}').unwrap_or(html);
    let options = TokenizerOpts { discard_bom: false, ..TokenizerOpts::default() };
    let tree = TreeBuilder::new(HtmlTreeSink::new(Html::new_document()), TreeBuilderOpts::default());
    let sink = Bounded { tree, tokens: Cell::default(), text: RefCell::default(), counts: RefCell::default() };
    let tokenizer = Tokenizer::new(sink, options);
    let mut feeder = Feeder { html, at: 0, name: 0..0, pieces: 0, queue: BufferQueue::default(), tokenizer };
    feeder.run();
    let Feeder { tokenizer, .. } = feeder;
    tokenizer.end();
    let Bounded { tree, counts, .. } = tokenizer.sink;
    counts.into_inner().error.map_or_else(|| Ok(tree.sink.finish()), Err)
}

/// Counts what the tokens lead to.
struct Bounded {
    tree: TreeBuilder<NodeId, HtmlTreeSink>,
    /// Number of tokens so far.
    tokens: Cell<u64>,
    /// Text that the parser was not given yet. It looks through the open elements for each piece of text, and the
    /// tokenizer makes a piece of each `&`.
    text: RefCell<StrTendril>,
    counts: RefCell<Counts>,
}

#[derive(Default)]
struct Counts {
    /// Number of elements that are open or in the list of those to open again.
    depth: usize,
    depths: usize,
    /// Number of marks in the list of elements to open again whose element may be closed, with those of open objects.
    /// The parser sets a mark where a cell, an object or a template begins, and takes away only one where several of
    /// them end at once. It looks through them too.
    marks: usize,
    /// Number of blocks by name whose start was left out, and whose end is to be left out.
    left_out: HashMap<LocalName, usize>,
    error: Option<ReadError>,
}

/// Sees the elements that are open, or in the list of those to open again.
struct Seen<F>(F);

impl<F: Fn(&NodeId)> Tracer for Seen<F> {
    type Handle = NodeId;

    fn trace_handle(&self, node: &NodeId) {
        (self.0)(node);
    }
}

impl Bounded {
    /// Gives the parser a token, and counts what it did.
    fn give(&self, token: Token) -> TokenSinkResult<NodeId> {
        let counts = &mut *self.counts.borrow_mut();
        if counts.error.is_some() {
            return TokenSinkResult::Continue;
        }
        let (is_end, name) = match &token {
            Token::TagToken(tag) => (tag.kind == TagKind::EndTag, tag.name.clone()),
            _ => (false, LocalName::default()),
        };
        // So often the parser looks through the open elements.
        let looks = if matches!(&*name, "hr" | "option" | "optgroup") { 4 } else { 1 };
        let is_object = |name: &str| matches!(name, "applet" | "marquee" | "object");
        let objects = || {
            let html = self.tree.sink.0.borrow();
            let is_one = |node: &NodeId| {
                let element = html.tree.get(*node).and_then(|node| node.value().as_element());
                element.is_some_and(|element| is_object(element.name()))
            };
            if is_end && is_object(&name) { self.count(is_one) } else { 0 }
        };
        let nodes = || self.tree.sink.0.borrow().tree.values().len();

        let (nodes_before, objects_before, depth_before) = (nodes(), objects(), counts.depth);
        let result = self.tree.process_token(token, 1);
        let nodes = nodes();
        counts.depth = self.count(|_| true);
        let closed = depth_before.saturating_sub(counts.depth);
        if is_end && &*name == "template" {
            counts.marks += closed.saturating_sub(1);
        } else if is_end {
            counts.marks = counts.marks.saturating_sub(objects_before.saturating_sub(objects()));
        } else if is_object(&name) {
            counts.marks += 1;
        }
        // The parser looks through its lists for each element that it opens, opens again or closes. It passes marks
        // faster.
        let depth = depth_before.max(counts.depth) + counts.marks / 4;
        counts.depths += depth * looks * (nodes - nodes_before + closed).max(1);
        if counts.depth < DEEPEST - KEPT {
            counts.left_out.clear();
        }
        if counts.depths > DEPTHS {
            counts.error = Some(ReadError::TooDeep { limit: DEPTHS });
        } else if nodes > NODES {
            counts.error = Some(ReadError::ManyElements { limit: NODES });
        }
        result
    }

    /// Counts the elements that are open, or in the list of those to open again.
    fn count(&self, is_one: impl Fn(&NodeId) -> bool) -> usize {
        let count = Cell::new(0);
        self.tree.trace_handles(&Seen(|node: &NodeId| count.set(count.get() + usize::from(is_one(node)))));
        count.get()
    }

    /// Whether a tag is left out because it is too deep. The tag of a block becomes a line break.
    fn is_left_out(&self, tag: &mut Tag) -> bool {
        let counts = &mut *self.counts.borrow_mut();
        let is_block = super::is_block(&tag.name) || super::has_form(&tag.name);
        if tag.kind == TagKind::EndTag {
            let Some(left_out) = counts.left_out.get_mut(&tag.name).filter(|left_out| **left_out > 0) else {
                return false;
            };
            *left_out -= 1;
        } else {
            let limit = if super::has_form(&tag.name) { DEEPEST } else { DEEPEST - KEPT };
            let is_foreign = self.tree.adjusted_current_node_present_but_not_in_html_namespace();
            if counts.depth < limit || (is_flat(&tag.name) && !is_foreign) {
                return false;
            }
            if is_block {
                *counts.left_out.entry(tag.name.clone()).or_default() += 1;
            }
        }
        if is_block {
            // The parser takes an end tag of this name for a line break too.
            tag.name = "br".into();
        }
        !is_block
    }

    /// Gives the parser the text before something else.
    fn flush(&self) {
        let text = self.text.take();
        if !text.is_empty() {
            let _ = self.give(Token::CharacterTokens(text));
        }
    }

    fn is_over(&self) -> bool {
        self.counts.borrow().error.is_some()
    }
}

impl TokenSink for Bounded {
    type Handle = NodeId;

    fn process_token(&self, mut token: Token, line_number: u64) -> TokenSinkResult<NodeId> {
        if matches!(token, Token::ParseError(_)) {
            // At the start of a text, an error changes whether a line break is left out.
            if self.text.borrow().is_empty() {
                return self.tree.process_token(token, line_number);
            }
            return TokenSinkResult::Continue;
        }
        self.tokens.set(self.tokens.get() + 1);
        if let Token::CharacterTokens(text) = &token {
            self.text.borrow_mut().push_tendril(text);
            return TokenSinkResult::Continue;
        }
        self.flush();
        if let Token::TagToken(tag) = &mut token
            && self.is_left_out(tag)
        {
            return TokenSinkResult::Continue;
        }
        self.give(token)
    }

    fn end(&self) {
        if !self.is_over() {
            self.tree.end();
        }
    }

    fn adjusted_current_node_present_but_not_in_html_namespace(&self) -> bool {
        // Text may open elements again.
        self.flush();
        self.tree.adjusted_current_node_present_but_not_in_html_namespace()
    }
}

/// Whether a tag's name ends before this byte, if it is not `>`.
fn is_gap(byte: u8) -> bool {
    matches!(byte, b'\t' | b'\n' | b'\r' | b'\x0C' | b' ' | b'/')
}

/// Whether an attribute with this name and value is the one.
type IsNeeded = fn(&str, &str) -> bool;

/// Gives the page to the tokenizer, without attributes.
///
/// Only the tokenizer knows whether a `<` is in a script or a comment. It shows it: within a tag it emits no token, and
/// within text it emits what it gets.
struct Feeder<'a> {
    html: &'a str,
    at: usize,
    /// Where the name of the start tag is; empty in an end tag.
    name: Range<usize>,
    pieces: u64,
    queue: BufferQueue,
    tokenizer: Tokenizer<Bounded>,
}

impl Feeder<'_> {
    fn run(&mut self) {
        while self.at < self.html.len() {
            let most = &self.rest()[..self.rest().floor_char_boundary(PIECE)];
            match most.find('<') {
                Some(next) => {
                    self.feed(next + 1);
                    while self.opened() && !self.is_over() {}
                }
                None => {
                    self.feed(most.len());
                }
            }
            if self.is_over() {
                return;
            }
        }
    }

    fn is_over(&self) -> bool {
        let sink = &self.tokenizer.sink;
        if self.pieces + sink.tokens.get() > PIECES {
            sink.counts.borrow_mut().error = Some(ReadError::ManyPieces { limit: PIECES });
        }
        sink.is_over()
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

    fn give(&mut self, text: StrTendril) -> bool {
        self.pieces += u64::from(!text.is_empty());
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
            b'/' => return self.closes(),
            b'!' | b'?' => {
                if !self.feed(1) {
                    self.markup(byte == b'!');
                }
            }
            _ if byte.is_ascii_alphabetic() => {
                let start = self.at;
                if !self.feed(1) {
                    self.name(Some(start));
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

    /// Goes on after the `<` of `</`. Returns the same as [`Self::opened`].
    fn closes(&mut self) -> bool {
        let letters = self.rest().bytes().skip(1).take_while(u8::is_ascii_alphabetic).count();
        self.feed(1 + letters);
        let Some(byte) = self.byte() else { return false };
        let emits = self.character();
        if byte == b'>' {
            return false;
        }
        match (letters > 0, emits) {
            // Text of a script or the like.
            (_, true) => return byte == b'<',
            (false, false) => self.markup(false),
            (true, false) if is_gap(byte) => {
                self.name = 0..0;
                self.attributes(byte);
            }
            (true, false) => self.name(None),
        }
        false
    }

    /// Goes on within a comment, or what is treated as one, which ends with the first `>`. Only a declaration can be a
    /// section of foreign text or a real comment.
    fn markup(&mut self, is_declaration: bool) {
        let is_foreign = self.tokenizer.sink.adjusted_current_node_present_but_not_in_html_namespace();
        if is_declaration && is_foreign && self.rest().starts_with("[CDATA[") {
            let length = self.rest().find("]]>").map_or(self.rest().len(), |end| end + 3);
            self.feed(length);
            return;
        }
        let is_comment = is_declaration && self.rest().starts_with("--");
        let mut from = 0;
        while let Some(end) = self.rest()[from..].find('>').map(|end| from + end) {
            let before = self.rest().as_bytes()[..end].last();
            if is_comment && !matches!(before, Some(b'-' | b'!') | None) {
                from = end + 1;
                continue;
            }
            from = 0;
            if self.feed(end + 1) {
                return;
            }
        }
        self.feed(self.rest().len());
    }

    /// Goes on within the name of a tag; `start` is where that of a start tag begins.
    fn name(&mut self, start: Option<usize>) {
        let length = self.rest().bytes().take_while(|byte| *byte != b'>' && !is_gap(*byte)).count();
        self.feed(length);
        self.name = start.map_or(0..0, |start| start..self.at);
        let Some(byte) = self.byte() else { return };
        self.feed(1);
        if byte != b'>' {
            self.attributes(byte);
        }
    }

    /// The attribute that the parser needs of a tag with this name: it tells whether `font` is one of SVG, whether a
    /// hidden input may be in a table, and whether an annotation is HTML.
    fn needed(&self) -> Option<(&'static str, IsNeeded)> {
        let is = |name: &str| self.html[self.name.clone()].eq_ignore_ascii_case(name);
        if is("font") {
            let is_one = |name: &str, _: &str| ["color", "face", "size"].iter().any(|of| name.eq_ignore_ascii_case(of));
            return Some((" color ", is_one));
        }
        if is("input") {
            let is_one =
                |name: &str, value: &str| name.eq_ignore_ascii_case("type") && value.eq_ignore_ascii_case("hidden");
            return Some((" type=hidden ", is_one));
        }
        let is_one = |name: &str, value: &str| {
            let is_html = ["text/html", "application/xhtml+xml"].iter().any(|of| value.eq_ignore_ascii_case(of));
            name.eq_ignore_ascii_case("encoding") && is_html
        };
        is("annotation-xml").then_some((" encoding=text/html ", is_one))
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
        let mut needed = self.needed();
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
                Some(_) => {}
            }
            let name = at;
            // An `=` at the start belongs to the name.
            at += 1;
            skip(&mut at, &|byte| !is_gap(byte) && !b"=>".contains(&byte));
            let name = name..at;
            skip(&mut at, &is_blank);
            let mut value = 0..0;
            if bytes.get(at) == Some(&b'=') {
                at += 1;
                skip(&mut at, &is_blank);
                let quote = bytes.get(at).filter(|quote| b"\"'".contains(quote));
                at += usize::from(quote.is_some());
                value.start = at;
                match quote {
                    Some(quote) => skip(&mut at, &|byte| byte != *quote),
                    None => skip(&mut at, &|byte| !is_blank(byte) && byte != b'>'),
                }
                value.end = at;
                if quote.is_some() && at == bytes.len() {
                    break;
                }
                at += usize::from(quote.is_some());
            }
            if let Some((attribute, is_one)) = needed
                && is_one(&self.html[name], &self.html[value])
            {
                self.give(attribute.into());
                needed = None;
            }
        }
        self.at = bytes.len();
    }
}

#[cfg(test)]
mod tests;
