//! What the engine passes to a component that it builds.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::measured::Measured;
use super::{Model, Models};
use crate::append::sync_directory;
use crate::cluster::Share;
use crate::metrics::{Counter, Gauge, Metrics};
use crate::state::file_name;

/// A component's access to the engine. Cheap to clone; a component may keep it.
#[derive(Clone, Debug)]
pub struct ComponentContext {
    id: Arc<str>,
    runtime: Handle,
    shutdown: CancellationToken,
    metrics: Metrics,
    state: Option<Arc<Path>>,
    run: u64,
    share: Share,
    models: Used,
}

/// The models that a component uses.
#[derive(Clone, Default)]
struct Used(Arc<Models>);

impl fmt::Debug for Used {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// The number of a new run.
pub(crate) fn new_run() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl ComponentContext {
    /// For the component with this id: a node's id, a model's or a corpus's name. `state` is the
    /// directory for components' files, if the run has a state directory.
    pub fn new(
        id: &str,
        runtime: Handle,
        shutdown: CancellationToken,
        metrics: Metrics,
        state: Option<PathBuf>,
    ) -> Self {
        Self {
            id: id.into(),
            runtime,
            shutdown,
            metrics,
            state: state.map(Into::into),
            run: new_run(),
            share: Share::WHOLE,
            models: Used::default(),
        }
    }

    /// For a component of this run.
    pub(crate) fn of_run(self, run: u64) -> Self {
        Self { run, ..self }
    }

    /// For a source of which this process reads a part.
    pub(crate) fn sharing(self, share: Share) -> Self {
        Self { share, ..self }
    }

    /// For a source that uses models.
    pub(crate) fn using(self, models: Models) -> Self {
        Self { models: Used(Arc::new(models)), ..self }
    }

    /// A model that a source of documents uses.
    pub fn model(&self, name: &str) -> Option<&Arc<Model>> {
        self.models.0.get(name)
    }

    /// For a component that is used without an engine: it has no state directory, and its metrics are
    /// not shared.
    pub fn alone(id: &str, runtime: Handle) -> Self {
        Self::new(id, runtime, CancellationToken::new(), Metrics::default(), None)
    }

    /// The component's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The number of the run. All components of an engine have the same number, before and after a
    /// reload. Each other engine in the process has another number.
    pub fn run(&self) -> u64 {
        self.run
    }

    /// What this process reads of a source that says [`TurnSourceConfig::is_divisible`](super::TurnSourceConfig::is_divisible).
    pub fn share(&self) -> Share {
        self.share
    }

    /// The engine's tokio runtime, for the component's own tasks. A task must end when
    /// [`ComponentContext::shutdown`] is cancelled.
    pub fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// This token is cancelled when the engine has ended: after its sources and sinks. A source ends by
    /// [`TurnOutput::stop`](crate::connector::TurnOutput::stop).
    pub fn shutdown(&self) -> &CancellationToken {
        &self.shutdown
    }

    /// A counter of this component: `turnflow_NAME_total{component="ID"}`.
    pub fn counter(&self, name: &str, help: &str) -> Counter {
        self.metrics.counter(&self.id, name, help)
    }

    /// A gauge of this component: `turnflow_NAME{component="ID"}`.
    pub fn gauge(&self, name: &str, help: &str) -> Gauge {
        self.metrics.gauge(&self.id, name, help)
    }

    /// Says why the component cannot reach its server, or that it can. The status, `/readyz` and answers tell.
    pub fn set_away(&self, reason: Option<String>) {
        self.metrics.set_away(&self.id, reason);
    }

    /// Where the component keeps a line of what it has measured, which `turnflow explain` shows as long as the
    /// component's own explanation contains these settings.
    pub fn measured(&self, settings: &str) -> Measured {
        // Without its directory, a component only measures.
        Measured::new(self.state_directory().ok().flatten(), settings)
    }

    /// The component's own directory, which outlives the process; creates it if it does not exist.
    /// `None` if the run has no state directory.
    ///
    /// # Errors
    ///
    /// The directory cannot be created, or its name cannot be written to the disk.
    pub fn state_directory(&self) -> io::Result<Option<PathBuf>> {
        let Some(state) = &self.state else { return Ok(None) };
        let directory = state.join(file_name(&self.id));
        std::fs::create_dir_all(&directory)?;
        // The names of both directories must survive a power loss, since a component may promise that its
        // files do.
        sync_directory(state)?;
        if let Some(above) = state.parent().filter(|above| !above.as_os_str().is_empty()) {
            sync_directory(above)?;
        }
        Ok(Some(directory))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_component_has_a_directory_of_its_own_below_the_state() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let state = tempfile::tempdir().unwrap();
        let of = |id: &str, state: Option<PathBuf>| {
            let shutdown = CancellationToken::new();
            ComponentContext::new(id, runtime.handle().clone(), shutdown, Metrics::default(), state)
        };
        let below = |id: &str| of(id, Some(state.path().to_owned())).state_directory().unwrap().unwrap();
        let (one, other) = (below("a"), below("../a"));
        assert!(one.is_dir() && other.is_dir() && one != other);
        assert!(one.parent() == Some(state.path()) && other.parent() == Some(state.path()));
        assert_eq!(of("a", None).state_directory().unwrap(), None);
        let (of_one, of_other) = (of("a", None), of("a", None));
        assert_ne!(of_one.run(), of_other.run());
        assert_eq!(of_other.of_run(of_one.run()).run(), of_one.run());
    }
}
