//! Tests of OTLP: both forms of requests, what is said to them, and what is stored.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;

use bytes::Bytes;
use prost::Message as _;
use serde_json::{Value as Json, json};
use turnflow_engine::connector::{SentReply, SentRequest, SourcedTurn};
use turnflow_engine::spec::from_str;

use super::records::{Form, Signal, records};
use super::wire::{
    AnyValue, Array, Fields, KeyValue, LogRecord, OfResource, OfScope, Request, Resource, Scope, Span, Value,
};
use super::*;
use crate::mapped::{Counts, Mapped, placed};
use crate::testing::{Turns, runtime};

fn context() -> ComponentContext {
    ComponentContext::alone("otlp", runtime().clone())
}

/// The source in a directory, with these fields, and its door; its store is there, too.
fn source(base: &Path, fields: &str) -> (Mapped, Door) {
    let config: OtlpConfig = from_str(&format!("({fields})")).unwrap();
    let otlp = Otlp { is_kept: true, ..config.source(&context()).unwrap() };
    let door = otlp.door.clone();
    (placed(&config.map_fields(), &base.join(".state"), Counts::default(), Box::new(otlp)), door)
}

/// The source of the conformance test: records that are turns as they are.
pub(crate) fn turns_of(base: &Path, lines: &[u8]) -> Box<dyn TurnSource> {
    let config: OtlpConfig = from_str("(max_mb: 32)").unwrap();
    let otlp = Otlp { is_kept: true, ..config.source(&context()).unwrap() };
    if !base.join(".state").exists() {
        let records = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(<[u8]>::to_vec).collect();
        otlp.door.put(records);
    }
    let fields = MapFields { map: None, ..config.map_fields() };
    Box::new(placed(&fields, &base.join(".state"), Counts::default(), Box::new(otlp)))
}

fn text(text: &'static str) -> Option<AnyValue> {
    Some(AnyValue { value: Some(Value::Text(Bytes::from_static(text.as_bytes()))) })
}

fn attribute(key: &'static str, value: &'static str) -> KeyValue {
    KeyValue { key: Bytes::from_static(key.as_bytes()), value: text(value) }
}

/// A request with these.
fn request<Item: prost::Message + Default + std::fmt::Debug>(items: Vec<Item>) -> Vec<u8> {
    let resource = Resource { attributes: vec![attribute("service.name", "shop")] };
    let scope = Scope { name: Bytes::from_static(b"lib"), ..Scope::default() };
    let scopes = vec![OfScope { scope: Some(scope), items }];
    Request { resources: vec![OfResource { resource: Some(resource), scopes }] }.encode_to_vec()
}

fn span(number: u8, question: &str) -> Span {
    let said =
        |role: &str, text: &str| json!([{"role": role, "parts": [{"type": "text", "content": text}]}]).to_string();
    let text = |text: String| Some(AnyValue { value: Some(Value::Text(Bytes::from(text))) });
    Span {
        trace_id: Bytes::from(vec![number; 16]),
        span_id: Bytes::from(vec![number; 8]),
        name: Bytes::from_static(b"chat m"),
        start_time_unix_nano: 1_772_709_820_000_000_000 + u64::from(number),
        end_time_unix_nano: 1_772_709_821_000_000_000,
        attributes: vec![
            attribute("gen_ai.operation.name", "chat"),
            KeyValue { key: Bytes::from_static(b"gen_ai.input.messages"), value: text(said("user", question)) },
            KeyValue { key: Bytes::from_static(b"gen_ai.output.messages"), value: text(said("assistant", "At ten.")) },
        ],
        ..Span::default()
    }
}

/// A request as JSON, with spans.
fn spans(spans: Json) -> String {
    json!({"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": [{"spans": spans}]}]}).to_string()
}

fn asked(id: &str, question: &str) -> Json {
    json!({"traceId": id, "spanId": id, "startTimeUnixNano": "1772709820000000000", "attributes": [
        {"key": "gen_ai.prompt.0.role", "value": {"stringValue": "user"}},
        {"key": "gen_ai.prompt.0.content", "value": {"stringValue": question}}
    ]})
}

fn send(door: &Door, path: &str, content_type: &str, body: impl Into<Vec<u8>>) -> SentReply {
    let content_type = content_type.to_owned();
    let request = SentRequest { path: path.to_owned(), content_type, body: body.into(), principal: None };
    runtime().block_on(door.take(request))
}

fn shown(turn: &SourcedTurn) -> String {
    let record = &turn.record;
    let speaker = serde_json::to_value(record.speaker).unwrap();
    format!("{} {} {} {}", record.conversation_id, record.turn, speaker.as_str().unwrap(), record.text)
}

#[test]
fn both_forms_give_the_same_records() {
    let one = Span { parent_span_id: Bytes::from_static(&[0xab]), ..span(7, "When?") };
    let fields = Bytes::from(Fields { values: vec![attribute("content", "When?")] }.encode_to_vec());
    // Nested more deeply than anybody reads.
    let mut deep = AnyValue { value: Some(Value::Bool(true)) };
    for _ in 0..20_000 {
        deep = AnyValue { value: Some(Value::Array(Array { values: vec![deep] }.encode_to_vec().into())) };
    }
    let number = AnyValue { value: Some(Value::Int(i64::MAX)) };
    let broken = AnyValue { value: Some(Value::Text(Bytes::from_static(b"b\xffd"))) };
    let log = LogRecord {
        observed_time_unix_nano: 5,
        body: Some(AnyValue { value: Some(Value::Fields(fields)) }),
        attributes: vec![
            KeyValue { key: Bytes::from_static(b"n"), value: Some(number) },
            KeyValue { key: Bytes::from_static(b"b"), value: Some(broken) },
            KeyValue { key: Bytes::from_static(b"none"), value: None },
            KeyValue { key: Bytes::from_static(b"deep"), value: Some(deep) },
        ],
        span_id: Bytes::from_static(&[1, 0xfe]),
        event_name: Bytes::from_static(b"gen_ai.user.message"),
        ..LogRecord::default()
    };
    for (signal, body) in [(Signal::Traces, request(vec![one])), (Signal::Logs, request(vec![log]))] {
        let (of_protobuf, _) = records(signal, Form::Protobuf, body, None).unwrap();
        let (of_json, wrong) = records(signal, Form::Json, of_protobuf[0].clone(), None).unwrap();
        assert_eq!((&of_json, wrong), (&of_protobuf, 0));
        let value: Json = serde_json::from_slice(&of_protobuf[0]).unwrap();
        match signal {
            Signal::Traces => {
                let span = &value["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
                assert_eq!((&span["spanId"], &span["parentSpanId"]), (&json!("0707070707070707"), &json!("ab")));
                assert_eq!(span["startTimeUnixNano"], "1772709820000000007");
                assert_eq!(value["resourceSpans"][0]["resource"]["attributes"][0]["key"], "service.name");
            }
            Signal::Logs => {
                let log = &value["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0];
                assert_eq!(log["body"]["kvlistValue"]["values"][0]["value"]["stringValue"], "When?");
                assert_eq!(log["attributes"][0]["value"]["intValue"], "9223372036854775807");
                assert_eq!(log["attributes"][1]["value"]["stringValue"], "b\u{fffd}d");
                assert_eq!((&log["spanId"], &log["eventName"]), (&json!("01fe"), &json!("gen_ai.user.message")));
            }
        }
    }
    // Names as the schema has them, the name of the list before 2022, a mark, and what is no span.
    let body = "\u{feff}{\"resource_spans\": [{\"instrumentation_library_spans\": [{\"spans\": [{\"span_id\": \"a\"}, 5, null]}]}, {}, 1]}";
    let (found, wrong) = records(Signal::Traces, Form::Json, body.into(), Some("{\"name\":\"ann\"}")).unwrap();
    let value: Json = serde_json::from_slice(&found[0]).unwrap();
    assert_eq!((found.len(), wrong, &value["principal"]["name"]), (1, 2, &json!("ann")));
    assert_eq!(value["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["spanId"], "a");
    for (form, body) in [
        (Form::Json, "[]"),
        (Form::Json, "{\"resourceLogs\": []}"),
        (Form::Json, "{"),
        (Form::Json, ""),
        (Form::Protobuf, "{}"),
    ] {
        assert!(records(Signal::Traces, form, body.into(), None).is_err(), "{body}");
    }
    assert_eq!(records(Signal::Traces, Form::Protobuf, Vec::new(), None).unwrap(), (Vec::new(), 0));
}

#[test]
fn requests_are_answered_when_they_are_stored_and_what_comes_twice_is_one_turn() {
    let directory = tempfile::tempdir().unwrap();
    let (first, door) = source(directory.path(), "conversations: (settle_s: 0)");
    let running = Turns::run(first, Mode::Follow);
    let body = request(vec![span(1, "When?")]);
    let reply = send(&door, "/v1/traces", "application/x-protobuf", body.clone());
    assert_eq!((reply.status, reply.content_type, reply.body.len()), (200, "application/x-protobuf", 0));
    let turns = [running.take(), running.take()];
    let id = "01".repeat(16);
    assert_eq!(turns.each_ref().map(shown), [format!("{id} 1 user When?"), format!("{id} 1 agent At ten.")]);
    // The process ends before a checkpoint covers the second one.
    drop(running.end(true));
    assert_eq!(send(&door, "/v1/traces", "application/x-protobuf", body.clone()).status, 503);
    let (again, door) = source(directory.path(), "conversations: (settle_s: 0)");
    let running = Turns::resume(again, Mode::Follow, turns[0].place.clone());
    assert_eq!(shown(&running.take()), shown(&turns[1]));
    // The program had no answer, and sends it again, with a new one.
    assert_eq!(send(&door, "/v1/traces", "application/x-protobuf", body).status, 200);
    let next = spans(json!([asked("b", "Where?"), 7, {"spanId": "c", "attributes": "no"}]));
    let reply = send(&door, "/v1/traces", "application/json", next);
    let said: Json = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!((reply.status, &said["partialSuccess"]["rejectedSpans"]), (200, &json!("2")), "{said}");
    assert!(said["partialSuccess"]["errorMessage"].as_str().unwrap().contains("no"), "{said}");
    assert_eq!(shown(&running.take()), "b 1 user Where?");
    assert_eq!(running.dead().len(), 1, "{:?}", running.dead());
    drop(running.end(true));
}

#[test]
fn what_was_said_in_log_records_belongs_to_their_span() {
    let directory = tempfile::tempdir().unwrap();
    let (mapped, door) = source(directory.path(), "conversations: (settle_s: 3600, max_waiting: 6)");
    let running = Turns::run(mapped, Mode::Follow);
    let event = |name: &str, at: u32, body: Json| json!({"observedTimeUnixNano": at.to_string(), "spanId": "s", "traceId": "t", "eventName": name, "body": body});
    let content = |text: &str| json!({"kvlistValue": {"values": [{"key": "content", "value": {"stringValue": text}}]}});
    let answer = json!({"kvlistValue": {"values": [
        {"key": "index", "value": {"intValue": "0"}},
        {"key": "message", "value": content("At ten.")}
    ]}});
    let logs = [
        event("gen_ai.choice", 9, answer),
        event("gen_ai.user.message", 3, content("And back?")),
        event("gen_ai.system.message", 1, content("Be brief.")),
        event("gen_ai.user.message", 2, content("When?")),
        event("gen_ai.user.message", 2, content("When?")),
        json!({"body": {"stringValue": "a line of a log"}}),
    ];
    let body = json!({"resourceLogs": [{"scopeLogs": [{"logRecords": logs}]}]}).to_string();
    assert_eq!(send(&door, "/v1/logs", "application/json", body).body, b"{}");
    let named = json!({"traceId": "t", "spanId": "s", "startTimeUnixNano": "1", "attributes": [
        {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}},
        {"key": "gen_ai.conversation.id", "value": {"stringValue": "c"}}
    ]});
    // There is no room for further messages, so these become turns.
    let more = (0..6).map(|at| asked(&at.to_string(), "Other?"));
    let all: Vec<Json> = std::iter::once(named).chain(more).collect();
    assert_eq!(send(&door, "/v1/traces", "application/json", spans(json!(all))).status, 200);
    let turns: Vec<String> = (0..3).map(|_| shown(&running.take())).collect();
    assert_eq!(turns, ["c 1 user When?", "c 2 user And back?", "c 2 agent At ten."]);
    drop(running.end(true));
}

#[test]
fn what_there_is_no_room_for_comes_again_later() {
    let directory = tempfile::tempdir().unwrap();
    let (mapped, door) = source(directory.path(), "conversations: (settle_s: 0), max_waiting: 2");
    let running = Turns::run(mapped, Mode::Follow);
    let ask = |at: u32| send(&door, "/v1/traces", "application/json", spans(json!([asked(&at.to_string(), "When?")])));
    let mut replies = (0..).map(ask);
    let busy = replies.find(|reply| reply.status != 200).unwrap();
    let said: Json = serde_json::from_slice(&busy.body).unwrap();
    assert_eq!((busy.status, busy.retry_after_s, &said["code"]), (429, Some(5), &json!(14)), "{said}");
    assert!(said["message"].as_str().unwrap().contains("wait for answers; the maximum is 2"), "{said}");
    drop(running.end(true));
    for (path, content_type, status) in [
        ("/v1/traces", "application/json", 503),
        ("/v1/metrics", "application/json", 404),
        ("/v1/logs", "text/plain", 415),
        ("/v1/logs", "", 415),
    ] {
        let reply = send(&door, path, content_type, spans(json!([asked("x", "When?")])));
        assert_eq!(reply.status, status, "{path} {content_type}");
    }
}

/// Sends bytes, and returns the status line and the body.
fn post(address: SocketAddr, head: &str, body: &[u8]) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    let head = format!("POST /v1/traces HTTP/1.1\r\nConnection: close\r\nContent-Length: {length}\r\n{head}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    // The server may answer before it has read a body that it refuses.
    let _ = stream.write_all(body);
    let mut said = Vec::new();
    let _ = stream.read_to_end(&mut said);
    let said = String::from_utf8_lossy(&said).into_owned();
    let (head, body) = said.split_once("\r\n\r\n").unwrap_or_default();
    (head.lines().next().unwrap_or_default().to_owned(), body.to_owned())
}

#[test]
fn the_address_takes_only_whom_it_should_and_what_has_a_size() {
    let (door, batches) = Door::new();
    let taking = std::thread::spawn(move || {
        let mut records = 0;
        for Batch { records: taken, reply } in batches {
            records += taken.len();
            reply.send(Outcome::Taken { rejected: 0, reason: String::new() }).unwrap();
        }
        records
    });
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    std::fs::write(&file, "secret\n").unwrap();
    let open = |token| {
        let listener = Listener { door: door.clone(), token, max_bytes: 1 << 20, tls: None };
        Listening::start(listener, "127.0.0.1:0".parse().unwrap(), runtime()).unwrap()
    };
    let (own, with_token) = (open(None), open(Some(Secret::File(turnflow_engine::spec::FilePath::from(&*file)))));
    let body = spans(json!([asked("a", "When?")]));
    let packed = {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        packed.write_all(body.as_bytes()).unwrap();
        packed.finish().unwrap()
    };
    let bomb = zstd::encode_all(&vec![0; 2 << 20][..], 0).unwrap();
    let json = "Content-Type: application/json; charset=utf-8";
    let local = format!("Host: localhost:4318\r\n{json}");
    for (listening, head, body, status) in [
        (&own, local.clone(), body.as_bytes(), 200),
        (&own, format!("{local}\r\nContent-Encoding: gzip"), &packed, 200),
        (&own, format!("{local}\r\nContent-Encoding: br"), &packed, 415),
        (&own, format!("{local}\r\nContent-Encoding: zstd"), &packed, 400),
        (&own, format!("{local}\r\nContent-Encoding: zstd"), &bomb, 413),
        (&own, local.clone(), &vec![b' '; 2 << 20], 413),
        (&own, format!("{local}\r\nOrigin: https://evil.example"), body.as_bytes(), 403),
        (&own, format!("Host: evil.example\r\n{json}"), body.as_bytes(), 403),
        (&with_token, format!("Host: x\r\n{json}"), body.as_bytes(), 401),
        (&with_token, format!("Host: x\r\n{json}\r\nAuthorization: Bearer wrong"), body.as_bytes(), 401),
        (&with_token, format!("Host: x\r\n{json}\r\nauthorization: bearer secret"), body.as_bytes(), 200),
    ] {
        let (line, said) = post(listening.address, &head, body);
        assert!(line.contains(&format!(" {status} ")), "{head}: {line} {said}");
    }
    let in_use = Listener { door: door.clone(), token: None, max_bytes: 1 << 20, tls: None };
    let error = Listening::start(in_use, own.address, runtime()).err().unwrap().to_string();
    assert!(error.contains("cannot listen on 127.0.0.1:"), "{error}");
    own.end(runtime());
    with_token.end(runtime());
    drop(door);
    assert_eq!(taking.join().unwrap(), 3);
}

/// A certificate of this machine in a directory, and a client that trusts it alone.
fn certified(directory: &Path) -> (TlsFiles, tokio_rustls::rustls::ClientConfig) {
    use tokio_rustls::rustls::pki_types::CertificateDer;
    use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};

    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let [cert, key] = ["server.pem", "server.key"].map(|name| directory.join(name));
    // The key first: a certificate alone that does not fit is not taken.
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    std::fs::write(&cert, made.cert.pem()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(made.cert.der().to_vec())).unwrap();
    let builder = ClientConfig::builder_with_provider(std::sync::Arc::new(ring::default_provider()));
    let client = builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
    let [cert, key] = [cert, key].map(|path| turnflow_engine::spec::FilePath::from(&*path));
    (TlsFiles { cert, key }, client.with_no_client_auth())
}

/// Sends bytes over TLS in a protocol, and returns the first ones that come back, if the certificate is trusted.
fn over_tls(
    address: SocketAddr,
    client: &tokio_rustls::rustls::ClientConfig,
    protocol: &str,
    sent: &[u8],
) -> std::io::Result<Vec<u8>> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    let mut client = client.clone();
    client.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    let connector = tokio_rustls::TlsConnector::from(Arc::new(client));
    runtime().block_on(async {
        let stream = tokio::net::TcpStream::connect(address).await?;
        let mut stream = connector.connect("localhost".try_into().unwrap(), stream).await?;
        stream.write_all(sent).await?;
        let mut first = vec![0; 512];
        let read = stream.read(&mut first).await?;
        first.truncate(read);
        Ok(first)
    })
}

#[test]
fn connections_are_encrypted_and_a_replaced_certificate_is_used() {
    let directory = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    let (files, client) = certified(directory.path());
    let (door, _batches) = Door::new();
    let tls = Some(Tls::new(files.clone()).unwrap());
    let listener = Listener { door, token: None, max_bytes: 1 << 20, tls };
    let listening = Listening::start(listener, "127.0.0.1:0".parse().unwrap(), runtime()).unwrap();
    let address = listening.address;
    let get = b"GET /v1/traces HTTP/1.1\r\nHost: localhost\r\n\r\n";
    // The preface of HTTP/2, and empty settings.
    let second = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &[0, 0, 0, 4, 0, 0, 0, 0, 0]].concat();
    let said = over_tls(address, &client, "http/1.1", get).unwrap();
    assert!(said.starts_with(b"HTTP/1.1 405"), "{}", String::from_utf8_lossy(&said));
    let said = over_tls(address, &client, "h2", &second).unwrap();
    assert_eq!(said.get(3), Some(&4), "settings come back: {said:?}");
    assert!(over_tls(address, &certified(other.path()).1, "h2", &second).is_err(), "not trusted");
    assert_eq!(post(address, "Host: localhost", b"{}").0, "", "nothing is taken without TLS");

    let (_, renewed) = certified(directory.path());
    let said = over_tls(address, &renewed, "http/1.1", get).unwrap();
    assert!(said.starts_with(b"HTTP/1.1 405"), "{}", String::from_utf8_lossy(&said));
    std::fs::write(&files.cert.path, "no certificate").unwrap();
    assert!(over_tls(address, &renewed, "http/1.1", get).is_ok(), "the earlier one is still used");
    listening.end(runtime());
    let error = Tls::new(files).err().unwrap().to_string();
    assert!(error.contains("cannot use `") && error.contains("server.pem"), "{error}");
}

/// Sends a request over HTTP/2 without TLS, and returns the status, the type and the body of the reply.
fn over_second(address: SocketAddr, path: &str, content_type: &str, body: &str) -> (u16, String, String) {
    use http_body_util::{BodyExt as _, Full};
    use hyper_util::rt::{TokioExecutor, TokioIo};

    runtime().block_on(async {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let begun = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
        let (mut sender, connection) = begun.unwrap();
        tokio::spawn(connection);
        let request = http::Request::post(format!("http://{address}{path}")).header("content-type", content_type);
        let request = request.body(Full::new(Bytes::from(body.to_owned()))).unwrap();
        let reply = sender.send_request(request).await.unwrap();
        let type_of = reply.headers().get("content-type").and_then(|value| value.to_str().ok()).unwrap_or_default();
        let (status, type_of) = (reply.status().as_u16(), type_of.to_owned());
        let body = reply.into_body().collect().await.unwrap().to_bytes();
        (status, type_of, String::from_utf8_lossy(&body).into_owned())
    })
}

#[test]
fn requests_over_http_2_are_of_grpc_only_if_they_say_so() {
    let (door, batches) = Door::new();
    let taking = std::thread::spawn(move || {
        let taken = |Batch { records, reply }| {
            reply.send(Outcome::Taken { rejected: 0, reason: String::new() }).unwrap();
            records.len()
        };
        batches.into_iter().map(taken).sum::<usize>()
    });
    let listener = Listener { door, token: None, max_bytes: 1 << 20, tls: None };
    let listening = Listening::start(listener, "127.0.0.1:0".parse().unwrap(), runtime()).unwrap();
    let body = spans(json!([asked("a", "When?")]));
    let post = |path: &str, content_type: &str| over_second(listening.address, path, content_type, &body);
    let json = "application/json".to_owned();
    assert_eq!(post("/v1/traces", "application/json"), (200, json.clone(), "{}".to_owned()));
    assert_eq!(post("/v1/metrics", "application/json").0, 404);
    assert_eq!(post("/v1/traces", "application/grpc").1, "application/grpc");
    listening.end(runtime());
    assert_eq!(taking.join().unwrap(), 1);
}
