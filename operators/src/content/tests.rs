//! What accumulates in an index by content, and what maintenance leaves.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt;
use futures::future::BoxFuture;
use turnflow_engine::component::{Delta, Footprint, Index, MaintenanceLimits};
use turnflow_engine::document::{Chunk, Content};
use turnflow_engine::inference::{InferenceError, Vector};

use super::index::{BlockReader, Encode, open};

/// Counts what it is asked for.
#[derive(Default)]
struct Counting(AtomicUsize);

impl Encode<Vector> for Counting {
    fn dimension(&self) -> usize {
        4
    }

    fn encode(&self, texts: Vec<String>) -> BoxFuture<'static, Result<Vec<Vector>, InferenceError>> {
        self.0.fetch_add(texts.len(), Ordering::SeqCst);
        async move { Ok(texts.iter().map(|text| vec![text.len() as f32, 1.0, 2.0, 3.0].into()).collect()) }.boxed()
    }
}

fn chunk(id: usize, text: &str) -> Arc<Chunk> {
    let id: Arc<str> = format!("d{id}").into();
    Arc::new(Chunk::new(id.clone(), id, "".into(), text.into()))
}

async fn apply(index: &mut dyn Index, delta: Delta) -> usize {
    let contents = delta.added.iter().map(|chunk| Content { hash: chunk.hash, chunk: chunk.clone() });
    index.preparation().unwrap().prepare(contents.collect()).await.unwrap();
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
            most = most.max(Footprint::of(directory.path()).files);
        }
    }
    assert!(most <= 3 * 256 + 10, "without maintenance it is bounded all the same, and there were {most}");
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
    assert_eq!(encoded(), 5001, "what is out of use is kept for a while");
    let done = index.maintain(MaintenanceLimits::BETWEEN).await.unwrap();
    assert!(done.did[0].starts_with("4997 encodings"), "{done:?}");
    // Claimed for an epoch to come: it stays.
    index.preparation().unwrap().prepare(vec![Content { hash: many[9].hash, chunk: many[9].clone() }]).await.unwrap();
    assert_eq!(apply(&mut *index, added(many[10..12].to_vec(), many[1..3].to_vec())).await, 4);
    assert_eq!(encoded(), 5004);
    assert!(index.maintain(MaintenanceLimits::NONE).await.unwrap().did[0].starts_with("2 encodings"));
    assert_eq!(apply(&mut *index, added(vec![many[9].clone()], Vec::new())).await, 5);
    drop(index);
    let mut index = open::<Vector, ()>(Some(directory.path()), encoder.clone()).await.unwrap();
    let all = [&many[..1], &many[9..12], &[chunk(9000, "new")]].concat();
    assert_eq!(apply(&mut *index, Delta { added: all, removed: Vec::new(), whole: true }).await, 5);
    assert_eq!(encoded(), 5004, "what is in use is stored");
}
