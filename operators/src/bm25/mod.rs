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
mod score;

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde::Deserialize;
use turnflow_engine::component::{
    BuildError, Call, Check, CorpusRef, IndexDefinition, InputPort, Models, Operator, OperatorConfig, OperatorError,
    OperatorKind,
};
use turnflow_engine::record::{Hits, PortType, Value};
use turnflow_engine::spec::from_tree;

use crate::parts::merge;
pub use analyzer::Tokenizer;
use index::{Bm25Definition, Bm25Reader};

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
    /// How text becomes terms: `English` (default: words, lower-cased, stop words left out,
    /// stemmed, as in FusionRAG) or `Whitespace` (split at blanks, lower-cased, as in TechSSN).
    #[serde(default)]
    pub tokenizer: Tokenizer,
    /// How soon further occurrences of a term count less; ≥ 0. Default 1.2.
    #[serde(default = "default_k1")]
    pub k1: f32,
    /// How much long passages are held back; 0 (not) to 1 (fully). Default 0.75.
    #[serde(default = "default_b")]
    pub b: f32,
    /// Passages to give, at most. Default 100.
    #[serde(default = "default_top")]
    pub top: usize,
}

fn default_k1() -> f32 {
    1.2
}
fn default_b() -> f32 {
    0.75
}
fn default_top() -> usize {
    100
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
        Ok(Arc::new(Bm25 { config: self.clone(), key }))
    }
}

struct Bm25 {
    config: Bm25Config,
    key: String,
}

impl Operator for Bm25 {
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Result<Value, OperatorError>> {
        async move {
            let query = call.query(0)?.clone();
            let corpus = self.config.corpus.resolve(&call.turn, &call.published)?;
            let reader = corpus.index::<Bm25Reader>(&self.key)?;
            let Bm25Config { tokenizer, k1, b, top, .. } = self.config;
            let searches = query.searches().iter();
            let lists: Result<_, _> = searches.map(|text| reader.search(&tokenizer.terms(text), k1, b, top)).collect();
            Ok(Value::Hits(Arc::new(Hits { query, hits: merge(lists?, top) })))
        }
        .boxed()
    }
}
