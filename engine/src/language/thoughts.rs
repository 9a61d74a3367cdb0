//! Separates the thoughts of a reasoning model from its reply.
//!
//! Servers without a reasoning parser send thoughts within the text: between tags at its start, or
//! without the opening tag if the model's chat template has written it already. Some replies close
//! their thoughts twice, with a draft between the two tags. Some models think again within a line. A tag that a sentence
//! names, or within code, is text.

mod code;
mod scan;
mod tags;
#[cfg(test)]
mod tests;
mod within;

use self::code::CodeState;
use self::scan::{Scan, second_closing};
use self::tags::{LONGEST, Opening, STARTS, TAGS, begins_with, closing, find, is_blank, may_be_closing, opening};
use self::within::{Found, Search, Stop, begins_thoughts, is_named, stop};

/// What models that mark their thoughts with control tokens put around the text too, in lower case.
const MARKS: &[&str] = &[
    "<|start_text|>",
    "<|end_text|>",
    "<|start_response|>",
    "<|end_response|>",
    "<|begin_of_solution|>",
    "<|end_of_solution|>",
    "<|end|>",
    "<|return|>",
];

/// A reply in two parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// What the model says.
    pub text: String,
    /// What it thought before.
    pub thoughts: String,
    /// Whether the thoughts have no opening tag.
    pub lacks_opening: bool,
    /// Whether the thoughts have further closing tags.
    pub closes_again: bool,
    /// Bytes of the text before the first thoughts.
    before: usize,
}

/// Separates the thoughts from a whole reply. Thoughts that do not end leave no text.
pub fn split(reply: &str) -> Reply {
    let mut reply = split_streamed(reply);
    let (mut from, mut until) = (reply.before, reply.text.len());
    while reply.closes_again
        && let Some((at, length)) = second_closing(&reply.text[from..])
    {
        let rest = reply.text[from + at + length..].trim_start();
        if rest.is_empty() {
            // The tag follows the text.
            until = from + at;
            break;
        }
        reply.thoughts.push_str(&reply.text[from..from + at]);
        from = reply.text.len() - rest.len();
    }
    reply.text = [&reply.text[..reply.before], &reply.text[from..until]].concat();
    reply
}

/// The same as a [`Splitter`] does it, which has sent a draft before it sees that a closing tag follows.
pub fn split_streamed(reply: &str) -> Reply {
    let mut splitter = Splitter::new(usize::MAX);
    let mut text = splitter.push(reply);
    text.push_str(&splitter.end());
    let before = splitter.before.min(text.len());
    let closes_again = splitter.has_thought && second_closing(&text[before..]).is_some();
    Reply { text, thoughts: splitter.thoughts, lacks_opening: splitter.lacks_opening, closes_again, before }
}

/// Separates thoughts from a text that arrives in pieces.
#[derive(Debug)]
pub struct Splitter {
    state: State,
    /// The part that is not decided, from `done` on.
    held: String,
    /// Bytes of `held` that are decided, until the next piece.
    done: usize,
    /// Bytes of white space at its start, before any text.
    blank: usize,
    /// Where a closing tag without an opening one was looked for.
    scan: Scan,
    /// Number of bytes to hold back while an opening tag may be missing.
    most_held: usize,
    thoughts: String,
    lacks_opening: bool,
    /// Whether thoughts have ended.
    has_thought: bool,
    /// Whether their tags are control tokens.
    is_marked: bool,
    /// Where the text is in code.
    code: CodeState,
    is_at_line_start: bool,
    /// Number of tags within lines that nothing closes.
    unclosed: usize,
    /// Bytes of text so far, and those of them before the first thoughts.
    sent: usize,
    before: usize,
    /// Bytes of `held` from `done` on in which an opening tag is text.
    named: usize,
    /// Where the end of thoughts within a line was looked for.
    search: Search,
    /// Whether the reply has ended.
    has_ended: bool,
    /// The last few characters of the text so far.
    tail: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Only white space and thoughts so far.
    Start,
    /// Text, or thoughts whose opening tag is missing.
    Unknown,
    /// Thoughts up to this closing tag.
    Thought(&'static str),
    /// Text.
    Text,
    /// An opening tag of this length within a line, and the tag that closes it: thoughts, or a tag that the text names.
    Within(usize, &'static str),
}

impl Splitter {
    /// A splitter that holds back up to `most_held` bytes of a text in which a closing tag may follow
    /// without an opening one.
    pub fn new(most_held: usize) -> Self {
        Self {
            state: State::Start,
            held: String::new(),
            done: 0,
            blank: 0,
            scan: Scan::default(),
            most_held,
            thoughts: String::new(),
            lacks_opening: false,
            has_thought: false,
            is_marked: false,
            code: CodeState::default(),
            is_at_line_start: true,
            unclosed: 0,
            sent: 0,
            before: 0,
            named: 0,
            search: Search::default(),
            has_ended: false,
            tail: String::new(),
        }
    }

    /// Takes a piece. Returns the text that is certain now.
    pub fn push(&mut self, piece: &str) -> String {
        self.held.push_str(piece);
        let mut out = String::new();
        while self.step(&mut out) {}
        self.held.drain(..std::mem::take(&mut self.done));
        out
    }

    /// The rest of the text, when the reply has ended.
    pub fn end(&mut self) -> String {
        let mut out = String::new();
        self.has_ended = true;
        if matches!(self.state, State::Unknown | State::Text | State::Within(..)) {
            while self.step(&mut out) {}
        }
        let rest = std::mem::take(&mut self.held).split_off(std::mem::take(&mut self.done));
        let rest = if self.is_marked { without_marks(&rest) } else { rest };
        if self.state == State::Text
            && self.has_thought
            && !self.code.is_in_block()
            && let Some(at) = last_closing(&rest, rest.len(), &self.tail)
            && closing(&rest[at..]).is_some()
        {
            out.push_str(&rest[..at]);
            return out;
        }
        match self.state {
            State::Thought(_) => self.thoughts.push_str(&rest),
            State::Start if self.has_thought => out.push_str(rest.trim_start()),
            State::Start | State::Unknown | State::Text | State::Within(..) => out.push_str(&rest),
        }
        out
    }

    /// What is not decided.
    fn rest(&self) -> &str {
        &self.held[self.done..]
    }

    /// One step. Returns false if it needs more text.
    fn step(&mut self, out: &mut String) -> bool {
        match self.state {
            State::Start => self.start(),
            State::Unknown => self.unknown(),
            State::Thought(close) => self.thought(close),
            State::Text => self.text(out),
            State::Within(length, close) => self.within(length, close),
        }
    }

    fn start(&mut self) -> bool {
        let known = std::mem::take(&mut self.blank);
        let shown = self.held[self.done + known..].trim_start_matches(is_blank);
        let blank = self.held.len() - self.done - shown.len();
        // Thoughts that are closed twice, with nothing between the tags.
        if self.has_thought
            && let Some(length) = closing(shown)
        {
            self.done += blank + length;
            return true;
        }
        let may_close = self.has_thought && may_be_closing(shown);
        let opened = match unmarked(shown) {
            Opening::None => opening(shown),
            unmarked => unmarked,
        };
        match opened {
            Opening::Tag(length, close) => {
                self.done += blank + length;
                self.state = State::Thought(close);
            }
            Opening::None if !may_close => {
                if self.has_thought {
                    self.done += blank;
                }
                self.state = if self.has_thought { State::Text } else { State::Unknown };
            }
            Opening::Undecided | Opening::None => {
                self.blank = blank;
                return false;
            }
        }
        true
    }

    fn unknown(&mut self) -> bool {
        if let Some((at, length)) = self.scan.next(&self.held[self.done..], self.has_ended) {
            let closed = &self.held[self.done..];
            self.thoughts.push_str(&closed[..at]);
            self.is_marked |= closed[at..].starts_with("<|");
            self.done += at + length;
            (self.lacks_opening, self.state) = (true, State::Start);
            self.thoughts_end();
            return true;
        }
        let is_over = self.rest().len() > self.most_held || self.most_held == 0 || self.has_ended;
        if is_over {
            self.state = State::Text;
        }
        is_over
    }

    fn thought(&mut self, close: &'static str) -> bool {
        let rest = &self.held[self.done..];
        if let Some((at, length)) = find(rest, close) {
            self.thoughts.push_str(&rest[..at]);
            self.is_marked |= close.starts_with("<|");
            self.done += at + length;
            self.state = State::Start;
            self.thoughts_end();
            return true;
        }
        let kept = rest.floor_char_boundary(rest.len().saturating_sub(LONGEST));
        self.thoughts.push_str(&rest[..kept]);
        self.done += kept;
        false
    }

    fn text(&mut self, out: &mut String) -> bool {
        let rest = &self.held[self.done..];
        if rest.is_empty() {
            return false;
        }
        if self.is_at_line_start && !self.code.is_in_block() {
            let shown = rest.trim_start_matches([' ', '\t']);
            match opening(shown) {
                Opening::Tag(length, close) => {
                    self.done += rest.len() - shown.len() + length;
                    self.state = State::Thought(close);
                    return true;
                }
                Opening::Undecided if !self.has_ended => return false,
                Opening::Undecided | Opening::None => {}
            }
        }
        if self.is_at_line_start {
            if self.code.needs_more(rest) && !self.has_ended {
                return false;
            }
            self.code.begin_line(rest);
        }
        let stop = match self.code.is_in_block() {
            true => rest.find('\n').map_or(Stop::None, |at| Stop::Line(at + 1)),
            false => stop(rest, self.named, self.code.clone()),
        };
        let (end, tag) = match stop {
            Stop::Line(at) => (Some(at), None),
            Stop::Tag(at, length, close) => (None, Some((at, length, close))),
            Stop::Undecided(at) if !self.has_ended => (None, Some((at, 0, ""))),
            Stop::Undecided(_) | Stop::None => (None, None),
        };
        let mark = match (end, self.is_marked) {
            (None, true) => may_be_mark(rest),
            _ => None,
        };
        // A closing tag behind the text is no part of it.
        let is_open = self.has_thought && !self.code.is_in_block() && tag.is_none();
        let last = if is_open { last_closing(rest, end.unwrap_or(rest.len()), &self.tail) } else { None };
        let cut = last.or(end).into_iter().chain(mark).chain(tag.map(|(at, ..)| at)).min();
        let line = &rest[..cut.unwrap_or(rest.len())];
        self.is_at_line_start = line.ends_with('\n') || self.is_at_line_start && line.is_empty();
        self.code.read(line);
        keep_tail(&mut self.tail, line);
        self.done += line.len();
        self.named = self.named.saturating_sub(line.len());
        let before = out.len();
        match self.is_marked {
            true => out.push_str(&without_marks(line)),
            false => out.push_str(line),
        }
        self.sent += out.len() - before;
        match tag {
            Some((at, length, close)) if at == line.len() && length > 0 => {
                (self.state, self.search) = (State::Within(length, close), Search::default());
                true
            }
            _ => end.is_some_and(|end| end == line.len()),
        }
    }

    /// An opening tag within a line.
    fn within(&mut self, length: usize, close: &'static str) -> bool {
        let inner = &self.held[self.done + length..];
        if self.unclosed > MOST_UNCLOSED {
            (self.state, self.named) = (State::Text, length);
            return true;
        }
        match self.search.next(inner, close) {
            Found::Close(at, closing) => {
                let after = &inner[at + closing..];
                if after.is_empty() && !self.has_ended {
                    return false;
                }
                if !is_named(&self.tail, &inner[..at], after) {
                    self.thoughts.push_str(&inner[..at]);
                    self.is_marked |= close.starts_with("<|");
                    let blanks = match self.tail.ends_with(char::is_whitespace) {
                        true => after.len() - after.trim_start_matches([' ', '\t']).len(),
                        false => 0,
                    };
                    self.done += length + at + closing + blanks;
                    self.state = State::Text;
                    self.thoughts_end();
                    return true;
                }
            }
            Found::More if !self.has_ended => return false,
            Found::More if begins_thoughts(&self.tail, close, inner) => {
                self.thoughts.push_str(inner);
                (self.done, self.state) = (self.held.len(), State::Text);
                return false;
            }
            Found::More => self.unclosed += 1,
        }
        // The text goes on behind the tag that it names.
        (self.state, self.named) = (State::Text, length);
        true
    }

    fn thoughts_end(&mut self) {
        if !self.has_thought {
            (self.has_thought, self.before) = (true, self.sent);
        }
    }
}

/// Thoughts of a model whose server has removed the control tokens, and not the words between them: `analysis`, the
/// thoughts, `assistantfinal`, the text.
fn unmarked(text: &str) -> Opening {
    const FIRST: &str = "analysis";
    match text.strip_prefix(FIRST).map(|rest| rest.chars().next()) {
        Some(Some(next)) if next.is_uppercase() => Opening::Tag(FIRST.len(), "assistantfinal"),
        Some(None) => Opening::Undecided,
        None if !text.is_empty() && FIRST.starts_with(text) => Opening::Undecided,
        _ => Opening::None,
    }
}

/// After so many tags that nothing closes, further ones are text.
const MOST_UNCLOSED: usize = 64;

/// Most white space behind a closing tag that waits for more text.
const MOST_BLANK: usize = 64;

/// Most bytes of the text before a tag that tell what the tag is.
const TAIL: usize = 32;

fn keep_tail(tail: &mut String, line: &str) {
    let from = line.ceil_char_boundary(line.len().saturating_sub(TAIL));
    tail.push_str(&line[from..]);
    let gone = tail.ceil_char_boundary(tail.len().saturating_sub(TAIL));
    tail.drain(..gone);
}

/// Where the closing tag begins that ends the first line of a text, perhaps not whole yet, if nothing follows the line and
/// the tag is no part of a sentence. `before` is the end of what comes before the text.
fn last_closing(text: &str, line: usize, before: &str) -> Option<usize> {
    let (line, after) = text.split_at(line);
    let shown = line.trim_end();
    let at = shown.rfind(STARTS)?;
    let tag = &shown[at..];
    let is_whole = closing(tag) == Some(tag.len());
    let is_last = || text.len() - shown.len() <= MOST_BLANK && after.trim_start().is_empty();
    let is_at_the_end = is_whole && is_last() || shown.len() == text.len() && may_be_closing(tag);
    if !is_at_the_end {
        return None;
    }
    let mut before = before.to_owned();
    keep_tail(&mut before, &shown[..at]);
    let is_quoted = before.ends_with(['"', '\'', '`', '“', '«', '(', ' ', '\t']);
    let is_pair = TAGS.iter().any(|(open, _)| {
        let from = before.len().saturating_sub(open.len());
        before.is_char_boundary(from) && begins_with(&before[from..], open)
    });
    (!is_quoted && !is_pair).then_some(at)
}

/// A text without the marks in it.
fn without_marks(text: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find('<') {
        let (before, tail) = rest.split_at(at);
        out.push_str(before);
        let mark = MARKS.iter().find(|mark| begins_with(tail, mark)).map(|mark| mark.len());
        if mark.is_none() {
            out.push('<');
        }
        rest = &tail[mark.unwrap_or(1)..];
    }
    out.push_str(rest);
    out
}

/// Where a mark may begin at the end of a text.
fn may_be_mark(text: &str) -> Option<usize> {
    let at = text.rfind('<')?;
    let rest = &text[at..];
    let is_begun = |mark: &&str| {
        mark.len() > rest.len() && mark.get(..rest.len()).is_some_and(|head| head.eq_ignore_ascii_case(rest))
    };
    MARKS.iter().any(is_begun).then_some(at)
}
