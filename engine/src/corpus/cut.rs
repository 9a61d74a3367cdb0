//! The operator that cuts documents into chunks.
//!
//! It remembers the chunks of each document, so that exactly these are retracted when the document
//! changes or is deleted, even if the chunker is not deterministic. The chunks are shared with the
//! index writer; this costs one pointer per chunk.
//!
//! A few short documents are cut on the worker. More text is cut off the worker, in groups, since
//! turns wait while a worker is busy. The output keeps the order of the documents.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::LazyLock;
use std::sync::atomic::Ordering;

use differential_dataflow::{AsCollection, VecCollection};
use parking_lot::Mutex;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::Exchange;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::{Scope, StreamVec};
use tokio::sync::Semaphore;

use super::CorpusShared;
use super::documents::DocumentChange;
use super::pages::Pages;
use crate::component::Chunker;
use crate::compute::MOST_ON_A_WORKER;
use crate::document::{Chunk, Document, Text};
use crate::keyed::{Key, Keyed};
use crate::panics::{Panicked, caught};
use crate::schema::Schema;
use crate::wake::WakeSlot;

/// Maximum bytes of text in a group; a single longer document is allowed.
const GROUP_BYTES: usize = 1 << 20;

/// Bytes of text from which on a change of a loaded corpus is kept in mapped files.
const MAPPED_BYTES: usize = 64 << 10;

/// Limits the groups cut at once, over all corpora, to half of the cores; the rest is for turns.
static CUTTING: LazyLock<Semaphore> =
    LazyLock::new(|| Semaphore::new(std::thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(2))));

/// The chunks of several documents, a list for each.
type Cut = Vec<Vec<Arc<Chunk>>>;

/// The chunks of a document; at least one.
enum OfDocument {
    One(Arc<Chunk>),
    Many(Box<[Arc<Chunk>]>),
}

impl OfDocument {
    fn chunks(&self) -> &[Arc<Chunk>] {
        match self {
            Self::One(chunk) => std::slice::from_ref(chunk),
            Self::Many(chunks) => chunks,
        }
    }

    /// `None` if there are none.
    fn of(mut chunks: Vec<Arc<Chunk>>) -> Option<Self> {
        match chunks.len() {
            0 => None,
            1 => chunks.pop().map(Self::One),
            _ => Some(Self::Many(chunks.into())),
        }
    }
}

impl Key for OfDocument {
    type Of = str;

    fn key(&self) -> &str {
        self.chunks().first().map_or("", |chunk| &chunk.document)
    }
}

/// Documents that are cut off the worker.
struct Group {
    changes: Vec<DocumentChange>,
    capability: Capability<u64>,
    /// When done: the chunks of each added document, in the order of the changes.
    cut: Arc<Mutex<Option<Cut>>>,
}

/// Cuts documents into chunks. If the chunker panics on a document, it becomes a dead letter without
/// chunks, and its former chunks are removed, as for a file that can no longer be read.
pub(super) fn cut<'s>(
    scope: Scope<'s, u64>,
    documents: StreamVec<'s, u64, DocumentChange>,
    shared: &CorpusShared,
) -> VecCollection<'s, u64, Arc<Chunk>> {
    let mut builder = OperatorBuilder::new(format!("Cut {:?}", shared.name), scope);
    let shape = shared.shape;
    let by_id = Exchange::new(move |change: &DocumentChange| shape.worker_of(&change.id));
    let mut input = builder.new_input(documents, by_id);
    let (output, stream) = builder.new_output::<Vec<(Arc<Chunk>, u64, isize)>>();
    let mut output = OutputBuilder::<_, CapacityContainerBuilder<_>>::from(output);
    let wake = WakeSlot::default();
    wake.set(scope.worker().sync_activator_for(builder.operator_info().address.to_vec()));
    let shared = shared.clone();
    builder.build(move |_| {
        let mut made = Keyed::<OfDocument>::default();
        let mut groups: VecDeque<Group> = VecDeque::new();
        move |_| {
            let mut room = if groups.is_empty() { MOST_ON_A_WORKER } else { 0 };
            input.for_each_stamp(|stamp, batches| {
                let Some(capability) = stamp.retain_least(0) else { return };
                let mut changes: Vec<DocumentChange> = batches.flat_map(|batch| batch.drain(..)).collect();
                while !changes.is_empty() {
                    let rest = changes.split_off(fitting(&changes));
                    let changes = std::mem::replace(&mut changes, rest);
                    let bytes: usize = changes.iter().map(length).sum();
                    let group = Group { changes, capability: capability.clone(), cut: Arc::default() };
                    match room.checked_sub(bytes) {
                        Some(left) => {
                            *group.cut.lock() = Some(group.chunks(&shared, false));
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
                for DocumentChange { id, new, time } in changes {
                    let old = made.remove(&id);
                    session
                        .give_iterator(old.iter().flat_map(OfDocument::chunks).map(|chunk| (chunk.clone(), time, -1)));
                    if new.is_none() {
                        shared.progress.uncut.remove(&id);
                    } else {
                        let chunks = cut.next().unwrap_or_default();
                        if !chunks.is_empty() {
                            shared.progress.uncut.remove(&id);
                        }
                        session.give_iterator(chunks.iter().map(|chunk| (chunk.clone(), time, 1)));
                        OfDocument::of(chunks).into_iter().for_each(|chunks| drop(made.insert(chunks)));
                    }
                }
            }
        }
    });
    stream.as_collection()
}

/// Bytes of text to cut for a change.
fn length(change: &DocumentChange) -> usize {
    change.new.as_ref().map_or(0, |document| document.text.len())
}

/// How many of the changes are one group.
fn fitting(changes: &[DocumentChange]) -> usize {
    let mut bytes = 0;
    let fits = |change: &&DocumentChange| {
        bytes += length(change);
        bytes <= GROUP_BYTES
    };
    changes.iter().take_while(fits).count().max(1)
}

impl Group {
    /// Cuts the added documents. `waits`: see [`Text::map_all`].
    fn chunks(&self, shared: &CorpusShared, waits: bool) -> Vec<Vec<Arc<Chunk>>> {
        cut_all(shared, self.changes.iter().filter_map(|change| change.new.as_ref()), waits)
    }

    /// Cuts the added documents off the worker, then wakes it.
    fn spawn(&self, shared: &CorpusShared, wake: &WakeSlot) {
        let documents: Vec<Arc<Document>> = self.changes.iter().filter_map(|change| change.new.clone()).collect();
        let (cut, shared, wake) = (self.cut.clone(), shared.clone(), wake.clone());
        shared.handle.clone().spawn(async move {
            // The semaphore is never closed.
            let _permit = CUTTING.acquire().await;
            let cutting = tokio::task::spawn_blocking(move || {
                *cut.lock() = Some(cut_all(&shared, documents.iter(), true));
                wake.wake();
            });
            // Panics of the chunker are caught inside; the task fails otherwise only when the runtime shuts down.
            let _ = cutting.await;
        });
    }
}

fn cut_all<'a>(
    shared: &CorpusShared,
    documents: impl Iterator<Item = &'a Arc<Document>>,
    waits: bool,
) -> Vec<Vec<Arc<Chunk>>> {
    let stored = shared.stored.passages();
    let known = |chunk: Chunk| match stored.as_ref().and_then(|stored| stored.get(&chunk.id)) {
        Some(known) if **known == chunk => Made::Known(known.clone()),
        _ => Made::New(chunk),
    };
    let mut cut: Vec<Vec<Made>> =
        documents.map(|document| chunks(shared, document).into_iter().map(known).collect()).collect();
    shared.progress.cut.fetch_add(cut.iter().map(Vec::len).sum::<usize>() as u64, Ordering::Relaxed);
    let mut texts: Vec<&mut Text> = cut.iter_mut().flatten().filter_map(Made::text).collect();
    let bytes: usize = texts.iter().map(|text| text.len()).sum();
    // Later, small changes stay on the heap: each could keep a file in which all other texts are gone.
    if let Some(files) = &shared.preparing.files
        && (!shared.state.borrow().is_read() || bytes >= MAPPED_BYTES)
    {
        Text::map_all(texts.drain(..), files, waits);
    }
    cut.into_iter().map(|chunks| chunks.into_iter().map(Made::chunk).collect()).collect()
}

/// A chunk that was cut.
enum Made {
    /// It equals a stored one.
    Known(Arc<Chunk>),
    New(Chunk),
}

impl Made {
    /// A text that is kept for the first time.
    fn text(&mut self) -> Option<&mut Text> {
        match self {
            Self::Known(_) => None,
            Self::New(chunk) => Some(&mut chunk.text),
        }
    }

    fn chunk(self) -> Arc<Chunk> {
        match self {
            Self::Known(chunk) => chunk,
            Self::New(chunk) => Arc::new(chunk),
        }
    }
}

fn chunks(shared: &CorpusShared, document: &Document) -> Vec<Chunk> {
    passages(document, &*shared.chunker, &shared.schema).unwrap_or_else(|error| {
        if matches!(error, NotCut::Panicked(_)) {
            shared.progress.failures.fetch_add(1, Ordering::Relaxed);
        }
        let reason = error.to_string();
        shared.progress.uncut.add(&document.id, &reason);
        shared.preparing.dead.write(&shared.name, &document.id, &reason, document.text.as_bytes());
        Vec::new()
    })
}

/// Why a document has no passages.
#[derive(Debug, thiserror::Error)]
pub enum NotCut {
    /// A field of its metadata has another type than the corpus declares.
    #[error("{0}; the document is skipped")]
    Field(String),
    /// The chunker panicked.
    #[error("the chunker {0}; the document is skipped")]
    Panicked(Panicked),
}

/// The passages that a corpus with this chunker makes of a document, with their pages, fields and readers.
///
/// # Errors
///
/// The document is skipped.
pub fn passages(document: &Document, chunker: &dyn Chunker, schema: &Schema) -> Result<Vec<Chunk>, NotCut> {
    if let Some(problem) = schema.problem(&document.metadata) {
        return Err(NotCut::Field(problem));
    }
    let chunks = caught(|| chunker.chunk(document)).map_err(NotCut::Panicked)?;
    let mut pages = Pages::of(document);
    let labelled = |mut chunk: Chunk| {
        chunk.document = document.id.clone();
        let paged = pages.as_mut().map(|pages| pages.fields(&chunk.text));
        schema.label(&mut chunk, paged.as_ref().unwrap_or(&document.metadata));
        chunk
    };
    Ok(chunks.into_iter().map(labelled).collect())
}
