//! What pipelines are made of, as the engine sees it: kinds listed in static tables,
//! their configurations, and the traits of what configurations build.
//!
//! The engine names no operator and no connector; it is handed a [`Catalog`].

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde::Deserialize;

use crate::connector::{AnswerSink, ConnectorError, CorpusSource, TurnSource};
use crate::document::{Chunk, Content, Document};
use crate::inference::{
    Embedder, InferenceError, PairScorer, SparseEmbedder, TokenEmbedder, Tokenize, Usage, WordVectors,
};
use crate::language::{Generator, Likelihood};
use crate::publish::{CorpusView, Published};
use crate::record::{PortType, Turn, Value};
use crate::spec::{Diagnostic, FilePath, Sources, SpecError, Tree};

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

/// Collects what is wrong with one configuration; places are its fields.
pub struct Check<'a> {
    pub(crate) tree: &'a Tree,
    pub(crate) owner: &'a str,
    pub(crate) diagnostics: &'a mut Vec<Diagnostic>,
}

impl Check<'_> {
    /// Reports a mistake at a field (or at the whole, if the field is not written).
    pub fn error(&mut self, code: &'static str, field: &str, message: impl Into<String>) {
        let span = self.tree.get(field).map_or(self.tree.span, |value| value.span);
        let message = format!("{}: {}", self.owner, message.into());
        self.diagnostics.push(Diagnostic::new(code, span, message));
    }

    /// Reports a value outside of `low..=high`.
    pub fn range<N: PartialOrd + std::fmt::Display>(&mut self, field: &str, value: N, low: N, high: N) {
        if !(value >= low && value <= high) {
            let span = self.tree.get(field).map_or(self.tree.span, |value| value.span);
            let message = format!("{}: `{field}` is {value}, out of range", self.owner);
            let label = format!("expected {low} to {high}");
            self.diagnostics.push(Diagnostic::new("out-of-range", span, message).label(label));
        }
    }

    /// Reports a path that does not exist.
    pub fn exists(&mut self, field: &str, path: &FilePath) {
        if path.path.exists() {
            return;
        }
        let span = self.tree.get(field).map_or(self.tree.span, |value| value.span);
        let message = format!("{}: there is no `{}`", self.owner, path.written);
        let mut diagnostic = Diagnostic::new("no-such-path", span, message)
            .label("this path does not exist")
            .help(format!("looked for {}", path.path.display()));
        if let Some(near) = crate::spec::near_file(&path.path) {
            diagnostic = diagnostic.help(format!("did you mean `{near}`?"));
        }
        self.diagnostics.push(diagnostic);
    }
}

/// Which corpus a retriever reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CorpusRef {
    /// The corpus of this name.
    Named(String),
    /// The one that the turn's `collection` names.
    FromTurn,
}

impl<'de> Deserialize<'de> for CorpusRef {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl serde::de::Visitor<'_> for Text {
            type Value = CorpusRef;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a corpus's name in quotes, or FromTurn")
            }
            fn visit_str<E>(self, text: &str) -> Result<CorpusRef, E> {
                Ok(if text == "FromTurn" { CorpusRef::FromTurn } else { CorpusRef::Named(text.to_owned()) })
            }
        }
        deserializer.deserialize_any(Text)
    }
}

impl std::fmt::Display for CorpusRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CorpusRef::Named(name) => write!(f, "{name}"),
            CorpusRef::FromTurn => f.write_str("FromTurn"),
        }
    }
}

impl CorpusRef {
    /// The corpus that this turn is to be answered from.
    pub fn resolve<'a>(&self, turn: &Turn, published: &'a Published) -> Result<&'a Arc<CorpusView>, OperatorError> {
        let name = match self {
            CorpusRef::Named(name) => name.as_str(),
            CorpusRef::FromTurn => turn.collection.as_deref().ok_or(OperatorError::NoCollection)?,
        };
        published.corpora.get(name).ok_or_else(|| OperatorError::UnknownCorpus {
            name: name.to_owned(),
            known: published.corpora.keys().map(|name| name.to_string()).collect::<Vec<_>>().join(", "),
        })
    }
}

/// What a model can do for an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ability {
    /// Texts to vectors.
    Embed,
    /// Texts to tokens.
    Tokenize,
    /// Texts to one vector a token.
    EmbedTokens,
    /// Texts to weighted terms.
    EmbedSparse,
    /// Words to vectors.
    Words,
    /// Pairs of texts to scores.
    ScorePairs,
    /// Prompts to texts.
    Generate,
    /// How likely a text is after another.
    Likelihood,
}

impl Ability {
    /// As in "a model that can …".
    pub fn verb(self) -> &'static str {
        match self {
            Ability::Embed => "turn text into vectors",
            Ability::Tokenize => "cut text into tokens",
            Ability::EmbedTokens => "turn text into a vector a token",
            Ability::EmbedSparse => "turn text into weighted terms",
            Ability::Words => "give vectors of words",
            Ability::ScorePairs => "score pairs of texts",
            Ability::Generate => "generate text",
            Ability::Likelihood => "tell how likely a text is",
        }
    }
}

/// A model by name, as an operator's field gives it.
#[derive(Clone, Copy, Debug)]
pub struct ModelUse<'a> {
    /// The field that names it.
    pub field: &'static str,
    /// Its name.
    pub name: &'a str,
    /// What is asked of it.
    pub ability: Ability,
}

/// A model that is loaded.
#[derive(Default)]
pub struct Model {
    /// Its name in the pipeline.
    pub name: String,
    /// Hash of its files and of what changes its outputs.
    pub fingerprint: String,
    /// Present if it can embed.
    pub embedder: Option<Arc<dyn Embedder>>,
    /// Present if it has a tokenizer.
    pub tokenizer: Option<Arc<dyn Tokenize>>,
    /// Present if it gives token vectors.
    pub token_embedder: Option<Arc<dyn TokenEmbedder>>,
    /// Present if it gives weighted terms.
    pub sparse: Option<Arc<dyn SparseEmbedder>>,
    /// Present if it has vectors of words.
    pub words: Option<Arc<dyn WordVectors>>,
    /// Present if it scores pairs.
    pub pairs: Option<Arc<dyn PairScorer>>,
    /// Present if it generates.
    pub generator: Option<Arc<dyn Generator>>,
    /// Present if it can tell how likely a text is.
    pub likelihood: Option<Arc<dyn Likelihood>>,
    /// What has been asked of it so far, for models that count it.
    pub meter: Option<Arc<dyn Fn() -> Usage + Send + Sync>>,
}

impl Model {
    /// What has been asked of it so far.
    pub fn usage(&self) -> Usage {
        self.meter.as_ref().map(|meter| meter()).unwrap_or_default()
    }
}

/// The loaded models by name.
pub type Models = BTreeMap<String, Arc<Model>>;

/// Why something could not be built at start.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A model cannot be loaded.
    #[error("model `{model}`: {source}")]
    Model {
        /// Its name.
        model: String,
        /// Why.
        source: InferenceError,
    },
    /// An index cannot be opened.
    #[error("index `{index}` of corpus `{corpus}`: {source}")]
    Index {
        /// Its key.
        index: String,
        /// Its corpus.
        corpus: String,
        /// Why.
        source: IndexError,
    },
    /// A connector cannot start.
    #[error("node `{node}`: {source}")]
    Connector {
        /// The node, or the corpus.
        node: String,
        /// Why.
        source: ConnectorError,
    },
    /// A file that an operator reads at start cannot be used. `check` finds this earlier.
    #[error("cannot use `{}`: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A model lacks what is asked of it. `check` finds this earlier.
    #[error("`{by}` needs a model that can {}, and `{model}` cannot", ability.verb())]
    Ability {
        /// Who asks.
        by: String,
        /// The model.
        model: String,
        /// What it lacks.
        ability: Ability,
    },
}

/// Why an operator gave nothing for a turn.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// A model call failed.
    #[error(transparent)]
    Inference(#[from] InferenceError),
    /// `FromTurn`, and the turn has no `collection`.
    #[error("the turn names no `collection`, and this retriever is routed by it")]
    NoCollection,
    /// `FromTurn`, and there is no such corpus.
    #[error("there is no corpus `{name}`; there are: {known}")]
    UnknownCorpus {
        /// The turn's collection.
        name: String,
        /// Those there are.
        known: String,
    },
    /// The corpus lacks the index: a fault of the engine.
    #[error("the corpus has no index `{0}`")]
    NoIndex(String),
    /// An index could not be read.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// An input carried another type than planned: a fault of the engine.
    #[error("an input carried {0}")]
    Port(&'static str),
}

/// Why an index cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// A file or directory cannot be used.
    #[error("cannot {action} `{path}`: {source}")]
    Io {
        /// As a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The store underneath failed.
    #[error("{store} cannot {action}: {reason}")]
    Store {
        /// Tantivy, Lance.
        store: &'static str,
        /// As a verb.
        action: &'static str,
        /// What it said.
        reason: String,
    },
    /// A model call failed.
    #[error(transparent)]
    Inference(#[from] InferenceError),
}

/// What an operator is called with.
pub struct Call {
    /// The turn.
    pub turn: Arc<Turn>,
    /// One value an input, in the order of the fields (and of the list).
    pub inputs: Vec<Value>,
    /// The corpora as of the turn's epoch.
    pub published: Arc<Published>,
    /// Where what was done without is told.
    pub notes: Notes,
}

/// Collects what an operator had to do without for a turn: a member of an ensemble that
/// failed, a rewrite that could not be read. They end up in the answer's stamp.
#[derive(Clone, Debug, Default)]
pub struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    /// Tells of one thing, in a short sentence without an end.
    pub fn add(&self, note: impl Into<String>) {
        self.0.lock().push(note.into());
    }

    /// Takes what was told.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock())
    }
}

impl Call {
    /// The input's query.
    pub fn query(&self, input: usize) -> Result<&crate::record::Query, OperatorError> {
        match self.inputs.get(input) {
            Some(Value::Query(query)) => Ok(query),
            _ => Err(OperatorError::Port("no query")),
        }
    }

    /// The input's hits.
    pub fn hits(&self, input: usize) -> Result<&Arc<crate::record::Hits>, OperatorError> {
        match self.inputs.get(input) {
            Some(Value::Hits(hits)) => Ok(hits),
            _ => Err(OperatorError::Port("no hits")),
        }
    }

    /// The input's prompt.
    pub fn prompt(&self, input: usize) -> Result<&Arc<crate::record::PromptFor>, OperatorError> {
        match self.inputs.get(input) {
            Some(Value::Prompt(prompt)) => Ok(prompt),
            _ => Err(OperatorError::Port("no prompt")),
        }
    }

    /// The input's answer.
    pub fn answer(&self, input: usize) -> Result<&Arc<crate::record::Answer>, OperatorError> {
        match self.inputs.get(input) {
            Some(Value::Answer(answer)) => Ok(answer),
            _ => Err(OperatorError::Port("no answer")),
        }
    }
}

/// A running operator: a pure function of its inputs, the corpora and its models.
pub trait Operator: Send + Sync {
    /// Makes this node's value for a turn. What is quick may be done before the first
    /// await, on the worker; the rest continues off the workers.
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Result<Value, OperatorError>>;
    /// Whether it is called even when an input has failed, and finds [`Value::Failed`] there.
    /// Otherwise the failure goes on in place of what it would give.
    fn takes_failures(&self) -> bool {
        false
    }
}

/// An operator's configuration.
pub trait OperatorConfig: Debug + Send + Sync {
    /// Reports values that have the right type and yet cannot be.
    fn validate(&self, _: &mut Check<'_>) {}
    /// The models it uses.
    fn models(&self) -> Vec<ModelUse<'_>> {
        Vec::new()
    }
    /// The corpus it reads (field `corpus`).
    fn corpus(&self) -> Option<&CorpusRef> {
        None
    }
    /// The indexes it needs in its corpus.
    fn indexes(&self, _: &Models) -> Result<Vec<Arc<dyn IndexDefinition>>, BuildError> {
        Ok(Vec::new())
    }
    /// The weights of its lists or members, if its scores are sums that these weigh and a field
    /// `weights` sets them: then they can be learned.
    fn weights(&self) -> Option<Vec<f32>> {
        None
    }
    /// Its effective settings, in a line.
    fn explain(&self) -> String;
    /// Acquires what it needs.
    fn build(&self, models: &Models) -> Result<Arc<dyn Operator>, BuildError>;
}

/// A model's configuration.
pub trait ModelConfig: Debug + Send + Sync {
    /// Reports values that cannot be, missing files included.
    fn validate(&self, _: &mut Check<'_>) {}
    /// What the model can do.
    fn abilities(&self) -> &'static [Ability];
    /// Its effective settings, in a line.
    fn explain(&self) -> String;
    /// Loads it and starts its service.
    fn load(&self, name: &str) -> Result<Model, BuildError>;
}

/// Cuts documents into chunks; must be a pure function of the document.
pub trait Chunker: Send + Sync {
    /// The chunks in order.
    fn chunk(&self, document: &Document) -> Vec<Chunk>;
}

/// A chunker's configuration.
pub trait ChunkerConfig: Debug + Send + Sync {
    /// Reports values that cannot be.
    fn validate(&self, _: &mut Check<'_>) {}
    /// Whether it needs a tokenizer, and whose: `Some(None)` means the first model's that has one.
    fn tokenizer(&self) -> Option<Option<&str>> {
        None
    }
    /// Its effective settings, in a line.
    fn explain(&self) -> String;
    /// Builds it; the tokenizer is the one asked for.
    fn build(&self, tokenizer: Option<Arc<dyn Tokenize>>) -> Arc<dyn Chunker>;
}

/// A corpus source's configuration.
pub trait CorpusSourceConfig: Debug + Send + Sync {
    /// Reports values that cannot be.
    fn validate(&self, _: &mut Check<'_>) {}
    /// Its effective settings, in a line.
    fn explain(&self) -> String;
    /// Makes the source.
    fn build(&self) -> Box<dyn CorpusSource>;
}

/// A turn source's configuration.
pub trait TurnSourceConfig: Debug + Send + Sync {
    /// Reports values that cannot be.
    fn validate(&self, _: &mut Check<'_>) {}
    /// Its effective settings, in a line.
    fn explain(&self) -> String;
    /// Makes the source.
    fn build(&self) -> Box<dyn TurnSource>;
}

/// A sink's configuration.
pub trait SinkConfig: Debug + Send + Sync {
    /// Reports values that cannot be.
    fn validate(&self, _: &mut Check<'_>) {}
    /// Its effective settings, in a line.
    fn explain(&self) -> String;
    /// Opens the sink.
    fn build(&self) -> Result<Box<dyn AnswerSink>, ConnectorError>;
}

/// What one index of a corpus is; two retrievers whose definitions have the same key
/// share one index.
pub trait IndexDefinition: Send + Sync {
    /// Unique among the indexes of a corpus, and fit for a directory's name. Whatever
    /// changes what is stored changes the key.
    fn key(&self) -> String;
    /// Opens what is stored in `directory`, which exists and is this index's own; without
    /// one, nothing outlives the process.
    fn open<'a>(&'a self, directory: Option<&'a Path>) -> BoxFuture<'a, Result<Box<dyn Index>, IndexError>>;
}

/// What an epoch changes; no chunk is in both lists, none twice.
#[derive(Clone, Debug, Default)]
pub struct Delta {
    /// Chunks that are new.
    pub added: Vec<Arc<Chunk>>,
    /// Chunks that are gone (same id, same content).
    pub removed: Vec<Arc<Chunk>>,
    /// The first delta after opening names every chunk there is: what is stored and not
    /// named is to go.
    pub whole: bool,
}

/// What preparing contents cost.
#[derive(Clone, Copy, Debug, Default)]
pub struct Prepared {
    /// Contents that a model had to be asked for.
    pub embedded: usize,
}

/// Computes what new contents need before they can be indexed; shared by the workers.
pub trait Prepare: Send + Sync {
    /// Returns when everything that these contents need is there. What is stored already
    /// costs nothing. Called once for each content that appears.
    fn prepare(self: Arc<Self>, contents: Vec<Content>) -> BoxFuture<'static, Result<Prepared, IndexError>>;
}

/// The writing end of an index; used by one task at a time.
pub trait Index: Send {
    /// What must be computed for contents before `apply` is told of their chunks.
    fn preparation(&self) -> Option<Arc<dyn Prepare>> {
        None
    }
    /// Applies a delta and gives what readers of the new epoch hold: immutable, and of the
    /// type that this index's operators expect. If it fails, the next delta comes `whole`.
    fn apply<'a>(&'a mut self, delta: &'a Delta) -> BoxFuture<'a, Result<Arc<dyn Any + Send + Sync>, IndexError>>;
}
