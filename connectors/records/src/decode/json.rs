//! JSON as programs write it: a value that JSON cannot hold costs itself, and not its record.

use jaq_json::{Num, Rc, Val};

/// Maximum nesting depth of a value as it is read; what is nested more deeply is left out.
pub(crate) const DEEPEST: usize = 500;
/// Maximum number of digits in a row; a longer whole number becomes a text, and another one is rounded.
pub(crate) const DIGITS: usize = 400;

/// What was odd about records that were read all the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Odd {
    /// Number of records with values that JSON cannot hold, which were replaced.
    pub replaced: u64,
    /// Number of records, or of whole files, with bytes that are not UTF-8; U+FFFD stands for them.
    pub broken: u64,
    /// Number of files in folders and archives that hold no text, or that the pattern `files` does not allow.
    pub unread: u64,
    /// Number of lines before the first message of a text, which belong to none.
    pub before: u64,
    /// Number of messages of texts whose date or time of day cannot be read, and the line of the first of them.
    pub undated: u64,
    /// The line of the first of these.
    pub undated_line: u64,
    /// Number of messages of texts beside whose time a word is that is not known, and which is left out.
    pub worded: u64,
    /// The line of the first of these.
    pub worded_line: u64,
    /// Number of messages of texts whose date could be another one: nothing in the text tells which number is the day.
    pub unsure: u64,
    /// Number of records that have no end, as if their file were cut off; they were given as they are.
    pub unfinished: u64,
}

impl Odd {
    /// Adds these.
    pub fn add(&mut self, other: Self) {
        self.replaced += other.replaced;
        self.broken += other.broken;
        self.unread += other.unread;
        self.before += other.before;
        self.undated += other.undated;
        self.worded += other.worded;
        self.unsure += other.unsure;
        self.unfinished += other.unfinished;
        for (line, of) in [(&mut self.undated_line, other.undated_line), (&mut self.worded_line, other.worded_line)] {
            *line = if *line == 0 { of } else { *line };
        }
    }

    /// What is to be told of dates, and of records without an end.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        let messages = |number: u64| format!("{number} {}", if number == 1 { "message" } else { "messages" });
        let mut told = Vec::new();
        if self.undated > 0 {
            let (messages, line) = (messages(self.undated), self.undated_line);
            told.push(format!(
                "{messages} without a time: the date or the time of day cannot be read, first in line {line}"
            ));
        }
        if self.worded > 0 {
            let (messages, line) = (messages(self.worded), self.worded_line);
            told.push(format!(
                "{messages} with a word beside the time that is not known: the hour is as it is written, first in line {line}"
            ));
        }
        if self.unsure > 0 {
            let messages = messages(self.unsure);
            told.push(format!("{messages} with a date that may be another one: no date in the file tells whether the day or the month comes first"));
        }
        if self.unfinished > 0 {
            let records = if self.unfinished == 1 { "record" } else { "records" };
            told.push(format!(
                "{} {records} without an end, given as it is there: the file ends within a line",
                self.unfinished
            ));
        }
        told
    }
}

/// Reads a value.
///
/// # Errors
///
/// It is no JSON, even without what JSON cannot hold.
pub(crate) fn json(bytes: &[u8], odd: &mut Odd) -> Result<Val, String> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    // A disk that lost its power leaves NUL characters.
    let is_blank = |byte: &u8| *byte == 0 || byte.is_ascii_whitespace();
    let start = bytes.iter().position(|byte| !is_blank(byte)).unwrap_or(bytes.len());
    let end = bytes.iter().rposition(|byte| !is_blank(byte)).map_or(start, |last| last + 1);
    let text = String::from_utf8_lossy(&bytes[start..end]);
    let is_broken = matches!(text, std::borrow::Cow::Owned(_));
    let parse =
        |text: &str| jaq_json::read::parse_single(text.as_bytes()).map_err(|error| format!("not JSON: {error}"));
    let (value, is_replaced) = match is_odd(text.as_bytes()) {
        false => (parse(&text), false),
        true => match turnflow_odd_json::mend(&text) {
            Some((mended, changed)) => (parse(&mended).map(shortened), !changed.is_empty()),
            None => (Err("not JSON: it does not end".to_owned()), false),
        },
    };
    if value.is_ok() {
        odd.add(Odd { replaced: is_replaced.into(), broken: is_broken.into(), ..Odd::default() });
    }
    value
}

/// A value in which numbers with very many digits behind the point are not exact: to calculate with them takes long.
fn shortened(mut value: Val) -> Val {
    fn shorten(value: &mut Val) {
        match value {
            Val::Num(Num::Dec(digits)) if digits.len() > DIGITS => {
                let number = digits.parse().unwrap_or(f64::NAN);
                *value = Val::from(number);
            }
            Val::Arr(values) => Rc::make_mut(values).iter_mut().for_each(shorten),
            Val::Obj(fields) => Rc::make_mut(fields).values_mut().for_each(shorten),
            _ => {}
        }
    }
    shorten(&mut value);
    value
}

/// Whether JSON may have something that the reader refuses, or reads as what no text in JSON is.
fn is_odd(bytes: &[u8]) -> bool {
    let (mut depth, mut digits, mut at) = (0_usize, 0, 0);
    while let Some(byte) = bytes.get(at) {
        digits = if byte.is_ascii_digit() { digits + 1 } else { 0 };
        match byte {
            b'"' => match text(bytes, at + 1) {
                Some(end) => at = end,
                None => return true,
            },
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            // `NaN`, `Infinity`, `1e400`.
            b'N' | b'I' | b'i' | b'E' => return true,
            b'n' if bytes.get(at + 1) == Some(&b'a') => return true,
            b'e' if at > 0 && (bytes[at - 1].is_ascii_digit() || bytes[at - 1] == b'.') => return true,
            _ => {}
        }
        if depth > DEEPEST || digits > DIGITS {
            return true;
        }
        at += 1;
    }
    false
}

/// The place of the quote at the end of a text; `None` if something in it is odd.
fn text(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match bytes.get(at)? {
            b'"' => return Some(at),
            b'\\' if bytes.get(at + 1) == Some(&b'u') => {
                let unit = |at: usize| match bytes.get(at..at + 4) {
                    Some([b'\\', b'u', b'd' | b'D', second]) => Some(second.to_ascii_lowercase()),
                    _ => None,
                };
                match (unit(at), unit(at + 6)) {
                    (Some(b'8'..=b'9' | b'a'..=b'b'), Some(b'c'..=b'f')) => at += 12,
                    (Some(b'8'..=b'9' | b'a'..=b'f'), _) => return None,
                    _ => at += 6,
                }
            }
            b'\\' => at += 2,
            0..0x20 => return None,
            _ => at += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_values_cost_themselves() {
        let deep = format!("{{\"t\": \"x\", \"d\": {}{}}}", "[".repeat(5000), "]".repeat(5000));
        let wide = format!("{{\"t\": \"w\", \"n\": {}}}", "7".repeat(100_000));
        for (text, expected, replaced, broken) in [
            (br#"{"t": "x\ud83d"}"#.as_slice(), "{\"t\":\"x\u{fffd}\"}", 1, 0),
            (br#"{"t": "\ud83d\ude00 \u00e9"}"#, "{\"t\":\"\u{1f600} \u{e9}\"}", 0, 0),
            (br#"{"t": "x", "n": NaN, "i": -Infinity}"#, r#"{"t":"x","n":null,"i":null}"#, 1, 0),
            (br#"{"t": "x", "n": nan}"#, r#"{"t":"x","n":null}"#, 1, 0),
            (br#"{"n": [1e400, 1e2]}"#, r#"{"n":[null,1e2]}"#, 1, 0),
            (br#"{"n": 123456789012345678901234567890}"#, r#"{"n":123456789012345678901234567890}"#, 0, 0),
            (b"\xef\xbb\xbf{\"t\": \"tab\there\"}", "{\"t\":\"tab\\there\"}", 1, 0),
            (b"\0\0{\"t\": \"a\0b\"}\0", "{\"t\":\"a\\u0000b\"}", 1, 0),
            (b"{\"t\": \"gr\xfc\xdfe\"}", "{\"t\":\"gr\u{fffd}\u{fffd}e\"}", 0, 1),
            (deep.as_bytes(), r#"{"t":"x","d":"#, 1, 0),
            (wide.as_bytes(), r#"{"t":"w","n":"7777"#, 0, 0),
        ] {
            let mut odd = Odd::default();
            let value = json(text, &mut odd).unwrap_or_else(|error| panic!("{expected}: {error}")).to_string();
            assert!(value.starts_with(expected), "{value} {expected}");
            assert_eq!(odd, Odd { replaced, broken, ..Odd::default() }, "{expected}");
        }
        for wrong in ["", "{", "{\"a\": \"", "{\"a\": \"\\", "{\"a\": NaN", "nope", "\0", "{\"a\": \"\\ud8\"}"] {
            let mut odd = Odd::default();
            assert!(json(wrong.as_bytes(), &mut odd).is_err(), "{wrong}");
            assert_eq!(odd, Odd::default(), "{wrong}");
        }
    }
}
