//! Headers of requests, and what the replies of receivers mean.

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Response, StatusCode};
use serde_json::{Map, Value, json};
use turnflow_engine::component::ComponentError;
use turnflow_engine::connector::ConnectorError;
use turnflow_records::{Body, Made};

use super::tries::Unaccepted;

fn refused(reason: String) -> ConnectorError {
    ConnectorError::Refused { reason }
}

/// The longest pause that a receiver can ask for.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Characters of a reply that are shown in an error.
const SHOWN: usize = 200;
/// Maximum size of a reply that a program gets; the rest is not read, because it may have no end.
const MOST: usize = 1 << 20;
const MOST_BYTES_OF_A_CHARACTER: usize = 4;

/// The headers of requests that a configuration names.
pub(crate) fn headers(given: &BTreeMap<String, String>) -> Result<HeaderMap, String> {
    let header = |(name, value): (&String, &String)| {
        let known = name.parse::<HeaderName>().map_err(|_| format!("`{name}` is not the name of a header"))?;
        let value = HeaderValue::from_str(value).map_err(|_| format!("the value of `{name}` is not valid"))?;
        Ok((known, value))
    };
    given.iter().map(header).collect()
}

/// A reply.
pub(crate) struct Reply {
    status: StatusCode,
    headers: HeaderMap,
    text: String,
}

impl Reply {
    /// Reads a reply; all of it if a program needs it.
    ///
    /// # Errors
    ///
    /// A program needs the reply, and it breaks off.
    pub async fn read(mut response: Response, is_needed: bool) -> Result<Self, ConnectorError> {
        let (status, headers) = (response.status(), response.headers().clone());
        let most = if is_needed { MOST } else { SHOWN * MOST_BYTES_OF_A_CHARACTER };
        let mut bytes = Vec::new();
        while bytes.len() < most && (is_needed || !status.is_success()) {
            match response.chunk().await {
                Ok(Some(part)) => bytes.extend_from_slice(&part),
                Ok(None) => break,
                Err(_) if !is_needed => break,
                Err(error) => return Err(ComponentError::transient(error.without_url()).into()),
            }
        }
        bytes.truncate(most);
        Ok(Self { status, headers, text: String::from_utf8_lossy(&bytes).into_owned() })
    }

    /// Whether the receiver has accepted what was sent. `refusing`: the statuses that say that the same request will never
    /// be accepted.
    ///
    /// # Errors
    ///
    /// [`ConnectorError::Refused`] if it never will, or else an error that may pass, with the pause that the receiver
    /// asks for.
    pub fn judged(self, accept: Option<&Body>, refusing: &[StatusCode]) -> Result<(), Unaccepted> {
        let verdict = match accept {
            None => None,
            Some(program) => self.verdict(program)?,
        };
        match verdict {
            Some(true) => return Ok(()),
            None if self.status.is_success() => return Ok(()),
            None if refusing.contains(&self.status) => return Err(refused(self.shown()).into()),
            _ => {}
        }
        let pause = self.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse::<u64>().ok());
        let error = ComponentError::transient(std::io::Error::other(self.shown())).into();
        Err(Unaccepted { error, pause: pause.map(|seconds| Duration::from_secs(seconds).min(LONGEST_PAUSE)) })
    }

    /// What a program says of the reply; `None` if it says nothing.
    fn verdict(&self, program: &Body) -> Result<Option<bool>, ConnectorError> {
        let headers: Map<String, Value> = self
            .headers
            .iter()
            .map(|(name, value)| (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into()))
            .collect();
        let body: Value = serde_json::from_str(&self.text).unwrap_or_default();
        let reply = json!({"status": self.status.as_u16(), "headers": headers, "body": body, "text": self.text});
        let made = program.run(reply.to_string().as_bytes());
        let made = made.map_err(|error| refused(format!("`accept`: {error} ({})", self.shown())))?;
        match made.into_iter().next() {
            None => Ok(None),
            Some(Made::Text(reason)) => Err(refused(reason)),
            Some(Made::Json(value)) => match value.as_str() {
                "true" => Ok(Some(true)),
                "false" => Ok(Some(false)),
                "null" => Ok(None),
                other => Err(refused(format!("`accept` gives {other}, and no true, false, null or text"))),
            },
        }
    }

    fn shown(&self) -> String {
        let text: String = self.text.chars().take(SHOWN).collect();
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        format!("the receiver replied {} {text}", self.status).trim().to_owned()
    }
}
