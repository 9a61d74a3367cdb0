//! Models: their capabilities, how operators request them, and loaded models.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use super::{BuildFuture, Check, ComponentContext, Configured};
use crate::inference::{
    Embedder, PairScorer, PictureReader, RowScorer, SparseEmbedder, TokenEmbedder, Tokenize, Usage, WordVectors,
};
use crate::language::{Generator, Likelihood};
use crate::spec::FilePath;

/// A capability of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// Texts to vectors.
    Embed,
    /// Texts to tokens.
    Tokenize,
    /// Texts to one vector per token.
    EmbedTokens,
    /// Texts to weighted terms.
    EmbedSparse,
    /// Words to vectors.
    Words,
    /// Pairs of texts to scores.
    ScorePairs,
    /// Rows of features to scores.
    ScoreRows,
    /// Prompts to texts.
    Generate,
    /// The likelihood of a text after another.
    Likelihood,
    /// Pictures to lines of text.
    ReadPictures,
}

impl Capability {
    /// The text that completes "a model that can …".
    pub fn verb(self) -> &'static str {
        match self {
            Capability::Embed => "turn text into vectors",
            Capability::Tokenize => "cut text into tokens",
            Capability::EmbedTokens => "turn text into one vector per token",
            Capability::EmbedSparse => "turn text into weighted terms",
            Capability::Words => "provide word vectors",
            Capability::ScorePairs => "score pairs of texts",
            Capability::ScoreRows => "score rows of features",
            Capability::Generate => "generate text",
            Capability::Likelihood => "score how likely a text is",
            Capability::ReadPictures => "read the text in pictures",
        }
    }
}

/// A reference to a model in an operator's field.
#[derive(Clone, Copy, Debug)]
pub struct ModelUse<'a> {
    /// The field.
    pub field: &'static str,
    /// The model's name.
    pub name: &'a str,
    /// The capability that the operator needs.
    pub capability: Capability,
}

/// A loaded model.
#[derive(Clone, Default)]
pub struct Model {
    /// Its name in the pipeline.
    pub name: String,
    /// Hash of its files and of all settings that change its outputs.
    pub fingerprint: String,
    /// Hash of what changes its outputs for passages, if that is less than `fingerprint`. Indexes depend on it alone.
    pub passages: Option<String>,
    /// Present if it can embed.
    pub embedder: Option<Arc<dyn Embedder>>,
    /// Present if it has a tokenizer.
    pub tokenizer: Option<Arc<dyn Tokenize>>,
    /// Present if it computes token vectors.
    pub token_embedder: Option<Arc<dyn TokenEmbedder>>,
    /// Present if it computes weighted terms.
    pub sparse: Option<Arc<dyn SparseEmbedder>>,
    /// Present if it has word vectors.
    pub words: Option<Arc<dyn WordVectors>>,
    /// Present if it scores pairs.
    pub pairs: Option<Arc<dyn PairScorer>>,
    /// Present if it scores rows of features.
    pub rows: Option<Arc<dyn RowScorer>>,
    /// Present if it generates text.
    pub generator: Option<Arc<dyn Generator>>,
    /// Present if it computes likelihoods.
    pub likelihood: Option<Arc<dyn Likelihood>>,
    /// Present if it reads pictures.
    pub pictures: Option<Arc<dyn PictureReader>>,
    /// Reads its usage so far, for models that count it.
    pub meter: Option<Arc<dyn Fn() -> Usage + Send + Sync>>,
}

impl Model {
    /// Its usage so far.
    pub fn usage(&self) -> Usage {
        self.meter.as_ref().map(|meter| meter()).unwrap_or_default()
    }
}

/// The loaded models by name.
pub type Models = BTreeMap<String, Arc<Model>>;

/// A model's configuration.
pub trait ModelConfig: Configured + Debug + Send + Sync {
    /// Reports missing files, and invalid values, besides those outside of the ranges of their fields.
    fn validate(&self, _: &mut Check<'_>) {}
    /// The model's capabilities.
    fn capabilities(&self) -> &'static [Capability];
    /// Its effective settings, in one line.
    fn explain(&self) -> String {
        self.effective()
    }
    /// Whether it computes in this process. If so, the processes of a cluster share its work.
    fn computes_here(&self) -> bool {
        true
    }
    /// Whether its replies can have a form that a caller gives ([`Sampling::format`](crate::language::Sampling)).
    fn takes_formats(&self) -> bool {
        false
    }
    /// The file of its query adapter, if it has one.
    fn adapter(&self) -> Option<&FilePath> {
        None
    }
    /// Loads it and starts its service; its name is the context's id. The load may wait, for example for
    /// a server; a reload can cancel it.
    fn load<'a>(&'a self, context: &'a ComponentContext) -> BuildFuture<'a, Model>;
}
