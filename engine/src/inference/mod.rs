//! The interface to models: traits for their capabilities, and the service that batches their calls.
//!
//! # Models of a pipeline
//!
//! **Capabilities.** A model's kind declares its capabilities (`engine/src/component/model.rs`): vectors, a vector per
//! token, weighted terms, word vectors, scores of pairs, text, likelihoods, tokens. An operator's configuration names
//! each model it uses with the capability it needs, so `check` finds a mismatch. A loaded model has one trait object
//! per capability. The traits are in `engine/src/inference/mod.rs` and, for prompts, generation and likelihoods, in
//! `engine/src/language.rs`.
//!
//! **Optional models.** A run goes on without an optional model that cannot be loaded (`engine/src/run/lacking.rs`). A
//! node that needs it is replaced by one whose calls fail, so a `Fallback` takes another input. Its indexes are not
//! opened, and so they are neither served nor changed; when they are opened again, they are compared with the corpus as
//! at any start. `engine/src/plan/without.rs` computes which nodes fail. A reload loads the model if it was lacking and
//! its files are there.
//!
//! **Thoughts.** What operators get of a language model is `Spoken` (`engine/src/language/spoken.rs`): its texts
//! without thoughts (`language/thoughts.rs`), and an error if nothing is left. It is outside the cache, so stored texts
//! are treated alike.
//!
//! **Inference cache.** At the start, each model is wrapped so that its outputs for turns are cached
//! (`engine/src/cache/`). The key is a hash of the model's fingerprint, the capability and the whole input, including
//! the sampling settings; the value is the output. The cache is a redb file in the state directory. Its own thread
//! writes it a few times a second, and a crash loses only what was not yet written. Replaying a log over the same
//! documents calls no model. Outputs for corpora are not cached there, because indexes store them by content.
//!
//! **Tokens.** A call of a node counts the tokens of the texts that models give in it (`tokens.rs`): for the usage of a
//! turn, for spans, and for the metrics of each model. Those of the inference cache are told apart.

pub mod patience;
mod pictures;
mod service;
pub mod tokens;

pub use pictures::{Picture, PictureLine, PictureReader};
pub use service::{Backend, Limits, Service};

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::mapped::Values;

/// Why a model call failed.
#[derive(Clone, Debug, thiserror::Error, Serialize, Deserialize)]
pub enum InferenceError {
    /// A file of the model does not exist or cannot be read.
    #[error("cannot read `{path}`: {reason}")]
    File {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        reason: String,
    },
    /// The runtime library cannot be used.
    #[error("ONNX Runtime: {0}")]
    Runtime(String),
    /// The configured device is not available.
    #[error("device {device}: {reason}")]
    Device {
        /// As configured.
        device: String,
        /// Why not.
        reason: String,
    },
    /// The model does not match its configuration.
    #[error("the model {0}")]
    Shape(String),
    /// The tokenizer failed.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// The model failed on this input.
    #[error("inference failed: {0}")]
    Failed(String),
    /// The device has too little free memory for this batch. A smaller one may fit.
    #[error("the device has too little memory: {0}")]
    Memory(String),
    /// The fixed parts of a prompt alone exceed the model's limit.
    #[error("the prompt has {tokens} tokens without its passages, but the model's limit is {limit}")]
    TooLong {
        /// Tokens of the parts that must not be cut.
        tokens: usize,
        /// Maximum tokens of a prompt.
        limit: usize,
    },
    /// No reply of the model can have the form that is asked for.
    #[error("{0}")]
    Form(String),
    /// A language model replied without a text.
    #[error("the model gave no text: {0}")]
    NoText(String),
    /// A model server did not answer in time.
    #[error("{url} did not respond within {seconds} s")]
    TimedOut {
        /// The server.
        url: String,
        /// The timeout.
        seconds: f64,
        /// A later call may succeed, and the call has not been retried yet.
        transient: bool,
    },
    /// A model server refused or failed.
    #[error("{url}: {reason}")]
    Server {
        /// The server.
        url: String,
        /// The HTTP status, if there was a response.
        status: Option<u16>,
        /// The error message, shortened.
        reason: String,
        /// A later call may succeed, and the call has not been retried yet.
        transient: bool,
        /// The server is away, overloaded, or refuses the caller: whatever the input, a call may succeed when that is over.
        outage: bool,
        /// The pause that the server asks for.
        after: Option<Duration>,
    },
    /// The service has stopped.
    #[error("the inference service of `{0}` has stopped")]
    Ended(String),
}

impl InferenceError {
    /// Whether the same call may succeed later. False if the back end has already retried, or if the
    /// model, its files or the input cause the error.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Failed(_) | Self::Memory(_) | Self::Ended(_) => true,
            Self::TimedOut { transient, .. } | Self::Server { transient, .. } => *transient,
            Self::File { .. }
            | Self::Runtime(_)
            | Self::Device { .. }
            | Self::Shape(_)
            | Self::Tokenizer(_)
            | Self::NoText(_)
            | Self::Form(_)
            | Self::TooLong { .. } => false,
        }
    }
}

impl InferenceError {
    /// Whether the input is not to blame: the same call may succeed when a server is back.
    pub fn is_outage(&self) -> bool {
        matches!(self, Self::TimedOut { .. } | Self::Server { outage: true, .. })
    }

    /// Whether a server has answered that it failed on this input, or may have: others may succeed.
    pub fn may_be_of_the_input(&self) -> bool {
        matches!(self, Self::Server { outage: true, status: Some(500 | 501 | 505..=599), .. })
    }

    /// The pause that a server asks for.
    pub fn after(&self) -> Option<Duration> {
        match self {
            Self::Server { after, .. } => *after,
            _ => None,
        }
    }
}

/// The role of a text, for models that mark it with a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Role {
    /// A search query.
    Query,
    /// A passage to be searched.
    Passage,
}

/// The priority of a model call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// A turn waits for the result.
    Turn,
    /// The corpus waits for the result.
    Corpus,
}

/// A vector of shape `[dimension]`; clones share it.
pub type Vector = Values<f32>;

/// Embeds texts as vectors.
pub trait Embedder: Send + Sync {
    /// Length of every vector.
    fn dimension(&self) -> usize;
    /// Whether a server computes them, which may not answer for long.
    fn is_remote(&self) -> bool {
        false
    }
    /// One vector per text, in order. The tokenizer truncates texts at the model's maximum length.
    fn embed(
        &self,
        texts: Vec<String>,
        role: Role,
        priority: Priority,
    ) -> BoxFuture<'static, Result<Vec<Vector>, InferenceError>>;
}

/// The token vectors of a text: shape `[tokens, dimension]`, in row-major order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenVectors {
    /// Length of a row.
    pub dimension: usize,
    /// The rows, concatenated.
    pub values: Vector,
}

impl TokenVectors {
    /// The rows, one per token.
    pub fn rows(&self) -> std::slice::ChunksExact<'_, f32> {
        self.values.chunks_exact(self.dimension.max(1))
    }
}

/// Embeds texts with one vector per token, for late interaction (Khattab and Zaharia 2020).
pub trait TokenEmbedder: Send + Sync {
    /// Length of every token vector.
    fn dimension(&self) -> usize;
    /// Token vectors of each text, in order, normalised to length 1. Special tokens are dropped from
    /// passages and kept in queries.
    fn embed_tokens(
        &self,
        texts: Vec<String>,
        role: Role,
        priority: Priority,
    ) -> BoxFuture<'static, Result<Vec<TokenVectors>, InferenceError>>;
}

/// Weighted terms of a vocabulary, sorted by term; weights are above 0.
pub type SparseVector = Arc<[(u32, f32)]>;

/// Embeds texts as weighted terms, for learned sparse retrieval (Formal et al. 2021).
pub trait SparseEmbedder: Send + Sync {
    /// One sparse vector per text, in order.
    fn embed_sparse(
        &self,
        texts: Vec<String>,
        role: Role,
        priority: Priority,
    ) -> BoxFuture<'static, Result<Vec<SparseVector>, InferenceError>>;
}

/// Looks up word vectors.
pub trait WordVectors: Send + Sync {
    /// Length of every vector.
    fn dimension(&self) -> usize;
    /// The place of a lower-case word's vector, if there is one.
    fn place(&self, word: &str) -> Option<u32>;
    /// The vector at such a place.
    fn vector(&self, place: u32) -> &[f32];
}

/// Scores pairs of texts: a cross-encoder or a classifier of pairs.
pub trait PairScorer: Send + Sync {
    /// Number of scores per pair: 1 for a cross-encoder, one per class for a classifier.
    fn classes(&self) -> usize;
    /// The raw outputs (logits) of (`first`, each of `seconds`), in order; each of length
    /// [`PairScorer::classes`].
    fn score(
        &self,
        first: String,
        seconds: Vec<String>,
        priority: Priority,
    ) -> BoxFuture<'static, Result<Vec<Vec<f32>>, InferenceError>>;
}

/// Scores rows of features, such as boosted trees.
pub trait RowScorer: Send + Sync {
    /// The names of the features, in the order of a row's values.
    fn columns(&self) -> &[String];
    /// One score per row; higher is better. `rows` has the shape `[rows, columns]`, in row-major order; a missing value
    /// is NaN.
    fn score(&self, rows: Vec<f32>, priority: Priority) -> BoxFuture<'static, Result<Vec<f32>, InferenceError>>;
}

/// Splits texts into tokens.
pub trait Tokenize: Send + Sync {
    /// The byte range of each token, without special tokens.
    fn offsets(&self, text: &str) -> Result<Vec<(usize, usize)>, InferenceError>;
}

/// Counters of a model's work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Inputs processed.
    pub inputs: u64,
    /// Batches processed.
    pub batches: u64,
    /// Tokens processed, without padding.
    pub tokens: u64,
    /// Tokens processed, with padding.
    pub padded: u64,
    /// Microseconds the model was busy.
    pub busy_us: u64,
}
