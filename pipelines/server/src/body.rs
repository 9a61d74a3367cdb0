//! Bodies: reads request bodies within their limits, and keeps a value alive until a
//! response body is sent.

use std::borrow::Cow;
use std::pin::Pin;
use std::sync::Arc;
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
use turnflow_engine::odd_json;

use crate::app::App;
use crate::config::LimitsConfig;
use crate::encoding::decoded;
use crate::error::ApiError;
use crate::limits::Load;

/// Maximum number of JSON values in a body: objects, arrays, and their elements.
const VALUES: usize = 200_000;

/// The least mean rate at which a body must arrive, after the time that headers may take, in bytes per second.
const SLOWEST: f64 = 10_000.0;

/// How long to keep reading a body that is too long.
const DISCARD: Duration = Duration::from_secs(2);

/// Size of the pieces of a body. The connection takes a few of them at a time, and the next ones when these are sent.
const PIECE: usize = 64 << 10;

/// A body that holds a value until it is dropped: when its last piece is sent, or when the client disconnects.
pub struct Held<T> {
    body: Body,
    /// What is left of a frame.
    rest: Bytes,
    _held: T,
}

impl<T: Send + Unpin + 'static> Held<T> {
    /// A body that holds `held`.
    pub fn around(body: Body, held: T) -> Body {
        Body::new(Self { body, rest: Bytes::new(), _held: held })
    }
}

impl<T: Unpin> http_body::Body for Held<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            match std::task::ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(frame) => return Poll::Ready(Some(Ok(frame))),
                },
                end => return Poll::Ready(end),
            }
        }
        let at = self.rest.len().min(PIECE);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(at)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (mut hint, rest) = (self.body.size_hint(), self.rest.len() as u64);
        match hint.exact() {
            Some(exact) => hint.set_exact(exact + rest),
            None => hint.set_lower(hint.lower() + rest),
        }
        hint
    }
}

/// The whole body of a request, with its type.
pub struct Content {
    /// The type without its parameters, in lower case; empty if the request has none.
    pub mime: String,
    /// The character set that the type names.
    pub charset: Option<String>,
    /// The body, without the encodings of the header `Content-Encoding`.
    pub bytes: Bytes,
    /// Counts it, and what is made of it, as under way for its caller.
    pub load: Option<Arc<Load>>,
}

/// The byte order mark of UTF-8, which some programs write in front of a text.
const MARK: &[u8] = b"\xef\xbb\xbf";
/// The memory of a parsed JSON value besides its text, in bytes.
const VALUE_BYTES: usize = 100;

impl FromRequest<App> for Content {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self, ApiError> {
        let (head, mut body) = request.into_parts();
        let limits = &app.config().limits;
        let load = head.extensions.get::<Arc<Load>>().cloned();
        let count = |bytes: usize| load.as_ref().map_or(Ok(()), |load| load.add(bytes));
        // What a client announces is counted before it is received.
        let announced = announced(&head.headers).filter(|length| *length <= limits.body_bytes());
        count(announced.unwrap_or_default())?;
        let received = whole(&head.headers, &mut body, limits).await?;
        let before = announced.unwrap_or_default();
        count(received.len().saturating_sub(before))?;
        let length = received.len();
        let bytes = decoded(&head.headers, received, limits.body_bytes()).await?;
        count(bytes.len().saturating_sub(length))?;
        Ok(Self { mime: mime(&head.headers), charset: charset(&head.headers), bytes, load })
    }
}

/// The length of a body that its headers name.
fn announced(headers: &HeaderMap) -> Option<usize> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// The whole body of a request with these headers.
///
/// # Errors
///
/// 413: it is too long. 408: it did not arrive in time. 400: the connection failed.
pub async fn whole(headers: &HeaderMap, body: &mut Body, limits: &LimitsConfig) -> Result<Bytes, ApiError> {
    let limit = limits.body_bytes();
    if announced(headers).is_some_and(|length| length > limit) {
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

    /// Whether the body begins like a text in UTF-16 or UTF-32.
    pub fn is_wide(&self) -> bool {
        matches!(&*self.bytes, [0xff, 0xfe, ..] | [0xfe, 0xff, ..])
    }

    /// The body without a byte order mark.
    fn plain(&self) -> &[u8] {
        self.bytes.strip_prefix(MARK).unwrap_or(&self.bytes)
    }

    /// The body, if it can be JSON.
    fn of_json(&self) -> Result<&[u8], ApiError> {
        let is_named = self.charset.as_deref().is_some_and(|name| {
            let name = name.to_ascii_lowercase();
            name.starts_with("utf-16") || name.starts_with("utf-32") || name.starts_with("utf16")
        });
        let has_zeros = matches!(&*self.bytes, [0, _, ..] | [_, 0, ..]);
        if is_named || has_zeros || self.is_wide() {
            return Err(ApiError::bad("the body is in UTF-16 or UTF-32, but JSON must be in UTF-8 (RFC 8259)"));
        }
        let bytes = self.plain();
        let values = few_values(bytes)?;
        self.load.iter().try_for_each(|load| load.add(bytes.len() + values * VALUE_BYTES))?;
        Ok(bytes)
    }

    /// The body as text, without a byte order mark.
    ///
    /// # Errors
    ///
    /// 400: it is not UTF-8.
    pub fn text(&self) -> Result<&str, ApiError> {
        std::str::from_utf8(self.plain())
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
        let bytes = self.of_json()?;
        let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
        if first.is_some_and(|first| *first != b'{') {
            return Err(ApiError::bad("the body must be a JSON object"));
        }
        parse(bytes)
    }

    /// The values of a body with one value, an array, or one per line; and its form.
    ///
    /// # Errors
    ///
    /// 415: the body has another type. 400: it is not JSON, or has more than `most` values.
    pub fn values(&self, most: usize) -> Result<(Vec<serde_json::Value>, Many), ApiError> {
        let (values, many) = if self.is_lines() {
            self.of_json()?;
            let mut values = Vec::new();
            for (at, line) in self.text()?.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
                let value = odd_json::exact(line);
                values.push(value.map_err(|error| ApiError::bad(format!("line {}: {error}", at + 1)))?);
                if values.len() > most {
                    break;
                }
            }
            (values, Many::Lines)
        } else if self.is_json() {
            match parse(self.of_json()?)? {
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
    let (mut parts, body) = request.into_parts();
    let content = Content::from_request(Request::from_parts(parts.clone(), body), &app).await?;
    let bytes = content.bytes.slice_ref(content.of_json()?);
    // The protocol's own reader would make a whole number of more than 64 bits inexact.
    let bytes = match std::str::from_utf8(&bytes).map(odd_json::widened) {
        Ok(Cow::Owned(widened)) => Bytes::from(widened),
        Ok(Cow::Borrowed(_)) | Err(_) => bytes,
    };
    parts.headers.remove(header::CONTENT_ENCODING);
    parts.headers.remove(header::CONTENT_LENGTH);
    Ok(next.run(Request::from_parts(parts, Body::from(bytes))).await)
}

/// Counts the values of JSON, and refuses too many. Once parsed, each of them takes many times its text in memory.
fn few_values(bytes: &[u8]) -> Result<usize, ApiError> {
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
        false => Ok(values),
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    if bytes.is_empty() {
        return Err(ApiError::bad("the body is empty, but this route expects JSON"));
    }
    let parsed = match std::str::from_utf8(bytes) {
        Ok(text) => odd_json::exact(text),
        // It says where.
        Err(_) => serde_json::from_slice(bytes),
    };
    parsed.map_err(|error| ApiError::bad(format!("invalid body for this route: {error}")))
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
    use http_body::Body as _;

    use super::*;

    fn content(mime: &str, text: &str) -> Content {
        Content { mime: mime.to_owned(), charset: None, bytes: Bytes::copy_from_slice(text.as_bytes()), load: None }
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

    #[test]
    fn a_byte_order_mark_is_passed_over_and_other_encodings_are_named() {
        assert_eq!(content("application/json", "\u{feff}{\"a\": 1}").json::<serde_json::Value>().unwrap()["a"], 1);
        assert_eq!(content("text/plain", "\u{feff}The ferry").text().unwrap(), "The ferry");
        let lines = content("application/jsonl", "\u{feff}{}\n{}").values(9).unwrap();
        assert_eq!((lines.0.len(), lines.1), (2, Many::Lines));
        let wide = |bytes: &[u8], charset: Option<&str>| {
            let bytes = Bytes::copy_from_slice(bytes);
            let content = Content { bytes, charset: charset.map(str::to_owned), ..content("application/json", "") };
            content.json::<serde_json::Value>().unwrap_err().message
        };
        for (bytes, charset) in [
            (&b"\xff\xfe{\0}\0"[..], None),
            (b"\xfe\xff\0{\0}", None),
            (b"{\0}\0", None),
            (b"\0{\0}", None),
            (b"{}", Some("UTF-16LE")),
        ] {
            assert!(wide(bytes, charset).contains("must be in UTF-8"), "{bytes:?}");
        }
    }

    #[tokio::test]
    async fn a_held_value_is_dropped_with_the_last_piece() {
        let held = Arc::new(());
        let weak = Arc::downgrade(&held);
        let mut body = Held::around(Body::from(vec![7; 3 * PIECE + 1]), held);
        assert_eq!(body.size_hint().exact(), Some(3 * PIECE as u64 + 1));
        for left in [2 * PIECE + 1, PIECE + 1, 1, 0] {
            assert!(weak.upgrade().is_some());
            body.frame().await.unwrap().unwrap();
            assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(left as u64), left == 0));
        }
        drop(body);
        assert!(weak.upgrade().is_none());
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
