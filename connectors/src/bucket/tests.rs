use std::path::Path;

use object_store::path::Path as Key;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use turnflow_engine::connector::{CorpusSource as _, Mode};
use turnflow_engine::spec::from_str;

use super::round::KeptObject;
use super::{Bucket, BucketConfig};
use crate::kept_files::KeptFiles;
use crate::servers::{S3, Server, shared};
use crate::testing::{Corpus, context, context_in, runtime, told};

pub(crate) fn is_there() -> bool {
    shared(S3).is_some()
}

/// The server accepts any key, so it has that of a variable that is always set.
fn ron(port: u16, url: &str, further: &str) -> String {
    format!(
        r#"(url: "{url}", every_s: 0.1, options: {{"endpoint": "http://127.0.0.1:{port}", "allow_http": "true",
            "region": "us-east-1", "access_key_id": "any"}}, secrets: {{"secret_access_key": Env("PATH")}}{further})"#
    )
}

fn source(port: u16, url: &str, further: &str) -> Bucket {
    from_str::<BucketConfig>(&ron(port, url, further)).unwrap().source(&context("docs")).unwrap()
}

/// A client of a new bucket.
pub(crate) fn bucket(port: u16, name: &str) -> std::sync::Arc<dyn ObjectStore> {
    runtime().block_on(async {
        let made = reqwest::Client::new().put(format!("http://127.0.0.1:{port}/{name}")).send().await.unwrap();
        assert!(made.status().is_success(), "{made:?}");
    });
    client(port, name)
}

/// A client of a bucket, which need not exist.
pub(crate) fn client(port: u16, name: &str) -> std::sync::Arc<dyn ObjectStore> {
    let config: BucketConfig = from_str(&ron(port, &format!("s3://{name}"), "")).unwrap();
    super::store::open(&config.url, &config.options, &config.secrets).unwrap().0
}

fn put(store: &std::sync::Arc<dyn ObjectStore>, key: &str, text: impl Into<PutPayload>) {
    runtime().block_on(store.put(&Key::parse(key).unwrap(), text.into())).unwrap();
}

/// For the cases of `conformance`.
pub(crate) fn corpus_of(base: &Path, texts: &[String]) -> Bucket {
    let port = shared(S3).unwrap();
    let name = format!("b{}", &blake3::hash(base.as_os_str().as_encoded_bytes()).to_hex()[..12]);
    let store = bucket(port, &name);
    // The time of an object is part of its document, so objects are put once.
    if runtime().block_on(store.head(&Key::from("bad.txt"))).is_err() {
        for (number, text) in texts.iter().enumerate() {
            put(&store, &format!("{number}.md"), text.clone());
        }
        put(&store, "bad.txt", b"\xff".as_slice());
    }
    source(port, &format!("s3://{name}"), "")
}

#[test]
fn objects_change_one_by_one() {
    let Some(server) = Server::start(S3) else { return };
    let store = bucket(server.port, "docs");
    put(&store, "help/a b.md", "one");
    put(&store, "help/deep/c ü.md", "two");
    put(&store, "help/.hidden/d.md", "hidden");
    put(&store, "help/picture.gif", "no document");
    put(&store, "helpless/e.md", "another prefix");
    put(&store, "help/rows.jsonl", "{\"_id\": 1, \"text\": \"row\"}\n");
    let further = r#", link: Some("https://example.org/{path}"), max_bytes: 100"#;
    let running = Corpus::run(source(server.port, "s3://docs/help", further), Mode::Follow);
    let first = running.commit();
    running.started();
    let metadata = first.iter().find(|(id, _)| id == "a b.md").unwrap().1.as_ref().unwrap().metadata.to_json();
    assert_eq!((&metadata["path"], &metadata["url"]), (&"a b.md".into(), &"https://example.org/a b.md".into()));
    assert!(metadata["modified"].as_str().unwrap().ends_with('Z'));
    assert_eq!(told(first), ["a b.md=one", "deep/c ü.md=two", "rows.jsonl#1=row"]);
    put(&store, "help/a b.md", "new");
    assert_eq!(running.changes(), ["a b.md=new"]);
    runtime().block_on(store.delete(&Key::parse("help/deep/c ü.md").unwrap())).unwrap();
    assert_eq!(running.changes(), ["-deep/c ü.md"]);
    put(&store, "help/a b.md", "x".repeat(101));
    assert_eq!(running.changes(), ["-a b.md"]);
    assert_eq!(running.dead(), ["a b.md: larger than 100 bytes"]);
    running.end(true).unwrap_err();
}

#[test]
fn a_restart_reads_only_what_has_changed() {
    let Some(server) = Server::start(S3) else { return };
    let (store, state) = (bucket(server.port, "docs"), tempfile::tempdir().unwrap());
    for name in ["a.md", "b.md", "c.md"] {
        put(&store, name, "one");
    }
    put(&store, "rows.jsonl", "{\"_id\": 1, \"text\": \"row\"}\n");
    let config: BucketConfig = from_str(&ron(server.port, "s3://docs", "")).unwrap();
    let start = || {
        let running = Corpus::run(config.source(&context_in(state.path(), "docs")).unwrap(), Mode::Once);
        let documents = running.start();
        running.end(false).unwrap();
        documents
    };
    assert_eq!(start(), ["a.md=one", "b.md=one", "c.md=one", "rows.jsonl#1=row"]);
    // Other contents under the same versions show where an object was read.
    let kept = KeptFiles::open(&context_in(state.path(), "docs"), &config.place(), true);
    for name in ["a.md", "b.md", "c.md"] {
        let (object, content): (KeptObject, Vec<u8>) = kept.read(name).unwrap();
        assert_eq!(content, b"one");
        kept.write(name, &object, b"kept");
    }
    put(&store, "b.md", "new");
    runtime().block_on(store.delete(&Key::parse("c.md").unwrap())).unwrap();
    assert_eq!(start(), ["a.md=kept", "b.md=new", "rows.jsonl#1=row"]);
    assert_eq!(kept.read::<KeptObject>("b.md").unwrap().1, b"new");
    assert!(kept.read::<KeptObject>("c.md").is_none());
}

#[test]
fn a_listing_of_several_pages_is_complete_also_when_the_store_pauses() {
    let Some(server) = Server::start(S3) else { return };
    let store = bucket(server.port, "docs");
    for number in 0..1200 {
        put(&store, &format!("{number}.md"), number.to_string());
    }
    let running = Corpus::run(source(server.port, "s3://docs", ""), Mode::Follow);
    assert_eq!(running.start().len(), 1200, "more than one page of the listing");
    server.freeze(true);
    std::thread::sleep(std::time::Duration::from_millis(500));
    server.freeze(false);
    put(&store, "0.md", "new");
    assert_eq!(running.changes(), ["0.md=new"]);
    running.end(true).unwrap_err();
}

#[test]
fn a_bucket_that_does_not_exist_yet_is_awaited() {
    let Some(server) = Server::start(S3) else { return };
    let running = Corpus::run(source(server.port, "s3://later", ""), Mode::Follow);
    std::thread::sleep(std::time::Duration::from_millis(300));
    let store = bucket(server.port, "later");
    put(&store, "a.md", "one");
    let mut seen = running.start();
    while !seen.contains(&"a.md=one".to_owned()) {
        seen.extend(running.changes());
    }
    running.end(true).unwrap_err();
}

#[test]
fn settings_are_checked_and_secrets_have_their_place() {
    let place = super::store::Place::of("s3://bucket/prefix").unwrap();
    assert!(place.problem("region", false).is_none() && place.problem("secret_access_key", true).is_none());
    assert!(place.problem("secret_access_key", false).unwrap().contains("belongs in `secrets`"));
    assert!(place.problem("regoin", false).unwrap().contains("has no setting"));
    for url in ["bucket", "file:///tmp", "https://example.org/x", "s3://"] {
        assert!(super::store::Place::of(url).is_err(), "{url}");
    }
}

#[test]
fn pages_are_shown_of_objects() {
    let Some(server) = Server::start(S3) else { return };
    let store = bucket(server.port, "docs");
    put(&store, "help/a b.pdf", crate::readers::samples::pdf("page"));
    let views = source(server.port, "s3://docs/help", "").page_views().unwrap();
    assert!(views.picture("a b.pdf", 1, "page").unwrap().unwrap().starts_with(b"\x89PNG"));
    assert!(views.picture("gone.pdf", 1, "page").is_err());
}
