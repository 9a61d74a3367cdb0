//! The tables of all components that a pipeline file may name, and the entries of these tables.

use std::collections::BTreeSet;

use serde::de::DeserializeOwned;

use super::fields::Fields;
use super::{
    ChunkerConfig, CorpusSourceConfig, ModelConfig, OpenPassages, OperatorConfig, SinkConfig, TurnSourceConfig,
};
use crate::record::PortType;
use crate::spec::{Sources, SpecError, Tree, from_tree};

/// Reads a configuration from a tree.
pub type Parse<C> = fn(&Tree, &Sources) -> Result<Box<C>, SpecError>;

/// An input of an operator or sink.
#[derive(Clone, Copy, Debug)]
pub struct InputPort {
    /// The field with the id of the upstream node, or with the list of ids.
    pub field: &'static str,
    /// The type that it accepts.
    pub port: PortType,
    /// Further types that it accepts.
    pub or: [Option<PortType>; 2],
    /// Whether `field` is a list.
    pub many: bool,
}

impl InputPort {
    /// One node's output, named by the field `input`.
    pub const fn one(port: PortType) -> Self {
        Self { field: "input", port, or: [None; 2], many: false }
    }

    /// Several nodes' outputs, named by the list `inputs`.
    pub const fn many(port: PortType) -> Self {
        Self { field: "inputs", port, or: [None; 2], many: true }
    }

    /// One node's output, named by another field.
    pub const fn named(field: &'static str, port: PortType) -> Self {
        Self { field, port, or: [None; 2], many: false }
    }

    /// Accepts this type as well; at most two more types are possible.
    pub const fn or(self, port: PortType) -> Self {
        match self.or {
            [None, _] => Self { or: [Some(port), None], ..self },
            [first, _] => Self { or: [first, Some(port)], ..self },
        }
    }

    /// Whether it accepts the output of a node of type `port`.
    pub fn takes(&self, port: PortType) -> bool {
        self.port == port || self.or.contains(&Some(port))
    }
}

impl std::fmt::Display for InputPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.or {
            [Some(second), Some(third)] => write!(f, "{}, {second} or {third}", self.port),
            [Some(or), None] | [None, Some(or)] => write!(f, "{} or {or}", self.port),
            [None, None] => write!(f, "{}", self.port),
        }
    }
}

/// An entry in the table of operators.
#[derive(Clone, Copy)]
pub struct OperatorKind {
    /// The name in pipeline files.
    pub name: &'static str,
    /// Its inputs.
    pub inputs: &'static [InputPort],
    /// The type of its output.
    pub output: PortType,
    /// One line on what it does.
    pub summary: &'static str,
    /// The fields of its configuration.
    pub fields: fn() -> &'static Fields,
    /// Reads its configuration.
    pub parse: Parse<dyn OperatorConfig>,
}

/// An entry in the table of model kinds.
#[derive(Clone, Copy)]
pub struct ModelKind {
    /// The name in pipeline files.
    pub name: &'static str,
    /// One line on what it is.
    pub summary: &'static str,
    /// The fields of its configuration.
    pub fields: fn() -> &'static Fields,
    /// Reads its configuration.
    pub parse: Parse<dyn ModelConfig>,
}

/// An entry in the table of chunkers.
#[derive(Clone, Copy)]
pub struct ChunkerKind {
    /// The name in pipeline files.
    pub name: &'static str,
    /// One line on how it cuts.
    pub summary: &'static str,
    /// The fields of its configuration.
    pub fields: fn() -> &'static Fields,
    /// Reads its configuration.
    pub parse: Parse<dyn ChunkerConfig>,
}

/// An entry in the table of corpus sources.
#[derive(Clone, Copy)]
pub struct CorpusSourceKind {
    /// The name in pipeline files.
    pub name: &'static str,
    /// One line on what it reads.
    pub summary: &'static str,
    /// The fields of its configuration.
    pub fields: fn() -> &'static Fields,
    /// Reads its configuration.
    pub parse: Parse<dyn CorpusSourceConfig>,
}

/// An entry in the table of turn sources.
#[derive(Clone, Copy)]
pub struct TurnSourceKind {
    /// The name in pipeline files.
    pub name: &'static str,
    /// One line on what it reads.
    pub summary: &'static str,
    /// The fields of its configuration.
    pub fields: fn() -> &'static Fields,
    /// Reads its configuration.
    pub parse: Parse<dyn TurnSourceConfig>,
}

/// An entry in the table of sinks; the `input` of every sink accepts answers, hits or queries.
#[derive(Clone, Copy)]
pub struct SinkKind {
    /// The name in pipeline files.
    pub name: &'static str,
    /// One line on where answers go.
    pub summary: &'static str,
    /// The fields of its configuration.
    pub fields: fn() -> &'static Fields,
    /// Reads its configuration.
    pub parse: Parse<dyn SinkConfig>,
}

/// The function `of` of a kind, with what it needs besides the name and the summary.
macro_rules! of {
    ($($kind:ident, $config:ident $(, $field:ident: $of:ty)*;)*) => {$(
        impl $kind {
            /// The entry for this configuration.
            pub const fn of<C: $config + DeserializeOwned + 'static>(
                name: &'static str,
                $($field: $of,)*
                summary: &'static str,
            ) -> Self {
                let parse: Parse<dyn $config> = |tree, sources| Ok(Box::new(from_tree::<C>(tree, sources)?));
                Self { name, $($field,)* summary, fields: C::fields, parse }
            }
        }
    )*};
}

of! {
    OperatorKind, OperatorConfig, inputs: &'static [InputPort], output: PortType;
    ModelKind, ModelConfig;
    ChunkerKind, ChunkerConfig;
    CorpusSourceKind, CorpusSourceConfig;
    TurnSourceKind, TurnSourceConfig;
    SinkKind, SinkConfig;
}

/// All components that a pipeline file may name. A program can add its own to those of turnflow:
///
/// ```
/// # use turnflow_engine::component::{Catalog, OperatorKind};
/// # fn add(mut catalog: Catalog, my_operator: OperatorKind) -> Catalog {
/// catalog.operators.push(my_operator);
/// # catalog }
/// ```
#[derive(Clone, Default)]
pub struct Catalog {
    /// Operators.
    pub operators: Vec<OperatorKind>,
    /// Kinds of models.
    pub models: Vec<ModelKind>,
    /// Chunkers.
    pub chunkers: Vec<ChunkerKind>,
    /// Sources of documents.
    pub corpus_sources: Vec<CorpusSourceKind>,
    /// Sources of turns.
    pub turn_sources: Vec<TurnSourceKind>,
    /// Sinks of answers.
    pub sinks: Vec<SinkKind>,
    /// What keeps the published passages of a corpus; without it, each start reads the source first.
    pub passages: Option<OpenPassages>,
    /// What `turnflow docs` prints: Markdown, with a heading `## Operators` for each table and a
    /// heading `### Name` for each kind.
    pub reference: String,
}

/// Two kinds have the same name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the catalog has two {what} called `{name}`")]
pub struct DuplicateName {
    /// The table.
    pub what: &'static str,
    /// The name.
    pub name: &'static str,
}

impl Catalog {
    /// Checks that each name is unique. Operators, turn sources and sinks are all nodes and share one
    /// namespace; each other table has its own.
    ///
    /// # Errors
    ///
    /// The first duplicate name.
    pub fn check_names(&self) -> Result<(), DuplicateName> {
        let nodes = self.operators.iter().map(|kind| kind.name);
        let nodes = nodes.chain(self.turn_sources.iter().map(|kind| kind.name));
        unique("kinds of nodes", nodes.chain(self.sinks.iter().map(|kind| kind.name)))?;
        unique("kinds of models", self.models.iter().map(|kind| kind.name))?;
        unique("chunkers", self.chunkers.iter().map(|kind| kind.name))?;
        unique("corpus sources", self.corpus_sources.iter().map(|kind| kind.name))
    }
}

fn unique(what: &'static str, names: impl Iterator<Item = &'static str>) -> Result<(), DuplicateName> {
    let mut seen = BTreeSet::new();
    match names.into_iter().find(|name| !seen.insert(*name)) {
        Some(name) => Err(DuplicateName { what, name }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_for_one_kind() {
        static NONE: Fields = Fields { name: "", help: "", is_choice: false, fields: &[] };
        let source = |name| TurnSourceKind { name, summary: "", fields: || &NONE, parse: |_, _| unreachable!() };
        let sink = |name| SinkKind { name, summary: "", fields: || &NONE, parse: |_, _| unreachable!() };
        let catalog = Catalog { turn_sources: vec![source("A")], sinks: vec![sink("B")], ..Catalog::default() };
        assert_eq!(catalog.check_names(), Ok(()));
        let catalog = Catalog { sinks: vec![sink("A")], ..catalog };
        assert_eq!(catalog.check_names().unwrap_err().to_string(), "the catalog has two kinds of nodes called `A`");
    }
}
