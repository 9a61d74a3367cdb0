//! Names to what they name, with every mistake on the way.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;

use super::{Conversations, NodeKind, Plan, PlannedCorpus, PlannedModel, PlannedNode};
use crate::component::{Ability, Catalog, Check, CorpusRef, InputPort, Parse};
use crate::record::PortType;
use crate::spec::{Diagnostic, Entry, FilePath, Kind, Name, Problem, Sources, Span, SpecError, Tree, from_tree};

const SINK_PORTS: &[InputPort] = &[InputPort::one(PortType::Answers)];

/// A configuration that is fine, or so wrong that what hangs on it cannot be judged.
struct Resolver<'a> {
    sources: &'a Sources,
    catalog: &'a Catalog,
    diagnostics: &'a mut Vec<Diagnostic>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename = "Pipeline")]
struct Top {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    conversations: Conversations,
    #[serde(default)]
    dead_letters: Option<FilePath>,
    // Read one by one, so that each mistake in them is told.
    #[serde(default, rename = "models")]
    _models: serde::de::IgnoredAny,
    #[serde(default, rename = "corpora")]
    _corpora: serde::de::IgnoredAny,
    #[serde(rename = "nodes")]
    _nodes: serde::de::IgnoredAny,
}

pub(super) fn resolve(
    tree: &Tree,
    sources: &Sources,
    catalog: &Catalog,
    diagnostics: &mut Vec<Diagnostic>,
) -> Option<Plan> {
    let mut resolver = Resolver { sources, catalog, diagnostics };
    match tree.name() {
        Some(name) if name.text == "Pipeline" && tree.entries().is_some() => {}
        _ => {
            let message = format!("a pipeline file holds `Pipeline(…)`, not {}", tree.describe());
            resolver
                .diagnostics
                .push(Diagnostic::new("not-a-pipeline", head(tree), message).label("expected `Pipeline(…)`"));
            return None;
        }
    }
    let parse: fn(&Tree, &Sources) -> Result<Box<Top>, SpecError> =
        |tree, sources| from_tree(tree, sources).map(Box::new);
    let top = resolver.config("the pipeline", tree, parse);
    let models = resolver.models(tree);
    let corpora = resolver.corpora(tree, &models);
    let nodes = resolver.nodes(tree, &models, &corpora);
    let top = top?;
    if !(1..=100_000).contains(&top.conversations.max_in_flight) {
        let place = tree.get("conversations").and_then(|tree| tree.get("max_in_flight")).unwrap_or(tree);
        let message = format!("the pipeline: `max_in_flight` is {}, out of range", top.conversations.max_in_flight);
        resolver.diagnostics.push(Diagnostic::new("out-of-range", place.span, message).label("expected 1 to 100000"));
    }
    let name = top.name.unwrap_or_else(|| {
        let file = std::path::Path::new(&sources.get(tree.span.source).name);
        file.file_stem().map_or("pipeline".into(), |stem| stem.to_string_lossy().into_owned())
    });
    let hash = blake3::hash(tree.canonical().as_bytes()).to_hex().to_string().into();
    Some(Plan {
        name,
        hash,
        models: models.into_iter().filter_map(|(name, model)| Some((name, model?))).collect(),
        corpora: corpora.into_iter().filter_map(|(_, corpus)| corpus).collect(),
        nodes: nodes?,
        conversations: top.conversations,
        dead_letters: top.dead_letters,
    })
}

/// The part of a value to underline when all of it is meant: its name, if it has one.
fn head(tree: &Tree) -> Span {
    tree.name().map_or(tree.span, |name| name.span)
}

impl Resolver<'_> {
    /// The members of one of the pipeline's maps.
    fn members<'t>(&mut self, tree: &'t Tree, field: &str) -> &'t [Entry] {
        match tree.get(field).map(|tree| (tree, &tree.kind)) {
            None => &[],
            Some((_, Kind::Map(entries))) => entries,
            Some((other, _)) => {
                let message = format!("`{field}` is a map, not {}", other.describe());
                let label = "expected {\"name\": Kind(…)}";
                self.diagnostics.push(Diagnostic::new("wrong-type", other.span, message).label(label));
                &[]
            }
        }
    }

    /// The name of a value that must have one.
    fn kind<'t>(&mut self, what: &str, tree: &'t Tree) -> Option<&'t Name> {
        if tree.name().is_none() {
            let message = format!("{what} is written `Kind(…)`, not as {}", tree.describe());
            self.diagnostics.push(Diagnostic::new("wrong-type", tree.span, message).label("expected a kind's name"));
        }
        tree.name()
    }

    fn unknown<'n>(&mut self, code: &'static str, what: &str, name: &Name, known: impl Iterator<Item = &'n str>) {
        let message = format!("unknown {what} `{}`", name.text);
        self.diagnostics.push(
            Diagnostic::new(code, name.span, message).label(format!("no such {what}")).choices(&name.text, known),
        );
    }

    /// Types a configuration. A struct is typed again without each field that is wrong, so
    /// that all its mistakes are told, not only the first.
    fn config<C: ?Sized>(&mut self, owner: &str, tree: &Tree, parse: Parse<C>) -> Option<Box<C>> {
        let mut rest = tree.clone();
        let mut dropped: Vec<String> = Vec::new();
        loop {
            let error = match parse(&rest, self.sources) {
                Ok(config) => return dropped.is_empty().then_some(config),
                Err(error) => error,
            };
            // A field that was dropped is missing through us, not through the author.
            if !matches!(&error.problem, Problem::MissingField(field) if dropped.iter().any(|name| name == field)) {
                self.diagnostics.push(self.explain(owner, tree, &error));
            }
            let Some(span) = error.span else { return None };
            let Some(entries) = rest.entries_mut() else { return None };
            let wrong = |entry: &Entry| entry.key.span == span || entry.value.span.contains(&span);
            match entries.iter().position(wrong) {
                Some(at) => dropped.push(entries.remove(at).key.text),
                None => return None,
            }
        }
    }

    fn explain(&self, owner: &str, tree: &Tree, error: &SpecError) -> Diagnostic {
        let span = error.span.unwrap_or(tree.span);
        match &error.problem {
            Problem::UnknownField { field, expected } => {
                Diagnostic::new("unknown-field", span, format!("{owner}: unknown field `{field}`"))
                    .label("no such field")
                    .choices(field, expected.iter().copied())
            }
            Problem::MissingField(field) => {
                // Underline the name of what lacks the field, not all of it.
                let place = if span == tree.span { head(tree) } else { span };
                Diagnostic::new("missing-field", place, format!("{owner}: missing field `{field}`"))
                    .label(format!("`{field}` has no default and is not given"))
            }
            Problem::UnknownVariant { variant, expected } => {
                Diagnostic::new("unknown-variant", span, format!("{owner}: unknown `{variant}`"))
                    .label("none of the choices")
                    .choices(variant, expected.iter().copied())
            }
            Problem::Type { expected } => {
                let text = &self.sources.get(span.source).text;
                let written: String = text.get(span.start..span.end).unwrap_or_default().chars().take(40).collect();
                Diagnostic::new("wrong-type", span, format!("{owner}: wrong type: `{written}`"))
                    .label(format!("expected {expected}"))
            }
            Problem::Other(message) => Diagnostic::new("wrong-value", span, format!("{owner}: {message}")),
        }
    }

    fn check<'t>(&'t mut self, owner: &'t str, tree: &'t Tree) -> Check<'t> {
        Check { tree, owner, diagnostics: self.diagnostics }
    }

    fn models(&mut self, tree: &Tree) -> BTreeMap<String, Option<PlannedModel>> {
        let mut models = BTreeMap::new();
        for entry in self.members(tree, "models") {
            let name = &entry.key.text;
            let owner = format!("model `{name}`");
            let planned = self.kind(&owner, &entry.value).and_then(|kind_name| {
                let Some(kind) = self.catalog.models.iter().find(|kind| kind.name == kind_name.text) else {
                    self.unknown(
                        "unknown-model-kind",
                        "kind of model",
                        kind_name,
                        self.catalog.models.iter().map(|kind| kind.name),
                    );
                    return None;
                };
                let config = self.config(&owner, &entry.value, kind.parse)?;
                config.validate(&mut self.check(&owner, &entry.value));
                Some(PlannedModel { kind_name: kind.name, config })
            });
            models.insert(name.clone(), planned);
        }
        models
    }

    fn corpora(
        &mut self,
        tree: &Tree,
        models: &BTreeMap<String, Option<PlannedModel>>,
    ) -> BTreeMap<String, Option<PlannedCorpus>> {
        let mut corpora = BTreeMap::new();
        for entry in self.members(tree, "corpora") {
            let planned = self.corpus(entry, models);
            corpora.insert(entry.key.text.clone(), planned);
        }
        corpora
    }

    fn corpus(&mut self, entry: &Entry, models: &BTreeMap<String, Option<PlannedModel>>) -> Option<PlannedCorpus> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Corpus {
            #[serde(rename = "source")]
            _source: serde::de::IgnoredAny,
            #[serde(rename = "chunk")]
            _chunk: serde::de::IgnoredAny,
        }
        let (name, tree) = (&entry.key.text, &entry.value);
        let owner = format!("corpus `{name}`");
        let catalog = self.catalog;
        match self.kind(&owner, tree)? {
            kind if kind.text == "Corpus" => {}
            kind => {
                self.unknown("unknown-corpus-kind", "kind of corpus", kind, ["Corpus"].into_iter());
                return None;
            }
        }
        let parse: fn(&Tree, &Sources) -> Result<Box<Corpus>, SpecError> =
            |tree, sources| from_tree(tree, sources).map(Box::new);
        let shape = self.config(&owner, tree, parse);
        let source = tree.get("source").and_then(|source| {
            let kind_name = self.kind(&owner, source)?;
            let Some(kind) = catalog.corpus_sources.iter().find(|kind| kind.name == kind_name.text) else {
                self.unknown(
                    "unknown-source",
                    "corpus source",
                    kind_name,
                    catalog.corpus_sources.iter().map(|kind| kind.name),
                );
                return None;
            };
            let config = self.config(&owner, source, kind.parse)?;
            config.validate(&mut self.check(&owner, source));
            Some((kind.name, config))
        });
        let chunker = tree.get("chunk").and_then(|chunk| {
            let kind_name = self.kind(&owner, chunk)?;
            let Some(kind) = catalog.chunkers.iter().find(|kind| kind.name == kind_name.text) else {
                self.unknown("unknown-chunker", "chunker", kind_name, catalog.chunkers.iter().map(|kind| kind.name));
                return None;
            };
            let config = self.config(&owner, chunk, kind.parse)?;
            config.validate(&mut self.check(&owner, chunk));
            let tokenizer = match config.tokenizer() {
                None => None,
                Some(wanted) => Some(self.tokenizer(&owner, chunk, wanted, models)?),
            };
            Some((kind.name, config, tokenizer))
        });
        shape?;
        let ((source_name, source), (chunker_name, chunker, tokenizer)) = (source?, chunker?);
        Some(PlannedCorpus { name: name.as_str().into(), source_name, source, chunker_name, chunker, tokenizer })
    }

    fn tokenizer(
        &mut self,
        owner: &str,
        chunk: &Tree,
        wanted: Option<&str>,
        models: &BTreeMap<String, Option<PlannedModel>>,
    ) -> Option<String> {
        if let Some(name) = wanted {
            let place = chunk.get("model").map_or(chunk.span, |tree| tree.span);
            return self.model(owner, place, name, Ability::Tokenize, models).then(|| name.to_owned());
        }
        let able = |model: &PlannedModel| model.config.abilities().contains(&Ability::Tokenize);
        // A model that is wrong itself may have been the one meant.
        let found = models.iter().find(|(_, model)| model.as_ref().is_none_or(able)).map(|(name, _)| name.clone());
        if found.is_none() {
            let message = format!("{owner}: cutting by tokens needs a model with a tokenizer, and there is none");
            self.diagnostics.push(Diagnostic::new("unknown-model", head(chunk), message).help("add one to `models`"));
        }
        found
    }

    /// Whether the model is there and able; reports it if not.
    fn model(
        &mut self,
        owner: &str,
        place: Span,
        name: &str,
        ability: Ability,
        models: &BTreeMap<String, Option<PlannedModel>>,
    ) -> bool {
        match models.get(name) {
            Some(Some(model)) if !model.config.abilities().contains(&ability) => {
                let message = format!("{owner}: `{name}` is a {} and cannot {ability:?}", model.kind_name);
                self.diagnostics.push(Diagnostic::new("wrong-model", place, message));
                false
            }
            Some(_) => true,
            None => {
                let message = format!("{owner}: unknown model `{name}`");
                let diagnostic = Diagnostic::new("unknown-model", place, message).label("no such model");
                self.diagnostics.push(diagnostic.choices(name, models.keys().map(String::as_str)));
                false
            }
        }
    }

    fn nodes(
        &mut self,
        tree: &Tree,
        models: &BTreeMap<String, Option<PlannedModel>>,
        corpora: &BTreeMap<String, Option<PlannedCorpus>>,
    ) -> Option<Vec<PlannedNode>> {
        let entries = self.members(tree, "nodes");
        // What each node gives, known by its kind even if its configuration is wrong.
        let outputs: BTreeMap<&str, Option<PortType>> =
            entries.iter().map(|entry| (entry.key.text.as_str(), self.output(&entry.value))).collect();
        let is_sink =
            |tree: &Tree| tree.name().is_some_and(|name| self.catalog.sinks.iter().any(|kind| kind.name == name.text));
        let sinks: Vec<&str> =
            entries.iter().filter(|entry| is_sink(&entry.value)).map(|entry| entry.key.text.as_str()).collect();
        let mut nodes = Vec::new();
        let mut edges: BTreeMap<&str, Vec<(String, Span)>> = BTreeMap::new();
        for entry in entries {
            let id = entry.key.text.as_str();
            let Some((kind_name, ports, output)) = self.known_kind(entry) else { continue };
            let inputs = self.inputs(entry, kind_name, ports, &outputs, &sinks);
            let owner = format!("{kind_name} `{id}`");
            let kind = self.node(&owner, &entry.value, kind_name, models, corpora);
            if let Some(kind) = kind {
                nodes.push((entry, PlannedNode { id: id.into(), kind_name, kind, inputs: Vec::new(), ports, output }));
            }
            edges.insert(id, inputs);
        }
        if entries.is_empty() && tree.get("nodes").is_some_and(|nodes| matches!(nodes.kind, Kind::Map(_))) {
            self.diagnostics.push(Diagnostic::new(
                "no-source",
                tree.get("nodes").map(|nodes| nodes.span),
                "the pipeline has no nodes",
            ));
        }
        self.cycles(entries, &edges);
        if !self.diagnostics.is_empty() || nodes.len() != entries.len() {
            return None;
        }
        Some(order(nodes, &edges))
    }

    fn output(&self, tree: &Tree) -> Option<PortType> {
        let name = &tree.name()?.text;
        let operator = self.catalog.operators.iter().find(|kind| kind.name == name).map(|kind| kind.output);
        operator.or_else(|| self.catalog.turn_sources.iter().any(|kind| kind.name == name).then_some(PortType::Turns))
    }

    fn known_kind(&mut self, entry: &Entry) -> Option<(&'static str, &'static [InputPort], Option<PortType>)> {
        let owner = format!("node `{}`", entry.key.text);
        let name = self.kind(&owner, &entry.value)?;
        let Catalog { operators, turn_sources, sinks, .. } = self.catalog;
        if let Some(kind) = operators.iter().find(|kind| kind.name == name.text) {
            return Some((kind.name, kind.inputs, Some(kind.output)));
        }
        if let Some(kind) = turn_sources.iter().find(|kind| kind.name == name.text) {
            return Some((kind.name, &[], Some(PortType::Turns)));
        }
        if let Some(kind) = sinks.iter().find(|kind| kind.name == name.text) {
            return Some((kind.name, SINK_PORTS, None));
        }
        let known = operators.iter().map(|kind| kind.name);
        let known = known.chain(turn_sources.iter().map(|kind| kind.name)).chain(sinks.iter().map(|kind| kind.name));
        self.unknown("unknown-operator", "operator", name, known);
        None
    }

    /// The nodes that feed this one, with the place where each is named.
    fn inputs(
        &mut self,
        entry: &Entry,
        kind_name: &str,
        ports: &[InputPort],
        outputs: &BTreeMap<&str, Option<PortType>>,
        sinks: &[&str],
    ) -> Vec<(String, Span)> {
        let owner = format!("{kind_name} `{}`", entry.key.text);
        let mut inputs = Vec::new();
        for port in ports {
            // A missing or ill-typed field is told when the configuration is typed.
            let named: Vec<&Tree> = match entry.value.get(port.field).map(|tree| (tree, &tree.kind)) {
                Some((_, Kind::Seq(items))) if port.many => items.iter().collect(),
                Some((tree, _)) if !port.many => vec![tree],
                _ => continue,
            };
            for tree in named {
                let Kind::Scalar(ron::Value::String(name)) = &tree.kind else { continue };
                match outputs.get(name.as_str()) {
                    None => {
                        let message = format!("{owner}: there is no node `{name}`");
                        let diagnostic = Diagnostic::new("unknown-input", tree.span, message).label("no such node");
                        self.diagnostics.push(diagnostic.choices(name, outputs.keys().copied()));
                    }
                    Some(Some(output)) if *output != port.port => {
                        let message = format!("{owner} takes {}, and `{name}` gives {output}", port.port);
                        let fitting: Vec<_> = outputs
                            .iter()
                            .filter(|(id, given)| **given == Some(port.port) && **id != entry.key.text)
                            .map(|(id, _)| format!("`{id}`"))
                            .collect();
                        let diagnostic =
                            Diagnostic::new("port-type", tree.span, message).label(format!("expected {}", port.port));
                        self.diagnostics.push(match fitting.as_slice() {
                            [] => diagnostic.help(format!("no node gives {}", port.port)),
                            fitting => diagnostic.help(format!("{} are given by: {}", port.port, fitting.join(", "))),
                        });
                    }
                    Some(None) if sinks.contains(&name.as_str()) => {
                        let message = format!("{owner}: `{name}` is a sink and gives nothing");
                        let diagnostic = Diagnostic::new("port-type", tree.span, message);
                        self.diagnostics.push(diagnostic.label(format!("expected {}", port.port)));
                    }
                    Some(_) => inputs.push((name.clone(), tree.span)),
                }
            }
        }
        inputs
    }

    fn node(
        &mut self,
        owner: &str,
        tree: &Tree,
        kind_name: &'static str,
        models: &BTreeMap<String, Option<PlannedModel>>,
        corpora: &BTreeMap<String, Option<PlannedCorpus>>,
    ) -> Option<NodeKind> {
        let catalog = self.catalog;
        if let Some(kind) = catalog.turn_sources.iter().find(|kind| kind.name == kind_name) {
            let config = self.config(owner, tree, kind.parse)?;
            config.validate(&mut self.check(owner, tree));
            return Some(NodeKind::Source(config));
        }
        if let Some(kind) = catalog.sinks.iter().find(|kind| kind.name == kind_name) {
            let config = self.config(owner, tree, kind.parse)?;
            config.validate(&mut self.check(owner, tree));
            return Some(NodeKind::Sink(config));
        }
        let kind = catalog.operators.iter().find(|kind| kind.name == kind_name)?;
        let config = self.config(owner, tree, kind.parse)?;
        config.validate(&mut self.check(owner, tree));
        for used in config.models() {
            let place = tree.get(used.field).map_or(tree.span, |tree| tree.span);
            self.model(owner, place, used.name, used.ability, models);
        }
        match config.corpus() {
            Some(CorpusRef::Named(name)) if !corpora.contains_key(name) => {
                let place = tree.get("corpus").map_or(tree.span, |tree| tree.span);
                let diagnostic = Diagnostic::new("unknown-corpus", place, format!("{owner}: unknown corpus `{name}`"));
                let diagnostic = diagnostic.label("no such corpus");
                self.diagnostics.push(diagnostic.choices(name, corpora.keys().map(String::as_str)));
            }
            _ => {}
        }
        Some(NodeKind::Operator(config))
    }

    /// Follows inputs from every node; a node that is met while it is open closes a cycle.
    fn cycles(&mut self, entries: &[Entry], edges: &BTreeMap<&str, Vec<(String, Span)>>) {
        let mut done: Vec<&str> = Vec::new();
        for entry in entries {
            let mut open: Vec<&str> = Vec::new();
            if let Some((span, cycle)) = find_cycle(&entry.key.text, edges, &mut open, &mut done) {
                let path = cycle.iter().map(|id| format!("`{id}`")).collect::<Vec<_>>().join(" ← ");
                let message = format!("these nodes feed each other in a circle: {path}");
                self.diagnostics.push(Diagnostic::new("cycle", span, message).label("closes the circle"));
            }
        }
    }
}

fn find_cycle<'e>(
    id: &'e str,
    edges: &'e BTreeMap<&str, Vec<(String, Span)>>,
    open: &mut Vec<&'e str>,
    done: &mut Vec<&'e str>,
) -> Option<(Span, Vec<String>)> {
    if done.contains(&id) {
        return None;
    }
    open.push(id);
    for (input, span) in edges.get(id).into_iter().flatten() {
        if let Some(at) = open.iter().position(|open| open == input) {
            let mut cycle: Vec<String> = open[at..].iter().map(|id| (*id).to_owned()).collect();
            cycle.push(input.clone());
            done.extend(open.iter().copied());
            return Some((*span, cycle));
        }
        if let Some(cycle) = find_cycle(input, edges, open, done) {
            return Some(cycle);
        }
    }
    open.pop();
    done.push(id);
    None
}

/// Nodes after those that feed them, else in the order of the file.
fn order(nodes: Vec<(&Entry, PlannedNode)>, edges: &BTreeMap<&str, Vec<(String, Span)>>) -> Vec<PlannedNode> {
    let mut waiting = nodes;
    let mut placed: Vec<PlannedNode> = Vec::new();
    let mut position: BTreeMap<Arc<str>, usize> = BTreeMap::new();
    while !waiting.is_empty() {
        let ready = waiting.iter().position(|(entry, _)| {
            edges
                .get(entry.key.text.as_str())
                .into_iter()
                .flatten()
                .all(|(input, _)| position.contains_key(input.as_str()))
        });
        // There is no cycle, so one is always ready.
        let (entry, mut node) = waiting.remove(ready.unwrap_or(0));
        let inputs = edges.get(entry.key.text.as_str()).into_iter().flatten();
        node.inputs = inputs.filter_map(|(input, _)| position.get(input.as_str()).copied()).collect();
        position.insert(node.id.clone(), placed.len());
        placed.push(node);
    }
    placed
}
