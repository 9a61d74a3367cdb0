//! Plans: resolved pipeline files. Before anything runs, every name is resolved, every edge and
//! value is checked, and every mistake is reported.

mod diff;
mod divided;
mod resolve;
mod without;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

pub use self::diff::{ChangeKind, PlanDiff, PlanFingerprint};
pub use self::divided::Divided;
pub use self::resolve::models_file::ModelsFile;
pub use self::without::Without;
use crate::component::{
    Alias, Aliases, BuildError, Catalog, ChunkerConfig, CorpusRef, CorpusSourceConfig, IndexDefinition, InputPort,
    ModelConfig, ModelUse, Models, OpenPassages, OperatorConfig, Parse, SinkConfig, SinkMode, TurnSourceConfig, config,
};
use crate::record::PortType;
use crate::spec::{self, Diagnostic, FilePath, Override, Sources};

/// The kind of a node.
pub enum NodeKind {
    /// Reads turns.
    Source(Box<dyn TurnSourceConfig>),
    /// Computes a value from its inputs.
    Operator(Box<dyn OperatorConfig>),
    /// Writes answers.
    Sink(Box<dyn SinkConfig>),
}

/// A node of the graph.
pub struct PlannedNode {
    /// Its id.
    pub id: Arc<str>,
    /// The name of its kind: `Bm25`.
    pub kind_name: &'static str,
    /// Hash of its definition in the file.
    pub definition: Arc<str>,
    /// Hash of its definition without its inputs.
    pub settings: Arc<str>,
    /// Its kind, with its configuration.
    pub kind: NodeKind,
    /// Indexes of its input nodes, in the order of its ports and lists.
    pub inputs: Vec<usize>,
    /// Its input ports.
    pub ports: &'static [InputPort],
    /// Its output type; `None` for sinks.
    pub output: Option<PortType>,
}

impl PlannedNode {
    /// Its configuration and those of the operators inside it; none for sources and sinks.
    pub fn operators(&self) -> Vec<&dyn OperatorConfig> {
        let NodeKind::Operator(config) = &self.kind else { return Vec::new() };
        std::iter::once(&**config).chain(config.inner().into_iter().map(|inner| inner.config)).collect()
    }

    /// The models that it and the operators inside it use.
    pub fn models(&self) -> Vec<ModelUse<'_>> {
        match &self.kind {
            NodeKind::Sink(config) => config.models(),
            _ => self.operators().into_iter().flat_map(|config| config.models()).collect(),
        }
    }

    /// Its effective settings, in one line.
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
    /// Hash of its definition in the file.
    pub definition: Arc<str>,
    /// The kind name of its source.
    pub source_name: &'static str,
    /// The source of its documents.
    pub source: Box<dyn CorpusSourceConfig>,
    /// The kind name of its chunker.
    pub chunker_name: &'static str,
    /// The chunker that cuts its documents into passages.
    pub chunker: Box<dyn ChunkerConfig>,
    /// The model whose tokenizer the chunker uses.
    pub tokenizer: Option<String>,
    /// Other names by which a turn's `collection` may name it.
    pub aliases: Vec<Alias>,
    /// What keeps its published passages.
    pub passages: Option<OpenPassages>,
    /// What it declares about the metadata of its documents.
    pub schema: Arc<crate::schema::Schema>,
}

impl PlannedCorpus {
    /// The names of the models that its chunker and its source use.
    pub fn models(&self) -> impl Iterator<Item = &str> {
        let of_source = self.source.models().into_iter().map(|used| used.name);
        self.tokenizer.as_deref().into_iter().chain(of_source)
    }
}

/// A model.
pub struct PlannedModel {
    /// The name of its kind.
    pub kind_name: &'static str,
    /// Hash of its definition in the file.
    pub definition: Arc<str>,
    /// Its configuration.
    pub config: Box<dyn ModelConfig>,
    /// Whether the pipeline runs without it if it cannot be loaded.
    pub optional: bool,
    /// The files that an optional model lacked when the plan was made.
    pub missing: Vec<std::path::PathBuf>,
}

/// Limits of conversations: history, concurrency, queues and memory.
#[config(default)]
#[derive(PartialEq, Eq)]
pub struct Conversations {
    /// Utterances of history that a turn sees; older ones are dropped.
    #[field(default = 200)]
    pub max_utterances: usize,
    /// Seconds after which a conversation without turns expires. Default: one day.
    #[field(default = 86_400)]
    pub idle_s: u64,
    /// Turns processed at once, one for each conversation. Workers and callers get free places in turn; of the conversations
    /// of one worker, the one that has waited longest is next.
    #[field(default = 64)]
    pub max_in_flight: usize,
    /// Records of a source that are read ahead while they wait for the previous turn of their conversation, or to start. At
    /// this limit the source is paused.
    #[field(default = 10_000)]
    pub max_queued: usize,
    /// Megabytes of these records.
    #[field(default = 64)]
    pub max_queued_mb: u64,
    /// Idle conversations of a source that are held in memory. Past this limit, the least recently used ones are kept only
    /// in the state directory; without one, they are forgotten.
    #[field(default = 10_000)]
    pub max_held: usize,
    /// Megabytes of their histories.
    #[field(default = 64)]
    pub max_held_mb: u64,
}

/// Retries of operator calls after transient errors: of a model's server or device, not a prompt
/// that is too long or a corpus that does not exist.
#[config(default)]
#[derive(Copy, PartialEq, Eq)]
pub struct Retries {
    /// Maximum number of calls; 1 for no retry.
    #[field(default = 3)]
    pub attempts: u32,
    /// Milliseconds before the first retry; doubled before each further one.
    #[field(default = 200)]
    pub first_ms: u64,
    /// Maximum milliseconds before a retry.
    #[field(default = 5000)]
    pub most_ms: u64,
}

/// Where failed turns are written.
#[config]
#[derive(Copy, Default, PartialEq, Eq)]
pub enum FailedTurns {
    /// To the sinks, as a record with the status `failed`. The default.
    #[default]
    Answer,
    /// To the sinks and to the dead letters, from where they can be retried.
    DeadLetter,
}

/// Maintenance of stored data: when indexes are compacted, and the limits of the inference cache.
#[config(default)]
#[derive(PartialEq, Eq)]
pub struct Maintenance {
    /// Seconds after which a changed corpus is maintained; 0 to disable this trigger.
    #[field(default = 300)]
    pub every_s: u64,
    /// Publications of a corpus after which it is maintained earlier; 0 to disable this trigger.
    #[field(default = 200)]
    pub publications: u64,
    /// Seconds that the maintenance of one index may take; then it is cancelled and retried later.
    #[field(default = 20)]
    pub limit_s: u64,
    /// Days after which an unused entry of the inference cache of turns expires; 0 for never.
    #[field(default = 30)]
    pub memo_days: u32,
    /// Maximum megabytes of the inference cache of turns; the least recently used entries are evicted first. 0 for no limit.
    #[field(default = 1024)]
    pub memo_mb: u64,
}

/// Whether an answer is revised when its corpora change.
#[config]
#[derive(Default, PartialEq, Eq)]
pub enum AnswerMode {
    /// A turn is answered once, from the epoch that it reads. The default.
    #[default]
    Once,
    /// A turn stands: when a new epoch changes what it retrieves, its answer is
    /// retracted and it is answered again.
    Live {
        /// Maximum number of standing turns, over all workers; the oldest are dropped first.
        #[field(default = 100_000)]
        standing: usize,
        /// Seconds that a turn stands. Default: one day.
        #[field(default = 86_400)]
        ttl_s: u64,
    },
}

/// Whether answers are kept for turns that ask the same.
#[config]
#[derive(PartialEq)]
pub enum AnswerCacheSettings {
    /// A turn whose question, history, principal, filters and further fields equal those of an earlier one gets its answer
    /// at once, as long as no change of the documents has reached what that answer depends on.
    Answers {
        /// Maximum number of answers; those that were not used for longest are dropped first. An answer with ten
        /// passages takes some 10 kB of memory.
        #[field(default = NonZeroUsize::MIN.saturating_add(9_999))]
        entries: NonZeroUsize,
        /// A caller's first question whose words are those of an earlier one, apart from little words such as `the` and
        /// `please`, gets the answer of that one if the cosine of their vectors is at least this. From 0 to 1. Default:
        /// only questions that are equal count.
        similar: Option<f32>,
        /// The encoder for `similar`.
        model: Option<String>,
    },
}

/// A valid pipeline, ready to run.
pub struct Plan {
    /// Its name.
    pub name: String,
    /// Hash of its content, with overrides and prompt texts, without layout and comments.
    pub hash: Arc<str>,
    /// Its models, by name.
    pub models: BTreeMap<String, PlannedModel>,
    /// Its corpora, sorted by name.
    pub corpora: Vec<PlannedCorpus>,
    /// Its nodes, each after its inputs.
    pub nodes: Vec<PlannedNode>,
    /// Limits of conversations.
    pub conversations: Conversations,
    /// When stored data is maintained.
    pub maintenance: Maintenance,
    /// How operator calls are retried.
    pub retries: Retries,
    /// Where failed turns are written.
    pub failed_turns: FailedTurns,
    /// Answer mode of sinks that set none.
    pub mode: AnswerMode,
    /// Whether answers are kept for turns that ask the same. Default: no.
    pub cache: Option<AnswerCacheSettings>,
    /// The dead-letter file. Default: `dead-letters.jsonl` in the state directory.
    pub dead_letters: Option<FilePath>,
    /// Text files that are part of the plan, such as prompts.
    pub texts: Vec<std::path::PathBuf>,
}

/// The indexes that each corpus needs, by key. Equal definitions share one index.
pub type Definitions = BTreeMap<Arc<str>, BTreeMap<String, Arc<dyn IndexDefinition>>>;

impl Plan {
    /// The indexes that each corpus needs. Every corpus has an entry.
    ///
    /// # Errors
    ///
    /// An operator cannot define its indexes.
    pub fn definitions(&self, models: &Models) -> Result<Definitions, BuildError> {
        let mut all: Definitions = self.corpora.iter().map(|corpus| (corpus.name.clone(), BTreeMap::new())).collect();
        for node in &self.nodes {
            for config in node.operators() {
                let Some(corpus) = config.corpus() else { continue };
                // Without its model, an index can be neither read nor written. It stays on the disk as it is.
                if config.models().iter().any(|used| self.lacks(used.name, models)) {
                    continue;
                }
                for definition in config.indexes(models)? {
                    let reads = |name: &str| !matches!(corpus, CorpusRef::Named(of) if *of != *name);
                    for (_, indexes) in all.iter_mut().filter(|(name, _)| reads(name)) {
                        indexes.insert(definition.key(), definition.clone());
                    }
                }
            }
        }
        Ok(all)
    }

    /// Whether this optional model is not among the loaded ones.
    pub fn lacks(&self, name: &str, models: &Models) -> bool {
        self.models.get(name).is_some_and(|model| model.optional) && !models.contains_key(name)
    }

    /// The aliases of its corpora, and which of them have the same documents.
    pub fn aliases(&self) -> Aliases {
        let of = |corpus: &PlannedCorpus| {
            let name = corpus.name.clone();
            corpus.aliases.clone().into_iter().map(move |alias| (alias, name.clone()))
        };
        let sources = self.corpora.iter().map(|corpus| {
            let own = corpus.source.is_of_one_corpus().then(|| corpus.name.clone());
            (corpus.name.clone(), (corpus.source_name, format!("{:?}", corpus.source), own))
        });
        Aliases::new(self.corpora.iter().flat_map(of)).with_sources(sources)
    }

    /// The name of the corpus that a turn with this `collection` means, if there is one.
    pub fn corpus_of(&self, collection: &str) -> Option<Arc<str>> {
        let named = self.corpora.iter().find(|corpus| *corpus.name == *collection);
        named.map(|corpus| corpus.name.clone()).or_else(|| self.aliases().corpus(collection).cloned())
    }

    /// The sinks that receive revisions.
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

    /// The answer mode that covers all sinks: `Live` if any sink is live.
    pub fn standing_mode(&self) -> AnswerMode {
        match &self.mode {
            _ if self.live_sinks().is_empty() => AnswerMode::Once,
            AnswerMode::Once => AnswerMode::Live {
                standing: AnswerMode::default_live_standing(),
                ttl_s: AnswerMode::default_live_ttl_s(),
            },
            live => live.clone(),
        }
    }
}

/// The result of planning a pipeline file.
pub struct Planned {
    /// The plan, if the only mistakes are missing files.
    pub plan: Option<Plan>,
    /// Every mistake, in file order.
    pub diagnostics: Vec<Diagnostic>,
    /// Every text that was read, for rendering the diagnostics.
    pub sources: Sources,
}

/// Reads, resolves and checks a pipeline file.
pub fn plan_file(path: &Path, overrides: &[Override], catalog: &Catalog) -> Planned {
    plan(spec::load(path, overrides), catalog)
}

/// Like [`plan_file`], for a loaded file.
pub fn plan(loaded: spec::Loaded, catalog: &Catalog) -> Planned {
    let spec::Loaded { sources, tree, mut diagnostics } = loaded;
    let plan = tree.and_then(|tree| resolve::resolve(&tree, &sources, catalog, &mut diagnostics));
    // The sort is stable: diagnostics at one position keep the order in which they were found.
    diagnostics.sort_by_key(|diagnostic| diagnostic.span.map(|span| (span.source, span.start)));
    let usable = diagnostics.iter().all(|diagnostic| diagnostic.missing.is_some());
    Planned { plan: plan.filter(|_| usable), diagnostics, sources }
}

/// The result of planning a file that has models but is not a pipeline.
pub struct PlannedModels<C> {
    /// Its configuration, and its models by name, if there are no errors.
    pub plan: Option<(C, BTreeMap<String, PlannedModel>)>,
    /// Every mistake, in file order.
    pub diagnostics: Vec<Diagnostic>,
    /// Every text that was read, for rendering the diagnostics.
    pub sources: Sources,
}

/// Plans a file that contains `name(models: {…}, …)`; reports mistakes like those of a pipeline file.
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
    /// The plan reduced to these nodes and their direct and indirect inputs, without unused models.
    pub fn towards(mut self, ends: &[&str]) -> Self {
        let needed = self.needed(|node| ends.contains(&&*node.id));
        let mut places = vec![0; needed.len()];
        let mut kept = Vec::new();
        for (at, mut node) in std::mem::take(&mut self.nodes).into_iter().enumerate().filter(|(at, _)| needed[*at]) {
            places[at] = kept.len();
            node.inputs.iter_mut().for_each(|input| *input = places[*input]);
            kept.push(node);
        }
        let mut used: BTreeSet<String> =
            self.corpora.iter().flat_map(PlannedCorpus::models).map(str::to_owned).collect();
        for node in &kept {
            used.extend(node.models().iter().map(|model| model.name.to_owned()));
        }
        self.models.retain(|name, _| used.contains(name));
        self.nodes = kept;
        self
    }

    /// The plan reduced to the nodes that lead to a sink, if it has sinks. An unused retriever then
    /// costs nothing.
    pub fn running(self) -> Self {
        let ends: Vec<Arc<str>> = self.sinks().map(|node| node.id.clone()).collect();
        let ends: Vec<&str> = ends.iter().map(|id| &**id).collect();
        if ends.is_empty() { self } else { self.towards(&ends) }
    }

    fn sinks(&self) -> impl Iterator<Item = &PlannedNode> {
        self.nodes.iter().filter(|node| node.output.is_none())
    }

    /// Which nodes the end nodes need, themselves included.
    fn needed(&self, is_end: impl Fn(&PlannedNode) -> bool) -> Vec<bool> {
        let mut needed = vec![false; self.nodes.len()];
        // Every node comes after its inputs.
        for (at, node) in self.nodes.iter().enumerate().rev() {
            if needed[at] || is_end(node) {
                needed[at] = true;
                node.inputs.iter().for_each(|input| needed[*input] = true);
            }
        }
        needed
    }

    /// The places of these nodes and of their direct and indirect inputs.
    pub fn upstream(&self, ends: &[String]) -> Vec<usize> {
        let needed = self.needed(|node| ends.iter().any(|end| **end == *node.id));
        (0..self.nodes.len()).filter(|at| needed[*at]).collect()
    }

    /// The node with this id.
    pub fn node(&self, id: &str) -> Option<&PlannedNode> {
        self.nodes.iter().find(|node| &*node.id == id)
    }

    /// The plan as text: models, corpora, and one line per node with its port types and effective
    /// settings.
    pub fn explain(&self) -> String {
        self.explain_with(|_, _| None)
    }

    /// The same, with a line after each node for whose id and settings `measured` returns one.
    pub fn explain_with(&self, measured: impl Fn(&str, &str) -> Option<String>) -> String {
        let mut out = format!("pipeline {:?}  hash {}\n", self.name, &self.hash[..16]);
        let width = self.nodes.iter().map(|node| node.id.len() + node.kind_name.len()).max().unwrap_or(0) + 5;
        for (name, model) in &self.models {
            let optional = if model.optional { ", optional: true" } else { "" };
            let _ = writeln!(out, "model   {name:?} {}({}{optional})", model.kind_name, model.config.explain());
        }
        for corpus in &self.corpora {
            let mut chunk = corpus.chunker.explain();
            if let Some(model) = &corpus.tokenizer {
                chunk = format!("{chunk}, tokenizer of {model:?}");
            }
            let source = format!("{}({})", corpus.source_name, corpus.source.explain());
            let aliases: Vec<String> = corpus.aliases.iter().map(|alias| format!("{:?}", alias.to_string())).collect();
            let also = if aliases.is_empty() { String::new() } else { format!("  aliases: {}", aliases.join(", ")) };
            let declared: String = corpus.schema.explain().iter().map(|part| format!("  {part}")).collect();
            let chunker = corpus.chunker_name;
            let _ = writeln!(out, "corpus  {:?} {source} → {chunker}({chunk}){also}{declared}", corpus.name);
        }
        let divided = Divided::of(self);
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
            if let Some(how) = divided.explain(&node.id) {
                let _ = writeln!(out, "        {:width$} in a cluster: {how}", "");
            }
            if let Some(measured) = measured(&node.id, &node.explain()) {
                let _ = writeln!(out, "        {:width$} measured: {measured}", "");
            }
        }
        out
    }
}
