//! A corpus whose documents the program changes itself.

use std::path::Path;

use turnflow_engine::connector::StoredDocument;
use turnflow_engine::run::Options;

use super::LEXICAL;
use crate::support::{Asked, plan_of, until};

fn document(id: &str, text: &str) -> StoredDocument {
    let (id, text) = (id.to_owned(), text.to_owned());
    StoredDocument {
        id,
        title: None,
        text,
        markup: Default::default(),
        metadata: serde_json::Map::new(),
        modified_ms: 0,
    }
}

fn pipeline() -> String {
    LEXICAL.replace("Directory(path: \"docs\")", "Documents()")
}

#[test]
fn a_put_is_found_soon_and_survives_reloads_and_restarts() {
    let (dir, here) = (tempfile::tempdir().unwrap(), Path::new("."));
    // With a state directory, and without one.
    for state in [Some(dir.path().to_owned()), None] {
        let options = Options { state, workers: 2, ..Options::default() };
        let mut asked = Asked::start(plan_of(here, &pipeline()), options.clone());
        assert!(asked.engine.documents("none").is_none());
        let documents = asked.engine.documents("docs").unwrap();
        documents.put(vec![document("a", "The lamp is lit."), document("b", "Boats return.")]).unwrap();
        asked.ask_until("lamp", "the document that was put", |outcome| outcome.documents("plain") == ["a"]);

        // Another setting keeps the corpus; another chunker reads it again.
        let kept = pipeline().replace("b: 0.6, top: 20", "b: 0.6, top: 10");
        let cut_anew = kept.replace("Sentences(size: 2, overlap: 1)", "Whole()");
        for (text, id) in [(&kept, "c"), (&cut_anew, "d")] {
            asked.engine.reload(plan_of(here, text), &|| false).unwrap();
            assert!(!asked.ask("lamp").documents("plain").is_empty());
            // The store from before the reload is valid, and so is the one that the engine names now.
            documents.put(vec![document(id, "The lamp is out.")]).unwrap();
            let now = asked.engine.documents("docs").unwrap();
            assert_eq!(now.get(id).unwrap(), Some(document(id, "The lamp is out.")));
            asked.ask_until("lamp", "the new document", |outcome| {
                outcome.documents("plain").iter().any(|found| *found == id)
            });
            assert_eq!(now.delete(&[id.to_owned()]).unwrap().documents, 1);
            asked.ask_until("lamp", "its deletion", |outcome| outcome.documents("plain") == ["a"]);
        }

        drop(documents);
        drop(asked);
        let mut again = Asked::start(plan_of(here, &pipeline()), options.clone());
        let found = again.ask("lamp").documents("plain").len();
        assert_eq!(found, usize::from(options.state.is_some()));
    }
}

/// A turn that is asked after a change is published finds it, even if other changes are on their way. A change of
/// nothing is published too.
#[test]
fn it_is_known_of_each_change_whether_it_is_published() {
    let mut asked = Asked::start(plan_of(Path::new("."), &pipeline()), Options { workers: 2, ..Options::default() });
    let documents = asked.engine.documents("docs").unwrap();
    assert!(!asked.engine.has_published("docs", 1000));
    assert!(!asked.engine.has_published("none", 0));
    for round in 0..40 {
        // One in flight, which is published before or together with the next.
        documents.put(vec![document("other", &format!("Boat {round}."))]).unwrap();
        let change = documents.put(vec![document("a", &format!("The lamp{round} is lit."))]).unwrap();
        until("the change", || asked.engine.has_published("docs", change));
        assert_eq!(asked.ask(&format!("lamp{round}")).documents("plain"), ["a"], "{round}");
    }
    let same = documents.put(vec![document("a", "The lamp39 is lit.")]).unwrap();
    until("a put of the same", || asked.engine.has_published("docs", same));
    let empty = documents.put(vec![document("nothing", "")]).unwrap();
    until("a document without passages", || asked.engine.has_published("docs", empty));
    let none = documents.delete(&["unknown".to_owned()]).unwrap();
    until("a deletion of nothing", || asked.engine.has_published("docs", none.change));
    let gone = documents.delete(&["a".to_owned()]).unwrap();
    until("a deletion", || asked.engine.has_published("docs", gone.change));
    assert_eq!(asked.ask("lamp39").documents("plain"), [] as [&str; 0]);
    // A reload that reads the corpus again knows of changes from before.
    let change = documents.put(vec![document("b", "The bell rings.")]).unwrap();
    let other = pipeline().replace("Sentences(size: 2, overlap: 1)", "Whole()");
    asked.engine.reload(plan_of(Path::new("."), &other), &|| false).unwrap();
    until("the change before the reload", || asked.engine.has_published("docs", change));
    assert_eq!(asked.ask("bell").documents("plain"), ["b"]);
}
