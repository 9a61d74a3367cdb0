//! `Webhook`: sends each answer to a URL, as the body of a POST request.
//!
//! ```ron
//! Webhook(input: "final", url: "https://chat.example.org/answers", secret: Some(Env("HOOK_SECRET")))
//! ```
//!
//! Requests follow Standard Webhooks (standardwebhooks.com): the header `webhook-id` is the key of the delivery, the same
//! each time it is sent, `webhook-timestamp` is the time in seconds since the Unix epoch, and `webhook-signature` is
//! `v1,` and the HMAC-SHA256 of `ID.TIMESTAMP.BODY` in base64. `Idempotency-Key` has the key, too.
//!
//! An answer is acknowledged when the receiver answers with a status of 200 to 299. It is sent at least once, in the order
//! of the answers; after a kill, it may be sent again with the same key. After a status that says that the request itself
//! is wrong (400, 410, 413, 415, 422), the answer becomes a dead letter. Any other status, a redirect, and a receiver that
//! cannot be reached are tried again until the answer is accepted; `Retry-After` is observed. Meanwhile the turns of the
//! sink wait, and other sinks go on.
//!
//! ```
//! # use turnflow_connectors::webhook::WebhookConfig;
//! # let ron = r#"
//! (input: "final", url: "https://chat.example.org/answers", headers: {"X-Team": "support"}, timeout_s: 5)
//! # "#;
//! # let config: WebhookConfig = turnflow_engine::spec::from_str(ron).unwrap();
//! # assert_eq!(config.timeout_s, 5.0);
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::FutureExt;
use futures::future::BoxFuture;
use hmac::{Hmac, Mac};
use reqwest::header::CONTENT_TYPE;
use reqwest::{Client, StatusCode, Url, redirect};
use sha2::Sha256;
use turnflow_engine::clock::now_s;
use turnflow_engine::component::{
    Building, Check, ComponentContext, ComponentError, Models, SinkConfig, SinkKind, SinkMode, config,
};
use turnflow_engine::connector::{AnswerSink, ConnectorError, Delivery};
use turnflow_engine::record::AnswerRecord;

use crate::http_sink::reply::{Reply, headers};
use crate::http_sink::tries::Unaccepted;
use crate::remote::header_key;
use crate::secret::Secret;
use crate::shape::{Bodies, BodyConfig, Shape, When};

/// Statuses that say that the same request will never be accepted.
const REFUSING: &[StatusCode] = &[
    StatusCode::BAD_REQUEST,
    StatusCode::GONE,
    StatusCode::PAYLOAD_TOO_LARGE,
    StatusCode::UNSUPPORTED_MEDIA_TYPE,
    StatusCode::UNPROCESSABLE_ENTITY,
];
/// The beginning of a secret in the form of Standard Webhooks: base64 follows.
const PREFIX: &str = "whsec_";

/// Fields of `Webhook`.
#[config]
pub struct WebhookConfig {
    /// Input node, which outputs Answers, Hits or Queries. The records of Hits and Queries have no answer text.
    pub input: String,
    /// The URL that gets the answers, with `http://` or `https://`.
    pub url: String,
    /// Where the secret is that signs requests: `Env("NAME")` or `File("path")`. A secret that begins with `whsec_` is
    /// base64. Default: requests are not signed.
    pub secret: Option<Secret>,
    /// Further headers of each request.
    #[field(default)]
    pub headers: BTreeMap<String, String>,
    /// Seconds to wait for the receiver's reply.
    #[field(default = 10.0, range = 0.1..=600.0)]
    pub timeout_s: f64,
    /// Which answers the sink gets: `Answered`, `Idk`, `Failed`, `Any([…])` of these, or `Jq("…")`, a program over the
    /// answer's record whose value is true. Default: all.
    pub when: Option<When>,
    /// What is sent in place of the answer's record: the value of a program over it, `Jq("…")` or `JqFile("path")`. A
    /// text is sent without quotes. Default: the record.
    pub body: Option<BodyConfig>,
    /// Whether the sink receives revisions: `Live` (yes) or `Once` (no). Default: the pipeline's `mode`.
    pub mode: Option<SinkMode>,
}

/// Entry in the connector table.
pub const KIND: SinkKind = SinkKind::of::<WebhookConfig>("Webhook", "answers sent to a URL, signed");

impl SinkConfig for WebhookConfig {
    fn validate(&self, check: &mut Check<'_>) {
        if let Err(problem) = self.target() {
            check.error("wrong-value", "url", problem);
        }
        if let Err(problem) = headers(&self.headers) {
            check.error("wrong-value", "headers", problem);
        }
        self.shape().validate(check);
    }

    fn explain(&self) -> String {
        let mode = self.mode.map(|mode| format!(", mode: {mode:?}")).unwrap_or_default();
        // The path and the query may have a token.
        let host = self.target().ok().and_then(|url| url.host_str().map(str::to_owned)).unwrap_or_default();
        let signed = if self.secret.is_some() { "signed" } else { "not signed" };
        format!("host: {host:?}, {signed}, timeout_s: {}{}{mode}", self.timeout_s, self.shape().explain())
    }

    fn mode(&self) -> Option<SinkMode> {
        self.mode
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn build<'a>(&'a self, _: &'a ComponentContext, _: &'a Models) -> Building<'a, dyn AnswerSink> {
        self.shape().chosen(self.sink())
    }
}

impl WebhookConfig {
    fn shape(&self) -> Shape<'_> {
        Shape { when: self.when.as_ref(), body: self.body.as_ref() }
    }

    fn target(&self) -> Result<Url, String> {
        let url = Url::parse(&self.url).map_err(|error| format!("`url` is not a URL: {error}"))?;
        match url.scheme() {
            "http" | "https" => Ok(url),
            other => Err(format!("`url` begins with `{other}:`, and only http and https are supported")),
        }
    }

    /// Builds the sink.
    ///
    /// # Errors
    ///
    /// The secret cannot be read, or a field is not valid.
    pub fn sink(&self) -> Result<Webhook, ConnectorError> {
        let wrong = |problem: String| ConnectorError::from(ComponentError::new(std::io::Error::other(problem)));
        let secret = self.secret.as_ref().map(Secret::read).transpose()?;
        let client = Client::builder()
            .timeout(Duration::from_secs_f64(self.timeout_s))
            .redirect(redirect::Policy::none())
            .default_headers(headers(&self.headers).map_err(wrong)?)
            .build();
        Ok(Webhook {
            client: client.map_err(|error| wrong(error.to_string()))?,
            url: self.target().map_err(wrong)?,
            bodies: self.shape().bodies()?,
            key: secret.map(|secret| key(&secret)).transpose().map_err(wrong)?,
        })
    }
}

/// The bytes of a secret.
fn key(secret: &str) -> Result<Vec<u8>, String> {
    let key = match secret.strip_prefix(PREFIX) {
        Some(encoded) => STANDARD.decode(encoded).map_err(|_| format!("a secret with `{PREFIX}` must be base64"))?,
        None => secret.as_bytes().to_vec(),
    };
    if key.is_empty() { Err("the secret is empty".to_owned()) } else { Ok(key) }
}

/// Sends answers to a URL.
pub struct Webhook {
    client: Client,
    url: Url,
    bodies: Bodies,
    key: Option<Vec<u8>>,
}

/// The signature of a request.
fn signature(key: &[u8], id: &str, timestamp: u64, body: &[u8]) -> String {
    // A key of any length is valid.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else { return String::new() };
    mac.update(format!("{id}.{timestamp}.").as_bytes());
    mac.update(body);
    format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
}

impl AnswerSink for Webhook {
    fn deliver<'a>(&'a mut self, delivery: Delivery<'a>) -> BoxFuture<'a, Result<(), ConnectorError>> {
        async move {
            for answer in delivery.answers() {
                self.send(answer).await?;
                delivery.took(1);
            }
            Ok(())
        }
        .boxed()
    }

    fn batch(&self) -> usize {
        32
    }
}

impl Webhook {
    async fn send(&self, answer: &AnswerRecord) -> Result<(), ConnectorError> {
        let id = header_key(AnswerRecord::delivery_key(&answer.key, answer.revision.into(), answer.retracted));
        let Some(body) = self.bodies.message(answer)? else { return Ok(()) };
        let timestamp = now_s();
        let mut request = self
            .client
            .post(self.url.clone())
            .header(CONTENT_TYPE, "application/json")
            .header("webhook-id", &id)
            .header("webhook-timestamp", timestamp)
            .header("idempotency-key", &id);
        if let Some(key) = &self.key {
            request = request.header("webhook-signature", signature(key, &id, timestamp, &body));
        }
        // The error names the URL, which may have a token.
        let failed = |error: reqwest::Error| ConnectorError::from(ComponentError::transient(error.without_url()));
        let response = request.body(body).send().await.map_err(failed)?;
        let judged = Reply::read(response, false).await?.judged(None, REFUSING);
        let Err(Unaccepted { error, pause }) = judged else { return Ok(()) };
        if let Some(pause) = pause {
            tokio::time::sleep(pause).await;
        }
        Err(error)
    }
}

#[cfg(test)]
pub(crate) mod tests;
