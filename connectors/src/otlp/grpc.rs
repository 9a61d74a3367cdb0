//! Requests of OTLP over gRPC: one message each way, in HTTP/2.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::Full;
use hyper::body::Incoming;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::door::Outcome;
use super::listen::{BodyFault, Taking};
use super::records::{Form, Signal};

/// The bytes before a message: whether it is packed, and its length.
const HEAD: usize = 5;
/// Codes of gRPC beside those of outcomes.
const PERMISSION_DENIED: i32 = 7;
const RESOURCE_EXHAUSTED: i32 = 8;
const UNIMPLEMENTED: i32 = 12;
const UNAUTHENTICATED: i32 = 16;

/// A body of a reply.
pub(super) enum Body {
    /// Of HTTP/1.1.
    Whole(Full<Bytes>),
    /// Of gRPC: a message, and what follows it.
    Message(Option<Bytes>, Option<HeaderMap>),
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut *self {
            Self::Whole(body) => Pin::new(body).poll_frame(context),
            Self::Message(message, trailers) => {
                let frame = message.take().map(Frame::data).or_else(|| trailers.take().map(Frame::trailers));
                Poll::Ready(frame.map(Ok))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(body) => body.is_end_stream(),
            Self::Message(message, trailers) => message.is_none() && trailers.is_none(),
        }
    }

    fn size_hint(&self) -> http_body::SizeHint {
        match self {
            Self::Whole(body) => body.size_hint(),
            Self::Message(..) => http_body::SizeHint::default(),
        }
    }
}

/// Answers a request.
pub(super) async fn answer(taking: Arc<Taking>, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    if let Some((status, reason)) = taking.refuses(&request) {
        let code = if status == StatusCode::UNAUTHORIZED { UNAUTHENTICATED } else { PERMISSION_DENIED };
        return Ok(refused(code, reason, None));
    }
    let Some(signal) = Signal::of(request.uri().path()) else {
        let reason = format!("turnflow takes traces and logs, and nothing at `{}`", request.uri().path());
        return Ok(refused(UNIMPLEMENTED, &reason, None));
    };
    let (head, body) = request.into_parts();
    let packing = head.headers.get("grpc-encoding").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let read = async {
        let (bytes, room) = taking.body(&head.headers, body).await?;
        let (is_packed, message) = message(bytes).map_err(BodyFault::Broken)?;
        let packing = if is_packed { packing.to_ascii_lowercase() } else { String::new() };
        let (message, more) = taking.unpacked(packing, message).await?;
        Ok((message, (room, more)))
    };
    let (message, _room) = match read.await {
        Ok(read) => read,
        Err(BodyFault::TooLarge) => {
            let reason = format!("the message is larger than {} MiB (`max_mb`)", taking.max_bytes >> 20);
            return Ok(refused(RESOURCE_EXHAUSTED, &reason, None));
        }
        Err(BodyFault::Packing) => {
            let mut response = refused(UNIMPLEMENTED, "the packing of the message is not known", None);
            let known = HeaderValue::from_static("identity,deflate,gzip,zstd");
            response.headers_mut().insert("grpc-accept-encoding", known);
            return Ok(response);
        }
        Err(BodyFault::Busy) => return Ok(told(&Outcome::Busy("too much is received at once".to_owned()))),
        Err(BodyFault::Broken(reason)) => return Ok(told(&Outcome::Wrong(reason))),
    };
    Ok(told(&taking.door.receive(signal, Form::Protobuf, message, None).await))
}

/// The message of a body, and whether it is packed.
fn message(mut bytes: Vec<u8>) -> Result<(bool, Vec<u8>), String> {
    let head: [u8; HEAD] = bytes.get(..HEAD).and_then(|head| head.try_into().ok()).ok_or("the message has no head")?;
    let [packed, length @ ..] = head;
    let length = u32::from_be_bytes(length) as usize;
    if packed > 1 || bytes.len() != HEAD + length {
        return Err("the body is not one message of gRPC".to_owned());
    }
    bytes.drain(..HEAD);
    Ok((packed == 1, bytes))
}

/// The reply that says what became of a request.
fn told(outcome: &Outcome) -> Response<Body> {
    let Outcome::Taken { .. } = outcome else {
        let (code, _, reason) = outcome.told();
        return refused(code, reason, Some(outcome.encoded()));
    };
    let message = outcome.encoded();
    let length = u32::try_from(message.len()).unwrap_or_default();
    let framed = [&[0], &length.to_be_bytes()[..], &message].concat();
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    of_grpc(Body::Message(Some(framed.into()), Some(trailers)))
}

/// A reply without a message.
fn refused(code: i32, reason: &str, status: Option<Vec<u8>>) -> Response<Body> {
    use base64::Engine as _;
    let mut response = of_grpc(Body::Message(None, None));
    let headers = response.headers_mut();
    headers.insert("grpc-status", code.into());
    let reason = utf8_percent_encode(reason, NON_ALPHANUMERIC).to_string();
    if let Ok(reason) = HeaderValue::from_str(&reason) {
        headers.insert("grpc-message", reason);
    }
    let status = status.map(|status| base64::engine::general_purpose::STANDARD_NO_PAD.encode(status));
    if let Some(Ok(status)) = status.map(|status| HeaderValue::from_str(&status)) {
        headers.insert("grpc-status-details-bin", status);
    }
    response
}

fn of_grpc(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}
