//! Words of messages: numbers with their nouns, and errors of parsers without the names of Rust's types.

use std::fmt;

/// What serde expects, without the name of a Rust type.
pub fn expected(what: &str) -> &str {
    match what {
        "f32" | "f64" => "a number",
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "u128" | "usize" => "a whole number, 0 or more",
        "i8" | "i16" | "i32" | "i64" | "i128" | "isize" => "a whole number",
        _ if what.starts_with("a nonzero u") => "a whole number, 1 or more",
        _ if what.starts_with("struct ") => "an object with the names of its fields",
        _ if what.starts_with("tuple struct ") => "a list",
        _ if what.starts_with("enum ") || what == "variant identifier" => "one of the valid names",
        _ if what.starts_with("unit struct ") || what == "unit" => "nothing",
        _ => what,
    }
}

/// A number with its noun: "1 turn", "2 queries".
pub fn count<N: fmt::Display + PartialEq + From<u8>>(number: N, one: &str) -> String {
    if number == N::from(1) {
        return format!("{number} {one}");
    }
    match one.strip_suffix('y') {
        Some(stem) if !stem.ends_with(['a', 'e', 'i', 'o', 'u']) => format!("{number} {stem}ies"),
        None if ["s", "x", "ch", "sh"].iter().any(|end| one.ends_with(end)) => format!("{number} {one}es"),
        _ => format!("{number} {one}s"),
    }
}

/// An error of JSON in plain words, with its position.
///
/// ```
/// use turnflow_engine::wording::JsonError;
///
/// let error = serde_json::from_str::<u32>("\"three\"").unwrap_err();
/// let plain = "invalid type: string \"three\", expected a whole number from 0 to 4294967295 at line 1 column 7";
/// assert_eq!(JsonError::from(error).to_string(), plain);
/// ```
#[derive(Debug)]
pub struct JsonError(serde_json::Error);

impl From<serde_json::Error> for JsonError {
    fn from(error: serde_json::Error) -> Self {
        Self(error)
    }
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        let place = format!(" at line {} column {}", self.0.line(), self.0.column());
        let (message, place) = text.strip_suffix(&place).map_or((&*text, ""), |message| (message, &*place));
        // Values in the message may contain anything, but what is expected comes last.
        match message.rsplit_once(", expected ") {
            Some((found, what)) => write!(f, "{found}, expected {}{place}", expected(what)),
            None => f.write_str(&text),
        }
    }
}

// The wrapped error is no source: a chain of causes would name the type.
impl std::error::Error for JsonError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::TurnRecord;

    #[test]
    fn one_is_singular() {
        assert_eq!([0_u64, 1, 2].map(|number| count(number, "turn")), ["0 turns", "1 turn", "2 turns"]);
        assert_eq!(
            [count(2_usize, "query"), count(2_u32, "day"), count(2_u8, "batch")],
            ["2 queries", "2 days", "2 batches"]
        );
    }

    #[test]
    fn no_message_names_a_type() {
        let turn = |number: &str, speaker: &str, text: &str| {
            format!(r#"{{"conversation_id": "c", "turn": {number}, "speaker": {speaker}, "text": {text}}}"#)
        };
        let user = "\"user\"";
        for line in [
            "[]".to_owned(),
            "7".to_owned(),
            turn("\"three, expected u32\"", user, "\"t\""),
            turn("-1", user, "\"t\""),
            turn("1.5", user, "\"t\""),
            turn("99999999999", user, "\"t\""),
            turn("1", "3", "\"t\""),
            turn("1", "[]", "\"t\""),
            turn("1", "{\"user\": 1}", "\"t\""),
            turn("1", "\"bot\"", "\"t\""),
            turn("1", user, "3"),
            turn("1", user, "\"t\", \"timestamp\": \"now\""),
            turn("1", user, "\"t\", \"collection\": 3"),
        ] {
            let error = TurnRecord::parse(line.as_bytes()).unwrap_err();
            let causes = std::iter::successors(std::error::Error::source(&error), |error| error.source());
            for message in causes.map(ToString::to_string).chain([error.to_string()]) {
                let (_, what) = message.rsplit_once("expected ").unwrap();
                for name in ["TurnRecord", "Speaker", "struct", "enum", "u32", "f64", "variant"] {
                    assert!(!what.contains(name), "{line}: {message}");
                }
            }
        }
    }
}
