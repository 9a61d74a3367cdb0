//! Resolves the nodes of a pipeline: their kinds, inputs, models and corpora.

use std::collections::BTreeMap;

use super::Resolver;
use super::corpora::PlannedCorpora;
use super::edges::{Edges, mixed_sources, order};
use super::models::PlannedModels;
use crate::component::{Catalog, CorpusRef, Inner, InputPort, OperatorConfig};
use crate::filter::Filter;
use crate::plan::{NodeKind, PlannedCorpus, PlannedNode};
use crate::record::PortType;
use crate::spec::{Diagnostic, Entry, Kind, Span, Tree, did_you_mean};

/// Sinks also accept hits and queries, so a pipeline that only retrieves or rewrites needs no generator.
const SINK_PORTS: &[InputPort] = &[InputPort::one(PortType::Answers).or(PortType::Hits).or(PortType::Queries)];

impl Resolver<'_> {
    pub(super) fn nodes(
        &mut self,
        tree: &Tree,
        models: &PlannedModels,
        corpora: &PlannedCorpora,
    ) -> Option<Vec<PlannedNode>> {
        let entries = self.members(tree, "nodes");
        // The output type of each node: known from its kind, even if its configuration is invalid.
        let outputs: BTreeMap<&str, Option<PortType>> =
            entries.iter().map(|entry| (entry.key.text.as_str(), self.output(&entry.value))).collect();
        let is_sink =
            |tree: &Tree| tree.name().is_some_and(|name| self.catalog.sinks.iter().any(|kind| kind.name == name.text));
        let sinks: Vec<&str> =
            entries.iter().filter(|entry| is_sink(&entry.value)).map(|entry| entry.key.text.as_str()).collect();
        let mut nodes = Vec::new();
        let mut edges: Edges<'_> = BTreeMap::new();
        for entry in entries {
            let id = entry.key.text.as_str();
            let Some((kind_name, ports, output)) = self.known_kind(entry) else { continue };
            let inputs = self.inputs(entry, kind_name, ports, &outputs, &sinks);
            let owner = format!("{kind_name} `{id}`");
            let kind = self.node(&owner, &entry.value, kind_name, models, corpora);
            if let Some(kind) = kind {
                let fields: Vec<&str> = ports.iter().map(|port| port.field).collect();
                let node = PlannedNode {
                    id: id.into(),
                    kind_name,
                    definition: self.definition(&owner, &entry.value, &[]),
                    settings: self.definition(&owner, &entry.value, &fields),
                    kind,
                    inputs: Vec::new(),
                    ports,
                    output,
                };
                nodes.push((entry, node));
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
        self.sinks_files(&nodes, corpora);
        self.cycles(entries, &edges);
        if self.diagnostics.iter().any(|diagnostic| diagnostic.missing.is_none()) || nodes.len() != entries.len() {
            return None;
        }
        let nodes = order(nodes, &edges);
        let mixed = mixed_sources(&nodes, &edges);
        let is_right = mixed.is_empty();
        self.diagnostics.extend(mixed);
        is_right.then_some(nodes)
    }

    fn output(&self, tree: &Tree) -> Option<PortType> {
        let name = &tree.name()?.text;
        let operator = self.catalog.operators.iter().find(|kind| kind.name == name).map(|kind| kind.output);
        operator.or_else(|| self.catalog.turn_sources.iter().any(|kind| kind.name == name).then_some(PortType::Turns))
    }

    fn known_kind(&mut self, entry: &Entry) -> Option<(&'static str, &'static [InputPort], Option<PortType>)> {
        let owner = format!("node `{}`", entry.key.text);
        let example = self.catalog.operators.first().map_or("Kind", |kind| kind.name);
        let name = self.kind(&owner, &entry.value, example)?;
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

    /// The inputs of a node, with the span where each is named.
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
            // A missing or wrongly typed field is reported when the configuration is deserialized.
            let named: Vec<&Tree> = match entry.value.get(port.field).map(|tree| (tree, &tree.kind)) {
                Some((_, Kind::Seq(items))) if port.many => items.iter().collect(),
                Some((tree, _)) if !port.many => vec![tree],
                _ => continue,
            };
            let fits = |(id, given): &(&&str, &Option<PortType>)| {
                given.is_some_and(|given| port.takes(given)) && **id != entry.key.text
            };
            let fitting: Vec<&str> = outputs.iter().filter(fits).map(|(id, _)| *id).collect();
            for tree in named {
                let Kind::Scalar(ron::Value::String(name)) = &tree.kind else { continue };
                match outputs.get(name.as_str()) {
                    None => {
                        let message = format!("{owner}: there is no node `{name}`");
                        let diagnostic = Diagnostic::new("unknown-input", tree.span, message).label("no such node");
                        // A node with a fitting type is the more likely intention.
                        let others = outputs.keys().copied().filter(|id| *id != entry.key.text);
                        let near = did_you_mean(name, fitting.iter().copied()).or_else(|| did_you_mean(name, others));
                        self.diagnostics.push(diagnostic.help(match near {
                            Some(near) => format!("did you mean `{near}`?"),
                            None => given_by(port, &fitting),
                        }));
                    }
                    Some(Some(output)) if !port.takes(*output) => {
                        let message = format!("{owner} expects {port}, but `{name}` outputs {output}");
                        let diagnostic =
                            Diagnostic::new("port-type", tree.span, message).label(format!("expected {port}"));
                        self.diagnostics.push(diagnostic.help(given_by(port, &fitting)));
                    }
                    Some(None) if sinks.contains(&name.as_str()) => {
                        let message = format!("{owner}: `{name}` is a sink and has no output");
                        let diagnostic =
                            Diagnostic::new("port-type", tree.span, message).label(format!("expected {port}"));
                        self.diagnostics.push(diagnostic.help(given_by(port, &fitting)));
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
        models: &PlannedModels,
        corpora: &PlannedCorpora,
    ) -> Option<NodeKind> {
        let catalog = self.catalog;
        if let Some(kind) = catalog.turn_sources.iter().find(|kind| kind.name == kind_name) {
            let typed = self.config(owner, tree, kind.parse)?;
            self.validate(owner, tree, &typed, |config, check| config.validate(check));
            return Some(NodeKind::Source(typed.whole()?));
        }
        if let Some(kind) = catalog.sinks.iter().find(|kind| kind.name == kind_name) {
            let typed = self.config(owner, tree, kind.parse)?;
            self.validate(owner, tree, &typed, |config, check| config.validate(check));
            for used in typed.config.models().iter().filter(|used| typed.has(used.field)) {
                let place = tree.get(used.field).map_or(tree.span, |tree| tree.span);
                self.model(owner, place, used.name, used.capability, models);
            }
            return Some(NodeKind::Sink(typed.whole()?));
        }
        let kind = catalog.operators.iter().find(|kind| kind.name == kind_name)?;
        let typed = self.config(owner, tree, kind.parse)?;
        self.validate(owner, tree, &typed, |config, check| config.validate(check));
        self.uses(owner, tree, &*typed.config, &|field| typed.has(field), models, corpora);
        for Inner { path, config } in typed.config.inner() {
            if path.first().is_some_and(|field| !typed.has(field)) {
                continue;
            }
            let inside = path.iter().try_fold(tree, |tree, field| tree.get(field)).unwrap_or(tree);
            self.validated(owner, inside, |check| {
                config.check_ranges(check);
                config.validate(check);
            });
            self.uses(owner, inside, config, &|_| true, models, corpora);
        }
        Some(NodeKind::Operator(typed.whole()?))
    }

    /// Checks that the models and the corpus of an operator exist.
    fn uses(
        &mut self,
        owner: &str,
        tree: &Tree,
        config: &dyn OperatorConfig,
        has: &dyn Fn(&str) -> bool,
        models: &PlannedModels,
        corpora: &PlannedCorpora,
    ) {
        for used in config.models().iter().filter(|used| has(used.field)) {
            let place = tree.get(used.field).map_or(tree.span, |tree| tree.span);
            self.model(owner, place, used.name, used.capability, models);
        }
        if let (Some(filter), Some(corpus)) = (config.filter().filter(|_| has("filter")), config.corpus()) {
            self.filter(owner, tree, filter, corpus, corpora);
        }
        match config.corpus() {
            Some(CorpusRef::Named(name)) if has("corpus") && !corpora.contains_key(name) => {
                let place = tree.get("corpus").map_or(tree.span, |tree| tree.span);
                let diagnostic = Diagnostic::new("unknown-corpus", place, format!("{owner}: unknown corpus `{name}`"));
                let mut diagnostic = diagnostic.label("no such corpus");
                if corpora.is_empty() {
                    diagnostic = diagnostic.help("the pipeline has no `corpora`");
                }
                let known = corpora.keys().map(String::as_str).chain(["FromTurn"]);
                self.diagnostics.push(diagnostic.choices(name, known));
            }
            _ => {}
        }
    }
}

impl Resolver<'_> {
    /// Checks a filter against the fields that its corpora declare.
    fn filter(&mut self, owner: &str, tree: &Tree, filter: &Filter, corpus: &CorpusRef, corpora: &PlannedCorpora) {
        let place = tree.get("filter").unwrap_or(tree);
        if let Some(problem) = filter.problem() {
            let message = format!("{owner}: {problem}");
            self.diagnostics.push(Diagnostic::new("bad-filter", place.span, message));
        }
        let read: Vec<&PlannedCorpus> = match corpus {
            CorpusRef::Named(name) => corpora.get(name).into_iter().flatten().collect(),
            CorpusRef::FromTurn => corpora.values().flatten().collect(),
        };
        let fields = filter.fields().into_iter().map(|field| (field, &[][..]));
        let mut told = std::collections::BTreeSet::new();
        for (field, values) in filter.literals().into_iter().chain(fields) {
            for corpus in &read {
                let Some(problem) = corpus.schema.misuse(field, values) else { continue };
                if !told.insert((field, corpus.name.clone())) {
                    continue;
                }
                let message = format!("{owner}: the field `{field}` of corpus `{}` {problem}", corpus.name);
                let span = condition_on(place, field).unwrap_or(place).span;
                let mut diagnostic = Diagnostic::new("bad-filter", span, message);
                if values.is_empty() || !corpus.schema.fields.contains_key(field) {
                    diagnostic = diagnostic.choices(field, corpus.schema.fields.keys().map(|name| &**name));
                }
                self.diagnostics.push(diagnostic);
            }
        }
    }
}

/// The condition on a field in a filter.
fn condition_on<'t>(tree: &'t Tree, field: &str) -> Option<&'t Tree> {
    match &tree.kind {
        Kind::Tuple(_, items) if items.first().and_then(Tree::text) == Some(field) => Some(tree),
        Kind::Tuple(_, items) | Kind::Seq(items) => items.iter().find_map(|item| condition_on(item, field)),
        _ => None,
    }
}

fn given_by(port: &InputPort, nodes: &[&str]) -> String {
    match nodes {
        [] => format!("no node outputs {port}"),
        nodes => {
            let nodes: Vec<String> = nodes.iter().map(|id| format!("`{id}`")).collect();
            format!("nodes that output {port}: {}", nodes.join(", "))
        }
    }
}
