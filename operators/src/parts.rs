//! Merges the searches for the parts of a decomposed question.

use std::collections::BTreeMap;
use std::sync::Arc;

use turnflow_engine::document::Chunk;
use turnflow_engine::record::{Hit, rank};

/// Merges the lists found for the parts of a question. Each passage keeps its best score. The scores of one retriever
/// are on one scale, so a passage that answers one part well ranks above one that touches several.
pub(crate) fn merge(mut lists: Vec<Vec<Hit>>, top: usize) -> Vec<Hit> {
    if lists.len() == 1 {
        return lists.pop().unwrap_or_default();
    }
    let mut best: BTreeMap<_, (f32, Arc<Chunk>)> = BTreeMap::new();
    for hit in lists.into_iter().flatten() {
        let entry = best.entry(hit.chunk.identity()).or_insert((hit.score, hit.chunk));
        entry.0 = entry.0.max(hit.score);
    }
    let mut hits = best.into_values().map(|(score, chunk)| Hit { chunk, score }).collect();
    rank(&mut hits, top);
    hits
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fusion::tests::{list, scored};

    #[test]
    fn a_passage_keeps_its_best_score() {
        let lists = vec![list(&[("x", 3.0), ("y", 2.0)]), list(&[("y", 4.0), ("z", 1.0)])];
        assert_eq!(scored(&merge(lists, 2)), [("y", 4.0), ("x", 3.0)]);
    }
}
