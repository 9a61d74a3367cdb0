//! Citations in an answer: `[1]`, `[1, 3]`, `[2][4]`, `[1-3]`, `[Passage 2]`, `【1】`.
//!
//! A citation is a number of a passage that was given, in brackets, outside code. Whatever else is in brackets is text:
//! an index (`rows[0]`), an interval (`[0, 1]`), years (`[2019, 2020]`), the text of a link (`[12](…)`), a footnote's
//! definition. A number in brackets that could be a citation, and names no passage, is removed.

use std::borrow::Cow;
use std::ops::Range;

use crate::code::Code;

/// Result of checking an answer's citations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cited {
    /// The text without citations of passages that do not exist.
    pub text: String,
    /// Numbers of the cited passages, counted from 1, without duplicates, ascending.
    pub passages: Vec<usize>,
    /// Cited numbers that match no passage, in order of occurrence.
    pub removed: Vec<String>,
}

/// A larger number in brackets is a year or an amount.
const LARGEST: usize = 99;
/// Maximum length of what is in the brackets of a citation, in bytes.
const LONGEST: usize = 40;
/// Words before the number in a citation, in lower case.
const LABELS: &[&str] =
    &["passages", "passage", "documents", "document", "docs", "doc", "sources", "source", "refs", "ref", "^", "#"];
/// Words before an interval, in lower case.
const BEFORE_INTERVALS: &[&str] =
    &["in", "interval", "range", "ranges", "between", "within", "over", "from", "of", "is", "∈", "="];

/// Checks an answer's citations against passages numbered 1 to `passages`.
pub fn check(text: &str, passages: usize) -> Cited {
    scan(text, |brackets| brackets.judge(passages))
}

/// The text without any citations.
pub fn without(text: &str) -> String {
    scan(text, |brackets| match brackets.judge(LARGEST) {
        Verdict::Keep { .. } => Verdict::Remove,
        other => other,
    })
    .text
}

/// A citation in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The bytes of the text that it takes, brackets included.
    pub bytes: Range<usize>,
    /// The numbers of its passages, counted from 1, as they stand there.
    pub passages: Vec<usize>,
}

/// The citations in a text of passages numbered 1 to `passages`, in their order.
pub fn marks(text: &str, passages: usize) -> Vec<Mark> {
    let code = Code::of(text);
    let mut found: Vec<Mark> = Vec::new();
    for (open, mark) in text.match_indices(['[', '【', '［']) {
        if found.last().is_some_and(|last| open < last.bytes.end) || code.holds(open) {
            continue;
        }
        let Some((inner, end)) = inside(text, open + mark.len()) else { continue };
        let brackets = Brackets { before: &text[..open], inner, after: &text[end..], is_wide: mark != "[" };
        if let Verdict::Keep { passages, .. } = brackets.judge(passages) {
            found.push(Mark { bytes: open..end, passages });
        }
    }
    found
}

/// A text to quote: what looks like a mark in it is its own, and is in parentheses, so that it cites no passage.
pub fn quoted(text: &str) -> Cow<'_, str> {
    let marks = marks(text, LARGEST);
    if marks.is_empty() {
        return text.into();
    }
    let (mut out, mut copied) = (String::with_capacity(text.len()), 0);
    for Mark { bytes, .. } in marks {
        let inner = text[bytes.clone()].trim_matches(['[', ']', '【', '】', '［', '］']);
        out.push_str(&text[copied..bytes.start]);
        out.push_str(&format!("({inner})"));
        copied = bytes.end;
    }
    out.push_str(&text[copied..]);
    out.into()
}

/// What is to be done with brackets.
enum Verdict {
    /// It is text.
    Text,
    /// It is a citation of these passages, and is written so.
    Keep { text: String, passages: Vec<usize>, removed: Vec<String> },
    /// It is a citation of nothing.
    Remove,
}

/// Brackets in a text.
struct Brackets<'t> {
    before: &'t str,
    inner: &'t str,
    after: &'t str,
    is_wide: bool,
}

fn scan(text: &str, judge: impl Fn(&Brackets<'_>) -> Verdict) -> Cited {
    let code = Code::of(text);
    let mut cited = Cited { text: String::with_capacity(text.len()), ..Cited::default() };
    let mut copied = 0;
    for (open, mark) in text.match_indices(['[', '【', '［']) {
        if open < copied || code.holds(open) {
            continue;
        }
        let Some((inner, end)) = inside(text, open + mark.len()) else { continue };
        let brackets = Brackets { before: &text[..open], inner, after: &text[end..], is_wide: mark != "[" };
        let verdict = judge(&brackets);
        let (start, end) = match &verdict {
            Verdict::Text => continue,
            // `[[9]]` goes as a whole.
            Verdict::Remove if text[copied..open].ends_with('[') && text[end..].starts_with(']') => (open - 1, end + 1),
            Verdict::Remove | Verdict::Keep { .. } => (open, end),
        };
        cited.text.push_str(&text[copied..start]);
        copied = end;
        match verdict {
            Verdict::Text => {}
            Verdict::Keep { text, passages, removed } => {
                cited.text.push_str(&text);
                cited.passages.extend(passages);
                cited.removed.extend(removed);
            }
            Verdict::Remove => {
                // The space before the removed citation is removed too.
                cited.text.truncate(cited.text.trim_end_matches(' ').len());
                cited.removed.push(inner.trim().to_owned());
            }
        }
    }
    cited.text.push_str(&text[copied..]);
    cited.passages.sort_unstable();
    cited.passages.dedup();
    cited
}

/// What is in the brackets that open before `from`, and the end of the closing one. `None` if it is too long.
fn inside(text: &str, from: usize) -> Option<(&str, usize)> {
    let near = &text[from..text.floor_char_boundary((from + LONGEST + 4).min(text.len()))];
    let (end, close) = near.char_indices().find(|(_, c)| matches!(c, ']' | '】' | '］' | '[' | '【' | '\n'))?;
    matches!(close, ']' | '】' | '］').then(|| (&near[..end], from + end + close.len_utf8()))
}

impl Brackets<'_> {
    fn judge(&self, passages: usize) -> Verdict {
        let Some((numbers, is_plain)) = numbers(self.inner, self.is_wide) else { return Verdict::Text };
        let begins_line = self.before.is_empty() || self.before.ends_with('\n');
        let is_link = self.after.starts_with('(') || self.before.ends_with('!');
        let is_definition = begins_line && self.after.starts_with(':');
        if is_link || is_definition || numbers.iter().any(|number| !(1..=LARGEST).contains(number)) {
            return Verdict::Text;
        }
        let (given, others): (Vec<usize>, Vec<usize>) = numbers.iter().partition(|number| **number <= passages);
        if others.is_empty() {
            let text = match (is_plain, self.is_wide) {
                (true, _) | (_, true) => written(&given),
                (false, false) => format!("[{}]", self.inner),
            };
            return Verdict::Keep { text, passages: given, removed: Vec::new() };
        }
        if !is_plain || self.is_data() {
            return Verdict::Text;
        }
        match given.is_empty() {
            // Several numbers that name nothing are rather an interval than citations.
            true if numbers.len() > 1 => Verdict::Text,
            true => Verdict::Remove,
            false => {
                let removed = others.iter().map(ToString::to_string).collect();
                Verdict::Keep { text: written(&given), passages: given, removed }
            }
        }
    }

    /// Whether the brackets are an index, a list or an interval.
    fn is_data(&self) -> bool {
        let is_attached = self.before.ends_with(|c: char| c.is_alphanumeric() || "_)\"'$".contains(c));
        let before = self.before.trim_end();
        let word = before.split_whitespace().next_back().unwrap_or_default().to_lowercase();
        let is_interval = self.inner.contains(',') && BEFORE_INTERVALS.contains(&word.as_str());
        is_attached || is_interval || before.ends_with(['=', '(', ',', '<', '>', '+', '*'])
    }
}

fn written(numbers: &[usize]) -> String {
    let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    format!("[{}]", numbers.join(", "))
}

/// The numbers in brackets, and whether there is nothing but numbers. A range stands for all of its numbers.
fn numbers(inner: &str, is_wide: bool) -> Option<(Vec<usize>, bool)> {
    let inner = inner.trim();
    // `【4†source】` and `【4:0†source】`.
    let shown = if is_wide { inner.split(['†', ':']).next().unwrap_or(inner) } else { inner };
    let bare = LABELS.iter().find_map(|label| {
        let head = shown.get(..label.len()).filter(|head| head.eq_ignore_ascii_case(label))?;
        Some(&shown[head.len()..])
    });
    let is_plain = bare.is_none();
    let listed = bare.unwrap_or(shown).trim();
    let mut numbers = Vec::new();
    let mut is_ranged = false;
    for part in listed.split([',', ';', ' ']).filter(|part| !part.is_empty()) {
        match part.split_once(['-', '–']) {
            None => numbers.push(number(part)?),
            Some((first, last)) => {
                let (first, last) = (number(first)?, number(last)?);
                if first >= last || last > LARGEST {
                    return None;
                }
                numbers.extend(first..=last);
                is_ranged = true;
            }
        }
    }
    (!numbers.is_empty()).then_some((numbers, is_plain && !is_ranged))
}

/// A number as people write it: without a leading zero. One that is too large for any text counts as the largest.
fn number(text: &str) -> Option<usize> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number && (text == "0" || !text.starts_with('0'))).then(|| text.parse().unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn citations_have_their_places() {
        let text = "Ünits: a [1]. Rows[0] and `x[2]` are none, b [2, 1][9], c 【3】.";
        let found = marks(text, 3);
        let shown: Vec<(&str, &[usize])> =
            found.iter().map(|mark| (&text[mark.bytes.clone()], &*mark.passages)).collect();
        assert_eq!(shown, [("[1]", &[1][..]), ("[2, 1]", &[2, 1]), ("【3】", &[3])]);
        assert_eq!(marks("none", 3), []);
    }

    #[test]
    fn what_is_not_there_is_not_cited() {
        for (text, want, passages, removed) in [
            ("Paris [1].", "Paris [1].", vec![1], vec![]),
            ("Paris [7]. Rome [2][1, 9].", "Paris. Rome [2][1].", vec![1, 2], vec!["7", "9"]),
            ("a[0] = [x] [ ] [1", "a[0] = [x] [ ] [1", vec![], vec![]),
            ("[é] [1;2]", "[é] [1, 2]", vec![1, 2], vec![]),
            ("One [[2]]. Two [[9]].", "One [[2]]. Two.", vec![2], vec!["9"]),
            ("At ten【1】, 十点【2†source】.", "At ten[1], 十点[2].", vec![1, 2], vec![]),
            ("All [1-2], [^1], [Passage 2].", "All [1-2], [^1], [Passage 2].", vec![1, 2], vec![]),
            ("Paris[2].", "Paris[2].", vec![2], vec![]),
        ] {
            let cited = check(text, 2);
            assert_eq!((cited.text.as_str(), cited.passages), (want, passages), "{text}");
            assert_eq!(cited.removed, removed);
        }
        assert_eq!(without("Paris [1], Rome [2]."), "Paris, Rome.");
        assert_eq!(without("Paris[1], [1-3], a[0]."), "Paris,, a[0].");
        // This would be quadratic if each bracket searched for its closing bracket.
        let brackets = "[".repeat(1_000_000);
        assert_eq!(check(&brackets, 2).text, brackets);
    }

    #[test]
    fn other_brackets_are_text() {
        for text in [
            "The score lies in [0, 1], the years [2019, 2020] count.",
            "Values in [1, 5] or within [5, 10].",
            "See [12](http://x) and ![7](y.png).",
            "[7]: http://x\n\nText.",
            "Use `rows[7]` and ``a[1]``.",
            "```python\nprint(rows[2])\nxs = [7]\n```\n",
            "xs = [7], f([8]), rows[12], x[007].",
            "[10, 20, 30] and [100] and [2024] and [07].",
            "[2024-01] and [v2] and [1.5] and [a1].",
            "[99999999999999999999]",
        ] {
            let cited = check(text, 3);
            assert_eq!((cited.text.as_str(), cited.removed.len()), (text, 0));
        }
        assert_eq!(check("```\nrows[2]\n```", 3).passages, Vec::<usize>::new());
    }
}
