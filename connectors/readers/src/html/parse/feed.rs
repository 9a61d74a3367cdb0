//! Feeds a page to the parser, without attributes.

use std::ops::Range;

use html5ever::TokenizerResult;
use html5ever::buffer_queue::BufferQueue;
use html5ever::tendril::StrTendril;
use html5ever::tokenizer::{TokenSink, Tokenizer};

use super::{Bounded, Meta, PIECE, PIECES};
use crate::ReadError;

/// Whether a tag's name ends before this byte, if it is not `>`.
fn is_gap(byte: u8) -> bool {
    matches!(byte, b'\t' | b'\n' | b'\r' | b'\x0C' | b' ' | b'/')
}

/// Maximum number of attributes of a tag that say how many columns it takes, and so on.
const MOST_NUMBERS: usize = 3;

/// Whether an attribute with this name and value is the needed one.
type IsNeeded = fn(&str, &str) -> bool;

/// Feeds the page to the tokenizer, without attributes.
///
/// Only the tokenizer knows whether a `<` is in a script or a comment. Its output shows it: within a tag it emits no
/// token, and within text it emits what it receives.
pub(super) struct Feeder<'a> {
    pub html: &'a str,
    pub at: usize,
    /// Range of the start tag's name; empty in an end tag.
    pub name: Range<usize>,
    pub pieces: u64,
    pub queue: BufferQueue,
    pub tokenizer: Tokenizer<Bounded>,
    /// What the attributes say about the page.
    pub meta: Meta,
}

impl Feeder<'_> {
    pub fn run(&mut self) {
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

    /// Feeds the next `length` bytes to the tokenizer. Returns whether it emits a token.
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

    /// Feeds the next character.
    fn character(&mut self) -> bool {
        let length = self.rest().chars().next().map_or(0, char::len_utf8);
        self.feed(length)
    }

    /// Continues after a `<`. Returns whether another `<` was fed, so that it must be called again.
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

    /// Continues after the `<` of `</`. Returns the same as [`Self::opened`].
    fn closes(&mut self) -> bool {
        let letters = self.rest().bytes().skip(1).take_while(u8::is_ascii_alphabetic).count();
        self.feed(1 + letters);
        let Some(byte) = self.byte() else { return false };
        let emits = self.character();
        if byte == b'>' {
            return false;
        }
        match (letters > 0, emits) {
            // Text of a script or similar.
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

    /// Continues within a comment, or what is treated as one, which ends with the first `>`. Only a declaration can be
    /// a section of foreign text or a real comment.
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

    /// Continues within the name of a tag; `start` is where the name of a start tag begins.
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

    /// A number that the form of a table or a list needs: how many columns or rows a cell takes, and where a list starts.
    fn number(&self, name: &str, value: &str) -> Option<String> {
        let is = |tag: &str| self.html[self.name.clone()].eq_ignore_ascii_case(tag);
        let names: &[&str] = match () {
            () if is("td") || is("th") => &["colspan", "rowspan"],
            () if is("ol") => &["start", "type", "reversed"],
            () if is("li") => &["value"],
            () => &[],
        };
        let found = names.iter().find(|known| name.eq_ignore_ascii_case(known))?;
        let value = value.trim();
        let is_short = value.len() <= 9 && value.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        is_short.then(|| format!(" {found}=\"{value}\" "))
    }

    /// The attribute that the parser needs for a tag with this name: it determines whether `font` is one of SVG,
    /// whether a hidden input may be in a table, and whether an annotation is HTML.
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

    /// Removes the attributes after the name of a tag and this byte, and ends the tag. A tag that does not end is left
    /// out, as the parser does.
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
        let (mut needed, mut numbers) = (self.needed(), 0);
        self.meta.start(&self.html[self.name.clone()]);
        let mut at = self.at;
        loop {
            skip(&mut at, &is_blank);
            match bytes.get(at) {
                None => break,
                Some(b'>') => {
                    self.meta.end();
                    self.at = at;
                    self.feed(1);
                    return;
                }
                Some(b'/') if bytes.get(at + 1) == Some(&b'>') => {
                    self.meta.end();
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
            self.meta.attribute(&self.html[name.clone()], &self.html[value.clone()]);
            if numbers < MOST_NUMBERS
                && let Some(number) = self.number(&self.html[name.clone()], &self.html[value.clone()])
            {
                numbers += 1;
                self.give(number.as_str().into());
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
