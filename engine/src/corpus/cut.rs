//! The operator that cuts documents into chunks.
//!
//! It remembers the chunks of each document, so that exactly these are retracted when the document
//! changes or is deleted, even if the chunker is not deterministic. The chunks are shared with the
//! index writer; this costs one pointer per chunk.
//!
//! A few short documents are cut on the worker. More text is cut off the worker, in groups, since
//! turns wait while a worker is busy. The output keeps the order of the documents.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::LazyLock;
use std::sync::atomic::Ordering;

use differential_dataflow::{AsCollection, Hashable, VecCollection};
use parking_lot::Mutex;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::Exchange;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::{Scope, StreamVec};
use tokio::sync::Semaphore;

use super::CorpusShared;
use crate::compute::MOST_ON_A_WORKER;
use crate::document::{Chunk, Document};
use crate::panics::caught;
use crate::wake::WakeSlot;

/// Maximum bytes of text in a group; a single longer document is allowed.
const GROUP_BYTES: usize = 1 << 20;

/// Limits the groups cut at once, over all corpora, to half of the cores; the rest is for turns.
static CUTTING: LazyLock<Semaphore> =
    LazyLock::new(|| Semaphore::new(std::thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(2))));

type Change = (Arc<Document>, u64, isize);

/// The chunks of several documents, a list for each.
type Cut = Vec<Vec<Arc<Chunk>>>;

/// Documents that are cut off the worker.
struct Group {
    changes: Vec<Change>,
    capability: Capability<u64>,
    /// When done: the chunks of each added document, in the order of the changes.
    cut: Arc<Mutex<Option<Cut>>>,
}

/// Cuts documents into chunks. If the chunker panics on a document, it becomes a dead letter without
/// chunks, and its former chunks are removed, as for a file that can no longer be read.
pub(super) fn cut<'s>(
    scope: Scope<'s, u64>,
    documents: StreamVec<'s, u64, Change>,
    shared: &CorpusShared,
) -> VecCollection<'s, u64, Arc<Chunk>> {
    let mut builder = OperatorBuilder::new(format!("Cut {:?}", shared.name), scope);
    let by_id = Exchange::new(|(document, _, _): &Change| document.id.hashed());
    let mut input = builder.new_input(documents, by_id);
    let (output, stream) = builder.new_output::<Vec<(Arc<Chunk>, u64, isize)>>();
    let mut output = OutputBuilder::<_, CapacityContainerBuilder<_>>::from(output);
    let wake = WakeSlot::default();
    wake.set(scope.worker().sync_activator_for(builder.operator_info().address.to_vec()));
    let shared = shared.clone();
    builder.build(move |_| {
        let mut made: HashMap<Arc<str>, Vec<Arc<Chunk>>> = HashMap::new();
        let mut groups: VecDeque<Group> = VecDeque::new();
        move |_| {
            let mut room = if groups.is_empty() { MOST_ON_A_WORKER } else { 0 };
            input.for_each_stamp(|stamp, batches| {
                let Some(capability) = stamp.retain_least(0) else { return };
                let mut changes: Vec<Change> = batches.flat_map(|batch| batch.drain(..)).collect();
                while !changes.is_empty() {
                    let rest = changes.split_off(fitting(&changes));
                    let changes = std::mem::replace(&mut changes, rest);
                    let bytes: usize = changes.iter().map(length).sum();
                    let group = Group { changes, capability: capability.clone(), cut: Arc::default() };
                    match room.checked_sub(bytes) {
                        Some(left) => {
                            *group.cut.lock() = Some(group.chunks(&shared));
                            room = left;
                        }
                        None => {
                            group.spawn(&shared, &wake);
                            // Later groups must wait for it, to keep the order.
                            room = 0;
                        }
                    }
                    groups.push_back(group);
                }
            });
            let mut output = output.activate();
            while let Some(cut) = groups.front().and_then(|group| group.cut.lock().take())
                && let Some(Group { changes, capability, .. }) = groups.pop_front()
            {
                let (mut session, mut cut) = (output.session(&capability), cut.into_iter());
                for (document, time, diff) in changes {
                    if diff > 0 {
                        let chunks = cut.next().unwrap_or_default();
                        session.give_iterator(chunks.iter().map(|chunk| (chunk.clone(), time, diff)));
                        if !chunks.is_empty() {
                            made.insert(document.id.clone(), chunks);
                        }
                    } else if let Some(chunks) = made.remove(&document.id) {
                        session.give_iterator(chunks.into_iter().map(|chunk| (chunk, time, diff)));
                    }
                }
            }
        }
    });
    stream.as_collection()
}

/// Bytes of text to cut for a change.
fn length((document, _, diff): &Change) -> usize {
    if *diff > 0 { document.text.len() } else { 0 }
}

/// How many of the changes are one group.
fn fitting(changes: &[Change]) -> usize {
    let mut bytes = 0;
    let fits = |change: &&Change| {
        bytes += length(change);
        bytes <= GROUP_BYTES
    };
    changes.iter().take_while(fits).count().max(1)
}

impl Group {
    /// Cuts the added documents.
    fn chunks(&self, shared: &CorpusShared) -> Vec<Vec<Arc<Chunk>>> {
        cut_all(shared, self.changes.iter().filter(|(_, _, diff)| *diff > 0).map(|(document, _, _)| document))
    }

    /// Cuts the added documents off the worker, then wakes it.
    fn spawn(&self, shared: &CorpusShared, wake: &WakeSlot) {
        let come = self.changes.iter().filter(|(_, _, diff)| *diff > 0);
        let documents: Vec<Arc<Document>> = come.map(|(document, _, _)| document.clone()).collect();
        let (cut, shared, wake) = (self.cut.clone(), shared.clone(), wake.clone());
        shared.handle.clone().spawn(async move {
            // The semaphore is never closed.
            let _permit = CUTTING.acquire().await;
            let cutting = tokio::task::spawn_blocking(move || {
                *cut.lock() = Some(cut_all(&shared, documents.iter()));
                wake.wake();
            });
            // Panics of the chunker are caught inside; the task fails otherwise only when the runtime shuts down.
            let _ = cutting.await;
        });
    }
}

fn cut_all<'a>(shared: &CorpusShared, documents: impl Iterator<Item = &'a Arc<Document>>) -> Vec<Vec<Arc<Chunk>>> {
    documents.map(|document| chunks(shared, document)).collect()
}

fn chunks(shared: &CorpusShared, document: &Document) -> Vec<Arc<Chunk>> {
    let dead = |reason: &str| {
        shared.preparing.dead.write(&shared.name, &document.id, reason, document.text.as_bytes());
        Vec::new()
    };
    if let Some(problem) = shared.schema.problem(&document.metadata) {
        return dead(&format!("{problem}; the document is skipped"));
    }
    match caught(|| shared.chunker.chunk(document)) {
        Ok(chunks) => {
            let labelled = |mut chunk: Chunk| {
                shared.schema.label(&mut chunk, &document.metadata);
                Arc::new(chunk)
            };
            chunks.into_iter().map(labelled).collect()
        }
        Err(panic) => {
            shared.progress.failures.fetch_add(1, Ordering::Relaxed);
            dead(&format!("the chunker {panic}; the document is skipped"))
        }
    }
}
