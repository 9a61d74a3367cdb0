//! Which sources the processes of a cluster read together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{AnswerMode, NodeKind, Plan, PlannedNode};

/// The sources that the processes of a cluster read together, each some of their partitions, and the sinks that all
/// processes write.
///
/// The answers of such a source go only to sinks that several processes may write. In a live pipeline there is none:
/// the first process knows the answers that stand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Divided {
    /// The sources.
    pub sources: BTreeSet<Arc<str>>,
    /// The sinks that their turns reach.
    pub sinks: BTreeSet<Arc<str>>,
    /// The other sources with partitions, and why the first process reads all of them.
    pub whole: BTreeMap<Arc<str>, String>,
}

impl Divided {
    /// Those of a plan.
    pub fn of(plan: &Plan) -> Self {
        let divisible: Vec<usize> = (0..plan.nodes.len()).filter(|at| is_divisible(&plan.nodes[*at])).collect();
        let mut this = Self::default();
        if divisible.is_empty() {
            return this;
        }
        let (reach, is_live) = (reach(&plan.nodes), plan.standing_mode() != AnswerMode::Once);
        let id = |at: usize| plan.nodes[at].id.clone();
        for source in divisible {
            let sinks = plan.nodes.iter().enumerate().filter_map(|(at, node)| Some((at, is_shared(node)?)));
            let sinks: Vec<(usize, bool)> = sinks.filter(|(at, _)| reach[*at].contains(&source)).collect();
            let owned = sinks.iter().find(|(_, is_shared)| !is_shared);
            let why = match owned {
                _ if is_live => "the pipeline is live".to_owned(),
                _ if sinks.is_empty() => "it leads to no sink".to_owned(),
                Some((sink, _)) => format!("only one process may write `{}`", id(*sink)),
                None => {
                    this.sources.insert(id(source));
                    this.sinks.extend(sinks.into_iter().map(|(at, _)| id(at)));
                    continue;
                }
            };
            this.whole.insert(id(source), why);
        }
        this
    }

    /// How the processes of a cluster read a source with partitions; `None` for other sources.
    pub(super) fn explain(&self, source: &str) -> Option<String> {
        match self.whole.get(source) {
            Some(why) => Some(format!("process 0 reads all of it, because {why}")),
            None => self.sources.contains(source).then(|| "all processes read it together".to_owned()),
        }
    }
}

fn is_divisible(node: &PlannedNode) -> bool {
    matches!(&node.kind, NodeKind::Source(config) if config.is_divisible())
}

/// Whether several processes may write a sink; `None` if the node is no sink.
fn is_shared(node: &PlannedNode) -> Option<bool> {
    match &node.kind {
        NodeKind::Sink(config) => Some(config.is_shared()),
        NodeKind::Source(_) | NodeKind::Operator(_) => None,
    }
}

/// The places of the sources that reach each node. Every node comes after its inputs.
fn reach(nodes: &[PlannedNode]) -> Vec<BTreeSet<usize>> {
    let mut reach: Vec<BTreeSet<usize>> = Vec::with_capacity(nodes.len());
    for (at, node) in nodes.iter().enumerate() {
        reach.push(match node.kind {
            NodeKind::Source(_) => BTreeSet::from([at]),
            NodeKind::Operator(_) | NodeKind::Sink(_) => {
                node.inputs.iter().flat_map(|input| reach[*input].iter().copied()).collect()
            }
        });
    }
    reach
}
