//! Which documents a caller may read who may manage documents: all those of corpora that everybody may read, and of those
//! that are written over HTTP; of the others, those that name one of the caller's groups.

use std::collections::HashMap;
use std::sync::Arc;

use turnflow_engine::connector::{ReviewDocument, ReviewHit, ReviewItem};

use crate::auth::Principal;
use crate::cited::meant;
use crate::error::ApiError;
use crate::served::Served;

/// The document of a passage.
pub fn document_of(hit: &ReviewHit) -> ReviewDocument {
    ReviewDocument { document: hit.document.clone(), corpus: hit.corpus.clone() }
}

/// What is known of a caller's documents, for one request.
pub struct Readable<'a> {
    served: &'a Served,
    groups: Vec<Arc<str>>,
    /// The corpora, and whether the caller may read all of their documents.
    corpora: Vec<(Arc<str>, bool)>,
    known: HashMap<ReviewDocument, bool>,
}

impl<'a> Readable<'a> {
    /// Knows nothing yet.
    pub fn new(served: &'a Served, principal: &Principal) -> Self {
        let (engine, outline) = (served.engine(), served.outline());
        let corpora = engine.corpora().into_iter().map(|(corpus, ..)| {
            let is_open = !outline.access.contains_key(&corpus) || engine.documents(&corpus).is_some();
            (corpus, is_open)
        });
        Self { served, groups: principal.groups(), corpora: corpora.collect(), known: HashMap::new() }
    }

    /// Whether the caller may read a document. One that is gone, nobody may, unless everybody could read every document.
    ///
    /// # Errors
    ///
    /// A corpus cannot be read.
    pub async fn document(&mut self, id: &ReviewDocument) -> Result<bool, ApiError> {
        // A corpus may have gone since.
        let is_gone = id.corpus.as_ref().is_some_and(|name| self.corpora.iter().all(|(corpus, _)| corpus != name));
        if !is_gone && self.corpora.iter().all(|(_, is_open)| *is_open) {
            return Ok(true);
        }
        if let Some(known) = self.known.get(id) {
            return Ok(*known);
        }
        let found = self.find(id).await?;
        self.known.insert(id.clone(), found);
        Ok(found)
    }

    async fn find(&self, ReviewDocument { document: id, corpus: named }: &ReviewDocument) -> Result<bool, ApiError> {
        let engine = self.served.engine();
        let meant = meant(self.served, named.as_deref());
        for (corpus, is_open) in self.corpora.iter().filter(|(corpus, _)| meant.contains(corpus)) {
            if let Some(store) = engine.documents(corpus).filter(|_| *is_open) {
                let id = id.to_string();
                let found = tokio::task::spawn_blocking(move || store.get(&id)).await;
                let found = found.map_err(|_| ApiError::server("the document store failed"))?;
                if found.map_err(|error| ApiError::failed("the document store", &error))?.is_some() {
                    return Ok(true);
                }
                continue;
            }
            let passages = engine.passages(corpus, id, &self.groups).await;
            let passages = passages.map_err(|error| ApiError::server(format!("the corpus cannot be read: {error}")))?;
            if !passages.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether the caller may read all passages of an answer, and so the answer.
    ///
    /// # Errors
    ///
    /// A corpus cannot be read.
    pub async fn all(&mut self, item: &ReviewItem) -> Result<bool, ApiError> {
        for id in item.hits.iter().map(document_of).chain(item.more_documents.iter().cloned()) {
            if !self.document(&id).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
