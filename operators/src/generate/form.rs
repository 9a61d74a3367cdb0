//! Replies of a form that a caller asks for (`response_format`).

use serde_json::{Map, Value};
use turnflow_engine::inference::InferenceError;
use turnflow_engine::language::{Part, Prompt, Sampling};
use turnflow_engine::record::Turn;

/// What a prompt says for any JSON object. Servers such as OpenAI's refuse the form if no message has the word JSON, and a
/// model that is not told may write white space until it is cut.
const ASK: &str = "\n\nReply with one JSON object.";
/// Maximum number of characters of the caller's instructions that are in a prompt.
const INSTRUCTIONS: usize = 4000;
/// Words by which servers refuse a form, and not something else of the request.
const WORDS: &[&str] = &["response_format", "schema", "json", "grammar", "guided", "structured"];

/// Whether the form is any JSON object.
pub(super) fn is_object(sampling: &Sampling) -> bool {
    sampling.format.as_ref().is_some_and(|format| format["type"] == "json_object")
}

/// Asks for an object at the end of a prompt. Only words say which fields it has, and callers put them into the question, or
/// into their instructions, which are not in the prompt otherwise.
pub(super) fn ask_for_object(prompt: &mut Prompt, turn: &Turn) {
    let Some(message) = prompt.messages.last_mut() else { return };
    let instructions = turn.extra.get("instructions").and_then(Value::as_str).unwrap_or_default().trim();
    let instructions: String = instructions.chars().take(INSTRUCTIONS).collect();
    let text = match instructions.is_empty() {
        true => ASK.to_owned(),
        false => format!("{ASK} What the user says about it: {instructions}"),
    };
    message.parts.push(Part { text, may_be_cut: false });
}

/// An error of a model. A server that refuses the form says what the caller must change.
pub(super) fn refused(error: InferenceError) -> InferenceError {
    match error {
        InferenceError::Server { status: Some(400 | 422), reason, .. } if is_about_a_form(&reason) => {
            InferenceError::Form(format!("the model's server refuses it: {reason}"))
        }
        other => other,
    }
}

fn is_about_a_form(reason: &str) -> bool {
    let reason = reason.to_lowercase();
    WORDS.iter().any(|word| reason.contains(word))
}

/// Checks a whole reply.
///
/// # Errors
///
/// It is no JSON, or no object.
pub(super) fn check(text: &str, is_object: bool) -> Result<(), InferenceError> {
    let is_right = match is_object {
        true => serde_json::from_str::<Map<String, Value>>(text).is_ok(),
        false => serde_json::from_str::<Value>(text).is_ok(),
    };
    let what = if is_object { "JSON object" } else { "JSON" };
    match is_right {
        true => Ok(()),
        false => Err(InferenceError::Failed(format!(
            "the reply is no {what}: the model's server does not keep to `response_format`"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_of_the_form_is_told_apart() {
        let server = |status, reason: &str| InferenceError::Server {
            url: "http://10.0.0.7/v1".to_owned(),
            status: Some(status),
            reason: reason.to_owned(),
            transient: false,
            outage: false,
            after: None,
        };
        for reason in [
            "status 400 Bad Request: Invalid schema for response_format 'a'",
            "status 400 Bad Request: The provided JSON schema contains features not supported by xgrammar",
            "status 400 Bad Request: failed to parse grammar",
        ] {
            let InferenceError::Form(told) = refused(server(400, reason)) else { panic!("{reason}") };
            assert!(told.ends_with(reason) && !told.contains("10.0.0.7"), "{told}");
        }
        for (status, reason) in [(400, "the prompt is too long"), (500, "the schema is lost"), (401, "no JSON for you")]
        {
            assert!(matches!(refused(server(status, reason)), InferenceError::Server { .. }), "{reason}");
        }
    }

    #[test]
    fn a_whole_reply_has_its_form() {
        assert!(check("{\"a\": 1}", true).is_ok() && check("[1]", false).is_ok());
        assert!(check("[1]", true).is_err() && check("{\"a\": 1", false).is_err());
    }
}
