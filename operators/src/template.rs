//! Prompt templates: chat messages for a language model, with placeholders.
//!
//! A template file is a chat. A line `### system`, `### user` or `### assistant` starts a message; text before the
//! first such line is a user message. `{name}` in lower case is a placeholder, which an operator fills; any other brace
//! is literal. Only some fillings (passages) may be cut when a prompt is too long for its model; the rest is never cut.

use std::borrow::Cow;

use turnflow_engine::component::{BuildError, Check};
use turnflow_engine::language::{ChatRole, Message, Part, Prompt};
use turnflow_engine::spec::FilePath;

use crate::quote;

/// A prompt with placeholders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    messages: Vec<(ChatRole, Vec<Piece>)>,
    /// The labels at the start of its lines.
    labels: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Place(String),
}

/// The value of a placeholder.
#[derive(Clone, Debug)]
pub enum Filling {
    /// A text that must not be cut.
    Fixed(String),
    /// Texts that may be cut, last one first.
    MayBeCut(Vec<String>),
}

impl From<&str> for Filling {
    fn from(text: &str) -> Self {
        Filling::Fixed(text.to_owned())
    }
}

/// Errors in a template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// A placeholder that the operator does not fill.
    #[error("`{{{place}}}` is not a placeholder of this prompt; placeholders: {}", .known.iter().map(|name| format!("`{{{name}}}`")).collect::<Vec<_>>().join(", "))]
    UnknownPlace {
        /// The placeholder as written.
        place: String,
        /// The placeholders that exist.
        known: &'static [&'static str],
    },
    /// A placeholder that the prompt must contain.
    #[error("the prompt lacks `{{{0}}}`")]
    Lacks(&'static str),
    /// The file has no text.
    #[error("the prompt is empty")]
    Empty,
}

impl Template {
    /// Parses a template. `known` lists the allowed placeholders; the first one is required.
    pub fn parse(text: &str, known: &'static [&'static str]) -> Result<Self, TemplateError> {
        let mut messages: Vec<(ChatRole, String)> = Vec::new();
        let mut role = ChatRole::User;
        let mut body = String::new();
        let mut end = |role, body: &mut String| {
            let text = std::mem::take(body);
            let text = text.trim();
            if !text.is_empty() {
                messages.push((role, text.to_owned()));
            }
        };
        for line in text.lines() {
            let next = match line.trim_end() {
                "### system" => ChatRole::System,
                "### user" => ChatRole::User,
                "### assistant" => ChatRole::Assistant,
                _ => {
                    body.push_str(line);
                    body.push('\n');
                    continue;
                }
            };
            end(role, &mut body);
            role = next;
        }
        end(role, &mut body);
        if messages.is_empty() {
            return Err(TemplateError::Empty);
        }
        let messages: Vec<(ChatRole, Vec<Piece>)> =
            messages.into_iter().map(|(role, text)| (role, pieces(&text))).collect();
        let places = || messages.iter().flat_map(|(_, pieces)| pieces).filter_map(Piece::place);
        if let Some(place) = places().find(|place| !known.contains(place)) {
            return Err(TemplateError::UnknownPlace { place: place.to_owned(), known });
        }
        match known.first() {
            Some(first) if !places().any(|place| place == *first) => Err(TemplateError::Lacks(first)),
            _ => {
                let pieces = messages.iter().flat_map(|(_, pieces)| pieces);
                let texts = pieces.filter_map(|piece| match piece {
                    Piece::Text(text) => Some(text.as_str()),
                    Piece::Place(_) => None,
                });
                let labels = quote::labels(texts);
                Ok(Self { messages, labels })
            }
        }
    }

    /// Loads the template from the file, or else parses the built-in one.
    pub fn load(file: Option<&FilePath>, built_in: &str, known: &'static [&'static str]) -> Result<Self, BuildError> {
        let Some(file) = file else {
            return Self::parse(built_in, known)
                .map_err(|error| BuildError::File { path: "built-in prompt".into(), reason: error.to_string() });
        };
        let read = std::fs::read_to_string(&file.path).map_err(|error| error.to_string());
        let parsed = read.and_then(|text| Self::parse(&text, known).map_err(|error| error.to_string()));
        parsed.map_err(|reason| BuildError::File { path: file.path.clone(), reason })
    }

    /// Reports a file that is missing or not a valid template.
    pub fn check(file: Option<&FilePath>, field: &str, known: &'static [&'static str], check: &mut Check<'_>) {
        let Some(file) = file else { return };
        if let Some(Err(error)) = check.text(field, file).map(|text| Self::parse(&text, known)) {
            check.error("bad-prompt", field, format!("`{}`: {error}", file.written));
        }
    }

    /// Escapes a text that others wrote (a passage, an answer), so that no line of it can pass for one of this prompt's
    /// own.
    pub fn quoted<'t>(&self, text: &'t str) -> Cow<'t, str> {
        quote::quoted(text, &self.labels, true)
    }

    /// Escapes a question. Its first line is left as it is, because it follows a label of the prompt.
    pub fn question(&self, text: &str) -> Filling {
        Filling::Fixed(quote::quoted(text.trim(), &self.labels, false).into_owned())
    }

    /// Fills the placeholders. Placeholders without a value become empty.
    pub fn fill(&self, fillings: &[(&str, Filling)]) -> Prompt {
        let message = |(role, pieces): &(ChatRole, Vec<Piece>)| {
            let mut parts: Vec<Part> = Vec::new();
            let mut nothing = false;
            for piece in pieces {
                match piece {
                    // An empty value leaves no empty lines.
                    Piece::Text(text) if std::mem::take(&mut nothing) => {
                        push(&mut parts, text.trim_start_matches('\n'))
                    }
                    Piece::Text(text) => push(&mut parts, text),
                    Piece::Place(place) => match fillings.iter().find(|(name, _)| name == place) {
                        Some((_, Filling::Fixed(text))) => {
                            let ends = parts.last().is_none_or(|part| part.text.ends_with('\n'));
                            nothing = text.is_empty() && ends;
                            push(&mut parts, text);
                        }
                        Some((_, Filling::MayBeCut(texts))) => {
                            parts.extend(texts.iter().map(|text| Part { text: text.clone(), may_be_cut: true }));
                        }
                        None => {}
                    },
                }
            }
            Message { role: *role, parts }
        };
        Prompt { messages: self.messages.iter().map(message).collect() }
    }
}

/// Appends a text that must not be cut.
fn push(parts: &mut Vec<Part>, text: &str) {
    match parts.last_mut() {
        Some(last) if !last.may_be_cut => last.text.push_str(text),
        _ => parts.push(Part { text: text.to_owned(), may_be_cut: false }),
    }
}

impl Piece {
    fn place(&self) -> Option<&str> {
        match self {
            Piece::Place(place) => Some(place),
            Piece::Text(_) => None,
        }
    }
}

fn pieces(text: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut plain = String::new();
    let mut rest = text;
    while let Some(open) = rest.find('{') {
        let after = &rest[open + 1..];
        let length = after.bytes().take_while(|b| b.is_ascii_lowercase() || *b == b'_').count();
        if length > 0 && after[length..].starts_with('}') {
            plain.push_str(&rest[..open]);
            if !plain.is_empty() {
                pieces.push(Piece::Text(std::mem::take(&mut plain)));
            }
            pieces.push(Piece::Place(after[..length].to_owned()));
            rest = &after[length + 1..];
        } else {
            plain.push_str(&rest[..=open]);
            rest = after;
        }
    }
    plain.push_str(rest);
    if !plain.is_empty() {
        pieces.push(Piece::Text(plain));
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &[&str] = &["question", "passages"];

    #[test]
    fn messages_and_places_are_filled() {
        let text = "### system\nBe {brief\"}.\n\n### user\n{passages}\nQ: {question} {}\n";
        let template = Template::parse(text, KNOWN).unwrap();
        let passages = Filling::MayBeCut(vec!["[1] a\n".into(), "[2] b\n".into()]);
        let prompt = template.fill(&[("question", "why {passages}?".into()), ("passages", passages)]);
        assert_eq!(prompt.plain(), "Be {brief\"}.\n\n[1] a\n[2] b\n\nQ: why {passages}? {}");
        let cut: Vec<bool> = prompt.messages[1].parts.iter().map(|part| part.may_be_cut).collect();
        assert_eq!((prompt.messages[0].role, cut), (ChatRole::System, vec![true, true, false]));
    }

    #[test]
    fn an_empty_place_leaves_no_empty_lines() {
        let template = Template::parse("A\n\n{passages}\n\nQ: {question}", KNOWN).unwrap();
        assert_eq!(template.fill(&[("passages", "".into()), ("question", "q".into())]).plain(), "A\n\nQ: q");
    }

    #[test]
    fn mistakes_are_told() {
        for (text, want) in [
            (
                "{question} {passage}",
                "`{passage}` is not a placeholder of this prompt; placeholders: `{question}`, `{passages}`",
            ),
            ("{passages}", "the prompt lacks `{question}`"),
            ("### user\n \n", "the prompt is empty"),
        ] {
            assert_eq!(Template::parse(text, KNOWN).unwrap_err().to_string(), want);
        }
    }
}
