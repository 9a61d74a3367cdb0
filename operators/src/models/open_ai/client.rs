//! HTTP requests to a server: time limits, retries, and concurrency.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use eventsource_stream::{EventStreamError, Eventsource};
use futures::{Stream, StreamExt};
use parking_lot::Mutex;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION, RETRY_AFTER};
use serde_json::Value;
use tokio::sync::Semaphore;
use turnflow_engine::inference::patience::waits_for;
use turnflow_engine::inference::{InferenceError, Usage};
use turnflow_engine::language::{Generation, TextStream};

use super::bounded::{Broken, Head, MOST, bounded, head, pieces_in_time};
use super::pauses::{pause, retry_after};
use super::refused::{Change, change, hint};
use super::stream::{AnswerError, Gathered, passes, said, unread};

/// Maximum size of the body of a failed request that is read; more than an error message needs.
const MOST_OF_AN_ERROR: usize = 64 << 10;
/// Number of bytes at the start of a stream in which an error is looked for that is no event.
const HEAD: usize = 4 << 10;

/// Limits of a client.
#[derive(Clone, Copy, Debug)]
pub(in crate::models) struct Limits {
    /// Time limit of one attempt.
    pub whole: Duration,
    /// Time limit between two pieces of a response.
    pub silence: Duration,
    /// Pause before the first retry.
    pub pause: Duration,
    pub retries: usize,
    pub concurrency: usize,
}

/// Counts the requests to the server.
#[derive(Debug, Default)]
pub(in crate::models) struct Meter {
    requests: AtomicU64,
    tokens: AtomicU64,
    busy_us: AtomicU64,
}

impl Meter {
    pub fn usage(&self) -> Usage {
        let requests = self.requests.load(Ordering::Relaxed);
        let tokens = self.tokens.load(Ordering::Relaxed);
        let busy_us = self.busy_us.load(Ordering::Relaxed);
        Usage { inputs: requests, batches: requests, tokens, padded: tokens, busy_us }
    }
}

/// An HTTP client for one server, with its API key.
pub(in crate::models) struct Client {
    http: reqwest::Client,
    /// The URL in error texts.
    url: String,
    endpoint: reqwest::Url,
    /// Kept only to remove it from the server's texts.
    key: Option<String>,
    limits: Limits,
    running: Semaphore,
    /// What the server has refused in earlier requests.
    refused: Mutex<Vec<Change>>,
    pub meter: Arc<Meter>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("url", &self.url).field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// A failed attempt.
struct Failure {
    error: InferenceError,
    /// Whether the error is transient.
    passing: bool,
    /// Pause that the server asks for.
    after: Option<Duration>,
    /// The body of a response that refuses the request.
    refusal: Option<String>,
    /// Whether half a text came. A caller with retries of its own does not pay for it again and again.
    is_half: bool,
}

impl Failure {
    /// The failure with a hint behind its reason.
    fn with(mut self, hint: &str) -> Self {
        if let InferenceError::Server { reason, .. } = &mut self.error {
            *reason = format!("{reason} ({hint})");
        }
        self
    }

    /// The final error, for a client that makes this many retries. A transient error stays marked as such only if the
    /// client makes none, so that its caller may retry.
    fn told(self, retries: usize) -> InferenceError {
        let Self { mut error, passing, is_half, after: asked, .. } = self;
        if let InferenceError::Server { transient, .. } | InferenceError::TimedOut { transient, .. } = &mut error {
            *transient = passing && retries == 0 && !is_half;
        }
        if let InferenceError::Server { status, outage, after, .. } = &mut error {
            // A wrong key, an empty account and a missing model are no faults of the input either.
            *after = asked;
            *outage = passing || matches!(status, Some(401..=404));
        }
        error
    }
}

impl Client {
    /// A client for `path` on the server at `url`. `key` is the name and the value of an environment variable.
    pub fn new(
        url: &str,
        path: &str,
        key: Option<(&str, Option<String>)>,
        limits: Limits,
    ) -> Result<Self, InferenceError> {
        let refused = |reason: String| InferenceError::Server {
            url: url.to_owned(),
            status: None,
            reason,
            transient: false,
            outage: false,
            after: None,
        };
        let endpoint = format!("{}/{path}", url.trim_end_matches('/'));
        let endpoint = reqwest::Url::parse(&endpoint).map_err(|error| refused(format!("not a valid URL: {error}")))?;
        let mut headers = HeaderMap::new();
        let mut secret = None;
        if let Some((variable, value)) = key {
            let value =
                value.map(|value| value.trim().to_owned()).filter(|value| !value.is_empty()).ok_or_else(|| {
                    refused(format!("the environment variable `{variable}`, which `key_env` names, is not set"))
                })?;
            let mut header = HeaderValue::from_str(&format!("Bearer {value}"))
                .map_err(|_| refused(format!("the environment variable `{variable}` does not hold a valid key")))?;
            header.set_sensitive(true);
            headers.insert(AUTHORIZATION, header);
            secret = Some(value);
        }
        // A redirect would send prompts to a server that nobody has configured.
        let redirects = reqwest::redirect::Policy::none();
        let builder = reqwest::Client::builder().default_headers(headers).connect_timeout(limits.whole);
        let mut builder = builder.redirect(redirects);
        let host = endpoint.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        if host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback()) {
            // A proxy for external servers does not lead back to this machine.
            builder = builder.no_proxy();
        }
        let http = builder.build().map_err(|error| refused(error.to_string()))?;
        let running = Semaphore::new(limits.concurrency);
        let (refused, meter) = (Mutex::default(), Arc::default());
        Ok(Self { http, url: url.to_owned(), endpoint, key: secret, limits, running, refused, meter })
    }

    /// A permanent error of this server.
    pub fn refused(&self, reason: String) -> InferenceError {
        self.error(None, reason)
    }

    /// Removes the key from a text. Must run before the text is shortened, which could split the key.
    fn without_key(&self, text: String) -> String {
        match &self.key {
            Some(key) => text.replace(key.as_str(), "[key]"),
            None => text,
        }
    }

    fn error(&self, status: Option<u16>, reason: String) -> InferenceError {
        let reason = self.without_key(reason);
        InferenceError::Server { url: self.url.clone(), status, reason, transient: false, outage: false, after: None }
    }

    /// Requests a text, with retries. The text goes to `stream` as it arrives.
    pub async fn complete(&self, body: &Value, stream: &TextStream) -> Result<Generation, InferenceError> {
        let once = |body| async move {
            stream.restart();
            let (answer, after) = self.send(body).await?;
            let mut pieces = self.succeeded(answer, after).await?;
            let Head { bytes, is_events } = head(&mut pieces).await.map_err(|error| self.ended(error))?;
            let pieces = futures::stream::once(async { Ok(Bytes::from(bytes)) }).chain(pieces);
            if is_events {
                return self.gather(bounded(pieces), stream).await;
            }
            let text = self.collect(pieces).await?;
            let generation = Gathered::whole(&text).map_err(|error| self.wrong(&error))?;
            stream.send(&generation.text);
            Ok(generation)
        };
        self.tried(body, once, |generation| generation.prompt_tokens + generation.tokens).await
    }

    /// Sends a request, with retries, and reads a response that is not streamed. `read` returns its value and the
    /// number of tokens used, or why it is unusable.
    pub async fn fetch<T>(
        &self,
        body: &Value,
        read: impl Fn(&str) -> Result<(T, u64), String>,
    ) -> Result<T, InferenceError> {
        let read = &read;
        let once = |body| async move {
            let (answer, after) = self.send(body).await?;
            let pieces = self.succeeded(answer, after).await?;
            let text = self.collect(pieces).await?;
            // Some programs write a byte order mark.
            let text = text.trim_start_matches('\u{feff}');
            read(text).map_err(|reason| match super::stream::error_in(text) {
                Some(error) => self.wrong(&error),
                // Such as the page of a proxy, which says nothing of the request.
                None if !text.trim_start().starts_with(['{', '[']) => {
                    Failure { passing: true, ..self.permanent(reason) }
                }
                None => self.permanent(reason),
            })
        };
        self.tried(body, once, |(_, tokens)| *tokens).await.map(|(what, _)| what)
    }

    async fn tried<T, F>(
        &self,
        body: &Value,
        once: impl Fn(Vec<u8>) -> F,
        tokens: impl Fn(&T) -> u64,
    ) -> Result<T, InferenceError>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let mut fields = body.clone();
        self.refused.lock().iter().for_each(|change| change.apply(&mut fields));
        let encode = |fields: &Value| serde_json::to_vec(fields).map_err(|error| self.refused(error.to_string()));
        let mut body = encode(&fields)?;
        // The permit is held during pauses too, so that an overloaded server gets no further requests.
        let _place = self.running.acquire().await.map_err(|error| self.refused(error.to_string()))?;
        let mut tried = 0;
        loop {
            let begun = Instant::now();
            self.meter.requests.fetch_add(1, Ordering::Relaxed);
            let result = tokio::time::timeout(self.limits.whole, once(body.clone())).await;
            self.meter.busy_us.fetch_add(begun.elapsed().as_micros() as u64, Ordering::Relaxed);
            let failure = match result.unwrap_or_else(|_| Err(self.late(self.limits.whole))) {
                Ok(answer) => {
                    self.meter.tokens.fetch_add(tokens(&answer), Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(failure) => failure,
            };
            if let Some(change) = failure.refusal.as_deref().and_then(|refusal| change(&fields, refusal)) {
                tracing::warn!(url = %self.url, error = %failure.error, "{change}");
                change.apply(&mut fields);
                body = encode(&fields)?;
                let mut refused = self.refused.lock();
                if !refused.contains(&change) {
                    refused.push(change);
                }
                continue;
            }
            let failure = match failure.refusal.as_deref().and_then(|refusal| hint(&fields, refusal)) {
                Some(hint) => failure.with(&hint),
                None => failure,
            };
            let pause = failure.after.unwrap_or_else(|| pause(self.limits.pause, tried, &body));
            // Gives up if the server asks for a pause that is longer than an attempt may take.
            let patient = failure.after.is_none_or(|after| after <= self.limits.whole && waits_for(after));
            if !failure.passing || tried >= self.limits.retries || !patient {
                return Err(failure.told(self.limits.retries));
            }
            tracing::debug!(url = %self.url, error = %failure.error, ?pause, "retrying a request");
            tokio::time::sleep(pause).await;
            tried += 1;
        }
    }

    /// The response, and the pause that the server asks for.
    async fn send(&self, body: Vec<u8>) -> Result<(reqwest::Response, Option<Duration>), Failure> {
        let request = self.http.post(self.endpoint.clone()).header(CONTENT_TYPE, "application/json").body(body);
        let answer = self.in_time(request.send()).await?.map_err(|error| self.broken(error))?;
        let header = |name: &str| answer.headers().get(name).and_then(|value| value.to_str().ok());
        let exact = header("retry-after-ms").and_then(|value| value.trim().parse::<f64>().ok());
        let exact = exact.and_then(|ms| Duration::try_from_secs_f64(ms / 1000.0).ok());
        let after = exact.or_else(|| header(RETRY_AFTER.as_str()).and_then(retry_after));
        Ok((answer, after))
    }

    /// The pieces of a successful response.
    async fn succeeded(
        &self,
        answer: reqwest::Response,
        after: Option<Duration>,
    ) -> Result<impl Stream<Item = Result<Bytes, Broken>> + Unpin + use<>, Failure> {
        let status = answer.status();
        let location =
            answer.headers().get(LOCATION).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        let mut pieces = Box::pin(pieces_in_time(Box::pin(answer.bytes_stream()), self.limits.silence));
        if status.is_success() {
            return Ok(pieces);
        }
        if let Some(location) = location.filter(|_| status.is_redirection()) {
            let reason =
                format!("status {status}: the server redirects to {location}; if that is right, set `url` to it");
            return Err(self.permanent(reason));
        }
        let mut text = Vec::new();
        // The status of a failed request matters more than its body.
        while let Some(Ok(piece)) = pieces.next().await
            && text.len() <= MOST_OF_AN_ERROR
        {
            text.extend_from_slice(&piece);
        }
        let text = self.without_key(String::from_utf8_lossy(&text).into_owned());
        let mut reason = format!("status {status}: {}", said(&text));
        if status == reqwest::StatusCode::NOT_FOUND {
            reason = format!(
                "{reason} (the request was to {}; `url` ends with the path before that, often `/v1`)",
                self.endpoint.path()
            );
        }
        let refusal = matches!(status.as_u16(), 400 | 422).then_some(text);
        let error = self.error(Some(status.as_u16()), reason);
        Err(Failure { error, passing: passes(status.as_u16().into()), after, refusal, is_half: false })
    }

    /// The whole body of a successful response.
    async fn collect(&self, pieces: impl Stream<Item = Result<Bytes, Broken>>) -> Result<String, Failure> {
        let mut pieces = std::pin::pin!(pieces);
        let mut text = Vec::new();
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(|error| self.ended(error))?;
            if text.len() + piece.len() > MOST {
                return Err(self.permanent(format!("the response is longer than {} MiB", MOST >> 20)));
            }
            text.extend_from_slice(&piece);
        }
        Ok(self.without_key(String::from_utf8_lossy(&text).into_owned()))
    }

    async fn gather(
        &self,
        pieces: impl Stream<Item = Result<Bytes, Broken>>,
        stream: &TextStream,
    ) -> Result<Generation, Failure> {
        let mut start = Vec::new();
        let pieces = pieces.inspect(|piece| {
            if let Ok(piece) = piece {
                start.extend_from_slice(&piece[..piece.len().min(HEAD.saturating_sub(start.len()))]);
            }
        });
        let gathered = self.events(pieces, stream).await?;
        gathered.end().map_err(|error| {
            let told = (error == AnswerError::Nothing).then(|| unread(&String::from_utf8_lossy(&start))).flatten();
            self.wrong(&told.unwrap_or(error))
        })
    }

    async fn events(
        &self,
        pieces: impl Stream<Item = Result<Bytes, Broken>>,
        stream: &TextStream,
    ) -> Result<Gathered, Failure> {
        let mut events = std::pin::pin!(pieces.eventsource());
        let mut gathered = Gathered::default();
        while let Some(event) = events.next().await {
            let event = event.map_err(|error| match error {
                EventStreamError::Transport(error) => self.ended(error),
                other => self.permanent(format!("the event stream cannot be parsed: {other}")),
            })?;
            if event.data.trim().is_empty() {
                continue;
            }
            let before = gathered.text().len();
            let data = self.without_key(event.data);
            let is_over = gathered.event(&event.event, &data).map_err(|error| self.wrong(&error))?;
            stream.send(&gathered.text()[before..]);
            if is_over {
                break;
            }
        }
        Ok(gathered)
    }

    async fn in_time<F: Future>(&self, future: F) -> Result<F::Output, Failure> {
        tokio::time::timeout(self.limits.silence, future).await.map_err(|_| self.late(self.limits.silence))
    }

    fn late(&self, waited: Duration) -> Failure {
        let error = InferenceError::TimedOut { url: self.url.clone(), seconds: waited.as_secs_f64(), transient: false };
        Failure { error, passing: true, after: None, refusal: None, is_half: false }
    }

    /// A failure that a retry does not mend.
    fn permanent(&self, reason: String) -> Failure {
        Failure { error: self.refused(reason), passing: false, after: None, refusal: None, is_half: false }
    }

    fn wrong(&self, error: &AnswerError) -> Failure {
        let is_half = *error == AnswerError::Cut;
        Failure { passing: error.passes(), is_half, ..self.permanent(error.to_string()) }
    }

    /// The bytes of a response have ended too early.
    fn ended(&self, error: Broken) -> Failure {
        match error {
            Broken::Connection(error) => self.broken(error),
            Broken::Silent => self.late(self.limits.silence),
            Broken::TooLong(reason) => self.permanent(reason),
        }
    }

    fn broken(&self, error: reqwest::Error) -> Failure {
        let passing = !error.is_builder() && !error.is_redirect();
        let what = if error.is_connect() { "cannot connect" } else { "the connection was lost" };
        // Includes the causes, but not the URL, which the error already names.
        let error = error.without_url();
        let mut reason = format!("{what}: {error}");
        let mut cause = std::error::Error::source(&error);
        while let Some(error) = cause {
            reason = format!("{reason}: {error}");
            cause = error.source();
        }
        Failure { passing, ..self.permanent(reason) }
    }
}
