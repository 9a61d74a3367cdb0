//! The form of a request and of its answer on the way between two processes of a cluster. Both run the same version of
//! the program. An answer is a head, then pieces of the body, and then the end, without which it is cut off.

use std::net::SocketAddr;

use axum::BoxError;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, header, response};
use bytes::{Buf, Bytes};
use serde::{Deserialize, Serialize};

/// The headers that concern one connection, besides those that `Connection` names. `Expect` is one of them here: the
/// process that received the request has also received its body.
const OF_CONNECTION: [HeaderName; 10] = [
    header::CONNECTION,
    header::EXPECT,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// The first byte of a part of an answer.
const HEAD: u8 = 0;
const PIECE: u8 = 1;
const LAST: u8 = 2;

type Headers = Vec<(String, Vec<u8>)>;

/// A request, without its body.
#[derive(Serialize, Deserialize)]
struct Question {
    method: String,
    uri: String,
    headers: Headers,
    client: SocketAddr,
    is_exposed: bool,
}

/// The head of an answer.
#[derive(Serialize, Deserialize)]
struct Head {
    status: u16,
    headers: Headers,
}

/// A request that another process has received.
pub(super) struct Received {
    pub request: Request<Bytes>,
    /// The other side of its connection.
    pub client: SocketAddr,
    /// Whether other machines can reach the address that it was sent to.
    pub is_exposed: bool,
}

/// A part of an answer.
pub(super) enum Part {
    /// The status and the headers.
    Head(Box<response::Parts>),
    /// A piece of the body.
    Piece(Bytes),
    /// The last piece, which may be empty.
    Last(Bytes),
}

/// The headers that are forwarded.
fn end_to_end(headers: &HeaderMap) -> Headers {
    let named = headers.get_all(header::CONNECTION).into_iter().filter_map(|value| value.to_str().ok());
    let named: Vec<&str> = named.flat_map(|names| names.split(',').map(str::trim)).collect();
    let is_forwarded = |name: &HeaderName| {
        !OF_CONNECTION.contains(name) && !named.iter().any(|of| of.eq_ignore_ascii_case(name.as_str()))
    };
    let forwarded = headers.iter().filter(|(name, _)| is_forwarded(name));
    forwarded.map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_owned())).collect()
}

fn header_map(headers: Headers) -> Result<HeaderMap, BoxError> {
    let mut map = HeaderMap::with_capacity(headers.len());
    for (name, value) in headers {
        map.append(HeaderName::try_from(name)?, HeaderValue::try_from(value)?);
    }
    Ok(map)
}

/// Encodes a request.
///
/// # Errors
///
/// Its head cannot be encoded.
pub(super) fn question(parts: &Parts, body: &[u8], client: SocketAddr, is_exposed: bool) -> Result<Vec<u8>, BoxError> {
    let mut bytes = bincode::serialize(&Question {
        method: parts.method.to_string(),
        uri: parts.uri.to_string(),
        headers: end_to_end(&parts.headers),
        client,
        is_exposed,
    })?;
    bytes.extend_from_slice(body);
    Ok(bytes)
}

/// Decodes a request.
///
/// # Errors
///
/// The bytes are none.
pub(super) fn received(question: Vec<u8>) -> Result<Received, BoxError> {
    let mut rest = question.as_slice();
    let Question { method, uri, headers, client, is_exposed } = bincode::deserialize_from(&mut rest)?;
    let head = question.len() - rest.len();
    let mut request =
        Request::builder().method(method.as_str()).uri(uri).body(Bytes::from(question).split_off(head))?;
    *request.headers_mut() = header_map(headers)?;
    Ok(Received { request, client, is_exposed })
}

/// Encodes the head of an answer.
///
/// # Errors
///
/// It cannot be encoded.
pub(super) fn head(parts: &response::Parts) -> Result<Vec<u8>, BoxError> {
    let mut bytes = vec![HEAD];
    bincode::serialize_into(&mut bytes, &Head { status: parts.status.as_u16(), headers: end_to_end(&parts.headers) })?;
    Ok(bytes)
}

/// Encodes a piece of the body. `is_last`: it is whole with this one.
pub(super) fn piece(body: &[u8], is_last: bool) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(body.len() + 1);
    bytes.push(if is_last { LAST } else { PIECE });
    bytes.extend_from_slice(body);
    bytes
}

/// Decodes a part of an answer.
///
/// # Errors
///
/// The bytes are none.
pub(super) fn part(bytes: Vec<u8>) -> Result<Part, BoxError> {
    let mut bytes = Bytes::from(bytes);
    if bytes.is_empty() {
        return Err("a part of an answer is empty".into());
    }
    match bytes.get_u8() {
        HEAD => {
            let Head { status, headers } = bincode::deserialize(&bytes)?;
            let (mut parts, ()) = response::Builder::new().status(status).body(())?.into_parts();
            parts.headers = header_map(headers)?;
            Ok(Part::Head(Box::new(parts)))
        }
        PIECE => Ok(Part::Piece(bytes)),
        LAST => Ok(Part::Last(bytes)),
        kind => Err(format!("a part of an answer is of the unknown kind {kind}").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_survives_the_way_without_the_headers_of_its_connection() {
        let client = "[2001:db8::1]:9".parse().unwrap();
        let (parts, ()) = Request::builder()
            .method("PURGE")
            .uri("/v1/documents/a%2Fb?wait=true")
            .header("Connection", "Keep-Alive, X-Own")
            .header("X-Own", "1")
            .header("Upgrade", "websocket")
            .header("Expect", "100-continue")
            .header("X-Twice", "a")
            .header("X-Twice", HeaderValue::from_bytes(b"\xff").unwrap())
            .body(())
            .unwrap()
            .into_parts();
        let Received { request, client: from, is_exposed } =
            received(question(&parts, b"\0body", client, true).unwrap()).unwrap();
        assert_eq!((from, is_exposed), (client, true));
        assert_eq!((request.method().as_str(), request.uri()), ("PURGE", &parts.uri));
        assert_eq!(request.body().as_ref(), b"\0body");
        let headers: Vec<_> = request.headers().iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        assert_eq!(headers, [("x-twice", &b"a"[..]), ("x-twice", b"\xff")]);
        for uri in ["*", "http://localhost:1/x?y", "localhost:80"] {
            let (parts, ()) = Request::builder().uri(uri).body(()).unwrap().into_parts();
            assert_eq!(received(question(&parts, b"", client, false).unwrap()).unwrap().request.uri(), uri);
        }
    }

    #[test]
    fn bytes_that_are_no_message_are_errors() {
        assert!(received(Vec::new()).is_err() && received(vec![0; 7]).is_err());
        for bytes in [vec![], vec![HEAD], vec![HEAD, 1], vec![9, 0]] {
            assert!(part(bytes.clone()).is_err(), "{bytes:?}");
        }
        assert!(matches!(part(piece(b"x", false)), Ok(Part::Piece(body)) if *body == *b"x"));
        assert!(matches!(part(piece(b"", true)), Ok(Part::Last(body)) if body.is_empty()));
    }
}
