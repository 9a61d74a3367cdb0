//! What a plan can do without some of its optional models.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{NodeKind, Plan};

/// The nodes that run and fail without some models, and those that replace what these give.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Without {
    /// Nodes that fail on every turn, in the order of the plan; sinks to which only failures come are among them.
    pub failing: Vec<Arc<str>>,
    /// Nodes that answer without a failing input.
    pub replacing: Vec<Arc<str>>,
}

impl Without {
    /// Whether a node fails.
    pub fn fails(&self, id: &str) -> bool {
        self.failing.iter().any(|node| **node == *id)
    }
}

impl Plan {
    /// What follows from the absence of the models for which `lacks` is true.
    pub fn without(&self, lacks: &dyn Fn(&str) -> bool) -> Without {
        let mut without = Without::default();
        let mut failing = BTreeSet::new();
        // Nodes that lead to no sink are not run, unless the pipeline has no sinks.
        let all_run = self.sinks().next().is_none();
        let needed = self.needed(|node| all_run || node.output.is_none());
        for (at, node) in self.nodes.iter().enumerate().filter(|(at, _)| needed[*at]) {
            let failed = node.inputs.iter().filter(|input| failing.contains(*input)).count();
            let (falls_back, fails) = match &node.kind {
                NodeKind::Operator(config) => (config.falls_back(), config.fails_without(lacks)),
                NodeKind::Source(_) | NodeKind::Sink(_) => (false, false),
            };
            let all_failed = failed == node.inputs.len();
            if fails || (failed > 0 && (!falls_back || all_failed)) {
                failing.insert(at);
                without.failing.push(node.id.clone());
            } else if failed > 0 {
                without.replacing.push(node.id.clone());
            }
        }
        without
    }
}
