//! The tags between which thoughts stand.

/// The characters with which tags begin.
pub(super) const STARTS: [char; 3] = ['<', '[', '◁'];
/// Tags before and after thoughts, in lower case. Those in brackets are in capitals: other ones are words.
pub(super) const TAGS: &[(&str, &str)] = &[
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<thoughts>", "</thoughts>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("<redacted_thinking>", "</redacted_thinking>"),
    ("<thinking>", "</thinking>"),
    ("<reasoning>", "</reasoning>"),
    ("<unused94>", "<unused95>"),
    ("<|start|>assistant<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|start_thinking|>", "<|end_thinking|>"),
    ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
];

/// Tags that say that there are no thoughts.
const EMPTY: &[&str] = &["<think/>", "<think />", "<thinking/>", "<thinking />"];

/// Most blanks at a place within a tag, as in `</think >` and `</ think>`.
const BLANKS: usize = 8;

/// What stands before a tag that a text names, and nowhere else.
const OPENING: [char; 15] = ['„', '“', '«', '‘', '‚', '「', '『', '《', '〈', '【', '（', '(', '/', '=', '\\'];

/// What stands before a tag that a text names, or behind a word.
const EITHER: [char; 8] = ['"', '\'', '`', '”', '»', '’', '*', '_'];

/// Elements of HTML whose text is code, or stands out.
const CODE: [&str; 8] = ["<code>", "<kbd>", "<tt>", "<samp>", "<var>", "<b>", "<strong>", "<em>"];

/// Whether a text ends with what opens a quotation, or with what makes the next word stand out. A sign may also close a
/// quotation: then a word is before it.
pub(super) fn opens_quotation(text: &str) -> bool {
    let text = end(text);
    let Some(last) = text.chars().next_back() else { return false };
    let before = text.trim_end_matches(last).chars().next_back();
    let is_apart =
        before.is_none_or(|before| before.is_whitespace() || "([{|>=".contains(before) || !before.is_ascii());
    OPENING.contains(&last) || EITHER.contains(&last) && is_apart || CODE.iter().any(|tag| text.ends_with(tag))
}

/// Whether a text is only the mark of an item, of a quotation or of a cell at the start of its last line.
pub(super) fn is_item(text: &str) -> bool {
    let (last, line) = (end(text), end(text).rsplit('\n').next().unwrap_or_default());
    if line.len() == last.len() && last.len() < text.len() {
        return false;
    }
    let line = line.trim();
    let is_number = line.trim_end_matches(['.', ')']).bytes().all(|byte| byte.is_ascii_digit());
    !line.is_empty() && (line.chars().all(|sign| "-*+|>•–".contains(sign)) || is_number && line.ends_with(['.', ')']))
}

/// The last bytes of a text.
fn end(text: &str) -> &str {
    &text[text.ceil_char_boundary(text.len().saturating_sub(24))..]
}

/// Longest tag, in bytes.
pub(super) const LONGEST: usize = 48 + 3 * BLANKS;

/// What a text begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Match {
    /// A tag of this length, in bytes.
    Whole(usize),
    /// The whole text is the beginning of a tag. An empty text is.
    Begun,
    /// Something else.
    None,
}

impl Match {
    /// The length of the tag, in bytes.
    pub fn whole(self) -> Option<usize> {
        match self {
            Self::Whole(length) => Some(length),
            Self::Begun | Self::None => None,
        }
    }
}

/// Compares the start of a text with a tag, ignoring the case of ASCII letters, and blanks behind `<` and `/` and before the
/// last character.
pub(super) fn matched(text: &str, tag: &str) -> Match {
    let (text, last) = (text.as_bytes(), tag.len() - 1);
    let may_have_blanks = tag.starts_with('<') && !tag.contains('|');
    let is_exact = tag.starts_with('[');
    let mut at = 0;
    for (n, wanted) in tag.bytes().enumerate() {
        if may_have_blanks && (n == 1 || n == 2 && tag.as_bytes()[1] == b'/' || n == last) {
            let is_blank = |byte: &&u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
            at += text[at..].iter().take(BLANKS).take_while(is_blank).count();
        }
        match text.get(at) {
            None => return Match::Begun,
            Some(byte) if *byte == wanted || !is_exact && byte.eq_ignore_ascii_case(&wanted) => at += 1,
            Some(_) => return Match::None,
        }
    }
    Match::Whole(at)
}

/// Whether a text begins with a tag.
pub(super) fn begins_with(text: &str, tag: &str) -> bool {
    matched(text, tag).whole().is_some()
}

/// The opening tag at the start of a text: its length, and the tag that closes it.
pub(super) enum Opening {
    Tag(usize, &'static str),
    /// A tag may follow.
    Undecided,
    None,
}

/// The opening tag at the start of a text.
pub(super) fn opening(text: &str) -> Opening {
    let mut undecided = false;
    for (open, close) in TAGS {
        match matched(text, open) {
            Match::Whole(length) => return Opening::Tag(length, close),
            Match::Begun => undecided = true,
            Match::None => {}
        }
    }
    if undecided { Opening::Undecided } else { Opening::None }
}

/// A tag without thoughts at the start of a text.
pub(super) fn empty(text: &str) -> Match {
    let found = || EMPTY.iter().map(|tag| matched(text, tag));
    let whole = found().find(|found| found.whole().is_some());
    whole.unwrap_or(if found().any(|found| found == Match::Begun) { Match::Begun } else { Match::None })
}

/// The length of the closing tag at the start of a text, in bytes.
pub(super) fn closing(text: &str) -> Option<usize> {
    TAGS.iter().find_map(|(_, close)| matched(text, close).whole())
}

/// Whether a text is the beginning of a closing tag.
pub(super) fn may_be_closing(text: &str) -> bool {
    !text.is_empty() && TAGS.iter().any(|(_, close)| matched(text, close) == Match::Begun)
}

/// The first occurrence of a tag: its start and its length, in bytes.
pub(super) fn find(text: &str, tag: &str) -> Option<(usize, usize)> {
    let first = tag.chars().next()?;
    text.match_indices(first).find_map(|(at, _)| Some((at, matched(&text[at..], tag).whole()?)))
}

/// Whether a character takes no room, such as a byte order mark.
pub(super) fn is_blank(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{feff}' | '\u{200b}'..='\u{200f}' | '\u{2060}')
}
