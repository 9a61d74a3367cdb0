//! The tables of everything that a pipeline file may name, and what an entry says of a kind.

use super::{ChunkerConfig, CorpusSourceConfig, ModelConfig, OperatorConfig, SinkConfig, TurnSourceConfig};
use crate::record::PortType;
use crate::spec::{Sources, SpecError, Tree};

/// Reads a configuration from a tree.
pub type Parse<C> = fn(&Tree, &Sources) -> Result<Box<C>, SpecError>;

/// An input of an operator or sink.
#[derive(Clone, Copy, Debug)]
pub struct InputPort {
    /// The field that names the node, or the list of nodes, that feeds it.
    pub field: &'static str,
    /// What it takes.
    pub port: PortType,
    /// What it takes as well.
    pub or: Option<PortType>,
    /// Whether `field` is a list.
    pub many: bool,
}

impl InputPort {
    /// One node's output, named by the field `input`.
    pub const fn one(port: PortType) -> Self {
        Self { field: "input", port, or: None, many: false }
    }

    /// Several nodes' outputs, named by the list `inputs`.
    pub const fn many(port: PortType) -> Self {
        Self { field: "inputs", port, or: None, many: true }
    }

    /// One node's output, named by another field.
    pub const fn named(field: &'static str, port: PortType) -> Self {
        Self { field, port, or: None, many: false }
    }

    /// Takes this type of port as well.
    pub const fn or(self, port: PortType) -> Self {
        Self { or: Some(port), ..self }
    }

    /// Whether a node that gives `port` may feed it.
    pub fn takes(&self, port: PortType) -> bool {
        self.port == port || self.or == Some(port)
    }
}

impl std::fmt::Display for InputPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.or {
            None => write!(f, "{}", self.port),
            Some(or) => write!(f, "{} or {or}", self.port),
        }
    }
}

/// An entry in the table of operators.
pub struct OperatorKind {
    /// The name in pipeline files.
    pub name: &'static str,
    /// What it takes.
    pub inputs: &'static [InputPort],
    /// What it gives.
    pub output: PortType,
    /// One line on what it does.
    pub summary: &'static str,
    /// Reads its configuration.
    pub parse: Parse<dyn OperatorConfig>,
}

/// An entry in the table of model kinds.
pub struct ModelKind {
    /// The name in pipeline files.
    pub name: &'static str,
    /// One line on what it is.
    pub summary: &'static str,
    /// Reads its configuration.
    pub parse: Parse<dyn ModelConfig>,
}

/// An entry in the table of chunkers.
pub struct ChunkerKind {
    /// The name in pipeline files.
    pub name: &'static str,
    /// One line on how it cuts.
    pub summary: &'static str,
    /// Reads its configuration.
    pub parse: Parse<dyn ChunkerConfig>,
}

/// An entry in the table of corpus sources.
pub struct CorpusSourceKind {
    /// The name in pipeline files.
    pub name: &'static str,
    /// One line on what it reads.
    pub summary: &'static str,
    /// Reads its configuration.
    pub parse: Parse<dyn CorpusSourceConfig>,
}

/// An entry in the table of turn sources.
pub struct TurnSourceKind {
    /// The name in pipeline files.
    pub name: &'static str,
    /// One line on what it reads.
    pub summary: &'static str,
    /// Reads its configuration.
    pub parse: Parse<dyn TurnSourceConfig>,
}

/// An entry in the table of sinks; every sink takes `input`: Answers.
pub struct SinkKind {
    /// The name in pipeline files.
    pub name: &'static str,
    /// One line on where answers go.
    pub summary: &'static str,
    /// Reads its configuration.
    pub parse: Parse<dyn SinkConfig>,
}

/// Everything that a pipeline file may name.
#[derive(Clone, Copy)]
pub struct Catalog {
    /// Operators.
    pub operators: &'static [OperatorKind],
    /// Kinds of models.
    pub models: &'static [ModelKind],
    /// Chunkers.
    pub chunkers: &'static [ChunkerKind],
    /// Where documents come from.
    pub corpus_sources: &'static [CorpusSourceKind],
    /// Where turns come from.
    pub turn_sources: &'static [TurnSourceKind],
    /// Where answers go.
    pub sinks: &'static [SinkKind],
}
