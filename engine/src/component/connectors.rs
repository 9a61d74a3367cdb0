//! Configurations of sources and sinks; what they build is in [`crate::connector`].

use std::fmt::Debug;
use std::path::Path;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};

use super::{Check, ComponentContext};
use crate::connector::{AnswerSink, ConnectorError, CorpusSource, TurnSource};

/// A connector that is being built.
pub type Building<'a, T> = BoxFuture<'a, Result<Box<T>, ConnectorError>>;

/// For a connector that is built at once.
pub fn built<'a, T: ?Sized + Send + 'a>(connector: Result<Box<T>, ConnectorError>) -> Building<'a, T> {
    ready(connector).boxed()
}

/// A corpus source's configuration.
pub trait CorpusSourceConfig: Debug + Send + Sync {
    /// Reports values that cannot be.
    fn validate(&self, _: &mut Check<'_>) {}
    /// Its effective settings, in a line.
    fn explain(&self) -> String;
    /// Whether the file at this absolute path is, or would be, a part of what it reads.
    fn reads(&self, _file: &Path) -> bool {
        false
    }
    /// Builds the source. May wait for a server; what can be tried again later belongs into `run`.
    fn build(&self, context: &ComponentContext) -> Building<'_, dyn CorpusSource>;
}

/// A turn source's configuration.
pub trait TurnSourceConfig: Debug + Send + Sync {
    /// Reports values that cannot be.
    fn validate(&self, _: &mut Check<'_>) {}
    /// Its effective settings, in a line.
    fn explain(&self) -> String;
    /// The file that it reads, which no sink may write.
    fn file(&self) -> Option<&Path> {
        None
    }
    /// Builds the source. May wait for a server; what can be tried again later belongs into `run`.
    fn build(&self, context: &ComponentContext) -> Building<'_, dyn TurnSource>;
}

/// Which answers a sink gets of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
pub enum SinkMode {
    /// The first.
    Once,
    /// The first, and those that take its place when an epoch changes what the turn retrieves.
    Live,
}

/// A sink's configuration.
pub trait SinkConfig: Debug + Send + Sync {
    /// Reports values that cannot be.
    fn validate(&self, _: &mut Check<'_>) {}
    /// Its effective settings, in a line.
    fn explain(&self) -> String;
    /// Whether it gets revisions; as the pipeline says, if it does not.
    fn mode(&self) -> Option<SinkMode> {
        None
    }
    /// The file that it appends to. One run writes it, and one sink of that run.
    fn file(&self) -> Option<&Path> {
        None
    }
    /// Opens the sink. May wait for a server.
    fn build(&self, context: &ComponentContext) -> Building<'_, dyn AnswerSink>;
}
