//! Requests that other programs send to a source, such as spans of OpenTelemetry.

use futures::future::BoxFuture;
use serde_json::{Map, Value};

/// A request.
#[derive(Clone, Debug, Default)]
pub struct SentRequest {
    /// The path of its URL, as in `/v1/traces`.
    pub path: String,
    /// The type of its body, without parameters, in lower case.
    pub content_type: String,
    /// Its body, without encodings.
    pub body: Vec<u8>,
    /// Who sends it: the field `principal` of the turns.
    pub principal: Option<Map<String, Value>>,
}

/// What the program gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentReply {
    /// The status of HTTP.
    pub status: u16,
    /// The type of the body.
    pub content_type: &'static str,
    /// After how many seconds the program should send it again.
    pub retry_after_s: Option<u64>,
    /// The body.
    pub body: Vec<u8>,
}

/// Takes the requests that other programs send to a source.
pub trait TakesRequests: Send + Sync {
    /// Takes a request. What it brings is on disk when the reply says that it was taken.
    fn take(&self, request: SentRequest) -> BoxFuture<'static, SentReply>;
}
