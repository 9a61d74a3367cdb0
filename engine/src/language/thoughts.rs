//! Separates the thoughts of a reasoning model from its reply.
//!
//! Servers without a reasoning parser send thoughts within the text: between tags at its start, or
//! without the opening tag if the model's chat template has written it already. Some replies close
//! their thoughts twice, with a draft between the two tags. A tag within a sentence or within code is
//! text.

/// Tags before and after thoughts, in lower case.
const TAGS: &[(&str, &str)] = &[
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<thoughts>", "</thoughts>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|start_thinking|>", "<|end_thinking|>"),
    ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
    ("[think]", "[/think]"),
    ("◁think▷", "◁/think▷"),
];

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
}

/// Separates the thoughts from a whole reply. Thoughts that do not end leave no text.
pub fn split(reply: &str) -> Reply {
    let Reply { mut text, mut thoughts, lacks_opening, closes_again } = split_streamed(reply);
    while closes_again && let Some((at, length)) = second_closing(&text) {
        let rest = text[at + length..].trim_start();
        if rest.is_empty() {
            // The tag follows the text.
            text.truncate(at);
            break;
        }
        thoughts.push_str(&text[..at]);
        text = rest.to_owned();
    }
    Reply { text, thoughts, lacks_opening, closes_again }
}

/// The same as a [`Splitter`] does it, which has sent a draft before it sees that a closing tag follows.
pub fn split_streamed(reply: &str) -> Reply {
    let mut splitter = Splitter::new(usize::MAX);
    let mut text = splitter.push(reply);
    text.push_str(&splitter.end());
    let closes_again = splitter.has_thought && second_closing(&text).is_some();
    Reply { text, thoughts: splitter.thoughts, lacks_opening: splitter.lacks_opening, closes_again }
}

/// Separates thoughts from a text that arrives in pieces.
#[derive(Debug)]
pub struct Splitter {
    state: State,
    /// The part that is not decided.
    held: String,
    /// Number of bytes to hold back while an opening tag may be missing.
    most_held: usize,
    thoughts: String,
    lacks_opening: bool,
    /// Whether thoughts have ended.
    has_thought: bool,
    /// Whether their tags are control tokens.
    is_marked: bool,
    is_in_fence: bool,
    is_at_line_start: bool,
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
}

impl Splitter {
    /// A splitter that holds back up to `most_held` bytes of a text in which a closing tag may follow
    /// without an opening one.
    pub fn new(most_held: usize) -> Self {
        Self {
            state: State::Start,
            held: String::new(),
            most_held,
            thoughts: String::new(),
            lacks_opening: false,
            has_thought: false,
            is_marked: false,
            is_in_fence: false,
            is_at_line_start: true,
        }
    }

    /// Takes a piece. Returns the text that is certain now.
    pub fn push(&mut self, piece: &str) -> String {
        self.held.push_str(piece);
        let mut out = String::new();
        while self.step(&mut out) {}
        out
    }

    /// The rest of the text, when the reply has ended.
    pub fn end(&mut self) -> String {
        let mut out = String::new();
        if self.state == State::Unknown {
            self.state = State::Text;
            while self.step(&mut out) {}
        }
        let rest = std::mem::take(&mut self.held);
        let rest = if self.is_marked { without_marks(&rest) } else { rest };
        match self.state {
            State::Thought(_) => self.thoughts.push_str(&rest),
            State::Start if self.has_thought => out.push_str(rest.trim_start()),
            State::Start | State::Unknown | State::Text => out.push_str(&rest),
        }
        out
    }

    /// One step. Returns false if it needs more text.
    fn step(&mut self, out: &mut String) -> bool {
        match self.state {
            State::Start => self.start(),
            State::Unknown => self.unknown(),
            State::Thought(close) => self.thought(close),
            State::Text => self.text(out),
        }
    }

    fn start(&mut self) -> bool {
        let shown = self.held.trim_start();
        let blank = self.held.len() - shown.len();
        match opening(shown) {
            Opening::Tag(length, close) => {
                self.held.drain(..blank + length);
                self.state = State::Thought(close);
            }
            Opening::Undecided => return false,
            Opening::None => {
                if self.has_thought {
                    self.held.drain(..blank);
                }
                self.state = if self.has_thought { State::Text } else { State::Unknown };
            }
        }
        true
    }

    fn unknown(&mut self) -> bool {
        if let Some((at, length)) = lone_closing(&self.held) {
            self.thoughts.push_str(&self.held[..at]);
            self.is_marked |= self.held[at..].starts_with("<|");
            self.held.drain(..at + length);
            (self.lacks_opening, self.has_thought, self.state) = (true, true, State::Start);
            return true;
        }
        let is_over = self.held.len() > self.most_held || self.most_held == 0;
        if is_over {
            self.state = State::Text;
        }
        is_over
    }

    fn thought(&mut self, close: &'static str) -> bool {
        if let Some(at) = find(&self.held, close) {
            self.thoughts.push_str(&self.held[..at]);
            self.is_marked |= close.starts_with("<|");
            self.held.drain(..at + close.len());
            (self.has_thought, self.state) = (true, State::Start);
            return true;
        }
        let kept = self.held.floor_char_boundary(self.held.len().saturating_sub(close.len()));
        self.thoughts.extend(self.held.drain(..kept));
        false
    }

    fn text(&mut self, out: &mut String) -> bool {
        if self.held.is_empty() {
            return false;
        }
        if self.is_at_line_start && !self.is_in_fence {
            match opening(&self.held) {
                Opening::Tag(length, close) => {
                    self.held.drain(..length);
                    self.state = State::Thought(close);
                    return true;
                }
                Opening::Undecided => return false,
                Opening::None => {}
            }
        }
        if self.is_at_line_start {
            // A fence is recognised when its line is whole enough.
            let shown = self.held.trim_start_matches([' ', '\t']);
            if "```".starts_with(shown) || "~~~".starts_with(shown) {
                return false;
            }
            self.is_in_fence ^= shown.starts_with("```") || shown.starts_with("~~~");
        }
        let end = self.held.find('\n').map(|at| at + 1);
        let shown = match (end, self.is_marked) {
            (None, true) => may_be_mark(&self.held),
            _ => None,
        };
        let line: String = self.held.drain(..end.or(shown).unwrap_or(self.held.len())).collect();
        self.is_at_line_start = end.is_some() || self.is_at_line_start && line.is_empty();
        out.push_str(&if self.is_marked { without_marks(&line) } else { line });
        end.is_some()
    }
}

enum Opening {
    /// A tag of this length, and the tag that closes it.
    Tag(usize, &'static str),
    /// A tag may follow.
    Undecided,
    None,
}

fn opening(text: &str) -> Opening {
    let mut undecided = text.is_empty();
    for (open, close) in TAGS {
        match text.get(..open.len()) {
            Some(head) if head.eq_ignore_ascii_case(open) => return Opening::Tag(open.len(), close),
            Some(_) => {}
            None => {
                undecided |= text.len() < open.len()
                    && open.get(..text.len()).is_some_and(|head| head.eq_ignore_ascii_case(text));
            }
        }
    }
    if undecided { Opening::Undecided } else { Opening::None }
}

/// A text without the marks in it.
fn without_marks(text: &str) -> String {
    let mut text = text.to_owned();
    for mark in MARKS {
        while let Some(at) = find(&text, mark) {
            text.replace_range(at..at + mark.len(), "");
        }
    }
    text
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

/// The first closing tag outside code that no opening one precedes: its start and its length.
fn lone_closing(text: &str) -> Option<(usize, usize)> {
    let closings = TAGS.iter().filter_map(|(open, close)| {
        let mut from = 0;
        while let Some(at) = find(&text[from..], close).map(|at| from + at) {
            if find(&text[..at], open).is_some() {
                return None;
            }
            if !is_in_code(&text[..at]) {
                return Some((at, close.len()));
            }
            from = at + close.len();
        }
        None
    });
    closings.min()
}

/// A closing tag that ends a draft: [`lone_closing`], if it follows the draft at once or ends a line. Any other is part of
/// a sentence.
fn second_closing(text: &str) -> Option<(usize, usize)> {
    lone_closing(text).filter(|(at, length)| {
        let (before, after) = (&text[..*at], &text[at + length..]);
        let is_apart = before.ends_with(char::is_whitespace) && !before.ends_with('\n');
        let ends_line =
            after.trim_start_matches([' ', '\t']).chars().next().is_none_or(|next| next == '\n' || next == '\r');
        !is_apart && !before.ends_with(['"', '\'', '“', '«', '(']) || ends_line
    })
}

/// Whether a text ends within code: in a fenced block, or behind an odd number of backticks in its line.
fn is_in_code(before: &str) -> bool {
    let (lines, line) = before.rsplit_once('\n').unwrap_or(("", before));
    let is_fence = |line: &&str| ["```", "~~~"].iter().any(|fence| line.trim_start().starts_with(fence));
    lines.lines().filter(is_fence).count() % 2 == 1 || line.matches('`').count() % 2 == 1
}

/// The first occurrence of a tag, ignoring the case of ASCII letters.
fn find(text: &str, tag: &str) -> Option<usize> {
    let first = tag.chars().next()?;
    text.match_indices(first)
        .map(|(at, _)| at)
        .find(|&at| text.get(at..at + tag.len()).is_some_and(|head| head.eq_ignore_ascii_case(tag)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(reply: &str) -> (String, String) {
        let Reply { text, thoughts, .. } = split(reply);
        (text, thoughts.trim().to_owned())
    }

    const REPLIES: &[(&str, &str, &str)] = &[
        ("<think>\nhm\n</think>\n\nAt ten [1].", "At ten [1].", "hm"),
        ("  <Thinking>hm</THINKING>At ten.", "At ten.", "hm"),
        ("The user asks.\n</think>\n\nAt ten.", "At ten.", "The user asks."),
        ("<think></think>At ten.", "At ten.", ""),
        ("<think>a</think>\n<think>b</think> At ten.", "At ten.", "ab"),
        ("<think>never ends", "", "never ends"),
        ("<think>only thoughts</think>\n", "", "only thoughts"),
        ("◁think▷嗯◁/think▷十点。", "十点。", "嗯"),
        ("[THINK]hm[/THINK]At ten.", "At ten.", "hm"),
        ("<|channel|>analysis<|message|>hm<|channel|>final<|message|>At ten.", "At ten.", "hm"),
        (
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Ten.<|return|>",
            "Ten.",
            "hm<|end|><|start|>assistant",
        ),
        ("<|channel|>final<|message|>At ten.<|return|>", "At ten.", ""),
        (
            "<|START_THINKING|>hm<|END_THINKING|><|START_TEXT|>At <b>ten</b>.\n<|x|><|END_TEXT|>",
            "At <b>ten</b>.\n<|x|>",
            "hm",
        ),
        ("<thought>hm</thought>At ten.<|end|>", "At ten.<|end|>", "hm"),
        ("One.\n<think>\nhm\n</think>\nTwo.", "One.\nTwo.", "hm"),
        ("<think>a</think>draft</think>At ten.", "At ten.", "adraft"),
        ("<think>a</think>\nA draft.\n</think>\n\nAt ten.", "At ten.", "aA draft."),
        ("a</think>b </think>\nc</think>At ten.", "At ten.", "ab c"),
        ("<think>a</think>At ten.\n</think>\n", "At ten.\n", "a"),
        // What is said about tags is text.
        ("<think>a</think>Close it with </think>. Done.", "Close it with </think>. Done.", "a"),
        ("<think>a</think>Write \"</think>\" and `</think>`.", "Write \"</think>\" and `</think>`.", "a"),
        ("Put it into <think> and </think>. Done.", "Put it into <think> and </think>. Done.", ""),
        ("Put it between `<think>` and `</think>` tags.", "Put it between `<think>` and `</think>` tags.", ""),
        ("```\n<think>\nx\n</think>\n```\nDone.", "```\n<think>\nx\n</think>\n```\nDone.", ""),
        ("<thin", "<thin", ""),
        ("  At ten.", "  At ten.", ""),
        ("", "", ""),
    ];

    #[test]
    fn thoughts_are_no_part_of_a_text() {
        for (reply, text, thoughts) in REPLIES {
            let (got, thought) = parts(reply);
            assert_eq!((got.as_str(), thought.as_str()), (*text, *thoughts), "{reply:?}");
        }
        assert!(split("hm</think>x").lacks_opening && !split("<think>hm</think>x").lacks_opening);
    }

    #[test]
    fn pieces_of_any_size_give_the_same_text() {
        for (reply, ..) in REPLIES {
            let whole = split_streamed(reply);
            for size in 1..8 {
                let mut splitter = Splitter::new(usize::MAX);
                let letters: Vec<char> = reply.chars().collect();
                let mut text: String =
                    letters.chunks(size).map(|piece| splitter.push(&piece.iter().collect::<String>())).collect();
                text.push_str(&splitter.end());
                assert_eq!((text, splitter.thoughts), (whole.text.clone(), whole.thoughts.clone()), "{reply:?} {size}");
            }
        }
    }

    #[test]
    fn text_is_not_held_back_where_no_tag_can_be_missing() {
        let mut splitter = Splitter::new(0);
        assert_eq!(splitter.push("The "), "The ");
        assert_eq!(splitter.push("ferry\n<"), "ferry\n");
        assert_eq!(splitter.push("b> x"), "<b> x");
        let mut splitter = Splitter::new(8);
        assert_eq!(splitter.push("The fer"), "");
        assert_eq!(splitter.push("ry leaves"), "The ferry leaves");
    }
}
