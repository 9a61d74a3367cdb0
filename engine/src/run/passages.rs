//! The passages of a document, for a person who wants to read what an answer cites.

use std::sync::Arc;

use super::Engine;
use crate::compute::apart_within;
use crate::document::Chunk;

impl Engine {
    /// The passages of a document in the newest epoch that a principal of these groups may read, in their order in it.
    /// Empty if there is no such corpus or document. Cost: a look at every passage of the corpus.
    ///
    /// # Errors
    ///
    /// Another process of the cluster, which has a part of the corpus, could not answer.
    pub async fn passages(&self, corpus: &str, document: &str, groups: &[Arc<str>]) -> Result<Vec<Arc<Chunk>>, String> {
        // The epoch is held until the other processes have answered.
        let epoch = self.epochs().pin();
        let Some(view) = epoch.corpus(corpus).cloned() else { return Ok(Vec::new()) };
        let (own, wanted, of) = (view.passages.clone(), document.to_owned(), groups.to_vec());
        let mut found = apart_within(async move { own.of_document(&wanted, &own.within(Some(&of), None)) }).await;
        if let Some(others) = &view.others {
            found.extend(others.of_document(document, groups).await?.into_iter().map(Arc::new));
            found.sort_by_key(|chunk| chunk.number());
        }
        Ok(found)
    }
}
