//! Models as the engine sees them: what they do, as traits; and the service that batches
//! their calls.

mod service;

pub use service::{Backend, Limits, Service};

use std::path::PathBuf;
use std::sync::Arc;

use futures::future::BoxFuture;

/// Why a model gave nothing.
#[derive(Clone, Debug, thiserror::Error)]
pub enum InferenceError {
    /// A file of the model is not there or cannot be read.
    #[error("cannot read `{path}`: {reason}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        reason: String,
    },
    /// The runtime library cannot be used.
    #[error("ONNX Runtime: {0}")]
    Runtime(String),
    /// The device that the configuration asks for is not there.
    #[error("device {device}: {reason}")]
    Device {
        /// As configured.
        device: String,
        /// Why not.
        reason: String,
    },
    /// The model is not what its configuration says.
    #[error("the model {0}")]
    Shape(String),
    /// The tokenizer failed.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// The model failed on this input.
    #[error("inference failed: {0}")]
    Failed(String),
    /// A prompt whose fixed parts alone are longer than the model takes.
    #[error("the prompt has {tokens} tokens without its passages, and the model takes {limit}")]
    TooLong {
        /// Tokens of what must not be cut.
        tokens: usize,
        /// What there is room for.
        limit: usize,
    },
    /// A model server did not answer in time.
    #[error("{url} gave no answer within {seconds} s")]
    TimedOut {
        /// The server.
        url: String,
        /// How long was waited.
        seconds: f64,
        /// It may answer another time, and has not been asked again yet.
        transient: bool,
    },
    /// A model server refused or failed.
    #[error("{url}: {reason}")]
    Server {
        /// The server.
        url: String,
        /// The HTTP status, if there was an answer at all.
        status: Option<u16>,
        /// What it said, shortened.
        reason: String,
        /// It may do better another time, and has not been asked again yet.
        transient: bool,
    },
    /// The service has ended.
    #[error("the inference service of `{0}` has ended")]
    Ended(String),
}

impl InferenceError {
    /// Whether the same call may succeed later. Not so where the back end has tried again
    /// itself, and where the model, its files or the input are at fault.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Failed(_) | Self::Ended(_) => true,
            Self::TimedOut { transient, .. } | Self::Server { transient, .. } => *transient,
            Self::File { .. }
            | Self::Runtime(_)
            | Self::Device { .. }
            | Self::Shape(_)
            | Self::Tokenizer(_)
            | Self::TooLong { .. } => false,
        }
    }
}

/// What a text is to the model, for those that are told by a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// What is looked for.
    Query,
    /// What is looked through.
    Passage,
}

/// Who waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// A turn.
    Turn,
    /// The corpus.
    Corpus,
}

/// A vector: shape `[dimension]`, shared by all who hold it.
pub type Vector = Arc<[f32]>;

/// Texts to vectors.
pub trait Embedder: Send + Sync {
    /// Length of every vector.
    fn dimension(&self) -> usize;
    /// One vector a text, in order. Texts past the model's length are cut by its tokenizer.
    fn embed(
        &self,
        texts: Vec<String>,
        role: Role,
        priority: Priority,
    ) -> BoxFuture<'static, Result<Vec<Vector>, InferenceError>>;
}

/// The token vectors of a text: shape `[tokens, dimension]`, row by row.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenVectors {
    /// Length of a row.
    pub dimension: usize,
    /// The rows, one after another.
    pub values: Vector,
}

impl TokenVectors {
    /// One vector a token.
    pub fn rows(&self) -> std::slice::ChunksExact<'_, f32> {
        self.values.chunks_exact(self.dimension.max(1))
    }
}

/// Texts to one vector a token, for late interaction (Khattab and Zaharia 2020).
pub trait TokenEmbedder: Send + Sync {
    /// Length of every token's vector.
    fn dimension(&self) -> usize;
    /// Token vectors of length 1, one text after the other. Special tokens are left out of
    /// passages and kept in queries.
    fn embed_tokens(
        &self,
        texts: Vec<String>,
        role: Role,
        priority: Priority,
    ) -> BoxFuture<'static, Result<Vec<TokenVectors>, InferenceError>>;
}

/// Weighted terms of a vocabulary, by ascending term; weights are above 0.
pub type SparseVector = Arc<[(u32, f32)]>;

/// Texts to weighted terms, for learned sparse retrieval (Formal et al. 2021).
pub trait SparseEmbedder: Send + Sync {
    /// One sparse vector a text, in order.
    fn embed_sparse(
        &self,
        texts: Vec<String>,
        role: Role,
        priority: Priority,
    ) -> BoxFuture<'static, Result<Vec<SparseVector>, InferenceError>>;
}

/// Vectors of words.
pub trait WordVectors: Send + Sync {
    /// Length of every vector.
    fn dimension(&self) -> usize;
    /// The vector of a word in lower case, if it has one.
    fn word(&self, word: &str) -> Option<&[f32]>;
}

/// Pairs of texts to scores: a cross-encoder or a classifier of pairs.
pub trait PairScorer: Send + Sync {
    /// How many scores a pair has: 1 for a cross-encoder, a class each for a classifier.
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

/// Texts to tokens.
pub trait Tokenize: Send + Sync {
    /// The byte range of each token, special tokens left out.
    fn offsets(&self, text: &str) -> Result<Vec<(usize, usize)>, InferenceError>;
}

/// Counters of a model's work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Inputs run.
    pub inputs: u64,
    /// Batches run.
    pub batches: u64,
    /// Tokens run, padding left out.
    pub tokens: u64,
    /// Tokens run, padding included.
    pub padded: u64,
    /// Microseconds the model was busy.
    pub busy_us: u64,
}
