//! Why a pipeline cannot run.

use crate::backup::BackupError;
use crate::cluster::connect::ConnectError;
use crate::component::{BuildError, IndexError};
use crate::connector::ConnectorError;
use crate::database::DatabaseError;
use crate::durable::StoreError;
use crate::panics::Panicked;
use crate::state::StateError;

/// Why a pipeline cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The state directory cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// The store of conversations and checkpoints cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The inference cache cannot be used.
    #[error(transparent)]
    InferenceCache(#[from] DatabaseError),
    /// The connections to the other processes of the cluster cannot be used.
    #[error("cannot use the connections to the other processes: {source}")]
    Links {
        /// The operating system's error.
        source: std::io::Error,
    },
    /// A component could not be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The epoch counter cannot be read or written.
    #[error(transparent)]
    Epochs(#[from] IndexError),
    /// An index could not be restored from the backup.
    #[error(transparent)]
    Backup(#[from] BackupError),
    /// The cluster could not be formed.
    #[error(transparent)]
    Cluster(#[from] ConnectError),
    /// An operator cannot be used in a cluster.
    #[error(
        "node `{node}`: `{kind}` cannot be used in a cluster yet: it reads the whole index of the corpus `{corpus}`, of which each process has a part"
    )]
    Divided {
        /// The node.
        node: String,
        /// The operator's kind.
        kind: &'static str,
        /// The corpus.
        corpus: String,
    },
    /// A source failed.
    #[error("{name}: {source}")]
    Source {
        /// The node or corpus.
        name: String,
        /// Why.
        source: ConnectorError,
    },
    /// The first epoch of a corpus could not be published.
    #[error("corpus `{corpus}` cannot be published: {reason}")]
    Publish {
        /// The corpus.
        corpus: String,
        /// Why.
        reason: String,
    },
    /// A reload gives a sink the file of another one.
    #[error(
        "node `{sink}`: its new file is written by the node `{other}`: first give `{other}` its new file, reload, and \
         then give its former file to `{sink}`"
    )]
    FileOfAnother {
        /// The sink.
        sink: String,
        /// The sink that writes the file.
        other: String,
    },
    /// A reload could not be carried out in all processes of a cluster.
    #[error("the reload failed in a part of the cluster: {reason}")]
    Reload {
        /// Why.
        reason: String,
    },
    /// The first process of a cluster does not say how it reads its sources.
    #[error("cannot read a part of the sources: process 0: {reason}")]
    Sources {
        /// Why.
        reason: String,
    },
    /// A thread could not be created.
    #[error("cannot start {what}: {reason}")]
    Thread {
        /// The thread.
        what: &'static str,
        /// The operating system's error.
        reason: String,
    },
    /// A worker panicked.
    #[error("a worker ended early: {0}")]
    Worker(String),
    /// Another part of the engine panicked.
    #[error("{what} {source}")]
    Panicked {
        /// The part.
        what: &'static str,
        /// The panic.
        source: Panicked,
    },
}

impl RunError {
    /// Whether the start was given up because it was told to (`Options::is_cancelled`).
    pub fn is_cancelled(&self) -> bool {
        match self {
            Self::Cluster(ConnectError::Cancelled) | Self::Build(BuildError::Cancelled { .. }) => true,
            Self::Build(BuildError::Connector { source, .. }) => matches!(source, ConnectorError::Stopped(_)),
            _ => false,
        }
    }
}
