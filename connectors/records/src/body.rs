//! Programs for what goes out: what is sent of an answer, and which answers are sent.

use std::fmt;

use jaq_json::Val;

use crate::decode::{self, Odd};
use crate::jq::{self, Program, ProgramError};
use crate::message::text_of;
use crate::options::options;

/// Maximum number of values of one input.
const VALUES: usize = 10_000;

/// A jq program over JSON that is sent somewhere.
///
/// ```
/// use turnflow_records::{Body, Made};
///
/// let body = Body::of(r#"{text: .answer, thread: .conversation_id}"#).unwrap();
/// let made = body.run(br#"{"conversation_id": "c7", "answer": "At ten.", "hits": []}"#).unwrap();
/// assert_eq!(made, [Made::Json(r#"{"text":"At ten.","thread":"c7"}"#.to_owned())]);
/// assert_eq!(Body::of(".answer").unwrap().run(br#"{"answer": "Ten."}"#).unwrap(), [Made::Text("Ten.".to_owned())]);
/// ```
pub struct Body {
    program: Program,
}

/// A value of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Made {
    /// A text, as it is.
    Text(String),
    /// Another value, in JSON.
    Json(String),
}

impl Made {
    /// The value in JSON: a text has quotes.
    pub fn json(self) -> String {
        match self {
            Self::Text(text) => serde_json::Value::String(text).to_string(),
            Self::Json(json) => json,
        }
    }

    /// The value as it is sent: a text has no quotes.
    pub fn plain(self) -> String {
        match self {
            Self::Text(text) | Self::Json(text) => text,
        }
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Body")
    }
}

impl Body {
    /// Compiles a program.
    ///
    /// # Errors
    ///
    /// The program is wrong.
    pub fn of(code: &str) -> Result<Self, ProgramError> {
        Ok(Self { program: Program::of(code, &[], &options(code)?.env)? })
    }

    /// What the program makes of JSON.
    ///
    /// # Errors
    ///
    /// It is no JSON, or the program fails on it or does not end.
    pub fn run(&self, json: &[u8]) -> Result<Vec<Made>, String> {
        let mut made = Vec::new();
        self.program.run(decode::value(json, &mut Odd::default())?, &[], &mut |value| {
            made.push(match &value {
                Val::TStr(_) | Val::BStr(_) => Made::Text(text_of(&value).unwrap_or_default()),
                other => Made::Json(jq::shown(other)),
            });
            match made.len() <= VALUES {
                true => Ok(()),
                false => Err(format!("the program gives more than {VALUES} values")),
            }
        })?;
        Ok(made)
    }

    /// Whether the program's value is true: neither false nor null, and there is one.
    ///
    /// # Errors
    ///
    /// As for [`Body::run`].
    pub fn holds(&self, json: &[u8]) -> Result<bool, String> {
        let made = self.run(json)?;
        let is_true = |made: &Made| !matches!(made, Made::Json(json) if json == "false" || json == "null");
        Ok(!made.is_empty() && made.iter().all(is_true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_texts_or_json() {
        let run = |code: &str, json: &str| Body::of(code).unwrap().run(json.as_bytes());
        let json = |text: &str| Made::Json(text.to_owned());
        assert_eq!(
            run(".a, .b", r#"{"a": null, "b": [1.50, "x\ny"]}"#).unwrap(),
            [json("null"), json(r#"[1.50,"x\ny"]"#)]
        );
        assert_eq!(run("empty", "{}").unwrap(), []);
        assert_eq!(
            run(".n", r#"{"n": 123456789012345678901234567890}"#).unwrap(),
            [json("123456789012345678901234567890")]
        );
        assert_eq!(run(".t", r#"{"t": "a \"b\""}"#).unwrap().remove(0).json(), r#""a \"b\"""#);
        assert_eq!(run("error(\"no\")", "{}").unwrap_err(), "no");
        assert!(run("[range(1e9)]", "{}").unwrap_err().contains("ended"));
        assert!(Body::of("{text: .answer").is_err());
    }

    #[test]
    fn conditions_hold_or_not() {
        let holds = |code: &str| Body::of(code).unwrap().holds(br#"{"status": "idk", "checks": {"support": 0.2}}"#);
        assert_eq!(holds(".status == \"idk\" and .checks.support < 0.5"), Ok(true));
        assert_eq!([".no", "false", "empty", "true, false"].map(|code| holds(code).unwrap()), [false; 4]);
    }
}
