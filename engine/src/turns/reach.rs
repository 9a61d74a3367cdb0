//! From which sources values reach a node: worked out once a plan, in one pass, since turns ask
//! for it and graphs may have as many ways as they like from a source to a sink.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Running, RunningNode};

/// By node, the sources that reach it.
#[derive(Clone, Debug, Default)]
pub struct Reach(Vec<Arc<BTreeSet<usize>>>);

impl Reach {
    /// Of nodes that come after those that feed them.
    pub fn of(nodes: &[RunningNode]) -> Self {
        let mut reach: Vec<Arc<BTreeSet<usize>>> = Vec::with_capacity(nodes.len());
        for (at, node) in nodes.iter().enumerate() {
            let sources = match (&node.running, &node.inputs[..]) {
                (Running::Source, _) => Arc::new(BTreeSet::from([at])),
                // Most nodes have what the one before them has.
                (_, [first, rest @ ..]) if rest.iter().all(|input| reach[*input] == reach[*first]) => {
                    reach[*first].clone()
                }
                (_, inputs) => Arc::new(inputs.iter().flat_map(|input| reach[*input].iter().copied()).collect()),
            };
            reach.push(sources);
        }
        Self(reach)
    }

    /// The sources from which values reach a node.
    pub fn sources_of(&self, node: usize) -> impl Iterator<Item = usize> {
        self.0[node].iter().copied()
    }

    /// The nodes that feed no other.
    pub(super) fn leaves(&self, nodes: &[RunningNode]) -> Vec<usize> {
        let mut is_leaf = vec![true; nodes.len()];
        nodes.iter().flat_map(|node| &node.inputs).for_each(|&input| is_leaf[input] = false);
        (0..nodes.len()).filter(|&at| is_leaf[at]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: usize, inputs: &[usize], running: Running) -> RunningNode {
        RunningNode { id: id.to_string().into(), kind_name: "Test", inputs: inputs.to_vec(), running }
    }

    /// A thousand layers of two nodes, each fed by both of the layer before, have 2^1000 ways.
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
