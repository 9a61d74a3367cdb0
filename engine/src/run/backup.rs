//! Where a run uses its backup: when an index is opened, when encodings of former processes are taken over, and at the end.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::build::{Former, RuntimeContext};
use super::{Options, RunError};
use crate::backup::{Backup, DOCUMENTS, DocumentsCopy, PART, StoreError};
use crate::component::{BuildError, ComponentError, IndexDefinition};
use crate::connector::{DocumentStore, Mode};
use crate::metrics::Metrics;
use crate::panics::Panicked;
use crate::state::{StateDirectory, StateError, file_name};

/// Opens the backup of a run, if it has one and stores anything.
pub(super) fn open(
    options: &Options,
    state: Option<&StateDirectory>,
    pipeline: &str,
    metrics: &Metrics,
) -> Result<Option<Arc<Backup>>, StateError> {
    let Some((store, state)) = options.backup.clone().zip(state) else { return Ok(None) };
    Backup::open(store, state, pipeline, options.shape(), metrics).map(Some)
}

/// What came of restoring an index; `None` if it was cancelled.
fn index_restored<T>(key: &str, restored: Option<Result<T, Panicked>>) -> Result<T, BuildError> {
    let name = || key.to_owned();
    match restored {
        Some(restored) => restored.map_err(|source| BuildError::Panicked { of: "index", name: name(), source }),
        None => Err(BuildError::Cancelled { of: "index", name: name() }),
    }
}

impl RuntimeContext {
    /// Restores an index whose directory is missing, if there is a copy of it.
    pub(super) fn restore(
        &self,
        corpus: &str,
        key: &str,
        definition: &dyn IndexDefinition,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<(), RunError> {
        let Some((backup, state)) = self.backup.as_ref().zip(self.state.as_ref()) else { return Ok(()) };
        let Some(part) = definition.backed_up() else { return Ok(()) };
        let directory = state.index_path(corpus, key);
        let is_start = !self.shared.ready.load(Ordering::Acquire);
        // A copy may be large.
        let opened = self.wait(|| backup.open_index(corpus, key, &directory, part, is_start), is_cancelled);
        Ok(index_restored(key, opened)?.map(drop)?)
    }

    /// Restores the documents that were put into a corpus, if there are none and there is a copy of them, and copies them from
    /// now on.
    pub(super) fn back_up_documents(
        &self,
        corpus: &Arc<str>,
        documents: &Arc<dyn DocumentStore>,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<(), RunError> {
        let Some((backup, state)) = self.backup.as_ref().zip(self.state.as_ref()) else { return Ok(()) };
        if documents.last_change().is_none() || self.options.components.is_some() {
            return Ok(());
        }
        let directory = state.path().join("components").join(file_name(corpus)).join(DOCUMENTS);
        let copy = Arc::new(DocumentsCopy::new(corpus, documents, directory.clone()));
        let failed = |error: &dyn std::fmt::Display| {
            let reason = ComponentError::new(format!("the backup of its documents: {error}"));
            BuildError::Connector { of: "corpus", name: corpus.to_string(), source: reason.into() }
        };
        let is_empty = documents.count().map_err(|error| failed(&error))? == 0;
        if !is_empty {
            // Documents that are there are never replaced: what is not empty is not restored.
            let written = std::fs::create_dir_all(directory.join(PART.directory)).map_err(StoreError::from);
            if let Err(error) = written.and_then(|()| copy.write(true)) {
                tracing::warn!(%corpus, %error, "the documents cannot be backed up; will retry");
            }
        }
        let is_start = !self.shared.ready.load(Ordering::Acquire);
        let opened = self.wait(|| backup.open_index(corpus, DOCUMENTS, &directory, PART, is_start), is_cancelled);
        if index_restored(DOCUMENTS, opened)?? && is_empty {
            let restored = copy.restore().map_err(|error| failed(&error))?;
            tracing::warn!(%corpus, documents = restored, "the documents are restored from the backup");
        }
        backup.open_documents(copy);
        Ok(())
    }

    /// Restores what processes that are no longer in the cluster have copied of an index, so that it is taken over.
    pub(super) fn restore_former(
        &self,
        corpus: &str,
        key: &str,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<(), RunError> {
        let Some((backup, state)) = self.backup.as_ref().zip(self.state.as_ref()) else { return Ok(()) };
        let restored = self.wait(|| backup.restore_former(corpus, key), is_cancelled);
        for process in index_restored(key, restored)? {
            let path = StateDirectory::of_process(state.path(), process);
            let mut former = self.former.lock();
            if former.iter().any(|former| former.directory.path() == path) {
                continue;
            }
            match StateDirectory::open(&path) {
                Ok(directory) => former.push(Former { directory, indexes: Vec::new() }),
                Err(error) => tracing::warn!(%error, "what was restored of a process is left out"),
            }
        }
        Ok(())
    }

    /// Copies what has changed since the last look, within limits.
    pub(super) fn finish_backup(&self) {
        let ends_by_itself = self.options.turns == Mode::Once;
        self.backup.iter().for_each(|backup| backup.finish(&self.handle, ends_by_itself));
    }
}
