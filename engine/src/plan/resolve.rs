//! Names to what they name, with every mistake on the way.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;

use super::{Conversations, NodeKind, Plan, PlannedCorpus, PlannedModel, PlannedNode};
use crate::component::{Ability, Catalog, Check, CorpusRef, InputPort, Parse};
use crate::record::PortType;
use crate::spec::{
    Diagnostic, Entry, FilePath, Kind, Name, Problem, Sources, Span, SpecError, Tree, did_you_mean, from_tree,
};

const SINK_PORTS: &[InputPort] = &[InputPort::one(PortType::Answers)];

/// Looks names up, and collects what is wrong on the way.
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
    let max_in_flight = top.config.conversations.max_in_flight;
    if !(1..=100_000).contains(&max_in_flight) {
        let place = tree.get("conversations").and_then(|tree| tree.get("max_in_flight")).unwrap_or(tree);
        let message = format!("the pipeline: `max_in_flight` is {max_in_flight}, out of range");
        resolver.diagnostics.push(Diagnostic::new("out-of-range", place.span, message).label("expected 1 to 100000"));
    }
    let top = top.whole()?;
    let name = top.name.unwrap_or_else(|| {
        let file = std::path::Path::new(&sources.get(tree.span.source).name);
        file.file_stem().map_or("pipeline".into(), |stem| stem.to_string_lossy().into_owned())
    });
    let hash = blake3::hash(tree.canonical().as_bytes()).to_hex().to_string().into();
    Some(Plan {
        name,
        hash,
        models: models.into_iter().filter_map(|(name, model)| Some((name, model?))).collect(),
        corpora: corpora.into_values().flatten().collect(),
        nodes: nodes?,
        conversations: top.conversations,
        dead_letters: top.dead_letters,
    })
}

/// A configuration with the names of its fields that are wrong or missing; it may be looked
/// at for further mistakes, and used only if there are none.
struct Typed<C: ?Sized> {
    config: Box<C>,
    wrong: Vec<String>,
    missing: Vec<String>,
}

impl<C: ?Sized> Typed<C> {
    fn has(&self, field: &str) -> bool {
        !self.wrong.iter().chain(&self.missing).any(|name| name == field)
    }

    fn whole(self) -> Option<Box<C>> {
        (self.wrong.is_empty() && self.missing.is_empty()).then_some(self.config)
    }
}

/// Takes the innermost field at `span` out; the name of the outermost.
fn drop_at(tree: &mut Tree, span: Span) -> Option<String> {
    let entries = tree.entries_mut()?;
    let at = entries.iter().position(|entry| entry.key.span == span || entry.value.span.contains(&span))?;
    let name = entries[at].key.text.clone();
    let inner = entries[at].key.span != span && entries[at].value.span != span;
    if !inner || drop_at(&mut entries[at].value, span).is_none() {
        entries.remove(at);
    }
    Some(name)
}

/// The innermost field whose value holds `span`.
fn field_at(tree: &Tree, span: Span) -> Option<&str> {
    let entry = tree.entries()?.iter().find(|entry| entry.value.span.contains(&span))?;
    Some(field_at(&entry.value, span).unwrap_or(&entry.key.text))
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
    fn kind<'t>(&mut self, what: &str, tree: &'t Tree, example: &str) -> Option<&'t Name> {
        if tree.name().is_none() {
            let message = format!("{what} begins with the name of its kind, and this is {}", tree.describe());
            let label = format!("expected a name and `(…)`, as in `{example}(…)`");
            self.diagnostics.push(Diagnostic::new("wrong-type", tree.span, message).label(label));
        }
        tree.name()
    }

    fn unknown<'n>(&mut self, code: &'static str, what: &str, name: &Name, known: impl Iterator<Item = &'n str>) {
        let message = format!("unknown {what} `{}`", name.text);
        self.diagnostics.push(
            Diagnostic::new(code, name.span, message).label(format!("no such {what}")).choices(&name.text, known),
        );
    }

    /// Types a configuration. A struct is typed again without each field that is wrong, and
    /// with a hole for each that is missing, so that all its mistakes are told, not only
    /// the first.
    fn config<C: ?Sized>(&mut self, owner: &str, tree: &Tree, parse: Parse<C>) -> Option<Typed<C>> {
        let mut rest = tree.clone();
        let (mut wrong, mut missing): (Vec<String>, Vec<String>) = Default::default();
        loop {
            let error = match parse(&rest, self.sources) {
                Ok(config) => return Some(Typed { config, wrong, missing }),
                Err(error) => error,
            };
            if error.span == Some(Tree::hole().span) {
                return None;
            }
            match error.problem {
                Problem::MissingField(field) if error.span == Some(tree.span) => {
                    // A field that was dropped is missing through us, not through the author.
                    if !wrong.iter().any(|name| name == field) {
                        self.diagnostics.push(self.explain(owner, tree, &error));
                    }
                    let entries = rest.entries_mut().filter(|_| !missing.iter().any(|name| name == field))?;
                    entries.push(Entry { key: Name { text: field.to_owned(), span: tree.span }, value: Tree::hole() });
                    missing.push(field.to_owned());
                }
                _ => {
                    self.diagnostics.push(self.explain(owner, tree, &error));
                    wrong.push(drop_at(&mut rest, error.span?)?);
                }
            }
        }
    }

    /// Reports values that cannot be, except in fields of which something is told already.
    fn validate<C: ?Sized>(
        &mut self,
        owner: &str,
        tree: &Tree,
        typed: &Typed<C>,
        validate: impl FnOnce(&C, &mut Check<'_>),
    ) {
        // What a hole was read as is nobody's value, and others are compared with it.
        if !typed.missing.is_empty() {
            return;
        }
        let mut found = Vec::new();
        validate(&typed.config, &mut Check { tree, owner, diagnostics: &mut found });
        let told = |span: Span| {
            let value = |name: &String| tree.get(name).is_some_and(|value| value.span.contains(&span));
            typed.wrong.iter().any(value)
        };
        self.diagnostics.extend(found.into_iter().filter(|found| !found.span.is_some_and(told)));
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
                let written = text.get(span.start..span.end).unwrap_or_default();
                let mut short: String = written.chars().take_while(|c| *c != '\n').take(40).collect();
                if short.len() < written.len() {
                    short.push('…');
                }
                let message = match field_at(tree, span) {
                    Some(field) => format!("{owner}: `{field}` cannot be `{short}`"),
                    None => format!("{owner} cannot be `{short}`"),
                };
                Diagnostic::new("wrong-type", span, message).label(format!("expected {expected}"))
            }
            Problem::Other(message) => Diagnostic::new("wrong-value", span, format!("{owner}: {message}")),
        }
    }

    fn models(&mut self, tree: &Tree) -> BTreeMap<String, Option<PlannedModel>> {
        let mut models = BTreeMap::new();
        for entry in self.members(tree, "models") {
            let name = &entry.key.text;
            let owner = format!("model `{name}`");
            let example = self.catalog.models.first().map_or("Kind", |kind| kind.name);
            let planned = self.kind(&owner, &entry.value, example).and_then(|kind_name| {
                let Some(kind) = self.catalog.models.iter().find(|kind| kind.name == kind_name.text) else {
                    self.unknown(
                        "unknown-model-kind",
                        "kind of model",
                        kind_name,
                        self.catalog.models.iter().map(|kind| kind.name),
                    );
                    return None;
                };
                let typed = self.config(&owner, &entry.value, kind.parse)?;
                self.validate(&owner, &entry.value, &typed, |config, check| config.validate(check));
                Some(PlannedModel { kind_name: kind.name, config: typed.whole()? })
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
        match self.kind(&owner, tree, "Corpus")? {
            kind if kind.text == "Corpus" => {}
            kind => {
                self.unknown("unknown-corpus-kind", "kind of corpus", kind, ["Corpus"].into_iter());
                return None;
            }
        }
        let parse: fn(&Tree, &Sources) -> Result<Box<Corpus>, SpecError> =
            |tree, sources| from_tree(tree, sources).map(Box::new);
        let shape = self.config(&owner, tree, parse).and_then(Typed::whole);
        let source = tree.get("source").and_then(|source| {
            let example = catalog.corpus_sources.first().map_or("Kind", |kind| kind.name);
            let kind_name = self.kind(&format!("the source of {owner}"), source, example)?;
            let Some(kind) = catalog.corpus_sources.iter().find(|kind| kind.name == kind_name.text) else {
                self.unknown(
                    "unknown-source",
                    "corpus source",
                    kind_name,
                    catalog.corpus_sources.iter().map(|kind| kind.name),
                );
                return None;
            };
            let typed = self.config(&owner, source, kind.parse)?;
            self.validate(&owner, source, &typed, |config, check| config.validate(check));
            Some((kind.name, typed.whole()?))
        });
        let chunker = tree.get("chunk").and_then(|chunk| {
            let example = catalog.chunkers.first().map_or("Kind", |kind| kind.name);
            let kind_name = self.kind(&format!("the chunker of {owner}"), chunk, example)?;
            let Some(kind) = catalog.chunkers.iter().find(|kind| kind.name == kind_name.text) else {
                self.unknown("unknown-chunker", "chunker", kind_name, catalog.chunkers.iter().map(|kind| kind.name));
                return None;
            };
            let typed = self.config(&owner, chunk, kind.parse)?;
            self.validate(&owner, chunk, &typed, |config, check| config.validate(check));
            let tokenizer = match typed.config.tokenizer().filter(|_| typed.has("model")) {
                None => None,
                Some(wanted) => Some(self.tokenizer(&owner, chunk, wanted, models)?),
            };
            Some((kind.name, typed.whole()?, tokenizer))
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
                let what = ability.verb();
                let message = format!("{owner}: model `{name}` is {} and cannot {what}", model.kind_name);
                let able = models.iter().filter_map(|(name, model)| {
                    let able = model.as_ref()?.config.abilities().contains(&ability);
                    able.then(|| format!("`{name}`"))
                });
                let able = able.collect::<Vec<_>>().join(", ");
                let mut diagnostic =
                    Diagnostic::new("wrong-model", place, message).label(format!("expected a model that can {what}"));
                if !able.is_empty() {
                    diagnostic = diagnostic.help(format!("these can: {able}"));
                }
                self.diagnostics.push(diagnostic);
                false
            }
            Some(_) => true,
            None => {
                let message = format!("{owner}: unknown model `{name}`");
                let mut diagnostic = Diagnostic::new("unknown-model", place, message).label("no such model");
                if models.is_empty() {
                    diagnostic = diagnostic.help("the pipeline has no `models`");
                }
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
                        // One that would do is more likely meant than another.
                        let others = outputs.keys().copied().filter(|id| *id != entry.key.text);
                        let near = did_you_mean(name, fitting.iter().copied()).or_else(|| did_you_mean(name, others));
                        self.diagnostics.push(diagnostic.help(match near {
                            Some(near) => format!("did you mean `{near}`?"),
                            None => given_by(port, &fitting),
                        }));
                    }
                    Some(Some(output)) if !port.takes(*output) => {
                        let message = format!("{owner} takes {port}, and `{name}` gives {output}");
                        let diagnostic =
                            Diagnostic::new("port-type", tree.span, message).label(format!("expected {port}"));
                        self.diagnostics.push(diagnostic.help(given_by(port, &fitting)));
                    }
                    Some(None) if sinks.contains(&name.as_str()) => {
                        let message = format!("{owner}: `{name}` is a sink and gives nothing");
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
        models: &BTreeMap<String, Option<PlannedModel>>,
        corpora: &BTreeMap<String, Option<PlannedCorpus>>,
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
            return Some(NodeKind::Sink(typed.whole()?));
        }
        let kind = catalog.operators.iter().find(|kind| kind.name == kind_name)?;
        let typed = self.config(owner, tree, kind.parse)?;
        self.validate(owner, tree, &typed, |config, check| config.validate(check));
        for used in typed.config.models().iter().filter(|used| typed.has(used.field)) {
            let place = tree.get(used.field).map_or(tree.span, |tree| tree.span);
            self.model(owner, place, used.name, used.ability, models);
        }
        match typed.config.corpus() {
            Some(CorpusRef::Named(name)) if typed.has("corpus") && !corpora.contains_key(name) => {
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
        Some(NodeKind::Operator(typed.whole()?))
    }

    /// Follows inputs from every node; a node that is met while it is open closes a cycle.
    fn cycles(&mut self, entries: &[Entry], edges: &BTreeMap<&str, Vec<(String, Span)>>) {
        let mut done: Vec<&str> = Vec::new();
        for entry in entries {
            let mut open: Vec<&str> = Vec::new();
            if let Some((span, cycle)) = find_cycle(&entry.key.text, edges, &mut open, &mut done) {
                let path = cycle.iter().map(|id| format!("`{id}`")).collect::<Vec<_>>().join(" ← ");
                let message = match cycle.as_slice() {
                    [only, _] => format!("node `{only}` feeds itself"),
                    _ => format!("these nodes feed each other in a circle: {path}"),
                };
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

fn given_by(port: &InputPort, nodes: &[&str]) -> String {
    match nodes {
        [] => format!("no node gives {port}"),
        nodes => {
            let nodes: Vec<String> = nodes.iter().map(|id| format!("`{id}`")).collect();
            format!("{port} are given by: {}", nodes.join(", "))
        }
    }
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
