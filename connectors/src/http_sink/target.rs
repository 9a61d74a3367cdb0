//! URLs with fields of the answer's record.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Url;
use serde_json::Value;
use turnflow_engine::connector::ConnectorError;
use turnflow_engine::record::AnswerRecord;

/// What is encoded in a field: all but the unreserved characters (RFC 3986, section 2.3).
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Where answers are sent.
#[derive(Debug)]
pub(super) struct Target {
    parts: Vec<Part>,
    host: String,
}

#[derive(Debug)]
enum Part {
    Text(String),
    /// The names of a field and of the objects that have it.
    Field(Vec<String>),
}

impl Target {
    /// Parses a URL.
    pub fn parse(url: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = url;
        while let Some((text, after)) = rest.split_once('{') {
            let (name, after) = after.split_once('}').ok_or("`url` has a `{` without `}`")?;
            let names: Vec<String> = name.split('.').map(str::to_owned).collect();
            if names.iter().any(String::is_empty) {
                return Err(format!("`{{{name}}}` in `url` is not the name of a field"));
            }
            parts.extend([Part::Text(text.to_owned()), Part::Field(names)]);
            rest = after;
        }
        parts.push(Part::Text(rest.to_owned()));
        let filled: String = parts
            .iter()
            .map(|part| match part {
                Part::Text(text) => text.as_str(),
                Part::Field(_) => "x",
            })
            .collect();
        let whole = Url::parse(&filled).map_err(|error| format!("`url` is not a URL: {error}"))?;
        if !matches!(whole.scheme(), "http" | "https") {
            return Err(format!("`url` begins with `{}:`, and only http and https are supported", whole.scheme()));
        }
        // An answer must not choose the server, nor go there in place of a secret.
        let Some(Part::Text(first)) = parts.first() else { return Err("`url` is empty".to_owned()) };
        let has_host = first.split_once("://").is_some_and(|(_, rest)| rest.contains(['/', '?', '#']));
        if parts.len() > 1 && !has_host {
            return Err("a field in `url` must come behind the host".to_owned());
        }
        let host = whole.host_str().unwrap_or_default().to_owned();
        Ok(Self { parts, host })
    }

    /// The host.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The URL for an answer.
    pub fn url(&self, answer: &AnswerRecord) -> Result<Url, ConnectorError> {
        let refused = |reason: String| ConnectorError::Refused { reason };
        let record = match self.parts.len() {
            1 => Value::Null,
            _ => serde_json::to_value(answer).map_err(|error| refused(error.to_string()))?,
        };
        let mut url = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => url.push_str(text),
                Part::Field(names) => {
                    let value = names.iter().try_fold(&record, |value, name| value.get(name));
                    let text = match value {
                        Some(Value::String(text)) => text.clone(),
                        Some(value @ (Value::Number(_) | Value::Bool(_))) => value.to_string(),
                        _ => String::new(),
                    };
                    // A part of a path that is `..` would lead elsewhere.
                    if matches!(text.as_str(), "" | "." | "..") {
                        return Err(refused(format!("`url` needs the field `{}`, which is {text:?}", names.join("."))));
                    }
                    url.extend(utf8_percent_encode(&text, ENCODED));
                }
            }
        }
        Url::parse(&url).map_err(|error| refused(format!("the URL of this answer is not valid: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_encoded_and_cannot_lead_elsewhere() {
        let mut answer = crate::testing::answer();
        answer.conversation_id = "a/../b?c=ü {x}".into();
        answer.extra.insert("desk".to_owned(), serde_json::json!({"id": 7}));
        let url = |url: &str| Target::parse(url).unwrap().url(&answer).map(String::from);
        assert_eq!(
            url("https://desk.example/{conversation_id}/m?d={desk.id}").unwrap(),
            "https://desk.example/a%2F..%2Fb%3Fc%3D%C3%BC%20%7Bx%7D/m?d=7"
        );
        assert!(url("https://desk.example/{nothing}").is_err() && url("https://desk.example/{desk}").is_err());
        answer.conversation_id = "..".into();
        assert!(Target::parse("http://h/{conversation_id}/m").unwrap().url(&answer).is_err());
        for wrong in
            ["https://{host}/x", "https://h{x}/", "ftp://h/", "https://h/{", "https://h/{}", "/x", "https://h/{a..b}"]
        {
            assert!(Target::parse(wrong).is_err(), "{wrong}");
        }
    }
}
