//! Adapts a pipeline to a test: uses the test's documents, replies and settings.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use serde_json::json;
use turnflow_engine::component::Catalog;
use turnflow_engine::plan::{Plan, Planned, plan};
use turnflow_engine::spec::{Diagnostic, Entry, Kind, Loaded, Name, Sources, Tree};

use super::config::Doc;
use super::find::{Test, span};
use super::replies::with_replies;
use crate::replay::ends;
use crate::setting::put;

/// An adapted pipeline.
pub struct Adapted {
    /// If there are no errors: the plan without sinks, and the node whose value is the result.
    pub plan: Option<(Plan, std::sync::Arc<str>)>,
    /// Every mistake.
    pub diagnostics: Vec<Diagnostic>,
}

/// Creates the plan of a test; writes its documents to `directory`.
///
/// # Errors
///
/// The documents cannot be written.
pub fn adapt(
    pipeline: &Tree,
    sources: &Sources,
    test: &Test,
    directory: &Path,
    catalog: &Catalog,
) -> io::Result<Adapted> {
    let mut tree = pipeline.clone();
    let mut diagnostics = Vec::new();
    let name = &test.config.name;
    for entry in test.tree.get("set").and_then(Tree::entries).unwrap_or_default() {
        if let Err(choices) = put(&mut tree, &entry.key.text, entry.value.clone()) {
            let message = format!("Test {name:?}: the pipeline has no `{}`", entry.key.text);
            let diagnostic = Diagnostic::new("unknown-path", entry.key.span, message);
            diagnostics.push(diagnostic.choices(choices.0.as_str(), choices.1.iter().map(String::as_str)));
        }
    }
    for entry in test.tree.get("models").and_then(Tree::entries).unwrap_or_default() {
        replace(&mut tree, "models", entry, entry.value.clone(), name, &mut diagnostics);
    }
    for entry in test.tree.get("corpora").and_then(Tree::entries).unwrap_or_default() {
        let Some(docs) = test.config.corpora.get(&entry.key.text) else { continue };
        let Some(corpus) = tree.get("corpora").and_then(|corpora| corpora.get(&entry.key.text)) else {
            replace(&mut tree, "corpora", entry, entry.value.clone(), name, &mut diagnostics);
            continue;
        };
        let mut corpus = corpus.clone();
        let at = directory.join(format!("corpus-{}", diagnostics.len() + fs::read_dir(directory)?.count()));
        let source = corpus.entries_mut().and_then(|fields| fields.iter_mut().find(|field| field.key.text == "source"));
        let Some(source) = source else { continue };
        let is_directory = source.value.name().is_some_and(|kind| kind.text == "Directory");
        let path = if is_directory { files(&at, docs)? } else { rows(&at, docs)? };
        let path = Tree {
            span: entry.value.span,
            kind: Kind::Scalar(ron::Value::String(path.to_string_lossy().into_owned())),
        };
        if is_directory {
            // Its patterns and size limits still apply.
            let _ = put(&mut source.value, "path", path);
        } else {
            let kind = Name { text: "JsonLines".into(), span: entry.key.span };
            let key = Name { text: "path".into(), span: entry.key.span };
            let fields = vec![Entry { key, value: path }];
            source.value = Tree { span: entry.value.span, kind: Kind::Struct(Some(kind), fields) };
        }
        replace(&mut tree, "corpora", entry, corpus, name, &mut diagnostics);
    }
    if !diagnostics.is_empty() {
        return Ok(Adapted { plan: None, diagnostics });
    }
    let loaded = Loaded { sources: sources.clone(), tree: Some(tree), diagnostics: Vec::new() };
    let Planned { plan, diagnostics, .. } = plan(loaded, &with_replies(catalog));
    let Some(plan) = plan.filter(|_| diagnostics.is_empty()) else { return Ok(Adapted { plan: None, diagnostics }) };
    Ok(towards(plan, test))
}

/// Reduces the plan to the nodes that the expectations need, without sinks.
fn towards(mut plan: Plan, test: &Test) -> Adapted {
    let Some(end) = ends(&plan) else {
        let message = format!("Test {:?}: no node of the pipeline outputs hits or answers", test.config.name);
        return Adapted { plan: None, diagnostics: vec![Diagnostic::new("no-source", test.tree.span, message)] };
    };
    let mut diagnostics = Vec::new();
    let mut wanted = vec![&*end];
    for (at, expect) in test.config.expect.iter().enumerate() {
        for hits in &expect.hits_in.0 {
            let known = plan.nodes.iter().filter(|node| node.output == Some(turnflow_engine::record::PortType::Hits));
            if known.clone().any(|node| *node.id == *hits.node) {
                wanted.push(&hits.node);
                continue;
            }
            let message = format!("Test {:?}: no node `{}` outputs hits", test.config.name, hits.node);
            let diagnostic = Diagnostic::new("unknown-input", span(&test.tree, at, "hits_in"), message);
            diagnostics.push(diagnostic.choices(&hits.node, known.map(|node| &*node.id)));
        }
    }
    if !diagnostics.is_empty() {
        return Adapted { plan: None, diagnostics };
    }
    plan.dead_letters = None;
    // A retry never helps, since the replies are fixed.
    plan.retries.attempts = 1;
    Adapted { plan: Some((plan.towards(&wanted), end.clone())), diagnostics }
}

/// Replaces a member of a section of the pipeline.
fn replace(tree: &mut Tree, section: &str, entry: &Entry, value: Tree, name: &str, diagnostics: &mut Vec<Diagnostic>) {
    let fields = tree.entries_mut().into_iter().flatten();
    let section_tree = fields.into_iter().find(|field| field.key.text == section);
    let members = section_tree.and_then(|field| field.value.entries_mut());
    let mut known = Vec::new();
    if let Some(members) = members {
        if let Some(member) = members.iter_mut().find(|member| member.key.text == entry.key.text) {
            member.value = value;
            return;
        }
        known = members.iter().map(|member| member.key.text.clone()).collect();
    }
    let message = format!("Test {name:?}: the pipeline has no `{}` in its `{section}`", entry.key.text);
    let code = if section == "models" { "unknown-model" } else { "unknown-corpus" };
    let diagnostic = Diagnostic::new(code, entry.key.span, message).label("nothing to replace");
    diagnostics.push(diagnostic.choices(&entry.key.text, known.iter().map(String::as_str)));
}

/// Writes a file with one row per document.
fn rows(at: &Path, docs: &[Doc]) -> io::Result<PathBuf> {
    let path = at.with_extension("jsonl");
    let row = |doc: &Doc| {
        format!("{}\n", json!({"_id": doc.id, "title": doc.title, "text": doc.text, "metadata": doc.metadata}))
    };
    fs::write(&path, docs.iter().map(row).collect::<String>())?;
    Ok(path)
}

/// Writes a directory with one file per document; the title becomes its first heading.
fn files(at: &Path, docs: &[Doc]) -> io::Result<PathBuf> {
    fs::create_dir_all(at)?;
    for doc in docs {
        let id = Path::new(&doc.id);
        if doc.id.is_empty() || !id.components().all(|part| matches!(part, Component::Normal(_))) {
            let message = format!("the document id `{}` is not a relative path", doc.id);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let path = at.join(id);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        let title = if doc.title.is_empty() { String::new() } else { format!("# {}\n\n", doc.title) };
        // JSON is YAML.
        let fields = doc.metadata.iter().map(|(name, value)| format!("{}: {value}\n", json!(name))).collect::<String>();
        let front = if fields.is_empty() { fields } else { format!("---\n{fields}---\n") };
        fs::write(path, format!("{front}{title}{}\n", doc.text))?;
    }
    Ok(at.to_owned())
}
