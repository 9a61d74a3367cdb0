//! A small catalog: the connectors, and operators, models and chunkers with every kind of
//! field that configurations have.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use serde::Deserialize;
use turnflow_engine::component::{
    BuildFuture, Catalog, Check, Chunker, ChunkerConfig, ChunkerKind, ComponentContext, Configured, CorpusRef,
    InputPort, Models, Operator, OperatorConfig, OperatorKind, built_at_once,
};
use turnflow_engine::document::{Chunk, Document};
use turnflow_engine::inference::Tokenize;
use turnflow_engine::record::PortType;
use turnflow_engine::spec::{FilePath, from_tree};

/// The components that pipelines under test may name.
pub static CATALOG: LazyLock<Catalog> = LazyLock::new(|| Catalog {
    operators: vec![
        operator("LastTurn", const { &[InputPort::one(PortType::Turns)] }, PortType::Queries),
        operator("Bm25", const { &[InputPort::one(PortType::Queries)] }, PortType::Hits),
        operator("Rrf", const { &[InputPort::many(PortType::Hits)] }, PortType::Hits),
        operator("Answer", const { &[InputPort::one(PortType::Hits).or(PortType::Queries)] }, PortType::Answers),
    ],
    models: vec![],
    chunkers: vec![ChunkerKind::of::<WholeConfig>("Whole", "no cut")],
    corpus_sources: turnflow_connectors::CORPUS_SOURCES.to_vec(),
    turn_sources: turnflow_connectors::TURN_SOURCES.to_vec(),
    sinks: turnflow_connectors::SINKS.to_vec(),
    passages: None,
    reference: String::new(),
});

const fn operator(name: &'static str, inputs: &'static [InputPort], output: PortType) -> OperatorKind {
    OperatorKind {
        name,
        inputs,
        output,
        summary: "every kind of field",
        fields: AnyConfig::fields,
        parse: |tree, sources| Ok(Box::new(from_tree::<AnyConfig>(tree, sources)?)),
    }
}

/// Fields of every kind.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(dead_code, reason = "they are only read from text")]
struct AnyConfig {
    input: String,
    inputs: Vec<String>,
    corpus: CorpusRef,
    top: usize,
    k: f32,
    weights: Option<Vec<f32>>,
    mode: Mode,
    named: BTreeMap<String, (i8, char)>,
    file: Option<FilePath>,
}

impl Default for AnyConfig {
    fn default() -> Self {
        Self {
            input: String::new(),
            inputs: Vec::new(),
            corpus: CorpusRef::FromTurn,
            top: 10,
            k: 1.0,
            weights: None,
            mode: Mode::Plain,
            named: BTreeMap::new(),
            file: None,
        }
    }
}

#[derive(Debug, Deserialize)]
#[allow(dead_code, reason = "they are only read from text")]
enum Mode {
    Plain,
    One(u8),
    Two(i64, String),
    Named { a: bool, b: Option<Box<Mode>> },
}

impl Configured for AnyConfig {}

impl OperatorConfig for AnyConfig {
    fn validate(&self, check: &mut Check<'_>) {
        check.range("top", self.top, 1, 1000);
    }

    fn corpus(&self) -> Option<&CorpusRef> {
        Some(&self.corpus)
    }

    fn explain(&self) -> String {
        format!("{self:?}")
    }

    fn build<'a>(&'a self, _: &'a ComponentContext, _: &'a Models) -> BuildFuture<'a, Arc<dyn Operator>> {
        built_at_once(|| unreachable!("plans of fuzzed files are not run"))
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WholeConfig {}

impl Configured for WholeConfig {}

impl ChunkerConfig for WholeConfig {
    fn build(&self, _: Option<Arc<dyn Tokenize>>) -> Arc<dyn Chunker> {
        Arc::new(Self {})
    }
}

impl Chunker for WholeConfig {
    fn chunk(&self, _: &Document) -> Vec<Chunk> {
        Vec::new()
    }
}
