//! What earlier runs have published, in the state directory.

use std::sync::Arc;
use std::thread::JoinHandle;

use super::RuntimeContext;
use crate::cluster::Shape;
use crate::component::Index;
use crate::connector::Mode;
use crate::corpus::PassageLog;
use crate::document::Chunk;
use crate::keyed::Keyed;
use crate::plan::PlannedCorpus;
use crate::state::PASSAGE_LOG;

/// A log of passages, and the thread that reads it.
pub(in crate::run) struct StoredPassages(Reading);

/// What an earlier run has published of a corpus, in this process.
pub(in crate::run) struct Published {
    /// The passages.
    pub passages: Keyed<Arc<Chunk>>,
    /// The versions of the logs of the other processes, which the first process knows.
    pub others: Vec<u64>,
}

type Read = (Option<PassageLog>, Option<Published>);

enum Reading {
    Not(PassageLog),
    Thread(JoinHandle<Read>),
}

impl StoredPassages {
    /// The log, and the passages that are served until the source is read. Blocks until they are read.
    pub fn wait(self) -> Read {
        match self.0 {
            Reading::Not(log) => (Some(log), None),
            // After a panic there is no log.
            Reading::Thread(thread) => thread.join().unwrap_or_default(),
        }
    }
}

/// The definition of a corpus, for its log of passages. Where its documents are may depend on more than the file says, such
/// as the place of the file. A part of a corpus is never taken for the whole, or for another part.
pub(in crate::run) fn logged_definition(planned: &PlannedCorpus, shape: Shape) -> Arc<str> {
    let Shape { process, processes, .. } = shape;
    let part = if processes > 1 { format!(" part {process} of {processes}") } else { String::new() };
    format!("{} {}{part}", planned.definition, planned.source.explain()).into()
}

impl RuntimeContext {
    /// The log of what is published of a corpus; `None` if it would not be served.
    pub fn passage_log(&self, planned: &PlannedCorpus) -> Option<PassageLog> {
        let state = self.state.as_ref()?;
        let directory = state.index_path(&planned.name, PASSAGE_LOG).parent()?.to_owned();
        let mut log = PassageLog::new(&directory, &logged_definition(planned, self.options.shape()));
        // Permissions hold from the first answer on.
        if planned.schema.access.is_some() {
            log.drop_file();
            return None;
        }
        Some(log)
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
        let mut log = self.passage_log(planned)?;
        // The first process of a cluster knows the logs of all, and each of the others its own.
        let shape = self.options.shape();
        let logs = self.published.logs(&planned.name, if shape.is_first() { shape.processes } else { 1 });
        let Some(mut others) = logs.filter(|_| self.options.corpora == Mode::Follow) else {
            return Some(StoredPassages(Reading::Not(log)));
        };
        let (corpus, version) = (planned.name.clone(), others.remove(0));
        let read = move || match log.read(version) {
            Ok(passages) => (Some(log), Some(Published { passages, others })),
            Err(error) => {
                tracing::info!(%corpus, %error, "the stored passages cannot be served; the source is read first");
                (Some(log), None)
            }
        };
        let thread = std::thread::Builder::new().name("passages".into()).spawn(read).ok()?;
        Some(StoredPassages(Reading::Thread(thread)))
    }
}
