//! The server's view of a plan: the nodes that output hits and answers, and the corpora.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;
use turnflow_engine::adjust::can_skip;
use turnflow_engine::component::{Aliases, Capability, CorpusRef, TextEffect};
use turnflow_engine::plan::{NodeKind, Plan, PlannedNode};
use turnflow_engine::record::PortType;
use turnflow_engine::schema::Schema;

/// The parts of a plan that requests refer to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outline {
    /// The nodes that output hits, each after its inputs.
    pub hits: Vec<Arc<str>>,
    /// The node of the answer, and the nodes from which it takes its answer: their text is streamed.
    pub answering: BTreeSet<Arc<str>>,
    /// For each of these nodes, what the nodes behind it do to its text, in their order.
    pub effects: Effects,
    /// The language model that writes the answer.
    pub generator: Option<String>,
    /// The node whose language model can give the answer in a form that the caller asks for, if nothing else writes it.
    pub formed_by: Option<Arc<str>>,
    /// The corpora, sorted by name.
    pub corpora: Vec<Arc<str>>,
    /// The corpora that not everyone may read: the field of a document that names its readers.
    pub access: BTreeMap<Arc<str>, Arc<str>>,
    /// What the corpora declare about the metadata of their documents.
    pub schemas: BTreeMap<Arc<str>, Arc<Schema>>,
    /// The corpora that the hits of a node come from.
    pub searched: BTreeMap<Arc<str>, Searched>,
    /// The corpora's aliases, which a turn's `collection` may use too.
    pub aliases: Aliases,
    /// Whether a retriever reads the corpus that the turn's `collection` names.
    pub routes: bool,
    /// The plan as a graph.
    pub graph: Graph,
}

/// What nodes do to the texts of answers, by the node that writes the text.
#[derive(Clone, Debug, Default)]
pub struct Effects(BTreeMap<Arc<str>, Vec<TextEffect>>);

impl Effects {
    /// Whether no node behind this one gives another text.
    fn keep(&self, node: &str) -> bool {
        self.0.get(node).is_some_and(|effects| effects.iter().all(|effect| !matches!(effect, TextEffect::Whole)))
    }

    /// The part of the final text that is certain, from the beginning of the text that a node writes.
    pub fn certain(&self, node: &str, text: &str) -> String {
        self.0.get(node).map(|effects| TextEffect::certain(effects, text)).unwrap_or_default()
    }
}

impl PartialEq for Effects {
    /// They follow from the graph, which is compared too.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// The corpora that the hits of a node come from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Searched {
    /// Their names.
    pub named: BTreeSet<Arc<str>>,
    /// Whether the turn's `collection` names one.
    pub from_turn: bool,
}

impl Searched {
    /// Of the node at this place in the plan.
    fn of(plan: &Plan, at: usize) -> Self {
        let (mut found, mut wanted) = (Self::default(), BTreeSet::from([at]));
        // Every node comes after its inputs.
        while let Some(node) = wanted.pop_last().and_then(|at| plan.nodes.get(at)) {
            for corpus in node.operators().into_iter().filter_map(|config| config.corpus()) {
                match corpus {
                    CorpusRef::FromTurn => found.from_turn = true,
                    CorpusRef::Named(name) => drop(found.named.insert(name.as_str().into())),
                }
            }
            wanted.extend(node.inputs.iter().copied());
        }
        found
    }
}

/// A plan as a graph, for people and the page.
#[derive(Clone, Debug, Default, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Graph {
    /// The nodes; each is after its inputs.
    pub nodes: Vec<GraphNode>,
    /// The corpora.
    pub corpora: Vec<GraphCorpus>,
    /// The models.
    pub models: Vec<GraphModel>,
}

/// A node of the plan.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct GraphNode {
    /// Its id.
    #[schema(value_type = String)]
    pub id: Arc<str>,
    /// The name of its kind, such as `Bm25`.
    pub kind: &'static str,
    /// `source`, `operator` or `sink`.
    pub role: &'static str,
    /// Its effective settings, in one line.
    pub settings: String,
    /// The ids of its inputs.
    #[schema(value_type = Vec<String>)]
    pub inputs: Vec<Arc<str>>,
    /// The type of its values: `Turns`, `Queries`, `Hits`, `Prompts` or `Answers`; none for sinks.
    pub output: Option<String>,
    /// The corpora that it searches.
    #[schema(value_type = Vec<String>)]
    pub corpora: Vec<Arc<str>>,
    /// The models that it calls.
    pub models: Vec<String>,
    /// The language model that writes its text.
    pub generator: Option<String>,
    /// Whether a turn may skip it.
    pub can_skip: bool,
    /// The weights of its inputs or members, if a turn may set them.
    pub weights: Option<Vec<f32>>,
}

/// A corpus of the plan.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct GraphCorpus {
    /// Its name.
    #[schema(value_type = String)]
    pub name: Arc<str>,
    /// The source of its documents, with its settings.
    pub source: String,
    /// The chunker, with its settings.
    pub chunk: String,
    /// What it declares about metadata: the field that says who may read, and the types of fields.
    pub declared: Vec<String>,
}

/// A model of the plan.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct GraphModel {
    /// Its name.
    pub name: String,
    /// The name of its kind, such as `Onnx`.
    pub kind: &'static str,
}

impl Graph {
    fn of(plan: &Plan) -> Self {
        let every: Vec<Arc<str>> = plan.corpora.iter().map(|corpus| corpus.name.clone()).collect();
        let node = |node: &PlannedNode| {
            let (role, config) = match &node.kind {
                NodeKind::Source(_) => ("source", None),
                NodeKind::Operator(config) => ("operator", Some(config)),
                NodeKind::Sink(_) => ("sink", None),
            };
            let mut corpora: Vec<Arc<str>> = Vec::new();
            for corpus in node.operators().into_iter().filter_map(|config| config.corpus()) {
                match corpus {
                    CorpusRef::FromTurn => corpora.clone_from(&every),
                    CorpusRef::Named(name) if !corpora.iter().any(|known| **known == *name) => {
                        corpora.push(name.as_str().into());
                    }
                    CorpusRef::Named(_) => {}
                }
            }
            let mut models: Vec<String> = Vec::new();
            for used in node.models() {
                if !models.iter().any(|known| known == used.name) {
                    models.push(used.name.to_owned());
                }
            }
            let inputs = node.inputs.iter().filter_map(|&input| plan.nodes.get(input));
            let types = inputs.clone().filter_map(|input| input.output);
            GraphNode {
                id: node.id.clone(),
                kind: node.kind_name,
                role,
                settings: node.explain(),
                inputs: inputs.map(|input| input.id.clone()).collect(),
                output: node.output.map(|output| output.to_string()),
                corpora,
                models,
                generator: config.and_then(|config| {
                    let models = config.models();
                    let writes = models.iter().find(|model| model.capability == Capability::Generate);
                    writes.map(|model| model.name.to_owned())
                }),
                can_skip: config.is_some() && node.output.is_some_and(|output| can_skip(output, types)),
                weights: config.and_then(|config| config.weights()),
            }
        };
        let corpora = plan.corpora.iter().map(|corpus| GraphCorpus {
            name: corpus.name.clone(),
            source: format!("{}({})", corpus.source_name, corpus.source.explain()),
            chunk: format!("{}({})", corpus.chunker_name, corpus.chunker.explain()),
            declared: corpus.schema.explain(),
        });
        let models = plan.models.iter().map(|(name, model)| GraphModel { name: name.clone(), kind: model.kind_name });
        Self { nodes: plan.nodes.iter().map(node).collect(), corpora: corpora.collect(), models: models.collect() }
    }
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
        // The effects behind the inputs of each node, by its place.
        let mut behind: BTreeMap<usize, Vec<TextEffect>> = BTreeMap::new();
        let mut effects = Effects::default();
        // Every node comes after its inputs.
        for (at, node, config) in operators.iter().rev() {
            if !wanted.contains(at) || node.output != Some(PortType::Answers) {
                continue;
            }
            answering.insert(node.id.clone());
            wanted.extend(node.inputs.iter().copied());
            let after = behind.get(at).cloned().unwrap_or_default();
            let with = || [config.text_effect()].into_iter().chain(after.iter().cloned()).collect();
            for input in &node.inputs {
                // A text that goes two ways is changed in two ways.
                behind.entry(*input).and_modify(|effects| *effects = vec![TextEffect::Whole]).or_insert_with(with);
            }
            effects.0.insert(node.id.clone(), after);
            let models = config.models();
            let writes = models.iter().find(|model| model.capability == Capability::Generate);
            generator = generator.or(writes.map(|model| model.name.to_owned()));
        }
        let writers: Vec<_> = operators
            .iter()
            .filter(|(_, node, _)| answering.contains(&node.id))
            .filter_map(|(_, node, config)| {
                let writes = config.models().into_iter().find(|model| model.capability == Capability::Generate)?;
                Some((node.id.clone(), config.takes_format(), writes.name.to_owned()))
            })
            .collect();
        let formed_by = match &writers[..] {
            [(id, true, model)] if plan.models.get(model).is_some_and(|model| model.config.takes_formats()) => {
                effects.keep(id).then(|| id.clone())
            }
            _ => None,
        };
        let gives_hits = operators.iter().filter(|(_, node, _)| node.output == Some(PortType::Hits));
        Self {
            hits: gives_hits.map(|(_, node, _)| node.id.clone()).collect(),
            answering,
            effects,
            generator,
            formed_by,
            corpora: plan.corpora.iter().map(|corpus| corpus.name.clone()).collect(),
            access: plan
                .corpora
                .iter()
                .filter_map(|corpus| Some((corpus.name.clone(), corpus.schema.access.clone()?)))
                .collect(),
            schemas: plan.corpora.iter().map(|corpus| (corpus.name.clone(), corpus.schema.clone())).collect(),
            searched: operators
                .iter()
                .filter(|(_, node, _)| node.output == Some(PortType::Hits))
                .map(|(at, node, _)| (node.id.clone(), Searched::of(plan, *at)))
                .collect(),
            aliases: plan.aliases(),
            graph: Graph::of(plan),
            routes: operators.iter().any(|(_, node, _)| {
                node.operators().iter().any(|config| matches!(config.corpus(), Some(CorpusRef::FromTurn)))
            }),
        }
    }
}
