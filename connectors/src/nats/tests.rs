use std::path::Path;
use std::time::{Duration, Instant};

use async_nats::jetstream::stream::{Config, RetentionPolicy};
use async_nats::jetstream::{self, Context, kv};
use futures::StreamExt;
use turnflow_engine::connector::{AnswerSink, Delivery, Mode};
use turnflow_engine::spec::from_str;

use super::bucket::NatsBucket;
use super::sink::{NatsSink, NatsSinkConfig};
use super::turns::{NatsConfig, NatsTurns};
use crate::servers::{NATS, Server, shared};
use crate::testing::{Corpus, PATIENCE, Turns, answer, context, runtime, turn};

pub(crate) fn is_there() -> bool {
    shared(NATS).is_some()
}

/// A client of the server on this port.
fn client(port: u16) -> Context {
    runtime().block_on(client_of(port))
}

/// The same, for a user with this password.
fn client_as(port: u16, password: &str) -> Context {
    let options = async_nats::ConnectOptions::with_user_and_password("app".into(), password.into());
    runtime().block_on(async { jetstream::new(options.connect(format!("127.0.0.1:{port}")).await.unwrap()) })
}

/// A name for what belongs to a test's directory.
fn name(base: &Path) -> String {
    blake3::hash(base.as_os_str().as_encoded_bytes()).to_hex()[..12].to_owned()
}

fn turns(port: u16, stream: &str) -> NatsTurns {
    let config: NatsConfig = from_str(&format!(r#"(url: "127.0.0.1:{port}", stream: "{stream}")"#)).unwrap();
    config.source(&context("turns"))
}

fn bucket(port: u16, bucket: &str) -> NatsBucket {
    let ron = format!(r#"(url: "127.0.0.1:{port}", bucket: "{bucket}")"#);
    from_str::<super::bucket::NatsConfig>(&ron).unwrap().source(&context("docs"))
}

fn stream(client: &Context, name: &str, retention: RetentionPolicy) {
    let subjects = vec![format!("{name}.>")];
    let config = Config { name: name.to_owned(), subjects, retention, ..Config::default() };
    runtime().block_on(client.create_stream(config)).unwrap();
}

fn publish(client: &Context, subject: &str, payload: impl Into<Vec<u8>>) {
    let payload: Vec<u8> = payload.into();
    runtime().block_on(async { client.publish(subject.to_owned(), payload.into()).await.unwrap().await.unwrap() });
}

/// For the cases of `conformance`: a stream with these lines.
pub(crate) fn turns_of(base: &Path, lines: &[u8]) -> NatsTurns {
    let (port, name) = (shared(NATS).unwrap(), name(base));
    let client = client(port);
    if runtime().block_on(client.get_stream(&name)).is_err() {
        stream(&client, &name, RetentionPolicy::Limits);
        let subject = format!("{name}.turns");
        runtime().block_on(async {
            for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                client.publish(subject.clone(), line.to_vec().into()).await.unwrap().await.unwrap();
            }
        });
    }
    turns(port, &name)
}

pub(crate) fn bucket_of(base: &Path, texts: &[String]) -> NatsBucket {
    let (port, name) = (shared(NATS).unwrap(), name(base));
    runtime().block_on(async {
        let client = client_of(port).await;
        if client.get_key_value(&name).await.is_ok() {
            return;
        }
        let store = bucket_in(&client, &name, Duration::ZERO).await;
        for (number, text) in texts.iter().enumerate() {
            let row = serde_json::json!({"text": text}).to_string();
            store.put(number.to_string(), row.into()).await.unwrap();
        }
        store.put("bad", "no row".into()).await.unwrap();
    });
    bucket(port, &name)
}

/// A bucket. The server of Debian does not know all that the client asks for when it makes one.
async fn bucket_in(client: &Context, bucket: &str, max_age: Duration) -> kv::Store {
    let config = Config {
        name: format!("KV_{bucket}"),
        subjects: vec![format!("$KV.{bucket}.>")],
        max_messages_per_subject: 1,
        allow_rollup: true,
        deny_delete: true,
        max_age,
        ..Config::default()
    };
    client.create_stream(config).await.unwrap();
    client.get_key_value(bucket).await.unwrap()
}

async fn client_of(port: u16) -> Context {
    jetstream::new(async_nats::connect(format!("127.0.0.1:{port}")).await.unwrap())
}

type ReadBack = Box<dyn Fn() -> Vec<u8>>;

pub(crate) fn sink_of(base: &Path) -> (Box<dyn AnswerSink>, ReadBack) {
    let (port, name) = (shared(NATS).unwrap(), name(base));
    let client = client(port);
    if runtime().block_on(client.get_stream(&name)).is_err() {
        stream(&client, &name, RetentionPolicy::Limits);
    }
    let read_back = move || stored(&client, &name).into_iter().flat_map(|body| [&body[..], b"\n"].concat()).collect();
    (Box::new(sink(port, &self::name(base))), Box::new(read_back))
}

fn sink(port: u16, name: &str) -> NatsSink {
    let ron = format!(r#"(input: "a", url: "127.0.0.1:{port}", subject: "{name}.answers")"#);
    from_str::<NatsSinkConfig>(&ron).unwrap().sink("out").unwrap()
}

/// The messages of a stream.
fn stored(client: &Context, name: &str) -> Vec<Vec<u8>> {
    runtime().block_on(async {
        let stream = client.get_stream(name).await.unwrap();
        let state = stream.get_info().await.unwrap().state;
        let mut bodies = Vec::new();
        for sequence in state.first_sequence..=state.last_sequence {
            bodies.push(stream.get_raw_message(sequence).await.unwrap().payload.to_vec());
        }
        bodies
    })
}

/// Waits until something holds.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn turns_go_on_where_they_were_after_the_server_was_away() {
    let Some(mut server) = Server::start(NATS) else { return };
    let first = client(server.port);
    stream(&first, "T", RetentionPolicy::Limits);
    publish(&first, "T.a", turn("one"));
    let running = Turns::run(turns(server.port, "T"), Mode::Follow);
    assert_eq!(running.next(), ("one".to_owned(), "T@1".to_owned()));
    for round in 0..2 {
        server.down();
        std::thread::sleep(Duration::from_millis(300));
        server.up();
        let client = client(server.port);
        for number in 0..300 {
            publish(&client, "T.a", turn(&format!("{round}-{number}")));
        }
        for number in 0..300 {
            assert_eq!(running.text(), format!("{round}-{number}"));
        }
    }
    assert!(running.dead().is_empty());
    assert!(running.end(true).is_err());
}

#[test]
fn a_source_waits_for_a_server_and_for_a_stream_that_do_not_exist_yet() {
    let Some(mut server) = Server::start(NATS) else { return };
    server.down();
    let running = Turns::run(turns(server.port, "T"), Mode::Follow);
    std::thread::sleep(Duration::from_millis(300));
    server.up();
    let client = client(server.port);
    std::thread::sleep(Duration::from_millis(300));
    stream(&client, "T", RetentionPolicy::Limits);
    publish(&client, "T.a", turn("at last"));
    assert_eq!(running.text(), "at last");
    running.end(true).unwrap_err();
}

#[test]
fn a_stream_that_was_made_again_is_read_from_its_beginning() {
    let Some(server) = Server::start(NATS) else { return };
    let client = client(server.port);
    stream(&client, "T", RetentionPolicy::Limits);
    publish(&client, "T.a", turn("one"));
    publish(&client, "T.a", turn("two"));
    let running = Turns::run(turns(server.port, "T"), Mode::Once);
    let old = running.take().place.unwrap();
    running.wait();
    runtime().block_on(client.delete_stream("T")).unwrap();
    stream(&client, "T", RetentionPolicy::Limits);
    publish(&client, "T.a", turn("three"));
    let running = Turns::resume(turns(server.port, "T"), Mode::Once, Some(old.clone()));
    let turn = running.take();
    assert_eq!(&*turn.record.text, "three");
    let place = turn.place.unwrap();
    assert!(place.order() > old.order() && place.log != old.log);
}

#[test]
fn only_the_subject_is_read_and_removed_messages_are_no_gap() {
    let Some(server) = Server::start(NATS) else { return };
    let client = client(server.port);
    stream(&client, "T", RetentionPolicy::Limits);
    for (subject, text) in [("T.a", "one"), ("T.b", "other"), ("T.a", "gone"), ("T.a", "two"), ("T.a", "gone too")] {
        publish(&client, subject, turn(text));
    }
    runtime().block_on(async {
        let stream = client.get_stream("T").await.unwrap();
        stream.delete_message(3).await.unwrap();
        stream.delete_message(5).await.unwrap();
    });
    let ron = format!(r#"(url: "127.0.0.1:{}", stream: "T", subject: Some("T.a"))"#, server.port);
    let config: NatsConfig = from_str(&ron).unwrap();
    let (turns, dead) = Turns::run(config.source(&context("turns")), Mode::Once).all();
    let texts: Vec<_> = turns.iter().map(|turn| (&*turn.record.text, &*turn.position)).collect();
    assert_eq!((texts, dead), (vec![("one", "T@1"), ("two", "T@4")], vec![]));
}

#[test]
fn a_work_queue_keeps_what_no_checkpoint_covers_and_sends_it_in_order_again() {
    let Some(server) = Server::start(NATS) else { return };
    let client = client(server.port);
    stream(&client, "Q", RetentionPolicy::WorkQueue);
    for number in 0..5 {
        publish(&client, "Q.a", turn(&number.to_string()));
    }
    let running = Turns::run(turns(server.port, "Q"), Mode::Follow);
    let read: Vec<_> = (0..5).map(|_| running.take()).collect();
    running.end(true).unwrap_err();
    assert_eq!(stored(&client, "Q").len(), 5, "nothing is acknowledged");
    // A checkpoint covers the first two.
    let running = Turns::resume(turns(server.port, "Q"), Mode::Follow, read[1].place.clone());
    assert_eq!((0..3).map(|_| running.text()).collect::<Vec<_>>(), ["2", "3", "4"]);
    until("the covered messages are removed", || {
        publish(&client, "Q.a", turn("more"));
        let stream = runtime().block_on(client.get_stream("Q")).unwrap();
        runtime().block_on(stream.get_info()).unwrap().state.first_sequence == 3
    });
    running.end(true).unwrap_err();
}

#[test]
fn a_bucket_is_a_corpus_that_changes_by_key() {
    let Some(mut server) = Server::start(NATS) else { return };
    let context = client(server.port);
    let store = runtime().block_on(bucket_in(&context, "docs", Duration::ZERO));
    let put = |store: &kv::Store, key: &str, text: &str| {
        let row = serde_json::json!({"text": text}).to_string();
        runtime().block_on(store.put(key, row.into())).unwrap();
    };
    put(&store, "a", "old");
    put(&store, "a", "one");
    put(&store, "b/c.md", "two");
    put(&store, "gone", "three");
    runtime().block_on(store.delete("gone")).unwrap();
    let running = Corpus::run(bucket(server.port, "docs"), Mode::Follow);
    assert_eq!(running.start(), ["a=one", "b/c.md=two"]);
    put(&store, "a", "new");
    assert_eq!(running.changes(), ["a=new"]);
    runtime().block_on(store.purge("b/c.md")).unwrap();
    assert_eq!(running.changes(), ["-b/c.md"]);
    runtime().block_on(store.put("a", "{".into())).unwrap();
    assert_eq!(running.changes(), ["-a"]);
    assert!(running.dead()[0].starts_with("docs: a: not a JSON object"), "{:?}", running.dead());
    server.down();
    server.up();
    let context = client(server.port);
    let store = runtime().block_on(context.get_key_value("docs")).unwrap();
    put(&store, "d", "after");
    assert_eq!(running.changes(), ["d=after"], "nothing is sent again");
    running.end(true).unwrap_err();
}

#[test]
fn values_in_another_form_are_mapped() {
    let Some(server) = Server::start(NATS) else { return };
    let context = client(server.port);
    let store = runtime().block_on(bucket_in(&context, "docs", Duration::ZERO));
    let put = |key: &str, value: &str| {
        runtime().block_on(store.put(key, value.to_owned().into())).unwrap();
    };
    put("a", r#"{"parts": ["one", "two"]}"#);
    let map = r#"map: Jq("$source.path as $key | .parts | to_entries[] | {id: \"\\($key)-\\(.key)\", text: .value}")"#;
    let ron = format!(r#"(url: "127.0.0.1:{}", bucket: "docs", {map})"#, server.port);
    let config: super::bucket::NatsConfig = from_str(&ron).unwrap();
    let running = Corpus::run(config.source(&self::context("docs")), Mode::Follow);
    assert_eq!(running.start(), ["a-0=one", "a-1=two"]);
    put("a", r#"{"parts": ["new"]}"#);
    assert_eq!(running.changes(), ["-a-1", "a-0=new"]);
    put("a", "[]");
    assert_eq!(running.changes(), ["-a-0"]);
    assert!(running.dead()[0].starts_with("docs: a: not mapped: "), "{:?}", running.dead());
    running.end(true).unwrap_err();
}

#[test]
fn documents_whose_keys_have_expired_are_deleted() {
    let Some(server) = Server::start(NATS) else { return };
    let context = client(server.port);
    let store = runtime().block_on(bucket_in(&context, "docs", Duration::from_secs(2)));
    runtime().block_on(store.put("a", r#"{"text": "one"}"#.into())).unwrap();
    let ron = format!(r#"(url: "127.0.0.1:{}", bucket: "docs", compare_s: 0.2)"#, server.port);
    let config: super::bucket::NatsConfig = from_str(&ron).unwrap();
    let running = Corpus::run(config.source(&crate::testing::context("docs")), Mode::Follow);
    assert_eq!(running.start(), ["a=one"]);
    running.until(&["-a"]);
    running.end(true).unwrap_err();
}

#[test]
fn answers_are_stored_once_also_when_they_are_sent_again() {
    let Some(mut server) = Server::start(NATS) else { return };
    let mut sink = sink(server.port, "A");
    let answers = [answer(), {
        let mut second = answer();
        second.key = "k2\n".into();
        second
    }];
    let taken = std::sync::atomic::AtomicUsize::new(0);
    let deliver = |sink: &mut NatsSink| runtime().block_on(sink.deliver(Delivery::new(&answers, &taken)));
    let error = deliver(&mut sink).unwrap_err();
    assert!(crate::remote::may_pass(&error) && error.to_string().contains("no stream stores the subject"), "{error}");
    let context = client(server.port);
    stream(&context, "A", RetentionPolicy::Limits);
    deliver(&mut sink).unwrap();
    server.down();
    assert!(crate::remote::may_pass(&deliver(&mut sink).unwrap_err()));
    server.up();
    until("the server takes answers again", || deliver(&mut sink).is_ok());
    let context = client(server.port);
    assert_eq!(stored(&context, "A").len(), 2, "the key is known");
    let message =
        runtime().block_on(async { context.get_stream("A").await.unwrap().get_raw_message(1).await.unwrap() });
    assert_eq!(message.headers.get("turnflow-key").unwrap().as_str(), "k");
}

#[test]
fn an_answer_that_is_too_large_for_the_stream_is_refused() {
    let Some(server) = Server::start(NATS) else { return };
    let context = client(server.port);
    let config =
        Config { name: "A".to_owned(), subjects: vec!["A.>".to_owned()], max_message_size: 500, ..Config::default() };
    runtime().block_on(context.create_stream(config)).unwrap();
    let mut large = answer();
    large.answer = "x".repeat(1000).into();
    let (answers, taken) = ([large], std::sync::atomic::AtomicUsize::new(0));
    let error = runtime().block_on(sink(server.port, "A").deliver(Delivery::new(&answers, &taken))).unwrap_err();
    assert!(matches!(error, turnflow_engine::connector::ConnectorError::Refused { .. }), "{error}");
}

#[test]
fn turns_wait_for_an_engine_that_is_slow() {
    let Some(server) = Server::start(NATS) else { return };
    let client = client(server.port);
    stream(&client, "T", RetentionPolicy::Limits);
    for number in 0..40 {
        publish(&client, "T.a", turn(&number.to_string()));
    }
    // Longer than the client keeps a batch that is not read.
    let (turns, _stop, thread) = crate::testing::narrow(turns(server.port, "T"));
    assert_eq!(turns.recv_timeout(PATIENCE).unwrap().turn.record.text.as_ref(), "0");
    std::thread::sleep(Duration::from_secs(9));
    for number in 1..40 {
        assert_eq!(*turns.recv_timeout(PATIENCE).unwrap().turn.record.text, number.to_string());
    }
    drop(_stop);
    thread.join().unwrap().unwrap_err();
}

#[test]
fn a_password_that_has_changed_is_read_again() {
    let directory = tempfile::tempdir().unwrap();
    let secret = directory.path().join("password");
    std::fs::write(&secret, "first").unwrap();
    let configure = |data: &Path, password: &str| {
        let users = format!("authorization: {{ users: [ {{user: \"app\", password: \"{password}\"}} ] }}\n");
        std::fs::write(data.join("server.conf"), users).unwrap();
    };
    let Some(mut server) = Server::configured(NATS, |data| configure(data, "first")) else { return };
    let context = client_as(server.port, "first");
    stream(&context, "T", RetentionPolicy::Limits);
    publish(&context, "T.a", turn("one"));
    let ron =
        format!(r#"(url: "127.0.0.1:{}", stream: "T", auth: User("app", File("{}")))"#, server.port, secret.display());
    let config: NatsConfig = from_str(&ron).unwrap();
    let running = Turns::run(config.source(&crate::testing::context("turns")), Mode::Follow);
    assert_eq!(running.text(), "one");
    server.down();
    configure(server.data(), "second");
    server.up();
    std::thread::sleep(Duration::from_millis(300));
    std::fs::write(&secret, "second").unwrap();
    let context = client_as(server.port, "second");
    publish(&context, "T.a", turn("two"));
    assert_eq!(running.text(), "two");
    running.end(true).unwrap_err();
}

#[test]
fn credentials_prove_with_a_signature_and_never_show() {
    let seed = nkeys::KeyPair::new_user().seed().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("user.creds");
    let creds = format!(
        "-----BEGIN NATS USER JWT-----\nthe.jwt\n------END NATS USER JWT------\n\nKeep it secret.\n\n\
         -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    );
    std::fs::write(&path, creds).unwrap();
    let auth: super::NatsAuth = from_str(&format!("Credentials({:?})", path.display().to_string())).unwrap();
    let proof = auth.prove(b"nonce").unwrap();
    assert_eq!(proof.jwt.as_deref(), Some("the.jwt"));
    let pair = nkeys::KeyPair::from_seed(&seed).unwrap();
    pair.verify(b"nonce", &proof.signature.unwrap()).unwrap();
    std::fs::write(&path, "nothing").unwrap();
    assert!(auth.prove(b"").err().unwrap().to_string().contains("has no part `NATS USER JWT`"));
    assert_eq!(super::shown("nats://a:b@host:1, tls://other"), "nats://host:1,tls://other");
}

#[test]
fn messages_of_a_stream_are_read_by_other_clients_too() {
    let Some(server) = Server::start(NATS) else { return };
    let client = client(server.port);
    stream(&client, "A", RetentionPolicy::Limits);
    let mut sink = sink(server.port, "A");
    let (answers, taken) = ([answer()], std::sync::atomic::AtomicUsize::new(0));
    runtime().block_on(sink.deliver(Delivery::new(&answers, &taken))).unwrap();
    let body = runtime().block_on(async {
        let stream = client.get_stream("A").await.unwrap();
        let consumer = stream.create_consumer(jetstream::consumer::pull::Config::default()).await.unwrap();
        let message = consumer.fetch().max_messages(1).messages().await.unwrap().next().await.unwrap().unwrap();
        message.payload.to_vec()
    });
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&body).unwrap()["answer"], "Seven years.");
}

/// Why it exists: the keys of a mirror have the subjects of the bucket that it mirrors, so none of them was read.
#[test]
fn a_bucket_that_mirrors_or_collects_others_is_read() {
    let Some(server) = Server::start(NATS) else { return };
    let client = client(server.port);
    let origin =
        |name: &str| async_nats::jetstream::stream::Source { name: format!("KV_{name}"), ..Default::default() };
    let put = |store: &kv::Store, key: &str, text: &str| {
        let document = format!("{{\"text\": {text:?}}}");
        runtime().block_on(store.put(key, document.into())).unwrap();
    };
    let stores = ["one", "two"].map(|name| runtime().block_on(bucket_in(&client, name, Duration::ZERO)));
    put(&stores[0], "a", "first");
    put(&stores[1], "b", "second");
    for config in [
        Config { name: "KV_mirror".to_owned(), mirror: Some(origin("one")), ..Config::default() },
        Config { name: "KV_all".to_owned(), sources: Some(vec![origin("one"), origin("two")]), ..Config::default() },
    ] {
        let config = Config { max_messages_per_subject: 1, allow_direct: true, ..config };
        runtime().block_on(client.create_stream(config)).unwrap();
    }
    // The server copies messages when it finds time.
    let until_has = |name: &str, messages: u64| {
        let end = Instant::now() + PATIENCE;
        let count =
            || runtime().block_on(async { client.get_stream(name).await.unwrap().cached_info().state.messages });
        while count() < messages {
            assert!(Instant::now() < end, "{name} has {} messages", count());
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    until_has("KV_mirror", 1);
    let mirror = Corpus::run(bucket(server.port, "mirror"), Mode::Follow);
    assert_eq!(mirror.start(), ["a=first"]);
    put(&stores[0], "c", "later");
    mirror.until(&["c=later"]);
    mirror.end(true).unwrap_err();
    until_has("KV_all", 3);
    let all = Corpus::run(bucket(server.port, "all"), Mode::Follow);
    assert_eq!(all.start(), ["a=first", "b=second", "c=later"]);
    all.end(true).unwrap_err();
}

/// A server that is away may come; a password that it has never accepted is wrong.
#[test]
fn a_wrong_password_is_an_error_at_the_start() {
    let users = "authorization: { users: [ {user: \"app\", password: \"right\"} ] }\n";
    let Some(server) = Server::configured(NATS, |data| std::fs::write(data.join("server.conf"), users).unwrap()) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let secret = directory.path().join("password");
    std::fs::write(&secret, "wrong").unwrap();
    let ron =
        format!(r#"(url: "127.0.0.1:{}", stream: "T", auth: User("app", File("{}")))"#, server.port, secret.display());
    let config: NatsConfig = from_str(&ron).unwrap();
    let running = Turns::run(config.source(&crate::testing::context("turns")), Mode::Follow);
    let error = running.end(false).unwrap_err().to_string();
    assert!(error.contains("the server refuses the credentials"), "{error}");
}
