//! Remembers what every node gave for every turn.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use turnflow_engine::plan::{NodeKind, Plan};
use turnflow_engine::record::{Item, PortType, TurnRecord};
use turnflow_engine::turns::Observer;

/// The node whose values are what a turn comes to: what feeds the last sink, or else the last
/// that gives answers, or else the last that gives hits.
pub fn ends(plan: &Plan) -> Option<Arc<str>> {
    let sink = plan.nodes.iter().rev().find(|node| matches!(node.kind, NodeKind::Sink(_)));
    let fed = sink.and_then(|sink| sink.inputs.first()).map(|input| plan.nodes[*input].id.clone());
    let gives = |port| plan.nodes.iter().rev().find(|node| node.output == Some(port)).map(|node| node.id.clone());
    fed.or_else(|| gives(PortType::Answers)).or_else(|| gives(PortType::Hits))
}

/// What nodes gave for one turn.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// By node, with when it was given.
    pub items: BTreeMap<String, (Item, Instant)>,
    /// The nodes, in the order in which they gave something.
    pub order: Vec<String>,
}

impl Trace {
    /// What a node gave.
    pub fn item(&self, node: &str) -> Option<&Item> {
        self.items.get(node).map(|(item, _)| item)
    }
}

type Traces = HashMap<Arc<str>, BTreeMap<u64, Trace>>;

/// Listens to an engine.
#[derive(Clone, Default)]
pub struct Recorder(Arc<Mutex<Traces>>);

impl Recorder {
    /// What the engine is to tell.
    pub fn observer(&self) -> Observer {
        let traces = self.0.clone();
        Arc::new(move |node: &str, item: &Item| {
            let mut traces = traces.lock().unwrap_or_else(PoisonError::into_inner);
            // Numbers increase within a conversation, which is on one worker.
            let turns = traces.entry(item.turn.conversation_id.clone()).or_default();
            let trace = turns.entry(item.turn.sequence).or_default();
            if trace.items.insert(node.to_owned(), (item.clone(), Instant::now())).is_none() {
                trace.order.push(node.to_owned());
            }
        })
    }

    /// One trace for each of the user's turns, in their order.
    pub fn take<'a>(&self, asked: impl Iterator<Item = &'a TurnRecord>) -> Vec<Trace> {
        let mut traces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let traces = std::mem::take(&mut *traces);
        let mut open: HashMap<Arc<str>, _> =
            traces.into_iter().map(|(conversation, turns)| (conversation, turns.into_values())).collect();
        asked.map(|record| open.get_mut(&record.conversation_id).and_then(Iterator::next).unwrap_or_default()).collect()
    }
}

/// A log that was played through a pipeline.
pub struct Played {
    /// The pipeline's name, for people.
    pub name: String,
    /// Its nodes, each after those that feed it, with their kinds.
    pub nodes: Vec<(Arc<str>, &'static str)>,
    /// The node whose values are the outcome.
    pub end: Arc<str>,
    /// A trace for each of the user's turns.
    pub traces: Vec<Trace>,
}
