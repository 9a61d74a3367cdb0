//! Finds code in a text with Markdown: fenced blocks, and spans between backticks.

use std::collections::HashMap;
use std::ops::Range;

/// The code of a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Code {
    /// Byte ranges of blocks and spans, with their fences and backticks, ascending.
    pub ranges: Vec<Range<usize>>,
    /// The start of a span in the last paragraph that has no end yet: it is code only if more text ends it.
    pub open: Option<usize>,
}

impl Code {
    /// The code of a text. A fenced block without an end goes to the end of the text; backticks without an end are text
    /// (CommonMark 0.31, sections 4.5 and 6.1). Linear in the length of the text.
    pub fn of(text: &str) -> Self {
        let mut code = Self::default();
        let (mut fence, mut start) = (None, 0);
        // The paragraph that is being read.
        let mut paragraph = 0..0;
        for line in text.split_inclusive('\n') {
            let end = start + line.len();
            match (fence, fence_of(line)) {
                (Some((open, mark, length)), Some((other, longer, is_bare)))
                    if is_bare && other == mark && longer >= length =>
                {
                    code.ranges.push(open..end);
                    fence = None;
                }
                (Some(_), _) => {}
                (None, Some((mark, length, _))) => {
                    code.spans(text, &paragraph);
                    fence = Some((start, mark, length));
                }
                (None, None) if line.trim().is_empty() => _ = code.spans(text, &paragraph),
                (None, None) => {
                    if paragraph.end < start {
                        paragraph = start..start;
                    }
                    paragraph.end = end;
                    start = end;
                    continue;
                }
            }
            paragraph = end..end;
            start = end;
        }
        match fence {
            Some((open, ..)) => code.ranges.push(open..text.len()),
            None => code.open = code.spans(text, &paragraph),
        }
        code
    }

    /// Adds the spans of a paragraph. Returns the start of one that has no end.
    fn spans(&mut self, text: &str, paragraph: &Range<usize>) -> Option<usize> {
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for (at, _) in text[paragraph.clone()].match_indices('`') {
            let at = paragraph.start + at;
            match runs.last_mut() {
                Some((start, length)) if *start + *length == at => *length += 1,
                _ => runs.push((at, 1)),
            }
        }
        // The places of the runs of each length, the last one first.
        let mut places: HashMap<usize, Vec<usize>> = HashMap::new();
        for (place, (_, length)) in runs.iter().enumerate().rev() {
            places.entry(*length).or_default().push(place);
        }
        let (mut place, mut open) = (0, None);
        while let Some(&(start, length)) = runs.get(place) {
            let same = places.entry(length).or_default();
            while same.last().is_some_and(|other| *other <= place) {
                same.pop();
            }
            match same.last() {
                Some(&end) => {
                    self.ranges.push(start..runs[end].0 + length);
                    place = end + 1;
                }
                None => {
                    open = open.or(Some(start));
                    place += 1;
                }
            }
        }
        open
    }

    /// Whether a byte of the text is code.
    pub fn holds(&self, at: usize) -> bool {
        let place = self.ranges.partition_point(|range| range.end <= at);
        self.ranges.get(place).is_some_and(|range| range.start <= at)
    }
}

/// The mark of a line that opens or ends a fenced block, its length, and whether nothing else is in the line.
fn fence_of(line: &str) -> Option<(char, usize, bool)> {
    let line = line.trim();
    let mark = line.chars().next().filter(|mark| matches!(mark, '`' | '~'))?;
    let length = line.chars().take_while(|c| *c == mark).count();
    let rest = &line[length..];
    // Backticks behind backticks are a span.
    (length >= 3 && !(mark == '`' && rest.contains('`'))).then_some((mark, length, rest.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_spans_are_found() {
        for (text, want, open) in [
            ("a `b` c", vec!["`b`"], None),
            ("a ``b ` c`` `d", vec!["``b ` c``"], Some("`d")),
            ("x\n```py\na[0]\n```\ny `z`", vec!["```py\na[0]\n```\n", "`z`"], None),
            ("~~~~\n```\n~~~\nx", vec!["~~~~\n```\n~~~\nx"], None),
            ("a `b\n\nc` d", vec![], Some("` d")),
            ("a `b\nc` d", vec!["`b\nc`"], None),
            ("```x``` y", vec!["```x```"], None),
            ("a `b\n```\nc`\n```", vec!["```\nc`\n```"], None),
            ("", vec![], None),
        ] {
            let code = Code::of(text);
            let got: Vec<&str> = code.ranges.iter().map(|range| &text[range.clone()]).collect();
            assert_eq!((got, code.open.map(|at| &text[at..])), (want, open), "{text:?}");
        }
        let code = Code::of("a `b` c");
        assert_eq!([0, 2, 4, 5].map(|at| code.holds(at)), [false, true, true, false]);
    }

    /// These are quadratic if each backtick searches for its end.
    #[test]
    fn hostile_backticks_are_read_once() {
        let growing: String = (1..2000).map(|length| format!("{} ", "`".repeat(length))).collect();
        assert!(Code::of(&growing).ranges.is_empty());
        assert_eq!(Code::of(&"` ".repeat(300_000)).ranges.len(), 150_000);
    }
}
