//! The live status of a run, for people and for tools.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::Serialize;

use super::{Engine, LackingModel};
use crate::activity::{Calls, Durations};
use crate::backup::BackupStatus;
use crate::cluster::{models_of, name_of};
use crate::connector::{AlertStatus, ReviewQueue};
use crate::corpus::CorpusState;
use crate::publish::CorpusProgress;
use crate::sinks::SinkStatus;
use crate::turns::{CachedAnswers, Running, SourceHandle};

/// Number of documents of a corpus that cannot be read and are named with the reason.
pub const MOST_REASONS: usize = 10;

/// The status of a run.
#[derive(Clone, Debug, Serialize)]
pub struct EngineStatus {
    /// Hash of the running plan.
    pub plan: String,
    /// Counts the plans of the process from 1.
    pub generation: u64,
    /// The newest epoch.
    pub epoch: u64,
    /// Whether every corpus is published.
    pub ready: bool,
    /// Seconds since the start.
    pub uptime_s: f64,
    /// Number of worker threads.
    pub workers: usize,
    /// The number of this process in its cluster, from 0.
    pub process: usize,
    /// Number of processes.
    pub processes: usize,
    /// Its turns.
    pub turns: TurnsStatus,
    /// Optional models that are not loaded.
    pub lacking: Vec<LackingModel>,
    /// The operators, each after its inputs. In a cluster, the other processes follow, with the questions to them.
    pub nodes: Vec<NodeStatus>,
    /// The corpora, sorted by name.
    pub corpora: Vec<CorpusStatus>,
    /// The sinks of the running plan.
    pub sinks: Vec<SinkStatus>,
    /// The turn sources that are read.
    pub sources: Vec<SourceStatus>,
    /// The rules that watch the answers.
    pub alerts: Vec<AlertStatus>,
    /// The backup of the stored encodings, if there is one.
    pub backup: Option<BackupStatus>,
}

/// Numbers of turns.
#[derive(Clone, Debug, Serialize)]
pub struct TurnsStatus {
    /// Turns that hold a slot.
    pub running: usize,
    /// Turns of callers that wait for a slot.
    pub waiting: usize,
    /// Records of sources that are read but not started.
    pub queued: usize,
    /// Turns answered since the start, failures included.
    pub answered: u64,
    /// Times from reading them to their answers.
    pub durations: Durations,
    /// Revisions since the start.
    pub revised: u64,
    /// Turns that stand.
    pub standing: usize,
    /// Those of them that wait to be answered again, after a change that may reach them.
    pub behind: usize,
    /// How long the first of them has waited, in seconds.
    pub behind_s: f64,
    /// Number of times since the start that a standing turn was answered again.
    pub answered_again: u64,
    /// The answer cache.
    pub cache: CachedAnswers,
    /// Dead letters since the start.
    pub dead_letters: u64,
}

/// An operator's calls.
#[derive(Clone, Debug, Serialize)]
pub struct NodeStatus {
    /// Its id.
    pub id: Arc<str>,
    /// The name of its kind.
    pub kind: &'static str,
    /// Its calls since the start.
    #[serde(flatten)]
    pub calls: Calls,
}

/// A corpus.
#[derive(Clone, Debug, Serialize)]
pub struct CorpusStatus {
    /// Its name.
    pub name: Arc<str>,
    /// `loading`, `stored` (what an earlier run has published is served, and is compared with the source), `ready` or
    /// `failed`.
    pub state: &'static str,
    /// Why the first publication failed.
    pub error: Option<String>,
    /// Documents that its source has now, as far as they are read.
    pub read: u64,
    /// Those of them that have no text.
    pub empty: u64,
    /// Passages cut since the start.
    pub cut: u64,
    /// Documents with passages, in the newest epoch.
    pub documents: usize,
    /// Passages, in the newest epoch.
    pub passages: usize,
    /// The last epoch that changed it.
    pub epoch: Option<u64>,
    /// Contents that wait to be prepared or embedded.
    pub preparing: u64,
    /// Contents computed by a model since the start, once for each index that uses one.
    pub embedded: u64,
    /// Epochs published since the start.
    pub publications: u64,
    /// Failed calls of its chunker, preparations and indexes since the start.
    pub failures: u64,
    /// Documents and records that are missing because they cannot be read or cut into passages.
    pub unreadable: u64,
    /// The first of them, each with the reason.
    pub unreadable_because: Vec<String>,
    /// Contents that an index lacks because a model's server is away. They are added when it is back.
    pub missing: u64,
    /// Why they are missing.
    pub missing_because: Option<String>,
    /// Why its source cannot be reached. What has changed there is missing.
    pub away_because: Option<String>,
}

/// A source of turns.
#[derive(Clone, Debug, Serialize)]
pub struct SourceStatus {
    /// Its node.
    pub id: Arc<str>,
    /// The name of its kind.
    pub kind: &'static str,
    /// Records that are read but not started.
    pub queued: usize,
    /// How long the first of them has waited, in seconds; 0 if none waits.
    pub behind_s: f64,
    /// Bytes of its file after the last record up to which all are answered; of a log that is a file.
    pub unanswered_bytes: Option<u64>,
    /// Why its server cannot be reached.
    pub away_because: Option<String>,
}

impl Engine {
    /// The sources that cannot reach their servers, each with the reason. They try again without end.
    pub fn away(&self) -> Vec<(String, String)> {
        let all = self.metrics().all_away().into_iter();
        all.map(|(component, absence)| (component, absence.reason)).collect()
    }

    /// The corpora of which indexes lack passages because a model's server is away, each with their number and the reason.
    pub fn missing(&self) -> Vec<(Arc<str>, u64, String)> {
        let missing = self.corpora().into_iter().map(|(name, progress, _)| {
            let lacking = progress.lacking();
            (name, lacking.missing, lacking.problem.unwrap_or_default())
        });
        missing.filter(|(_, missing, _)| *missing > 0).collect()
    }

    /// The optional models that are not loaded.
    pub fn lacking(&self) -> Vec<LackingModel> {
        let running = self.inner.running.lock();
        let lacking = running.generation.lacking.iter();
        lacking.map(|(name, reason)| LackingModel { name: name.clone(), reason: reason.clone() }).collect()
    }

    /// The states of the rules that watch the answers.
    pub fn alerts(&self) -> Vec<AlertStatus> {
        // A sink may be waiting for the disk.
        let sinks: Vec<_> = self.inner.running.lock().sinks.values().flatten().cloned().collect();
        sinks.iter().flat_map(|sink| sink.alerts()).collect()
    }

    /// The queues of answers that people judge, by node.
    pub fn reviews(&self) -> Vec<Arc<dyn ReviewQueue>> {
        let mut queues: Vec<_> =
            self.inner.running.lock().sinks.values().flatten().filter_map(|sink| sink.review()).collect();
        queues.sort_by(|one, other| one.node().cmp(other.node()));
        queues
    }

    /// The live status of the run.
    pub fn status(&self) -> EngineStatus {
        let shared = &self.inner.context.shared;
        let generation = self.inner.running.lock().generation.clone();
        let snapshot = self.epochs().current();
        // In another process than the first, its parts.
        let own = self.inner.context.published.current();
        let operators = generation.nodes.iter().filter(|node| matches!(node.running, Running::Operator(_)));
        let nodes = operators.map(|node| NodeStatus {
            id: node.id.clone(),
            kind: node.kind_name,
            calls: shared.activity.calls(&node.id),
        });
        let shape = self.shape();
        let others = (1..shape.processes).filter(|_| shape.is_first()).map(|process| {
            let id = name_of(process);
            NodeStatus { calls: shared.activity.calls(&id), id, kind: "Process" }
        });
        let models = (1..shape.processes).filter(|_| shape.is_first()).map(|process| {
            let id = models_of(process);
            NodeStatus { calls: shared.activity.calls(&id), id, kind: "Models" }
        });
        let nodes = nodes.chain(others).chain(models);
        let corpora = self.corpora().into_iter().map(|(name, progress, state)| {
            let (state, epoch, error) = match &*state.borrow() {
                CorpusState::Loading => ("loading", None, None),
                CorpusState::Stored { epoch } => ("stored", shape.is_first().then_some(*epoch), None),
                // The other processes of a cluster count their own publications.
                CorpusState::Ready { epoch, .. } => ("ready", shape.is_first().then_some(*epoch), None),
                CorpusState::Failed(reason) => ("failed", None, Some(reason.clone())),
            };
            let (documents, passages) =
                own.corpora.get(&name).map_or((0, 0), |corpus| (corpus.documents, corpus.chunks));
            let get = CorpusProgress::get;
            let lacking = progress.lacking();
            let preparing = get(&progress.prepare).saturating_sub(get(&progress.prepared));
            CorpusStatus {
                state,
                error,
                read: get(&progress.documents),
                empty: get(&progress.empty),
                cut: get(&progress.cut),
                documents,
                passages,
                epoch,
                preparing,
                embedded: get(&progress.embedded),
                publications: get(&progress.publications),
                failures: get(&progress.failures),
                unreadable: progress.unreadable(),
                unreadable_because: progress.unreadable_because(MOST_REASONS),
                missing: lacking.missing,
                missing_because: lacking.problem,
                away_because: self.metrics().away(&name).map(|absence| absence.reason),
                name,
            }
        });
        let source = |source: &Arc<SourceHandle>| SourceStatus {
            id: source.id.clone(),
            kind: source.kind_name,
            queued: source.backlog.records(),
            behind_s: source.backlog.oldest_us().map_or(0.0, |at| shared.now_us().saturating_sub(at) as f64 / 1e6),
            unanswered_bytes: source.unanswered_bytes(),
            away_because: self.metrics().away(&source.id).map(|absence| absence.reason),
        };
        let sources = shared.sources.lock().iter().map(source).collect();
        let standing = self.standing();
        EngineStatus {
            plan: generation.stamp.pipeline.to_string(),
            generation: generation.number,
            epoch: snapshot.epoch,
            ready: shared.ready.load(Ordering::Acquire),
            uptime_s: shared.started.elapsed().as_secs_f64(),
            workers: self.inner.context.options.workers,
            process: shape.process,
            processes: shape.processes,
            turns: TurnsStatus {
                running: self.in_flight(),
                waiting: self.waiting_callers(),
                queued: self.queued(),
                answered: self.delivered() as u64 + shared.asks.count(),
                durations: shared.activity.turns(),
                revised: self.revised(),
                standing: standing.turns,
                behind: standing.behind,
                behind_s: standing.since.map_or(0.0, |since| since.elapsed().as_secs_f64()),
                answered_again: self.answered_again(),
                cache: self.cached_answers(),
                dead_letters: self.dead_letters(),
            },
            lacking: self.lacking(),
            nodes: nodes.collect(),
            corpora: corpora.collect(),
            sinks: self.sinks(),
            sources,
            alerts: self.alerts(),
            backup: self.inner.context.backup.as_ref().map(|backup| backup.status()),
        }
    }
}
