//! What earlier runs have published, in the state directory.

use std::sync::Arc;
use std::thread::JoinHandle;

use super::RuntimeContext;
use crate::component::Index;
use crate::connector::Mode;
use crate::corpus::PassageLog;
use crate::document::Chunk;
use crate::keyed::Keyed;
use crate::plan::PlannedCorpus;
use crate::state::PASSAGE_LOG;

/// A log of passages, and the thread that reads it.
pub(in crate::run) struct StoredPassages(Reading);

type Read = (Option<PassageLog>, Option<Keyed<Arc<Chunk>>>);

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
/// as the place of the file.
pub(in crate::run) fn logged_definition(planned: &PlannedCorpus) -> Arc<str> {
    format!("{} {}", planned.definition, planned.source.explain()).into()
}

impl RuntimeContext {
    /// The log of what is published of a corpus; `None` if it would not be served.
    pub fn passage_log(&self, planned: &PlannedCorpus) -> Option<PassageLog> {
        let state = self.state.as_ref()?;
        let directory = state.index_path(&planned.name, PASSAGE_LOG).parent()?.to_owned();
        let mut log = PassageLog::new(&directory, &logged_definition(planned));
        // In a cluster, each process has a part. Permissions hold from the first answer on.
        if self.options.shape().is_cluster() || planned.schema.access.is_some() {
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
        let version = self.published.version(&planned.name, PASSAGE_LOG);
        let Some(version) = version.filter(|_| self.options.corpora == Mode::Follow) else {
            return Some(StoredPassages(Reading::Not(log)));
        };
        let corpus = planned.name.clone();
        let read = move || match log.read(version) {
            Ok(passages) => (Some(log), Some(passages)),
            Err(error) => {
                tracing::info!(%corpus, %error, "the stored passages cannot be served; the source is read first");
                (Some(log), None)
            }
        };
        let thread = std::thread::Builder::new().name("passages".into()).spawn(read).ok()?;
        Some(StoredPassages(Reading::Thread(thread)))
    }
}
