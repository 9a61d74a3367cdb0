//! Tests of a store of documents and of the source that follows it.

use std::collections::BTreeMap;
use std::fs;

use crossbeam_channel::{Receiver, bounded};
use turnflow_engine::connector::{CorpusEvent, Stop};
use turnflow_engine::dead_letter::DeadLetters;
use turnflow_engine::document::{Markup, Readers};

use super::*;
use crate::readers::Format;
use crate::testing::{Corpus, PATIENCE, told};

impl Documents {
    /// Stores any bytes as a document.
    pub(crate) fn put_encoded(&self, id: &str, bytes: &[u8]) {
        self.store.change(&[(id.into(), Some(bytes.to_vec()))]).unwrap();
    }
}

fn document(id: &str, text: &str) -> StoredDocument {
    let metadata = serde_json::json!({"from": "a test"}).as_object().unwrap().clone();
    StoredDocument {
        id: id.into(),
        title: Some("t".into()),
        text: text.into(),
        markup: Markup::Plain,
        metadata,
        modified_ms: 7,
    }
}

fn open(directory: &Path) -> Documents {
    DocumentsConfig::default().source(directory).unwrap()
}

fn in_memory(run: u64) -> Documents {
    DocumentsConfig::default().open(Place::Memory { run, component: "docs".into() }, ReadOptions::default()).unwrap()
}

fn ids(documents: &[StoredDocument]) -> Vec<&str> {
    documents.iter().map(|document| document.id.as_str()).collect()
}

/// The change as `id=text` or `-id`.
fn change(id: &str, document: Option<Document>) -> String {
    told(vec![(id.to_owned(), document)]).remove(0)
}

/// The changes up to the next commit, in their order.
fn in_order(corpus: &Corpus) -> Vec<String> {
    corpus.commit().into_iter().map(|(id, document)| change(&id, document)).collect()
}

#[test]
fn documents_are_put_read_listed_and_deleted() {
    let directory = tempfile::tempdir().unwrap();
    for source in [open(directory.path()), in_memory(u64::MAX)] {
        let store = source.documents().unwrap();
        assert_eq!((store.count().unwrap(), store.get("a").unwrap()), (0, None));
        assert!(store.list(None, 10).unwrap().is_empty());
        store.put(vec![]).unwrap();
        store.put(vec![document("b", "old"), document("a", "one"), document("é", ""), document("b", "two")]).unwrap();
        assert_eq!(store.count().unwrap(), 3);
        assert_eq!(store.get("b").unwrap(), Some(document("b", "two")));
        let all = store.list(None, 10).unwrap();
        assert_eq!(ids(&all), ["a", "b", "é"]);
        assert_eq!(all[0], document("a", "one"));
        assert_eq!(ids(&store.list(None, 2).unwrap()), ["a", "b"]);
        assert_eq!(ids(&store.list(Some("b"), 2).unwrap()), ["é"]);
        // An id that does not exist has a place too.
        assert_eq!(ids(&store.list(Some("aa"), 1).unwrap()), ["b"]);
        assert!(store.list(None, 0).unwrap().is_empty() && store.list(Some("é"), 5).unwrap().is_empty());
        let gone = ["a".to_owned(), "none".to_owned(), "a".to_owned()];
        assert_eq!(store.delete(&gone).unwrap().documents, 1);
        assert_eq!((store.delete(&gone).unwrap().documents, store.delete(&[]).unwrap().documents), (0, 0));
        assert_eq!((store.count().unwrap(), store.get("a").unwrap()), (2, None));
    }
}

#[test]
fn documents_survive_closing_and_opening() {
    let directory = tempfile::tempdir().unwrap();
    open(directory.path()).documents().unwrap().put(vec![document("a", "one"), document("b", "two")]).unwrap();
    assert_eq!(open(directory.path()).documents().unwrap().delete(&["b".into()]).unwrap().documents, 1);
    let corpus = Corpus::run(open(directory.path()), Mode::Once);
    assert_eq!(corpus.start(), ["a=one"]);
    corpus.end(false).unwrap();
    assert_eq!(open(directory.path()).documents().unwrap().get("a").unwrap(), Some(document("a", "one")));
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "one file");
}

#[test]
fn changes_come_in_order_each_put_in_one_commit() {
    let directory = tempfile::tempdir().unwrap();
    let source = open(directory.path());
    let store = source.documents().unwrap();
    store.put(vec![document("a", "one")]).unwrap();
    let corpus = Corpus::run(source, Mode::Follow);
    assert_eq!(corpus.start(), ["a=one"]);
    store.put(vec![document("c", "three"), document("b", "two")]).unwrap();
    assert_eq!(in_order(&corpus), ["c=three", "b=two"]);
    store.delete(&["c".into(), "a".into()]).unwrap();
    assert_eq!(in_order(&corpus), ["-c", "-a"]);
    store.put(vec![document("b", "new")]).unwrap();
    store.put(vec![document("a", "back")]).unwrap();
    let mut seen = in_order(&corpus);
    while seen.len() < 2 {
        seen.extend(in_order(&corpus));
    }
    assert_eq!(seen, ["b=new", "a=back"]);
    corpus.nothing_more();
    assert!(matches!(corpus.end(true), Err(ConnectorError::Stopped(_))));
    // The source has ended, and the store is still open.
    store.put(vec![document("d", "later")]).unwrap();
    assert_eq!(store.count().unwrap(), 3);
}

/// Applies the events up to `Ready`.
fn until_ready(events: &Receiver<CorpusEvent>, documents: &mut BTreeMap<String, String>) {
    let mut uncommitted = 0;
    loop {
        match events.recv_timeout(PATIENCE).unwrap() {
            CorpusEvent::Change(id, document) => {
                uncommitted += 1;
                match document {
                    Some(document) => drop(documents.insert(id.to_string(), document.text.to_string())),
                    None => drop(documents.remove(&*id)),
                }
            }
            CorpusEvent::Commit => uncommitted = 0,
            CorpusEvent::Ready => {
                assert_eq!(uncommitted, 0);
                return;
            }
            CorpusEvent::End => panic!("the source has ended"),
        }
    }
}

#[test]
fn a_put_during_the_first_reading_is_neither_lost_nor_held_up() {
    let directory = tempfile::tempdir().unwrap();
    let source = open(directory.path());
    let store = source.documents().unwrap();
    let id = |number: usize| format!("{number:04}");
    let count = 3 * PAGE;
    store.put((0..count).map(|number| document(&id(number), "old")).collect()).unwrap();
    // The channel has room for one event, so the source waits on its first page.
    let (sender, events) = bounded(1);
    let (stop, stopped) = Stop::new();
    let output = CorpusOutput::new(sender, Arc::new(|| {}), DeadLetters::counted(), "docs".into(), stopped);
    let thread = std::thread::spawn(move || Box::new(source).run(Mode::Follow, output));
    let mut documents = BTreeMap::new();
    for _ in 0..2 {
        let CorpusEvent::Change(id, Some(document)) = events.recv_timeout(PATIENCE).unwrap() else { panic!() };
        documents.insert(id.to_string(), document.text.to_string());
    }
    // Already read, not yet read, deleted before and after the reader's position, and new before and after it.
    store.put(vec![document(&id(0), "newer"), document(&id(count - 1), "newer"), document("00", "first")]).unwrap();
    store.delete(&[id(1), id(count - 2)]).unwrap();
    store.put(vec![document(&id(0), "newest"), document("zz", "last")]).unwrap();
    store.put(vec![document("gone", "gone")]).unwrap();
    store.delete(&["gone".into()]).unwrap();
    until_ready(&events, &mut documents);
    let stored = store.list(None, usize::MAX).unwrap();
    let stored: BTreeMap<String, String> = stored.into_iter().map(|document| (document.id, document.text)).collect();
    assert_eq!(documents, stored);
    assert_eq!((stored.len(), &*stored["0000"], &*stored["00"]), (count, "newest", "first"));
    // The queue is empty: the next change is sent alone.
    store.put(vec![document("a", "after")]).unwrap();
    let CorpusEvent::Change(id, Some(_)) = events.recv_timeout(PATIENCE).unwrap() else { panic!() };
    assert_eq!(&*id, "a");
    assert!(matches!(events.recv_timeout(PATIENCE).unwrap(), CorpusEvent::Commit));
    drop(stop);
    assert!(matches!(thread.join().unwrap(), Err(ConnectorError::Stopped(_))));
}

#[test]
fn a_put_of_many_pages_is_one_commit() {
    let source = in_memory(u64::MAX - 1);
    let store = source.documents().unwrap();
    let corpus = Corpus::run(source, Mode::Follow);
    assert_eq!(corpus.start(), [""; 0]);
    let count = 2 * PAGE + 1;
    store.put((0..count).map(|number| document(&number.to_string(), "text")).collect()).unwrap();
    let changes = in_order(&corpus);
    assert_eq!(changes, (0..count).map(|number| format!("{number}=text")).collect::<Vec<_>>());
}

#[test]
fn two_sources_of_one_place_share_its_store() {
    let directory = tempfile::tempdir().unwrap();
    let (one, other) = (open(directory.path()), open(&directory.path().join(".")));
    let (store, same) = (one.documents().unwrap(), other.documents().unwrap());
    store.put(vec![document("a", "one")]).unwrap();
    assert_eq!(same.count().unwrap(), 1);
    let (one, other) = (Corpus::run(one, Mode::Follow), Corpus::run(other, Mode::Follow));
    assert_eq!((one.start(), other.start()), (vec!["a=one".to_owned()], vec!["a=one".to_owned()]));
    same.put(vec![document("b", "two")]).unwrap();
    assert_eq!((one.changes(), other.changes()), (vec!["b=two".to_owned()], vec!["b=two".to_owned()]));
    // As after a reload: the first source ends, and its store still reaches the second.
    let _ = one.end(true);
    store.delete(&["a".into()]).unwrap();
    assert_eq!(other.changes(), ["-a"]);
    let _ = other.end(true);

    let (one, other) = (in_memory(1 << 40), in_memory(1 << 41));
    one.documents().unwrap().put(vec![document("a", "one")]).unwrap();
    assert_eq!(in_memory(1 << 40).documents().unwrap().count().unwrap(), 1);
    assert_eq!(other.documents().unwrap().count().unwrap(), 0, "another run");
}

#[test]
fn a_store_is_opened_while_another_thread_closes_it() {
    let directory = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for name in ["a", "b", "c", "d"] {
            let directory = directory.path();
            scope.spawn(move || {
                for _ in 0..10 {
                    open(directory).documents().unwrap().put(vec![document(name, "text")]).unwrap();
                }
            });
        }
    });
    assert_eq!(open(directory.path()).documents().unwrap().count().unwrap(), 4);
}

#[test]
fn a_put_with_an_invalid_document_stores_none() {
    let config = DocumentsConfig { max_bytes: 100, ..DocumentsConfig::default() };
    let source = config.open(Place::Memory { run: 1 << 42, component: "docs".into() }, ReadOptions::default()).unwrap();
    let store = source.documents().unwrap();
    let error = store.put(vec![document("a", "short"), document("b", &"x".repeat(100))]).unwrap_err();
    assert!(matches!(error, ConnectorError::Refused { .. }), "{error}");
    // The id, the title, the text, and `{"from":"a test"}`.
    assert_eq!(error.to_string(), "refused: document `b` has 119 bytes, more than `max_bytes` (100)");
    let error = store.put(vec![document("a", "short"), document("", "no id")]).unwrap_err();
    assert!(matches!(error, ConnectorError::Refused { .. }), "{error}");
    assert_eq!(store.count().unwrap(), 0);
    store.put(vec![document("a", &"x".repeat(81))]).unwrap();
}

#[test]
fn a_damaged_file_is_an_error_and_stays() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(FILE);
    fs::write(&path, "not a database").unwrap();
    let error = DocumentsConfig::default().source(directory.path()).err().unwrap().to_string();
    assert!(error.contains(FILE) && error.contains("damaged"), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "not a database");
    // After the user has moved the file away, the start succeeds.
    fs::rename(&path, directory.path().join("aside")).unwrap();
    assert_eq!(open(directory.path()).documents().unwrap().count().unwrap(), 0);
}

#[test]
fn a_document_of_an_unknown_format_is_a_dead_letter_until_it_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let source = open(directory.path());
    let store = source.documents().unwrap();
    store.put(vec![document("a", "one")]).unwrap();
    source.put_encoded("b", &[9, b'{', b'}']);
    let corpus = Corpus::run(source, Mode::Follow);
    assert_eq!(corpus.start(), ["a=one"]);
    let reason = "format 9 is not supported; this version of turnflow reads only 1";
    assert_eq!(corpus.dead(), [format!("{FILE}: b: {reason}")]);
    assert!(store.get("b").unwrap_err().to_string().contains(reason));
    assert!(store.list(None, 5).is_err() && store.list(Some("b"), 5).is_ok());
    store.put(vec![document("b", "two")]).unwrap();
    assert_eq!(corpus.changes(), ["b=two"]);
    let _ = corpus.end(true);
}

#[test]
fn unknown_fields_of_the_node_are_refused() {
    assert!(turnflow_engine::spec::from_str::<DocumentsConfig>("(max_bites: 1)").is_err());
}

#[test]
fn the_front_matter_of_markdown_is_metadata() {
    let text = "---\ntitle: Fees\nlang: en\nteam: pay\n---\n# Heading\n\nWho pays?\n";
    let given = serde_json::json!({"mime": "text/markdown", "lang": "de"}).as_object().unwrap().clone();
    let markdown = StoredDocument { title: None, metadata: given.clone(), ..document("a", text) };
    let titled = StoredDocument { id: "b".into(), title: Some("Given".into()), ..markdown.clone() };
    let plain = StoredDocument { id: "c".into(), metadata: serde_json::Map::new(), ..markdown.clone() };
    let source = in_memory(u64::MAX);
    source.documents().unwrap().put(vec![markdown, titled, plain]).unwrap();
    let corpus = Corpus::run(source, Mode::Once);
    let read: BTreeMap<String, Document> =
        corpus.commit().into_iter().filter_map(|(id, document)| Some((id, document?))).collect();
    let a = &read["a"];
    assert_eq!((&*a.title, &*a.text, a.markup), ("Fees", "# Heading\n\nWho pays?\n", Markup::Markdown));
    assert_eq!(
        serde_json::json!(a.metadata.to_json()),
        serde_json::json!({"mime": "text/markdown", "lang": "de", "team": "pay"})
    );
    assert_eq!(&*read["b"].title, "Given");
    assert_eq!((&*read["c"].text, read["c"].markup), (text, Markup::Plain));
}

#[test]
fn files_are_read_into_documents() {
    let directory = tempfile::tempdir().unwrap();
    let source = DocumentsConfig::default().source(directory.path()).unwrap();
    let store = source.documents().unwrap();
    let read = |id: &str, mime: &str, bytes: &[u8]| store.read_file(id, mime, None, bytes);
    let page = b"<html><head><title>Ferry</title></head><body><h2>Times</h2><p>At nine.</p></body></html>";
    let html = read("a", "text/html", page).unwrap();
    assert_eq!(
        (html.title.as_deref(), html.markup, &html.metadata["mime"]),
        (Some("Ferry"), Markup::Markdown, &"text/html".into())
    );
    assert!(html.text.contains("## Times"), "{html:?}");
    let old = store.read_file("a", "text/html", Some("iso-8859-1"), b"<p>F\xe4hre").unwrap();
    assert!(old.text.contains("F\u{e4}hre"), "{old:?}");
    let table = read("prices.csv", "", b"name,price\nbread,2\n").unwrap();
    assert!(table.text.contains("bread") && table.metadata["mime"] == "text/csv", "{table:?}");
    let front = b"---\nlang: en\n---\n# Title\nText.";
    let markdown = read("a.md", "application/octet-stream", front).unwrap();
    let text = read("a.txt", "", "\u{feff}One\r\ntwo".as_bytes()).unwrap();
    assert_eq!((text.text.as_str(), text.markup), ("One\ntwo", Markup::Plain));
    for (id, mime) in [("a.jsonl", ""), ("a.exe", "application/octet-stream"), ("a", ""), ("a.pdf", "image/gif")] {
        let error = read(id, mime, b"{}").unwrap_err();
        assert!(matches!(&error, ConnectorError::Refused { reason } if reason.contains("no reader")), "{error}");
    }
    for (mime, bytes) in [("text/html", &b"\xff"[..]), ("application/pdf", b"no PDF"), ("text/plain", b"\xff")] {
        assert!(matches!(read("a", mime, bytes), Err(ConnectorError::Unreadable { .. })), "{mime}");
    }
    // They are sent as the readers of other sources would send them.
    store.put(vec![html, markdown]).unwrap();
    let running = Corpus::run(source, Mode::Once);
    let sent: BTreeMap<String, Option<Document>> = running.commit().into_iter().collect();
    let html = sent["a"].as_ref().unwrap();
    assert_eq!(
        *html,
        Format::Html.read("a".into(), page).map(|read| Document { metadata: html.metadata.clone(), ..read }).unwrap()
    );
    let markdown = sent["a.md"].as_ref().unwrap();
    assert_eq!((&*markdown.title, markdown.metadata.get("lang")), ("Title", Some(&FieldValue::from("en"))));
}

/// Why it exists: a list read every document of a store to show the few that a caller may read.
#[test]
fn a_list_for_groups_has_what_they_may_read() {
    let directory = tempfile::tempdir().unwrap();
    let mut state = 7_u64;
    let mut number = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let names: [&[&str]; 6] = [&["board"], &["staff"], &["board", "staff"], &["*"], &[], &["boards", "board\0"]];
    let with = |id: &str, groups: &[&str]| {
        let metadata = serde_json::json!({ "groups": groups, "team": groups.first() });
        StoredDocument { metadata: metadata.as_object().unwrap().clone(), ..document(id, "text") }
    };
    for source in [open(directory.path()), in_memory(1 << 43)] {
        let store = source.documents().unwrap();
        // The tables are made for the first field after some changes, and for the second after more.
        for round in 0..300 {
            let id = number(40).to_string();
            match number(4) {
                0 => drop(store.delete(&[id]).unwrap()),
                _ => drop(store.put(vec![with(&id, names[number(6) as usize])]).unwrap()),
            }
            if round < 100 || round % 7 != 0 {
                continue;
            }
            let field = if round < 200 || round % 2 == 0 { "groups" } else { "team" };
            for groups in [&["board"][..], &["staff", "board"], &["*"], &["none"], &[]] {
                let groups: Vec<Arc<str>> = groups.iter().map(|group| Arc::from(*group)).collect();
                let mut all = store.list(None, 100).unwrap();
                all.retain(|known| Readers::named(&Metadata::of(&known.metadata).0, field).include(&groups));
                let (mut listed, mut after) = (Vec::new(), None);
                loop {
                    let page = store.list_for(field, &groups, after.as_deref(), 3).unwrap();
                    let Some(last) = page.last() else { break };
                    assert!(page.len() <= 3);
                    after = Some(last.id.clone());
                    listed.extend(page);
                }
                assert_eq!(ids(&listed), ids(&all), "{field} {groups:?}");
            }
        }
        // One that cannot be read is nobody's.
        source.put_encoded("0", &[9, b'{', b'}']);
        let listed = store.list_for("groups", &["board".into()], None, 100).unwrap();
        assert!(!ids(&listed).contains(&"0"));
    }
}

#[test]
fn a_store_of_an_earlier_version_is_listed_for_groups_in_parts() {
    let directory = tempfile::tempdir().unwrap();
    let source = open(directory.path());
    let of = |number: usize| {
        let metadata = serde_json::json!({ "groups": if number % 1000 == 7 { "board" } else { "staff" } });
        let metadata = metadata.as_object().unwrap().clone();
        StoredDocument { metadata, ..document(&format!("{number:05}"), "text") }
    };
    let store = source.documents().unwrap();
    store.put((0..2500).map(of).collect()).unwrap();
    let listed = store.list_for("groups", &["board".into()], None, 10).unwrap();
    assert_eq!(ids(&listed), ["00007", "01007", "02007"]);
    drop((store, source));
    let listed = open(directory.path()).documents().unwrap().list_for("groups", &["board".into()], Some("00007"), 1);
    assert_eq!(ids(&listed.unwrap()), ["01007"]);
}

#[test]
fn an_encrypted_file_is_read_with_the_password_of_the_corpus() {
    let directory = tempfile::tempdir().unwrap();
    let bytes = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("readers/tests/pdf-locked.pdf")).unwrap();
    let read = |ron: &str| {
        let config: DocumentsConfig = turnflow_engine::spec::from_str(ron).unwrap();
        let source = config.source_of(&crate::testing::context_in(directory.path(), "docs")).unwrap();
        source.documents().unwrap().read_file("a.pdf", "", None, &bytes).map(|document| document.text)
    };
    assert!(
        matches!(read("(max_bytes: 100000)"), Err(ConnectorError::Unreadable { reason }) if reason.contains("encrypted"))
    );
    let password = directory.path().join("password");
    std::fs::write(&password, "open sesame\n").unwrap();
    let text = read(&format!("(passwords: [File({password:?})])")).unwrap();
    assert_eq!(text.trim(), "The vault opens at nine.");
    let refused = DocumentsConfig { ocr: OcrMode::Never, ..DocumentsConfig::default() };
    let store = refused.source(directory.path()).unwrap().documents().unwrap();
    assert!(matches!(store.read_file("a.png", "", None, b"x"), Err(ConnectorError::Refused { .. })));
}
