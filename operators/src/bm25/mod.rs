//! BM25: Queries → Hits, by an inverted index in tantivy.
//!
//! ```ron
//! Bm25(input: "query", corpus: "docs", tokenizer: English, k1: 1.2, b: 0.75, top: 100)
//! ```
//!
//! The score is Robertson and Zaragoza's (2009, section 3) with the idf that Lucene uses,
//! ln(1 + (N − df + ½) / (df + ½)), which is never negative. N, df and the average length
//! are counted over the live passages of the epoch at the time of the search, and lengths
//! are exact, so a score depends on the corpus as it is and not on how it came to be. Ties
//! are ordered by passage id. A question is only ever cut into tokens: nothing in it is an
//! operator.
//!
//! Cost: proportional to the postings of the question's terms.

mod analyzer;
mod directory;
mod index;
mod inventory;
mod maintain;
mod open;
mod score;
mod writer;

use std::sync::Arc;

use serde::Deserialize;
use turnflow_engine::component::{
    BuildError, Check, CorpusRef, IndexDefinition, InputPort, Models, Operator, OperatorConfig, OperatorError,
    OperatorKind,
};
use turnflow_engine::record::{Hit, PortType};
use turnflow_engine::spec::from_tree;

use crate::retrieve::{self, Retriever, Search};
pub use analyzer::Tokenizer;
use index::Bm25Reader;
use open::Bm25Definition;

/// The table's entry.
pub const KIND: OperatorKind = OperatorKind {
    name: "Bm25",
    inputs: &[InputPort::one(PortType::Queries)],
    output: PortType::Hits,
    summary: "passages that share words with the query, by BM25",
    parse: |tree, sources| Ok(Box::new(from_tree::<Bm25Config>(tree, sources)?)),
};

/// Fields of `Bm25`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bm25Config {
    /// The node that gives queries.
    #[serde(rename = "input")]
    _input: String,
    /// The corpus, or `FromTurn`.
    pub corpus: CorpusRef,
    /// How text becomes terms: `English` (default: words, lower-cased, stop words left out as in
    /// FusionRAG, stemmed) or `Whitespace` (split at blanks, lower-cased, as in TechSSN).
    #[serde(default)]
    pub tokenizer: Tokenizer,
    /// How soon further occurrences of a term count less; ≥ 0. Default 1.2.
    #[serde(default = "default_k1")]
    pub k1: f32,
    /// How much long passages are held back; 0 (not) to 1 (fully). Default 0.75.
    #[serde(default = "default_b")]
    pub b: f32,
    /// Passages to give, at most. Default 100.
    #[serde(default = "retrieve::default_top")]
    pub top: usize,
}

fn default_k1() -> f32 {
    1.2
}
fn default_b() -> f32 {
    0.75
}

impl OperatorConfig for Bm25Config {
    fn validate(&self, check: &mut Check<'_>) {
        check.range("k1", self.k1, 0.0, 100.0);
        check.range("b", self.b, 0.0, 1.0);
        check.range("top", self.top, 1, 100_000);
    }

    fn corpus(&self) -> Option<&CorpusRef> {
        Some(&self.corpus)
    }

    fn indexes(&self, _: &Models) -> Result<Vec<Arc<dyn IndexDefinition>>, BuildError> {
        Ok(vec![Arc::new(Bm25Definition { tokenizer: self.tokenizer })])
    }

    fn explain(&self) -> String {
        format!(
            "corpus: {}, tokenizer: {:?}, k1: {}, b: {}, top: {}",
            self.corpus, self.tokenizer, self.k1, self.b, self.top
        )
    }

    fn build(&self, _: &Models) -> Result<Arc<dyn Operator>, BuildError> {
        let key = Bm25Definition { tokenizer: self.tokenizer }.key();
        let search = Bm25 { tokenizer: self.tokenizer, k1: self.k1, b: self.b };
        Ok(Arc::new(Retriever { corpus: self.corpus.clone(), key, top: self.top, search }))
    }
}

struct Bm25 {
    tokenizer: Tokenizer,
    k1: f32,
    b: f32,
}

impl Search for Bm25 {
    type Reader = Bm25Reader;

    async fn search(
        &self,
        reader: &Bm25Reader,
        texts: Vec<String>,
        top: usize,
    ) -> Result<Vec<Vec<Hit>>, OperatorError> {
        let search = |text: &String| Ok(reader.search(&self.tokenizer.terms(text), self.k1, self.b, top)?);
        texts.iter().map(search).collect()
    }
}
