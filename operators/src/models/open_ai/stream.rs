//! Parses responses: a stream of events, or one JSON object.
//!
//! Servers depart from OpenAI's protocol in many ways, so only what is needed is read, whatever its type: a text in parts,
//! counts that are null, negative or have a decimal point, an error that is empty or false.

use serde_json::Value;
use turnflow_engine::language::{Finish, Generation, thoughts};
use turnflow_engine::wording::JsonError;
use unicode_normalization::UnicodeNormalization as _;

use super::finish::{End, end_of};
use super::surrogates;

/// Why a response has no text.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(super) enum AnswerError {
    #[error("the response is not JSON ({error}): {text}")]
    NoJson { error: String, text: String },
    #[error("the server reported an error: {reason}")]
    Reported {
        reason: String,
        /// Whether a later request may succeed.
        passing: bool,
    },
    #[error("the response has no choices")]
    NoChoices,
    #[error("the server withheld the text (content filter)")]
    Withheld,
    #[error("the server broke the text off (finish_reason `{0}`)")]
    BrokenOff(String),
    #[error("the response ended before the text did")]
    Cut,
    #[error("the response ended without a text; is the prompt longer than the server's context? Set `context`")]
    Nothing,
    #[error("the model gave no text: {0}")]
    NoText(String),
}

impl AnswerError {
    /// Whether the same request may succeed later.
    pub fn passes(&self) -> bool {
        match self {
            Self::Cut | Self::Nothing | Self::BrokenOff(_) => true,
            Self::Reported { passing, .. } => *passing,
            Self::NoJson { .. } | Self::NoChoices | Self::Withheld | Self::NoText(_) => false,
        }
    }
}

/// What servers and proxies send while a text takes long.
const SIGNS_OF_LIFE: [&str; 6] = ["ping", "pong", "heartbeat", "keepalive", "keep-alive", "keep_alive"];

/// A response that is being received.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    text: String,
    thoughts: String,
    refusal: String,
    finish: Option<String>,
    tokens: (u64, u64),
    any_choice: bool,
    /// The number of the text that is read.
    number: Option<u64>,
    calls_tools: bool,
    /// The server says that the text goes on.
    goes_on: bool,
    done: bool,
}

impl Gathered {
    /// Takes one event of a stream: its name and its data. Returns true if the response is complete.
    pub fn event(&mut self, name: &str, data: &str) -> Result<bool, AnswerError> {
        if name == "error" {
            return Err(reported(&parse(data).unwrap_or_else(|_| Value::String(data.to_owned()))));
        }
        let is_alive = |text: &str| SIGNS_OF_LIFE.contains(&text.trim().to_ascii_lowercase().as_str());
        // A proxy may send a comment as data.
        if is_alive(name) || is_alive(data) || data.trim_start().starts_with(':') {
            return Ok(false);
        }
        self.take(data)
    }

    /// Takes the data of one event, or a whole response. Returns true if the response is complete.
    fn take(&mut self, data: &str) -> Result<bool, AnswerError> {
        let data = data.trim();
        if data == "[DONE]" {
            self.done = true;
            return Ok(true);
        }
        let piece = parse(data)?;
        if let Some(error) = piece.get("error").filter(|error| says_something(error)) {
            return Err(reported(error));
        }
        if let Some(usage) = piece.get("usage").filter(|usage| usage.is_object()) {
            self.tokens = (count(usage.get("prompt_tokens")), count(usage.get("completion_tokens")));
        }
        let Some(choices) = piece.get("choices").and_then(Value::as_array) else {
            // Some servers report an error without the field for it.
            let is_error = piece.get("object").and_then(Value::as_str) == Some("error")
                || ["message", "detail"].iter().any(|name| piece.get(*name).is_some_and(says_something));
            return if is_error { Err(reported(&piece)) } else { Ok(false) };
        };
        let Some(choice) = self.choice(choices) else { return Ok(false) };
        self.any_choice = true;
        if let Some(error) = choice.get("error").filter(|error| says_something(error)) {
            return Err(reported(error));
        }
        match choice.get("delta").filter(|delta| says_something(delta)) {
            Some(delta) => self.message(delta),
            None => choice.get("message").into_iter().for_each(|whole| self.whole_message(whole)),
        }
        // The name of the text in the older API for completions.
        if let Some(text) = choice.get("text") {
            text_of(text, &mut self.text, &mut self.thoughts);
        }
        match choice.get("finish_reason") {
            None => {}
            // Some servers send an empty text where others send null.
            Some(Value::Null) => self.goes_on = true,
            Some(Value::String(reason)) if reason.is_empty() => self.goes_on = true,
            Some(Value::String(reason)) => self.finish = Some(reason.clone()),
            // A number or an object says that the text has ended, and nothing that can be understood.
            Some(_) => self.finish = Some("stop".to_owned()),
        }
        Ok(false)
    }

    /// The part of an event that belongs to the first text. One text is asked for, but some servers send several.
    fn choice<'a>(&mut self, choices: &'a [Value]) -> Option<&'a Value> {
        let number = |choice: &Value| count(choice.get("index"));
        let first = choices.iter().min_by_key(|choice| number(choice))?;
        let wanted = *self.number.get_or_insert(number(first));
        choices.iter().find(|choice| number(choice) == wanted)
    }

    /// Takes a message that is not a piece. At the end of a stream, it repeats what came in pieces.
    fn whole_message(&mut self, message: &Value) {
        let mut whole = Self::default();
        whole.message(message);
        self.calls_tools |= whole.calls_tools;
        for (known, all) in
            [(&mut self.text, whole.text), (&mut self.thoughts, whole.thoughts), (&mut self.refusal, whole.refusal)]
        {
            let rest = all.strip_prefix(known.as_str()).unwrap_or(if is_same(known, &all) { "" } else { &all });
            known.push_str(rest);
        }
    }

    fn message(&mut self, message: &Value) {
        if let Some(content) = message.get("content") {
            text_of(content, &mut self.text, &mut self.thoughts);
        }
        // The same thoughts may be there under two names.
        for name in ["reasoning_content", "reasoning", "thinking", "thinking_content"] {
            let mut thoughts = String::new();
            message.get(name).into_iter().for_each(|value| text_of(value, &mut thoughts, &mut String::new()));
            if !thoughts.is_empty() {
                self.thoughts.push_str(&thoughts);
                break;
            }
        }
        if let Some(Value::String(refusal)) = message.get("refusal") {
            self.refusal.push_str(refusal);
        }
        self.calls_tools |=
            ["tool_calls", "function_call"].iter().any(|name| message.get(*name).is_some_and(says_something));
    }

    /// The text so far. Half a letter at its end is not part of it.
    pub fn text(&self) -> &str {
        surrogates::whole(&self.text)
    }

    /// The text of the finished response.
    pub fn end(self) -> Result<Generation, AnswerError> {
        let (finish, doubt) = match self.finish.as_deref().map(|reason| (end_of(reason), reason)) {
            Some((End::Withheld, _)) => return Err(AnswerError::Withheld),
            Some((End::BrokenOff, reason)) => return Err(AnswerError::BrokenOff(reason.to_owned())),
            Some((End::Limit, _)) => (Finish::Length, None),
            Some((End::Complete, _)) => (Finish::Stop, None),
            Some((End::Unknown, reason)) => {
                (Finish::Stop, Some(format!("the server ended it with the finish_reason `{reason}`")))
            }
            // A server that says when a text ends, and has not said it, was interrupted.
            None if self.done && self.goes_on => return Err(AnswerError::Cut),
            None if self.done && self.any_choice => (Finish::Stop, None),
            None if self.done => return Err(AnswerError::NoChoices),
            None if !self.any_choice => return Err(AnswerError::Nothing),
            None => return Err(AnswerError::Cut),
        };
        let text = surrogates::replaced(self.text);
        if text.trim().is_empty() {
            if !self.refusal.trim().is_empty() {
                return Err(AnswerError::NoText(format!("it refuses: {}", shortened(&self.refusal))));
            }
            if self.calls_tools {
                return Err(AnswerError::NoText("it calls a tool, and none was offered".to_owned()));
            }
            if !self.thoughts.trim().is_empty() {
                let why = match finish {
                    Finish::Length => "it used all tokens of `max_tokens` for its thoughts; allow more",
                    Finish::Stop => "its reply has thoughts and nothing else",
                };
                return Err(AnswerError::NoText(why.to_owned()));
            }
        }
        Ok(Generation {
            text,
            finish,
            prompt_tokens: self.tokens.0,
            tokens: self.tokens.1,
            thoughts: surrogates::replaced(self.thoughts),
            doubt,
            ..Generation::default()
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

/// Whether a whole text is what came in pieces, perhaps without the thoughts, or with other white space or another form of
/// letters.
fn is_same(pieces: &str, whole: &str) -> bool {
    let letters = |text: &str| text.nfc().filter(|letter| !letter.is_whitespace()).collect::<String>();
    let whole = letters(whole);
    letters(pieces) == whole || letters(&thoughts::split_streamed(pieces).text) == whole
}

fn parse(data: &str) -> Result<Value, AnswerError> {
    serde_json::from_str(&surrogates::marked(data))
        .map_err(|error| AnswerError::NoJson { error: JsonError::from(error).to_string(), text: shortened(data) })
}

/// Appends a text to `text`: a string, or a list of parts, whose thoughts go to `thoughts`.
fn text_of(value: &Value, text: &mut String, thoughts: &mut String) {
    match value {
        // Some servers send control characters of a model's vocabulary, which no file or database wants.
        Value::String(piece) if piece.contains('\0') => surrogates::append(text, &piece.replace('\0', "")),
        Value::String(piece) => surrogates::append(text, piece),
        Value::Array(parts) => parts.iter().for_each(|part| text_of(part, text, thoughts)),
        Value::Object(part) => {
            let kind = part.get("type").and_then(Value::as_str).unwrap_or("text");
            let field = ["text", "content", "thinking", "reasoning", "summary"].iter().find_map(|name| part.get(*name));
            let Some(field) = field else { return };
            match kind {
                "text" | "output_text" => text_of(field, text, thoughts),
                "thinking" | "reasoning" | "reasoning_text" => text_of(field, thoughts, &mut String::new()),
                // Parts of other kinds, such as images and calls of tools, hold no text.
                _ => {}
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Whether a value is there: not null, false, zero or empty.
fn says_something(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Bool(true) => true,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.trim().is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
    }
}

/// A number of tokens. What is no count is 0.
pub fn count(value: Option<&Value>) -> u64 {
    match value {
        Some(Value::Number(number)) => match number.as_u64() {
            Some(count) => count,
            None => number.as_f64().filter(|count| *count > 0.0).map_or(0, |count| count.round() as u64),
        },
        Some(Value::String(text)) => text.trim().parse().unwrap_or(0),
        _ => 0,
    }
}

/// An error that a server reports within a response whose status is 200.
fn reported(error: &Value) -> AnswerError {
    let error = error.get("error").filter(|inner| says_something(inner)).unwrap_or(error);
    let fields = ["code", "status", "status_code", "type"].iter().filter_map(|name| error.get(*name));
    let passing = fields.into_iter().any(|field| match field {
        Value::Number(code) => code.as_u64().is_some_and(passes),
        Value::String(kind) => {
            let kind = kind.to_ascii_lowercase();
            kind.parse().is_ok_and(passes)
                || [
                    "overloaded",
                    "rate_limit",
                    "server_error",
                    "internal",
                    "unavailable",
                    "timeout",
                    "resource_exhausted",
                ]
                .iter()
                .any(|name| kind.contains(name))
        }
        _ => false,
    });
    AnswerError::Reported { reason: message(error), passing }
}

/// Whether a request that failed with this status may succeed later.
pub(super) fn passes(status: u64) -> bool {
    matches!(status, 408 | 409 | 425 | 429 | 500..=599)
}

/// The message of an error.
fn message(error: &Value) -> String {
    let said = ["message", "detail", "msg"].iter().find_map(|name| error.get(*name)).unwrap_or(error);
    shortened(said.as_str().map_or_else(|| said.to_string(), str::to_owned).as_str())
}

/// The message in the body of a failed request.
pub(super) fn said(body: &str) -> String {
    let parsed = parse(body).ok();
    let error = parsed.as_ref().and_then(|body| {
        ["error", "detail", "message"].iter().find_map(|name| body.get(*name)).filter(|error| says_something(error))
    });
    error.map_or_else(|| shortened(body), message)
}

/// What a server sent that is no event: the field `error:`, or its first bytes.
pub(super) fn unread(head: &str) -> Option<AnswerError> {
    let head = head.trim();
    if head.is_empty() {
        return None;
    }
    let line = head.lines().find_map(|line| line.strip_prefix("error:"));
    let error = line.map(|line| parse(line).unwrap_or_else(|_| Value::String(line.trim().to_owned())));
    error.as_ref().map(reported)
}

/// The error that a response reports in place of what was asked for.
pub(super) fn error_in(text: &str) -> Option<AnswerError> {
    let answer = parse(text).ok()?;
    answer.get("error").filter(|error| says_something(error)).map(reported)
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
#[path = "stream_tests.rs"]
mod tests;
