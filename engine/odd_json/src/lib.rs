//! Reads JSON with values that its grammar or its readers do not allow, as programs write it nevertheless: a text that was
//! cut within an emoji (a lone surrogate), `NaN`, `1e400`, a control character in a text, a list within a thousand lists.
//! Such a value costs itself, and not the record. Whole numbers of more than 64 bits are read as texts, which are exact.

use std::borrow::Cow;

use serde::de::DeserializeOwned;

/// Maximum depth of lists and objects; what is nested more deeply is left out. The reader's own limit is 128.
const DEEPEST: usize = 100;

/// Reads JSON. What cannot be held is replaced: a number or a nested value by null, a part of a text by U+FFFD. Also
/// returns the names of the fields that have changed. A whole number of more than 64 bits is a text, and no change.
///
/// ```
/// use serde_json::{Map, Value};
/// use turnflow_odd_json as odd_json;
///
/// let line = r#"{"text": "The ferry \ud83d", "price": 1e400, "weight": NaN, "lang": "en"}"#;
/// let (row, changed) = odd_json::read::<Map<String, Value>>(line).unwrap();
/// assert_eq!((&row["text"], &row["price"], &row["lang"]), (&"The ferry \u{fffd}".into(), &Value::Null, &"en".into()));
/// assert_eq!(changed, ["text", "price", "weight"]);
/// assert!(odd_json::read::<Map<String, Value>>("{\"text\": }").is_err());
/// ```
///
/// # Errors
///
/// The text is not JSON otherwise, or not a `T`.
pub fn read<T: DeserializeOwned>(text: &str) -> Result<(T, Vec<String>), serde_json::Error> {
    let error = match exact(text) {
        Ok(value) => return Ok((value, Vec::new())),
        Err(error) => error,
    };
    match mended(text, true) {
        Some(mended) if !mended.changed.is_empty() => Ok((serde_json::from_str(&mended.out)?, mended.changed)),
        _ => Err(error),
    }
}

/// The same JSON without what JSON cannot hold, and with whole numbers of more than 64 bits as texts, for another reader.
/// Also returns the names of the fields that have changed. `None` if it is no JSON; what is returned may be none either.
///
/// ```
/// let (json, changed) = turnflow_odd_json::mend(r#"{"a": NaN, "b": [1e400, 18446744073709551616]}"#).unwrap();
/// assert_eq!(json, r#"{"a": null, "b": [null, "18446744073709551616"]}"#);
/// assert_eq!(changed, ["a", "b"]);
/// ```
pub fn mend(text: &str) -> Option<(String, Vec<String>)> {
    mended(text, true).map(|mended| (mended.out, mended.changed))
}

/// The same JSON without what JSON cannot hold. Numbers stay as they are, except those that are too large for any reader.
/// Also returns the names of the fields that have changed. `None` if it is no JSON; what is returned may be none either.
///
/// ```
/// let (json, changed) = turnflow_odd_json::finite(r#"{"a": NaN, "b": [1e400, 18446744073709551616]}"#).unwrap();
/// assert_eq!(json, r#"{"a": null, "b": [null, 18446744073709551616]}"#);
/// assert_eq!(changed, ["a", "b"]);
/// ```
pub fn finite(text: &str) -> Option<(String, Vec<String>)> {
    mended(text, false).map(|mended| (mended.out, mended.changed))
}

/// Reads JSON as it is, except that a whole number of more than 64 bits is a text.
///
/// ```
/// use serde_json::{Value, json};
/// use turnflow_odd_json as odd_json;
///
/// let text = r#"{"id": 123456789012345678901234567890, "n": 18446744073709551615}"#;
/// let value: Value = odd_json::exact(text).unwrap();
/// assert_eq!(value, json!({"id": "123456789012345678901234567890", "n": 18446744073709551615_u64}));
/// ```
///
/// # Errors
///
/// The text is not JSON, or not a `T`.
pub fn exact<T: DeserializeOwned>(text: &str) -> Result<T, serde_json::Error> {
    let plain = || serde_json::from_str(text);
    match widened(text) {
        Cow::Borrowed(_) => plain(),
        // A field of a `T` may be a number of any size.
        Cow::Owned(widened) => serde_json::from_str(&widened).or_else(|_| plain()),
    }
}

/// Whether a text is a whole number of more than 64 bits.
pub fn is_wide(word: &str) -> bool {
    let digits = word.strip_prefix('-').unwrap_or(word);
    digits.len() >= WIDE
        && digits.bytes().all(|byte| byte.is_ascii_digit())
        && !digits.starts_with('0')
        && word.parse::<i64>().is_err()
        && word.parse::<u64>().is_err()
}

/// The least number of digits of a whole number of more than 64 bits.
const WIDE: usize = 19;

/// The same JSON with whole numbers of more than 64 bits as texts.
pub fn widened(text: &str) -> Cow<'_, str> {
    let mut digits = 0;
    let has_many = text.bytes().any(|byte| {
        digits = if byte.is_ascii_digit() { digits + 1 } else { 0 };
        digits == WIDE
    });
    let mended = has_many.then(|| mended(text, true)).flatten();
    match mended.filter(|mended| mended.has_wide && mended.changed.is_empty()) {
        Some(mended) => Cow::Owned(mended.out),
        None => Cow::Borrowed(text),
    }
}

/// The same JSON without what cannot be held; `None` if it is no JSON. `widens`: whole numbers of more than 64 bits become
/// texts.
fn mended(text: &str, widens: bool) -> Option<Mender<'_>> {
    let (out, changed) = (String::with_capacity(text.len()), Vec::new());
    let mut mender = Mender { rest: text, out, changed, field: None, has_wide: false, widens };
    let mut depth = 0_usize;
    // Whether the next text in the outermost object is the name of a field.
    let mut is_name = false;
    while let Some(first) = mender.rest.chars().next() {
        match first {
            '"' => {
                let start = mender.out.len();
                mender.text()?;
                if depth == 1 && is_name {
                    mender.name(start);
                }
            }
            '{' | '[' if depth == DEEPEST => mender.nested()?,
            '{' | '[' => {
                depth += 1;
                is_name = depth == 1;
                mender.take(1);
            }
            '}' | ']' => {
                depth = depth.checked_sub(1)?;
                mender.take(1);
            }
            ',' | ':' => {
                is_name = if depth == 1 { first == ',' } else { is_name };
                mender.take(1);
            }
            _ if first.is_ascii_whitespace() => mender.take(1),
            _ => mender.word(),
        }
    }
    Some(mender)
}

struct Mender<'a> {
    rest: &'a str,
    out: String,
    changed: Vec<String>,
    /// The field of the outermost object.
    field: Option<String>,
    /// Whether whole numbers have become texts, and may.
    has_wide: bool,
    widens: bool,
}

impl Mender<'_> {
    /// Takes bytes as they are.
    fn take(&mut self, length: usize) {
        let (taken, rest) = self.rest.split_at(length);
        self.out.push_str(taken);
        self.rest = rest;
    }

    fn has_changed(&mut self) {
        let field = self.field.clone().unwrap_or_default();
        if self.changed.last() != Some(&field) && !self.changed.contains(&field) {
            self.changed.push(field);
        }
    }

    /// The text that was written from `start` on is the name of a field.
    fn name(&mut self, start: usize) {
        let name = serde_json::from_str::<String>(&self.out[start..]).unwrap_or_default();
        // A name that was mended is told as it is now.
        if let Some(former) = self.changed.last_mut().filter(|_| self.out[start..].contains("\\ufffd"))
            && *former == self.field.clone().unwrap_or_default()
        {
            former.clone_from(&name);
        }
        self.field = Some(name);
    }

    /// Takes a text, with what JSON cannot hold replaced. `None` if it does not end.
    fn text(&mut self) -> Option<()> {
        self.take(1);
        loop {
            let plain = self.rest.find(|next: char| next == '"' || next == '\\' || next < ' ')?;
            self.take(plain);
            let bytes = self.rest.as_bytes();
            match bytes[0] {
                b'"' => {
                    self.take(1);
                    return Some(());
                }
                b'\\' if bytes.get(1) == Some(&b'u') => match (unit(bytes), unit(bytes.get(6..).unwrap_or_default())) {
                    (Some(0xD800..=0xDBFF), Some(0xDC00..=0xDFFF)) => self.take(12),
                    (Some(0xD800..=0xDFFF), _) => self.replace(6, "\\ufffd"),
                    (Some(_), _) => self.take(6),
                    (None, _) => return None,
                },
                b'\\' => {
                    let next = self.rest[1..].chars().next()?;
                    self.take(1 + next.len_utf8());
                }
                control => {
                    let escaped = format!("\\u{control:04x}");
                    self.replace(1, &escaped);
                }
            }
        }
    }

    fn replace(&mut self, length: usize, by: &str) {
        self.rest = &self.rest[length..];
        self.out.push_str(by);
        self.has_changed();
    }

    /// Leaves out a list or an object.
    fn nested(&mut self) -> Option<()> {
        let (mut depth, mut at, bytes) = (0_usize, 0, self.rest.as_bytes());
        loop {
            match bytes.get(at)? {
                b'[' | b'{' => depth += 1,
                b']' | b'}' => depth -= 1,
                b'"' => loop {
                    at += 1;
                    match bytes.get(at)? {
                        b'\\' => at += 1,
                        b'"' => break,
                        _ => {}
                    }
                },
                _ => {}
            }
            at += 1;
            if depth == 0 {
                self.replace(at, "null");
                return Some(());
            }
        }
    }

    /// Takes a number, or a word such as `true`.
    fn word(&mut self) {
        let end = self.rest.find(|next: char| ",:]}[{\"".contains(next) || next.is_ascii_whitespace());
        let word = &self.rest[..end.unwrap_or(self.rest.len())];
        let is_number = word.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
        let is_infinite = is_number && word.parse::<f64>().is_ok_and(f64::is_infinite);
        let unsigned = word.trim_start_matches(['-', '+']).to_ascii_lowercase();
        // As tables write a decimal number with a scale.
        let whole =
            word.split_once('.').filter(|(_, rest)| !rest.is_empty() && rest.bytes().all(|digit| digit == b'0'));
        let whole = whole.map_or(word, |(whole, _)| whole);
        match is_infinite || ["nan", "inf", "infinity"].contains(&&*unsigned) {
            // A number of hundreds of digits too.
            _ if self.widens && is_wide(whole) => {
                self.out.extend(["\"", whole, "\""]);
                self.rest = &self.rest[word.len()..];
                self.has_wide = true;
            }
            true => self.replace(word.len(), "null"),
            false => self.take(word.len()),
        }
    }
}

/// The unit of UTF-16 in `\uXXXX`.
fn unit(escape: &[u8]) -> Option<u16> {
    let digits = escape.strip_prefix(b"\\u")?.get(..4)?;
    digits.iter().all(u8::is_ascii_hexdigit).then_some(())?;
    u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};

    use super::*;

    #[test]
    fn an_odd_value_costs_itself() {
        let deep = format!("{}1{}", "[".repeat(5000), "]".repeat(5000));
        let deep_objects = format!("{}1{}", "{\"a\":".repeat(300), "}".repeat(300));
        for (odd, expected, changed) in [
            (r#"{"a": "x\ud83d"}"#, json!({"a": "x\u{fffd}"}), &["a"][..]),
            (r#"{"a": "\udc00\ud83d\ude00\ud83dx"}"#, json!({"a": "\u{fffd}\u{1f600}\u{fffd}x"}), &["a"]),
            (r#"{"\ud83d": 1, "b": 2}"#, json!({"\u{fffd}": 1, "b": 2}), &["\u{fffd}"]),
            (r#"{"a": 1e400, "b": -1E+999, "c": 1e-400}"#, json!({"a": null, "b": null, "c": 0.0}), &["a", "b"]),
            (
                r#"{"a": NaN, "b": -Infinity, "c": [1, inf, 2]}"#,
                json!({"a": null, "b": null, "c": [1, null, 2]}),
                &["a", "b", "c"],
            ),
            ("{\"a\": \"tab\there\", \"b\": \"\u{0}\"}", json!({"a": "tab\there", "b": "\u{0}"}), &["a", "b"]),
            (
                r#"{"a": {"b": [{"c": NaN, "d": "NaN, \" 1e400"}]}}"#,
                json!({"a": {"b": [{"c": null, "d": "NaN, \" 1e400"}]}}),
                &["a"],
            ),
            (r#"[NaN, 1]"#, json!([null, 1]), &[""]),
        ] {
            let (value, told) = read::<Value>(odd).unwrap_or_else(|error| panic!("{odd}: {error}"));
            assert_eq!((value, told), (expected, changed.iter().map(ToString::to_string).collect()), "{odd}");
        }
        for deep in [deep, deep_objects, format!("[\"]\", {}", "[".repeat(200) + "\"\\\"]\"" + &"]".repeat(201))] {
            let line = format!("{{\"text\": \"x\", \"deep\": {deep}, \"b\": 1}}");
            let (row, told) = read::<Map<String, Value>>(&line).unwrap();
            assert_eq!((&row["text"], &row["b"], &*told), (&json!("x"), &json!(1), &["deep".to_owned()][..]));
        }
    }

    #[test]
    fn whole_numbers_of_any_size_are_exact() {
        let nines = "9".repeat(10_000);
        for (text, expected, changed) in [
            ("18446744073709551616", json!("18446744073709551616"), 0),
            ("-9223372036854775809", json!("-9223372036854775809"), 0),
            ("[9223372036854775807, -9223372036854775808]", json!([i64::MAX, i64::MIN]), 0),
            (
                "{\"a\": [99999999999999999999], \"b\": \"99999999999999999999\"}",
                json!({"a": ["99999999999999999999"], "b": "99999999999999999999"}),
                0,
            ),
            ("{\"99999999999999999999\": 1e30}", json!({"99999999999999999999": 1e30}), 0),
            ("{\"a\": 99999999999999999999, \"b\": NaN}", json!({"a": "99999999999999999999", "b": null}), 1),
            ("0.30000000000000000000001", json!(0.3), 0),
            ("123456789012345678901234567890.00", json!("123456789012345678901234567890"), 0),
            ("[-99999999999999999999.0, 99999999999999999999.5]", json!(["-99999999999999999999", 1e20]), 0),
            ("18446744073709551615.0", json!(18446744073709551615.0), 0),
            (&nines, json!(nines), 0),
            (&format!("{{\"a\": [-{nines}]}}"), json!({"a": [format!("-{nines}")]}), 0),
        ] {
            let (value, told) = read::<Value>(text).unwrap();
            assert_eq!((value, told.len()), (expected, changed), "{text}");
        }
        #[derive(serde::Deserialize)]
        struct Of {
            size: f64,
        }
        assert_eq!(exact::<Of>("{\"size\": 100000000000000000000}").unwrap().size, 1e20);
        for wrong in
            ["00000000000000000000", "99999999999999999999x", "[99999999999999999999", "-", "+99999999999999999999"]
        {
            assert!(read::<Value>(wrong).is_err() && exact::<Value>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_no_json_stays_so() {
        for text in [
            "",
            "{",
            "}",
            "[1,]",
            "{\"a\": nul}",
            "{\"a\": NaN",
            "{\"a\": \"\\ud83d}",
            "{\"a\": \"\\uD8\"}",
            "]]]",
            "{\"a\": NaN},",
            "NaNNaN",
            "{\"a\": \"\\",
            "{\"a\": +1e400x}",
            "é",
            "\\ud83d",
        ] {
            assert!(read::<Value>(text).is_err(), "{text}");
        }
        assert!(read::<Value>(&"[".repeat(1_000_000)).is_err());
        assert!(read::<Value>(&format!("{}NaN", "{\"a\":".repeat(1_000_000))).is_err());
    }
}
