//! Resolves the names in a pipeline file and reports every error.

mod answers;
mod corpora;
mod edges;
mod files;
mod models;
pub(super) mod models_file;
mod nodes;
mod typed;

use std::sync::Arc;

use serde::Deserialize;

use self::typed::head;
use super::{AnswerCacheSettings, AnswerMode, Conversations, FailedTurns, Maintenance, Plan, Retries};
use crate::component::{Catalog, Texts};
use crate::spec::{Diagnostic, Entry, FilePath, Kind, Name, Sources, SpecError, Tree, from_tree};

/// Resolves names and collects diagnostics.
struct Resolver<'a> {
    sources: &'a Sources,
    catalog: &'a Catalog,
    diagnostics: &'a mut Vec<Diagnostic>,
    texts: Texts,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename = "Pipeline")]
struct Top {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    conversations: Conversations,
    #[serde(default)]
    maintenance: Maintenance,
    #[serde(default)]
    retries: Retries,
    #[serde(default)]
    failed_turns: FailedTurns,
    #[serde(default)]
    mode: AnswerMode,
    #[serde(default)]
    cache: Option<AnswerCacheSettings>,
    #[serde(default)]
    dead_letters: Option<FilePath>,
    // Read entry by entry, so that each mistake is reported.
    #[serde(default, rename = "models")]
    _models: serde::de::IgnoredAny,
    #[serde(default, rename = "corpora")]
    _corpora: serde::de::IgnoredAny,
    #[serde(rename = "nodes")]
    _nodes: serde::de::IgnoredAny,
    // Not part of the plan; the test runner reads them.
    #[serde(default, rename = "tests")]
    _tests: serde::de::IgnoredAny,
}

pub(super) fn resolve(
    tree: &Tree,
    sources: &Sources,
    catalog: &Catalog,
    diagnostics: &mut Vec<Diagnostic>,
) -> Option<Plan> {
    let mut resolver = Resolver { sources, catalog, diagnostics, texts: Texts::new() };
    match tree.name() {
        Some(name) if name.text == "Pipeline" && tree.entries().is_some() => {}
        _ => {
            let message = format!("a pipeline file must contain `Pipeline(…)`, not {}", tree.describe());
            resolver
                .diagnostics
                .push(Diagnostic::new("not-a-pipeline", head(tree), message).label("expected `Pipeline(…)`"));
            return None;
        }
    }
    let parse: fn(&Tree, &Sources) -> Result<Box<Top>, SpecError> =
        |tree, sources| from_tree(tree, sources).map(Box::new);
    let top = resolver.config("the pipeline", tree, parse);
    let models = resolver.models(tree, true);
    let corpora = resolver.corpora(tree, &models);
    let nodes = resolver.nodes(tree, &models, &corpora);
    let top = top?;
    let bounds = &top.config.conversations;
    let ranges = [
        ("max_in_flight", bounds.max_in_flight as u64, 100_000),
        ("max_queued", bounds.max_queued as u64, 10_000_000),
        ("max_queued_mb", bounds.max_queued_mb, 1_000_000),
        ("max_held", bounds.max_held as u64, 1_000_000_000),
        ("max_held_mb", bounds.max_held_mb, 1_000_000),
    ];
    for (field, value, most) in ranges.into_iter().filter(|(_, value, most)| !(1..=*most).contains(value)) {
        let place = tree.get("conversations").and_then(|tree| tree.get(field)).unwrap_or(tree);
        let message = format!("the pipeline: `{field}` is {value}, out of range");
        let label = format!("expected 1 to {most}");
        resolver.diagnostics.push(Diagnostic::new("out-of-range", place.span, message).label(label));
    }
    let attempts = top.config.retries.attempts;
    if !(1..=100).contains(&attempts) {
        let place = tree.get("retries").and_then(|tree| tree.get("attempts")).unwrap_or(tree);
        let message = format!("the pipeline: `attempts` is {attempts}, out of range");
        resolver.diagnostics.push(Diagnostic::new("out-of-range", place.span, message).label("expected 1 to 100"));
    }
    if let Some(AnswerCacheSettings::Answers { similar, model, .. }) = &top.config.cache {
        resolver.answer_cache(tree, (*similar, model.as_deref()), &models);
    }
    if let (Some(dead_letters), Some(nodes)) = (&top.config.dead_letters, &nodes) {
        resolver.dead_letters_file(tree, dead_letters, nodes, &corpora);
    }
    let top = top.whole()?;
    let name = top.name.unwrap_or_else(|| {
        let file = std::path::Path::new(&sources.get(tree.span.source).name);
        file.file_stem().map_or("pipeline".into(), |stem| stem.to_string_lossy().into_owned())
    });
    let plan = Plan {
        name,
        hash: hash(tree, &resolver.texts),
        models: models.into_iter().filter_map(|(name, model)| Some((name, model?))).collect(),
        corpora: corpora.into_values().flatten().collect(),
        nodes: nodes?,
        conversations: top.conversations,
        maintenance: top.maintenance,
        retries: top.retries,
        failed_turns: top.failed_turns,
        mode: top.mode,
        cache: top.cache,
        dead_letters: top.dead_letters,
        texts: resolver.texts.values().map(|(_, path)| path.clone()).collect(),
    };
    resolver.optional_models(tree, &plan);
    Some(plan)
}

/// Hash of the file's content and of the text files that it names, without its tests.
fn hash(tree: &Tree, texts: &Texts) -> Arc<str> {
    let mut tree = tree.clone();
    tree.entries_mut().into_iter().for_each(|entries| entries.retain(|entry| entry.key.text != "tests"));
    let mut hasher = blake3::Hasher::new();
    hasher.update(tree.canonical().as_bytes());
    for ((owner, field), (text, _)) in texts {
        hasher.update(format!("{owner}: {field} {text}").as_bytes());
    }
    hasher.finalize().to_hex().to_string().into()
}

impl Resolver<'_> {
    /// Hash of a part of the file and of the text files that it names, used to compare the part
    /// between two plans. Fields in `without` are omitted.
    fn definition(&self, owner: &str, tree: &Tree, without: &[&str]) -> Arc<str> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(tree.canonical_without(without).as_bytes());
        for ((_, field), (text, _)) in self.texts.iter().filter(|((by, _), _)| by == owner) {
            hasher.update(format!("{field} {text}").as_bytes());
        }
        hasher.finalize().to_hex().as_str().into()
    }

    /// The members of one of the pipeline's maps.
    fn members<'t>(&mut self, tree: &'t Tree, field: &str) -> &'t [Entry] {
        match tree.get(field).map(|tree| (tree, &tree.kind)) {
            None => &[],
            Some((_, Kind::Map(entries))) => entries,
            Some((other, _)) => {
                let message = format!("`{field}` must be a map, not {}", other.describe());
                let label = "expected {\"name\": Kind(…)}";
                self.diagnostics.push(Diagnostic::new("wrong-type", other.span, message).label(label));
                &[]
            }
        }
    }

    /// The name of a value that must have one.
    fn kind<'t>(&mut self, what: &str, tree: &'t Tree, example: &str) -> Option<&'t Name> {
        if tree.name().is_none() {
            let message = format!("{what} must start with the name of its kind, not {}", tree.describe());
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
}
