//! `HttpSink`: sends each answer to a receiver of any kind, in the form that it wants.
//!
//! ```ron
//! HttpSink(
//!     input: "final",
//!     url: "https://desk.example.org/api/conversations/{conversation_id}/messages",
//!     auth: Bearer(Env("DESK_TOKEN")),
//!     body: Jq("{content: .answer, private: (.status != \"answered\")}"),
//!     accept: Jq("if .body.error == \"ratelimited\" then false else .body.ok end"),
//! )
//! ```
//!
//! A request has what `body` gives: the record without it, a text as it is, anything else as JSON. Several values are
//! several requests, in their order; an answer without a value is not sent. The header `Idempotency-Key` has the key of the
//! delivery, the same each time it is sent.
//!
//! Without `accept`, the status of the reply decides as it does for `Webhook`: 200 to 299 accepts, 400, 404, 405, 410, 413,
//! 414, 415 and 422 make the answer a dead letter, and anything else is tried again. `accept` is a program over the reply,
//! `{status, headers, body, text}`, where `body` is null if the reply is not JSON: true accepts, false tries again, null
//! leaves it to the status, and a text or `error("…")` makes the answer a dead letter with that reason. Answers of one
//! conversation are sent one after another, those of others meanwhile, also while one fails. What is accepted is not sent
//! again, and its conversation goes on.
//!
//! ```
//! # use turnflow_connectors::http_sink::HttpSinkConfig;
//! # let ron = r#"
//! (input: "final", url: "https://desk.example.org/{conversation_id}", method: Put, rate: Some(5))
//! # "#;
//! # let config: HttpSinkConfig = turnflow_engine::spec::from_str(ron).unwrap();
//! # assert_eq!(config.timeout_s, 10.0);
//! ```

pub(crate) mod reply;
mod target;
#[cfg(test)]
mod tests;
pub(crate) mod tries;

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use parking_lot::Mutex;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Method, StatusCode, redirect};
use tokio::time::Instant;
use turnflow_engine::component::{
    Building, Check, ComponentContext, ComponentError, Models, SinkConfig, SinkKind, SinkMode, built, config,
};
use turnflow_engine::connector::{AnswerSink, ConnectorError, Delivery};
use turnflow_engine::record::AnswerRecord;
use turnflow_records::{Body, Made};

use self::reply::Reply;
use self::target::Target;
use self::tries::{Ended, Next, Tries, Unaccepted};
use crate::remote::{header_key, lasting};
use crate::secret::Secret;
use crate::shape::{self, BodyConfig, Outgoing, Shape, When};

/// Statuses that say that the same request will never be accepted.
const REFUSING: &[StatusCode] = &[
    StatusCode::BAD_REQUEST,
    StatusCode::NOT_FOUND,
    StatusCode::METHOD_NOT_ALLOWED,
    StatusCode::GONE,
    StatusCode::PAYLOAD_TOO_LARGE,
    StatusCode::URI_TOO_LONG,
    StatusCode::UNSUPPORTED_MEDIA_TYPE,
    StatusCode::UNPROCESSABLE_ENTITY,
];

/// At most this many answers are looked at for those to send, while the first of them fail.
const BATCH: usize = 1024;

/// Fields of `HttpSink`.
#[config]
pub struct HttpSinkConfig {
    /// Input node, which outputs Answers, Hits or Queries. The records of Hits and Queries have no answer text.
    pub input: String,
    /// The URL, with `http://` or `https://`. In its path and its query, `{name}` is that field of the answer's record, and
    /// `{a.b}` the field `b` within `a`.
    pub url: String,
    /// `Post` (default), `Put`, `Patch` or `Delete`.
    #[field(default)]
    pub method: HttpMethod,
    /// How turnflow proves who it is. Default: `None`.
    #[field(default)]
    pub auth: HttpAuth,
    /// Further headers of each request.
    #[field(default)]
    pub headers: BTreeMap<String, String>,
    /// What is sent: a program over the answer's record. Default: the record.
    pub body: Option<BodyConfig>,
    /// Which answers are sent. Default: all.
    pub when: Option<When>,
    /// A program over the reply that says whether the answer was accepted. Default: its status says so.
    pub accept: Option<BodyConfig>,
    /// Maximum number of requests in a second. Default: any.
    #[field(range = 0.001..=100_000.0)]
    pub rate: Option<f64>,
    /// Maximum number of requests at the same time, each for another conversation.
    #[field(default = 4, range = 1..=64)]
    pub concurrency: usize,
    /// Seconds to wait for the receiver's reply.
    #[field(default = 10.0, range = 0.1..=600.0)]
    pub timeout_s: f64,
    /// Seconds for which an answer is tried again before it becomes a dead letter. Default: without end.
    #[field(range = 0.0..=31_536_000.0)]
    pub retry_s: Option<f64>,
    /// Whether the sink receives revisions: `Live` (yes) or `Once` (no). Default: the pipeline's `mode`.
    pub mode: Option<SinkMode>,
}

/// The method of requests.
#[config]
#[derive(Copy, Default, PartialEq, Eq)]
pub enum HttpMethod {
    /// `POST`.
    #[default]
    Post,
    /// `PUT`.
    Put,
    /// `PATCH`.
    Patch,
    /// `DELETE`.
    Delete,
}

/// How turnflow proves who it is.
#[config]
#[derive(Default)]
pub enum HttpAuth {
    /// The receiver asks for nothing.
    #[default]
    None,
    /// A token, in the header `Authorization: Bearer`.
    Bearer(Secret),
    /// A user and a password.
    User(String, Secret),
    /// A header of this name with a key.
    Header(String, Secret),
}

/// Entry in the connector table.
pub const KIND: SinkKind = SinkKind::of::<HttpSinkConfig>("HttpSink", "answers sent to a URL in any form");

impl SinkConfig for HttpSinkConfig {
    fn validate(&self, check: &mut Check<'_>) {
        if let Err(problem) = Target::parse(&self.url) {
            check.error("wrong-value", "url", problem);
        }
        if let Err(problem) = reply::headers(&self.headers) {
            check.error("wrong-value", "headers", problem);
        }
        self.shape().validate(check);
        if let Some(accept) = &self.accept {
            shape::validate(accept, "accept", check);
        }
    }

    fn explain(&self) -> String {
        let mode = self.mode.map(|mode| format!(", mode: {mode:?}")).unwrap_or_default();
        // The path and the query may have a token.
        let host = Target::parse(&self.url).map(|target| target.host().to_owned()).unwrap_or_default();
        let auth = match self.auth {
            HttpAuth::None => "none",
            HttpAuth::Bearer(_) => "a token",
            HttpAuth::User(..) => "a user",
            HttpAuth::Header(..) => "a key",
        };
        let rate = self.rate.map(|rate| format!(", rate: {rate}")).unwrap_or_default();
        let retry = self.retry_s.map(|retry| format!(", retry_s: {retry}")).unwrap_or_default();
        let accept = if self.accept.is_some() { ", accept: Jq" } else { "" };
        let Self { method, concurrency, timeout_s, .. } = self;
        format!(
            "method: {method:?}, host: {host:?}, auth: {auth}, concurrency: {concurrency}, timeout_s: \
             {timeout_s}{rate}{retry}{}{accept}{mode}",
            self.shape().explain()
        )
    }

    fn mode(&self) -> Option<SinkMode> {
        self.mode
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn build<'a>(&'a self, _: &'a ComponentContext, _: &'a Models) -> Building<'a, dyn AnswerSink> {
        built(self.sink().map(|sink| Box::new(sink) as Box<dyn AnswerSink>))
    }
}

impl HttpSinkConfig {
    fn shape(&self) -> Shape<'_> {
        Shape { when: self.when.as_ref(), body: self.body.as_ref() }
    }

    /// Builds the sink.
    ///
    /// # Errors
    ///
    /// A field is not valid, or a program's file cannot be read.
    pub fn sink(&self) -> Result<HttpSink, ConnectorError> {
        let client = Client::builder()
            .timeout(Duration::from_secs_f64(self.timeout_s))
            .redirect(redirect::Policy::none())
            .build()
            .map_err(|error| lasting(error.to_string()))?;
        Ok(HttpSink {
            client,
            target: Target::parse(&self.url).map_err(lasting)?,
            method: match self.method {
                HttpMethod::Post => Method::POST,
                HttpMethod::Put => Method::PUT,
                HttpMethod::Patch => Method::PATCH,
                HttpMethod::Delete => Method::DELETE,
            },
            auth: self.auth.clone(),
            headers: reply::headers(&self.headers).map_err(lasting)?,
            outgoing: Outgoing::of(self.when.as_ref(), self.body.as_ref())?,
            accept: self.accept.as_ref().map(shape::compiled).transpose()?,
            pace: Mutex::new(Pace { each: self.rate.map(|rate| Duration::from_secs_f64(1.0 / rate)), next: None }),
            concurrency: self.concurrency,
            tries: Tries::new(self.retry_s.map(Duration::from_secs_f64)),
        })
    }
}

/// When the next request may be sent.
struct Pace {
    each: Option<Duration>,
    next: Option<Instant>,
}

impl Pace {
    /// The time of the next request, which is taken.
    fn take(&mut self) -> Option<Instant> {
        let each = self.each?;
        let now = Instant::now();
        let at = self.next.map_or(now, |next| next.max(now));
        self.next = Some(at + each);
        Some(at)
    }
}

/// Sends answers to a URL.
pub struct HttpSink {
    client: Client,
    target: Target,
    method: Method,
    auth: HttpAuth,
    headers: HeaderMap,
    outgoing: Outgoing,
    accept: Option<Body>,
    pace: Mutex<Pace>,
    concurrency: usize,
    tries: Tries,
}

fn key_of(answer: &AnswerRecord) -> String {
    AnswerRecord::delivery_key(&answer.key, answer.revision.into(), answer.retracted)
}

impl AnswerSink for HttpSink {
    fn deliver<'a>(&'a mut self, delivery: Delivery<'a>) -> BoxFuture<'a, Result<(), ConnectorError>> {
        async move {
            let begun = Instant::now();
            let due = self.tries.due(delivery.answers());
            let conversations: Vec<_> =
                due.into_iter().map(|numbers| self.conversation(delivery, numbers, begun)).collect();
            let sent = futures::stream::iter(conversations).buffer_unordered(self.concurrency);
            let are_all = sent.fold(true, async |all, ended| all && ended).await;
            if are_all { Ok(()) } else { Err(self.tries.error(delivery.answers())) }
        }
        .boxed()
    }

    fn batch(&self) -> usize {
        BATCH
    }
}

impl HttpSink {
    /// Sends the answers of a conversation, up to the first one that fails; returns whether all have ended.
    async fn conversation(&self, delivery: Delivery<'_>, numbers: Vec<usize>, begun: Instant) -> bool {
        for number in numbers {
            let Some(answer) = delivery.answers().get(number) else { continue };
            let ended = match self.tries.next(answer, begun) {
                Next::Send(accepted) => self.tries.ended(answer, self.send(answer, accepted).await),
                Next::Wait => Ended::Failed,
                Next::GiveUp(reason) => Ended::Refused(reason),
            };
            match ended {
                Ended::Accepted => delivery.accepted(number),
                Ended::Refused(reason) => delivery.refused(number, &reason),
                Ended::Failed => return false,
            }
        }
        true
    }

    /// Sends an answer's values after the first `accepted`.
    async fn send(&self, answer: &AnswerRecord, accepted: usize) -> Result<(), Unaccepted> {
        let Some(made) = self.outgoing.made(answer)? else { return Ok(()) };
        let (url, key) = (self.target.url(answer)?, key_of(answer));
        for (number, made) in made.into_iter().enumerate().skip(accepted) {
            let key = if number == 0 { key.clone() } else { format!("{key}#{number}") };
            self.request(url.clone(), header_key(key), made).await?;
            self.tries.accepted_value(answer);
        }
        Ok(())
    }

    async fn request(&self, url: reqwest::Url, key: String, made: Made) -> Result<(), Unaccepted> {
        let at = self.pace.lock().take();
        if let Some(at) = at {
            tokio::time::sleep_until(at).await;
        }
        let mut headers = self.headers.clone();
        let form = if matches!(made, Made::Text(_)) { "text/plain; charset=utf-8" } else { "application/json" };
        headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static(form));
        if let Some((name, value)) = self.proof()? {
            headers.insert(name, value);
        }
        let request = self.client.request(self.method.clone(), url).headers(headers).header("idempotency-key", key);
        // The error names the URL, which may have a token.
        let failed = |error: reqwest::Error| ConnectorError::from(ComponentError::transient(error.without_url()));
        let response = request.body(made.plain()).send().await.map_err(failed)?;
        Reply::read(response, self.accept.is_some()).await?.judged(self.accept.as_ref(), REFUSING)
    }

    /// The header that proves who turnflow is.
    fn proof(&self) -> Result<Option<(HeaderName, HeaderValue)>, ConnectorError> {
        let (name, value) = match &self.auth {
            HttpAuth::None => return Ok(None),
            HttpAuth::Bearer(secret) => (AUTHORIZATION, format!("Bearer {}", secret.read()?)),
            HttpAuth::User(user, secret) => {
                (AUTHORIZATION, format!("Basic {}", STANDARD.encode(format!("{user}:{}", secret.read()?))))
            }
            HttpAuth::Header(name, secret) => {
                let known = name.parse::<HeaderName>();
                (known.map_err(|_| lasting(format!("`{name}` is not the name of a header")))?, secret.read()?)
            }
        };
        let mut value = HeaderValue::from_str(&value).map_err(|_| lasting("the secret is no valid header"))?;
        value.set_sensitive(true);
        Ok(Some((name, value)))
    }
}
