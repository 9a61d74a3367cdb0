//! Errors of components: of building them, of operator calls and of indexes.

use std::path::PathBuf;
use std::time::Duration;

use super::Capability;
use crate::connector::ConnectorError;
use crate::inference::InferenceError;
use crate::panics::Panicked;

/// An error specific to a component, for which the engine has no variant.
#[derive(Debug)]
pub struct ComponentError {
    source: Box<dyn std::error::Error + Send + Sync>,
    is_transient: bool,
}

impl ComponentError {
    /// A permanent error: the same call would fail again.
    pub fn new(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self { source: source.into(), is_transient: false }
    }

    /// A transient error: the call is retried, as the pipeline's `retries` say.
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
    #[error("{of} `{name}`: {source}")]
    Connector {
        /// `node` or `corpus`.
        of: &'static str,
        /// Its name.
        name: String,
        /// Why.
        source: ConnectorError,
    },
    /// A model or an operator panicked while it was built.
    #[error("{of} `{name}` {source}")]
    Panicked {
        /// `model` or `node`.
        of: &'static str,
        /// Its name.
        name: String,
        /// The panic.
        source: Panicked,
    },
    /// A start or a reload was cancelled during the build.
    #[error("the build of {of} `{name}` was cancelled")]
    Cancelled {
        /// `model`, `node`, `index` or `pipeline`.
        of: &'static str,
        /// Its name.
        name: String,
    },
    /// A file that an operator reads at start cannot be used. `check` finds this earlier.
    #[error("cannot use `{}`: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// An error specific to the component.
    #[error("`{component}`: {source}")]
    Component {
        /// The node, model or other component.
        component: String,
        /// The component's error.
        source: ComponentError,
    },
    /// A model lacks a capability. `check` finds this earlier.
    #[error("`{by}` needs a model that can {}, but `{model}` cannot", capability.verb())]
    Capability {
        /// The component that needs it.
        by: String,
        /// The model.
        model: String,
        /// The capability.
        capability: Capability,
    },
}

/// Why an operator failed on a turn.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// A model call failed.
    #[error(transparent)]
    Inference(#[from] InferenceError),
    /// An optional model that it needs could not be loaded.
    #[error("model `{model}` is not loaded: {reason}")]
    NoModel {
        /// Its name.
        model: String,
        /// Why.
        reason: String,
    },
    /// `FromTurn`, and the turn has no `collection`.
    #[error("the turn has no `collection`, which this retriever needs")]
    NoCollection,
    /// `FromTurn`, and there is no such corpus.
    #[error("unknown corpus `{name}`; available: {known}")]
    UnknownCorpus {
        /// The turn's collection.
        name: String,
        /// The existing corpora.
        known: String,
    },
    /// The corpus lacks the index: a bug in the engine.
    #[error("the corpus has no index `{0}`")]
    NoIndex(String),
    /// The operator needs the whole index, and other processes have parts of it.
    #[error("it cannot be used in a cluster: each process has only a part of the index `{0}`")]
    Divided(String),
    /// An index could not be read.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// An error specific to the operator.
    #[error(transparent)]
    Component(#[from] ComponentError),
    /// An input has another type than planned: a bug in the engine.
    #[error("an input has {0}")]
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
    /// The chunks for it were dropped because the reload was aborted.
    #[error("the new chunks of the corpus were dropped")]
    Feed,
    /// A file or directory cannot be used.
    #[error("cannot {action} `{path}`: {source}")]
    Io {
        /// The action that failed, as a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The underlying store failed.
    #[error("{store} cannot {action}: {reason}")]
    Store {
        /// The store: Tantivy or Lance.
        store: &'static str,
        /// The action that failed, as a verb.
        action: &'static str,
        /// Its error.
        reason: String,
    },
    /// A model call failed.
    #[error(transparent)]
    Inference(#[from] InferenceError),
    /// An error specific to the index.
    #[error(transparent)]
    Component(#[from] ComponentError),
    /// The index's code panicked.
    #[error(transparent)]
    Panicked(#[from] Panicked),
}

impl IndexError {
    /// Whether the passages are not to blame: a model's server is away.
    pub fn is_outage(&self) -> bool {
        matches!(self, Self::Inference(error) if error.is_outage())
    }

    /// Whether it is what a server has answered.
    pub fn is_of_a_server(&self) -> bool {
        matches!(self, Self::Inference(InferenceError::Server { .. }))
    }

    /// Whether a server has not answered in time.
    pub fn is_silence(&self) -> bool {
        matches!(self, Self::Inference(InferenceError::TimedOut { .. }))
    }

    /// Whether it is an outage that the input may have caused: a server has answered that it failed.
    pub fn may_be_of_the_input(&self) -> bool {
        matches!(self, Self::Inference(error) if error.may_be_of_the_input())
    }

    /// The pause that a server asks for.
    pub fn after(&self) -> Option<Duration> {
        match self {
            Self::Inference(error) => error.after(),
            _ => None,
        }
    }
}
