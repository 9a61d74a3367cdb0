//! A stored index that is opened again and given the whole corpus.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use turnflow_engine::component::{Delta, Index, IndexDefinition as _, Permitted};
use turnflow_engine::document::Chunk;

use super::Tokenizer;
use super::open::Bm25Definition;
use super::reader::{Bm25Reader, Parameters};
use super::score::Idf;

const DEFINITION: Bm25Definition = Bm25Definition { tokenizer: Tokenizer::Whitespace };
/// More than a thread reads.
const PASSAGES: usize = 1500;

fn chunk(number: usize, version: usize) -> Arc<Chunk> {
    let text: String = (0..1 + number % 7).map(|word| format!("w{} ", (number + word) % 13)).collect();
    let chunk = Chunk::new(format!("p{number}").into(), "d".into(), "".into(), format!("{text}v{version}").into());
    Arc::new(chunk)
}

async fn apply(index: &mut dyn Index, added: &[Arc<Chunk>], whole: bool) -> Arc<Bm25Reader> {
    let delta = Delta { added: added.to_vec(), removed: Vec::new(), whole };
    index.apply(&delta).await.unwrap().downcast().unwrap()
}

/// What a reader finds for some terms, with the bits of the scores.
fn found(reader: &Bm25Reader) -> Vec<(String, u32)> {
    let parameters = Parameters { idf: Idf::Lucene, k1: 1.2, b: 0.75 };
    let terms: BTreeMap<String, f32> = ["w1", "w5", "w9", "v0", "v1", "v2"].map(|term| (term.to_owned(), 1.0)).into();
    let hits = reader.search(&terms, parameters, 10 * PASSAGES, &Permitted::All).unwrap();
    hits.iter().map(|hit| (format!("{} {}", hit.chunk.id, &*hit.chunk.text), hit.score.to_bits())).collect()
}

/// The files of a directory and their contents.
fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = std::fs::read_dir(directory).unwrap().map(|file| file.unwrap().path());
    files.map(|path| (path.display().to_string(), std::fs::read(path).unwrap())).collect()
}

/// An index of [`PASSAGES`] passages in several segments, of which some have deleted passages; and the passages.
async fn stored(directory: &Path) -> Vec<Arc<Chunk>> {
    let mut index = DEFINITION.open(Some(directory)).await.unwrap();
    let mut chunks: Vec<Arc<Chunk>> = (0..PASSAGES).map(|number| chunk(number, 0)).collect();
    for part in chunks.chunks(PASSAGES / 3) {
        apply(&mut *index, part, false).await;
    }
    for number in (0..PASSAGES).step_by(10) {
        chunks[number] = chunk(number, 1);
    }
    let changed: Vec<_> = chunks.iter().step_by(10).cloned().collect();
    let reader = apply(&mut *index, &changed, false).await;
    let deleted: u32 = reader.segments.iter().map(|segment| segment.reader.num_deleted_docs()).sum();
    assert!(reader.segments.len() > 2 && deleted > 0, "{} segments, {deleted} deleted", reader.segments.len());
    chunks
}

/// What a new index of these passages finds.
async fn expected(chunks: &[Arc<Chunk>]) -> (Vec<(String, u32)>, (u64, u64)) {
    let mut index = DEFINITION.open(None).await.unwrap();
    let reader = apply(&mut *index, chunks, true).await;
    (found(&reader), reader.counted())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_corpus_that_is_stored_as_it_is_writes_nothing() {
    let place = tempfile::tempdir().unwrap();
    let mut chunks = stored(place.path()).await;
    let before = files(place.path());
    // In another order too.
    for _ in 0..2 {
        let mut index = DEFINITION.open(Some(place.path())).await.unwrap();
        let version = index.version();
        let reader = apply(&mut *index, &chunks, true).await;
        assert_eq!((found(&reader), reader.counted()), expected(&chunks).await);
        assert_eq!(index.version(), version);
        drop(index);
        assert_eq!(files(place.path()), before);
        chunks.reverse();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_corpus_that_differs_from_what_is_stored_replaces_it() {
    let place = tempfile::tempdir().unwrap();
    let mut chunks = stored(place.path()).await;
    let edits: [fn(&mut Vec<Arc<Chunk>>); 5] = [
        |chunks| chunks.truncate(PASSAGES - 100),
        |chunks| drop(chunks.drain(..1)),
        |chunks| (0..chunks.len()).step_by(3).for_each(|at| chunks[at] = chunk(at + 1, 2)),
        |chunks| chunks.extend((0..PASSAGES).map(|number| chunk(PASSAGES + number, 0))),
        // An id that is named twice: the last one counts.
        |chunks| chunks.extend([chunk(5, 2), chunk(6, 0), chunk(7, 1), chunk(7, 2), chunk(9999, 0), chunk(9999, 1)]),
    ];
    for (number, edit) in edits.into_iter().enumerate() {
        let mut index = DEFINITION.open(Some(place.path())).await.unwrap();
        let version = index.version();
        edit(&mut chunks);
        let reader = apply(&mut *index, &chunks, true).await;
        let last: BTreeMap<Arc<str>, Arc<Chunk>> =
            chunks.iter().map(|chunk| (chunk.id.clone(), chunk.clone())).collect();
        chunks = last.into_values().collect();
        assert_eq!((found(&reader), reader.counted()), expected(&chunks).await, "edit {number}");
        assert_ne!(index.version(), version, "edit {number}");
        drop(index);
        assert!(DEFINITION.stored(place.path()).await.unwrap().flaws.is_empty(), "edit {number}");
    }
    assert_eq!(DEFINITION.stored(place.path()).await.unwrap().passages.len(), chunks.len());
}

/// A change of metadata alone reaches the epoch, though nothing is committed.
#[tokio::test(flavor = "multi_thread")]
async fn another_copy_of_a_passage_is_found_without_a_commit() {
    let place = tempfile::tempdir().unwrap();
    let chunks = stored(place.path()).await;
    let mut index = DEFINITION.open(Some(place.path())).await.unwrap();
    apply(&mut *index, &chunks, true).await;
    let version = index.version();
    let mut copy = Chunk::clone(&chunks[3]);
    copy.document = "another".into();
    let reader = apply(&mut *index, &[Arc::new(copy)], false).await;
    let documents = reader.segments.iter().flat_map(|segment| segment.live()).filter_map(|(chunk, _)| chunk);
    assert_eq!(documents.filter(|chunk| &*chunk.document == "another").count(), 1);
    assert_eq!(index.version(), version);
}
