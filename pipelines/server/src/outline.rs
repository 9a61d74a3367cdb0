//! What the server has to know of a plan: which nodes give hits and answers, and the corpora.

use std::collections::BTreeSet;
use std::sync::Arc;

use turnflow_engine::component::{Capability, CorpusRef};
use turnflow_engine::plan::{NodeKind, Plan};
use turnflow_engine::record::PortType;

/// The parts of a plan that requests name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outline {
    /// The nodes that give hits, each after its inputs.
    pub hits: Vec<Arc<str>>,
    /// The node of the answer, and the nodes that it takes its answer from: their text is streamed.
    pub answering: BTreeSet<Arc<str>>,
    /// The language model that writes the answer.
    pub generator: Option<String>,
    /// The corpora, sorted by name.
    pub corpora: Vec<Arc<str>>,
    /// Whether a retriever reads the corpus that the turn's `collection` names.
    pub routes: bool,
}

impl Outline {
    /// The outline of a plan.
    pub fn of(plan: &Plan) -> Self {
        let operators = plan.nodes.iter().enumerate().filter_map(|(at, node)| match &node.kind {
            NodeKind::Operator(config) => Some((at, node, config)),
            NodeKind::Source(_) | NodeKind::Sink(_) => None,
        });
        let operators: Vec<_> = operators.collect();
        let mut wanted: BTreeSet<usize> = BTreeSet::new();
        wanted.extend(operators.iter().rfind(|(_, node, _)| node.output == Some(PortType::Answers)).map(|(at, ..)| at));
        let (mut answering, mut generator) = (BTreeSet::new(), None);
        // Every node comes after its inputs.
        for (at, node, config) in operators.iter().rev() {
            if !wanted.contains(at) || node.output != Some(PortType::Answers) {
                continue;
            }
            answering.insert(node.id.clone());
            wanted.extend(node.inputs.iter().copied());
            let models = config.models();
            let writes = models.iter().find(|model| model.capability == Capability::Generate);
            generator = generator.or(writes.map(|model| model.name.to_owned()));
        }
        let gives_hits = operators.iter().filter(|(_, node, _)| node.output == Some(PortType::Hits));
        Self {
            hits: gives_hits.map(|(_, node, _)| node.id.clone()).collect(),
            answering,
            generator,
            corpora: plan.corpora.iter().map(|corpus| corpus.name.clone()).collect(),
            routes: operators.iter().any(|(.., config)| matches!(config.corpus(), Some(CorpusRef::FromTurn))),
        }
    }
}
