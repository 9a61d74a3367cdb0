//! Plans: a pipeline file, resolved. Every name is looked up, every edge is typed, every
//! value is checked, and every mistake is told, before anything runs.

mod diff;
mod resolve;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

pub use self::diff::{ChangeKind, PlanDiff, PlanFingerprint};
pub use self::resolve::models_file::ModelsFile;
use crate::component::{
    BuildError, Catalog, ChunkerConfig, CorpusRef, CorpusSourceConfig, IndexDefinition, InputPort, ModelConfig, Models,
    OperatorConfig, Parse, SinkConfig, SinkMode, TurnSourceConfig,
};
use crate::record::PortType;
use crate::spec::{self, Diagnostic, FilePath, Override, Sources};

/// What a node is.
pub enum NodeKind {
    /// Turns come in.
    Source(Box<dyn TurnSourceConfig>),
    /// A value is made of values.
    Operator(Box<dyn OperatorConfig>),
    /// Answers go out.
    Sink(Box<dyn SinkConfig>),
}

/// A node of the graph.
pub struct PlannedNode {
    /// Its id.
    pub id: Arc<str>,
    /// The name of its kind: `Bm25`.
    pub kind_name: &'static str,
    /// Hash of all that the file says of it.
    pub definition: Arc<str>,
    /// The same, but for what feeds it.
    pub settings: Arc<str>,
    /// What it is.
    pub kind: NodeKind,
    /// Indexes of the nodes that feed it, in the order of its ports and lists.
    pub inputs: Vec<usize>,
    /// What its inputs are.
    pub ports: &'static [InputPort],
    /// What it gives; `None` for sinks.
    pub output: Option<PortType>,
}

impl PlannedNode {
    /// Its effective settings, in a line.
    pub fn explain(&self) -> String {
        match &self.kind {
            NodeKind::Source(config) => config.explain(),
            NodeKind::Operator(config) => config.explain(),
            NodeKind::Sink(config) => config.explain(),
        }
    }
}

/// A corpus.
pub struct PlannedCorpus {
    /// Its name.
    pub name: Arc<str>,
    /// Hash of all that the file says of it.
    pub definition: Arc<str>,
    /// The name of its source's kind.
    pub source_name: &'static str,
    /// Where documents come from.
    pub source: Box<dyn CorpusSourceConfig>,
    /// The name of its chunker.
    pub chunker_name: &'static str,
    /// How they are cut.
    pub chunker: Box<dyn ChunkerConfig>,
    /// The model whose tokenizer the chunker uses.
    pub tokenizer: Option<String>,
}

/// A model.
pub struct PlannedModel {
    /// The name of its kind.
    pub kind_name: &'static str,
    /// Hash of all that the file says of it.
    pub definition: Arc<str>,
    /// What it is.
    pub config: Box<dyn ModelConfig>,
}

/// Bounds of conversations, in memory and on the way.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Conversations {
    /// Utterances of history that a turn sees; older ones are dropped.
    pub max_utterances: usize,
    /// Seconds after which a conversation without turns is forgotten.
    pub idle_s: u64,
    /// Turns that are worked on at once. Conversations whose next turn could start take turns.
    pub max_in_flight: usize,
    /// Records of a source that are read ahead, while they wait for the turn before them in their
    /// conversation or for their own to start; then the source waits.
    pub max_queued: usize,
    /// Megabytes of these.
    pub max_queued_mb: u64,
    /// Conversations of a source that are held in memory while nothing is asked in them. Of those
    /// that were used longest ago, what they know is in the state directory; without one it is
    /// forgotten.
    pub max_held: usize,
    /// Megabytes of their histories.
    pub max_held_mb: u64,
}

impl Default for Conversations {
    fn default() -> Self {
        Self {
            max_utterances: 200,
            idle_s: 86_400,
            max_in_flight: 64,
            max_queued: 10_000,
            max_queued_mb: 64,
            max_held: 10_000,
            max_held_mb: 64,
        }
    }
}

/// How often an operator is called for a turn, where what failed may pass: a model's server or
/// device, not a prompt that is too long or a corpus that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Retries {
    /// Calls, at most; 1 for no second one.
    pub attempts: u32,
    /// Milliseconds before the second call; doubled before each further one.
    pub first_ms: u64,
    /// Milliseconds before a call, at most.
    pub most_ms: u64,
}

impl Default for Retries {
    fn default() -> Self {
        Self { attempts: 3, first_ms: 200, most_ms: 5000 }
    }
}

/// Where a turn goes that failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
pub enum FailedTurns {
    /// Its record, with the status `failed`, to the sinks.
    #[default]
    Answer,
    /// There, and to the dead letters, from where it can be tried again.
    DeadLetter,
}

/// When what is stored is kept in shape, and how much of it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Maintenance {
    /// Seconds after which a corpus that has changed is looked after; 0 for never by time.
    pub every_s: u64,
    /// Publications of a corpus after which it is looked after earlier than that; 0 for never
    /// by their number.
    pub publications: u64,
    /// Seconds that one index may take; then it is given up and tried again later.
    pub limit_s: u64,
    /// Days after which what a model gave for turns is forgotten, if nobody has asked for it;
    /// 0 for never.
    pub memo_days: u32,
    /// Megabytes of what models gave for turns, at most; what was not asked for longest goes
    /// first. 0 for no bound.
    pub memo_mb: u64,
}

impl Default for Maintenance {
    fn default() -> Self {
        Self { every_s: 300, publications: 200, limit_s: 20, memo_days: 30, memo_mb: 1024 }
    }
}

/// How long an answer stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
pub enum AnswerMode {
    /// A turn is answered once, as of the epoch it reads.
    #[default]
    Once,
    /// A turn goes on standing: when a new epoch changes what it retrieves, its answer is
    /// withdrawn and it is answered again.
    Live {
        /// Turns that stand at once, at most; the oldest go first. Workers share them.
        #[serde(default = "default_standing")]
        standing: usize,
        /// Seconds that a turn stands.
        #[serde(default = "default_ttl_s")]
        ttl_s: u64,
    },
}

fn default_standing() -> usize {
    1000
}
fn default_ttl_s() -> u64 {
    86_400
}

/// A pipeline that may run.
pub struct Plan {
    /// Its name.
    pub name: String,
    /// Hash of what it says, overrides and the texts of prompts included; layout and comments
    /// left out.
    pub hash: Arc<str>,
    /// By name.
    pub models: BTreeMap<String, PlannedModel>,
    /// By name.
    pub corpora: Vec<PlannedCorpus>,
    /// Every node comes after those that feed it.
    pub nodes: Vec<PlannedNode>,
    /// Bounds of conversations.
    pub conversations: Conversations,
    /// When what is stored is kept in shape.
    pub maintenance: Maintenance,
    /// How often operators are called again.
    pub retries: Retries,
    /// Where turns go that failed.
    pub failed_turns: FailedTurns,
    /// Whether turns are answered again, for sinks that do not say.
    pub mode: AnswerMode,
    /// Where dead letters go; the state directory's `dead-letters.jsonl` if not given.
    pub dead_letters: Option<FilePath>,
    /// Files whose texts are part of what it says, as prompts are.
    pub texts: Vec<std::path::PathBuf>,
}

/// What indexes each corpus needs, by key; equal definitions are one index.
pub type Definitions = BTreeMap<Arc<str>, BTreeMap<String, Arc<dyn IndexDefinition>>>;

impl Plan {
    /// What indexes each corpus needs: every corpus is named.
    pub fn definitions(&self, models: &Models) -> Result<Definitions, BuildError> {
        let mut all: Definitions = self.corpora.iter().map(|corpus| (corpus.name.clone(), BTreeMap::new())).collect();
        for node in &self.nodes {
            let NodeKind::Operator(config) = &node.kind else { continue };
            let Some(corpus) = config.corpus() else { continue };
            for definition in config.indexes(models)? {
                let reads = |name: &str| !matches!(corpus, CorpusRef::Named(of) if *of != *name);
                for (_, indexes) in all.iter_mut().filter(|(name, _)| reads(name)) {
                    indexes.insert(definition.key(), definition.clone());
                }
            }
        }
        Ok(all)
    }

    /// The sinks that get revisions.
    pub fn live_sinks(&self) -> BTreeSet<Arc<str>> {
        let is_live = |node: &&PlannedNode| match &node.kind {
            NodeKind::Sink(config) => match config.mode() {
                Some(mode) => mode == SinkMode::Live,
                None => self.mode != AnswerMode::Once,
            },
            NodeKind::Source(_) | NodeKind::Operator(_) => false,
        };
        self.nodes.iter().filter(is_live).map(|node| node.id.clone()).collect()
    }

    /// Whether turns are answered again, and how long they stand: for any of the sinks.
    pub fn standing_mode(&self) -> AnswerMode {
        match &self.mode {
            _ if self.live_sinks().is_empty() => AnswerMode::Once,
            AnswerMode::Once => AnswerMode::Live { standing: default_standing(), ttl_s: default_ttl_s() },
            live => live.clone(),
        }
    }
}

/// What came of reading a pipeline file.
pub struct Planned {
    /// The plan, if there were no mistakes but files that are not there.
    pub plan: Option<Plan>,
    /// Every mistake, in the order of the file.
    pub diagnostics: Vec<Diagnostic>,
    /// Every text that was read, for showing them.
    pub sources: Sources,
}

/// Reads, resolves and checks a pipeline file.
pub fn plan_file(path: &Path, overrides: &[Override], catalog: &Catalog) -> Planned {
    plan(spec::load(path, overrides), catalog)
}

/// As [`plan_file`], of what is loaded already.
pub fn plan(loaded: spec::Loaded, catalog: &Catalog) -> Planned {
    let spec::Loaded { sources, tree, mut diagnostics } = loaded;
    let plan = tree.and_then(|tree| resolve::resolve(&tree, &sources, catalog, &mut diagnostics));
    // Stable, so that several at one place keep the order in which they were found.
    diagnostics.sort_by_key(|diagnostic| diagnostic.span.map(|span| (span.source, span.start)));
    let usable = diagnostics.iter().all(|diagnostic| diagnostic.missing.is_some());
    Planned { plan: plan.filter(|_| usable), diagnostics, sources }
}

/// What came of reading a file that is no pipeline and has models.
pub struct PlannedModels<C> {
    /// What it says, and its models by name, if there were no mistakes.
    pub plan: Option<(C, BTreeMap<String, PlannedModel>)>,
    /// Every mistake, in the order of the file.
    pub diagnostics: Vec<Diagnostic>,
    /// Every text that was read, for showing them.
    pub sources: Sources,
}

/// Reads a file that holds `name(models: {…}, …)`, with the mistakes of a pipeline file told
/// in the same way.
pub fn plan_models<C: ModelsFile>(
    loaded: spec::Loaded,
    name: &str,
    parse: Parse<C>,
    catalog: &Catalog,
) -> PlannedModels<C> {
    let spec::Loaded { sources, tree, mut diagnostics } = loaded;
    let plan =
        tree.and_then(|tree| resolve::models_file::resolve(name, parse, &tree, &sources, catalog, &mut diagnostics));
    diagnostics.sort_by_key(|diagnostic| diagnostic.span.map(|span| (span.source, span.start)));
    PlannedModels { plan: plan.filter(|_| diagnostics.is_empty()), diagnostics, sources }
}

impl Plan {
    /// The plan with nothing but these nodes and what feeds them, directly or through others;
    /// models that nothing left uses are left out too.
    pub fn towards(mut self, ends: &[&str]) -> Self {
        let needed = self.needed(|node| ends.contains(&&*node.id));
        let mut places = vec![0; needed.len()];
        let mut kept = Vec::new();
        for (at, mut node) in std::mem::take(&mut self.nodes).into_iter().enumerate().filter(|(at, _)| needed[*at]) {
            places[at] = kept.len();
            node.inputs.iter_mut().for_each(|input| *input = places[*input]);
            kept.push(node);
        }
        let mut used: BTreeSet<String> = self.corpora.iter().filter_map(|corpus| corpus.tokenizer.clone()).collect();
        for node in &kept {
            if let NodeKind::Operator(config) = &node.kind {
                used.extend(config.models().iter().map(|model| model.name.to_owned()));
            }
        }
        self.models.retain(|name, _| used.contains(name));
        self.nodes = kept;
        self
    }

    /// The plan with what leads to a sink, if it has sinks: what a run is for. A retriever that
    /// was not chosen then costs nothing.
    pub fn running(self) -> Self {
        let ends: Vec<Arc<str>> = self.sinks().map(|node| node.id.clone()).collect();
        let ends: Vec<&str> = ends.iter().map(|id| &**id).collect();
        if ends.is_empty() { self } else { self.towards(&ends) }
    }

    fn sinks(&self) -> impl Iterator<Item = &PlannedNode> {
        self.nodes.iter().filter(|node| node.output.is_none())
    }

    /// Which nodes are needed for these ends.
    fn needed(&self, is_end: impl Fn(&PlannedNode) -> bool) -> Vec<bool> {
        let mut needed = vec![false; self.nodes.len()];
        // Every node comes after those that feed it.
        for (at, node) in self.nodes.iter().enumerate().rev() {
            if needed[at] || is_end(node) {
                needed[at] = true;
                node.inputs.iter().for_each(|input| needed[*input] = true);
            }
        }
        needed
    }

    /// The node with this id.
    pub fn node(&self, id: &str) -> Option<&PlannedNode> {
        self.nodes.iter().find(|node| &*node.id == id)
    }

    /// The plan as text: models, corpora, and one line a node with its effective settings
    /// and port types.
    pub fn explain(&self) -> String {
        let mut out = format!("pipeline {:?}  hash {}\n", self.name, &self.hash[..16]);
        let width = self.nodes.iter().map(|node| node.id.len() + node.kind_name.len()).max().unwrap_or(0) + 5;
        for (name, model) in &self.models {
            let _ = writeln!(out, "model   {name:?} {}({})", model.kind_name, model.config.explain());
        }
        for corpus in &self.corpora {
            let mut chunk = corpus.chunker.explain();
            if let Some(model) = &corpus.tokenizer {
                chunk = format!("{chunk}, tokenizer of {model:?}");
            }
            let source = format!("{}({})", corpus.source_name, corpus.source.explain());
            let _ = writeln!(out, "corpus  {:?} {source} → {}({chunk})", corpus.name, corpus.chunker_name);
        }
        let all_run = self.sinks().next().is_none();
        let needed = self.needed(|node| all_run || node.output.is_none());
        for (node, needed) in self.nodes.iter().zip(needed) {
            let inputs: Vec<&str> = node.inputs.iter().map(|&input| &*self.nodes[input].id).collect();
            let takes = match (node.ports, inputs.as_slice()) {
                ([], _) => String::new(),
                (ports, inputs) => {
                    let mut types: Vec<String> = ports.iter().map(ToString::to_string).collect();
                    types.dedup();
                    format!("{} [{}]", types.join(", "), inputs.join(", "))
                }
            };
            let gives = node.output.map_or("·".to_owned(), |output| output.to_string());
            let head = format!("{:?} {}", node.id, node.kind_name);
            let edges = if takes.is_empty() { gives } else { format!("{takes} → {gives}") };
            let idle = if needed { "" } else { "  leads to no sink: not run" };
            let _ = writeln!(out, "node    {head:width$} {edges}  ({}){idle}", node.explain());
        }
        out
    }
}
