//! The operator that cuts documents into chunks.
//!
//! It remembers what it has made of each document, so that exactly that is taken back when the
//! document changes or goes, whatever the chunker would say then. The chunks are shared with
//! the index writer; what is added is a pointer each.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use differential_dataflow::{AsCollection, Hashable, VecCollection};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::Exchange;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::{Scope, StreamVec};

use super::CorpusShared;
use crate::document::{Chunk, Document};
use crate::panics::caught;

/// Cuts documents. One on which the chunker panics is told of as a dead letter and gives no
/// chunks: its former ones go, as those of a file do that cannot be read any more.
pub(super) fn cut<'s>(
    scope: Scope<'s, u64>,
    documents: StreamVec<'s, u64, (Arc<Document>, u64, isize)>,
    shared: &CorpusShared,
) -> VecCollection<'s, u64, Arc<Chunk>> {
    let mut builder = OperatorBuilder::new(format!("Cut {:?}", shared.name), scope);
    let by_id = Exchange::new(|(document, _, _): &(Arc<Document>, u64, isize)| document.id.hashed());
    let mut input = builder.new_input(documents, by_id);
    let (output, stream) = builder.new_output::<Vec<(Arc<Chunk>, u64, isize)>>();
    let mut output = OutputBuilder::<_, CapacityContainerBuilder<_>>::from(output);
    let shared = shared.clone();
    builder.build(move |_| {
        let mut made: HashMap<Arc<str>, Vec<Arc<Chunk>>> = HashMap::new();
        move |_| {
            let mut output = output.activate();
            input.for_each_stamp(|stamp, batches| {
                let mut session = output.session(&stamp);
                for (document, time, diff) in batches.flat_map(|batch| batch.drain(..)) {
                    if diff > 0 {
                        let chunks = chunks(&shared, &document);
                        session.give_iterator(chunks.iter().map(|chunk| (chunk.clone(), time, diff)));
                        if !chunks.is_empty() {
                            made.insert(document.id.clone(), chunks);
                        }
                    } else if let Some(chunks) = made.remove(&document.id) {
                        session.give_iterator(chunks.into_iter().map(|chunk| (chunk, time, diff)));
                    }
                }
            });
        }
    });
    stream.as_collection()
}

fn chunks(shared: &CorpusShared, document: &Document) -> Vec<Arc<Chunk>> {
    match caught(|| shared.chunker.chunk(document)) {
        Ok(chunks) => chunks.into_iter().map(Arc::new).collect(),
        Err(panic) => {
            shared.progress.failures.fetch_add(1, Ordering::Relaxed);
            let reason = format!("the chunker {panic}; the document is left out");
            shared.preparing.dead.write(&shared.name, &document.id, &reason, document.text.as_bytes());
            Vec::new()
        }
    }
}
