//! Fields of a request that a server refuses.
//!
//! OpenAI's newer models take `max_completion_tokens` for `max_tokens` and no `temperature`; other servers refuse every
//! field that they do not know. A field that does not change what is asked is renamed or left out.

use std::fmt;

use serde_json::Value;

/// A change to all further requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Change {
    field: &'static str,
    /// Its new name; none if it is left out.
    name: Option<&'static str>,
}

/// The fields that can be changed. `stop` is not among them: without it, a text does not end where it must.
const CHANGES: &[Change] = &[
    Change { field: "stream_options", name: None },
    Change { field: "max_tokens", name: Some("max_completion_tokens") },
    Change { field: "temperature", name: None },
    Change { field: "top_p", name: None },
    Change { field: "seed", name: None },
    Change { field: "encoding_format", name: None },
    Change { field: STREAM, name: None },
];

/// Some servers do not stream replies of a form. Those get the whole reply at once.
const STREAM: &str = "stream";

/// The field of the form of a reply.
const FORM: &str = "response_format";

/// Words by which servers refuse a field, and not its value.
const WORDS: &[&str] = &[
    "unsupported",
    "not supported",
    "not support",
    "not permitted",
    "not allowed",
    "extra_forbidden",
    "extra inputs",
    "extra fields",
    "unknown",
    "unrecognized",
    "unrecognised",
    "unexpected",
    "only the default",
    "deprecated",
    "no longer",
    "not accepted",
];

impl Change {
    /// Applies the change to a request.
    pub fn apply(&self, body: &mut Value) {
        let Some(fields) = body.as_object_mut() else { return };
        if self.field == STREAM && !fields.contains_key(FORM) {
            return;
        }
        if self.field == STREAM {
            fields.remove("stream_options");
        }
        if let (Some(value), Some(name)) = (fields.remove(self.field), self.name) {
            fields.entry(name).or_insert(value);
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name {
            None if self.field == STREAM => {
                f.write_str("the server streams no replies of a form; they come whole from now on")
            }
            Some(name) => write!(f, "the server refuses `{}`; it is sent as `{name}` from now on", self.field),
            None => write!(f, "the server refuses `{}`; it is left out from now on", self.field),
        }
    }
}

/// What a refusal says, in lower case, without what it repeats of the request.
fn said(body: &Value, refusal: &str) -> String {
    let mut text = String::new();
    match serde_json::from_str::<Value>(refusal) {
        Ok(told) => own_texts(&told, &mut text),
        Err(_) => text.push_str(refusal),
    }
    let mut text = text.to_lowercase();
    let mut asked = Vec::new();
    ["messages", "input", "prompt"]
        .iter()
        .filter_map(|name| body.get(*name))
        .for_each(|value| all_texts(value, &mut asked));
    for asked in asked.iter().filter(|asked| !asked.trim().is_empty()) {
        text = text.replace(&asked.to_lowercase(), " ");
    }
    text
}

/// The texts of a JSON value, except in fields that repeat the request.
fn own_texts(value: &Value, into: &mut String) {
    const REPEATED: [&str; 6] = ["input", "body", "request", "messages", "prompt", "ctx"];
    match value {
        Value::String(text) => {
            into.push_str(text);
            into.push('\n');
        }
        Value::Array(values) => values.iter().for_each(|value| own_texts(value, into)),
        Value::Object(fields) => {
            let own = fields.iter().filter(|(name, _)| !REPEATED.contains(&name.as_str()));
            own.for_each(|(_, value)| own_texts(value, into));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn all_texts<'a>(value: &'a Value, into: &mut Vec<&'a str>) {
    match value {
        Value::String(text) => into.push(text),
        Value::Array(values) => values.iter().for_each(|value| all_texts(value, into)),
        Value::Object(fields) => {
            let content = fields.iter().filter(|(name, _)| ["content", "text"].contains(&name.as_str()));
            content.for_each(|(_, value)| all_texts(value, into));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Whether a name or a text of a form has a word.
fn mentions(form: &Value, word: &str) -> bool {
    let has = |text: &str| text.to_lowercase().contains(word);
    match form {
        Value::String(text) => has(text),
        Value::Array(parts) => parts.iter().any(|part| mentions(part, word)),
        Value::Object(fields) => fields.iter().any(|(name, part)| has(name) || mentions(part, word)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// The change that a refusal of this request asks for.
pub(super) fn change(body: &Value, refusal: &str) -> Option<Change> {
    let lower = said(body, refusal);
    if !WORDS.iter().any(|word| lower.contains(word)) {
        return None;
    }
    let told: Option<Value> = serde_json::from_str(refusal).ok();
    let param = told.as_ref().and_then(|told| told.pointer("/error/param").or_else(|| told.get("param"))?.as_str());
    let form = body.get(FORM);
    // A refusal of a schema names its parts, which may be called as fields of the request are: what one caller asks for must
    // not change the requests of others.
    let is_own = |word: &str| names(&lower, word) && !form.is_some_and(|form| mentions(form, word));
    let is_blamed = |change: &&Change| {
        let is_named = match change.field {
            STREAM => form.is_some() && [STREAM, "streaming"].into_iter().any(is_own),
            field => param.map_or_else(|| is_own(field), |param| param == field),
        };
        is_named && body.get(change.field).is_some()
    };
    CHANGES.iter().find(is_blamed).cloned()
}

/// Advice for a refusal that names a field of the request.
pub(super) fn hint(body: &Value, refusal: &str) -> Option<String> {
    // The form of a reply is the caller's, and not the model's to leave out.
    let needed = ["model", "messages", "input", FORM];
    let fields = body.as_object()?.keys().filter(|field| !needed.contains(&field.as_str()));
    let lower = said(body, refusal);
    let named = fields.into_iter().find(|field| names(&lower, field))?;
    Some(format!("the request has the field `{named}`; `body: {{\"{named}\": None}}` of the model leaves it out"))
}

/// Whether a text names a field, as a whole word.
fn names(text: &str, field: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(field)
        .any(|(at, _)| !text[..at].ends_with(is_part) && !text[at + field.len()..].starts_with(is_part))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_refused_field_is_renamed_or_left_out() {
        let body = json!({"model": "m", "max_tokens": 5, "temperature": 0, "stream_options": {}, "stop": ["x"]});
        let openai = r#"{"error":{"message":"Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.","param":"max_tokens"}}"#;
        let mut changed = body.clone();
        change(&body, openai).unwrap().apply(&mut changed);
        assert_eq!((changed.get("max_tokens"), &changed["max_completion_tokens"]), (None, &json!(5)));
        let pydantic = r#"{"detail":[{"type":"extra_forbidden","loc":["body","stream_options"],"msg":"Extra inputs are not permitted"}]}"#;
        assert_eq!(change(&body, pydantic).unwrap().field, "stream_options");
        assert_eq!(change(&body, "Unknown field: temperature").unwrap().field, "temperature");
        // A form that is not streamed is asked for whole, and everything else is streamed still.
        let mut formed = json!({"stream": true, "stream_options": {}, "response_format": {"type": "json_object"}});
        let groq =
            r#"{"error":{"message":"`response_format` does not support streaming","type":"invalid_request_error"}}"#;
        let mut plain = json!({"stream": true, "stream_options": {}});
        assert_eq!(change(&plain, groq), None);
        let whole = change(&formed, groq).unwrap();
        whole.apply(&mut formed);
        whole.apply(&mut plain);
        assert_eq!(formed, json!({"response_format": {"type": "json_object"}}));
        assert_eq!(plain, json!({"stream": true, "stream_options": {}}));
        // Nor are the parts of a schema.
        let formed = |name: &str| {
            let schema = json!({"properties": {name: {"type": "string", "default": "x"}}});
            let format = json!({"type": "json_schema", "json_schema": {"name": "a", "schema": schema}});
            json!({"temperature": 0.0, "max_tokens": 9, "stream": true, "response_format": format})
        };
        for name in ["temperature", "max_tokens", "stream", "Streaming"] {
            let said = format!(
                "Invalid schema for response_format 'a': 'default' is not permitted in ('properties', '{name}')"
            );
            for refusal in [said.clone(), json!({"error": {"message": said, "param": "response_format"}}).to_string()] {
                assert_eq!(change(&formed(name), &refusal), None, "{refusal}");
            }
        }
        assert_eq!(change(&formed("hours"), "Unknown field: temperature").unwrap().field, "temperature");
        // What it repeats of the request is no reason.
        let asked = "Is the temperature in the unknown port not allowed?";
        let own = json!({"temperature": 0, "seed": 1, "messages": [{"role": "user", "content": asked}]});
        let echo = json!({"detail": [{"loc": ["body", "messages"], "msg": "too long", "input": own}]}).to_string();
        for refusal in [echo, format!("too long: {asked}"), json!({"error": {"message": asked}}).to_string()] {
            assert_eq!((change(&own, &refusal), hint(&own, &refusal)), (None, None), "{refusal}");
        }
        assert!(change(&own, "Unknown field: temperature").is_some());
        // What is wrong with a value, or with a field that matters, stays.
        assert_eq!(change(&body, "max_tokens is too large: 5. The limit is 4."), None);
        assert_eq!(change(&body, r#"{"error":{"message":"unsupported parameter","param":"stop"}}"#), None);
        assert_eq!(change(&json!({}), openai), None);
        assert!(hint(&body, "`stop` is not supported").unwrap().contains(r#"body: {"stop": None}"#));
        assert_eq!(hint(&body, "the model stopped"), None);
    }
}
