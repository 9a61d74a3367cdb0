//! Models: what they can do, how operators ask for it, and what is loaded.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use super::{BuildError, Check};
use crate::inference::{Embedder, PairScorer, SparseEmbedder, TokenEmbedder, Tokenize, Usage, WordVectors};
use crate::language::{Generator, Likelihood};

/// What a model can do for an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
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

impl Capability {
    /// As in "a model that can …".
    pub fn verb(self) -> &'static str {
        match self {
            Capability::Embed => "turn text into vectors",
            Capability::Tokenize => "cut text into tokens",
            Capability::EmbedTokens => "turn text into a vector a token",
            Capability::EmbedSparse => "turn text into weighted terms",
            Capability::Words => "give vectors of words",
            Capability::ScorePairs => "score pairs of texts",
            Capability::Generate => "generate text",
            Capability::Likelihood => "tell how likely a text is",
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
    pub capability: Capability,
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

/// A model's configuration.
pub trait ModelConfig: Debug + Send + Sync {
    /// Reports values that cannot be, missing files included.
    fn validate(&self, _: &mut Check<'_>) {}
    /// What the model can do.
    fn capabilities(&self) -> &'static [Capability];
    /// Its effective settings, in a line.
    fn explain(&self) -> String;
    /// Loads it and starts its service.
    fn load(&self, name: &str) -> Result<Model, BuildError>;
}
