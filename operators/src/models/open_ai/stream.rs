//! Parses responses: a stream of events, or one JSON object.

use serde::Deserialize;
use turnflow_engine::language::{Finish, Generation};
use turnflow_engine::wording::JsonError;

/// Why a response has no text.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(super) enum AnswerError {
    #[error("the response is not JSON ({error}): {text}")]
    NoJson { error: String, text: String },
    #[error("the server reported an error: {0}")]
    Reported(String),
    #[error("the response has no choices")]
    NoChoices,
    #[error("the server withheld the text (content filter)")]
    Withheld,
    #[error("the response ended before the text did")]
    Cut,
    #[error("the response ended without a text; is the prompt longer than the server's context? Set `context`")]
    Nothing,
}

#[derive(Debug, Deserialize)]
struct Piece {
    #[serde(default)]
    choices: Option<Vec<Choice>>,
    #[serde(default)]
    usage: Option<Usage>,
    #[serde(default)]
    error: Option<serde_json::Value>,
}

#[derive(Debug, Deserialize)]
struct Choice {
    /// Set in events of a stream.
    #[serde(default)]
    delta: Option<Text>,
    /// Set in a response that is not streamed.
    #[serde(default)]
    message: Option<Text>,
    /// `None`: the server never says why a text ends. `Some(None)`: the text has not ended.
    #[serde(default, deserialize_with = "present")]
    finish_reason: Option<Option<String>>,
}

fn present<'de, D: serde::Deserializer<'de>>(value: D) -> Result<Option<Option<String>>, D::Error> {
    Option::deserialize(value).map(Some)
}

#[derive(Debug, Deserialize)]
struct Text {
    #[serde(default)]
    content: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Usage {
    #[serde(default)]
    prompt_tokens: u64,
    #[serde(default)]
    completion_tokens: u64,
}

/// A response that is being received.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    text: String,
    finish: Option<String>,
    tokens: (u64, u64),
    any_choice: bool,
    /// The server says that the text goes on.
    goes_on: bool,
    done: bool,
}

impl Gathered {
    /// Takes the data of one event, or a whole response. Returns true if the response is complete.
    pub fn take(&mut self, data: &str) -> Result<bool, AnswerError> {
        let data = data.trim();
        if data == "[DONE]" {
            self.done = true;
            return Ok(true);
        }
        let piece: Piece = serde_json::from_str(data).map_err(|error| AnswerError::NoJson {
            error: JsonError::from(error).to_string(),
            text: shortened(data),
        })?;
        if let Some(error) = piece.error.filter(|error| !error.is_null()) {
            return Err(AnswerError::Reported(message(&error)));
        }
        if let Some(usage) = piece.usage {
            self.tokens = (usage.prompt_tokens, usage.completion_tokens);
        }
        if let Some(choice) = piece.choices.into_iter().flatten().next() {
            self.any_choice = true;
            let text = choice.delta.or(choice.message).and_then(|text| text.content);
            self.text.push_str(text.as_deref().unwrap_or_default());
            self.goes_on |= choice.finish_reason == Some(None);
            self.finish = choice.finish_reason.flatten().or(self.finish.take());
        }
        Ok(false)
    }

    /// The text so far.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The text of the finished response.
    pub fn end(self) -> Result<Generation, AnswerError> {
        let finish = match self.finish.as_deref() {
            Some("length") => Finish::Length,
            Some("content_filter") => return Err(AnswerError::Withheld),
            Some(_) => Finish::Stop,
            // A server that says when a text ends, and has not said it, was interrupted.
            None if self.done && self.goes_on => return Err(AnswerError::Cut),
            None if self.done && self.any_choice => Finish::Stop,
            None if self.done => return Err(AnswerError::NoChoices),
            None if !self.any_choice => return Err(AnswerError::Nothing),
            None => return Err(AnswerError::Cut),
        };
        Ok(Generation {
            text: self.text,
            finish,
            prompt_tokens: self.tokens.0,
            tokens: self.tokens.1,
            cut: 0,
            left_out: 0,
        })
    }

    /// Parses a response that is not streamed.
    pub fn whole(data: &str) -> Result<Generation, AnswerError> {
        let mut gathered = Self::default();
        gathered.take(data)?;
        (gathered.done, gathered.goes_on) = (true, false);
        gathered.end()
    }
}

/// The message of an error object.
fn message(error: &serde_json::Value) -> String {
    let said = error.get("message").unwrap_or(error);
    shortened(said.as_str().map_or_else(|| said.to_string(), str::to_owned).as_str())
}

/// The message in the body of a failed request.
pub(super) fn said(body: &str) -> String {
    let parsed = serde_json::from_str::<Piece>(body).ok().and_then(|piece| piece.error);
    parsed.map_or_else(|| shortened(body), |error| message(&error))
}

fn shortened(text: &str) -> String {
    let text = text.trim();
    match text.char_indices().nth(300) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None if text.is_empty() => "(nothing)".to_owned(),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gather(pieces: &[&str]) -> Result<Generation, AnswerError> {
        let mut gathered = Gathered::default();
        for piece in pieces {
            gathered.take(piece)?;
        }
        gathered.end()
    }

    #[test]
    fn pieces_become_a_text() {
        let first = r#"{"choices":[{"delta":{"role":"assistant","content":null},"finish_reason":null}]}"#;
        let piece = r#"{"choices":[{"delta":{"content":"Yes"}}]}"#;
        let last = r#"{"choices":[{"delta":{},"finish_reason":"length"}]}"#;
        let usage = r#"{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}}"#;
        let all = gather(&[first, piece, piece, last, usage, "[DONE]"]).unwrap();
        assert_eq!((all.text.as_str(), all.finish, all.prompt_tokens, all.tokens), ("YesYes", Finish::Length, 5, 2));
        assert_eq!(gather(&[piece, "[DONE]"]).unwrap().finish, Finish::Stop);
        assert_eq!(gather(&[first, piece]), Err(AnswerError::Cut));
        assert_eq!(gather(&[first, piece, "[DONE]"]), Err(AnswerError::Cut), "interrupted by another request");
        assert_eq!(gather(&[]), Err(AnswerError::Nothing));
        assert_eq!(gather(&[usage, "[DONE]"]), Err(AnswerError::NoChoices));
        assert_eq!(Gathered::whole(r#"{"choices":[]}"#), Err(AnswerError::NoChoices));
        let filtered = r#"{"choices":[{"delta":{},"finish_reason":"content_filter"}]}"#;
        assert_eq!(gather(&[filtered]), Err(AnswerError::Withheld));
    }

    #[test]
    fn errors_are_told_in_the_servers_words() {
        let event = r#"{"error":{"message":"out of memory","code":500}}"#;
        assert_eq!(gather(&[event]), Err(AnswerError::Reported("out of memory".into())));
        assert!(matches!(gather(&["<html>"]), Err(AnswerError::NoJson { .. })));
        for (body, text) in
            [(event, "out of memory"), (r#"{"error":"busy"}"#, "busy"), ("Bad gateway\n", "Bad gateway")]
        {
            assert_eq!(said(body), text);
        }
        assert_eq!(said(&"x".repeat(1000)).chars().count(), 301);
    }
}
