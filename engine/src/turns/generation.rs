//! A plan as it runs.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::sync::Arc;

use super::{Reach, Similar};
use crate::component::{Aliases, CorpusRef, Operator, ScoreUse};
use crate::plan::{AnswerMode, FailedTurns, Retries};
use crate::record::{AnswerRecord, PortType, Provenance};
use crate::sinks::SinkHandle;

/// The running component of a node.
#[derive(Clone)]
pub enum Running {
    /// The entry of turns, which the source's own dataflow reads.
    Source,
    /// An operator.
    Operator(Arc<dyn Operator>),
    /// A sink. `None` if only the observer gets answers.
    Sink(Option<Arc<SinkHandle>>),
}

/// A node with its inputs.
#[derive(Clone)]
pub struct RunningNode {
    /// Its id.
    pub id: Arc<str>,
    /// Its kind's name.
    pub kind_name: &'static str,
    /// Positions of its upstream nodes, which are all before it.
    pub inputs: Vec<usize>,
    /// Its running component.
    pub running: Running,
    /// The type of its values; `None` for sinks.
    pub output: Option<PortType>,
    /// Number of its weights, if it has weights.
    pub weights: Option<usize>,
    /// The corpora that it reads.
    pub corpora: Arc<[CorpusRef]>,
    /// What it does with the scores of hits.
    pub score_use: ScoreUse,
    /// Whether it reads the reply of the log's agent.
    pub takes_replies: bool,
}

/// A running plan.
pub struct Generation {
    /// Counts the plans of a process from 1.
    pub number: u64,
    /// The number of the first of the plans that give the same answers from the same passages as this one.
    pub family: u64,
    /// Its nodes; every node is after its upstream nodes.
    pub nodes: Vec<RunningNode>,
    /// The provenance of answers, except for the epoch, which each turn has itself.
    pub stamp: Provenance,
    /// Whether turns are answered once or kept up to date.
    pub mode: AnswerMode,
    /// The greatest number of answers in the cache, if it has one.
    pub cache: Option<NonZeroUsize>,
    /// Which questions get the answers of others from the answer cache.
    pub similar: Option<Arc<Similar>>,
    /// The sinks that get revisions.
    pub live: BTreeSet<Arc<str>>,
    /// The retries of operator calls.
    pub retries: Retries,
    /// Where failed turns go.
    pub failed_turns: FailedTurns,
    /// The indexes that its operators read, by corpus.
    pub indexes: BTreeMap<Arc<str>, BTreeSet<String>>,
    /// The sources that reach each node.
    pub reach: Reach,
    /// Other names of its corpora.
    pub aliases: Arc<Aliases>,
    /// The sources that a program fills.
    pub queues: BTreeSet<Arc<str>>,
    /// Why optional models are not loaded, by model.
    pub lacking: BTreeMap<Arc<str>, Arc<str>>,
}

impl Generation {
    /// The sources' nodes.
    pub fn sources(&self) -> impl Iterator<Item = &Arc<str>> {
        self.nodes.iter().filter(|node| matches!(node.running, Running::Source)).map(|node| &node.id)
    }

    /// The sinks, each with the sources whose turns reach it.
    pub fn sinks(&self) -> Vec<(Arc<SinkHandle>, BTreeSet<Arc<str>>)> {
        let sink = |(index, node): (usize, &RunningNode)| {
            let Running::Sink(Some(sink)) = &node.running else { return None };
            let sources = self.reach.sources_of(index).map(|at| self.nodes[at].id.clone());
            Some((sink.clone(), sources.collect()))
        };
        self.nodes.iter().enumerate().filter_map(sink).collect()
    }

    /// Whether a node that a source's turns reach reads the reply of the log's agent.
    pub(super) fn takes_replies(&self, source: &str) -> bool {
        let reached = |index| self.reach.sources_of(index).any(|at| *self.nodes[at].id == *source);
        self.nodes.iter().enumerate().any(|(index, node)| node.takes_replies && reached(index))
    }

    /// The sinks that a source's turns reach, each with its inputs; `None` if there are none, or
    /// they are not written to.
    pub(super) fn sinks_of(&self, source: &str) -> Option<Vec<(&[usize], &Arc<SinkHandle>)>> {
        let mut sinks = Vec::new();
        for (index, node) in self.nodes.iter().enumerate() {
            let Running::Sink(sink) = &node.running else { continue };
            if self.reach.sources_of(index).any(|at| *self.nodes[at].id == *source) {
                sinks.push((&node.inputs[..], sink.as_ref()?));
            }
        }
        Some(sinks).filter(|sinks| !sinks.is_empty())
    }

    /// The nodes whose values are answers: those before sinks, and those without a node behind them.
    pub(super) fn finals(&self) -> BTreeSet<usize> {
        let of = |leaf: usize| match &self.nodes[leaf].running {
            Running::Sink(_) => self.nodes[leaf].inputs.clone(),
            Running::Source | Running::Operator(_) => vec![leaf],
        };
        self.reach.leaves(&self.nodes).into_iter().flat_map(of).collect()
    }

    /// Whether a node behind this one reads the scores of its hits.
    pub(super) fn scores_matter(&self, node: usize) -> bool {
        let mut has_them = vec![false; self.nodes.len()];
        has_them[node] = true;
        for (at, other) in self.nodes.iter().enumerate().skip(node + 1) {
            let takes = other.inputs.iter().any(|input| has_them[*input]);
            match (&other.running, other.score_use) {
                (Running::Operator(_), ScoreUse::Read) if takes => return true,
                (Running::Operator(_), ScoreUse::PassedOn) => has_them[at] = takes,
                _ => {}
            }
        }
        false
    }

    /// The records that its sinks have for a turn that an earlier process answered.
    pub(super) fn records(&self, source: &str, key: &str) -> BTreeMap<Arc<str>, AnswerRecord> {
        let sinks = self.sinks_of(source).unwrap_or_default();
        sinks.into_iter().filter_map(|(_, sink)| Some((sink.id().clone(), sink.record(key)?))).collect()
    }

    /// The answer of an earlier process to a turn, if every sink has it or can get it. A sink that
    /// lacks it gets a copy from another sink with the same inputs: answering again might produce a
    /// different answer, and the history can have only one.
    pub(super) fn answered(&self, source: &str, key: &str) -> Option<Earlier> {
        let sinks = self.sinks_of(source)?;
        let found: Vec<Option<Arc<str>>> = sinks.iter().map(|(_, sink)| sink.found(key)).collect();
        let text = found.iter().flatten().next()?.clone();
        let mut copies = Vec::new();
        for ((inputs, sink), _) in sinks.iter().zip(&found).filter(|(_, found)| found.is_none()) {
            let mut donors = sinks.iter().zip(&found).filter(|((from, _), found)| found.is_some() && from == inputs);
            copies.push(((*sink).clone(), donors.find_map(|((_, donor), _)| donor.first(key))?));
        }
        Some(Earlier { text, copies })
    }
}

/// The answer of an earlier process to a turn.
pub(super) struct Earlier {
    /// Its text.
    pub text: Arc<str>,
    /// The sinks that lack it, each with the record that it gets.
    pub copies: Vec<(Arc<SinkHandle>, AnswerRecord)>,
}
