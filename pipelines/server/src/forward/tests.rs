//! Two ends that are joined in the process, with a client of the end that forwards.

use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use axum::extract::Extension;
use axum::http::{HeaderMap, StatusCode, header};
use axum::routing::{any, get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::*;
use crate::auth::Tokens;
use crate::config::LimitsConfig;
use crate::server::serve;

const PATIENCE: Duration = Duration::from_secs(60);

/// A server that forwards; it ends with the value.
struct Other {
    address: SocketAddr,
    _stop: DropGuard,
}

impl Other {
    async fn start(config: ServeConfig, tokens: Tokens, is_exposed: bool, ask: Asker) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let app = App::new(config, Vec::new(), tokens);
        let routes = forwarding(app.clone(), Forwarder::new(app.clone(), ask, is_exposed));
        let stop = CancellationToken::new();
        tokio::spawn(serve(Server::of(listener, app, routes).unwrap(), stop.clone()));
        Self { address, _stop: stop.drop_guard() }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Sends these bytes; returns the connection.
    async fn raw(&self, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    /// Sends a request that ends its connection; returns all of the response.
    async fn sent(&self, request: &str) -> String {
        all(self.raw(request).await).await
    }
}

/// What comes until the connection ends.
async fn all(mut stream: TcpStream) -> String {
    let mut text = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut text)).await.unwrap().unwrap();
    String::from_utf8(text).unwrap()
}

/// The state of a server without tokens.
fn open() -> App {
    let config = ServeConfig::default();
    App::new(config.clone(), Vec::new(), Tokens::none(&config))
}

/// What asks a process 0.
fn asker(first: &Arc<Answering>) -> Asker {
    let first = first.clone();
    Arc::new(move |question| first.clone().answer(question, &Handle::current()).map(Ok).boxed())
}

/// Process 0 with these routes, and a server that forwards to it. Neither has tokens.
async fn joined(routes: Router) -> (Arc<Answering>, Other) {
    let (first, config) = (Answering::new(open(), routes), ServeConfig::default());
    let tokens = Tokens::none(&config);
    let other = Other::start(config, tokens, false, asker(&first)).await;
    (first, other)
}

/// Says what it was asked.
async fn echo(Extension(Client(client)): Extension<Client>, request: Request) -> Json<Value> {
    let (head, body) = request.into_parts();
    let headers: BTreeMap<_, _> =
        head.headers.iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    Json(json!({
        "method": head.method.as_str(), "uri": head.uri.to_string(), "headers": headers, "client": client.to_string(),
        "body": String::from_utf8_lossy(&body),
    }))
}

/// The JSON of a response with a head.
fn json_of(response: &str) -> Value {
    serde_json::from_str(response.split_once("\r\n\r\n").unwrap().1)
        .unwrap_or_else(|error| panic!("{error}: {response}"))
}

#[tokio::test]
async fn a_request_is_the_same_in_process_0() {
    let (_first, other) = joined(Router::new().route("/{*path}", any(echo))).await;
    let request = "PUT /a%2Fb?c=d&e HTTP/1.1\r\nHost: localhost\r\nConnection: close, x-own\r\nx-own: 1\r\n\
                   Upgrade: websocket\r\nTransfer-Encoding: chunked\r\nX-Kept: yes\r\n\r\n\
                   2\r\nab\r\n1\r\nc\r\n0\r\n\r\n";
    let stream = other.raw(request).await;
    let client = stream.local_addr().unwrap().to_string();
    let response = all(stream).await;
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
    assert!(response.to_lowercase().contains("\r\ncontent-length: "), "{response}");
    assert_eq!(
        json_of(&response),
        json!({
            "method": "PUT", "uri": "/a%2Fb?c=d&e", "headers": { "host": "localhost", "x-kept": "yes" },
            "client": client, "body": "abc",
        })
    );
    // A client that waits before it sends its body is told to send it.
    let head =
        "POST /a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n";
    let mut waiting = other.raw(head).await;
    let mut told = [0; 25];
    tokio::time::timeout(PATIENCE, waiting.read_exact(&mut told)).await.unwrap().unwrap();
    assert_eq!(&told, b"HTTP/1.1 100 Continue\r\n\r\n");
    waiting.write_all(b"ab").await.unwrap();
    assert_eq!(json_of(&all(waiting).await)["body"], "ab");
}

#[tokio::test]
async fn a_response_is_the_same_as_in_process_0() {
    let body = || async { ([(header::SET_COOKIE, "a=b"), (header::TRAILER, "x")], "four") };
    let routes = Router::new()
        .route("/body", get(body))
        .route("/none", get(|| async { StatusCode::NO_CONTENT }))
        .route("/twice", get(|| async { axum::response::AppendHeaders([("x-a", "1"), ("x-a", "2")]) }));
    let (_first, other) = joined(routes).await;
    let got = reqwest::get(other.url("/body")).await.unwrap();
    assert_eq!((&got.headers()["set-cookie"], got.headers().get("trailer")), (&"a=b".parse().unwrap(), None));
    assert_eq!((got.content_length(), got.text().await.unwrap().as_str()), (Some(4), "four"));
    let head = other.sent("HEAD /body HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await;
    assert!(head.to_lowercase().contains("\r\ncontent-length: 4\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    assert_eq!(reqwest::get(other.url("/none")).await.unwrap().status().as_u16(), 204);
    let twice = reqwest::get(other.url("/twice")).await.unwrap();
    assert_eq!(twice.headers().get_all("x-a").iter().collect::<Vec<_>>(), ["1", "2"]);
    for (path, status) in [("/nothing", 404), ("/body", 405)] {
        let response = reqwest::Client::new().post(other.url(path)).send().await.unwrap();
        assert_eq!(response.status().as_u16(), status, "{path}");
    }
}

/// Routes with a body that comes from a channel; and the channel, which ends when nobody reads the body.
fn from_channel() -> (Router, mpsc::Sender<Result<&'static str, io::Error>>) {
    let (sender, receiver) = mpsc::channel(1);
    let receiver = Arc::new(parking_lot::Mutex::new(Some(receiver)));
    let stream = move || {
        let mut receiver = receiver.lock().take().unwrap();
        async move { Body::from_stream(stream::poll_fn(move |context| receiver.poll_recv(context))) }
    };
    (Router::new().route("/stream", get(stream)), sender)
}

#[tokio::test]
async fn pieces_arrive_as_they_come_and_a_client_that_leaves_ends_the_answer() {
    let (routes, pieces) = from_channel();
    let (first, other) = joined(routes).await;
    let mut response = reqwest::get(other.url("/stream")).await.unwrap();
    for piece in ["one", "two"] {
        pieces.send(Ok(piece)).await.unwrap();
        assert_eq!(response.chunk().await.unwrap().unwrap(), piece);
    }
    drop(response);
    tokio::time::timeout(PATIENCE, pieces.closed()).await.unwrap();
    tokio::time::timeout(PATIENCE, first.ended()).await.unwrap();
    // The same before there is an answer.
    let (begun, mut has_begun) = mpsc::channel::<()>(1);
    let wait = move || {
        let begun = begun.clone();
        async move {
            begun.send(()).await.unwrap();
            std::future::pending::<()>().await;
        }
    };
    let (first, other) = joined(Router::new().route("/wait", post(wait))).await;
    let stream = other.raw("POST /wait HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx").await;
    has_begun.recv().await.unwrap();
    drop(stream);
    tokio::time::timeout(PATIENCE, first.ended()).await.unwrap();
}

#[tokio::test]
async fn an_answer_that_is_cut_off_is_not_taken_for_a_whole_one() {
    // Its body fails, and process 0 ends.
    for fails in [true, false] {
        let (routes, pieces) = from_channel();
        let (first, other) = joined(routes).await;
        let mut response = reqwest::get(other.url("/stream")).await.unwrap();
        pieces.send(Ok("one")).await.unwrap();
        assert_eq!(response.chunk().await.unwrap().unwrap(), "one");
        match fails {
            true => pieces.send(Err(io::ErrorKind::Other.into())).await.unwrap(),
            false => first.cut().await,
        }
        assert!(response.chunk().await.is_err(), "{fails}");
    }
    // The connection to process 0 ends.
    let config = ServeConfig::default();
    let parts = [wire::head(&Response::new(()).into_parts().0).unwrap(), wire::piece(b"one", false)];
    let parts = parts.map(Ok).into_iter().chain([Err("the cluster is ending".to_owned())]).collect::<Vec<_>>();
    let ask: Asker = Arc::new(move |_| stream::iter(parts.clone()).boxed());
    let other = Other::start(config.clone(), Tokens::none(&config), false, ask).await;
    let received = async { reqwest::get(other.url("/")).await?.bytes().await };
    assert!(received.await.is_err());
}

#[tokio::test]
async fn a_process_0_that_does_not_answer_is_named() {
    let config = ServeConfig::default();
    let answers: [Vec<Result<Vec<u8>, String>>; 4] =
        [vec![], vec![Err("it is gone".to_owned())], vec![Ok(vec![])], vec![Ok(wire::piece(b"x", true))]];
    for answer in answers {
        let ask: Asker = Arc::new(move |_| stream::iter(answer.clone()).boxed());
        let other = Other::start(config.clone(), Tokens::none(&config), false, ask).await;
        for path in ["/v1/documents", "/v1/answers", "/v1/models"] {
            let response = reqwest::get(other.url(path)).await.unwrap();
            assert_eq!((response.status().as_u16(), &response.headers()["retry-after"]), (503, &"1".parse().unwrap()));
            let error: Value = response.json().await.unwrap();
            assert!(error["error"]["message"].as_str().unwrap().contains("process 0"), "{error}");
            assert!(!error.to_string().contains("gone"), "{error}");
        }
        // What the process answers for itself.
        for path in ["/healthz", "/readyz", "/metrics", "/process/readyz", "/process/v1/pipelines"] {
            assert_eq!(reqwest::get(other.url(path)).await.unwrap().status().as_u16(), 200, "{path}");
        }
        let foreign = reqwest::Client::new().get(other.url("/metrics")).header("Host", "evil.example");
        assert_eq!(foreign.send().await.unwrap().status().as_u16(), 403);
    }
    // Process 0 is stopping.
    let app = open();
    let first = Answering::new(app.clone(), Router::new().route("/", get(|| async {})));
    let other = Other::start(config.clone(), Tokens::none(&config), false, asker(&first)).await;
    assert_eq!(reqwest::get(other.url("/")).await.unwrap().status().as_u16(), 200);
    app.drain();
    let response = reqwest::get(other.url("/")).await.unwrap();
    assert_eq!(response.status().as_u16(), 503);
    assert!(response.text().await.unwrap().contains("shutting down"));
}

#[tokio::test]
async fn bodies_are_bounded_before_they_are_forwarded() {
    let config = ServeConfig {
        limits: LimitsConfig { body_mb: 0.001, header_s: 0.5, rate: 1e-3, burst: 3.0, ..LimitsConfig::default() },
        ..ServeConfig::default()
    };
    let first = Answering::new(open(), Router::new().route("/", any(|| async {})));
    let other = Other::start(config.clone(), Tokens::none(&config), false, asker(&first)).await;
    let status = |response: String| response[9..12].to_owned();
    let head = "POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
    let long = "x".repeat(3000);
    for body in [
        format!("Content-Length: 3000\r\n\r\n{long}"),
        format!("Transfer-Encoding: chunked\r\n\r\nbb8\r\n{long}\r\n0\r\n\r\n"),
    ] {
        let response = other.sent(&format!("{head}{body}")).await;
        assert!(response.contains("the limit of this server"), "{response}");
        assert_eq!(status(response), "413");
    }
    assert_eq!(status(other.sent(&format!("{head}Content-Length: 9\r\n\r\nx")).await), "408");
    // They count for the caller.
    assert_eq!(status(other.sent(&format!("{head}Content-Length: 1\r\n\r\nx")).await), "429");
    assert_eq!(reqwest::get(other.url("/")).await.unwrap().status().as_u16(), 200);
}

#[tokio::test]
async fn only_callers_with_a_token_may_send_bodies_and_reach_a_cluster_from_outside() {
    let directory = tempfile::tempdir().unwrap();
    let secret = directory.path().join("secret");
    std::fs::write(&secret, "s3cret").unwrap();
    let config = format!("Serve(tokens: [(name: \"web\", token: File({:?}))])", secret.display().to_string());
    let config = ServeConfig::parse(&config, "s.ron").unwrap();
    let tokens = || Tokens::new(&config, |_| None).unwrap();
    let first = Answering::new(open(), Router::new().route("/", any(|body: String| async { body })));
    let other = Other::start(config.clone(), tokens(), false, asker(&first)).await;
    // The body is not waited for.
    let response =
        other.sent("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\nConnection: close\r\n\r\n").await;
    assert!(response.starts_with("HTTP/1.1 401 "), "{response}");
    let post = || reqwest::Client::new().post(other.url("/")).body("hello");
    assert_eq!(post().bearer_auth("wrong").send().await.unwrap().status().as_u16(), 401);
    assert_eq!(post().bearer_auth("s3cret").send().await.unwrap().text().await.unwrap(), "hello");
    assert_eq!(reqwest::get(other.url("/metrics")).await.unwrap().status().as_u16(), 401);
    assert_eq!(reqwest::get(other.url("/process/debug/state")).await.unwrap().status().as_u16(), 401);
    assert_eq!(reqwest::get(other.url("/healthz")).await.unwrap().status().as_u16(), 200);
    // Process 0 has no tokens, so its pipeline must not be reached from other machines.
    let exposed = Other::start(config.clone(), tokens(), true, asker(&first)).await;
    let response = reqwest::Client::new().get(exposed.url("/")).bearer_auth("s3cret").send().await.unwrap();
    assert_eq!(response.status().as_u16(), 403);
    assert!(response.text().await.unwrap().contains("the same tokens"));
}

/// Callers do not get around the tokens of process 0 by way of a process without tokens.
#[tokio::test]
async fn a_process_without_tokens_does_not_answer_in_place_of_one_with_tokens() {
    let models = || {
        get(|headers: HeaderMap| async move {
            if headers.contains_key("Authorization") { StatusCode::OK } else { StatusCode::UNAUTHORIZED }
        })
    };
    for (has_tokens, status) in [(true, 401), (false, 200)] {
        let routes = match has_tokens {
            true => Router::new().route("/v1/models", models()),
            false => Router::new().route("/v1/models", get(|| async {})),
        };
        let (_first, other) = joined(routes).await;
        for _ in 0..2 {
            assert_eq!(reqwest::get(other.url("/v1/models")).await.unwrap().status().as_u16(), status);
        }
        let metrics = reqwest::get(other.url("/metrics")).await.unwrap().text().await.unwrap();
        // The process itself has answered what it may answer.
        assert_eq!(metrics.contains("route=\"/v1/models\",status=\"200\"} 2"), !has_tokens, "{metrics}");
    }
}

#[tokio::test]
async fn pages_of_allowed_origins_read_every_response() {
    let config = ServeConfig { cors: vec!["https://a.example".to_owned()], ..ServeConfig::default() };
    let ask: Asker = Arc::new(|_| stream::empty().boxed());
    let other = Other::start(config.clone(), Tokens::none(&config), false, ask).await;
    let request = reqwest::Client::new().get(other.url("/v1/documents")).header("Origin", "https://a.example");
    let response = request.send().await.unwrap();
    assert_eq!(response.status().as_u16(), 503);
    assert_eq!(response.headers()["access-control-allow-origin"], "https://a.example");
}
