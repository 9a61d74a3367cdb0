//! Tests of versions and tags.

use tokio::runtime::Handle;

use super::*;

fn documents(all: &[(&str, &str)]) -> BTreeMap<Arc<str>, Document> {
    let document = |(id, text): &(&str, &str)| {
        let (id, text): (Arc<str>, Arc<str>) = ((*id).into(), (*text).into());
        (
            id.clone(),
            Document { id, title: "A title".into(), text, markup: Markup::Markdown, metadata: Default::default() },
        )
    };
    all.iter().map(document).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_is_what_differs_and_a_tag_is_all_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let tags = Tags::of(dir.path(), "the docs");
    assert_eq!(tags.list().await.unwrap(), []);
    let unknown = tags.source("old").await.err().unwrap().to_string();
    assert_eq!(unknown, "corpus `the docs` has no tag `old`: it has none; `turnflow tag` creates one");
    let first = documents(&[("a", "1"), ("it's", "2"), ("c", "3")]);
    assert_eq!(tags.keep("old", &first).await.unwrap(), Kept { documents: 3, written: 3, gone: 0 });
    let second = documents(&[("a", "1"), ("it's", "two"), ("d", "4")]);
    assert_eq!(tags.keep("new", &second).await.unwrap(), Kept { documents: 3, written: 2, gone: 1 });
    assert_eq!(tags.keep("same", &second).await.unwrap(), Kept { documents: 3, written: 0, gone: 0 });
    let names: Vec<String> = tags.list().await.unwrap().into_iter().map(|tag| tag.name).collect();
    assert_eq!(names.len(), 3);
    for (name, expected) in [("old", &first), ("new", &second), ("same", &second)] {
        let source = tags.source(name).await.unwrap();
        let read = tokio::task::block_in_place(|| read("the docs", &*source, &Handle::current()).unwrap());
        assert_eq!(read, *expected, "{name}");
    }
    assert!(matches!(tags.keep("old", &first).await, Err(TagError::Taken { .. })));
    assert!(matches!(tags.keep("no/name", &first).await, Err(TagError::Name(_))));
    tags.remove("new").await.unwrap();
    let told = tags.source("new").await.err().unwrap().to_string();
    assert!(told.contains("it has `old`, `same`") || told.contains("it has `same`, `old`"), "{told}");
    // Documents of other tags are kept.
    let read = |name: &'static str| {
        let tags = &tags;
        async move {
            let source = tags.source(name).await.unwrap();
            tokio::task::block_in_place(|| read("the docs", &*source, &Handle::current()).unwrap())
        }
    };
    assert_eq!((read("old").await, read("same").await), (first.clone(), second));
    for name in ["old", "same"] {
        tags.remove(name).await.unwrap();
    }
    assert!(!tags.path.exists(), "removing the last tag deletes everything");
    // A process was killed while it wrote the first version.
    std::fs::create_dir_all(tags.path.join("data")).unwrap();
    assert_eq!(tags.list().await.unwrap(), []);
    assert_eq!(tags.keep("again", &first).await.unwrap().written, 3);
    // Corpora with similar names have different datasets.
    let other = Tags::of(dir.path(), "the docs.v2");
    assert!(other.path != Tags::of(dir.path(), "the docs.v1").path && other.list().await.unwrap().is_empty());
    let held = hold(dir.path()).unwrap();
    assert!(matches!(hold(dir.path()), Err(TagError::Busy(_))));
    drop(held);
    hold(dir.path()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_corpus_without_documents_can_be_kept() {
    let dir = tempfile::tempdir().unwrap();
    let tags = Tags::of(dir.path(), "docs");
    assert_eq!(tags.keep("none", &BTreeMap::new()).await.unwrap().documents, 0);
    assert_eq!(tags.keep("one", &documents(&[("a", "1")])).await.unwrap().written, 1);
    let source = tags.source("none").await.unwrap();
    assert!(tokio::task::block_in_place(|| read("docs", &*source, &Handle::current()).unwrap()).is_empty());
}
