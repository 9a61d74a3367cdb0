//! Records the output of every node for every turn.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use turnflow_engine::plan::{NodeKind, Plan};
use turnflow_engine::record::{Item, PortType, TurnRecord};
use turnflow_engine::turns::Observer;

/// The end node, whose value is the result of a turn: the input of the last sink, or else the last
/// node that outputs answers, or else the last one that outputs hits.
pub fn ends(plan: &Plan) -> Option<Arc<str>> {
    let sink = plan.nodes.iter().rev().find(|node| matches!(node.kind, NodeKind::Sink(_)));
    let fed = sink.and_then(|sink| sink.inputs.first()).map(|input| plan.nodes[*input].id.clone());
    let gives = |port| plan.nodes.iter().rev().find(|node| node.output == Some(port)).map(|node| node.id.clone());
    fed.or_else(|| gives(PortType::Answers)).or_else(|| gives(PortType::Hits))
}

/// The outputs of the nodes for one turn.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// The outputs by node, with their times.
    pub items: BTreeMap<String, (Item, Instant)>,
    /// The nodes in the order of their outputs.
    pub order: Vec<String>,
}

impl Trace {
    /// The output of a node.
    pub fn item(&self, node: &str) -> Option<&Item> {
        self.items.get(node).map(|(item, _)| item)
    }
}

type Traces = HashMap<Arc<str>, BTreeMap<u64, Trace>>;

/// Records the outputs of an engine's nodes.
#[derive(Clone, Default)]
pub struct Recorder(Arc<Mutex<Traces>>);

impl Recorder {
    /// The observer to pass to the engine.
    pub fn observer(&self) -> Observer {
        let traces = self.0.clone();
        Arc::new(move |node: &str, item: &Item| {
            let mut traces = traces.lock().unwrap_or_else(PoisonError::into_inner);
            // Sequence numbers increase within a conversation, since it stays on one worker.
            let turns = traces.entry(item.turn.conversation_id.clone()).or_default();
            let trace = turns.entry(item.turn.sequence).or_default();
            if trace.items.insert(node.to_owned(), (item.clone(), Instant::now())).is_none() {
                trace.order.push(node.to_owned());
            }
        })
    }

    /// Takes the traces: one for each user turn, in the same order.
    pub fn take<'a>(&self, asked: impl Iterator<Item = &'a TurnRecord>) -> Vec<Trace> {
        let mut traces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let traces = std::mem::take(&mut *traces);
        let mut open: HashMap<Arc<str>, _> =
            traces.into_iter().map(|(conversation, turns)| (conversation, turns.into_values())).collect();
        asked.map(|record| open.get_mut(&record.conversation_id).and_then(Iterator::next).unwrap_or_default()).collect()
    }
}

/// A log replayed through a pipeline.
pub struct Played {
    /// The pipeline's name, for display.
    pub name: String,
    /// Its nodes with their kinds, each after its inputs.
    pub nodes: Vec<(Arc<str>, &'static str)>,
    /// The node whose value is the result.
    pub end: Arc<str>,
    /// One trace for each user turn.
    pub traces: Vec<Trace>,
}
