//! Options of a run.

use std::path::PathBuf;
use std::sync::Arc;

use crate::activity::TurnWatcher;
use crate::connector::Mode;
use crate::turns::Observer;

/// Options of a run.
#[derive(Clone)]
pub struct Options {
    /// Number of worker threads.
    pub workers: usize,
    /// The state directory. Without one, all state is in memory and is lost at the end.
    pub state: Option<PathBuf>,
    /// The directory of the components' own files, such as those of `Documents`. `None`: `components` in
    /// the state directory.
    pub components: Option<PathBuf>,
    /// Whether turn sources follow.
    pub turns: Mode,
    /// Whether corpus sources follow.
    pub corpora: Mode,
    /// Turns come from [`Engine::submit`] instead of the sources in the file.
    pub manual_turns: bool,
    /// Whether the run continues when its sources have ended: callers ask until [`Engine::stop`].
    pub stays: bool,
    /// Whether answers go to the sinks in the file.
    pub sinks: bool,
    /// Whether to answer turns. If not, only the corpora are updated.
    pub answer: bool,
    /// Called with every value of a node.
    pub observer: Option<Observer>,
    /// Observes every operator call and every answer.
    pub watcher: Option<Arc<dyn TurnWatcher>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            workers: 1,
            state: None,
            components: None,
            turns: Mode::Follow,
            corpora: Mode::Follow,
            manual_turns: false,
            stays: false,
            sinks: true,
            answer: true,
            observer: None,
            watcher: None,
        }
    }
}
