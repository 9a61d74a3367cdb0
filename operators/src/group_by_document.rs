//! Groups passages by document: Hits → Hits.
//!
//! ```ron
//! GroupByDocument(input: "dense", corpus: "whole", score: Max, top: 100)
//! ```
//!
//! A document's score is the greatest score of its passages, or their sum (MaxP and SumP of Dai and Callan 2019, section
//! 3). The hits have the documents' ids, so they can be fused with hits of a corpus of whole documents (PolyU, section
//! 2.1.6: scores of passages are aggregated to documents before they are fused with BM25's).
//!
//! With `corpus`, a hit is the document itself: its only passage in that corpus, which reads the same documents with
//! the chunker `Whole`. Without it, a hit has the text of the document's best passage. Each corpus is published by
//! itself, so for a moment after an edit a document may be in one corpus only; it is then left out, with a warning in
//! the answer's provenance. Ties are ordered by document id. Cost: one table lookup for each document.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use turnflow_engine::component::{
    BuildError, BuildFuture, Call, ComponentContext, CorpusRef, IndexDefinition, InputPort, Models, OfDocuments,
    Operator, OperatorConfig, OperatorError, OperatorKind, ScoreUse, StandingDocuments, StandingQueries, built_at_once,
    config,
};
use turnflow_engine::document::Chunk;
use turnflow_engine::record::{Hit, Hits, PortType, Value, rank};

use crate::references::{Definition, Reader};

/// Entry in the operator table.
pub const KIND: OperatorKind = OperatorKind::of::<GroupByDocumentConfig>(
    "GroupByDocument",
    &[InputPort::one(PortType::Hits)],
    PortType::Hits,
    "documents ranked by the scores of their passages",
);

/// The score of a document.
#[config]
#[derive(Copy, Default, PartialEq, Eq)]
pub enum Score {
    /// The greatest score of its passages.
    #[default]
    Max,
    /// The sum of the scores of its passages.
    Sum,
}

/// Fields of `GroupByDocument`.
#[config]
pub struct GroupByDocumentConfig {
    /// Input node that produces hits.
    _input: String,
    /// Corpus of the same documents with the chunker `Whole`, or `FromTurn`; its texts replace those of the passages.
    /// Default: none; a hit has the text of the document's best passage.
    pub corpus: Option<CorpusRef>,
    /// The score of a document: `Max` (default), the greatest score of its passages, or `Sum`, their sum.
    #[field(default)]
    pub score: Score,
    /// Maximum number of documents to return.
    #[field(default = 100, range = 1..=100_000)]
    pub top: usize,
}

impl OperatorConfig for GroupByDocumentConfig {
    fn score_use(&self) -> ScoreUse {
        if self.score == Score::Sum { ScoreUse::Read } else { ScoreUse::PassedOn }
    }

    fn corpus(&self) -> Option<&CorpusRef> {
        self.corpus.as_ref()
    }

    fn indexes(&self, _: &Models) -> Result<Vec<Arc<dyn IndexDefinition>>, BuildError> {
        Ok(if self.corpus.is_some() { vec![Arc::new(Definition)] } else { Vec::new() })
    }

    fn explain(&self) -> String {
        let texts = match &self.corpus {
            Some(corpus) => format!("corpus: {corpus}"),
            None => "texts: best passages".to_owned(),
        };
        format!("{texts}, score: {:?}, top: {}", self.score, self.top)
    }

    fn build<'a>(&'a self, _: &'a ComponentContext, _: &'a Models) -> BuildFuture<'a, Arc<dyn Operator>> {
        built_at_once(|| Ok(Arc::new(GroupByDocument(self.clone()))))
    }
}

struct GroupByDocument(GroupByDocumentConfig);

impl Operator for GroupByDocument {
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Result<Value, OperatorError>> {
        async move {
            let Hits { query, hits } = &**call.hits(0)?;
            let reader = match &self.0.corpus {
                Some(corpus) => {
                    let corpus = corpus.resolve(&call.turn, &call.snapshot)?;
                    Some(corpus.index::<Reader>(&Definition.key())?)
                }
                None => None,
            };
            let known = self.0.corpus.as_ref().and_then(|corpus| corpus.told_apart(&call.turn, &call.snapshot));
            call.watch.put(OfDocuments::of(hits));
            let mut documents = Vec::new();
            for Hit { chunk, score } in grouped(hits, self.0.score) {
                let document = &chunk.document;
                let mut whole = reader.as_ref().map(|reader| reader.find(document, &call.turn));
                // The document of another source with this id is another one.
                if let (Some(whole), Some(known), Some(own)) = (&mut whole, known, chunk.place.corpus())
                    && known != own
                {
                    whole.clear();
                }
                if let Some(corpus) = &self.0.corpus {
                    corpus.found(&call.turn, &call.snapshot, whole.iter().flatten());
                }
                let chunk = match whole.as_deref() {
                    None => of_document(&chunk),
                    Some([whole]) => of_document(whole),
                    Some([]) => {
                        call.warnings.add(format!("left out `{document}`: the corpus of whole documents lacks it"));
                        continue;
                    }
                    Some(many) => {
                        let count = many.len();
                        let note = format!("`{document}` has {count} passages in the corpus of whole documents");
                        call.warnings.add(format!("{note}; the best passage is used"));
                        of_document(&chunk)
                    }
                };
                documents.push(Hit { chunk, score });
            }
            rank(&mut documents, self.0.top);
            Ok(Value::Hits(Arc::new(Hits { query: query.clone(), hits: documents })))
        }
        .boxed()
    }

    fn standing(&self, _: bool) -> Option<Box<dyn StandingQueries>> {
        Some(Box::new(StandingDocuments::default()))
    }
}

/// The text under the document's id.
fn of_document(chunk: &Arc<Chunk>) -> Arc<Chunk> {
    if chunk.id == chunk.document {
        return chunk.clone();
    }
    let Chunk { document, title, text, .. } = &**chunk;
    Arc::new(chunk.derived(document.clone(), title.clone(), text.clone()))
}

/// One hit for each document: its best passage with the document's score.
fn grouped(hits: &[Hit], score: Score) -> Vec<Hit> {
    let mut documents: BTreeMap<_, (f32, Hit)> = BTreeMap::new();
    for hit in hits {
        let entry =
            documents.entry((hit.chunk.place.corpus(), &hit.chunk.document)).or_insert_with(|| (0.0, hit.clone()));
        entry.0 += hit.score;
        let is_better = hit.score.total_cmp(&entry.1.score).then_with(|| entry.1.chunk.id.cmp(&hit.chunk.id));
        if is_better.is_gt() {
            entry.1 = hit.clone();
        }
    }
    let scored = |(sum, best): (f32, Hit)| Hit { score: if score == Score::Sum { sum } else { best.score }, ..best };
    documents.into_values().map(scored).collect()
}

#[cfg(test)]
mod tests {
    use turnflow_engine::component::{CorpusSnapshot, Delta, Snapshot, Warnings};
    use turnflow_engine::record::Query;

    use super::*;
    use crate::test_generator::{operator, run};
    use crate::test_turn::turn;

    fn hit(document: &str, n: usize, score: f32) -> Hit {
        let id = format!("{document}#{n}");
        let text = format!("passage {n} of {document}");
        Hit { chunk: Arc::new(Chunk::new(id.into(), document.into(), "".into(), text.into())), score }
    }

    /// Calls the operator with a corpus `whole` of these documents.
    fn call(config: &str, whole: &[&str], hits: Vec<Hit>) -> (Vec<(String, f32, String)>, Vec<String>) {
        let chunk = |id: &&str| {
            let text = format!("all of {id}");
            Arc::new(Chunk::new((*id).into(), (*id).into(), "".into(), text.into()))
        };
        let delta = Delta { added: whole.iter().map(chunk).collect(), removed: Vec::new(), whole: true };
        let mut index = run(Definition.open(None)).unwrap();
        let mut corpus = CorpusSnapshot::default();
        corpus.indexes.insert(Definition.key(), run(index.apply(&delta)).unwrap());
        let snapshot = Snapshot { corpora: [("whole".into(), Arc::new(corpus))].into(), ..Snapshot::default() };
        let warnings = Warnings::default();
        let call = Call {
            turn: Arc::new(turn(&[], "q")),
            inputs: vec![Value::Hits(Arc::new(Hits { query: Query::new("q"), hits }))],
            snapshot: Arc::new(snapshot),
            warnings: warnings.clone(),
            stream: Default::default(),
            weights: None,
            format: None,
            watch: Default::default(),
        };
        let Value::Hits(hits) = run(operator::<GroupByDocumentConfig>(config, &Models::new()).call(call)).unwrap()
        else {
            panic!()
        };
        let told = |hit: &Hit| (hit.chunk.id.to_string(), hit.score, hit.chunk.text.to_string());
        (hits.hits.iter().map(told).collect(), warnings.take())
    }

    #[test]
    fn a_document_has_the_score_of_its_best_passage_or_of_all() {
        let hits = || vec![hit("a", 3, 4.0), hit("b", 0, 3.0), hit("b", 1, 2.0), hit("c", 0, 1.0)];
        let (found, _) = call(r#"(input: "x", top: 2)"#, &[], hits());
        let (a, b) = ("passage 3 of a".to_owned(), "passage 0 of b".to_owned());
        assert_eq!(found, [("a".into(), 4.0, a.clone()), ("b".into(), 3.0, b.clone())]);
        let (found, _) = call(r#"(input: "x", score: Sum, top: 2)"#, &[], hits());
        assert_eq!(found, [("b".into(), 5.0, b), ("a".into(), 4.0, a)]);
    }

    #[test]
    fn the_text_is_that_of_the_whole_document() {
        let config = r#"(input: "x", corpus: "whole")"#;
        let (found, warnings) = call(config, &["a", "b"], vec![hit("a", 3, 4.0), hit("c", 0, 3.0), hit("b", 0, 1.0)]);
        assert_eq!(found, [("a".into(), 4.0, "all of a".into()), ("b".into(), 1.0, "all of b".into())]);
        assert_eq!(warnings, ["left out `c`: the corpus of whole documents lacks it"]);
    }
}
