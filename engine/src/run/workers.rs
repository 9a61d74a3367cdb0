//! The workers, which step the dataflows until these have ended; and when turns may begin.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use timely::WorkerConfig;
use timely::communication::WorkerGuards;

use super::{Options, PARK, RunError};
use crate::corpus::{self, CorpusShared, CorpusState};
use crate::turns::{self, TurnsShared};

pub(super) fn start_workers(
    options: &Options,
    shared: &Arc<TurnsShared>,
    corpora: &[CorpusShared],
    abort: &Arc<AtomicBool>,
    live: &Arc<AtomicUsize>,
) -> Result<WorkerGuards<()>, RunError> {
    let config = timely::Config {
        communication: timely::CommunicationConfig::Process(options.workers.max(1)),
        // Workers share the cores with models: a parked worker must not spin.
        worker: WorkerConfig::default().idle_spin(Duration::ZERO),
    };
    let (shared, corpora, abort, live) = (shared.clone(), corpora.to_vec(), abort.clone(), live.clone());
    timely::execute(config, move |worker| {
        for corpus in &corpora {
            worker
                .dataflow_named::<u64, _, _>(&format!("corpus {}", corpus.name), |scope| corpus::build(scope, corpus));
        }
        if !shared.nodes.is_empty() {
            worker.dataflow_named::<u64, _, _>("turns", |scope| turns::build(scope, &shared));
        }
        while worker.has_dataflows() && !abort.load(Ordering::Acquire) {
            worker.step_or_park(Some(PARK));
        }
        for dataflow in worker.installed_dataflows() {
            worker.drop_dataflow(dataflow);
        }
        live.fetch_sub(1, Ordering::AcqRel);
    })
    .map_err(|reason| RunError::Thread { what: "the workers", reason })
}

/// Lets turns begin when every corpus is published.
pub(super) async fn announce_ready(
    corpora: Vec<CorpusShared>,
    shared: Arc<TurnsShared>,
    errors: Arc<Mutex<Vec<RunError>>>,
    abort: Arc<AtomicBool>,
) {
    for corpus in &corpora {
        let mut state = corpus.state();
        let reached = state.wait_for(|state| *state != CorpusState::Loading).await;
        if let Ok(state) = reached
            && let CorpusState::Failed(reason) = &*state
        {
            errors.lock().push(RunError::Publish { corpus: corpus.name.to_string(), reason: reason.clone() });
            abort.store(true, Ordering::Release);
            return;
        }
    }
    shared.ready.store(true, Ordering::Release);
    for wake in shared.conversation_wakes.lock().iter() {
        wake.wake();
    }
}
