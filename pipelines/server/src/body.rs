//! Bodies: reads request bodies within their limits, and keeps a value alive until a
//! response body is sent.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;

use crate::app::App;
use crate::config::LimitsConfig;
use crate::error::ApiError;

/// Maximum number of JSON values in a body: objects, arrays, and their elements.
const VALUES: usize = 200_000;

/// The least mean rate at which a body must arrive, after the time that headers may take, in bytes per second.
const SLOWEST: f64 = 10_000.0;

/// How long to keep reading a body that is too long.
const DISCARD: Duration = Duration::from_secs(2);

/// A body that holds a value until it is dropped: at its end, or when the client disconnects.
pub struct Held<T> {
    body: Body,
    _held: T,
}

impl<T: Send + Unpin + 'static> Held<T> {
    /// A body that holds `held`.
    pub fn around(body: Body, held: T) -> Body {
        Body::new(Self { body, _held: held })
    }
}

impl<T: Unpin> http_body::Body for Held<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The whole body of a request, with its type.
pub struct Content {
    /// The type without its parameters, in lower case; empty if the request has none.
    pub mime: String,
    /// The character set that the type names.
    pub charset: Option<String>,
    /// The body.
    pub bytes: Bytes,
}

impl FromRequest<App> for Content {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self, ApiError> {
        let (head, mut body) = request.into_parts();
        let bytes = whole(&head.headers, &mut body, &app.config().limits).await?;
        Ok(Self { mime: mime(&head.headers), charset: charset(&head.headers), bytes })
    }
}

/// The whole body of a request with these headers.
///
/// # Errors
///
/// 413: it is too long. 408: it did not arrive in time. 400: the connection failed.
pub async fn whole(headers: &HeaderMap, body: &mut Body, limits: &LimitsConfig) -> Result<Bytes, ApiError> {
    let limit = limits.body_bytes();
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if length.is_some_and(|length: usize| length > limit) {
        // A client that waits for `100 Continue` gets the error instead.
        if !headers.contains_key(header::EXPECT) {
            discard(body).await;
        }
        return Err(ApiError::too_large(limit));
    }
    match received(body, limit, Duration::from_secs_f64(limits.header_s)).await? {
        Ok(bytes) => Ok(bytes),
        Err(error) if error.is::<LengthLimitError>() => {
            discard(body).await;
            Err(ApiError::too_large(limit))
        }
        Err(_) => Err(ApiError::bad("the body cannot be read")),
    }
}

/// The whole body, of at most `limit` bytes. A client that sends nothing for long, or that sends slowly, is given up.
///
/// # Errors
///
/// 408: the body did not arrive in time. The inner result: the body is too long, or the connection failed.
async fn received(
    body: &mut Body,
    limit: usize,
    patience: Duration,
) -> Result<Result<Bytes, axum::BoxError>, ApiError> {
    let mut body = Limited::new(body, limit);
    let mut bytes = BytesMut::new();
    let begun = Instant::now();
    loop {
        let by = begun + patience + Duration::from_secs_f64(bytes.len() as f64 / SLOWEST);
        match tokio::time::timeout_at(by.into(), body.frame()).await {
            Err(_) => return Err(ApiError::slow_body()),
            Ok(None) => return Ok(Ok(bytes.freeze())),
            Ok(Some(Err(error))) => return Ok(Err(error)),
            Ok(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    bytes.extend_from_slice(data);
                }
            }
        }
    }
}

/// Keeps reading for a while: many clients read the response only after sending the whole body, and lose it if the
/// connection is closed earlier.
async fn discard(body: &mut Body) {
    let rest = async { while let Some(Ok(_)) = body.frame().await {} };
    let _ = tokio::time::timeout(DISCARD, rest).await;
}

/// The type of a body without its parameters.
fn mime(headers: &HeaderMap) -> String {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// The character set that the type of a body names.
fn charset(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    let named = value.split(';').skip(1).find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim().eq_ignore_ascii_case("charset").then(|| value.trim().trim_matches('"').to_owned())
    });
    named.filter(|name| !name.is_empty())
}

impl Content {
    /// Whether the type is JSON.
    pub fn is_json(&self) -> bool {
        self.mime == "application/json" || (self.mime.starts_with("application/") && self.mime.ends_with("+json"))
    }

    /// Whether the type is JSON Lines.
    pub fn is_lines(&self) -> bool {
        matches!(
            self.mime.as_str(),
            "application/x-ndjson" | "application/ndjson" | "application/jsonl" | "application/x-jsonlines"
        )
    }

    /// The body as text.
    ///
    /// # Errors
    ///
    /// 400: it is not UTF-8.
    pub fn text(&self) -> Result<&str, ApiError> {
        std::str::from_utf8(&self.bytes)
            .map_err(|error| ApiError::bad(format!("the body is not UTF-8: invalid byte at {}", error.valid_up_to())))
    }

    /// Parses JSON.
    ///
    /// # Errors
    ///
    /// 415: the body has another type. 400: it does not fit the route, or has too many values.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        if !self.is_json() {
            return Err(ApiError::media_type("`application/json`"));
        }
        few_values(&self.bytes)?;
        let first = self.bytes.iter().find(|byte| !byte.is_ascii_whitespace());
        if first.is_some_and(|first| *first != b'{') {
            return Err(ApiError::bad("the body must be a JSON object"));
        }
        parse(&self.bytes)
    }

    /// The values of a body with one value, an array, or one per line; and its form.
    ///
    /// # Errors
    ///
    /// 415: the body has another type. 400: it is not JSON, or has more than `most` values.
    pub fn values(&self, most: usize) -> Result<(Vec<serde_json::Value>, Many), ApiError> {
        few_values(&self.bytes)?;
        let (values, many) = if self.is_lines() {
            let mut values = Vec::new();
            for (at, line) in self.text()?.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
                let value = serde_json::from_str(line);
                values.push(value.map_err(|error| ApiError::bad(format!("line {}: {error}", at + 1)))?);
                if values.len() > most {
                    break;
                }
            }
            (values, Many::Lines)
        } else if self.is_json() {
            match parse(&self.bytes)? {
                serde_json::Value::Array(values) => (values, Many::Array),
                value => (vec![value], Many::One),
            }
        } else {
            return Err(ApiError::media_type("`application/json` or `application/x-ndjson`"));
        };
        match values.len() > most {
            true => Err(ApiError::bad(format!("the body has more than {most} records, the limit of this server"))),
            false => Ok((values, many)),
        }
    }
}

/// The form of a body's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Many {
    /// One value.
    One,
    /// An array.
    Array,
    /// One per line.
    Lines,
}

/// Middleware: limits the bodies of a service that reads them itself.
pub async fn bounded(State(app): State<App>, request: Request, next: Next) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let content = Content::from_request(Request::from_parts(parts.clone(), body), &app).await?;
    few_values(&content.bytes)?;
    Ok(next.run(Request::from_parts(parts, Body::from(content.bytes))).await)
}

/// Refuses JSON with too many values. Once parsed, each of them takes many times its text in memory.
fn few_values(bytes: &[u8]) -> Result<(), ApiError> {
    let (mut values, mut is_in_string, mut is_escaped) = (0, false, false);
    for byte in bytes {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_in_string => is_escaped = true,
            b'"' => is_in_string = !is_in_string,
            b',' | b'[' | b'{' if !is_in_string => values += 1,
            _ => {}
        }
    }
    match values > VALUES {
        true => Err(ApiError::bad(format!("the body has more than {VALUES} JSON values: split it"))),
        false => Ok(()),
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    if bytes.is_empty() {
        return Err(ApiError::bad("the body is empty, but this route expects JSON"));
    }
    serde_json::from_slice(bytes).map_err(|error| ApiError::bad(format!("invalid body for this route: {error}")))
}

/// The parameters of a request's query.
pub struct Params<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let query = Query::<T>::try_from_uri(&parts.uri);
        query.map(|Query(value)| Self(value)).map_err(|error| ApiError::bad(format!("bad query: {error}")))
    }
}

/// The parameter in a request's path.
pub struct InPath<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for InPath<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let path = Path::<T>::from_request_parts(parts, state).await;
        path.map(|Path(value)| Self(value)).map_err(|error| ApiError::bad(format!("bad path: {}", error.body_text())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(mime: &str, text: &str) -> Content {
        Content { mime: mime.to_owned(), charset: None, bytes: Bytes::copy_from_slice(text.as_bytes()) }
    }

    #[test]
    fn values_come_alone_in_arrays_and_in_lines() {
        let values = |mime, text, most| content(mime, text).values(most).map(|(values, many)| (values.len(), many));
        assert_eq!(values("application/json", "{}", 2), Ok((1, Many::One)));
        assert_eq!(values("application/json", "[{},{}]", 2), Ok((2, Many::Array)));
        assert_eq!(values("application/x-ndjson", "{}\n\n{}\n", 2), Ok((2, Many::Lines)));
        let error = |mime, text, most| values(mime, text, most).unwrap_err();
        assert_eq!(error("text/plain", "{}", 2).status.as_u16(), 415);
        assert!(error("application/jsonl", "{}\n{", 2).message.starts_with("line 2: "));
        assert!(error("application/json", "[1,2,3]", 2).message.contains("more than 2"));
        assert_eq!(error("application/json", "", 2).status.as_u16(), 400);
        assert_eq!(error("application/jsonl", "1\n2\n3", 2).status.as_u16(), 400);
    }

    /// One byte arrives, and then nothing more.
    #[tokio::test]
    async fn a_body_that_stops_is_given_up() {
        use futures::StreamExt;
        let first = futures::stream::once(async { Ok::<_, std::io::Error>(Bytes::from_static(b"{")) });
        let mut body = Body::from_stream(first.chain(futures::stream::pending()));
        let error = received(&mut body, 100, Duration::from_millis(50)).await.err().unwrap();
        assert_eq!(error.status.as_u16(), 408);
        let mut whole = Body::from("{}");
        assert_eq!(received(&mut whole, 100, Duration::from_secs(60)).await.unwrap().unwrap(), "{}");
        let mut long = Body::from("{}");
        assert!(received(&mut long, 1, Duration::from_secs(60)).await.unwrap().unwrap_err().is::<LengthLimitError>());
    }

    #[test]
    fn bodies_of_very_many_values_are_refused_unparsed() {
        let json = |text: &str| content("application/json", text).json::<serde_json::Value>().map(drop);
        let many = VALUES + 1;
        for text in
            [format!("[{}0]", "0,".repeat(many)), format!("{{\"a\": \"\\\"\", \"b\": [{}[]]}}", "[],".repeat(many))]
        {
            assert!(json(&text).unwrap_err().message.contains("JSON values"));
            assert!(content("application/json", &text).values(3).unwrap_err().message.contains("JSON values"));
        }
        assert_eq!(json(&format!("{{\"text\": \"\\\\{}\"}}", ",[{".repeat(many))), Ok(()));
    }
}
