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
use self::tags::{LONGEST, Match, Opening, STARTS, TAGS};
use self::tags::{begins_with, closing, empty, find, is_blank, matched, may_be_closing, opening, opens_quotation};
use self::within::{Found, Search, Stop, begins_sentence, begins_thoughts, is_indented, is_named, stop};

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

/// What some models put around the text that follows their thoughts.
const ANSWER: (&str, &str) = ("<answer>", "</answer>");

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
    /// Bytes of thoughts before those that are read, and their tag.
    opened: usize,
    tag: String,
    /// Marks that are no part of the text.
    marks: &'static [&'static str],
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
            opened: 0,
            tag: String::new(),
            marks: &[],
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
        while self.step(&mut out) {}
        for _ in 0..MOST_MIXED {
            let State::Thought(close) = self.state else { break };
            self.closed_by_another(close);
            while self.step(&mut out) {}
        }
        let rest = std::mem::take(&mut self.held).split_off(std::mem::take(&mut self.done));
        let rest = if self.marks.is_empty() { rest } else { without_marks(&rest, self.marks) };
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

    /// Thoughts that the tag of another kind closes, such as `<thinking>` and `</think>`.
    fn closed_by_another(&mut self, close: &str) {
        let held = self.held.split_off(std::mem::take(&mut self.done));
        self.thoughts.push_str(&held);
        self.held.clear();
        let mut scan = Scan::default();
        let inner = &self.thoughts[self.opened..];
        if close.starts_with("</")
            && let Some((at, length)) = scan.next(inner, true)
        {
            self.held.push_str(&inner[at + length..]);
            self.thoughts.truncate(self.opened + at);
            self.state = State::Start;
            self.thoughts_end();
        } else if self.sent > 0 && begins_sentence(inner) {
            // A line begins with the tag that it is about.
            self.held = [self.tag.as_str(), inner].concat();
            self.thoughts.truncate(self.opened);
            (self.state, self.named) = (State::Text, self.held.len());
        }
    }

    /// Begins thoughts with the next bytes, which are a tag.
    fn open(&mut self, length: usize, close: &'static str) {
        self.held[self.done..self.done + length].trim_start().clone_into(&mut self.tag);
        self.done += length;
        (self.state, self.opened) = (State::Thought(close), self.thoughts.len());
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
        let (answer, empty) = (matched(shown, ANSWER.0), empty(shown));
        match (self.has_thought, answer, empty) {
            (true, Match::Whole(length), _) => {
                self.done += blank + length;
                self.marks = &[ANSWER.1];
                return true;
            }
            (_, _, Match::Whole(length)) => {
                self.done += blank + length;
                self.thoughts_end();
                return true;
            }
            _ => {}
        }
        let may_close = self.has_thought && (may_be_closing(shown) || !shown.is_empty() && answer == Match::Begun)
            || !shown.is_empty() && empty == Match::Begun;
        let opened = match unmarked(shown) {
            Opening::None => opening(shown),
            unmarked => unmarked,
        };
        match opened {
            Opening::Tag(length, close) => {
                self.open(blank + length, close);
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
            let is_marked = closed[at..].starts_with("<|");
            self.marks = if is_marked { MARKS } else { self.marks };
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
        let mut from = 0;
        while let Some((at, length)) = find(&rest[from..], close).map(|(at, length)| (from + at, length)) {
            let after = &rest[at + length..];
            let before = rest[..at].chars().next_back().or_else(|| self.thoughts[self.opened..].chars().next_back());
            if before.is_some_and(|before| QUOTES.contains(&before)) && after.is_empty() && !self.has_ended {
                // The quotation may end behind the tag.
                return false;
            }
            let next = after.chars().next();
            if before.is_some_and(|before| QUOTES.contains(&before)) && before == next {
                from = at + length;
                continue;
            }
            self.thoughts.push_str(&rest[..at]);
            self.mark(close);
            self.done += at + length;
            self.state = State::Start;
            self.thoughts_end();
            return true;
        }
        let kept = rest.floor_char_boundary(rest.len().saturating_sub(LONGEST + QUOTE));
        self.thoughts.push_str(&rest[..kept]);
        self.done += kept;
        false
    }

    fn text(&mut self, out: &mut String) -> bool {
        let rest = &self.held[self.done..];
        if rest.is_empty() {
            return false;
        }
        let shown = rest.trim_start_matches([' ', '\t']);
        let is_code = self.code.is_in_block() || is_indented(&rest[..rest.len() - shown.len()]);
        if self.is_at_line_start && !is_code && self.named == 0 {
            match opening(shown) {
                Opening::Tag(length, close) => {
                    let length = rest.len() - shown.len() + length;
                    self.open(length, close);
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
        let mark = if end.is_none() { may_be_mark(rest, self.marks) } else { None };
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
        match self.marks {
            [] => out.push_str(line),
            marks => out.push_str(&without_marks(line, marks)),
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
        if self.unclosed > MOST_UNCLOSED || opens_quotation(&self.tail) {
            (self.state, self.named) = (State::Text, length);
            return true;
        }
        match self.search.next(inner, close) {
            Found::Close(at, closing) => {
                let after = &inner[at + closing..];
                let shown = after.trim_start_matches([' ', '\t']);
                if shown.is_empty() && after.len() <= MOST_BLANK && !self.has_ended {
                    return false;
                }
                if !is_named(&self.tail, close, &inner[..at], after) {
                    self.thoughts.push_str(&inner[..at]);
                    let blanks = match self.tail.ends_with(char::is_whitespace) {
                        true => (after.len() - shown.len()).min(MOST_BLANK),
                        false => 0,
                    };
                    self.done += length + at + closing + blanks;
                    self.mark(close);
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

    /// Control tokens come with others.
    fn mark(&mut self, close: &str) {
        if close.starts_with("<|") {
            self.marks = MARKS;
        }
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

/// Signs around a closing tag that thoughts name.
const QUOTES: [char; 3] = ['`', '"', '\''];
/// Longest of these, in bytes.
const QUOTE: usize = 1;

/// Most thoughts in a reply that the tag of another kind closes.
const MOST_MIXED: usize = 4;

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
    let is_quoted = opens_quotation(&before) || before.ends_with([' ', '\t']);
    let is_pair = TAGS.iter().any(|(open, _)| {
        let from = before.len().saturating_sub(open.len());
        before.is_char_boundary(from) && begins_with(&before[from..], open)
    });
    (!is_quoted && !is_pair).then_some(at)
}

/// A text without the marks in it.
fn without_marks(text: &str, marks: &[&str]) -> String {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find('<') {
        let (before, tail) = rest.split_at(at);
        out.push_str(before);
        let mark = marks.iter().find(|mark| begins_with(tail, mark)).map(|mark| mark.len());
        if mark.is_none() {
            out.push('<');
        }
        rest = &tail[mark.unwrap_or(1)..];
    }
    out.push_str(rest);
    out
}

/// Where a mark may begin at the end of a text.
fn may_be_mark(text: &str, marks: &[&str]) -> Option<usize> {
    let at = text.rfind('<')?;
    let rest = &text[at..];
    let is_begun = |mark: &&str| {
        mark.len() > rest.len() && mark.get(..rest.len()).is_some_and(|head| head.eq_ignore_ascii_case(rest))
    };
    marks.iter().any(is_begun).then_some(at)
}
