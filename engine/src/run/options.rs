//! Options of a run.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use crate::activity::TurnWatcher;
use crate::backup::BackupStore;
use crate::cluster::{ClusterOptions, Shape};
use crate::component::TurnSourceConfig;
use crate::connector::Mode;
use crate::plan::{NodeKind, Plan, PlannedNode};
use crate::principal::Principals;
use crate::state::Writer;
use crate::turns::Observer;

/// Which turn sources a run reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnSources {
    /// All of them.
    All,
    /// Those that a program fills, such as `Turns`. If there are none, no sink is opened.
    Queues,
    /// None. Turns come from `Engine::submit` instead.
    None,
}

impl TurnSources {
    /// Whether a source is read.
    pub fn reads(self, source: &dyn TurnSourceConfig) -> bool {
        match self {
            Self::All => true,
            Self::Queues => source.is_queue(),
            Self::None => false,
        }
    }
}

/// Whether what is under way should be given up.
pub type IsCancelled = Arc<dyn Fn() -> bool + Send + Sync>;

/// Options of a run.
#[derive(Clone)]
pub struct Options {
    /// Number of worker threads.
    pub workers: usize,
    /// The state directory. Without one, all state is in memory and is lost at the end.
    pub state: Option<PathBuf>,
    /// The pipeline's file. If it is given, a state directory that another pipeline has written is refused.
    pub file: Option<PathBuf>,
    /// The directory of the components' own files, such as those of `Documents`. `None`: `components` in
    /// the state directory.
    pub components: Option<PathBuf>,
    /// Whether turn sources follow.
    pub turns: Mode,
    /// Whether corpus sources follow.
    pub corpora: Mode,
    /// Which of the turn sources in the file are read.
    pub sources: TurnSources,
    /// Whether the run continues when its sources have ended: callers ask until [`Engine::stop`](super::Engine::stop).
    pub stays: bool,
    /// Whether answers of the sources' turns go to the sinks in the file.
    pub sinks: bool,
    /// Whether to answer turns. If not, only the corpora are updated.
    pub answer: bool,
    /// Called with every value of a node.
    pub observer: Option<Observer>,
    /// Observes every operator call and every answer.
    pub watcher: Option<Arc<dyn TurnWatcher>>,
    /// What is known of the principals whose turns are in queues. Without it, turns are answered for the principal that
    /// their record names.
    pub principals: Option<Arc<dyn Principals>>,
    /// The place of this process in a cluster; `None` for a run of one process.
    pub cluster: Option<ClusterOptions>,
    /// Where a copy of the stored encodings is kept. Needs a state directory.
    pub backup: Option<Arc<dyn BackupStore>>,
    /// Whether to give up the start, which may load models and restore indexes for long.
    pub is_cancelled: Option<IsCancelled>,
    /// Metadata fields whose change alone, by a reload, reaches no standing turn. A pipeline whose filters read such a field
    /// must not name it here.
    pub quiet_fields: BTreeSet<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            workers: 1,
            state: None,
            file: None,
            components: None,
            turns: Mode::Follow,
            corpora: Mode::Follow,
            sources: TurnSources::All,
            stays: false,
            sinks: true,
            answer: true,
            observer: None,
            watcher: None,
            principals: None,
            cluster: None,
            backup: None,
            is_cancelled: None,
            quiet_fields: BTreeSet::new(),
        }
    }
}

impl Options {
    /// The processes and workers of the run.
    pub(crate) fn shape(&self) -> Shape {
        let workers = self.workers.max(1);
        match &self.cluster {
            Some(cluster) => Shape { process: cluster.process, processes: cluster.hosts.len(), workers },
            None => Shape::alone(workers),
        }
    }

    /// What is remembered of the plan in the state directory.
    pub(crate) fn writer(&self, plan: &Plan) -> Option<Writer> {
        let file = self.file.as_deref().filter(|_| self.shape().is_first())?;
        Some(Writer::of(plan, file))
    }

    /// Whether to give up the start.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.is_cancelled.as_ref().is_some_and(|is_cancelled| is_cancelled())
    }

    /// Whether a plan has a source that is read.
    pub(crate) fn reads_any(&self, plan: &Plan) -> bool {
        let reads =
            |node: &PlannedNode| matches!(&node.kind, NodeKind::Source(source) if self.sources.reads(&**source));
        plan.nodes.iter().any(reads)
    }

    /// Whether the sinks of a plan are opened.
    pub(crate) fn opens_sinks(&self, plan: &Plan) -> bool {
        self.sinks && (self.sources != TurnSources::Queues || self.reads_any(plan))
    }
}
