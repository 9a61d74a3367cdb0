//! Tests of the growth of an index by content, and of its maintenance.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures::FutureExt;
use futures::future::BoxFuture;
use turnflow_engine::component::{Delta, DiskUsage, Index, IndexError, MaintenanceLimits};
use turnflow_engine::document::{Chunk, Content};
use turnflow_engine::inference::{InferenceError, Vector};

use super::contents::Encode;
use super::index::{BlockReader, open};

/// Counts the texts that it encodes, and fails for bad ones, or for all.
#[derive(Default)]
pub(super) struct Counting(AtomicUsize, AtomicBool);

impl Counting {
    pub fn encoded(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    fn fail(&self, fails: bool) {
        self.1.store(fails, Ordering::SeqCst);
    }
}

impl Encode<Vector> for Counting {
    fn dimension(&self) -> usize {
        4
    }

    fn encode(&self, texts: Vec<String>) -> BoxFuture<'static, Result<Vec<Vector>, InferenceError>> {
        self.0.fetch_add(texts.len(), Ordering::SeqCst);
        if self.1.load(Ordering::SeqCst) || texts.iter().any(|text| text.contains("bad")) {
            return async { Err(InferenceError::Failed("told to".to_owned())) }.boxed();
        }
        async move { Ok(texts.iter().map(|text| vec![text.len() as f32, 1.0, 2.0, 3.0].into()).collect()) }.boxed()
    }
}

pub(super) fn chunk(id: usize, text: &str) -> Arc<Chunk> {
    let id: Arc<str> = format!("d{id}").into();
    Arc::new(Chunk::new(id.clone(), id, "".into(), text.into()))
}

pub(super) async fn prepare(index: &mut dyn Index, chunks: &[Arc<Chunk>]) -> Result<(), IndexError> {
    let contents = chunks.iter().map(|chunk| Content { chunk: chunk.clone() });
    index.preparation().unwrap().prepare(contents.collect()).await.map(drop)
}

/// Prepares and applies a delta. Returns the number of passages served then.
async fn apply(index: &mut dyn Index, delta: Delta) -> usize {
    prepare(index, &delta.added).await.unwrap();
    publish(index, delta).await
}

/// Applies a delta. Returns the number of passages served then.
async fn publish(index: &mut dyn Index, delta: Delta) -> usize {
    let reader = index.apply(&delta).await.unwrap().downcast::<BlockReader<Vector, ()>>().unwrap();
    reader.blocks.iter().map(|block| block.rows.len()).sum()
}

fn added(added: Vec<Arc<Chunk>>, removed: Vec<Arc<Chunk>>) -> Delta {
    Delta { added, removed, whole: false }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_small_commits_leave_few_files() {
    let directory = tempfile::tempdir().unwrap();
    let encoder = Arc::new(Counting::default());
    let mut index = open::<Vector, ()>(Some(directory.path()), encoder.clone()).await.unwrap();
    let mut most = 0;
    for edit in 0..300 {
        let served = apply(&mut *index, added(vec![chunk(edit, &format!("text {edit}"))], Vec::new())).await;
        assert_eq!(served, edit + 1);
        if edit % 20 == 0 {
            most = most.max(DiskUsage::of(directory.path()).files);
        }
    }
    assert!(most <= 3 * 256 + 10, "without maintenance the number must be bounded too, and was {most}");
    let done = index.maintain(MaintenanceLimits::BETWEEN).await.unwrap();
    assert!(done.after.files <= 6 && done.before.files > 20, "{done:?}");
    assert!(index.maintain(MaintenanceLimits::BETWEEN).await.unwrap().did.is_empty());
    drop(index);
    let mut index = open::<Vector, ()>(Some(directory.path()), encoder.clone()).await.unwrap();
    let all = (0..300).map(|edit| chunk(edit, &format!("text {edit}"))).collect();
    let served = apply(&mut *index, Delta { added: all, removed: Vec::new(), whole: true }).await;
    assert_eq!((served, encoder.0.load(Ordering::SeqCst)), (300, 300), "nothing is encoded twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_out_of_use_is_let_go_by_maintenance_and_comes_back_when_it_is_used() {
    let directory = tempfile::tempdir().unwrap();
    let encoder = Arc::new(Counting::default());
    let encoded = || encoder.0.load(Ordering::SeqCst);
    let mut index = open::<Vector, ()>(Some(directory.path()), encoder.clone()).await.unwrap();
    let many: Vec<_> = (0..5000).map(|n| chunk(n, &format!("old {n}"))).collect();
    apply(&mut *index, added(many.clone(), Vec::new())).await;
    assert_eq!(apply(&mut *index, added(vec![chunk(9000, "new")], many[1..].to_vec())).await, 2);
    assert_eq!(apply(&mut *index, added(many[1..3].to_vec(), Vec::new())).await, 4);
    assert_eq!(encoded(), 5001, "unused encodings are kept for a while");
    let done = index.maintain(MaintenanceLimits::BETWEEN).await.unwrap();
    assert!(done.did[0].starts_with("4997 encodings"), "{done:?}");
    // A content that is claimed for an upcoming epoch stays.
    index.preparation().unwrap().prepare(vec![Content { chunk: many[9].clone() }]).await.unwrap();
    assert_eq!(apply(&mut *index, added(many[10..12].to_vec(), many[1..3].to_vec())).await, 4);
    assert_eq!(encoded(), 5004);
    assert!(index.maintain(MaintenanceLimits::NONE).await.unwrap().did[0].starts_with("2 encodings"));
    assert_eq!(apply(&mut *index, added(vec![many[9].clone()], Vec::new())).await, 5);
    drop(index);
    let mut index = open::<Vector, ()>(Some(directory.path()), encoder.clone()).await.unwrap();
    let all = [&many[..1], &many[9..12], &[chunk(9000, "new")]].concat();
    assert_eq!(apply(&mut *index, Delta { added: all, removed: Vec::new(), whole: true }).await, 5);
    assert_eq!(encoded(), 5004, "used encodings are stored");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_content_that_is_prepared_again_before_it_goes_is_kept() {
    let encoder = Arc::new(Counting::default());
    let mut index = open::<Vector, ()>(None, encoder.clone()).await.unwrap();
    let a = chunk(1, "a");
    // The content is added, removed and added again; both additions are prepared before the first is applied.
    prepare(&mut *index, std::slice::from_ref(&a)).await.unwrap();
    prepare(&mut *index, std::slice::from_ref(&a)).await.unwrap();
    assert_eq!(publish(&mut *index, added(vec![a.clone()], Vec::new())).await, 1);
    assert_eq!(publish(&mut *index, added(Vec::new(), vec![a.clone()])).await, 0);
    assert!(index.maintain(MaintenanceLimits::NONE).await.unwrap().did.is_empty(), "the encoding is claimed");
    assert_eq!(publish(&mut *index, added(vec![a.clone()], Vec::new())).await, 1);
    assert_eq!(encoder.encoded(), 1);
    assert_eq!(publish(&mut *index, added(Vec::new(), vec![a])).await, 0);
    assert!(index.maintain(MaintenanceLimits::NONE).await.unwrap().did[0].starts_with("1 encoding"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_prepared_and_never_published_is_let_go() {
    let mut index = open::<Vector, ()>(None, Arc::new(Counting::default())).await.unwrap();
    prepare(&mut *index, &[chunk(1, "superseded")]).await.unwrap();
    publish(&mut *index, Delta::default()).await;
    assert!(index.maintain(MaintenanceLimits::NONE).await.unwrap().did.is_empty());
    for _ in 0..100 {
        publish(&mut *index, Delta::default()).await;
    }
    assert!(index.maintain(MaintenanceLimits::NONE).await.unwrap().did[0].starts_with("1 encoding"));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_passage_is_left_out_but_what_could_not_be_prepared() {
    let encoder = Arc::new(Counting::default());
    let mut index = open::<Vector, ()>(None, encoder.clone()).await.unwrap();
    let (a, b, bad) = (chunk(1, "a"), chunk(2, "b"), chunk(3, "bad"));
    assert_eq!(publish(&mut *index, added(vec![a.clone()], Vec::new())).await, 1, "missing contents are encoded");
    encoder.fail(true);
    let delta = added(vec![b.clone()], Vec::new());
    assert!(index.apply(&delta).await.is_err(), "a passage without a dead letter is not left out");
    encoder.fail(false);
    let whole = |added: &[&Arc<Chunk>]| Delta {
        added: added.iter().copied().cloned().collect(),
        removed: Vec::new(),
        whole: true,
    };
    assert_eq!(publish(&mut *index, whole(&[&a, &b])).await, 2);
    assert!(prepare(&mut *index, std::slice::from_ref(&bad)).await.is_err());
    let encoded = encoder.encoded();
    assert_eq!(publish(&mut *index, added(vec![bad.clone()], Vec::new())).await, 2, "the bad content is a dead letter");
    assert_eq!(publish(&mut *index, whole(&[&a, &b, &bad])).await, 2);
    assert_eq!(encoder.encoded(), encoded);
}

#[tokio::test(flavor = "multi_thread")]
async fn maintenance_that_is_given_up_anywhere_loses_nothing() {
    let (a, b, c) = (chunk(1, "a"), chunk(2, "b"), chunk(3, "c"));
    for polls in [1, 3, 10, 30, 100, 300, 1000] {
        let directory = tempfile::tempdir().unwrap();
        let encoder = Arc::new(Counting::default());
        let mut index = open::<Vector, ()>(Some(directory.path()), encoder.clone()).await.unwrap();
        apply(&mut *index, added(vec![a.clone(), b.clone()], Vec::new())).await;
        apply(&mut *index, added(Vec::new(), vec![b.clone()])).await;
        let mut work = index.maintain(MaintenanceLimits::NONE);
        for _ in 0..polls {
            if (&mut work).now_or_never().is_some() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(work);
        assert_eq!(apply(&mut *index, added(vec![b.clone(), c.clone()], Vec::new())).await, 3, "after {polls} polls");
        drop(index);
        let encoded = encoder.encoded();
        let mut index = open::<Vector, ()>(Some(directory.path()), encoder.clone()).await.unwrap();
        let all = Delta { added: vec![a.clone(), b.clone(), c.clone()], removed: Vec::new(), whole: true };
        assert_eq!(apply(&mut *index, all).await, 3, "after {polls} polls");
        assert_eq!(encoder.encoded(), encoded, "everything is stored, after {polls} polls");
    }
}

/// Restored passages are served without a model. Those that lack an encoding are added when the source is read.
#[tokio::test(flavor = "multi_thread")]
async fn restored_passages_call_no_model() {
    let directory = tempfile::tempdir().unwrap();
    let encoder = Arc::new(Counting::default());
    let all: Vec<_> = (0..40).map(|n| chunk(n, &format!("text {n}"))).collect();
    let whole = |chunks: &[Arc<Chunk>]| Delta { added: chunks.to_vec(), removed: Vec::new(), whole: true };
    let mut index = open::<Vector, ()>(Some(directory.path()), encoder.clone()).await.unwrap();
    apply(&mut *index, whole(&all[..30])).await;
    drop(index);
    let served = |reader: Arc<dyn std::any::Any + Send + Sync>| {
        let reader = reader.downcast::<BlockReader<Vector, ()>>().unwrap();
        reader.blocks.iter().map(|block| block.rows.len()).sum::<usize>()
    };
    for (passages, stored) in [(20, true), (40, false)] {
        let mut index = open::<Vector, ()>(Some(directory.path()), encoder.clone()).await.unwrap();
        encoder.fail(true);
        let restored = index.restore(&whole(&all[..passages])).await.unwrap();
        assert_eq!(served(restored), passages.min(30));
        assert_eq!(encoder.encoded(), 30);
        encoder.fail(false);
        // The source has them all, and nothing else.
        prepare(&mut *index, &all[..passages]).await.unwrap();
        assert_eq!(index.confirm(&Delta::default()), stored);
        if !stored {
            assert_eq!(publish(&mut *index, whole(&all)).await, 40);
        }
    }
    assert_eq!(encoder.encoded(), 40);
}
