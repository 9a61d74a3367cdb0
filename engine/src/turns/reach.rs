//! The sources that reach each node: computed once per plan, in one pass, because turns need it and
//! a graph may have very many paths from a source to a sink.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Running, RunningNode};

/// The sources that reach each node, by node.
#[derive(Clone, Debug, Default)]
pub struct Reach(Vec<Arc<BTreeSet<usize>>>);

impl Reach {
    /// Computes it for nodes in topological order.
    pub fn of(nodes: &[RunningNode]) -> Self {
        let mut reach: Vec<Arc<BTreeSet<usize>>> = Vec::with_capacity(nodes.len());
        for (at, node) in nodes.iter().enumerate() {
            let sources = match (&node.running, &node.inputs[..]) {
                (Running::Source, _) => Arc::new(BTreeSet::from([at])),
                // Most nodes have the same sources as their inputs.
                (_, [first, rest @ ..]) if rest.iter().all(|input| reach[*input] == reach[*first]) => {
                    reach[*first].clone()
                }
                (_, inputs) => Arc::new(inputs.iter().flat_map(|input| reach[*input].iter().copied()).collect()),
            };
            reach.push(sources);
        }
        Self(reach)
    }

    /// The sources that reach a node.
    pub fn sources_of(&self, node: usize) -> impl Iterator<Item = usize> {
        self.0[node].iter().copied()
    }

    /// The nodes without downstream nodes.
    pub(super) fn leaves(&self, nodes: &[RunningNode]) -> Vec<usize> {
        let mut is_leaf = vec![true; nodes.len()];
        nodes.iter().flat_map(|node| &node.inputs).for_each(|&input| is_leaf[input] = false);
        (0..nodes.len()).filter(|&at| is_leaf[at]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::component::ScoreUse;

    fn node(id: usize, inputs: &[usize], running: Running) -> RunningNode {
        RunningNode {
            id: id.to_string().into(),
            kind_name: "Test",
            inputs: inputs.to_vec(),
            running,
            output: None,
            weights: None,
            corpora: Arc::default(),
            score_use: ScoreUse::Read,
            takes_replies: false,
        }
    }

    /// A thousand layers of two nodes, each fed by both nodes of the previous layer, have 2^1000 paths.
    #[test]
    fn ways_are_not_counted() {
        let mut nodes = vec![node(0, &[], Running::Source), node(1, &[], Running::Source)];
        for layer in 0..1000 {
            let before = if layer == 0 { [0, 0] } else { [2 * layer, 2 * layer + 1] };
            for _ in 0..2 {
                nodes.push(node(nodes.len(), &before, Running::Sink(None)));
            }
        }
        let last = nodes.len();
        nodes.push(node(last, &[last - 1, 1], Running::Sink(None)));
        let reach = Reach::of(&nodes);
        assert_eq!(reach.sources_of(last - 1).collect::<Vec<_>>(), [0]);
        assert_eq!(reach.sources_of(last).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(reach.leaves(&nodes), [last - 2, last]);
    }
}
