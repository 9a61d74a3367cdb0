//! Parses a page in bounded time and memory.
//!
//! html5ever compares each attribute with all others of its tag, copies the attributes of formatting elements that it
//! reopens, and searches all open elements for many tags. So a hostile megabyte could take minutes and all memory. The
//! parser needs no attributes, so they are removed before parsing, and tags that are nested too deeply are left out.
//! The limits count the parser's tokens, so the text of a script does not count as elements.

mod feed;
mod meta;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use html5ever::LocalName;
use html5ever::buffer_queue::BufferQueue;
use html5ever::tendril::StrTendril;
use html5ever::tokenizer::{Tag, TagKind, Token, TokenSink, TokenSinkResult, Tokenizer, TokenizerOpts};
use html5ever::tree_builder::{Tracer, TreeBuilder, TreeBuilderOpts, TreeSink};
use scraper::{Html, HtmlTreeSink};

use self::feed::Feeder;
use self::meta::Meta;
use crate::ReadError;

type NodeId = <HtmlTreeSink as TreeSink>::Handle;

/// Maximum number of elements that are open, or are reopened in the next block. Browsers stop at 512; only pages with
/// unclosed elements come near it.
pub(super) const DEEPEST: usize = 256;
/// Number of the deepest levels that are reserved for elements that affect the form of the text.
const KEPT: usize = 64;
/// Maximum number of nodes, including elements that the parser reopens. The largest known pages have about a million.
pub(super) const NODES: usize = 2_000_000;
/// Maximum number of pieces in which a page is passed to the parser, and of the tokens made of them.
pub(super) const PIECES: u64 = 16_000_000;
/// Maximum sum of the depths at all tokens: the parser may search all open elements at each.
const DEPTHS: usize = 100_000_000;
/// Maximum length of a text that is passed to the parser at once, in bytes.
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
pub(super) fn parse(html: &str) -> Result<Html, ReadError> {
    parse_with_meta(html).map(|(page, _)| page)
}

/// Parses a page. Also returns what its tags say about it.
///
/// # Errors
///
/// The page has too many elements, or too many of them are nested deeply.
pub(super) fn parse_with_meta(html: &str) -> Result<(Html, Meta), ReadError> {
    // The tokenizer would discard each byte order mark at the start of a piece.
    let html = html.strip_prefix('\u{FEFF}').unwrap_or(html);
    let options = TokenizerOpts { discard_bom: false, ..TokenizerOpts::default() };
    let tree = TreeBuilder::new(HtmlTreeSink::new(Html::new_document()), TreeBuilderOpts::default());
    let sink = Bounded { tree, tokens: Cell::default(), text: RefCell::default(), counts: RefCell::default() };
    let tokenizer = Tokenizer::new(sink, options);
    let (queue, meta) = (BufferQueue::default(), Meta::default());
    let mut feeder = Feeder { html, at: 0, name: 0..0, pieces: 0, queue, tokenizer, meta };
    feeder.run();
    let Feeder { tokenizer, meta, .. } = feeder;
    tokenizer.end();
    let Bounded { tree, counts, .. } = tokenizer.sink;
    counts.into_inner().error.map_or_else(|| Ok((tree.sink.finish(), meta)), Err)
}

/// Counts the effects of the tokens.
struct Bounded {
    tree: TreeBuilder<NodeId, HtmlTreeSink>,
    /// Number of tokens so far.
    tokens: Cell<u64>,
    /// Text that is not yet passed to the parser. The parser searches the open elements for each piece of text, and the
    /// tokenizer makes a piece of each `&`.
    text: RefCell<StrTendril>,
    counts: RefCell<Counts>,
}

#[derive(Default)]
struct Counts {
    /// Number of elements that are open or in the list of elements to reopen.
    depth: usize,
    depths: usize,
    /// Number of marks in the list of elements to reopen whose element may be closed, including those of open objects.
    /// The parser sets a mark where a cell, an object or a template begins, and removes only one where several of them
    /// end at once. It searches the marks too.
    marks: usize,
    /// Number of blocks by name whose start tag was left out, and whose end tag must be left out.
    left_out: HashMap<LocalName, usize>,
    error: Option<ReadError>,
}

/// Visits the elements that are open, or in the list of elements to reopen.
struct Seen<F>(F);

impl<F: Fn(&NodeId)> Tracer for Seen<F> {
    type Handle = NodeId;

    fn trace_handle(&self, node: &NodeId) {
        (self.0)(node);
    }
}

impl Bounded {
    /// Passes a token to the parser, and counts its effects.
    fn give(&self, token: Token) -> TokenSinkResult<NodeId> {
        let counts = &mut *self.counts.borrow_mut();
        if counts.error.is_some() {
            return TokenSinkResult::Continue;
        }
        let (is_end, name) = match &token {
            Token::TagToken(tag) => (tag.kind == TagKind::EndTag, tag.name.clone()),
            _ => (false, LocalName::default()),
        };
        // The parser searches the open elements this often.
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
        // The parser searches its lists for each element that it opens, reopens or closes. It skips marks faster.
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

    /// Counts the elements that are open, or in the list of elements to reopen.
    fn count(&self, is_one: impl Fn(&NodeId) -> bool) -> usize {
        let count = Cell::new(0);
        self.tree.trace_handles(&Seen(|node: &NodeId| count.set(count.get() + usize::from(is_one(node)))));
        count.get()
    }

    /// Whether a tag is left out because it is too deep. The tag of a block becomes a line break.
    fn is_left_out(&self, tag: &mut Tag) -> bool {
        let counts = &mut *self.counts.borrow_mut();
        let is_block = super::writer::is_block(&tag.name) || super::writer::has_form(&tag.name);
        if tag.kind == TagKind::EndTag {
            let Some(left_out) = counts.left_out.get_mut(&tag.name).filter(|left_out| **left_out > 0) else {
                return false;
            };
            *left_out -= 1;
        } else {
            let limit = if super::writer::has_form(&tag.name) { DEEPEST } else { DEEPEST - KEPT };
            let is_foreign = self.tree.adjusted_current_node_present_but_not_in_html_namespace();
            if counts.depth < limit || (is_flat(&tag.name) && !is_foreign) {
                return false;
            }
            if is_block {
                *counts.left_out.entry(tag.name.clone()).or_default() += 1;
            }
        }
        if is_block {
            // The parser also treats an end tag of this name as a line break.
            tag.name = "br".into();
        }
        !is_block
    }

    /// Passes the pending text to the parser before something else.
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
        // Text may reopen elements.
        self.flush();
        self.tree.adjusted_current_node_present_but_not_in_html_namespace()
    }
}

#[cfg(test)]
mod tests;
