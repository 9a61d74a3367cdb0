//! Server-sent events: their text, and streams with keep-alive comments.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::Stream;
use serde::Serialize;
use tokio::time::{Instant, Sleep};

/// A comment that clients skip, so that proxies keep the stream open.
const PING: &[u8] = b": ping\n\n";

/// An event without a name.
pub fn data(value: &impl Serialize) -> Bytes {
    encode(None, value)
}

/// An event with a name.
pub fn event(name: &str, value: &impl Serialize) -> Bytes {
    encode(Some(name), value)
}

/// An event with a name and an id, after which a reconnecting client continues.
pub fn numbered_event(id: u64, name: &str, value: &impl Serialize) -> Bytes {
    [format!("id: {id}\n").as_bytes(), &event(name, value)].concat().into()
}

/// The end of a stream in OpenAI's chat API.
pub fn done() -> Bytes {
    Bytes::from_static(b"data: [DONE]\n\n")
}

fn encode(name: Option<&str>, value: &impl Serialize) -> Bytes {
    // Serialized JSON has no line breaks, so one line of data is enough.
    let json = serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned());
    match name {
        Some(name) => format!("event: {name}\ndata: {json}\n\n").into(),
        None => format!("data: {json}\n\n").into(),
    }
}

/// The source of a stream's events.
pub trait Events: Send + 'static {
    /// Waits for the next events and adds them; false after the last.
    fn next(&mut self, out: &mut VecDeque<Bytes>) -> impl Future<Output = bool> + Send;
}

/// A response that streams events. Dropping it drops `events`.
pub fn response(events: impl Events, keep_alive: Duration) -> Response {
    let stream =
        futures::stream::unfold((events, VecDeque::new(), true), |(mut events, mut out, mut goes_on)| async move {
            loop {
                if let Some(bytes) = out.pop_front() {
                    return Some((bytes, (events, out, goes_on)));
                }
                if !goes_on {
                    return None;
                }
                goes_on = events.next(&mut out).await;
            }
        });
    let body = Body::from_stream(KeepAlive::new(stream, keep_alive));
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        // Asks buffering proxies not to buffer the response.
        (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    (headers, body).into_response()
}

/// A stream with a ping after each pause.
struct KeepAlive<S> {
    stream: Pin<Box<S>>,
    every: Duration,
    pause: Pin<Box<Sleep>>,
}

impl<S> KeepAlive<S> {
    fn new(stream: S, every: Duration) -> Self {
        Self { stream: Box::pin(stream), every, pause: Box::pin(tokio::time::sleep(every)) }
    }
}

impl<S: Stream<Item = Bytes>> Stream for KeepAlive<S> {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let every = self.every;
        if let Poll::Ready(item) = self.stream.as_mut().poll_next(context) {
            self.pause.as_mut().reset(Instant::now() + every);
            return Poll::Ready(item.map(Ok));
        }
        if self.pause.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        self.pause.as_mut().reset(Instant::now() + every);
        Poll::Ready(Some(Ok(Bytes::from_static(PING))))
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_is_one_line_of_data() {
        assert_eq!(data(&json!({"a": "x\ny"})), "data: {\"a\":\"x\\ny\"}\n\n");
        assert_eq!(event("delta", &1), "event: delta\ndata: 1\n\n");
    }

    struct Slow(u32);

    impl Events for Slow {
        async fn next(&mut self, out: &mut VecDeque<Bytes>) -> bool {
            if self.0 == 1 {
                tokio::time::sleep(Duration::from_millis(120)).await;
            }
            self.0 += 1;
            out.extend([data(&self.0), data(&self.0)]);
            self.0 < 2
        }
    }

    #[tokio::test]
    async fn a_pause_has_pings() {
        let response = response(Slow(0), Duration::from_millis(50));
        assert_eq!(response.headers()[header::CONTENT_TYPE], "text/event-stream; charset=utf-8");
        let text = response.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8(text.to_vec()).unwrap();
        assert!(text.starts_with("data: 1\n\ndata: 1\n\n: ping\n\n"), "{text}");
        assert!(text.ends_with("data: 2\n\ndata: 2\n\n"), "{text}");
    }
}
