//! Documents without text. They give no passage, so nobody would miss them in an answer: they are counted, and the log names
//! one of them when the source is read.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::document::Document;
use crate::publish::CorpusProgress;

/// The empty documents of a corpus.
pub(super) struct Empty {
    corpus: Arc<str>,
    progress: Arc<CorpusProgress>,
    /// By the hashes of their ids.
    keys: HashSet<[u8; 12]>,
    example: Option<Arc<str>>,
    is_told: bool,
}

impl Empty {
    pub fn new(corpus: Arc<str>, progress: Arc<CorpusProgress>) -> Self {
        Self { corpus, progress, keys: HashSet::new(), example: None, is_told: false }
    }

    /// Notes a document as it is now; `None`: it is deleted.
    pub fn note(&mut self, key: [u8; 12], id: &Arc<str>, document: Option<&Document>) {
        let changed = match document.is_some_and(|document| document.text.trim().is_empty()) {
            true => {
                self.example.get_or_insert_with(|| id.clone());
                self.keys.insert(key)
            }
            false => self.keys.remove(&key),
        };
        if changed {
            self.progress.empty.store(self.keys.len() as u64, Ordering::Relaxed);
        }
    }

    /// Logs their number, once.
    pub fn tell(&mut self) {
        if self.keys.is_empty() || std::mem::replace(&mut self.is_told, true) {
            return;
        }
        tracing::warn!(corpus = %self.corpus, documents = self.keys.len(), example = self.example.as_deref(),
            "these documents have no text: they are in no passage");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_counts_as_long_as_it_is_empty() {
        let progress = Arc::<CorpusProgress>::default();
        let mut empty = Empty::new("docs".into(), progress.clone());
        let document = |text: &str| Document::new("a", text);
        let mut count = |key: u8, text: Option<&str>| {
            empty.note([key; 12], &"a".into(), text.map(document).as_ref());
            CorpusProgress::get(&progress.empty)
        };
        assert_eq!([count(1, Some(" \n")), count(1, Some("")), count(2, Some("x")), count(3, Some(""))], [1, 1, 1, 2]);
        assert_eq!([count(1, Some("y")), count(3, None), count(2, None)], [1, 0, 0]);
    }
}
