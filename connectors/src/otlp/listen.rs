//! The address at which requests come in, over HTTP/1.1 and over gRPC (HTTP/2) at one port.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderName, ORIGIN,
    RETRY_AFTER,
};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use turnflow_engine::connector::{ConnectorError, SentReply, SentRequest, TakesRequests as _};

use super::door::{AGAIN_S, Door};
use super::grpc;
use super::tls::{SECOND, Tls};
use super::unpack::{Fault, KNOWN, unpacked};
use crate::remote::lasting;
use crate::secret::Secret;

/// Maximum number of connections. At the maximum, no other one is accepted.
const CONNECTIONS: usize = 1024;
/// Maximum number of requests of a connection at once, over gRPC.
const STREAMS: u32 = 128;
/// How long a client may take for the headers of a request, and for its body.
const HEADERS: Duration = Duration::from_secs(30);
const BODY: Duration = Duration::from_secs(120);
/// How long requests may take that are under way when the source ends.
const LAST: Duration = Duration::from_secs(2);
/// The pause after a failed accept, and between two looks at the first bytes of a connection.
const PAUSE: Duration = Duration::from_millis(100);
const LOOK: Duration = Duration::from_millis(5);
/// How HTTP/2 begins.
const PREFACE: &[u8] = b"PRI";
/// Requests that are received at once may have so many times the size of the largest one.
const AT_ONCE: usize = 4;

/// What takes the requests.
pub(super) struct Listener {
    pub door: Door,
    pub token: Option<Secret>,
    /// Maximum size of a body, unpacked.
    pub max_bytes: usize,
    /// Encrypts connections, if they are.
    pub tls: Option<Tls>,
}

/// A body of a reply.
pub(super) type Body = grpc::Body;

/// The address is open.
pub(super) struct Listening {
    /// Which it is, if the port was left open.
    #[cfg(test)]
    pub address: SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Listening {
    /// Opens the address.
    ///
    /// # Errors
    ///
    /// It cannot be used, or the token cannot be read.
    pub fn start(listener: Listener, address: SocketAddr, runtime: &Handle) -> Result<Self, ConnectorError> {
        if let Some(token) = &listener.token {
            token.read()?;
        }
        let socket = runtime.block_on(TcpListener::bind(address));
        let socket = socket.map_err(|error| lasting(format!("cannot listen on {address}: {error}")))?;
        let at = socket.local_addr().unwrap_or(address);
        tracing::info!(address = %at, "taking OTLP over HTTP and gRPC");
        let stop = CancellationToken::new();
        let task = runtime.spawn(accept(Arc::new(Taking::of(listener)), socket, stop.clone()));
        Ok(Self {
            #[cfg(test)]
            address: at,
            stop,
            task,
        })
    }

    /// Ends it, after the requests that are under way.
    pub fn end(self, runtime: &Handle) {
        self.stop.cancel();
        let _ = runtime.block_on(self.task);
    }
}

/// What all connections share.
pub(super) struct Taking {
    pub door: Door,
    token: Option<Secret>,
    pub max_bytes: usize,
    tls: Option<Tls>,
    /// The size of what may be under way, in KiB.
    room: Arc<Semaphore>,
}

impl Taking {
    fn of(listener: Listener) -> Self {
        let Listener { door, token, max_bytes, tls } = listener;
        Self { door, token, max_bytes, tls, room: Arc::new(Semaphore::new(AT_ONCE * max_bytes / 1024)) }
    }

    /// Why a request may not come in, if it may not.
    fn refused(&self, headers: &HeaderMap, host: Option<&str>) -> Option<(StatusCode, &'static str)> {
        let Some(token) = &self.token else {
            // A page that a user of this machine opens must not send anything here.
            let is_here = host.is_none_or(is_local);
            return match is_here && !headers.contains_key(ORIGIN) {
                true => None,
                false => {
                    Some((StatusCode::FORBIDDEN, "without a token, only programs of this machine may send anything"))
                }
            };
        };
        let given = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let given =
            given.and_then(|value| value.split_once(' ')).filter(|(kind, _)| kind.eq_ignore_ascii_case("bearer"));
        let Ok(token) = token.read() else {
            return Some((StatusCode::SERVICE_UNAVAILABLE, "the token of the server cannot be read"));
        };
        // Hashes are compared in constant time.
        let is_known =
            given.is_some_and(|(_, given)| blake3::hash(given.trim().as_bytes()) == blake3::hash(token.as_bytes()));
        (!is_known)
            .then_some((StatusCode::UNAUTHORIZED, "the header `Authorization: Bearer TOKEN` is missing or wrong"))
    }

    /// Room for so many bytes more.
    fn room(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let kib = u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX);
        self.room.clone().try_acquire_many_owned(kib).ok()
    }

    /// The whole body of a request, unpacked, and its room.
    pub async fn body(
        &self,
        headers: &HeaderMap,
        body: Incoming,
    ) -> Result<(Vec<u8>, Option<OwnedSemaphorePermit>), BodyFault> {
        let announced = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
        if announced.is_some_and(|length| length > self.max_bytes) {
            return Err(BodyFault::TooLarge);
        }
        let received = tokio::time::timeout(BODY, self.received(body)).await;
        received.unwrap_or_else(|_| Err(BodyFault::Broken("the body did not arrive in time".to_owned())))
    }

    async fn received(&self, mut body: Incoming) -> Result<(Vec<u8>, Option<OwnedSemaphorePermit>), BodyFault> {
        let (mut bytes, mut room) = (Vec::new(), None::<OwnedSemaphorePermit>);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| BodyFault::Broken(format!("the body did not arrive: {error}")))?;
            let Ok(data) = frame.into_data() else { continue };
            if bytes.len() + data.len() > self.max_bytes {
                return Err(BodyFault::TooLarge);
            }
            let more = self.room(data.len()).ok_or(BodyFault::Busy)?;
            match &mut room {
                Some(room) => room.merge(more),
                None => room = Some(more),
            }
            bytes.extend_from_slice(&data);
        }
        Ok((bytes, room))
    }

    /// Unpacks what was received, with room for it.
    pub async fn unpacked(
        &self,
        packing: String,
        bytes: Vec<u8>,
    ) -> Result<(Vec<u8>, Option<OwnedSemaphorePermit>), BodyFault> {
        if packing.is_empty() || packing == "identity" {
            return Ok((bytes, None));
        }
        let limit = self.max_bytes;
        let done = tokio::task::spawn_blocking(move || unpacked(&packing, bytes, limit)).await;
        let bytes = match done {
            Ok(Ok(bytes)) => bytes,
            Ok(Err(Fault::Unknown)) => return Err(BodyFault::Packing),
            Ok(Err(Fault::TooLarge)) => return Err(BodyFault::TooLarge),
            Ok(Err(Fault::Broken(error))) => {
                return Err(BodyFault::Broken(format!("the body is not packed as its headers say: {error}")));
            }
            Err(_) => return Err(BodyFault::Broken("the body cannot be unpacked".to_owned())),
        };
        let room = self.room(bytes.len()).ok_or(BodyFault::Busy)?;
        Ok((bytes, Some(room)))
    }
}

/// Why a body is not taken.
#[derive(Debug)]
pub(super) enum BodyFault {
    TooLarge,
    Busy,
    Packing,
    Broken(String),
}

/// Whether a `Host` is this machine.
fn is_local(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.is_empty() => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    address.is_ok_and(|address| address.to_canonical().is_loopback()) || name.eq_ignore_ascii_case("localhost")
}

async fn accept(taking: Arc<Taking>, socket: TcpListener, stop: CancellationToken) {
    let mut connections = JoinSet::new();
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        while connections.try_join_next().is_some() {}
        let accepted = async {
            let place = places.clone().acquire_owned().await;
            (place, socket.accept().await)
        };
        let Some((place, accepted)) = stop.run_until_cancelled(accepted).await else { break };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "cannot accept a connection");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let (taking, stop) = (taking.clone(), stop.clone());
        connections.spawn(async move {
            connection(taking, stream, stop).await;
            drop(place);
        });
    }
    drop(socket);
    let ended = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(LAST, ended).await;
    connections.shutdown().await;
}

async fn connection(taking: Arc<Taking>, stream: TcpStream, stop: CancellationToken) {
    let _ = stream.set_nodelay(true);
    let Some(tls) = &taking.tls else {
        let known = tokio::time::timeout(HEADERS, is_second(&stream));
        if let Some(Ok(Some(is_second))) = stop.run_until_cancelled(known).await {
            serve(taking, stream, is_second, &stop).await;
        }
        return;
    };
    let handshake = tokio::time::timeout(HEADERS, tls.acceptor().accept(stream));
    match stop.run_until_cancelled(handshake).await {
        Some(Ok(Ok(stream))) => {
            let is_second = stream.get_ref().1.alpn_protocol() == Some(SECOND);
            serve(taking, stream, is_second, &stop).await;
        }
        Some(Ok(Err(error))) => tracing::debug!(%error, "a connection of OTLP is not encrypted as it should be"),
        Some(Err(_)) | None => {}
    }
}

/// Serves a connection over HTTP/1.1 or HTTP/2.
async fn serve(
    taking: Arc<Taking>,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    is_second: bool,
    stop: &CancellationToken,
) {
    let io = TokioIo::new(stream);
    let ended = match is_second {
        true => {
            let answer = service_fn(move |request| either(taking.clone(), request));
            let connection = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .keep_alive_interval(HEADERS)
                .max_concurrent_streams(STREAMS)
                .initial_stream_window_size(1 << 20)
                .initial_connection_window_size(4 << 20)
                .serve_connection(io, answer);
            until_stopped(connection, stop).await
        }
        false => {
            let answer = service_fn(move |request| answer(taking.clone(), request));
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADERS)
                .serve_connection(io, answer);
            until_stopped(connection, stop).await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection of OTLP ended");
    }
}

/// Serves a connection; after `stop`, only the requests that are under way.
async fn until_stopped<C: GracefulConnection>(connection: C, stop: &CancellationToken) -> Result<(), C::Error> {
    tokio::pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    }
}

/// Whether a connection begins as HTTP/2 does; `None` if it ends before that is known.
async fn is_second(stream: &TcpStream) -> Option<bool> {
    let mut first = [0; PREFACE.len()];
    loop {
        match stream.peek(&mut first).await.ok()? {
            0 => return None,
            read if first[..read] != PREFACE[..read] => return Some(false),
            read if read == PREFACE.len() => return Some(true),
            // What is there is seen again at once.
            _ => tokio::time::sleep(LOOK).await,
        }
    }
}

/// Answers a request over HTTP/2: of gRPC, or one that might as well come over HTTP/1.1.
async fn either(taking: Arc<Taking>, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let content_type = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    match content_type.starts_with("application/grpc") {
        true => grpc::answer(taking, request).await,
        false => answer(taking, request).await,
    }
}

/// Answers a request that is not of gRPC.
async fn answer(taking: Arc<Taking>, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let (head, body) = request.into_parts();
    let text = |name: HeaderName| head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    // Over HTTP/2, the host is in the URL.
    let host = head.uri.authority().map_or_else(|| text(HOST), |authority| authority.as_str());
    if let Some((status, reason)) = taking.refused(&head.headers, Some(host)) {
        return Ok(told(status, reason));
    }
    if head.method != Method::POST {
        return Ok(told(StatusCode::METHOD_NOT_ALLOWED, "OTLP is sent with POST to /v1/traces and /v1/logs"));
    }
    let content_type = text(CONTENT_TYPE).split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let packing = text(CONTENT_ENCODING).trim().to_ascii_lowercase();
    let read = async {
        let (bytes, room) = taking.body(&head.headers, body).await?;
        let (bytes, more) = taking.unpacked(packing, bytes).await?;
        Ok((bytes, (room, more)))
    };
    let (body, _room) = match read.await {
        Ok(read) => read,
        Err(fault) => return Ok(refused(&fault, taking.max_bytes)),
    };
    let path = head.uri.path().to_owned();
    let reply = taking.door.take(SentRequest { path, content_type, body, principal: None }).await;
    Ok(response(reply))
}

fn refused(fault: &BodyFault, limit: usize) -> Response<Body> {
    match fault {
        BodyFault::TooLarge => {
            let reason = format!("the body is larger than {} MiB (`max_mb`): send smaller batches", limit >> 20);
            told(StatusCode::PAYLOAD_TOO_LARGE, &reason)
        }
        BodyFault::Busy => {
            let mut response = told(StatusCode::TOO_MANY_REQUESTS, "too much is received at once");
            response.headers_mut().insert(RETRY_AFTER, AGAIN_S.into());
            response
        }
        BodyFault::Packing => {
            let reason = format!("the packing of the body is not known; those that are: {KNOWN}");
            let mut response = told(StatusCode::UNSUPPORTED_MEDIA_TYPE, &reason);
            response.headers_mut().insert(ACCEPT_ENCODING, http::HeaderValue::from_static(KNOWN));
            response
        }
        BodyFault::Broken(reason) => told(StatusCode::BAD_REQUEST, reason),
    }
}

fn told(status: StatusCode, reason: &str) -> Response<Body> {
    let body = serde_json::json!({ "message": reason }).to_string().into_bytes();
    let reply = SentReply { status: status.as_u16(), content_type: "application/json", retry_after_s: None, body };
    response(reply)
}

fn response(reply: SentReply) -> Response<Body> {
    let SentReply { status, content_type, retry_after_s, body } = reply;
    let mut response = Response::new(Body::Whole(Full::new(Bytes::from(body))));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static(content_type));
    if let Some(seconds) = retry_after_s {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    response
}

impl Taking {
    /// The same for a request of HTTP/2, whose host is in its URL.
    pub fn refuses(&self, request: &Request<Incoming>) -> Option<(StatusCode, &'static str)> {
        let host = request.uri().authority().map(|authority| authority.as_str());
        self.refused(request.headers(), host)
    }
}
