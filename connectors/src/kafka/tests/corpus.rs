//! Tests of the corpus source.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use turnflow_engine::connector::Mode;
use turnflow_engine::spec::from_str;

use super::super::corpus::{KafkaConfig, KafkaCorpus};
use super::{Cluster, Proxy, context};
use crate::testing::Corpus;

fn source(brokers: &str, further: &str) -> KafkaCorpus {
    let config: KafkaConfig = from_str(&format!("(brokers: {brokers:?}, topic: \"t\"{further})")).unwrap();
    config.source(&context())
}

impl Cluster {
    /// Changes a document, or deletes it.
    fn document(&self, partition: i32, id: &str, text: Option<&str>) {
        let value = text.map(|text| serde_json::json!({"title": "T", "text": text}).to_string());
        self.put("t", partition, Some(id), value.as_deref().map(str::as_bytes));
    }
}

/// What remains of changes in this order.
fn last(mut changes: Vec<(String, Option<turnflow_engine::document::Document>)>) -> Vec<String> {
    changes.reverse();
    let mut seen = std::collections::HashSet::new();
    changes.retain(|(id, _)| seen.insert(id.clone()));
    crate::testing::told(changes)
}

#[test]
fn a_key_is_a_document_and_only_what_changes_is_sent() {
    let cluster = Cluster::start(&[("t", 2)]);
    cluster.document(0, "a", Some("old"));
    cluster.document(1, "b", Some("b"));
    cluster.document(0, "a", Some("new"));
    cluster.document(0, "gone", Some("gone"));
    cluster.document(0, "gone", None);
    let corpus = Corpus::run(source(&cluster.brokers(), ""), Mode::Follow);
    assert_eq!(last(corpus.commit()), ["-gone", "a=new", "b=b"]);
    corpus.started();
    cluster.document(1, "b", Some("newer"));
    assert_eq!(corpus.changes(), ["b=newer"]);
    cluster.document(0, "a", None);
    assert_eq!(corpus.changes(), ["-a"]);
    // There is no such document.
    cluster.document(0, "never", None);
    cluster.put("t", 0, Some("b2"), Some(b""));
    cluster.document(0, "c", Some("c"));
    assert_eq!(corpus.changes(), ["c=c"]);
    corpus.nothing_more();
    assert!(corpus.dead().is_empty());
    corpus.end(true).unwrap_err();
}

#[test]
fn a_record_that_cannot_be_read_is_a_dead_letter_and_its_document_is_deleted() {
    let cluster = Cluster::start(&[("t", 1)]);
    cluster.document(0, "a", Some("a"));
    cluster.put("t", 0, None, Some(b"{}"));
    let corpus = Corpus::run(source(&cluster.brokers(), ", max_bytes: 100"), Mode::Follow);
    assert_eq!(corpus.start(), ["a=a"]);
    cluster.put("t", 0, Some("a"), Some(b"no JSON"));
    assert_eq!(corpus.changes(), ["-a"]);
    cluster.document(0, "a", Some("again"));
    assert_eq!(corpus.changes(), ["a=again"]);
    cluster.put("t", 0, Some("a"), Some(&[b' '; 101]));
    assert_eq!(corpus.changes(), ["-a"]);
    let dead = corpus.dead();
    assert_eq!(dead[0], "t[0]@1: the record has no key");
    assert!(dead[1].starts_with("t[0]@2: not a JSON object"), "{dead:?}");
    assert_eq!(dead[2], "t[0]@4: the record has 101 bytes, more than 100");
    corpus.end(true).unwrap_err();
}

#[test]
fn values_in_another_form_are_mapped() {
    let cluster = Cluster::start(&[("t", 1)]);
    let put = |key: &str, value: &str| cluster.put("t", 0, Some(key), Some(value.as_bytes()));
    put("a", r#"{"entries": [{"slug": "x", "body": "one"}, {"slug": "y", "body": "two"}]}"#);
    let map = r#", map: Jq("if .entries then .entries[] | {id: .slug, text: .body} else {text: .body} end")"#;
    let corpus = Corpus::run(source(&cluster.brokers(), map), Mode::Follow);
    assert_eq!(corpus.start(), ["x=one", "y=two"]);
    put("a", r#"{"entries": [{"slug": "y", "body": "three"}]}"#);
    assert_eq!(corpus.changes(), ["-x", "y=three"]);
    put("b", r#"{"body": "four"}"#);
    assert_eq!(corpus.changes(), ["b=four"]);
    put("b", "{}");
    assert_eq!(corpus.changes(), ["-b"]);
    cluster.document(0, "a", None);
    assert_eq!(corpus.changes(), ["-y"]);
    let dead = corpus.dead();
    assert!(dead.len() == 1 && dead[0].starts_with("t[0]@3: not mapped: "), "{dead:?}");
    corpus.end(true).unwrap_err();
}

#[test]
fn values_may_be_markdown() {
    let cluster = Cluster::start(&[("t", 1)]);
    cluster.put("t", 0, Some("a.md"), Some(b"# Title\n\nText."));
    let corpus = Corpus::run(source(&cluster.brokers(), ", format: Markdown"), Mode::Once);
    let changes = corpus.commit();
    assert_eq!(&*changes[0].1.as_ref().unwrap().title, "Title");
    corpus.started();
    corpus.end(false).unwrap();
}

#[test]
fn an_empty_topic_is_an_empty_corpus() {
    let cluster = Cluster::start(&[("t", 3)]);
    let corpus = Corpus::run(source(&cluster.brokers(), ""), Mode::Once);
    assert!(corpus.start().is_empty());
    corpus.end(false).unwrap();
}

#[test]
fn changes_made_while_the_broker_is_away_are_not_missed() {
    let (proxy, cluster) = (Proxy::start(), Cluster::start(&[("t", 1)]));
    cluster.document(0, "a", Some("a"));
    cluster.document(0, "b", Some("b"));
    proxy.exchange(Some(&cluster));
    let corpus = Corpus::run(source(&proxy.brokers(), ""), Mode::Follow);
    assert_eq!(corpus.start(), ["a=a", "b=b"]);
    proxy.exchange(None);
    cluster.advertise(cluster.port());
    cluster.document(0, "a", None);
    cluster.document(0, "c", Some("c"));
    proxy.exchange(Some(&cluster));
    corpus.until(&["-a", "c=c"]);
    corpus.nothing_more();
    corpus.end(true).unwrap_err();
}

#[test]
fn a_topic_that_was_created_again_replaces_the_documents() {
    let (proxy, old) = (Proxy::start(), Cluster::start(&[("t", 1)]));
    old.document(0, "a", Some("a"));
    old.document(0, "b", Some("b"));
    proxy.exchange(Some(&old));
    let corpus = Corpus::run(source(&proxy.brokers(), ""), Mode::Follow);
    assert_eq!(corpus.start(), ["a=a", "b=b"]);
    let new = Cluster::start(&[("t", 1)]);
    for (id, text) in [("b", "b"), ("c", "c")] {
        new.document(0, id, Some(text));
    }
    proxy.exchange(None);
    proxy.exchange(Some(&new));
    assert_eq!(corpus.changes(), ["-a", "b=b", "c=c"], "in one epoch");
    corpus.nothing_more();
    corpus.end(true).unwrap_err();
}

#[test]
fn a_new_partition_is_read() {
    let cluster = Cluster::start(&[("t", 2)]);
    cluster.document(0, "a", Some("a"));
    cluster.document(1, "b", Some("b"));
    let mut source = source(&cluster.brokers(), "");
    let visible = Arc::new(AtomicI32::new(1));
    source.reader.visible = Some(visible.clone());
    let corpus = Corpus::run(source, Mode::Follow);
    assert_eq!(corpus.start(), ["a=a"]);
    visible.store(2, Ordering::Release);
    assert_eq!(corpus.changes(), ["b=b"]);
    corpus.end(true).unwrap_err();
}
