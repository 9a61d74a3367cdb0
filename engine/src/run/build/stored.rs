//! What earlier runs have published, in the state directory.

use std::sync::Arc;
use std::thread::JoinHandle;

use super::RuntimeContext;
use crate::cluster::Shape;
use crate::component::{Index, PassageStore};
use crate::connector::Mode;
use crate::document::Chunk;
use crate::keyed::Keyed;
use crate::plan::PlannedCorpus;
use crate::state::PASSAGES;

/// What keeps the passages of a corpus, and the thread that reads them.
pub(in crate::run) struct StoredPassages(Reading);

/// What an earlier run has published of a corpus, in this process.
pub(in crate::run) struct Published {
    /// The passages.
    pub passages: Keyed<Arc<Chunk>>,
    /// The versions that the other processes have stored, which the first process knows.
    pub others: Vec<u64>,
}

type Read = (Option<Box<dyn PassageStore>>, Option<Published>);

enum Reading {
    Not(Box<dyn PassageStore>),
    Thread(JoinHandle<Read>),
}

impl StoredPassages {
    /// What keeps the passages, and those that are served until the source is read. Blocks until they are read.
    pub fn wait(self) -> Read {
        match self.0 {
            Reading::Not(keeper) => (Some(keeper), None),
            // After a panic there is none.
            Reading::Thread(thread) => thread.join().unwrap_or_default(),
        }
    }
}

/// The definition of a corpus, for its stored passages. Where its documents are may depend on more than the file says, such
/// as the place of the file. A part of a corpus is never taken for the whole, or for another part.
pub(in crate::run) fn stored_definition(planned: &PlannedCorpus, shape: Shape) -> Arc<str> {
    let Shape { process, processes, .. } = shape;
    let part = if processes > 1 { format!(" part {process} of {processes}") } else { String::new() };
    format!("{} {}{part}", planned.definition, planned.source.explain()).into()
}

impl RuntimeContext {
    /// What keeps the published passages of a corpus; `None` if they would not be served.
    pub fn passage_store(&self, planned: &PlannedCorpus) -> Option<Box<dyn PassageStore>> {
        let state = self.state.as_ref()?;
        let directory = state.index_path(&planned.name, PASSAGES).parent()?.to_owned();
        let mut keeper = planned.passages?(&directory, &stored_definition(planned, self.options.shape()));
        // Permissions hold from the first answer on.
        if planned.schema.access.is_some() {
            keeper.clear();
            return None;
        }
        Some(keeper)
    }

    /// Whether an index has all that the last epoch needs of it, so that it can serve the stored passages without a model.
    pub fn has_all(&self, corpus: &str, key: &str, index: &dyn Index) -> bool {
        match (index.version(), self.published.version(corpus, key)) {
            (Some(now), Some(then)) => now >= then,
            (Some(_), None) => false,
            (None, _) => index.preparation().is_none(),
        }
    }

    /// Begins to read what an earlier run has published, if this one serves it. A run that ends after the existing documents
    /// does not.
    pub fn stored_passages(&self, planned: &PlannedCorpus) -> Option<StoredPassages> {
        let mut keeper = self.passage_store(planned)?;
        // The first process of a cluster knows the versions of all, and each of the others its own.
        let shape = self.options.shape();
        let versions = self.published.stored(&planned.name, if shape.is_first() { shape.processes } else { 1 });
        let Some(mut others) = versions.filter(|_| self.options.corpora == Mode::Follow) else {
            return Some(StoredPassages(Reading::Not(keeper)));
        };
        let (corpus, version, handle) = (planned.name.clone(), others.remove(0), self.handle.clone());
        let read = move || match handle.block_on(keeper.read(version)) {
            Ok(passages) => (Some(keeper), Some(Published { passages, others })),
            Err(error) => {
                tracing::info!(%corpus, %error, "the stored passages cannot be served; the source is read first");
                (Some(keeper), None)
            }
        };
        let thread = std::thread::Builder::new().name("passages".into()).spawn(read).ok()?;
        Some(StoredPassages(Reading::Thread(thread)))
    }
}
