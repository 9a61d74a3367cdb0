//! Why something could not be built, an operator gave nothing, or an index cannot be used.

use std::path::PathBuf;

use super::Capability;
use crate::connector::ConnectorError;
use crate::inference::InferenceError;
use crate::panics::Panicked;

/// An error of a component's own, for which the engine has no variant.
#[derive(Debug)]
pub struct ComponentError {
    source: Box<dyn std::error::Error + Send + Sync>,
    is_transient: bool,
}

impl ComponentError {
    /// One that the same call would meet again.
    pub fn new(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self { source: source.into(), is_transient: false }
    }

    /// One that may pass: the call is tried again, as the pipeline's `retries` say.
    pub fn transient(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self { source: source.into(), is_transient: true }
    }

    /// Whether the same call may succeed later.
    pub fn is_transient(&self) -> bool {
        self.is_transient
    }
}

impl std::fmt::Display for ComponentError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.source.fmt(f)
    }
}

impl std::error::Error for ComponentError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.source()
    }
}

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
    /// An error of the component's own.
    #[error("`{component}`: {source}")]
    Component {
        /// The node, or what else is built.
        component: String,
        /// What the component says.
        source: ComponentError,
    },
    /// A model lacks what is asked of it. `check` finds this earlier.
    #[error("`{by}` needs a model that can {}, and `{model}` cannot", capability.verb())]
    Capability {
        /// Who asks.
        by: String,
        /// The model.
        model: String,
        /// What it lacks.
        capability: Capability,
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
    /// An error of the operator's own.
    #[error(transparent)]
    Component(#[from] ComponentError),
    /// An input carried another type than planned: a fault of the engine.
    #[error("an input carried {0}")]
    Port(&'static str),
}

impl OperatorError {
    /// Whether the same call may succeed later.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Inference(error) | Self::Index(IndexError::Inference(error)) => error.is_transient(),
            Self::Component(error) | Self::Index(IndexError::Component(error)) => error.is_transient(),
            _ => false,
        }
    }
}

/// Why an index cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// What was to become its content is not there any more: the reload was given up.
    #[error("the corpus's new chunks have been dropped")]
    Feed,
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
    /// An error of the index's own.
    #[error(transparent)]
    Component(#[from] ComponentError),
    /// The index's code panicked.
    #[error(transparent)]
    Panicked(#[from] Panicked),
}
