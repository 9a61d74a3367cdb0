//! Splits a passage into sentences, as byte ranges.

use unicode_segmentation::UnicodeSegmentation;

/// Abbreviations whose full stop does not end a sentence.
const ABBREVIATIONS: &[&str] = &[
    "e.g.", "i.e.", "etc.", "cf.", "vs.", "mr.", "mrs.", "ms.", "dr.", "prof.", "st.", "no.", "fig.", "al.", "inc.",
    "ltd.", "co.", "approx.", "dept.", "u.s.",
];

/// Maximum length, in characters, of the run of spaces, quotation marks and brackets after a full stop. A longer run
/// ends the paragraph.
const TRAIL: usize = 32;

/// Byte ranges of the sentences, without surrounding white space. Boundaries follow Unicode (UAX 29). Paragraphs, list
/// items and headings end a sentence; wrapped lines, common abbreviations and enumerators do not. Linear in the length
/// of the text.
pub fn sentence_ranges(text: &str) -> Vec<(usize, usize)> {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    let mut joined = false;
    let unwrapped = end_trails(unwrap_lines(text));
    for (at, piece) in unwrapped.split_sentence_bound_indices() {
        let referred = ranges.last_mut().map_or(0, |last| {
            let length = if last.1 == at { reference(&unwrapped[..at], piece) } else { 0 };
            last.1 += length;
            length
        });
        let (at, piece) = (at + referred, &piece[referred..]);
        let trimmed = piece.trim();
        if trimmed.is_empty() {
            joined = false;
            continue;
        }
        let start = at + (piece.len() - piece.trim_start().len());
        let end = start + trimmed.len();
        match ranges.last_mut() {
            Some(last) if joined => last.1 = end,
            _ => ranges.push((start, end)),
        }
        joined = !piece.ends_with('\n') && continues(trimmed);
    }
    ranges
}

/// The length of what belongs to the sentence before a piece: the rest of a reference behind its full stop, as in
/// `since 1990.[3][4] It`. UAX 29 ends the sentence within the brackets.
fn reference(before: &str, piece: &str) -> usize {
    let mut is_open = before.ends_with(['[', '【']);
    let mut length = 0;
    for (at, c) in piece.char_indices() {
        match c {
            '[' | '【' if !is_open => is_open = true,
            ']' | '】' if is_open && at > 0 => (is_open, length) = (false, at + c.len_utf8()),
            '0'..='9' | ',' | ' ' | '-' | '–' if is_open => {}
            _ => break,
        }
    }
    length
}

/// Replaces line ends of wrapped lines with spaces. The length in bytes does not change, so ranges of the result are
/// ranges of the text.
fn unwrap_lines(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut lines = text.split('\n').peekable();
    while let Some(line) = lines.next() {
        out.push_str(line);
        if let Some(next) = lines.peek() {
            out.push(if ends_block(line) || begins_block(next) { '\n' } else { ' ' });
        }
    }
    out
}

/// Replaces the part of a run after a full stop that is over the limit with line ends. The length in bytes does not
/// change. At each character of such a run the segmentation searches for the next letter, up to the end of the text.
fn end_trails(text: String) -> String {
    let is_trail = |c: char| !c.is_alphanumeric() && !matches!(c, '.' | '?' | '!' | '\n');
    let mut out: Option<String> = None;
    let (mut copied, mut length, mut after_stop) = (0, 0, false);
    for (at, c) in text.char_indices() {
        match c {
            '.' | '\u{2024}' | '\u{fe52}' | '\u{ff0e}' => (length, after_stop) = (0, true),
            _ if after_stop && is_trail(c) => {
                length += 1;
                if length > TRAIL {
                    let out = out.get_or_insert_with(|| String::with_capacity(text.len()));
                    out.push_str(&text[copied..at]);
                    out.extend(std::iter::repeat_n('\n', c.len_utf8()));
                    copied = at + c.len_utf8();
                }
            }
            _ => after_stop = false,
        }
    }
    match out {
        None => text,
        Some(mut out) => {
            out.push_str(&text[copied..]);
            out
        }
    }
}

fn ends_block(line: &str) -> bool {
    let line = line.trim();
    line.is_empty() || line.starts_with('#') || line.starts_with('|') || line.starts_with("```")
}

fn begins_block(line: &str) -> bool {
    let line = line.trim_start();
    let digits = line.chars().take_while(char::is_ascii_digit).count();
    let is_item = |rest: &str| rest.starts_with(". ") || rest.starts_with(") ");
    ["#", "|", "```", ">", "- ", "* ", "+ ", "• "].iter().any(|mark| line.starts_with(mark))
        || line.is_empty()
        || (digits > 0 && digits <= 3 && is_item(&line[digits..]))
}

fn continues(piece: &str) -> bool {
    let Some(word) = piece.split_whitespace().next_back() else { return false };
    let word = word.trim_start_matches(['(', '"', '[']).to_lowercase();
    let is_number =
        |stem: &str| stem.chars().count() == 1 || (stem.len() <= 3 && stem.bytes().all(|b| b.is_ascii_digit()));
    let is_enumerator = piece.strip_suffix('.').is_some_and(is_number);
    is_enumerator || ABBREVIATIONS.contains(&word.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_end_where_people_end_them() {
        for (text, want) in [
            ("One. Two! Three?", vec!["One.", "Two!", "Three?"]),
            ("See e.g. the manual. Then go.", vec!["See e.g. the manual.", "Then go."]),
            ("1. First step. 2. Second step.", vec!["1. First step.", "2. Second step."]),
            (
                "It fell since 1990.[3] It eats grass.[4][5, 6]",
                vec!["It fell since 1990.[3]", "It eats grass.[4][5, 6]"],
            ),
            ("A.[1][2] B.[see this] C.", vec!["A.[1][2]", "B.[see this] C."]),
            ("A heading\n\nA sentence.", vec!["A heading", "A sentence."]),
            (
                "It is serviced every year in\nOctober. Then\nagain.",
                vec!["It is serviced every year in\nOctober.", "Then\nagain."],
            ),
            ("# Title\nText here\n- one\n- two\n2. three", vec!["# Title", "Text here", "- one", "- two", "2. three"]),
            ("It costs 3.50 euro. Ask Dr. Who.", vec!["It costs 3.50 euro.", "Ask Dr. Who."]),
            ("", vec![]),
            (" \n ", vec![]),
        ] {
            let got: Vec<&str> = sentence_ranges(text).into_iter().map(|(start, end)| &text[start..end]).collect();
            assert_eq!(got, want, "{text:?}");
        }
    }

    /// Each of these is quadratic if every character searches for the next letter.
    #[test]
    fn long_trails_behind_full_stops_are_read_once() {
        for trail in [")", " ", "\"", "」", "] "] {
            let text = format!("One.{}Two. Three", trail.repeat(300_000));
            let ranges = sentence_ranges(&text);
            let last: Vec<&str> = ranges[ranges.len() - 2..].iter().map(|(start, end)| &text[*start..*end]).collect();
            assert!(text[ranges[0].0..ranges[0].1].starts_with("One."));
            assert_eq!(last, ["Two.", "Three"], "{trail:?}");
        }
    }
}
