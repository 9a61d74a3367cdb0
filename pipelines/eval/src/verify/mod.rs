//! Verifies that indexes equal a cold rebuild of their corpora: both the stored data and the data
//! served after a restart.
//!
//! Stored data may be behind the corpus, which may have changed while nothing ran; this is counted
//! but is not an error. Stored data of contents that are still in the corpus must equal the rebuild.
//! Served data must be the same in everything: passages, postings, encodings, statistics, and the
//! hits of questions.

mod compare;
mod inventory;
mod questions;
mod report;
mod shadow;

pub use compare::{COSINE, DIFFERENCE, Tally};
pub use inventory::{IndexContents, definitions, index_contents, stored};
pub use questions::{Asked, QuestionsError, Retriever, ask_all, read_questions, retrievers, sample_questions};
pub use report::{Behind, Difference, HitsReport, IndexReport, Kind, Part, Report};
pub use shadow::{Shadow, ShadowError};

use std::collections::BTreeMap;
use std::sync::Arc;

use turnflow_engine::component::Inventory;

/// An index: its corpus and its key.
pub type IndexId = (Arc<str>, String);

/// Compares the stored and the served contents with a cold rebuild.
pub fn verify(stored: &BTreeMap<IndexId, Option<Inventory>>, served: &IndexContents, cold: &IndexContents) -> Report {
    let mut report = Report::default();
    for (corpus, counted) in &cold.corpora {
        let found = served.corpora.get(corpus).copied().unwrap_or_default();
        report.corpora.insert(corpus.clone(), found);
        for (what, expected, found) in [("documents", counted.0, found.0), ("chunks", counted.1, found.1)] {
            if expected != found {
                let counts = [expected.to_string(), found.to_string()];
                report.add((corpus.clone(), String::new()), Part::Served, Kind::Count, what, counts);
            }
        }
    }
    for (place, expected) in &cold.indexes {
        let mut index = IndexReport::default();
        if let Some(expected) = expected {
            if let Some(Some(stored)) = stored.get(place) {
                compare::stored(place, stored, expected, &mut index, &mut report);
            }
            if let Some(Some(served)) = served.indexes.get(place) {
                compare::served(place, served, expected, &mut index, &mut report);
            }
        }
        report.indexes.insert(place.clone(), index);
    }
    compare::hits(served, cold, &mut report);
    report
}
