//! Configurations of sources and sinks. [`crate::connector`] has the traits of what they build.

use crate::component::config;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};

use super::{BuildError, Check, ComponentContext, Configured, Model, ModelUse, Models, Operator};
use crate::connector::{AnswerSink, ConnectorError, CorpusSource, TurnSource};

/// A connector that is being built.
pub type Building<'a, T> = BoxFuture<'a, Result<Box<T>, ConnectorError>>;

/// A model or an operator that is being built.
pub type BuildFuture<'a, T> = BoxFuture<'a, Result<T, BuildError>>;

/// Loads a model whose load waits for nothing.
pub fn loaded_at_once<'a>(load: impl FnOnce() -> Result<Model, BuildError>) -> BuildFuture<'a, Model> {
    ready(load()).boxed()
}

/// Builds an operator whose build waits for nothing.
pub fn built_at_once<'a>(
    build: impl FnOnce() -> Result<Arc<dyn Operator>, BuildError>,
) -> BuildFuture<'a, Arc<dyn Operator>> {
    ready(build()).boxed()
}

/// Wraps a connector that is ready immediately.
pub fn built<'a, T: ?Sized + Send + 'a>(connector: Result<Box<T>, ConnectorError>) -> Building<'a, T> {
    ready(connector).boxed()
}

/// A corpus source's configuration.
pub trait CorpusSourceConfig: Configured + Debug + Send + Sync {
    /// Reports invalid values, besides those outside of the ranges of their fields.
    fn validate(&self, _: &mut Check<'_>) {}
    /// Its effective settings, in one line.
    fn explain(&self) -> String {
        self.effective()
    }
    /// Whether it reads the file at this absolute path, or would read it if the file existed.
    fn reads(&self, _file: &Path) -> bool {
        false
    }
    /// Whether each corpus has documents of its own. Otherwise, corpora with the same settings have the same documents.
    fn is_of_one_corpus(&self) -> bool {
        false
    }
    /// The models it uses. [`ComponentContext::model`] has them when it is built, without an optional one that could not be
    /// loaded.
    fn models(&self) -> Vec<ModelUse<'_>> {
        Vec::new()
    }
    /// Builds the source. May wait for a server; put everything that can be retried later into `run`.
    fn build(&self, context: &ComponentContext) -> Building<'_, dyn CorpusSource>;
}

/// A turn source's configuration.
pub trait TurnSourceConfig: Configured + Debug + Send + Sync {
    /// Reports invalid values, besides those outside of the ranges of their fields.
    fn validate(&self, _: &mut Check<'_>) {}
    /// Its effective settings, in one line.
    fn explain(&self) -> String {
        self.effective()
    }
    /// The file that it reads. No sink may write to it.
    fn file(&self) -> Option<&Path> {
        None
    }
    /// Whether a program supplies its turns, so that it has a [`TurnQueue`](crate::connector::TurnQueue).
    fn is_queue(&self) -> bool {
        false
    }
    /// Whether several processes of a cluster may read it together, each the partitions that [`ComponentContext::share`] has.
    fn is_divisible(&self) -> bool {
        false
    }
    /// Builds the source. May wait for a server; put everything that can be retried later into `run`.
    fn build(&self, context: &ComponentContext) -> Building<'_, dyn TurnSource>;
}

/// Which answers of a turn a sink gets.
#[config]
#[derive(Copy, PartialEq, Eq)]
pub enum SinkMode {
    /// The first answer.
    Once,
    /// The first answer, and a revision when an epoch changes what the turn retrieves.
    Live,
}

/// A sink's configuration.
pub trait SinkConfig: Configured + Debug + Send + Sync {
    /// Reports invalid values, besides those outside of the ranges of their fields.
    fn validate(&self, _: &mut Check<'_>) {}
    /// Its effective settings, in one line.
    fn explain(&self) -> String {
        self.effective()
    }
    /// Whether it gets revisions. `None`: as the pipeline's mode says.
    fn mode(&self) -> Option<SinkMode> {
        None
    }
    /// The file that it appends to. Only one run, and only one sink of that run, may write to it.
    fn file(&self) -> Option<&Path> {
        None
    }
    /// Another file that it will write, if it writes more than [`SinkConfig::file`]. No corpus may read it.
    fn another_file(&self) -> Option<PathBuf> {
        None
    }
    /// Whether several processes of a cluster may write to it at the same time, as to a broker. It has no
    /// [`KeptAnswers`](crate::connector::KeptAnswers) then.
    fn is_shared(&self) -> bool {
        false
    }
    /// Whether it gets answers of callers, too: the first answer to each question, unless the caller has changed the
    /// pipeline for it. It gets them once at most, and no caller waits for it.
    fn takes_callers(&self) -> bool {
        false
    }
    /// The models it uses.
    fn models(&self) -> Vec<ModelUse<'_>> {
        Vec::new()
    }
    /// Opens the sink. May wait for a server. `models` has those of [`SinkConfig::models`], unless an optional one could
    /// not be loaded.
    fn build<'a>(&'a self, context: &'a ComponentContext, models: &'a Models) -> Building<'a, dyn AnswerSink>;
}
