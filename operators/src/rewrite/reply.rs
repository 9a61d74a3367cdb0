//! Parses a model's rewrite of a question and decides whether it is usable.

use super::Form;
use crate::reply::{clean, object, strip, unquote};

/// Labels that models put before a rewritten question.
const LABELS: &[&str] = &[
    "rewritten query:",
    "rewritten question:",
    "rewritten search query:",
    "reworded version:",
    "reworded question:",
    "standalone question:",
    "standalone query:",
    "search query:",
    "query for the user's last question:",
    "query:",
    "question:",
    "user:",
    "output:",
];
/// Beginnings of refusals.
const REFUSALS: &[&str] =
    &["i'm sorry", "i am sorry", "i cannot", "i can't", "i am unable", "i'm unable", "as an ai", "sorry, but"];

/// Why a reply is unusable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unusable {
    #[error("the rewrite is not a JSON object")]
    NoJson,
    #[error("the rewrite's JSON lacks `reworded version`")]
    NoVersion,
    #[error("the rewrite is empty")]
    Empty,
    #[error("the rewrite has {words} words; the maximum is {most}")]
    TooLong { words: usize, most: usize },
    #[error("the model refused to rewrite")]
    Refusal,
}

/// What a reply says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reply {
    /// The rewritten question.
    pub text: String,
    /// Whether the question is standalone; `None` without a class.
    pub standalone: Option<bool>,
}

/// The rewritten question in a reply, with the class of the question.
pub(super) fn read(reply: &str, form: Form, question: &str, most: usize) -> Result<Reply, Unusable> {
    let reply = clean(reply);
    let (text, standalone) = match form {
        Form::Plain => (plain(&reply).to_owned(), None),
        Form::Json => match json(&reply)? {
            (Some(text), standalone) => (text, standalone),
            (None, standalone) => return Ok(Reply { text: question.to_owned(), standalone }),
        },
    };
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let words = text.split(' ').count();
    let begins = |text: &str, start: &&str| text.to_lowercase().replace('’', "'").starts_with(start);
    match () {
        () if !text.chars().any(char::is_alphanumeric) => Err(Unusable::Empty),
        () if words > most => Err(Unusable::TooLong { words, most }),
        // A reply that repeats the user's own "I'm sorry" is not a refusal.
        () if REFUSALS.iter().any(|start| begins(&text, start) && !begins(question.trim(), start)) => {
            Err(Unusable::Refusal)
        }
        () => Ok(Reply { text, standalone }),
    }
}

/// The first line that is not only a label.
fn plain(reply: &str) -> &str {
    let lines = reply.lines().map(|line| unquote(label(unquote(line))));
    let mut lines = lines.filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default();
    // Skips introductions such as "Here is the rewritten question:".
    if first.ends_with(':') { lines.next().unwrap_or(first) } else { first }
}

/// The line without labels and the emphasis around them.
fn label(line: &str) -> &str {
    strip(strip(line.trim_start_matches('*'), LABELS).trim_start_matches('*'), LABELS)
}

/// The rewording, or `None` if the question stands on its own; and whether it does, if the reply says so.
fn json(reply: &str) -> Result<(Option<String>, Option<bool>), Unusable> {
    let object = object(reply).ok_or(Unusable::NoJson)?;
    let field = |names: &[&str]| {
        let named = |key: &str| names.contains(&key.to_lowercase().replace(['_', '-'], " ").as_str());
        object.iter().find(|(key, _)| named(key)).and_then(|(_, value)| value.as_str())
    };
    let standalone = field(&["class", "type"]).and_then(standalone);
    if standalone == Some(true) {
        return Ok((None, standalone));
    }
    let version = field(&["reworded version", "reworded", "rewritten", "rewritten question", "rewrite", "question"]);
    version.map(|text| (Some(text.to_owned()), standalone)).ok_or(Unusable::NoVersion)
}

/// Whether a class is `standalone` (true) or `non-standalone` (false); `None` if it names neither, or both.
fn standalone(class: &str) -> Option<bool> {
    let class = class.to_lowercase();
    let (before, after) = class.split_once("standalone")?;
    let before = before.trim_end_matches(|c: char| !c.is_alphanumeric());
    (!after.contains("standalone")).then(|| !before.ends_with("non") && !before.ends_with("not"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_read() {
        for (form, reply, want) in [
            (Form::Plain, "How old is Ada Byron?", Ok("How old is Ada Byron?")),
            (Form::Plain, "Here is the rewritten query:\n\n\"How old is Ada?\"", Ok("How old is Ada?")),
            (Form::Plain, "**Rewritten question:** How old?\nBecause …", Ok("How old?")),
            (Form::Plain, "Query: Rewritten question: 'How old?'", Ok("How old?")),
            (Form::Plain, "…", Err(Unusable::Empty)),
            (Form::Plain, "a b c d e f g", Err(Unusable::TooLong { words: 7, most: 6 })),
            (Form::Plain, "As an AI model, I refuse", Err(Unusable::Refusal)),
            (Form::Json, r#"{"class": "standalone", "reworded version": "Else?"}"#, Ok("asked")),
            (
                Form::Json,
                r#"{"class": "Non-Standalone", "reworded version": "How old is Ada?"}"#,
                Ok("How old is Ada?"),
            ),
            (Form::Json, r#"JSON: {"reworded_version": "How old?"} Done."#, Ok("How old?")),
            (Form::Json, r#"{"class": "non-standalone"}"#, Err(Unusable::NoVersion)),
            (Form::Json, r#"{"class": "non-standalone", "reworded version": 3}"#, Err(Unusable::NoVersion)),
            (Form::Json, "{", Err(Unusable::NoJson)),
        ] {
            assert_eq!(read(reply, form, "asked", 6).map(|reply| reply.text), want.map(String::from), "{reply}");
        }
    }

    #[test]
    fn the_class_is_kept_where_the_reply_has_one() {
        let class = |class: &str| {
            let reply = format!(r#"{{"class": "{class}", "reworded version": "Else?"}}"#);
            read(&reply, Form::Json, "asked", 6).unwrap().standalone
        };
        assert_eq!(class("standalone"), Some(true));
        for other in ["non-standalone", "Nonstandalone", "not standalone"] {
            assert_eq!(class(other), Some(false), "{other}");
        }
        // Another class, both, or none, says nothing.
        for neither in ["follow-up", "standalone or non-standalone"] {
            assert_eq!(class(neither), None, "{neither}");
        }
        for (form, reply) in [(Form::Json, r#"{"reworded version": "Else?"}"#), (Form::Plain, "standalone: Else?")] {
            assert_eq!(read(reply, form, "asked", 6).unwrap().standalone, None, "{reply}");
        }
    }

    #[test]
    fn a_user_may_be_sorry() {
        assert!(read("I'm sorry, what is a bond?", Form::Plain, "I’m sorry, what is it?", 9).is_ok());
    }
}
